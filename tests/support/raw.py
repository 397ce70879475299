"""A client that sends what it is given: for input that the SDK would refuse itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from shoal.v1 import inference_pb2


class RawClient:
    """InferenceService over raw request bytes."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.encode_bytes = channel.unary_unary(
            "/shoal.v1.InferenceService/Encode", response_deserializer=inference_pb2.EncodeResponse.FromString
        )
        self._infer = channel.stream_stream(
            "/shoal.v1.InferenceService/Infer", response_deserializer=inference_pb2.InferResponse.FromString
        )

    def encode(self, request: inference_pb2.EncodeRequest, timeout: float = 30) -> inference_pb2.EncodeResponse:
        """A whole request."""
        return self.encode_bytes(request.SerializeToString(), timeout=timeout)

    def refused(self, request: inference_pb2.EncodeRequest | bytes, timeout: float = 30) -> Refusal:
        """The refusal that a request must meet."""
        payload = request if isinstance(request, bytes) else request.SerializeToString()
        try:
            self.encode_bytes(payload, timeout=timeout)
        except grpc.RpcError as error:
            return Refusal(error)
        raise AssertionError("the request was answered instead of refused")

    def infer(
        self, requests: Iterable[inference_pb2.InferRequest | bytes], timeout: float = 30
    ) -> Iterator[inference_pb2.InferResponse]:
        """A stream of requests and its answers."""
        payloads = (r if isinstance(r, bytes) else r.SerializeToString() for r in requests)
        return self._infer(payloads, timeout=timeout)


class Refusal:
    """A typed end of a call, taken apart."""

    def __init__(self, error: grpc.RpcError) -> None:
        self.code: grpc.StatusCode = error.code()  # pyright: ignore[reportAttributeAccessIssue]
        self.text: str = error.details()  # pyright: ignore[reportAttributeAccessIssue]
        status = rpc_status.from_call(error)  # pyright: ignore[reportArgumentType]
        self.status = status or status_pb2.Status()

    @property
    def reason(self) -> str:
        """ErrorInfo's reason."""
        return self._detail(error_details_pb2.ErrorInfo()).reason

    @property
    def fields(self) -> list[str]:
        """Paths of the fields that BadRequest names."""
        return [v.field for v in self._detail(error_details_pb2.BadRequest()).field_violations]

    @property
    def near(self) -> list[str]:
        """Near names that ErrorInfo offers."""
        return [n for n in self._detail(error_details_pb2.ErrorInfo()).metadata["near"].split(",") if n]

    @property
    def request_id(self) -> str:
        """RequestInfo's id."""
        return self._detail(error_details_pb2.RequestInfo()).request_id

    def _detail(self, empty):
        for packed in self.status.details:
            if packed.Unpack(empty):
                return empty
        return empty
