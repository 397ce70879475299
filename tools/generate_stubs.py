"""Generates the Python stubs of protos/ into the `shoal` package: at every build, and by hand.

    python tools/generate_stubs.py

Stubs are generated into a temporary folder and then swapped in, so that a failed run leaves the old
ones whole and a running process never imports half a set.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent.parent


def proto_files(root: Path = ROOT) -> list[str]:
    """Paths of all proto files, relative to protos/, in order."""
    return sorted(str(path.relative_to(root / "protos")) for path in (root / "protos").rglob("*.proto"))


def include_paths() -> list[str]:
    """Folders that hold google/protobuf and google/rpc."""
    import google.rpc
    from grpc_tools import protoc

    return [
        str(resources.files(protoc.__package__ or "grpc_tools") / "_proto"),
        str(Path(next(iter(google.rpc.__path__))).parent.parent),
    ]


def generate(root: Path = ROOT) -> None:
    """Writes <package>_pb2.py, .pyi and _pb2_grpc.py for every proto file into root/shoal."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory(dir=root) as scratch:
        arguments = ["protoc", f"-I{root / 'protos'}", *(f"-I{path}" for path in include_paths())]
        arguments += [f"--{kind}_out={scratch}" for kind in ("python", "pyi", "grpc_python")]
        if protoc.main(arguments + proto_files(root)) != 0:
            raise SystemExit("the protos do not compile; protoc's message stands above")
        for stub in Path(scratch).rglob("*_pb2*"):
            target = root / stub.relative_to(scratch)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(stub, target)


class GenerateStubs(BuildHookInterface):
    """Runs before the wheel is built, editable or not."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        generate(Path(self.root))


if __name__ == "__main__":
    sys.exit(generate())
