"""Reading a model's weights: safetensors only, complete, finite."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from shoal_torch_runtime.architecture import model_class, without_pooler
from shoal_torch_runtime.errors import LoadError

_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_NAMED = 3
_NAME_CHARS = 200


def read_model(folder: Path, config: PreTrainedConfig, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """Reads the bare model, ready for inference, with the attention that transformers chooses.

    Raises:
        LoadError: weights are missing, pickled, unreadable, incomplete, of other shapes or not finite.
    """
    _check_files(folder)
    cls = model_class(config)
    arguments: dict[str, Any] = without_pooler(cls) | {
        "config": config,
        "dtype": dtype,
        "use_safetensors": True,
        "local_files_only": True,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # reported by us, with the others
    }
    try:
        loaded, report = cast(tuple[PreTrainedModel, dict[str, Any]], cls.from_pretrained(folder, **arguments))
    except Exception as error:  # safetensors, transformers and torch each raise their own kinds
        raise LoadError(f"weights in {folder} cannot be read: {error}") from error
    _check_report(report)
    _check_finite(loaded)
    return loaded.eval().requires_grad_(False).to(torch.device(device))  # pyright: ignore[reportArgumentType]


def _check_files(folder: Path) -> None:
    if any((folder / name).is_file() for name in _SAFETENSORS):
        return
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise LoadError(f"{folder} holds pickle weights ({pickles[0]}); only safetensors are loaded")
    raise LoadError(f"model.safetensors is missing in {folder}")


def _check_report(report: dict[str, Any]) -> None:
    missing = sorted(report["missing_keys"])
    if missing:
        raise LoadError(f"the safetensors lack weights of the model: {some(missing)}")
    mismatched = sorted(f"{name} is {tuple(has)}, not {tuple(wants)}" for name, has, wants in report["mismatched_keys"])
    if mismatched:
        raise LoadError(f"weights have other shapes than config.json says: {some(mismatched)}")


def _check_finite(model: PreTrainedModel) -> None:
    if broken := infinite(model.named_parameters()):
        raise LoadError(f"weights hold values that are not finite: {some(broken)}")


def infinite(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Names of the tensors that hold values that are not finite."""
    return [name for name, tensor in tensors if not torch.isfinite(tensor).all()]


def some(names: list[str]) -> str:
    """The first names, for an error; the rest are counted."""
    rest = len(names) - _NAMED
    return ", ".join(name[:_NAME_CHARS] for name in names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
