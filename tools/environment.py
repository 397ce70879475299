"""Makes .venv and installs the project into it, when what it is made from has changed.

    python3 tools/environment.py

Needs Python 3.11 or later and nothing else; versions come from constraints.txt.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "made-from.sha256"
UV = "uv>=0.9"


def made_from() -> str:
    """Digest of everything that the environment and the generated stubs depend on."""
    digest = hashlib.sha256(f"{sys.version} {ROOT}".encode())
    inputs = [ROOT / "pyproject.toml", ROOT / "constraints.txt", ROOT / "tools" / "generate_stubs.py"]
    for path in [*inputs, *sorted((ROOT / "protos").rglob("*.proto"))]:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - this very check is for older ones
        sys.exit(f"Python 3.11 or later is needed; this is {sys.version.split()[0]} (try `make PYTHON=python3.11`)")
    if STAMP.exists() and STAMP.read_text() == made_from():
        return
    print("making .venv: about a minute, and 6 GB the first time (torch)", flush=True)
    python = VENV / "bin" / "python"
    if not python.exists():
        run([sys.executable, "-m", "venv", str(VENV)])
    uv = shutil.which("uv")
    if uv is None:
        run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV])
        uv = str(VENV / "bin" / "uv")
    install = [uv, "pip", "install", "--python", str(python), "--constraint", "constraints.txt"]
    run([*install, "--reinstall-package", "shoal", "--editable", ".[server,torch,dev]"])
    STAMP.write_text(made_from())


def run(command: list[str]) -> None:
    if subprocess.run(command, cwd=ROOT, env={**os.environ, "UV_LINK_MODE": "hardlink"}).returncode:
        sys.exit(f"could not make .venv: `{' '.join(command)}` failed; its message stands above")


if __name__ == "__main__":
    main()
