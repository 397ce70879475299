"""The blocking client: aio.py's, run on the process's loop thread.

with shoal.connect("127.0.0.1:50051") as mesh:
    vectors = mesh.encode(["a text", "another"])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from shoal import aio, loop_thread
from shoal.channel import DEFAULT_TARGET
from shoal.models import Model
from shoal.options import DEFAULT_TIMEOUT_S, EncodeKeywords
from shoal.queue import BlockingQueue
from shoal.results import EncodeAnswer, Outcome
from shoal.tensors import Array

if TYPE_CHECKING:
    import grpc

__all__ = ["Mesh", "connect"]


def connect(
    target: str = DEFAULT_TARGET,
    *,
    token: str | None = None,
    credentials: grpc.ChannelCredentials | None = None,
) -> Mesh:
    """A mesh at "host:port" or "unix:/path". It connects on the first call, and again when it must.

    `token` goes with each call. `credentials` (see grpc.ssl_channel_credentials) make the connection TLS.
    Raises ValueError for a target or token of the wrong form.
    """
    return Mesh(aio.connect(target, token=token, credentials=credentials))


class Mesh:
    """One connection to a mesh, for any number of threads. Close it, or use it as a context manager.

    Deadlines and retries are those of aio.Mesh. Callbacks run on the client's thread, and iterables
    given to encode_stream are read on yet another.
    """

    def __init__(self, mesh: aio.Mesh) -> None:
        """Wraps a mesh that no other event loop has used."""
        self._mesh = mesh

    @property
    def target(self) -> str:
        """The address it was given."""
        return self._mesh.target

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection and the calls that still run on it."""
        loop_thread.run(self._mesh.close())

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        progress: Callable[[int], None] | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> Array:
        """The texts' vectors, shape (n, d); for a single str, shape (d,).

        The dtype follows `type`: float32 for "f32" and "bf16" (widened exactly), float16, int8, or uint8
        for "binary", then of shape (n, ceil(d/8)): packed bits, most significant first. No texts give
        shape (0, d).

        A long list is sent as many requests, several at once. `progress` is called with the number of
        items finished so far. `options` are those of EncodeKeywords.

        Raises ItemsFailed if some texts have no vector (it holds the others), CallError if the call
        failed, and before any call: TypeError, ValueError, InvalidText.
        """
        return loop_thread.run(self._mesh.encode(_at_hand(texts), progress=progress, **options))

    def encode_items(
        self,
        texts: str | Iterable[str],
        *,
        ids: Sequence[str] | None = None,
        progress: Callable[[int], None] | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> EncodeAnswer:
        """An outcome for each text, Embedding or ItemError, in order, with where they came from.

        `ids` are the caller's names of the texts. Otherwise as encode, without ItemsFailed.
        """
        return loop_thread.run(self._mesh.encode_items(_at_hand(texts), ids=ids, progress=progress, **options))

    def encode_stream(self, texts: Iterable[str], **options: Unpack[EncodeKeywords]) -> Iterator[Outcome]:
        """Outcomes in order while texts are still being read: for more of them than fit into memory.

        Texts are read as needed, 64 a request. `timeout` bounds each request, not the whole. A text that
        cannot be sent raises when it is reached; otherwise as encode_items.
        """
        return loop_thread.iterate(self._mesh.encode_stream(texts, **options))

    def models(self, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> list[Model]:
        """All models that may be called, by name. Raises CallError."""
        return loop_thread.run(self._mesh.models(timeout=timeout))

    def model(self, name: str, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> Model:
        """One model, by name or alias. Raises NotFound, with similar names, and other CallErrors."""
        return loop_thread.run(self._mesh.model(name, timeout=timeout))

    def watch_models(self) -> Iterator[list[Model]]:
        """All models, by name: at once, and again after each change, until closed.

        Goes on by itself after a lost connection. Raises CallError.
        """
        return loop_thread.iterate(self._mesh.watch_models())

    @property
    def queue(self) -> BlockingQueue:
        """What waits on the mesh, and its dead letters: for those who run it."""
        return BlockingQueue(self._mesh.queue)


def _at_hand(texts: str | Iterable[str]) -> str | list[str]:
    """The texts, read on the caller's thread."""
    return texts if isinstance(texts, str) else list(texts)
