"""The gateway between tenants, over a real broker: tokens are asked for, and a flood leaves the others served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pool
from google.rpc import code_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from shoal.scheduler.v1 import scheduler_pb2
from shoal.v1 import inference_pb2 as pb
from shoal.v1 import models_pb2
from shoal_common import tokens
from shoal_common.tokens import TokenEntry
from shoal_gateway.server import SERVICES
from tests.support.nats import NatsServer
from tests.support.raw import Refusal
from tests.support.until import until
from tests.unit.gateway.fake_mesh import FakeMesh
from tests.unit.gateway.fake_worker import silent, whole

READY = scheduler_pb2.RESIDENCY_READY
WINDOW_UNITS = 4
UNIT_TOKENS = 100


def bearer(tenant: str) -> str:
    return f"Bearer {tenant}-token"


def write(file: Path, **scopes: list[str]) -> None:
    entries = [
        TokenEntry.model_validate({"sha256": tokens.digest(f"{tenant}-token"), "tenant": tenant, "scopes": allowed})
        for tenant, allowed in scopes.items()
    ]
    file.write_text(tokens.written(entries))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    write(path, acme=["infer"], bravo=["infer"], ops=["admin"])
    return path


@pytest.fixture
async def mesh(nats_server: NatsServer, tmp_path: Path, file: Path) -> AsyncIterator[FakeMesh]:
    async with FakeMesh(nats_server, tmp_path, tokens=str(file)) as running:
        yield running


def request(text: str = "a" * 4 * UNIT_TOKENS) -> pb.EncodeRequest:
    return pb.EncodeRequest(model="minilm", items=[pb.Item(text=text)])


def methods() -> list[tuple[str, bool, bool]]:
    """Every method of the gateway's own services that is served, and whether its sides are streams."""
    pool = descriptor_pool.Default()
    return [
        (f"/{name}/{method.name}", method.client_streaming, method.server_streaming)
        for name in SERVICES
        for method in pool.FindServiceByName(name).methods
    ]


# Tokens.


@pytest.mark.parametrize("authorization", [None, "Bearer nobody's", "Basic acme-token"])
async def test_every_method_asks_for_a_token(mesh: FakeMesh, authorization: str | None) -> None:
    metadata = (("authorization", authorization),) if authorization else ()
    for path, client_streams, server_streams in methods():
        kind = f"{'stream' if client_streams else 'unary'}_{'stream' if server_streams else 'unary'}"
        call = getattr(mesh.channel, kind)(path)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            answer = call(iter([b""]) if client_streams else b"", timeout=5, metadata=metadata)
            await (answer.read() if server_streams else answer)
        refusal = Refusal(refused.value)
        assert refusal.code is grpc.StatusCode.UNAUTHENTICATED, path
        assert refusal.reason.startswith("TOKEN_") and refusal.request_id, path


async def test_health_and_reflection_ask_for_none(mesh: FakeMesh) -> None:
    answer = await health_pb2_grpc.HealthStub(mesh.channel).Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    info = reflection_pb2_grpc.ServerReflectionStub(mesh.channel).ServerReflectionInfo()
    await info.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    assert {service.name for service in (await info.read()).list_services_response.service} >= set(SERVICES)
    info.cancel()


async def test_a_tokens_tenant_goes_with_the_unit(mesh: FakeMesh) -> None:
    mesh.start_worker()
    await mesh.encode(request(), authorization=bearer("acme"))
    stream = mesh.infer(authorization=bearer("bravo"))
    await stream.send(pb.InferRequest(request_id="1", encode=request()))
    await stream.answers(1)
    assert [unit.tenant for unit in mesh.worker.units] == ["acme", "bravo"]


async def test_a_scope_that_is_missing_is_named(mesh: FakeMesh) -> None:
    refusal = await mesh.refused(request(), authorization=bearer("ops"))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_MISSING")
    assert "the scope infer" in refusal.text
    stream = mesh.infer(authorization=bearer("ops"))
    assert await stream.call.code() is grpc.StatusCode.PERMISSION_DENIED
    models = await mesh.models.ListModels(models_pb2.ListModelsRequest(), metadata=(("authorization", bearer("ops")),))
    assert [model.name for model in models.models] == ["minilm"], "models may be seen with any token"


