"""The client for asyncio; the blocking one of sync.py runs on it.

async with shoal.aio.connect("127.0.0.1:50051") as mesh:
    vectors = await mesh.encode(["a text", "another"])
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, Unpack

import grpc

from shoal import channel, models, results, statuses
from shoal.chunks import Chunk, cut, cut_stream
from shoal.deadline import Deadline
from shoal.errors import CallError, DeadlineExceeded, ItemsFailed, Unavailable
from shoal.infer_stream import InferStream
from shoal.models import Model
from shoal.options import DEFAULT_TIMEOUT_S, EncodeCall, EncodeKeywords, seconds
from shoal.pipeline import pipelined
from shoal.queue import Queue
from shoal.results import EncodeAnswer, Outcome, Provenance
from shoal.retry import retrying, wait_s
from shoal.tensors import Array
from shoal.v1 import inference_pb2, inference_pb2_grpc, models_pb2, models_pb2_grpc, queue_pb2_grpc

__all__ = ["Mesh", "connect"]

IN_FLIGHT = 8
"""Requests of one call that a mesh works on at once; a mesh takes up to 64 on a stream."""
AHEAD = 4 * IN_FLIGHT
"""Requests begun or answered behind the one whose results are due."""

T = TypeVar("T")
Answer: TypeAlias = tuple[list[Outcome], Provenance]
Ask: TypeAlias = Callable[[inference_pb2.EncodeRequest, float], Awaitable[inference_pb2.EncodeResponse]]


def connect(
    target: str = channel.DEFAULT_TARGET,
    *,
    token: str | None = None,
    credentials: grpc.ChannelCredentials | None = None,
) -> Mesh:
    """A mesh at "host:port" or "unix:/path". It connects on the first call, and again when it must.

    `token` goes with each call. `credentials` (see grpc.ssl_channel_credentials) make the connection TLS.
    Raises ValueError for a target or token of the wrong form.
    """
    return Mesh(target, token=token, credentials=credentials)


class Mesh:
    """One connection to a mesh, for any number of calls at once in one event loop.

    Close it, or use it as an async context manager.

    Each call has one deadline. Until then a request that the mesh refuses for now (Overloaded, Unavailable
    with a time to try again) or that a lost connection swallowed is sent again. Only a mesh that has
    never answered is not waited for: Unavailable at once.
    """

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        open_channel: Callable[[str, grpc.ChannelCredentials | None], grpc.aio.Channel] = channel.open_channel,
    ) -> None:
        """As connect; `open_channel` is the seam for another transport."""
        self.target = channel.check_target(target)
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            raise ValueError("the token is empty, or has characters that no token has")
        self._metadata = () if token is None else (("authorization", f"Bearer {token.strip()}"),)
        self._open_channel = lambda: open_channel(target, credentials)
        self._channel: grpc.aio.Channel | None = None
        self._closed = False
        self._reached = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection and the calls that still run on it."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    async def encode(
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
        single = isinstance(texts, str)
        call = EncodeCall.of(options)
        deadline = Deadline(call.timeout_s)
        answer = await self._encode([texts] if isinstance(texts, str) else texts, None, call, deadline, progress)
        dimensions = call.request.options.dimensions
        if not answer.results and not dimensions:
            dimensions = (await self._model(call.request.model, deadline)).dimensions
        vectors = answer.vectors(call.type, dimensions)
        if errors := answer.errors:
            raise ItemsFailed(errors, vectors)
        return vectors[0] if single else vectors

    async def encode_items(
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
        call = EncodeCall.of(options)
        return await self._encode(
            [texts] if isinstance(texts, str) else texts, ids, call, Deadline(call.timeout_s), progress
        )

    def encode_stream(
        self, texts: Iterable[str] | AsyncIterable[str], **options: Unpack[EncodeKeywords]
    ) -> AsyncGenerator[Outcome, None]:
        """Outcomes in order while texts are still being read: for more of them than fit into memory.

        Texts are read as needed, 64 a request. A plain iterable that is no list or tuple is read on
        another thread. `timeout` bounds each request, not the whole. A text that cannot be sent raises
        when it is reached; otherwise as encode_items.
        """
        if isinstance(texts, str):
            raise TypeError("texts is one str; encode_stream takes an iterable of them")
        return self._encode_stream(texts, EncodeCall.of(options))

    async def models(self, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> list[Model]:
        """All models that may be called, by name. Raises CallError."""
        request = models_pb2.ListModelsRequest()
        response = await self._unary(lambda: self._models().ListModels, request, Deadline(seconds(timeout)))
        return [models.from_message(message) for message in response.models]

    async def model(self, name: str, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> Model:
        """One model, by name or alias. Raises NotFound, with similar names, and other CallErrors."""
        return await self._model(name, Deadline(seconds(timeout)))

    async def watch_models(self) -> AsyncGenerator[list[Model], None]:
        """All models, by name: at once, and again after each change, until closed.

        Goes on by itself after a lost connection. Raises CallError.
        """
        failures = 0
        while True:
            try:
                held: dict[str, Model] = {}
                async for change in self._models().WatchModels(
                    models_pb2.WatchModelsRequest(), metadata=self._metadata
                ):
                    self._reached = True
                    failures = 0
                    if change.snapshot:
                        held.clear()
                    for name in change.removed:
                        held.pop(name, None)
                    held.update((message.name, models.from_message(message)) for message in change.models)
                    yield [held[name] for name in sorted(held)]
                error: CallError = Unavailable("the mesh ended the watch", code="UNAVAILABLE")
            except grpc.aio.AioRpcError as failure:
                error = statuses.from_rpc_error(failure, self.target)
            failures += 1
            wait = wait_s(error, failures)
            if wait is None or not self._worth_another(error):
                raise error
            await asyncio.sleep(wait)

    @property
    def queue(self) -> Queue:
        """What waits on the mesh, and its dead letters: for those who run it."""
        return Queue(self._unary, lambda: queue_pb2_grpc.QueueServiceStub(self._connected()))

    async def _encode(
        self,
        texts: Iterable[str],
        ids: Sequence[str] | None,
        call: EncodeCall,
        deadline: Deadline,
        progress: Callable[[int], None] | None,
    ) -> EncodeAnswer:
        chunks = list(cut(texts, ids))
        outcomes: list[Outcome] = []
        origins: list[Provenance] = []

        def take(answer: Answer) -> None:
            outcomes.extend(answer[0])
            origins.append(answer[1])
            if progress is not None:
                progress(len(outcomes))

        if len(chunks) > 1:
            async with aclosing(self._answers(_each(chunks), call, lambda: deadline)) as answers:
                async for answer in answers:
                    take(answer)
        elif chunks:
            take(await self._answer(self._ask_alone, chunks[0], call, deadline))
        return EncodeAnswer(outcomes, results.merged(origins))

    async def _encode_stream(
        self, texts: Iterable[str] | AsyncIterable[str], call: EncodeCall
    ) -> AsyncGenerator[Outcome, None]:
        answers = self._answers(cut_stream(texts), call, lambda: Deadline(call.timeout_s))
        async with aclosing(answers):
            async for batch, _ in answers:
                for outcome in batch:
                    yield outcome

    async def _answers(
        self, chunks: AsyncIterator[Chunk], call: EncodeCall, deadline: Callable[[], Deadline]
    ) -> AsyncGenerator[Answer, None]:
        """Each chunk's answer, in order, over an Infer stream; `deadline` is asked as a chunk begins."""
        async with (
            InferStream(lambda: self._inference().Infer(metadata=self._metadata), self.target) as stream,
            aclosing(
                pipelined(
                    chunks,
                    lambda chunk: self._answer(stream.encode, chunk, call, deadline()),
                    width=IN_FLIGHT,
                    ahead=AHEAD,
                )
            ) as answers,
        ):
            async for answer in answers:
                yield answer

    async def _answer(self, ask: Ask, chunk: Chunk, call: EncodeCall, deadline: Deadline) -> Answer:
        request = chunk.request(call.request)
        response = await self._retrying(lambda left_s: ask(request, left_s), deadline)
        return results.outcomes(chunk, response), results.provenance(chunk, response)

    async def _ask_alone(self, request: inference_pb2.EncodeRequest, left_s: float) -> inference_pb2.EncodeResponse:
        return await self._inference().Encode(request, timeout=left_s, metadata=self._metadata)

    async def _model(self, name: str, deadline: Deadline) -> Model:
        request = models_pb2.GetModelRequest(model=name)
        response = await self._unary(lambda: self._models().GetModel, request, deadline)
        return models.from_message(response.model)

    async def _unary(self, method: Callable[[], Any], request: Any, deadline: Deadline) -> Any:
        async def attempt(left_s: float) -> Any:
            return await method()(request, timeout=left_s, metadata=self._metadata)

        return await self._retrying(attempt, deadline)

    async def _retrying(self, attempt: Callable[[float], Awaitable[T]], deadline: Deadline) -> T:
        """What `attempt` returns, sent again as retry.py says; it may raise AioRpcError and TimeoutError."""

        async def typed(left_s: float) -> T:
            try:
                answer = await attempt(left_s)
            except grpc.aio.AioRpcError as error:
                failure = statuses.from_rpc_error(error, self.target)
            except CallError as error:
                failure = error
            except TimeoutError:
                failure = deadline.exceeded()
            else:
                self._reached = True
                return answer
            if isinstance(failure, DeadlineExceeded) and not failure.reason:  # our own clock's, not the mesh's
                failure = deadline.exceeded()
            self._reached = self._reached or bool(failure.reason)
            raise failure

        return await retrying(typed, deadline, worthwhile=self._worth_another)

    def _worth_another(self, error: CallError) -> bool:
        return self._reached or not (isinstance(error, Unavailable) and error.refused)

    def _inference(self) -> inference_pb2_grpc.InferenceServiceStub:
        return inference_pb2_grpc.InferenceServiceStub(self._connected())

    def _models(self) -> models_pb2_grpc.ModelServiceStub:
        return models_pb2_grpc.ModelServiceStub(self._connected())

    def _connected(self) -> grpc.aio.Channel:
        if self._closed:
            raise RuntimeError("this mesh is closed")
        if self._channel is None:
            self._channel = self._open_channel()
        return self._channel


async def _each(values: Iterable[T]) -> AsyncIterator[T]:
    for value in values:
        yield value
