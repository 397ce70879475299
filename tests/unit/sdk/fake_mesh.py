"""A mesh in a thread of the test: real gRPC, made-up vectors, faults on order.

The vector of a text "7" is 7, 1, 0, 0, … (384 of them, not normalised); of a text that is no number
0, 1, 0, …; an empty text is an item error. Wire formats are written here by hand, not by the client's code.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from shoal.v1 import inference_pb2, inference_pb2_grpc, models_pb2, models_pb2_grpc, queue_pb2, queue_pb2_grpc

DIMENSIONS = 384
BREAK = "break"
HANG = "hang"


def status(code: grpc.StatusCode, message: str, *details: Message) -> status_pb2.Status:
    """A status with details, as the mesh sends them."""
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    return status_pb2.Status(code=code.value[0], message=message, details=packed)


def busy(retry_ms: int) -> status_pb2.Status:
    """Overloaded, with a time to come back."""
    delay = duration_pb2.Duration(nanos=retry_ms * 1_000_000)
    return status(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "busy",
        error_details_pb2.ErrorInfo(reason="LANE_FULL", domain="shoal"),
        error_details_pb2.RetryInfo(retry_delay=delay),
    )


def vector(text: str, dimensions: int) -> list[float]:
    """What the fake says of a text."""
    return [float(text) if text.isdigit() else 0.0, 1.0, *[0.0] * (DIMENSIONS - 2)][:dimensions]


def wire(values: list[float], element_type: int) -> bytes:
    """A vector's bytes as the contract has them."""
    match element_type:
        case inference_pb2.ELEMENT_TYPE_F16:
            return struct.pack(f"<{len(values)}e", *values)
        case inference_pb2.ELEMENT_TYPE_BF16:
            return b"".join(struct.pack("<f", value)[2:] for value in values)
        case inference_pb2.ELEMENT_TYPE_INT8:
            return struct.pack(f"{len(values)}b", *(round(127 * value) for value in values))
        case inference_pb2.ELEMENT_TYPE_BINARY:
            bits = "".join("1" if value > 0 else "0" for value in values)
            bits += "0" * (-len(bits) % 8)
            return bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))
        case _:
            return struct.pack(f"<{len(values)}f", *values)


def answer(request: inference_pb2.EncodeRequest) -> inference_pb2.EncodeResponse:
    """The embeddings of a request."""
    response = inference_pb2.EncodeResponse(
        provenance=inference_pb2.Provenance(model=request.model, revision="r1", runtime="sim", device="cpu")
    )
    response.provenance.runs.add(first_index=0, count=len(request.items), worker="w", attempt=1)
    dimensions = request.options.dimensions or DIMENSIONS
    for item in request.items:
        result = response.results.add(id=item.id)
        if not item.text:
            result.status.code = grpc.StatusCode.INVALID_ARGUMENT.value[0]
            result.status.message = "the text has no token of its own"
            result.status.reason = "ITEM_EMPTY"
            continue
        result.input_tokens = len(item.text) + 2
        result.used_tokens = min(len(item.text) + 2, 256)
        result.truncated = len(item.text) + 2 > 256
        result.dense.type = request.options.type or inference_pb2.ELEMENT_TYPE_F32
        result.dense.shape.append(dimensions)
        result.dense.data = wire(vector(item.text, dimensions), result.dense.type)
    return response


MINILM = models_pb2.Model(
    name="minilm",
    revision="sha256:0123456789abcdef",
    state=models_pb2.MODEL_STATE_READY,
    encode_outputs=[inference_pb2.ENCODE_OUTPUT_DENSE],
    dimensions=DIMENSIONS,
    default_max_tokens=256,
    max_tokens=512,
    normalize=True,
    aliases=["default"],
)


@dataclass
class Heard:
    """One request, as it arrived."""

    request: inference_pb2.EncodeRequest
    way: str
    at_s: float
    limit_s: float
    metadata: dict[str, Any]


