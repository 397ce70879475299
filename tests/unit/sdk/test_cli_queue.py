"""`shoal queue`, called in process."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner, Result

import shoal.aio
from shoal.cli.main import app
from shoal.queue import BlockingQueue, Queue
from shoal.v1 import inference_pb2, models_pb2, queue_pb2
from tests.unit.sdk.fake_mesh import FakeMesh, status

INTERACTIVE, BULK = inference_pb2.PRIORITY_INTERACTIVE, inference_pb2.PRIORITY_BULK
LANES = queue_pb2.ListLanesResponse(
    lanes=[
        queue_pb2.Lane(
            token="abcdefghijklmnop",
            model="minilm",
            state=models_pb2.MODEL_STATE_READY,
            wait_ms=1_234.5,
            drain_ms_per_second=950.0,
            classes=[
                queue_pb2.LaneClass(
                    priority=INTERACTIVE, waiting_units=1_200, in_flight_units=7, oldest_waiting_ms=90_000, open=True
                ),
                queue_pb2.LaneClass(priority=BULK),
            ],
            workers=[
                queue_pb2.LaneWorker(
                    worker="worker-0",
                    machine="host",
                    device="cpu",
                    state=models_pb2.MODEL_STATE_READY,
                    backlog_ms=42.0,
                    busy_share=0.5,
                )
            ],
        ),
        queue_pb2.Lane(token="qrstuvwxyz234567", classes=[queue_pb2.LaneClass(priority=BULK, waiting_units=3)]),
    ],
    dead_letters=[
        queue_pb2.DeadLetterCount(reason="DELIVERY_LIMIT", letters=1),
        queue_pb2.DeadLetterCount(reason="MALFORMED_UNIT", letters=2),
    ],
    scheduler_known=True,
)


def queue(fake: FakeMesh, *args: str, stdin: str | None = None) -> Result:
    env = {"SHOAL_TARGET": fake.target, "COLUMNS": "110"}
    return CliRunner().invoke(app, ["queue", *args], env=env, input=stdin)


def letter(sequence: int, reason: str = "DELIVERY_LIMIT", **fields: Any) -> queue_pb2.DeadLetter:
    values: dict[str, Any] = {
        "kept_unix_ms": 1_700_000_000_000,
        "detail": "given up after 20 deliveries",
        "model": "minilm",
        "priority": BULK,
        "deliveries": 21,
        "unit_id": f"u{sequence}",
        "request_id": f"request-{sequence}",
        "tenant": "acme",
        "items": 32,
        "size_bytes": 65_000,
    }
    return queue_pb2.DeadLetter(sequence=sequence, reason=reason, **(values | fields))


def rows(result: Result) -> list[list[str]]:
    return [line.split() for line in result.stdout.splitlines() if line.strip() and "───" not in line]


def test_lanes_workers_and_the_count_of_dead_letters(fake: FakeMesh) -> None:
    fake.lanes = LANES
    for args in ([], ["show"]):
        result = queue(fake, *args)
        assert result.exit_code == 0, result.stderr
        assert rows(result) == [
            ["lane", "state", "class", "waiting", "oldest", "in", "flight", "wait", "drain"],
            ["minilm", "ready", "interactive", "1,200", "1.5", "min", "7", "1.2", "s", "950", "ms/s"],
            ["bulk", "(closed)", "0", "0"],
            ["qrstuvwxyz234567", "(retired)", "bulk", "(closed)", "3", "<1", "ms", "0"],
            ["worker", "device", "lane", "state", "backlog", "busy"],
            ["worker-0", "host", "cpu", "minilm", "ready", "42", "ms", "50%"],
            "3 dead letters (see `shoal queue dead`): DELIVERY_LIMIT 1, MALFORMED_UNIT 2".split(),
        ]


def test_an_empty_mesh_and_one_whose_scheduler_is_away(fake: FakeMesh) -> None:
    assert queue(fake).stdout.splitlines()[-1] == "no dead letters"
    assert "no model is registered" in queue(fake).stdout
    assert "the scheduler does not answer" in queue(fake).stdout
    fake.lanes = queue_pb2.ListLanesResponse(lanes=[queue_pb2.Lane(model="minilm")], scheduler_known=True)
    assert "no workers" in queue(fake).stdout


def test_lanes_as_json(fake: FakeMesh) -> None:
    fake.lanes = LANES
    shown = json.loads(queue(fake, "--json").stdout)
    assert shown["dead_letters"] == {"DELIVERY_LIMIT": 1, "MALFORMED_UNIT": 2}
    first = shown["lanes"][0]
    assert (first["model"], first["state"], first["workers"][0]["backlog_ms"]) == ("minilm", "ready", 42.0)
    assert first["classes"][0] == {
        "priority": "interactive",
        "waiting_units": 1_200,
        "in_flight_units": 7,
        "oldest_waiting_ms": 90_000,
        "open": True,
    }


def test_watching_ends_with_the_meshs_error(fake: FakeMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.cli.queue.WATCH_S", 0.0)
    fake.lanes = LANES
    fake.faults += [None, None, status(grpc.StatusCode.PERMISSION_DENIED, "this needs the scope admin")]
    result = queue(fake, "--watch", "--json")
    assert [json.loads(line)["scheduler_known"] for line in result.stdout.splitlines()] == [True, True]
    assert (result.exit_code, result.stderr) == (1, "shoal: this needs the scope admin\n")


def test_dead_letters_by_the_page(fake: FakeMesh) -> None:
    fake.letters = [letter(1), letter(2, "MALFORMED_UNIT", deliveries=1, items=0, tenant="", request_id=""), letter(9)]
    result = queue(fake, "dead", "--limit", "2")
    assert result.exit_code == 0
    assert "DELIVERY_LIMIT after 21 deliveries" in result.stdout
    assert "tenant acme, request request-1, 32 items, 65,000 bytes" in result.stdout
    assert "MALFORMED_UNIT after 1 delivery" in result.stdout
    assert result.stdout.splitlines()[-1] == "1 more: go on with --after 2"
    again = queue(fake, "dead", "--after", "2")
    assert "request-9" in again.stdout and "request-1" not in again.stdout and "more" not in again.stdout
    (line,) = queue(fake, "dead", "--json", "--reason", "MALFORMED_UNIT").stdout.splitlines()
    assert json.loads(line) | {"kept_unix_ms": 0} == {
        "sequence": 2,
        "kept_unix_ms": 0,
        "reason": "MALFORMED_UNIT",
        "detail": "given up after 20 deliveries",
        "model": "minilm",
        "lane": "",
        "priority": "bulk",
        "deliveries": 1,
        "unit_id": "u2",
        "request_id": "",
        "tenant": "",
        "items": 0,
        "size_bytes": 65_000,
    }


def test_no_dead_letters(fake: FakeMesh) -> None:
    assert queue(fake, "dead").stdout == "no dead letters\n"
    assert (
        queue(fake, "dead", "--after", "7", "--reason", "X").stdout
        == "no dead letters behind that one of this reason\n"
    )
    assert queue(fake, "dead", "--json").stdout == ""


def test_requeue(fake: FakeMesh) -> None:
    fake.letters = [letter(1), letter(2), letter(3, "MALFORMED_UNIT")]
    result = queue(fake, "requeue", "1")
    assert (result.exit_code, result.stdout) == (0, "1 dead letter back on the queue\n")
    result = queue(fake, "requeue", "2", "3", "99")
    assert (result.exit_code, result.stdout) == (3, "1 dead letter back on the queue\n")
    assert result.stderr.splitlines() == [
        "shoal: 99 stays: DEAD_LETTER_NOT_FOUND: there is no such letter",
        "shoal: 3 stays: MALFORMED_UNIT: it is no unit",
    ]
    result = queue(fake, "requeue", "--all", "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout) == {
        "requeued": 0,
        "refused": 1,
        "refusals": [{"sequence": 3, "reason": "MALFORMED_UNIT", "message": "it is no unit"}],
    }


def test_drop(fake: FakeMesh) -> None:
    fake.letters = [letter(n, "A" if n % 2 else "B") for n in range(1, 8)]
    result = queue(fake, "drop", "1", "99")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "1 dead letter dropped\n", "shoal: not there: 99\n")
    assert queue(fake, "drop", "--reason", "A", "--yes").stdout == "3 dead letters dropped\n"
    assert json.loads(queue(fake, "drop", "--all", "-y", "--json").stdout) == {"dropped": 3, "not_found": []}
    assert queue(fake, "drop", "--all", "--yes").exit_code == 0


def test_many_are_dropped_only_when_somebody_said_yes(fake: FakeMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.letters = [letter(1)]
    fake.lanes = queue_pb2.ListLanesResponse(dead_letters=[queue_pb2.DeadLetterCount(reason="A", letters=1)])
    result = queue(fake, "drop", "--all")
    assert (result.exit_code, len(fake.letters)) == (2, 1) and "--yes" in result.stderr
    monkeypatch.setattr("shoal.cli.queue._is_asked", lambda: True)
    result = queue(fake, "drop", "--all", stdin="n\n")
    assert (result.exit_code, len(fake.letters)) == (1, 1) and "Drop 1 dead letter?" in result.stdout
    assert queue(fake, "drop", "--all", stdin="y\n").exit_code == 0
    assert not fake.letters


@pytest.mark.parametrize("command", ["requeue", "drop"])
@pytest.mark.parametrize("which", [[], ["1", "--all"], ["--all", "--reason", "A"], ["0"], ["x"], ["-1"]])
def test_which_letters_must_be_said_in_one_way(fake: FakeMesh, command: str, which: list[str]) -> None:
    assert queue(fake, command, *which).exit_code == 2


def test_a_mesh_that_is_away(fake: FakeMesh) -> None:
    fake.stop()
    for args in ([], ["dead"], ["requeue", "1"], ["drop", "1"]):
        result = queue(fake, *args)
        assert result.exit_code == 1 and "no mesh answers" in result.stderr and result.stdout == ""


async def test_the_client_for_asyncio_has_the_same(fake: FakeMesh) -> None:
    fake.lanes, fake.letters = LANES, [letter(1), letter(2)]
    async with shoal.aio.connect(fake.target) as mesh:
        assert (await mesh.queue.lanes()).lanes[0].classes[0].waiting_units == 1_200
        assert [each.sequence for each in (await mesh.queue.dead_letters(limit=1)).letters] == [1]
        assert (await mesh.queue.requeue([1])).requeued == 1
        assert (await mesh.queue.drop(all=True)).dropped == 1

    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(Queue) == public(BlockingQueue)
