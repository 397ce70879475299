"""Keeps the sidecar holding what the registry, the settings and the scheduler's plan ask for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from shoal.sidecar.v1 import sidecar_pb2
from shoal_common import limits, logs
from shoal_common.registry_view import RegisteredModel, RegistryView
from shoal_common.weights import WeightsError
from shoal_worker import loader
from shoal_worker.attach import Attach
from shoal_worker.residency import Residency, wanted
from shoal_worker.settings import WorkerSettings

log = logs.get("models")
LOST_PAUSE_S = 0.1
"""A model that the sidecar lost is asked for again after so long."""


class Models:
    """Carries out what `Residency` decides; `changed` is called after every change of a model's state."""

    def __init__(
        self,
        settings: WorkerSettings,
        view: RegistryView,
        residency: Residency,
        attach: Attach,
        group: asyncio.TaskGroup,
        in_use: Callable[[], set[str]],
        empty_s: Callable[[str, float], float],
        changed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._view = view
        self._residency = residency
        self._attach = attach
        self._group = group
        self._in_use = in_use
        self._empty_s = empty_s
        self._changed = changed
        self._plan: frozenset[str] | None = None

    def planned(self, digests: frozenset[str]) -> None:
        """The scheduler's plan came."""
        if digests != self._plan:
            self._plan = digests
            self.refresh()

    def registry_changed(self) -> None:
        """The registry holds other models than before: what failed may succeed now."""
        self._residency.retry_failed()
        self.refresh()

    def refresh(self) -> None:
        """The registry, the plan or the sidecar changed."""
        if not self._view.ready.is_set():
            return
        pool, device = self._settings.pool, self._settings.device
        registered = {model.digest: model for model in self._view.models.values() if model.lane.pool == pool}
        digests = wanted(self._view, pool, device, self._settings.held_models, self._plan)
        self._residency.want(registered, digests, time.monotonic())
        self.step()
        self._changed()

    def step(self) -> None:
        """Loads what is due and lets go what nobody needs."""
        if not self._attach.is_up:
            return
        if gone := self._residency.to_unload(self._in_use(), self._empty_s):
            self._unload(gone)
            self._residency.retry_failed()  # There is room that was not there.
        for model in self._residency.to_load(time.monotonic()):
            self._group.create_task(self._load(model))

    def heard(self, status: sidecar_pb2.ModelStatus) -> None:
        """The sidecar tells how a model stands."""
        digest = status.profile_digest
        if self._residency.get(digest) is None:
            return  # Let go meanwhile.
        if status.state == sidecar_pb2.MODEL_STATE_READY:
            log.info("model is ready", digest=digest, memory_bytes=status.memory_bytes)
            self._residency.ready(digest, status.memory_bytes)
        elif status.state == sidecar_pb2.MODEL_STATE_FAILED:
            self._fail(digest, status.error)
        else:
            self._residency.progressed(digest, status.progress)
        self._changed()

    def lost(self, profile_digest: str) -> None:
        """The sidecar refused work since a model is not there."""
        if self._residency.is_ready(profile_digest):
            self._residency.lost(profile_digest)
            asyncio.get_running_loop().call_later(LOST_PAUSE_S, self.step)
            self._changed()

    def all_lost(self) -> None:
        """The sidecar is gone."""
        self._residency.all_lost()
        self._changed()

    async def _load(self, model: RegisteredModel) -> None:
        try:
            found = await loader.find(model.profile)
        except Exception as error:  # whatever is in the files, only this model fails
            unforeseen = not isinstance(error, (WeightsError, OSError))
            text = repr(error) if unforeseen else str(error)
            self._fail(model.digest, text[: limits.ERROR_TEXT_BYTES], error if unforeseen else None)
            self._changed()
            return
        if self._residency.get(model.digest) is None:
            return  # Deleted meanwhile.
        self._unload(self._residency.make_room(found.weights_bytes, self._in_use()))
        log.info("model is being loaded", model=model.name, digest=model.digest)
        self._attach.send(
            sidecar_pb2.AttachRequest(
                load_model=sidecar_pb2.LoadModel(
                    profile_digest=model.digest, profile_json=model.profile_json, folder=str(found.folder)
                )
            )
        )

    def _unload(self, digests: list[str]) -> None:
        for digest in digests:
            log.info("model is let go", digest=digest)
            self._attach.send(sidecar_pb2.AttachRequest(unload_model=sidecar_pb2.UnloadModel(profile_digest=digest)))
        if digests:
            self._changed()

    def _fail(self, digest: str, error: str, cause: Exception | None = None) -> None:
        log.error("model cannot be loaded", digest=digest, error=error, exc_info=cause)
        self._residency.failed(digest, error, time.monotonic())
