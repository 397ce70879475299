"""Blobs in a folder: whole or not there, checked when they are read, swept by the hour, and never another unit's."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from pathlib import Path

import pytest

from shoal.work.v1 import work_pb2
from shoal_common import limits
from shoal_common.blob_removal import GATHER_S, BlobRemoval
from shoal_common.blobs import (
    HOUR_FORMAT,
    ITEMS,
    RESULTS,
    BadReference,
    Blob,
    BlobDamaged,
    BlobMissing,
    Blobs,
    BlobsAway,
    digest,
    key_of,
    references,
)
from tests.support.until import until

UNIT = "0123456789abcdef0123456789abcdef.7"
SIZES = [1, limits.BLOB_ITEM_BYTES + 1, 20 * limits.MIB]


def blob_of(data: bytes, key: str = "", index: int = 0) -> Blob:
    return Blob(index, key or key_of(ITEMS, UNIT, index), len(data), hashlib.sha256(data).digest())


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("size", SIZES)
async def test_what_was_written_is_read(tmp_path: Path, size: int) -> None:
    blobs, data = Blobs(str(tmp_path / "made" / "when needed")), os.urandom(size)
    blob = blob_of(data)
    await blobs.put(blob.key, memoryview(b"." + data)[1:])
    assert bytes(await blobs.get(blob)) == data
    assert blobs.file(blob).read_bytes() == data
    assert await digest(data) == blob.sha256


@pytest.mark.parametrize("size", SIZES)
async def test_a_write_is_never_seen_in_part(tmp_path: Path, size: int) -> None:
    blobs, data = Blobs(str(tmp_path)), os.urandom(size)
    blob = blob_of(data)
    path = tmp_path / blob.key
    writing = asyncio.create_task(blobs.put(blob.key, data))
    seen = set()
    while not writing.done():
        if path.exists():
            seen.add(path.stat().st_size)
        await asyncio.sleep(0)
    await writing
    assert seen <= {size}
    assert files(tmp_path) == [blob.key], "nothing unfinished is left"


async def test_a_write_that_is_given_up_shows_nothing_or_all(tmp_path: Path) -> None:
    blobs, data = Blobs(str(tmp_path)), os.urandom(limits.MEDIA_BYTES)
    blob = blob_of(data)
    writing = asyncio.create_task(blobs.put(blob.key, data))
    await asyncio.sleep(0.002)
    writing.cancel()
    await asyncio.wait([writing])
    await until(lambda: files(tmp_path) in ([], [blob.key]))
    if files(tmp_path):
        assert (tmp_path / blob.key).read_bytes() == data


async def get_file(blobs: Blobs, blob: Blob) -> None:
    blobs.file(blob)


@pytest.mark.parametrize("read", [Blobs.get, get_file])
async def test_damage_is_told_from_absence(tmp_path: Path, read) -> None:
    blobs, data = Blobs(str(tmp_path)), os.urandom(100_000)
    blob = blob_of(data)
    with pytest.raises(BlobMissing):
        await read(blobs, blob)
    await blobs.put(blob.key, data)
    path = tmp_path / blob.key
    damages = [data[:-1], data + b"x", b""]
    if read is Blobs.get:
        damages.append(bytes([data[0] ^ 1]) + data[1:])  # Of a file, its reader checks that.
    for damaged in damages:
        path.write_bytes(damaged)
        with pytest.raises(BlobDamaged):
            await read(blobs, blob)
    path.write_bytes(data)
    await read(blobs, blob)


async def test_storage_that_fails_is_typed(tmp_path: Path) -> None:
    (tmp_path / "items").write_text("a file where a folder should be")
    blobs, blob = Blobs(str(tmp_path)), blob_of(b"data")
    for operation in (blobs.put(blob.key, b"data"), blobs.get(blob), get_file(blobs, blob), blobs.remove([blob.key])):
        with pytest.raises(BlobsAway):
            await operation
    nowhere = Blobs(str(tmp_path / "items" / "folder"))
    with pytest.raises(BlobsAway):
        await nowhere.put(blob.key, b"data")
    with pytest.raises(BlobsAway):
        await Blobs("s3://nothing listens there").put(blob.key, b"data")


async def test_removing_spares_the_others_and_does_not_mind_absence(tmp_path: Path) -> None:
    blobs = Blobs(str(tmp_path))
    kept, gone = key_of(ITEMS, UNIT, 0), key_of(RESULTS, UNIT, "1.abcd")
    for key in (kept, gone):
        await blobs.put(key, b"data")
    await blobs.remove([key_of(ITEMS, UNIT, 9), gone, gone])
    assert files(tmp_path) == [kept]


async def test_a_sweep_takes_whole_hours_that_are_over(tmp_path: Path) -> None:
    blobs, now_s = Blobs(str(tmp_path)), 1_800_000_000
    hours = {
        age_h: f"{kind}/{time.strftime(HOUR_FORMAT, time.gmtime(now_s - age_h * 3600))}/{UNIT}-0"
        for age_h, kind in ((0, ITEMS), (1, RESULTS), (2, ITEMS), (3, RESULTS), (50, ITEMS))
    }
    for key in hours.values():
        await blobs.put(key, b"12345")
    left_by_a_killed_writer = tmp_path / (hours[50] + "#1")
    left_by_a_killed_writer.write_bytes(b"half")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "an adapter").write_bytes(b"not ours")
    swept = await blobs.sweep(now_s - 3600, 100)
    assert (swept.blobs, swept.size_bytes, swept.is_all) == (3, 15, True)
    assert files(tmp_path) == sorted(["blobs/an adapter", hours[0], hours[1]])
    assert (await blobs.sweep(now_s - 3600, 100)).blobs == 0


async def test_a_sweep_is_bounded(tmp_path: Path) -> None:
    blobs = Blobs(str(tmp_path))
    for number in range(70):
        await blobs.put(f"items/2020010100/{UNIT}-{number}", b"1")
    swept = await blobs.sweep(time.time(), 60)
    assert (swept.blobs, swept.is_all) == (60, False)
    swept = await blobs.sweep(time.time(), 60)
    assert (swept.blobs, swept.is_all) == (10, True)


async def test_an_empty_store_is_swept(tmp_path: Path) -> None:
    assert (await Blobs(str(tmp_path)).sweep(time.time(), 10)).blobs == 0


def message(**changes) -> work_pb2.Blob:
    fields = {"index": 1, "key": f"items/2030010100/{UNIT}-1", "size_bytes": 9, "sha256": bytes(32)}
    return work_pb2.Blob(**(fields | changes))


def test_a_right_reference() -> None:
    (blob,) = references(ITEMS, UNIT, [message()], 2)
    assert blob == Blob(1, f"items/2030010100/{UNIT}-1", 9, bytes(32))
    assert blob.message() == message()
    for kind in (ITEMS, RESULTS):
        key = key_of(kind, UNIT, "0.a1")
        assert references(kind, UNIT, [message(key=key)], 2)[0].key == key


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": ""},
        {"key": f"/items/2030010100/{UNIT}-1"},
        {"key": f"items/../items/2030010100/{UNIT}-1"},
        {"key": f"items/2030010100/../{UNIT}-1"},
        {"key": f"items/2030010100/{UNIT}-../../x"},
        {"key": f"items/2030010100/{UNIT}-1\n"},
        {"key": f"items/20300101/{UNIT}-1"},
        {"key": f"results/2030010100/{UNIT}-1"},
        {"key": f"blobs/2030010100/{UNIT}-1"},
        {"key": f"items/2030010100/other-{UNIT}-1"},
        {"key": "items/2030010100/another-1"},
        {"key": "a" * 100_000},
        {"index": 2},
        {"index": 4_000_000_000},
        {"size_bytes": 0},
        {"size_bytes": limits.MEDIA_ITEM_BYTES + 1},
        {"sha256": b""},
        {"sha256": bytes(31)},
    ],
)
def test_a_wrong_reference_is_not_used(wrong: dict) -> None:
    with pytest.raises(BadReference) as refused:
        references(ITEMS, UNIT, [message(**wrong)], 2)
    assert len(str(refused.value)) < 600


def test_two_blobs_for_one_item() -> None:
    with pytest.raises(BadReference):
        references(ITEMS, UNIT, [message(), message()], 2)


def test_a_unit_with_a_path_for_its_name_has_no_blobs() -> None:
    for unit_id in ("../..", "a/b", "a\n", "", "a" * 129):
        key = f"items/2030010100/{unit_id}-1"
        with pytest.raises(BadReference):
            references(ITEMS, unit_id, [message(key=key)], 2)


async def test_removals_are_gathered(tmp_path: Path) -> None:
    blobs = Blobs(str(tmp_path))
    removal = BlobRemoval(blobs)
    keys = [key_of(ITEMS, UNIT, number) for number in range(5)]
    for key in keys:
        await blobs.put(key, b"data")
    running = asyncio.create_task(removal.run())
    removal.add(keys[:2])
    removal.add(keys[2:4])
    await until(lambda: files(tmp_path) == [keys[4]], timeout_s=GATHER_S + 5)
    removal.add(keys[4:])
    await removal.flush()
    assert files(tmp_path) == []
    running.cancel()


async def test_a_removal_that_fails_is_left_to_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "items").write_text("no folder")
    removal = BlobRemoval(Blobs(str(tmp_path)))
    removal.add([key_of(ITEMS, UNIT, 0)])
    await removal.flush()
    BlobRemoval(None).add(["nobody has a store"])
