"""Checks texts and cuts them into requests of a size that flows well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from shoal.errors import InvalidText
from shoal.v1 import inference_pb2

KIB = 1024
MIB = 1024 * KIB

CHUNK_ITEMS = 64
"""Two units of the queue: enough to pay for a request, few enough for progress to be seen."""
CHUNK_BYTES = 1 * MIB
TEXT_BYTES_SENT = 60 * MIB
"""A mesh names its own, smaller limit in the item's error; this is what still fits into a message."""

assert TEXT_BYTES_SENT < 64 * MIB, "a chunk of one text must fit into a message"


@dataclass
class Chunk:
    """Texts that travel in one request; `first_index` is the place of the first among all."""

    first_index: int
    texts: list[str] = field(default_factory=list)
    ids: list[str] | None = None
    utf8_bytes: int = 0

    def request(self, template: inference_pb2.EncodeRequest) -> inference_pb2.EncodeRequest:
        """A copy of the template with these items."""
        request = inference_pb2.EncodeRequest()
        request.CopyFrom(template)
        for text, name in zip(self.texts, self.ids or [""] * len(self.texts), strict=True):
            request.items.add(id=name, text=text)
        return request


class Cutter:
    """Takes texts one by one, and gives a chunk back whenever one is full."""

    def __init__(self, ids: Sequence[str] | None = None) -> None:
        self._ids = ids
        self._open = Chunk(0)

    def add(self, text: object) -> Chunk | None:
        """The chunk that this text did not fit into, if it filled one.

        Raises TypeError if the text is no str, InvalidText if it cannot be sent; both name its index.
        """
        index = self._open.first_index + len(self._open.texts)
        text, utf8_bytes = checked(text, index)
        full = None
        if len(self._open.texts) == CHUNK_ITEMS or (
            self._open.texts and self._open.utf8_bytes + utf8_bytes > CHUNK_BYTES
        ):
            full, self._open = self.rest(), Chunk(index)
        self._open.texts.append(text)
        self._open.utf8_bytes += utf8_bytes
        return full

    def rest(self) -> Chunk | None:
        """The last chunk, None if there is nothing left."""
        chunk = self._open
        if self._ids is not None:
            chunk.ids = list(self._ids[chunk.first_index : chunk.first_index + len(chunk.texts)])
        return chunk if chunk.texts else None


def checked(text: object, index: int) -> tuple[str, int]:
    """The text and its length in UTF-8 bytes.

    Raises TypeError if it is no str, InvalidText if it cannot be sent.
    """
    if not isinstance(text, str):
        raise TypeError(f"texts[{index}] is {type(text).__name__}, not str")
    try:
        utf8_bytes = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidText(
            index,
            f"has a lone surrogate ({text[error.start]!a}) at character {error.start}: it is not valid Unicode, "
            "often a sign of bytes decoded with the wrong encoding",
        ) from None
    if utf8_bytes > TEXT_BYTES_SENT:
        raise InvalidText(index, f"has {utf8_bytes:,} bytes, more than the {TEXT_BYTES_SENT:,} that can be sent")
    return text, utf8_bytes


def cut(texts: Iterable[str], ids: Sequence[str] | None = None) -> Iterator[Chunk]:
    """Chunks of texts at hand, in order. Raises as Cutter.add does, before the chunk in question.

    With `ids`, one a text, raises ValueError or TypeError for those that don't fit, before the first.
    """
    if ids is not None:
        texts = list(texts)
        if len(ids) != len(texts):
            raise ValueError(f"there are {len(ids)} ids for {len(texts)} texts")
        for index, name in enumerate(ids):
            _check_id(name, index)
    cutter = Cutter(ids)
    for text in texts:
        if chunk := cutter.add(text):
            yield chunk
    if chunk := cutter.rest():
        yield chunk


async def cut_stream(texts: Iterable[str] | AsyncIterable[str]) -> AsyncIterator[Chunk]:
    """Chunks of texts as they come, in order.

    A list or tuple is read at once; any other plain iterable is read on another thread, since it may
    block. Raises as Cutter.add does, when the text is reached.
    """
    if isinstance(texts, AsyncIterable):
        cutter = Cutter()
        async for text in texts:
            if chunk := cutter.add(text):
                yield chunk
        if chunk := cutter.rest():
            yield chunk
        return
    chunks = cut(texts)
    if isinstance(texts, list | tuple):
        for chunk in chunks:
            yield chunk
        return
    while chunk := await asyncio.to_thread(next, chunks, None):
        yield chunk


def _check_id(name: object, index: int) -> None:
    if not isinstance(name, str):
        raise TypeError(f"ids[{index}] is {type(name).__name__}, not str")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"ids[{index}] is not valid Unicode") from None
