"""Lanes and dead letters as those who run the mesh see them: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.message import DecodeError

from shoal.scheduler.v1 import scheduler_pb2
from shoal.v1 import inference_pb2, models_pb2, queue_pb2
from shoal.work.v1 import work_pb2
from shoal_common.dead_letters import Letter
from shoal_common.lanes import CLASSES
from shoal_common.queue_survey import Head, Queue, QueueKey
from shoal_common.registry_view import RegisteredModel
from shoal_gateway.lane_states import LaneStates
from shoal_gateway.model_messages import STATES

PRIORITIES: dict[str, inference_pb2.Priority] = {
    CLASSES[work_pb2.WORK_CLASS_INTERACTIVE]: inference_pb2.PRIORITY_INTERACTIVE,
    CLASSES[work_pb2.WORK_CLASS_BULK]: inference_pb2.PRIORITY_BULK,
}


def lane_messages(
    models: Mapping[str, RegisteredModel],
    queues: Mapping[QueueKey, Queue],
    oldest: Mapping[QueueKey, Head],
    lane_states: LaneStates,
    workers: Sequence[scheduler_pb2.ReportRequest],
    now_s: float,
) -> list[queue_pb2.Lane]:
    """Every lane of a registered model, by name, then those that the broker has beside them, by token.

    `now_s` is the broker's clock, which also says when the `oldest` units were published.
    """
    by_token = {models[name].lane.token: models[name] for name in sorted(models)}
    others = sorted({key.lane for key in queues} - by_token.keys())
    lanes = []
    for token in (*by_token, *others):
        lane = queue_pb2.Lane(token=token, workers=_workers(token, workers))
        if model := by_token.get(token):
            lane.model, lane.revision, lane.pool = model.name, model.digest, model.lane.pool
        _add_state(lane, lane_states)
        for work_class in PRIORITIES:
            key = QueueKey(token, work_class)
            lane.classes.append(_class(work_class, queues.get(key), oldest.get(key), now_s))
        lanes.append(lane)
    return lanes


def letter_message(letter: Letter, models: Iterable[RegisteredModel]) -> queue_pb2.DeadLetter:
    """A dead letter; what its unit says of itself is left out where that cannot be read."""
    content = letter.content
    message = queue_pb2.DeadLetter(
        sequence=letter.sequence,
        kept_unix_ms=letter.kept_unix_ms,
        reason=content.reason,
        detail=content.detail,
        model=next((model.name for model in models if model.lane.token == letter.lane), ""),
        lane=letter.lane,
        priority=PRIORITIES.get(letter.work_class, inference_pb2.PRIORITY_UNSPECIFIED),
        deliveries=content.deliveries,
        size_bytes=content.unit_bytes,
    )
    try:
        unit = work_pb2.Unit.FromString(content.unit)
    except DecodeError:
        return message
    message.unit_id, message.request_id, message.tenant = unit.id, unit.request_id, unit.tenant
    message.items = len(unit.items)
    return message


def _class(work_class: str, queue: Queue | None, oldest: Head | None, now_s: float) -> queue_pb2.LaneClass:
    message = queue_pb2.LaneClass(priority=PRIORITIES[work_class])
    if queue is not None:
        message.waiting_units = queue.waiting_units
        message.in_flight_units = queue.in_flight_units
        message.open = queue.has_consumer
    if oldest is not None:
        message.oldest_waiting_ms = max(0, round((now_s - oldest.published_s) * 1000))
    return message


def _add_state(lane: queue_pb2.Lane, lane_states: LaneStates) -> None:
    known = lane_states.get(lane.token)
    if known is not None:
        state = known.state
        lane.state = _state(state.residency)
        lane.error = state.error
        lane.queued_ms, lane.wait_ms = state.queued_ms, state.wait_ms
        lane.drain_ms_per_second = state.drain_ms_per_second
    elif lane_states.known:
        lane.state = models_pb2.MODEL_STATE_WAITING


def _workers(token: str, reports: Sequence[scheduler_pb2.ReportRequest]) -> list[queue_pb2.LaneWorker]:
    return [
        queue_pb2.LaneWorker(
            worker=report.worker,
            machine=report.machine,
            device=report.device.name,
            state=_state(lane.residency),
            error=lane.error,
            progress=lane.progress,
            backlog_ms=lane.backlog_ms,
            busy_share=report.busy_share,
        )
        for report in reports
        for lane in report.lanes
        if lane.lane == token
    ]


def _state(residency: int) -> models_pb2.ModelState:
    return STATES.get(residency, models_pb2.MODEL_STATE_UNSPECIFIED)