@dataclass
class FakeMesh:
    """Answers on `target`. Each request takes the next of `faults`: a Status, BREAK, HANG or None."""

    target: str = ""
    faults: deque[status_pb2.Status | str | None] = field(default_factory=deque)
    heard: list[Heard] = field(default_factory=list)
    most_in_flight: int = 0
    hold_until: int = 0
    """The first so many requests of a stream are answered when the last of them has arrived, last one first."""
    changes: list[models_pb2.WatchModelsResponse] = field(default_factory=list)
    lanes: queue_pb2.ListLanesResponse = field(default_factory=queue_pb2.ListLanesResponse)
    letters: list[queue_pb2.DeadLetter] = field(default_factory=list)
    """By sequence. Those of the reason MALFORMED_UNIT cannot be requeued."""
    restart: Callable[[], None] = lambda: None
    stop: Callable[[], None] = lambda: None

    @property
    def ways(self) -> list[str]:
        """How each request came: "Encode" or "Infer"."""
        return [heard.way for heard in self.heard]


class _Inference(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self, mesh: FakeMesh) -> None:
        self.mesh = mesh

    def _hear(self, request: inference_pb2.EncodeRequest, way: str, limit_s: float, context: Any) -> Any:
        metadata = dict(context.invocation_metadata())
        self.mesh.heard.append(Heard(request, way, time.monotonic(), limit_s, metadata))
        return self.mesh.faults.popleft() if self.mesh.faults else None

    async def Encode(self, request: inference_pb2.EncodeRequest, context: Any) -> inference_pb2.EncodeResponse:
        fault = self._hear(request, "Encode", context.time_remaining(), context)
        await _fail(fault, context)
        return answer(request)

    async def Infer(
        self, request_iterator: AsyncIterator[inference_pb2.InferRequest], context: Any
    ) -> AsyncIterator[inference_pb2.InferResponse]:
        answers: asyncio.Queue[inference_pb2.InferResponse | str | None] = asyncio.Queue()
        in_flight = 0

        async def one(request: inference_pb2.InferRequest) -> None:
            fault = self._hear(request.encode, "Infer", request.deadline_ms / 1000, context)
            if fault == HANG:
                return
            if fault == BREAK:
                await answers.put(BREAK)
            elif isinstance(fault, status_pb2.Status):
                await answers.put(inference_pb2.InferResponse(request_id=request.request_id, last=True, error=fault))
            else:
                await answers.put(
                    inference_pb2.InferResponse(request_id=request.request_id, last=True, encode=answer(request.encode))
                )

        async def read() -> None:
            nonlocal in_flight
            held: list[inference_pb2.InferRequest] = []
            hold_until = self.mesh.hold_until
            async for request in request_iterator:
                in_flight += 1
                self.mesh.most_in_flight = max(self.mesh.most_in_flight, in_flight)
                held.append(request)
                if len(held) >= hold_until:
                    hold_until = 0
                    while held:
                        await one(held.pop())
            await answers.put(None)

        reader = asyncio.create_task(read())
        try:
            while (response := await answers.get()) is not None:
                if isinstance(response, str):
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the stream breaks")
                    continue
                in_flight -= 1
                yield response
        finally:
            reader.cancel()


class _Models(models_pb2_grpc.ModelServiceServicer):
    def __init__(self, mesh: FakeMesh) -> None:
        self.mesh = mesh

    async def ListModels(self, request: models_pb2.ListModelsRequest, context: Any) -> models_pb2.ListModelsResponse:
        await _fail(self.mesh.faults.popleft() if self.mesh.faults else None, context)
        return models_pb2.ListModelsResponse(models=[MINILM])

    async def GetModel(self, request: models_pb2.GetModelRequest, context: Any) -> models_pb2.GetModelResponse:
        if request.model not in (MINILM.name, *MINILM.aliases):
            info = error_details_pb2.ErrorInfo(
                reason="MODEL_UNKNOWN", domain="shoal", metadata={"near": "minilm, default"}
            )
            await _fail(status(grpc.StatusCode.NOT_FOUND, f"no model {request.model!r}", info), context)
        return models_pb2.GetModelResponse(model=MINILM)

    async def WatchModels(
        self, request: models_pb2.WatchModelsRequest, context: Any
    ) -> AsyncIterator[models_pb2.WatchModelsResponse]:
        yield models_pb2.WatchModelsResponse(snapshot=True, models=[MINILM])
        for change in self.mesh.changes:
            yield change
        await _fail(self.mesh.faults.popleft() if self.mesh.faults else HANG, context)


