"""status.json, and what two statuses tell."""

from pathlib import Path
from typing import Any

import pytest

from shoal_supervisor import status_file
from shoal_supervisor.happenings import happenings
from shoal_supervisor.status_file import MeshStatus, ProcessStatus


def process(name: str = "worker-0", **changes: Any) -> ProcessStatus:
    start = ProcessStatus(
        name=name,
        state="ready",
        pid=5,
        restarts=0,
        since=2.0,
        ready_s=1.0,
        last_exit=None,
        listen="unix:/run/x",
        log="/logs/x",
    )
    return start.model_copy(update=changes)


def mesh(*processes: ProcessStatus) -> MeshStatus:
    return MeshStatus(
        state="ready", reason=None, pid=1, address="127.0.0.1:1", started=1.0, ready_s=2.0, processes=processes
    )


def test_what_is_written_is_read(tmp_path: Path):
    status = mesh(process(), process("nats", state="restarting", pid=None, last_exit="killed by SIGKILL"))
    status_file.write(tmp_path / "status.json", status)
    assert status_file.read(tmp_path / "status.json") == status
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"state": "ready"}'])
def test_what_cannot_be_read_is_none(tmp_path: Path, content: bytes | None):
    path = tmp_path / "status.json"
    if content is not None:
        path.write_bytes(content)
    assert status_file.read(path) is None


def test_a_process_is_found_by_name():
    assert mesh(process("a"), process("b")).process("b").name == "b"
    with pytest.raises(KeyError):
        mesh().process("a")


def test_all_ready_means_all():
    assert mesh(process(), process("b")).all_ready
    assert not mesh(process(), process("b", state="not_serving")).all_ready


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"state": "starting"}, {"ready_s": 1.26}, ["worker-0 is ready after 1.3 s"]),
        (
            {},
            {"state": "restarting", "restarts": 1, "pid": None, "last_exit": "killed by SIGKILL"},
            ["worker-0 ended (killed by SIGKILL), starting it again"],
        ),
        ({}, {"state": "not_serving"}, ["worker-0 does not serve"]),
        ({"state": "not_serving"}, {}, ["worker-0 serves again"]),
        ({"state": "restarting"}, {"state": "starting"}, []),
        ({}, {"since": 3.0}, []),
    ],
)
def test_happenings(before: dict[str, Any], after: dict[str, Any], told: list[str]):
    assert list(happenings(mesh(process(**before)), mesh(process(**after)))) == told
