"""The models of a device and what is done with them: load, unload, compute. Knows no gRPC."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from shoal_torch_runtime import faults
from shoal_torch_runtime.encoder import ElementType, Encoder, load
from shoal_torch_runtime.errors import BatchError, LoadError
from shoal_torch_runtime.model_spec import ModelSpec
from shoal_torch_runtime.packed_batch import PackedBatch
from shoal_torch_runtime.streams import Streams

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model is on the device."""

    memory_bytes: int
    element_type: ElementType
    load_ms: float


@dataclass(frozen=True, slots=True)
class Computed:
    """Pooled rows of a batch."""

    rows: bytes
    """Little-endian float32, C order, shape (rows, dimensions)."""
    dimensions: int
    started_unix_ns: int
    ended_unix_ns: int


class Engine:
    """Every method returns at once; the work runs on the device's streams, in the order of the calls."""

    def __init__(self, device: str, streams: int, threads: int) -> None:
        self.device = device
        self._streams = Streams(streams, threads)
        self._models: dict[str, Encoder] = {}
        self._poison = faults.poison()

    def load(self, digest: str, profile_json: str, folder: str) -> Future[LoadedModel]:
        """Puts a model on the device and warms each stream. The future raises LoadError."""
        return self._streams.submit(partial(self._load, digest, profile_json, Path(folder)), alone=True)

    def unload(self, digest: str) -> Future[None]:
        """Takes a model off the device, once the batches before are done."""
        return self._streams.submit(partial(self._unload, digest), alone=True)

    def compute(self, digest: str, token_ids: bytes, lengths: bytes) -> Future[Computed]:
        """Computes a batch of little-endian int32 token ids and lengths. The future raises BatchError."""
        return self._streams.submit(partial(self._compute, digest, token_ids, lengths))

    def _load(self, digest: str, profile_json: str, folder: Path) -> LoadedModel:
        began = time.perf_counter()
        if digest not in self._models:
            self._models[digest] = self._loaded_and_warm(profile_json, folder)
        encoder = self._models[digest]
        load_ms = (time.perf_counter() - began) * 1e3
        _log.info(
            "model loaded",
            extra={"digest": digest, "load_ms": load_ms, "type": encoder.element_type, "packs": encoder.packs},
        )
        return LoadedModel(encoder.memory_bytes, encoder.element_type, load_ms)

    def _loaded_and_warm(self, profile_json: str, folder: Path) -> Encoder:
        try:
            spec = ModelSpec.parse(profile_json, self.device)
            faults.die_if_deadly(profile_json)
            encoder = load(folder, spec, self.device)
            encoder.warm_up()
            self._streams.on_each_narrow(encoder.warm_up)
        except LoadError:
            raise
        except Exception as error:
            _log.exception("loading failed")
            raise LoadError(f"the model in {folder} cannot be loaded: {type(error).__name__}: {error}") from error
        return encoder

    def _unload(self, digest: str) -> None:
        self._models.pop(digest, None)
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()

    def _compute(self, digest: str, token_ids: bytes, lengths: bytes) -> Computed:
        encoder = self._models.get(digest)
        if encoder is None:
            raise BatchError(f"no model with the digest {digest} is loaded")
        batch = PackedBatch.parse(token_ids, lengths)
        if self._poison is not None:
            faults.die_if_poisoned(batch, self._poison)
        started = time.time_ns()
        try:
            rows = encoder.encode(batch)
        except BatchError:
            raise
        except Exception as error:
            _log.exception("computing a batch failed")
            raise BatchError(f"{type(error).__name__}: {error}") from error
        ended = time.time_ns()
        return Computed(rows.astype("<f4", copy=False).tobytes(), rows.shape[1], started, ended)
