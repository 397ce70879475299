# grpcio's own modules are untyped, and the stubs that pyright brings for them leave half of each out.
from typing import Any

def __getattr__(name: str) -> Any: ...
