"""An upload is accepted only when its bytes are exactly what was announced."""

from __future__ import annotations

import hashlib

import pytest

from shoal_common import errors, limits
from shoal_lora_store.upload import Upload

DATA = b"adapter bytes"
DIGEST = hashlib.sha256(DATA).hexdigest()


def test_right_bytes_in_any_cut_are_accepted():
    for cut in range(len(DATA) + 1):
        upload = Upload(DIGEST, len(DATA))
        upload.take(DATA[:cut])
        upload.take(DATA[cut:])
        upload.check()


def test_no_bytes_are_a_blob_too():
    Upload(hashlib.sha256().hexdigest(), 0).check()


@pytest.mark.parametrize(
    ("data", "size", "reason"),
    [
        (DATA[:-1], len(DATA), "SIZE_MISMATCH"),
        (DATA + b"!", len(DATA), "SIZE_MISMATCH"),
        (b"!" + DATA[1:], len(DATA), "DIGEST_MISMATCH"),
        (b"", len(DATA), "SIZE_MISMATCH"),
        (bytes(limits.CHUNK_BYTES + 1), limits.BLOB_BYTES, "LIMIT_EXCEEDED"),
    ],
)
def test_wrong_bytes_are_refused(data: bytes, size: int, reason: str):
    upload = Upload(DIGEST, size)
    with pytest.raises(errors.CallError) as refused:
        upload.take(data)
        upload.check()
    assert refused.value.reason == reason
