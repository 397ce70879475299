"""Stands for any process of a mesh in tests of the supervisor: healthy at once, and nothing else.

python fake_process.py NAME: serves health on SHOAL_LISTEN or --socket, and as the gateway one ready model.
FAKE_FAULTS is a JSON object from names to what they do wrong: exit (with that status) or fail (the model).
"""

from __future__ import annotations

import json
import os
import sys

import grpc

from shoal.v1 import models_pb2, models_pb2_grpc
from shoal_common import grpc_server, process
from shoal_common.settings import ServiceSettings

MODEL = "minilm"


class Models(models_pb2_grpc.ModelServiceServicer):
    def __init__(self, error: str) -> None:
        state = models_pb2.MODEL_STATE_FAILED if error else models_pb2.MODEL_STATE_READY
        self._model = models_pb2.Model(name=MODEL, state=state, error=error)

    async def WatchModels(self, request: object, context: grpc.aio.ServicerContext):
        yield models_pb2.WatchModelsResponse(snapshot=True)
        yield models_pb2.WatchModelsResponse(models=[self._model])

    async def ListModels(self, request: object, context: grpc.aio.ServicerContext):
        return models_pb2.ListModelsResponse(models=[self._model])


def main(name: str) -> None:
    fault = json.loads(os.environ.get("FAKE_FAULTS", "{}")).get(name, {})
    if "exit" in fault:
        print(f"{name} was told to fail", file=sys.stderr)
        sys.exit(fault["exit"])
    if "--socket" in sys.argv:
        os.environ["SHOAL_LISTEN"] = f"unix:{sys.argv[sys.argv.index('--socket') + 1]}"

    async def serve(settings: ServiceSettings, stop: process.Stop) -> None:
        def add(server: grpc.aio.Server) -> None:
            if name == "gateway":
                models_pb2_grpc.add_ModelServiceServicer_to_server(Models(fault.get("fail", "")), server)

        async with grpc_server.serving(settings.listen, [], add) as server:
            await server.set_serving(True)
            await stop.wait()

    process.run(name, ServiceSettings, serve)


if __name__ == "__main__":
    main(sys.argv[1])
