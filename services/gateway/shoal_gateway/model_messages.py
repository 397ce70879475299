"""A registered model and its lane's state as clients see them: pure."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.scheduler.v1 import scheduler_pb2
from shoal.v1 import models_pb2
from shoal_common.registry_view import RegisteredModel
from shoal_gateway.encode_options import encode_outputs
from shoal_gateway.lane_states import LaneStates

STATES: dict[int, models_pb2.ModelState] = {
    scheduler_pb2.RESIDENCY_ABSENT: models_pb2.MODEL_STATE_WAITING,
    scheduler_pb2.RESIDENCY_LOADING: models_pb2.MODEL_STATE_LOADING,
    scheduler_pb2.RESIDENCY_READY: models_pb2.MODEL_STATE_READY,
    scheduler_pb2.RESIDENCY_FAILED: models_pb2.MODEL_STATE_FAILED,
}


def model_messages(
    models: Mapping[str, RegisteredModel], aliases: Mapping[str, str], lane_states: LaneStates
) -> dict[str, models_pb2.Model]:
    """Every model by name, in order."""
    return {name: model_message(models[name], aliases, lane_states) for name in sorted(models)}


def model_message(model: RegisteredModel, aliases: Mapping[str, str], lane_states: LaneStates) -> models_pb2.Model:
    """One model. Its state is not known while the scheduler has not been heard of late."""
    encode = model.profile.encode
    message = models_pb2.Model(
        name=model.name,
        revision=model.digest,
        encode_outputs=encode_outputs(model),
        dimensions=encode.dimensions,
        default_max_tokens=encode.default_max_tokens,
        max_tokens=encode.max_tokens,
        normalize=encode.normalize,
        aliases=sorted(alias for alias, name in aliases.items() if name == model.name),
    )
    lane = lane_states.get(model.lane.token)
    if lane is not None:
        message.state = STATES.get(lane.state.residency, models_pb2.MODEL_STATE_UNSPECIFIED)
        message.error = lane.state.error if message.state == models_pb2.MODEL_STATE_FAILED else ""
    elif lane_states.known:
        message.state = models_pb2.MODEL_STATE_WAITING
    return message
