"""Which models are held: wanted, loaded, retried, let go."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from shoal_common.lanes import Lane
from shoal_common.profile import Encode, Profile, RuntimeName, Source
from shoal_common.registry_view import RegisteredModel
from shoal_worker.residency import ABSENT, DRAINED_S, FAILED, LOADING, READY, RETRY_S, Residency, wanted

ENCODE = Encode(dimensions=8, default_max_tokens=16, max_tokens=16, special_tokens=2)


def model(name: str, pool: str = "default", runtimes: tuple[RuntimeName, ...] = ("torch",)) -> RegisteredModel:
    profile = Profile(name=name, pool=pool, source=Source(folder="/models"), encode=ENCODE, runtimes=runtimes)
    digest = profile.digest()
    return RegisteredModel(name, digest, profile, profile.canonical_json(), Lane(pool, digest))


A, B, C = model("a"), model("b"), model("c")


def residency_of(*models: RegisteredModel, memory_bytes: int = 0) -> Residency:
    residency = Residency(memory_bytes)
    residency.want({one.digest: one for one in models}, {one.digest for one in models}, 0.0)
    return residency


def loaded(*models: RegisteredModel, memory_bytes: int = 0) -> Residency:
    residency = residency_of(*models, memory_bytes=memory_bytes)
    residency.to_load(0.0)
    for one in models:
        residency.ready(one.digest, 100)
    return residency


@pytest.mark.parametrize(
    ("named", "plan", "expected"),
    [
        ([], None, [A, B]),
        ([], frozenset({B.digest}), [B]),
        (["a"], frozenset({B.digest}), [A, B]),
        (["alias"], frozenset(), [A]),
        (["unknown"], frozenset(), []),
        ([], frozenset({"of another registry"}), []),
    ],
)
def test_what_is_wanted(named: list[str], plan: frozenset[str] | None, expected: list[RegisteredModel]) -> None:
    view = SimpleNamespace(models={"a": A, "b": B, "far": model("far", "other")}, aliases={"alias": "a"})
    assert wanted(view, "default", "cpu", named, plan) == {one.digest for one in expected}  # pyright: ignore[reportArgumentType]


def test_a_model_is_wanted_where_a_runtime_may_run_it() -> None:
    simulated, either = model("sim", runtimes=("sim",)), model("either", runtimes=("torch", "sim"))
    view = SimpleNamespace(models={one.name: one for one in (A, simulated, either)}, aliases={})

    def names(device: str) -> set[str]:
        digests = wanted(view, "default", device, ["sim", "a"], None)  # pyright: ignore[reportArgumentType]
        return {one.name for one in view.models.values() if one.digest in digests}

    assert names("cpu") == names("cuda:3") == {"a", "either"}
    assert names("sim:0") == {"sim", "either"}


def test_a_model_is_loaded_once_and_then_pulled() -> None:
    residency = residency_of(A)
    assert residency.to_load(0.0) == [A]
    assert residency.to_load(0.0) == []
    assert residency.lanes_to_pull() == {}
    residency.progressed(A.digest, "half way")
    residency.ready(A.digest, 100)
    assert residency.lanes_to_pull() == {A.lane.token: A.digest}
    assert residency.used_bytes == 100


def test_a_failed_model_is_tried_again_after_a_while_or_a_change() -> None:
    residency = residency_of(A)
    residency.to_load(0.0)
    residency.failed(A.digest, "no file", 0.0)
    here = residency.get(A.digest)
    assert here is not None and (here.state, here.error) == (FAILED, "no file")
    assert residency.to_load(RETRY_S - 1) == []
    assert residency.to_load(RETRY_S) == [A]
    residency.failed(A.digest, "no file", RETRY_S)
    residency.retry_failed()
    assert residency.to_load(RETRY_S) == [A]


def empty_for(empty_s: float, since_s: float = 0.0) -> Callable[[str, float], float]:
    """Lanes that were empty from a moment on, for so long."""
    return lambda token, after_s: since_s + empty_s - max(since_s, after_s)


def test_a_retired_model_serves_its_lane_until_that_was_empty_for_a_while() -> None:
    residency = loaded(A, B)
    residency.want({B.digest: B}, {B.digest}, 10.0)
    residency.want({B.digest: B}, {B.digest}, 11.0)
    assert residency.lanes_to_pull() == {A.lane.token: A.digest, B.lane.token: B.digest}
    assert residency.to_unload(set(), empty_for(DRAINED_S - 0.1, 20.0)) == []
    assert residency.to_unload({A.digest}, empty_for(DRAINED_S, 20.0)) == []
    assert residency.to_unload(set(), empty_for(DRAINED_S, 20.0)) == [A.digest]
    assert residency.get(A.digest) is None
    assert residency.lanes() == {B.lane.token}


def test_emptiness_from_before_a_model_was_retired_does_not_count() -> None:
    residency = loaded(A)
    residency.want({}, set(), 10.0)
    assert residency.to_unload(set(), empty_for(10.0 + DRAINED_S - 0.1)) == []
    assert residency.to_unload(set(), empty_for(10.0 + DRAINED_S)) == [A.digest]


def test_a_retired_model_that_never_loaded_is_let_go_at_once() -> None:
    residency = residency_of(A)
    residency.want({}, set(), 10.0)
    assert residency.to_unload(set(), empty_for(0.0)) == [A.digest]


def test_a_model_that_is_registered_again_stays() -> None:
    residency = loaded(A)
    residency.want({}, set(), 10.0)
    residency.want({A.digest: A}, {A.digest}, 11.0)
    assert residency.to_unload(set(), empty_for(1e6)) == []


def test_a_retired_model_with_work_gives_way_to_none() -> None:
    residency = loaded(A)
    residency.want({B.digest: B}, {B.digest}, 10.0)
    assert residency.make_room(1_000, set()) == []
    assert residency.lanes_to_pull() == {A.lane.token: A.digest}


def test_an_unplanned_model_serves_on_while_there_is_room() -> None:
    residency = loaded(A, B, memory_bytes=1_000)
    residency.want({one.digest: one for one in (A, B, C)}, {C.digest}, 1.0)
    assert residency.make_room(700, set()) == []
    assert residency.lanes_to_pull().keys() == {A.lane.token, B.lane.token}
    assert len(residency.make_room(850, set())) == 1
    assert residency.make_room(10_000, set()) != []
    assert residency.lanes_to_pull() == {}


def test_without_a_known_memory_no_unplanned_model_stays_beside_a_new_one() -> None:
    residency = loaded(A, B)
    residency.want({one.digest: one for one in (A, B, C)}, {B.digest, C.digest}, 1.0)
    assert residency.make_room(1, {A.digest}) == []
    assert residency.make_room(1, set()) == [A.digest]


def test_a_sidecar_that_is_gone_or_forgot_loads_again() -> None:
    residency = loaded(A)
    residency.lost(A.digest)
    assert residency.to_load(0.0) == [A]
    residency.ready(A.digest, 100)
    residency.all_lost()
    assert residency.used_bytes == 0
    assert residency.to_load(0.0) == [A]


def test_news_of_an_unknown_model_is_ignored() -> None:
    residency = residency_of(A)
    residency.ready("unknown", 1)
    residency.failed("unknown", "", 0.0)
    residency.progressed("unknown", "")
    residency.lost("unknown")
    assert [here.state for here in residency] == [ABSENT]
    residency.progressed(A.digest, "")
    assert [here.state for here in residency] == [LOADING]
    assert READY not in [here.state for here in residency]
