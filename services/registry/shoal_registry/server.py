"""Wires the registry: session, lease, state, the queue's keeper, and the gRPC server."""

from __future__ import annotations

import asyncio

import grpc

from shoal.registry.v1 import registry_pb2, registry_pb2_grpc
from shoal_common import grpc_server, registry_state, telemetry
from shoal_common.lease import Lease
from shoal_common.nats_session import connected_session
from shoal_common.process import Stop
from shoal_registry import catalogue
from shoal_registry.handlers import RegistryHandlers
from shoal_registry.leadership import Leadership
from shoal_registry.models import Models
from shoal_registry.queue_keeper import QueueKeeper
from shoal_registry.replica import Replica
from shoal_registry.settings import RegistrySettings
from shoal_registry.state import State
from shoal_registry.watchers import Watchers

SERVICE = registry_pb2.DESCRIPTOR.services_by_name["RegistryService"].full_name


async def main(settings: RegistrySettings, stop: Stop) -> None:
    """Runs the registry until it is told to stop."""
    telemetry.configure_metrics("registry")
    texts = catalogue.chosen(settings.first_models, settings.catalogue)
    async with connected_session(settings, settings.replica, stop) as session:
        lease = Lease(session, "registry", settings.replica, settings.replicas)
        leadership = Leadership(lease)
        state, watchers = State(), Watchers()
        bucket = registry_state.bucket(session, settings.replicas)
        replica = Replica(bucket, state, watchers, leadership.may_write)
        keeper = QueueKeeper(session, state, settings.replicas, leadership.may_write)
        models = Models(replica, keeper.prepare, check_sources=settings.check_sources)
        session.on_reconnect(keeper.wake)

        def add(server: grpc.aio.Server) -> None:
            registry_pb2_grpc.add_RegistryServiceServicer_to_server(RegistryHandlers(replica, models), server)

        async with grpc_server.serving(settings.listen, [SERVICE], add) as server:
            async with lease.kept(), asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(replica.follow()),
                    group.create_task(leadership.run(replica, keeper, models, texts)),
                    group.create_task(keeper.run()),
                    group.create_task(_serve_when_loaded(replica, server)),
                ]
                await stop.wait()
                for task in tasks:
                    task.cancel()
            watchers.close()


async def _serve_when_loaded(replica: Replica, server: grpc_server.Server) -> None:
    await replica.loaded.wait()
    await server.set_serving(True)