class _Queue(queue_pb2_grpc.QueueServiceServicer):
    def __init__(self, mesh: FakeMesh) -> None:
        self.mesh = mesh

    async def ListLanes(self, request: queue_pb2.ListLanesRequest, context: Any) -> queue_pb2.ListLanesResponse:
        await _fail(self.mesh.faults.popleft() if self.mesh.faults else None, context)
        return self.mesh.lanes

    async def ListDeadLetters(
        self, request: queue_pb2.ListDeadLettersRequest, context: Any
    ) -> queue_pb2.ListDeadLettersResponse:
        found = [each for each in self.mesh.letters if each.sequence > request.after_sequence]
        found = [each for each in found if request.reason in ("", each.reason)]
        page = found[: request.limit or 100]
        return queue_pb2.ListDeadLettersResponse(letters=page, remaining=len(found) - len(page))

    async def RequeueDeadLetters(
        self, request: queue_pb2.RequeueDeadLettersRequest, context: Any
    ) -> queue_pb2.RequeueDeadLettersResponse:
        response = queue_pb2.RequeueDeadLettersResponse()
        chosen, missing = self._take(request)
        for sequence in missing:
            response.refusals.add(sequence=sequence, reason="DEAD_LETTER_NOT_FOUND", message="there is no such letter")
        for letter in chosen:
            if letter.reason == "MALFORMED_UNIT":
                self.mesh.letters.append(letter)
                response.refusals.add(sequence=letter.sequence, reason=letter.reason, message="it is no unit")
            else:
                response.requeued += 1
        response.refused = len(response.refusals)
        return response

    async def DropDeadLetters(
        self, request: queue_pb2.DropDeadLettersRequest, context: Any
    ) -> queue_pb2.DropDeadLettersResponse:
        chosen, missing = self._take(request)
        return queue_pb2.DropDeadLettersResponse(dropped=len(chosen), not_found=missing)

    def _take(self, request: Any) -> tuple[list[queue_pb2.DeadLetter], list[int]]:
        def is_chosen(letter: queue_pb2.DeadLetter) -> bool:
            return request.all or letter.sequence in request.sequences or letter.reason == request.reason

        chosen = [letter for letter in self.mesh.letters if is_chosen(letter)]
        self.mesh.letters = [letter for letter in self.mesh.letters if not is_chosen(letter)]
        return chosen, sorted(set(request.sequences) - {letter.sequence for letter in chosen})


async def _fail(fault: Any, context: Any) -> None:
    if fault == HANG:
        await asyncio.Event().wait()
    elif fault == BREAK:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "breaks")
    elif fault is not None:
        context.set_trailing_metadata(
            (("grpc-status-details-bin", fault.SerializeToString()), ("x-request-id", "from-metadata"))
        )
        codes = {code.value[0]: code for code in grpc.StatusCode}
        await context.abort(codes[fault.code], fault.message, context.trailing_metadata())


@contextmanager
def running() -> Iterator[FakeMesh]:
    """A fake mesh on a free port of 127.0.0.1, stopped afterwards."""
    mesh = FakeMesh()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # grpc.aio wakes every loop of the process
    thread = threading.Thread(target=loop.run_forever, name="fake mesh", daemon=True)
    thread.start()

    def call(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    async def start(address: str) -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", 65 * 2**20), ("grpc.so_reuseport", 0)])
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(_Inference(mesh), server)
        models_pb2_grpc.add_ModelServiceServicer_to_server(_Models(mesh), server)
        queue_pb2_grpc.add_QueueServiceServicer_to_server(_Queue(mesh), server)
        port = server.add_insecure_port(address)
        await server.start()
        return server, port

    server, port = call(start("127.0.0.1:0"))
    mesh.target = f"127.0.0.1:{port}"
    servers = [server]

    def stop() -> None:
        while servers:
            call(servers.pop().stop(None))

    def restart() -> None:
        stop()
        servers.append(call(start(mesh.target))[0])

    mesh.stop, mesh.restart = stop, restart
    try:
        yield mesh
    finally:
        stop()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