async def test_a_token_that_is_revoked_ends_with_its_next_request(mesh: FakeMesh, file: Path) -> None:
    mesh.start_worker()
    stream = mesh.infer(authorization=bearer("acme"))
    await stream.send(pb.InferRequest(request_id="before", encode=request()))
    (answer,) = await stream.answers(1)
    assert answer.encode.results
    write(file, bravo=["infer"])

    async def revoked() -> pb.InferResponse | None:
        await stream.send(pb.InferRequest(request_id="after", encode=request()))
        (answer,) = await stream.answers(1)
        return answer if answer.error.code else None

    answer = await until(revoked)
    assert answer.error.code == code_pb2.UNAUTHENTICATED
    await mesh.encode(request(), authorization=bearer("bravo"))


# Shares.


async def paced(mesh: FakeMesh) -> None:
    """The gateway knows that WINDOW_UNITS units fill the lane."""
    mesh._metadata = (("authorization", bearer("ops")),)
    await mesh.lane_is(
        READY, workers=1, window_ms=WINDOW_UNITS * UNIT_TOKENS, ms_per_token=0.99, drain_ms_per_second=1000.0
    )
    mesh._metadata = ()


async def published(mesh: FakeMesh, units: int) -> bool:
    return await mesh.pending_units() == units


async def test_a_flood_waits_at_the_gateway_and_another_tenant_passes_it(mesh: FakeMesh) -> None:
    await paced(mesh)
    mesh.worker.behaviour = silent
    mesh.start_worker()
    flood = [mesh.call(request(), authorization=bearer("acme")) for _ in range(50)]
    await until(lambda: len(mesh.worker.units) > WINDOW_UNITS)
    quiet = mesh.call(request(), authorization=bearer("bravo"))
    await until(lambda: mesh.worker.units[-1].tenant == "bravo")
    assert [unit.tenant for unit in mesh.worker.units] == ["acme"] * (WINDOW_UNITS + 1) + ["bravo"]
    assert await mesh.pending_units() == WINDOW_UNITS + 2, "nothing else was published"

    # What is answered makes room; every one is answered in the end.
    answered: set[str] = set()

    async def answer_all() -> bool:
        for unit in [unit for unit in mesh.worker.units if unit.id not in answered]:
            answered.add(unit.id)
            await mesh.worker.send(unit, [whole(unit)])
        return all(call.done() for call in flood)

    await until(answer_all)
    for call in (quiet, *flood):
        assert pb.EncodeResponse.FromString(await call).results


async def test_calls_that_are_cancelled_make_room(mesh: FakeMesh) -> None:
    await paced(mesh)
    mesh.worker.behaviour = silent
    mesh.start_worker()
    flood = [mesh.call(request(), authorization=bearer("acme")) for _ in range(20)]
    await until(lambda: len(mesh.worker.units) == WINDOW_UNITS + 1)
    for call in flood:
        call.cancel()
    await until(lambda: len(mesh.cancelled_ids) >= WINDOW_UNITS + 1)
    seen = len(mesh.worker.units)
    again = [mesh.call(request(), authorization=bearer("acme")) for _ in range(WINDOW_UNITS + 1)]
    await until(lambda: len(mesh.worker.units) == seen + WINDOW_UNITS + 1)
    assert mesh.cancelled_ids == {unit.id for unit in mesh.worker.units[:seen]}, "what was not published is not told"
    for call in again:
        call.cancel()


async def test_a_request_that_waits_for_its_turn_ends_with_its_deadline(mesh: FakeMesh) -> None:
    await paced(mesh)
    calls = [mesh.call(request(), authorization=bearer("acme")) for _ in range(WINDOW_UNITS + 1)]
    await until(lambda: published(mesh, WINDOW_UNITS + 1))
    refusal = await mesh.refused(request(), 0.5, authorization=bearer("acme"))
    assert refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await mesh.pending_units() == WINDOW_UNITS + 1
    for call in calls:
        call.cancel()


async def test_the_flood_that_waits_too_long_is_refused(mesh: FakeMesh) -> None:
    await paced(mesh)
    calls = [mesh.call(request("a" * 4 * 256), 30.0, authorization=bearer("acme")) for _ in range(60)]
    # Two fill the window, and forty take ten seconds; a result of the first two would make room for no other.
    ended = await until(lambda: len(done := [call for call in calls if call.done()]) >= 18 and done)
    assert len(ended) == 18
    for call in ended:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        refusal = Refusal(refused.value)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TENANT_OVER_SHARE")
    quiet = mesh.call(request(), authorization=bearer("bravo"))
    await until(lambda: published(mesh, 3))
    for call in (*calls, quiet):
        call.cancel()
