"""The worker's process: its broker session, its health service, and the worker itself."""

from __future__ import annotations

import asyncio

from shoal_common import grpc_server, telemetry
from shoal_common.nats_session import connected_session
from shoal_common.process import Stop
from shoal_common.registry_view import RegistryView
from shoal_worker.settings import WorkerSettings
from shoal_worker.worker import Worker


async def main(settings: WorkerSettings, stop: Stop) -> None:
    """Runs until `stop`."""
    tracer = telemetry.configure("worker", settings)
    async with (
        grpc_server.serving(settings.listen, [], lambda _: None) as server,
        connected_session(settings, settings.worker, stop) as session,
    ):
        view = RegistryView(session, settings.registry, watcher=settings.worker)
        worker = Worker(settings, session, view, tracer)
        health = asyncio.create_task(_tell_health(server, worker))
        try:
            await worker.run(stop)
        finally:
            health.cancel()


async def _tell_health(server: grpc_server.Server, worker: Worker) -> None:
    while True:
        await worker.serving_changed.wait()
        worker.serving_changed.clear()
        await server.set_serving(worker.is_serving)
