"""Saved costs: what is written is read again, and what is anything else is not."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_common.profile import Cost
from shoal_worker.decisions.cost import CostModel
from shoal_worker.saved_costs import MODELS, SavedCosts, known
from shoal_worker.settings import WorkerSettings

SEED = Cost(batch_ms=3.0, token_us=95.0, squared_token_ns=40.0, item_us=40.0)


def worker(name: str = "worker-0", **fields: object) -> WorkerSettings:
    values = {"machine": "here", "device": "cpu", "streams": 2, "threads": 2, **fields}
    return WorkerSettings(listen="unix:/tmp/w.sock", sidecar="unix:/tmp/s.sock", worker=name, **values)  # type: ignore


def digest(number: int) -> str:
    return f"{number:064x}"


def learnt(factor: float, streams: int = 2) -> CostModel:
    cost, rng = CostModel(SEED, streams), random.Random(1)
    for _ in range(50):
        tokens = rng.randint(5, 500)
        cost.learn(1, tokens, tokens**2, factor * (3.0 + 0.1 * tokens), alone=streams == 1 or rng.random() < 0.5)
    return cost


def saved(settings: WorkerSettings, *factors: float) -> SavedCosts:
    states = {digest(number): learnt(factor).state() for number, factor in enumerate(factors)}
    return SavedCosts.of(settings, states)


@pytest.mark.parametrize("streams", [1, 2])
def test_what_is_written_is_read(streams: int) -> None:
    states = {digest(1): learnt(2.0, streams).state(), digest(2): CostModel(SEED, streams).state()}
    written = SavedCosts.of(worker(streams=streams), states)
    read = SavedCosts.parse(written.model_dump_json().encode())
    assert read is not None and read.states() == states
    assert read.fits(worker(streams=streams, machine="elsewhere")) and not read.fits(worker(streams=3))
    assert len(written.model_dump_json()) < 2 * 2_048


heard = st.lists(
    st.tuples(
        st.integers(0, 1_024),
        st.integers(0, 65_536),
        st.integers(0, 65_536**2),
        st.floats(1e-9, 1e12),
        st.booleans(),
    ),
    max_size=100,
)


def after(seed: Cost, heard: list) -> tuple[SavedCosts | None, CostModel]:
    """What is read of a model that heard of batches, and the model."""
    cost = CostModel(seed, 2)
    for *batch, alone in heard:
        cost.learn(*batch, alone=alone)
    written = SavedCosts.of(worker(), {digest(1): cost.state()})
    return SavedCosts.parse(written.model_dump_json().encode()), cost


@settings(deadline=None)
@given(
    heard=heard,
    seed=st.builds(Cost, batch_ms=st.floats(0, 1e4), token_us=st.floats(0, 1e5), squared_token_ns=st.floats(0, 1e5)),
)
def test_whatever_was_learnt_is_written_and_read(heard: list, seed: Cost) -> None:
    read, cost = after(seed, heard)
    assert read is not None and read.states() == {digest(1): cost.state()}


@settings(deadline=None)
@given(heard=heard, seed=st.builds(Cost, batch_ms=st.floats(0, 1e300), item_us=st.floats(0, 1e300)))
def test_a_profile_out_of_all_range_hurts_nobody(heard: list, seed: Cost) -> None:
    read, cost = after(seed, heard)
    assert read is not None and read.states() in ({}, {digest(1): cost.state()})


def set_field(path: str, value: object) -> bytes:
    """A value with one field changed or, for `...`, left out."""
    tree = json.loads(saved(worker(), 2.0).model_dump_json())
    *parents, last = path.split("/")
    at = tree
    for name in parents:
        at = at[int(name) if isinstance(at, list) else name]
    if value is ...:
        del at[last]
    elif isinstance(at, list):
        at[int(last)] = value
    else:
        at[last] = value
    return json.dumps(tree).encode()


MODEL = f"models/{digest(0)}"
ONE = json.loads(set_field("kind", "cpu"))["models"][digest(0)]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b"[" * 100_000,
        set_field("version", 2),
        set_field("version", "1"),
        set_field("streams", 2.5),
        set_field("machine", ...),
        set_field("unknown", 1),
        set_field("models", {"minilm": None}),
        set_field("models", dict.fromkeys(map(digest, range(MODELS + 1)), ONE)),
        set_field(f"{MODEL}/alone", None),
        set_field(f"{MODEL}/alone/gains/0", 21.0),
        set_field(f"{MODEL}/alone/gains", [1.0, 1.0]),
        set_field(f"{MODEL}/alone/sums/3", -1.0),
        set_field(f"{MODEL}/alone/sums/3", float("nan")),
        set_field(f"{MODEL}/beside/sums/14", float("inf")),
        set_field(f"{MODEL}/beside/sums/14", "1"),
        set_field(f"{MODEL}/beside/level", 1e9),
        set_field(f"{MODEL}/beside/spread", -0.1),
        set_field(f"{MODEL}/beside/batches", -1),
        set_field(f"{MODEL}/beside/batches", True),
    ],
)  # fmt: skip
def test_what_is_no_saved_state_is_not_read(value: bytes) -> None:
    assert SavedCosts.parse(value) is None


def test_the_forms_of_the_cases_above_are_read_unchanged() -> None:
    assert SavedCosts.parse(set_field("machine", "other")) is not None
    assert SavedCosts.parse(set_field(f"{MODEL}/alone/gains/0", 20.0)) is not None


def test_a_worker_begins_with_its_own_then_its_machines_then_others() -> None:
    own, sibling, stranger = (
        saved(worker(), 1.0),
        saved(worker("worker-1"), 2.0, 2.0),
        saved(worker("worker-2", machine="elsewhere"), 3.0, 3.0, 3.0),
    )
    gpu = saved(worker("worker-3", device="cuda:0"), 4.0, 4.0, 4.0, 4.0)
    states = known(worker(), own, [sibling, stranger, gpu])
    expected = {**stranger.states(), **sibling.states(), **own.states()}
    assert states == expected and len(states) == 3
    assert known(worker(device="cuda:1"), own, [gpu]) == gpu.states()
    assert known(worker(device="cuda:1"), own, []) == {}
    assert known(worker(), None, []) == {}


def test_curves_that_do_not_match_the_streams_do_not_fit() -> None:
    one = SavedCosts.of(worker(), {digest(1): learnt(2.0, streams=1).state()})
    assert not one.fits(worker())


def test_the_models_served_last_are_kept() -> None:
    state = learnt(1.0).state()
    kept = SavedCosts.of(worker(), {digest(number): state for number in range(MODELS + 5)})
    assert list(kept.models) == [digest(number) for number in range(5, MODELS + 5)]
    assert len(kept.model_dump_json()) < 128 * 1024
