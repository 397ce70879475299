"""Wires the scheduler: session, lease, registry view, the desk, and the gRPC server."""

from __future__ import annotations

import asyncio
import time

import grpc

from shoal.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from shoal_common import grpc_server
from shoal_common.lease import Lease
from shoal_common.nats_session import connected_session
from shoal_common.process import Stop
from shoal_common.registry_view import RegistryView
from shoal_scheduler.desk import Desk
from shoal_scheduler.fleet import Fleet, Wanted
from shoal_scheduler.handlers import SchedulerHandlers
from shoal_scheduler.settings import SchedulerSettings

SERVICE = scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"].full_name


async def main(settings: SchedulerSettings, stop: Stop) -> None:
    """Runs the scheduler until it is told to stop."""
    desk = Desk(Fleet(time.monotonic), time.monotonic)
    async with connected_session(settings, settings.replica, stop) as session, asyncio.TaskGroup() as streams:
        lease = Lease(session, "scheduler", settings.replica, settings.replicas)
        view = RegistryView(session, settings.registry, settings.replica)
        view.on_change(
            lambda: desk.want(
                Wanted(m.name, m.lane.pool, m.lane.token, m.digest, m.profile.runtimes) for m in view.models.values()
            )
        )

        def add(server: grpc.aio.Server) -> None:
            scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(SchedulerHandlers(desk, streams), server)

        async with grpc_server.serving(settings.listen, [SERVICE], add) as server:
            async with lease.kept(), asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(view.follow()),
                    group.create_task(desk.show_changes()),
                    group.create_task(desk.expire_silent()),
                    group.create_task(_lead(lease, view, desk, server)),
                ]
                await stop.wait()
                for task in tasks:
                    task.cancel()
            desk.close()


async def _lead(lease: Lease, view: RegistryView, desk: Desk, server: grpc_server.Server) -> None:
    """Opens the desk while the lease is held, for ever; the first time not before the models are known."""
    await view.ready.wait()
    while True:
        await lease.wait_held()
        desk.open()
        await server.set_serving(True)
        await lease.wait_lost()
        await server.set_serving(False)
        desk.close()
