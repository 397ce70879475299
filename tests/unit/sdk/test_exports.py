"""The names that clients may rely on."""

from __future__ import annotations

import subprocess
import sys

import pytest

import shoal


def test_exported_names_are_these() -> None:
    assert shoal.__all__ == [
        "CallError",
        "DeadlineExceeded",
        "Embedding",
        "EncodeAnswer",
        "InternalError",
        "InvalidRequest",
        "InvalidText",
        "ItemError",
        "ItemsFailed",
        "Mesh",
        "Model",
        "NotFound",
        "Overloaded",
        "PermissionDenied",
        "Provenance",
        "Run",
        "ShoalError",
        "Unauthenticated",
        "Unavailable",
        "__version__",
        "aio",
        "connect",
    ]
    for name in shoal.__all__:
        assert getattr(shoal, name) is not None
    assert shoal.aio.__all__ == ["Mesh", "connect"]


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Client'"):
        shoal.Client  # type: ignore[attr-defined] # noqa: B018


def test_both_clients_have_the_same_methods() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(shoal.Mesh) - {"target"} == public(shoal.aio.Mesh)


@pytest.mark.parametrize("module", ["shoal", "shoal.cli.main"])
def test_import_stays_light(module: str) -> None:
    script = f"import sys, {module}; print(sorted({{'numpy', 'grpc', 'google.protobuf'}} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_installs_without_the_server() -> None:
    script = (
        "import sys, shoal.sync, shoal.cli.main; "
        "print([name for name in sys.modules if name.startswith('shoal_') or name in ('torch', 'nats', 'pydantic')])"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
