"""Names that any process derives alike."""

from __future__ import annotations

import re

from shoal_common import lanes, limits
from shoal_common.lanes import Lane


def test_a_lane_has_one_token_one_shard_and_fitting_subjects() -> None:
    lane = Lane("default", "ab" * 32)
    assert re.fullmatch(r"[a-z2-7]{16}", lane.token)
    assert lane.token == Lane("default", "ab" * 32).token != Lane("other", "ab" * 32).token
    assert 0 <= lane.shard < limits.SHARDS
    config = lanes.consumer_config(lane.token, "bulk")
    assert config.filter_subject == f"shoal.work.{lane.shard}.{lane.token}.bulk"
    assert re.fullmatch(r"[a-z0-9_]+", config.name or "")


def test_lanes_spread_over_all_shards() -> None:
    shards = {Lane("default", str(n)).shard for n in range(500)}
    assert shards == set(range(limits.SHARDS))
