"""The sweeper takes what is older than any deadline, and storage that is away costs it nothing but a sweep."""

from __future__ import annotations

import time
from pathlib import Path

from shoal_common import limits
from shoal_common.blobs import HOUR_FORMAT, ITEMS, RESULTS, Blobs
from shoal_lora_store.sweeper import MARGIN_S, Sweeper

HOUR_S = 3600
WRITTEN_S = 1_900_000_000 // HOUR_S * HOUR_S + HOUR_S - 1
"""In the last second of an hour."""


async def test_a_blob_outlives_every_deadline_and_no_more_than_an_hour(tmp_path: Path) -> None:
    blobs = Blobs(str(tmp_path))
    hour = time.strftime(HOUR_FORMAT, time.gmtime(WRITTEN_S))
    for kind in (ITEMS, RESULTS):
        await blobs.put(f"{kind}/{hour}/unit-0", b"data")
    now_s = WRITTEN_S + limits.DEADLINE_MAX_S
    sweeper = Sweeper(blobs, lambda: now_s)
    assert await sweeper.sweep() == 0
    now_s = WRITTEN_S + limits.DEADLINE_MAX_S + MARGIN_S + 1
    assert await sweeper.sweep() == 2
    assert await sweeper.sweep() == 0


async def test_storage_that_is_away_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "not yet"
    path.write_text("a file where a folder should be")
    sweeper = Sweeper(Blobs(str(path)))
    assert await sweeper.sweep() == 0
    path.unlink()
    await Blobs(str(path)).put("items/2020010100/unit-0", b"data")
    assert await sweeper.sweep() == 1
