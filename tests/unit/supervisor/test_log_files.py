"""Logs are bounded, and their last words found."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from shoal_supervisor import log_files, supervisor
from shoal_supervisor.plan import ProcessPlan, Stage
from shoal_supervisor.state import StateFolder
from tests.support.until import until


def test_a_long_log_is_cut_under_the_process_that_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_files, "KEPT_BYTES", 10)
    log, old = tmp_path / "gateway.log", tmp_path / "gateway.log.1"
    assert not log_files.bound(log)
    with log.open("a") as process:
        process.write("short")
        process.flush()
        assert not log_files.bound(log)
        assert log.read_text() == "short"
        for text in ("the first long text", "the second long text"):
            process.write(text)
            process.flush()
            assert log_files.bound(log)
            assert (log.read_text(), old.read_text()) == ("", text[-10:])
        process.write("goes on")
    assert log.read_text() == "goes on"


async def test_a_process_that_lives_long_is_bounded_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_files, "KEPT_BYTES", 100)
    monkeypatch.setattr(supervisor, "LOGS_PERIOD_S", 0.02)
    state = StateFolder(tmp_path)
    state.make()
    talker = ("/bin/sh", "-c", "while echo a line; do sleep 0.01; done")
    plan = ProcessPlan("talker", talker, dict(os.environ), f"unix:{tmp_path}/none.sock", Stage.CONTROL)
    alive = os.open(os.devnull, os.O_RDONLY)
    stop = asyncio.Event()
    mesh = supervisor.Supervisor([plan], state, alive, "", lambda _: None)
    running = asyncio.create_task(mesh.run(stop, lambda: asyncio.sleep(0)))
    try:
        log = state.log("talker")
        await until(log.with_name("talker.log.1").exists)
        await until(lambda: 0 < log.stat().st_size < 100)
    finally:
        stop.set()
        await running
        os.close(alive)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        (
            json.dumps({"event": "service ended by a fault", "exception": "Traceback\n\nOSError: taken\n"}),
            "service ended by a fault: OSError: taken",
        ),
        (json.dumps({"event": "ends", "fault": "closed for good"}), "ends: closed for good"),
        (json.dumps({"message": "the sidecar cannot run", "error": "no file"}), "the sidecar cannot run: no file"),
        ("3\n", "3"),
        ("x" * 50_000, "x" * 400),
    ],
)
def test_last_words(tmp_path: Path, written: str, words: str):
    log = tmp_path / "log"
    log.write_text(written)
    assert log_files.last_words(log) == words


def test_last_words_of_an_earlier_life_are_not_this_one_s(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("before\n")
    assert log_files.last_words(log, log.stat().st_size) == ""
    assert log_files.last_words(tmp_path / "absent") == ""
