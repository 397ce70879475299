"""Wires the LoRA store: storage and the gRPC server."""

from __future__ import annotations

import grpc

from shoal.lora.v1 import lora_pb2, lora_pb2_grpc
from shoal_common import grpc_server
from shoal_common.process import Stop
from shoal_lora_store.handlers import LoraStoreHandlers
from shoal_lora_store.settings import LoraStoreSettings
from shoal_lora_store.storage import Storage

SERVICE = lora_pb2.DESCRIPTOR.services_by_name["LoraStoreService"].full_name


async def main(settings: LoraStoreSettings, stop: Stop) -> None:
    """Runs the LoRA store until it is told to stop."""
    storage = Storage(settings.blobs)
    await storage.clean()

    def add(server: grpc.aio.Server) -> None:
        lora_pb2_grpc.add_LoraStoreServiceServicer_to_server(LoraStoreHandlers(storage), server)

    async with grpc_server.serving(settings.listen, [SERVICE], add) as server:
        await server.set_serving(True)
        await stop.wait()
