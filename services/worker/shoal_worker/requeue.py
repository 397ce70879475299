"""Units on their way back to the queue: asked back from the sidecar, published anew, then acked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from shoal.sidecar.v1 import sidecar_pb2
from shoal.work.v1 import work_pb2
from shoal_common import lanes, limits, logs, telemetry
from shoal_common.nats_session import ApiError, BrokerTimeout, Session
from shoal_worker import intake, metrics
from shoal_worker.acks import Acks
from shoal_worker.attach import Attach
from shoal_worker.decisions.dispatch import Dispatch
from shoal_worker.decisions.unit import HeldUnit, Stage
from shoal_worker.held import Held

log = logs.get("requeue")
PUBLISH_S = 1.0
"""A unit that is not stored by then runs here after all."""

assert PUBLISH_S + 2 * limits.IN_PROGRESS_PERIOD_S < limits.ACK_WAIT_S, "it is not delivered again meanwhile"


class Requeue:
    """One copy of a unit counts at any time: here until the broker has stored the next one, then that.

    A republish is a new message with `put_backs` counted up, since a nak would count as a failed delivery.
    """

    def __init__(
        self,
        session: Session,
        attach: Attach,
        held: Held,
        dispatch: Dispatch,
        acks: Acks,
        group: asyncio.TaskGroup,
        run_here: Callable[[HeldUnit], None],
        let_go: Callable[[list[HeldUnit], str], None],
        settled: Callable[[], None],
    ) -> None:
        self._session = session
        self._attach = attach
        self._held = held
        self._dispatch = dispatch
        self._acks = acks
        self._group = group
        self._run_here = run_here
        self._let_go = let_go
        self._settled = settled
        self._publishing = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way."""
        return not self._publishing and not self._held.at(Stage.RETURNING)

    def start(self, units: list[HeldUnit]) -> None:
        """Asks for units whose content the sidecar has."""
        for unit in units:
            self._dispatch.leave(unit, Stage.RETURNING)
        returns = sidecar_pb2.ReturnUnits(unit_ids=[unit.id for unit in units])
        self._attach.send(sidecar_pb2.AttachRequest(return_units=returns))

    def returned(self, returned: sidecar_pb2.Returned) -> None:
        """The sidecar gives units back whole, and has forgotten them."""
        now_s = time.monotonic()
        for one in returned.units:
            message = work_pb2.Unit.FromString(one.unit)
            unit = self._held.get(message.id)
            if unit is None or unit.stage is not Stage.RETURNING:
                continue  # The stream that it was asked back on is gone.
            # From now on a message with its id is a new one: the broker may deliver it before it says that it has it.
            self._held.remove(unit)
            unit.payload = one.unit
            if reason := intake.unwanted(unit, self._held, now_s):
                self._let_go([unit], reason)
            else:
                self._publishing += 1
                self._group.create_task(self._publish(unit, message))

    async def _publish(self, unit: HeldUnit, message: work_pb2.Unit) -> None:
        message.put_backs += 1
        left_s = unit.deadline_s - time.monotonic()
        message.remaining_ms = max(1, int(left_s * 1e3))
        try:
            await self._session.publish(
                lanes.work_subject(unit.lane, unit.work_class),
                message.SerializeToString(),
                msg_id=f"{unit.id}/{message.put_backs}",
                timeout_s=min(PUBLISH_S, left_s),
                headers={telemetry.TRACEPARENT: unit.traceparent} if unit.traceparent else None,
            )
        except (ApiError, BrokerTimeout) as error:
            log.warning("a unit could not be put back on the queue", unit=unit.id, error=str(error))
            self._stay(unit)
        else:
            self._acks.ack(unit.ack_subject)
            metrics.put_backs.add(1, kind="to_queue")
        finally:
            self._publishing -= 1
            self._settled()

    def _stay(self, unit: HeldUnit) -> None:
        """A unit runs here after all, unless its next copy is here already."""
        if self._held.get(unit.id) is not None:
            self._acks.ack(unit.ack_subject)
            return
        unit.stage, unit.is_counted = Stage.PARKED, False
        unit.put_backs = limits.PUT_BACKS  # Once was enough.
        self._held.add(unit)
        self._acks.in_progress(unit)
        self._run_here(unit)
