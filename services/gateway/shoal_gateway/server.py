"""Wires the gateway: broker session, registry and lane watches, the queue's two ends, and the services."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

from shoal.v1 import models_pb2_grpc, queue_pb2_grpc
from shoal_common import grpc_server, telemetry
from shoal_common.blob_removal import BlobRemoval
from shoal_common.blobs import Blobs
from shoal_common.nats_session import Session, connected_session
from shoal_common.process import Stop
from shoal_common.registry_view import RegistryView
from shoal_gateway import inference_service, kept_memory, model_service, queue_service
from shoal_gateway.auth import Auth
from shoal_gateway.blob_items import BlobItems
from shoal_gateway.blob_results import BlobResults
from shoal_gateway.cancellations import Cancellations
from shoal_gateway.dispatch import Dispatch
from shoal_gateway.inference_service import InferenceService
from shoal_gateway.known_models import KnownModels
from shoal_gateway.lane_states import LaneStates
from shoal_gateway.model_service import ModelService
from shoal_gateway.pacing import Pacing
from shoal_gateway.queue_service import QueueService
from shoal_gateway.results import Results
from shoal_gateway.settings import GatewaySettings
from shoal_gateway.token_file import TokenFile
from shoal_gateway.traces import Traces

SERVICES = (inference_service.NAME, model_service.NAME, queue_service.NAME)


async def main(settings: GatewaySettings, stop: Stop) -> None:
    """Serves until it is told to stop; calls in flight are given time to end."""
    kept_memory.keep()
    async with connected_session(settings, f"gateway-{settings.gateway}", stop) as session:
        await _serve(settings, session, stop)


async def _serve(settings: GatewaySettings, session: Session, stop: Stop) -> None:
    watcher = f"gateway {settings.gateway}"
    registry = RegistryView(session, settings.registry, watcher)
    lane_states = LaneStates(settings.scheduler, watcher)
    blobs = Blobs(settings.blobs) if settings.blobs else None
    removal = BlobRemoval(blobs)
    results = Results(session, settings.gateway, removal)
    cancellations = Cancellations(session)
    traces = Traces(telemetry.configure("gateway", settings), settings.trace_ratio)
    known = KnownModels(registry)
    blob_items, blob_results = BlobItems(blobs, removal, cancellations), BlobResults(blobs, removal)
    pacing = Pacing(lane_states)
    dispatch = Dispatch(session, known, lane_states, results, cancellations, traces, blob_items, blob_results, pacing)
    token_file = TokenFile(Path(settings.tokens), settings.operator_sha256) if settings.tokens else None
    auth = Auth(token_file)
    inference, models = InferenceService(dispatch, auth), ModelService(known, lane_states, auth)
    queue = QueueService(session, known, lane_states, settings.scheduler, auth)
    registry.on_change(models.wake)
    lane_states.on_change(models.wake)
    lane_states.on_change(pacing.lanes_changed)
    lane_states.on_change(dispatch.lanes_changed)

    def add(server: grpc.aio.Server) -> None:
        inference.add_to(server)
        models_pb2_grpc.add_ModelServiceServicer_to_server(models, server)
        queue_pb2_grpc.add_QueueServiceServicer_to_server(queue, server)

    await results.start()
    async with asyncio.TaskGroup() as tasks:
        following = [tasks.create_task(run()) for run in (registry.follow, cancellations.run, removal.run)]
        if token_file is not None:
            following.append(tasks.create_task(token_file.follow()))
        if settings.scheduler:
            following.append(tasks.create_task(lane_states.follow()))
        async with grpc_server.serving(settings.listen, SERVICES, add) as server:
            following.append(tasks.create_task(_announce(registry, server)))
            await stop.wait()
            inference.stop()
            models.stop()
        for task in following:
            task.cancel()


async def _announce(registry: RegistryView, server: grpc_server.Server) -> None:
    """SERVING from the first registry snapshot on; it stays, whatever becomes of the registry."""
    await registry.ready.wait()
    await server.set_serving(True)
