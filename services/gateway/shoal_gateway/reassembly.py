"""Putting a request's results together from those of its units: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.v1 import inference_pb2
from shoal.view.v1 import view_pb2
from shoal.work.v1 import work_pb2
from shoal_common.blobs import RESULTS, BadReference, Blob, references
from shoal_gateway.units import Run


class WrongResults(Exception):
    """A unit was answered with another number of results than it has items, or with blobs that are not its own."""


class UnitResults(NamedTuple):
    """A unit's results in the order of its items."""

    results: list[bytes]
    blobs: list[Blob]
    """Those whose bytes lie in object storage; their place in `results` is empty."""


class UnitAnswer:
    """One unit's results, out of parts that may come twice, out of order and from several tries.

    Parts of different tries, (worker, attempt), are never mixed; the first try that is complete counts.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._tries: dict[tuple[str, int], dict[int, work_pb2.UnitResult]] = {}

    def add(self, part: work_pb2.UnitResult) -> UnitResults | None:
        """The unit's results once a try is complete, else None.

        Raises:
            WrongResults: a complete try holds too few, too many or displaced results, or wrong blobs.
        """
        if part.last and part.sequence == 0:
            return self._whole([part])
        parts = self._tries.setdefault((part.worker, part.attempt), {})
        parts.setdefault(part.sequence, part)
        whole = [parts[sequence] for sequence in sorted(parts)]
        if not whole[-1].last or len(whole) != whole[-1].sequence + 1:
            return None
        return self._whole(whole)

    def _whole(self, parts: Sequence[work_pb2.UnitResult]) -> UnitResults:
        results: list[bytes] = []
        blobs: list[work_pb2.Blob] = []
        for part in parts:
            if part.offset != len(results):
                raise WrongResults(f"results of unit {part.unit_id} go on at {part.offset}, not at {len(results)}")
            results.extend(part.results)
            blobs.extend(part.blobs)
        if len(results) != len(self.run.items):
            raise WrongResults(f"unit {parts[0].unit_id} has {len(self.run.items)} items and {len(results)} results")
        try:
            return UnitResults(results, list(references(RESULTS, parts[0].unit_id, blobs, len(results))))
        except BadReference as error:
            raise WrongResults(f"unit {parts[0].unit_id}: {error}") from None


class Answer:
    """A request's results in request order."""

    def __init__(self, count: int, written: Mapping[int, bytes], units: Mapping[str, Run]) -> None:
        self._results: list[bytes] = [b""] * count
        for index, result in written.items():
            self._results[index] = result
        self._open = {unit_id: UnitAnswer(run) for unit_id, run in units.items()}
        self._provenance = inference_pb2.Provenance()
        self.blobs: list[tuple[int, Blob]] = []
        """Results that lie in object storage, by the item's index in the request."""

    @property
    def open_units(self) -> list[str]:
        """Ids of the units that are not answered yet."""
        return list(self._open)

    def is_open(self, unit_id: str) -> bool:
        """Whether a unit is not answered yet."""
        return unit_id in self._open

    def add(self, part: work_pb2.UnitResult) -> bool:
        """Takes a unit's result or a part of it; True once every unit is answered. Others' are ignored.

        Raises:
            WrongResults: as `UnitAnswer.add`.
        """
        unit = self._open.get(part.unit_id)
        if unit is None:
            return not self._open
        whole = unit.add(part)
        if whole is None:
            return False
        del self._open[part.unit_id]
        first, count = unit.run.first_index, len(whole.results)
        self._results[first : first + count] = whole.results
        self.blobs.extend((first + blob.index, blob) for blob in whole.blobs)
        if not self._provenance.runs:
            self._provenance.runtime, self._provenance.device = part.runtime, part.device
        self._provenance.runs.add(
            first_index=first,
            count=count,
            worker=part.worker,
            attempt=part.attempt,
            queue_ms=part.queue_ms,
            compute_ms=part.compute_ms,
        )
        return not self._open

    def give_up(self, unit_id: str, result: bytes) -> bool:
        """A unit of one item gets a result that the gateway wrote; True once every unit is answered."""
        unit = self._open.pop(unit_id, None)
        if unit is not None:
            self._results[unit.run.first_index] = result
        return not self._open

    def put(self, index: int, result: bytes) -> None:
        """An item's result, read from object storage or written in its place."""
        self._results[index] = result

    def response(self, model: str, revision: str) -> bytes:
        """The method's response message; every unit must be answered."""
        provenance = self._provenance
        provenance.model, provenance.revision = model, revision
        if len(provenance.runs) > 1:
            provenance.runs.sort(key=lambda run: run.first_index)
        view = view_pb2.ResponseView(provenance=provenance.SerializeToString(), results=self._results)
        return view.SerializeToString()
