"""A mesh of fake processes around a real broker: what the supervisor does shows in seconds, without weights."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal_supervisor.embedded import EmbeddedMesh

FAKE = Path(__file__).with_name("fake_process.py")
SERVICES = ("registry", "scheduler", "lora_store", "worker", "gateway")
MakeMesh = Callable[..., EmbeddedMesh]


@pytest.fixture
def fake_environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which every process but the broker is a fake one."""
    packages = tmp_path / "fakes"
    for service in SERVICES:
        package = packages / f"shoal_{service}"
        package.mkdir(parents=True)
        # What a fake does not have is the real one's.
        (package / "__init__.py").write_text("__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n")
        (package / "__main__.py").write_text(f"import fake_process\nfake_process.main({service!r})\n")
    sidecar = tmp_path / "sidecar"
    sidecar.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} sidecar "$@"\n')
    sidecar.chmod(0o755)
    return {"PYTHONPATH": f"{packages}{os.pathsep}{FAKE.parent}", "SHOAL_SIDECAR_BIN": str(sidecar)}


@pytest.fixture
def fake_mesh(tmp_path: Path, fake_environment: dict[str, str]) -> MakeMesh:
    """Makes a mesh of fakes in `tmp_path / "state"`, not started; `faults` are fake_process.py's."""

    def make(faults: dict[str, Any] | None = None, **options: Any) -> EmbeddedMesh:
        environment = {**fake_environment, "FAKE_FAULTS": json.dumps(faults or {})}
        return EmbeddedMesh(tmp_path / "state", env=environment, **options)

    return make
