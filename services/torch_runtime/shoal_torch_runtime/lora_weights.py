"""Reading a LoRA's weights for a base: every tensor must be one that its configuration asks for, and none may lack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import PreTrainedModel

from shoal_common import adapter_config, limits, safetensors_header
from shoal_common.adapter_config import AdapterConfig, AdapterConfigError
from shoal_common.safetensors_header import HeaderError, Tensor
from shoal_torch_runtime.lora import Adapter, Matrices

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
ELEMENT_TYPES = ("F32", "F16", "BF16")
PREFIX = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
LEFT_OUT = ("pooler.",)
"""Parts of a base that encoders are loaded without, since pooling reads the tokens."""
_NAMED = 3
"""Tensors named in one violation; the rest are counted."""

Violation = tuple[str, str]


class AdapterError(ValueError):
    """An adapter that cannot be served on a base. `violations` are (file or key, what is wrong)."""

    def __init__(self, violations: list[Violation]) -> None:
        super().__init__("; ".join(f"{path}: {what}" for path, what in violations))
        self.violations = violations


def read(folder: Path, digest: str, model: PreTrainedModel) -> Adapter:
    """Reads an adapter for a model, onto its device and in its element type.

    Raises:
        AdapterError: what is wrong, by file, key or tensor.
    """
    try:
        config = adapter_config.parse(_bytes(folder / CONFIG))
        header = _header(folder / WEIGHTS)
        inside = _inside(header, model)
        wanted = _wanted(config, model, inside)
        violations = list(_check(header, wanted, config, inside))
    except AdapterConfigError as error:
        raise AdapterError(error.violations) from None
    if violations:
        raise AdapterError(violations)
    with safe_open(folder / WEIGHTS, "pt") as file:
        tensors = {_own(name, inside): file.get_tensor(name) for name in header if not _is_left_out(name, inside)}
    broken = sorted(name for name, tensor in tensors.items() if not torch.isfinite(tensor).all())
    if broken:
        raise AdapterError([(WEIGHTS, f"holds values that are not finite: {_some(broken)}")])
    kind = {"device": model.device, "dtype": model.dtype}
    modules = {
        name: Matrices(
            tensors[name + DOWN].to(**kind).contiguous(),
            # Scaled in full precision, rounded once.
            (tensors[name + UP].float() * config.scaling(inside + name)).to(**kind).contiguous(),
        )
        for name in wanted
    }
    return Adapter(digest, modules)


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limits.ADAPTER_CONFIG_BYTES + 1)
    except OSError as error:
        raise AdapterError([(path.name, f"cannot be read: {error.strerror}")]) from None


def _header(path: Path) -> Mapping[str, Tensor]:
    try:
        with path.open("rb") as file:
            return safetensors_header.read(file, path.stat().st_size, limits.ADAPTER_HEADER_BYTES)
    except HeaderError as error:
        raise AdapterError([(path.name, str(error))]) from None
    except OSError as error:
        raise AdapterError([(path.name, f"cannot be read: {error.strerror}")]) from None


def _wanted(config: AdapterConfig, model: PreTrainedModel, inside: str) -> Mapping[str, torch.nn.Linear]:
    """The modules of the base that a configuration adapts."""
    found = {name: module for name, module in model.named_modules() if name and config.targets(inside + name)}
    others = {name: module for name, module in found.items() if not isinstance(module, torch.nn.Linear)}
    if others:
        kinds = sorted(f"{name} is a {type(module).__name__}" for name, module in others.items())
        raise AdapterError([("target_modules", f"only linear layers are adapted, and {_some(kinds)}")])
    if not found:
        linears = sorted({name.rpartition(".")[2] for name, one in model.named_modules() if _is_linear(one)})
        raise AdapterError([("target_modules", f"names no module of the base, whose linear layers are {linears}")])
    return {name: module for name, module in found.items() if isinstance(module, torch.nn.Linear)}


def _check(
    header: Mapping[str, Tensor],
    wanted: Mapping[str, torch.nn.Linear],
    config: AdapterConfig,
    inside: str,
) -> Iterator[Violation]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, module in wanted.items():
        rank = config.rank(inside + name)
        shapes[name + DOWN], shapes[name + UP] = (rank, module.in_features), (module.out_features, rank)
    found = {_own(name, inside): tensor for name, tensor in header.items() if not _is_left_out(name, inside)}
    if unknown := sorted(found.keys() - shapes.keys()):
        yield WEIGHTS, f"holds tensors that its configuration or the base does not have: {_some(unknown)}"
    if missing := sorted(shapes.keys() - found.keys()):
        yield WEIGHTS, f"lacks tensors that its configuration asks for: {_some(missing)}"
    both = found.keys() & shapes.keys()
    if wrong := sorted(
        f"{name} is {found[name].shape}, not {shapes[name]}" for name in both if found[name].shape != shapes[name]
    ):
        yield WEIGHTS, f"has tensors of other shapes than the base and its rank ask for: {_some(wrong)}"
    if odd := sorted(
        f"{name} is {found[name].element_type}" for name in both if found[name].element_type not in ELEMENT_TYPES
    ):
        yield WEIGHTS, f"has tensors of other types than {', '.join(ELEMENT_TYPES)}: {_some(odd)}"


def _inside(header: Mapping[str, Tensor], model: PreTrainedModel) -> str:
    """What stands before a module's name where it was trained as a part of a model with a head, for instance `bert.`.

    Its configuration's patterns are of those longer names.
    """
    part = f"{model.base_model_prefix}."
    return part if any(name.startswith(PREFIX + part) for name in header) else ""


def _own(name: str, inside: str) -> str:
    """A tensor's name as the bare base would give it."""
    return name.removeprefix(PREFIX).removeprefix(inside)


def _is_left_out(name: str, inside: str) -> bool:
    return _own(name, inside).startswith(LEFT_OUT)


def _is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear)


def _some(names: list[str]) -> str:
    shown = ", ".join(name[:200] for name in names[:_NAMED])
    rest = len(names) - _NAMED
    return shown + (f" and {rest} more" if rest > 0 else "")
