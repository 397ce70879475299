"""The vectors that tests expect of simulated models: the sidecar's tests hold the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from shoal_common.profile import parse_profile
from tests.support import sim


def test_values_are_those_of_the_sidecar() -> None:
    # sidecar_rs/crates/sidecar/src/runtimes/sim/rows.rs
    expected = {
        (101, 3869, 102): [0.06949353, -0.21825695, 0.21586049, -0.62734616],
        (-1, 5): [0.8957726, -0.48859346, -0.3896948],
        (): [0.52738905, -0.8746078, -0.3377794],
    }
    for ids, values in expected.items():
        np.testing.assert_array_equal(sim.row(ids, len(values)), np.array(values, np.float32))


def test_media_ids_are_those_of_the_sidecar() -> None:
    # sidecar_rs/crates/sidecar/src/tokenize/media.rs
    assert sim.media_ids(b"abc") == [
        *(1_058_437_306, 1_791_951_247, 1_581_269_313, 589_475_421),
        *(593_560_496, 477_763_478, 1_644_105_908, 756_351_218),
    ]


def test_texts_are_cut_as_the_sidecar_cuts_them() -> None:
    assert sim.token_ids("fish") == (101, 3869, 102)
    long = sim.token_ids("fish " * 300)
    assert (len(long), long[0], long[-2:]) == (256, 101, (3869, 102))


def test_variants_change_what_they_name_and_keep_the_rest(tmp_path: Path) -> None:
    path = sim.sim_profile(tmp_path, "other", encode={"dimensions": 8}, tuned={"sim": {"cost": {"batch_ms": 60}}})
    changed, plain = parse_profile(path.read_text()), parse_profile(sim.SIM_PROFILE.read_text())
    assert (changed.name, changed.encode.dimensions, changed.encode.max_tokens) == ("other", 8, 512)
    assert changed.tuned["sim"].cost.batch_ms == 60
    assert changed.tuned["sim"].cost.token_us == plain.tuned["sim"].cost.token_us
    assert changed.runtimes == ("sim",)
    behaviour = json.loads(sim.sim_file(tmp_path, jitter=0.2, cost={"batch_ms": 60}).read_text())
    assert behaviour["jitter"] == 0.2
    assert behaviour["cost"] == {"batch_ms": 60, "token_us": 2.0}


def test_the_sim_file_takes_the_time_that_the_profile_says() -> None:
    cost = parse_profile(sim.SIM_PROFILE.read_text()).tuned["sim"].cost
    assert json.loads(sim.SIM_FILE.read_text())["cost"].items() <= cost.model_dump().items()
