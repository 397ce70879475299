"""The registry's state: events in order, and a diff that leads any watcher to the same state."""

from __future__ import annotations

import random

from shoal.registry.v1 import registry_pb2
from shoal_common import registry_state
from shoal_common.bucket import Entry, Snapshot
from shoal_common.registry_state import ALIAS, MODEL
from shoal_registry.state import SEED, Event, State


def model(name: str, digest: str = "d0") -> registry_pb2.Model:
    lane = registry_pb2.Lane(token=f"lane-{name}-{digest}", pool="default", profile_digest=digest)
    return registry_pb2.Model(name=name, profile_digest=digest, lane=lane)


def alias(name: str, of: str) -> registry_pb2.Alias:
    return registry_pb2.Alias(name=name, model=of)


def bucket(revision: int, *values: registry_pb2.Model | registry_pb2.Alias, seeds: dict[str, str] | None = None):
    entries = {
        registry_state.key(MODEL if isinstance(value, registry_pb2.Model) else ALIAS, value.name): Entry(
            value.SerializeToString(), revision
        )
        for value in values
    }
    entries |= {registry_state.key(SEED, name): Entry(d.encode(), revision) for name, d in (seeds or {}).items()}
    return Snapshot(entries, revision)


class Follower:
    """A watcher's idea of the state; it fails where an alias is told that stands for nothing."""

    def __init__(self) -> None:
        self.models: dict[str, registry_pb2.Model] = {}
        self.aliases: dict[str, registry_pb2.Alias] = {}

    def hear(self, event: Event) -> None:
        match event.WhichOneof("event"):
            case "model":
                self.models[event.model.name] = event.model
            case "model_removed":
                del self.models[event.model_removed]
            case "alias":
                self.aliases[event.alias.name] = event.alias
            case "alias_removed":
                del self.aliases[event.alias_removed]
        assert all(alias.model in self.models for alias in self.aliases.values())


def test_an_empty_bucket_is_a_snapshot_too():
    state = State()
    assert state.load(bucket(0)) == []
    assert state.snapshot() == Event(revision=0, snapshot=registry_pb2.State())


def test_own_writes_and_a_reread_give_the_same():
    wrote, reread = State(), State()
    events = [
        wrote.put_model(model("b"), 1),
        wrote.put_model(model("a"), 2),
        wrote.put_alias(alias("x", "a"), 3),
        wrote.remove_model("b", 4),
    ]
    assert [event.revision for event in events] == [1, 2, 3, 4]
    reread.load(bucket(4, model("a"), alias("x", "a")))
    assert wrote.snapshot() == reread.snapshot()
    assert wrote.revision_of(MODEL, "b") == 0
    assert wrote.revision_of(ALIAS, "x") == 3


def test_any_sequence_of_rereads_leads_a_follower_to_the_state():
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    state, follower = State(), Follower()
    for revision in range(1, 200):
        names = rng.sample("abcde", rng.randrange(6))
        models = [model(name, rng.choice(["d0", "d1"])) for name in names]
        aliases = [alias(name, rng.choice(names)) for name in rng.sample("xyz", rng.randrange(4))] if names else []
        for event in state.load(bucket(revision, *models, *aliases)):
            follower.hear(event)
        assert follower.models == {each.name: each for each in models}, f"seed {seed}"
        assert follower.aliases == {each.name: each for each in aliases}, f"seed {seed}"


def test_only_the_last_event_of_a_reread_is_complete_to_its_revision():
    state = State()
    state.load(bucket(5))
    events = state.load(bucket(9, model("a"), model("b")))
    assert [event.revision for event in events] == [5, 9]


def test_a_name_is_a_models_or_an_aliass():
    state = State()
    state.load(bucket(2, model("a"), alias("x", "a")))
    assert state.resolve("x") == state.resolve("a") == model("a")
    assert state.resolve("y") is None
    assert state.names() == ["a", "x"]
    assert state.aliases_of("a") == ["x"]


def test_lanes_given_up_are_remembered_by_name():
    state = State()
    state.put_model(model("a", "d0"), 1)
    state.put_model(model("a", "d1"), 2)
    state.put_model(model("b"), 3)
    state.load(bucket(4, model("a", "d1")))
    assert state.retired == {"lane-a-d0": "a", "lane-b-d0": "b"}
    assert state.lane_tokens() == {"lane-a-d1"}


def test_seeds_are_kept_beside():
    state = State()
    state.load(bucket(3, model("a"), seeds={"a": "d0"}))
    assert (state.seeded("a"), state.seeded("b")) == ("d0", None)
    state.put_seed("b", "d7", 4)
    assert (state.seeded("b"), state.revision_of(SEED, "b"), state.revision) == ("d7", 4, 4)
