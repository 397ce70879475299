"""The sidecar's binary: found, and built from the repository when it is absent or older than its sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib import util
from pathlib import Path

from shoal_supervisor.errors import CannotStart

PACKAGE = "shoal-sidecar"
GIVEN = "SHOAL_SIDECAR_BIN"
REPOSITORY = Path(__file__).resolve().parents[3]
SOURCE_SUFFIXES = (".rs", ".toml", ".lock", ".proto")


def sidecar_binary(say: Callable[[str], None]) -> Path:
    """The binary, ready to run; `say` hears when a build begins, and cargo's progress goes to stderr.

    Raises:
        CannotStart: it is not there and cannot be built.
    """
    if given := os.environ.get(GIVEN):
        if not os.access(given, os.X_OK):
            raise CannotStart(f"{GIVEN} is {given}, which is not a program: correct or unset it")
        return Path(given).resolve()
    workspace = REPOSITORY / "sidecar_rs"
    target = Path(os.environ.get("CARGO_TARGET_DIR") or workspace / "target")
    binary = target / "debug" / PACKAGE
    if not (workspace / "Cargo.toml").is_file():
        raise CannotStart(f"{PACKAGE} is missing: build it in Shoal's repository, and set {GIVEN} to its path")
    if is_stale(binary, sources(REPOSITORY)):
        _build(workspace, target, binary, say)
    return binary


def is_stale(binary: Path, sources: Iterable[Path]) -> bool:
    """Whether the binary is absent or older than one of its sources."""
    try:
        built = binary.stat().st_mtime
    except FileNotFoundError:
        return True
    return any(source.stat().st_mtime > built for source in sources)


def sources(repository: Path) -> list[Path]:
    """All files that the binary is made from."""
    folders = (repository / "sidecar_rs" / "crates", repository / "protos")
    found = [path for folder in folders for path in folder.rglob("*") if path.suffix in SOURCE_SUFFIXES]
    return [*found, *repository.glob("sidecar_rs/*.toml"), *repository.glob("sidecar_rs/*.lock")]


def _build(workspace: Path, target: Path, binary: Path, say: Callable[[str], None]) -> None:
    cargo = shutil.which("cargo") or shutil.which("cargo", path=Path("~/.cargo/bin").expanduser())
    if cargo is None:
        raise CannotStart(
            f"cargo is missing, and the sidecar has to be built: install Rust from https://rustup.rs, "
            f"or set {GIVEN} to a built {PACKAGE}"
        )
    say("Building the sidecar (the first time takes a few minutes)")
    started_s = time.time()
    try:
        # On stderr, stdout included: a background supervisor's stdout is its report.
        status = subprocess.run(
            [cargo, "build", "--locked", "-p", PACKAGE],
            cwd=workspace,
            env={**os.environ, "CARGO_TARGET_DIR": str(target.absolute()), "GOOGLEAPIS_INCLUDE": _googleapis()},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            check=False,
        ).returncode
    except OSError as error:
        raise CannotStart(f"{cargo} cannot be run: {error.strerror}") from None
    if status != 0 or not binary.is_file():
        raise CannotStart(f"the sidecar cannot be built (cargo's exit status {status}): its messages stand above")
    # cargo leaves a binary's time alone when nothing that matters to it changed.
    os.utime(binary, (started_s, started_s))


def _googleapis() -> str:
    """The folder that holds google/rpc/status.proto; the Makefile's value, since another compiles all anew."""
    if given := os.environ.get("GOOGLEAPIS_INCLUDE"):
        return given
    rpc = util.find_spec("google.rpc")
    for folder in (rpc.submodule_search_locations or []) if rpc else []:
        include = Path(folder).parents[1]
        if (include / "google/rpc/status.proto").is_file():
            return str(include)
    raise CannotStart("google/rpc/status.proto is missing: install the Python package googleapis-common-protos")
