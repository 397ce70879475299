"""Statuses and their details, as exceptions."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

import shoal
from shoal import statuses
from tests.unit.sdk.fake_mesh import HANG, FakeMesh, busy, status

INFO = error_details_pb2.ErrorInfo(reason="SOME_REASON", domain="shoal", metadata={"near": "minilm, minilm-l12"})
REQUEST = error_details_pb2.RequestInfo(request_id="r-17")
BAD = error_details_pb2.BadRequest(
    field_violations=[
        error_details_pb2.BadRequest.FieldViolation(field="options.dimensions", description="385 is above 384")
    ]
)


@pytest.fixture(params=[1, 100], ids=["Encode", "Infer"])
def texts(request: pytest.FixtureRequest) -> list[str]:
    """Texts that go by each of the two ways."""
    return ["1"] * request.param


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, shoal.InvalidRequest),
        (grpc.StatusCode.NOT_FOUND, shoal.NotFound),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, shoal.Overloaded),
        (grpc.StatusCode.DEADLINE_EXCEEDED, shoal.DeadlineExceeded),
        (grpc.StatusCode.UNAUTHENTICATED, shoal.Unauthenticated),
        (grpc.StatusCode.PERMISSION_DENIED, shoal.PermissionDenied),
        (grpc.StatusCode.INTERNAL, shoal.InternalError),
        (grpc.StatusCode.UNIMPLEMENTED, shoal.CallError),
        (grpc.StatusCode.FAILED_PRECONDITION, shoal.CallError),
    ],
)
async def test_each_code(fake: FakeMesh, texts: list[str], code: grpc.StatusCode, kind: type[shoal.CallError]) -> None:
    fake.faults.append(status(code, "what happened", INFO, REQUEST))
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(shoal.CallError) as e:
            await mesh.encode(texts)
    assert type(e.value) is kind
    assert (e.value.code, e.value.reason, e.value.request_id) == (code.name, "SOME_REASON", "r-17")
    assert "what happened" in str(e.value)
    assert ("request id r-17" in str(e.value)) == (kind is shoal.InternalError)
    assert len(fake.heard) <= 2  # none of these is sent again


async def test_fields_of_a_bad_request(fake: FakeMesh, texts: list[str]) -> None:
    fake.faults.append(status(grpc.StatusCode.INVALID_ARGUMENT, "bad", BAD))
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(shoal.InvalidRequest) as e:
            await mesh.encode(texts)
    assert e.value.violations == (("options.dimensions", "385 is above 384"),)


async def test_near_names(fake: FakeMesh, texts: list[str]) -> None:
    fake.faults.append(status(grpc.StatusCode.NOT_FOUND, "no model", INFO))
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(shoal.NotFound) as e:
            await mesh.encode(texts)
        assert e.value.near == ("minilm", "minilm-l12")
        with pytest.raises(shoal.NotFound) as e:
            await mesh.model("minlm")
        assert e.value.near == ("minilm", "default")


async def test_request_id_of_the_metadata(fake: FakeMesh) -> None:
    fake.faults.append(status(grpc.StatusCode.INTERNAL, "oops"))
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(shoal.InternalError, match="request id from-metadata") as e:
            await mesh.encode("1")
    assert e.value.request_id == "from-metadata"


async def test_a_time_to_come_back_beyond_the_deadline_is_not_waited_for(fake: FakeMesh, texts: list[str]) -> None:
    fake.faults.append(busy(900))
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(shoal.Overloaded) as e:
            await mesh.encode(texts, timeout=0.8)
    assert e.value.retry_after_s == 0.9
    assert e.value.reason == "LANE_FULL"


async def test_the_clients_own_deadline(fake: FakeMesh, texts: list[str]) -> None:
    fake.faults.append(HANG)
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(shoal.DeadlineExceeded, match=r"no answer within 0\.2 s") as e:
            await mesh.encode(texts, timeout=0.2)
    assert isinstance(e.value, TimeoutError)


async def test_nobody_there(texts: list[str], tmp_path: object) -> None:
    for target in ("127.0.0.1:1", f"unix:{tmp_path}/none.sock", "nowhere.invalid:1"):
        async with shoal.aio.connect(target) as mesh:
            with pytest.raises(shoal.Unavailable, match=rf"no mesh answers at {target} \(is `shoal up` running\?\)"):
                await mesh.encode(texts)
            with pytest.raises(shoal.Unavailable, match="no mesh answers"):
                await mesh.models()


def test_broken_details_are_left_out() -> None:
    broken = any_pb2.Any(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff\xff")
    error = statuses.from_status(status_pb2.Status(code=5, message="m", details=[broken]))
    assert isinstance(error, shoal.NotFound)
    assert (error.reason, error.near) == ("", ())
    assert statuses.from_status(status_pb2.Status(code=99)).code == "99"


def test_a_delay_in_seconds_and_nanoseconds() -> None:
    delay = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=2, nanos=500_000_000))
    error = statuses.from_status(status(grpc.StatusCode.UNAVAILABLE, "loading", delay))
    assert isinstance(error, shoal.Unavailable)
    assert error.retry_after_s == 2.5


def test_a_call_lost_in_a_write_is_no_fault_of_the_mesh() -> None:
    # grpc.aio reports its own INTERNAL then, over the status that ended the call; seen when a mesh restarts.
    lost = grpc.aio.AioRpcError(
        grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), details="Internal error from Core"
    )
    error = statuses.from_rpc_error(lost, "127.0.0.1:50051")
    assert isinstance(error, shoal.Unavailable)
    assert not error.refused
