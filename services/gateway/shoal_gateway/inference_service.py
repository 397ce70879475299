"""InferenceService on raw bytes: garbage must fail its own request, and items are never parsed."""

from __future__ import annotations

import grpc

from shoal_common import call_ends
from shoal_common.request_ids import METADATA_KEY, request_id
from shoal_gateway import call_metadata, deadlines
from shoal_gateway.auth import Auth, permitted
from shoal_gateway.dispatch import Caller, Dispatch
from shoal_gateway.infer_stream import InferStream

NAME = "shoal.v1.InferenceService"


class InferenceService:
    """Translates calls into requests and errors into statuses."""

    def __init__(self, dispatch: Dispatch, auth: Auth) -> None:
        self._dispatch = dispatch
        self._auth = auth
        self._streams: set[InferStream] = set()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the methods with neither deserializers nor serializers."""
        methods = {
            "Encode": grpc.unary_unary_rpc_method_handler(self.encode),
            "Infer": grpc.stream_stream_rpc_method_handler(self.infer),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, methods),))

    def stop(self) -> None:
        """Lets streams end once what they have taken is answered: idle ones must not hold up a shutdown."""
        for stream in self._streams:
            stream.stop()

    async def encode(self, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """InferenceService.Encode."""
        budget_s = deadlines.budget_s(context.time_remaining())
        metadata = call_metadata.read(context)
        name = request_id(metadata.request_id)
        try:
            identity = permitted(self._auth.identify(metadata.authorization), "infer")
            with self._dispatch.room.taken(len(raw)):
                response = await self._dispatch.encode(raw, Caller(name, budget_s, metadata.traceparent, identity))
        except Exception as error:
            await call_ends.abort(context, call_ends.typed(error, name), name)
            raise  # abort has raised already
        context.set_trailing_metadata(((METADATA_KEY, name),))
        return response

    async def infer(self, _: object, context: grpc.aio.ServicerContext) -> None:
        """InferenceService.Infer."""
        stream = InferStream(self._dispatch, self._auth, context)
        self._streams.add(stream)
        try:
            await stream.serve()
        finally:
            self._streams.discard(stream)
