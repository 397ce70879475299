"""Wires the LoRA store: storage, its gRPC server, and the sweeping of what requests left in object storage."""

from __future__ import annotations

import asyncio

import grpc

from shoal.lora.v1 import lora_pb2, lora_pb2_grpc
from shoal_common import grpc_server
from shoal_common.blobs import Blobs
from shoal_common.process import Stop
from shoal_lora_store.handlers import LoraStoreHandlers
from shoal_lora_store.settings import LoraStoreSettings
from shoal_lora_store.storage import Storage
from shoal_lora_store.sweeper import Sweeper

SERVICE = lora_pb2.DESCRIPTOR.services_by_name["LoraStoreService"].full_name


async def main(settings: LoraStoreSettings, stop: Stop) -> None:
    """Runs the LoRA store until it is told to stop."""
    storage = Storage(settings.blobs)
    await storage.clean()

    def add(server: grpc.aio.Server) -> None:
        lora_pb2_grpc.add_LoraStoreServiceServicer_to_server(LoraStoreHandlers(storage), server)

    async with asyncio.TaskGroup() as tasks:
        sweeping = tasks.create_task(Sweeper(Blobs(settings.blobs)).run())
        async with grpc_server.serving(settings.listen, [SERVICE], add) as server:
            await server.set_serving(True)
            await stop.wait()
        sweeping.cancel()
