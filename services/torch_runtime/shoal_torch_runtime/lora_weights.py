"""Reading a LoRA's weights for a base: every tensor must be one that its configuration asks for, and none may lack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import PreTrainedModel

from shoal_common import adapter_config, limits, safetensors_header
from shoal_common.adapter_config import AdapterConfig, AdapterError
from shoal_common.safetensors_header import HeaderError, Tensor
from shoal_torch_runtime.lora import Adapter, Matrices
from shoal_torch_runtime.weights import infinite, some

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
ELEMENT_TYPES = ("F32", "F16", "BF16")
PREFIX = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
LEFT_OUT = ("pooler.",)
"""Parts of a base that encoders are loaded without, since pooling reads the tokens."""

Violation = tuple[str, str]


def read(folder: Path, digest: str, model: PreTrainedModel) -> Adapter:
    """Reads an adapter for a model, onto its device and in its element type.

    Raises:
        AdapterError: what is wrong, by file, key or tensor.
    """
    config = adapter_config.parse(_bytes(folder / CONFIG))
    header = _header(folder / WEIGHTS)
    inside = _inside(header, model)
    names = _names(header, inside)
    wanted = _wanted(config, model, inside)
    found = {own: header[name] for own, name in names.items()}
    if violations := list(_check(found, wanted, config, inside)):
        raise AdapterError(violations)
    with safe_open(folder / WEIGHTS, "pt") as file:
        tensors = {own: file.get_tensor(name) for own, name in names.items()}
    if broken := infinite(sorted(tensors.items())):
        raise AdapterError([(WEIGHTS, f"holds values that are not finite: {some(broken)}")])
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
    modules = {name: module for name, module in model.named_modules() if name}
    linears = {name: module for name, module in modules.items() if isinstance(module, torch.nn.Linear)}
    wanted = [name for name in modules if config.targets(inside + name)]
    if others := sorted(f"{name} is a {type(modules[name]).__name__}" for name in wanted if name not in linears):
        raise AdapterError([("target_modules", f"only linear layers are adapted, and {some(others)}")])
    if not wanted:
        ends = sorted({name.rpartition(".")[2] for name in linears})
        raise AdapterError([("target_modules", f"names no module of the base, whose linear layers are {ends}")])
    return {name: linears[name] for name in wanted}


def _check(
    found: Mapping[str, Tensor],
    wanted: Mapping[str, torch.nn.Linear],
    config: AdapterConfig,
    inside: str,
) -> Iterator[Violation]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, module in wanted.items():
        rank = config.rank(inside + name)
        shapes[name + DOWN], shapes[name + UP] = (rank, module.in_features), (module.out_features, rank)
    if unknown := sorted(found.keys() - shapes.keys()):
        yield WEIGHTS, f"holds tensors that its configuration or the base does not have: {some(unknown)}"
    if missing := sorted(shapes.keys() - found.keys()):
        yield WEIGHTS, f"lacks tensors that its configuration asks for: {some(missing)}"
    both = found.keys() & shapes.keys()
    if wrong := sorted(
        f"{name} is {found[name].shape}, not {shapes[name]}" for name in both if found[name].shape != shapes[name]
    ):
        yield WEIGHTS, f"has tensors of other shapes than the base and its rank ask for: {some(wrong)}"
    if odd := sorted(
        f"{name} is {found[name].element_type}" for name in both if found[name].element_type not in ELEMENT_TYPES
    ):
        yield WEIGHTS, f"has tensors of other types than {', '.join(ELEMENT_TYPES)}: {some(odd)}"


def _inside(header: Mapping[str, Tensor], model: PreTrainedModel) -> str:
    """What stands before a module's name where it was trained as a part of a model with a head, for instance `bert.`.

    Its configuration's patterns are of those longer names.
    """
    part = f"{model.base_model_prefix}."
    return part if any(name.startswith(PREFIX + part) for name in header) else ""


def _names(header: Mapping[str, Tensor], inside: str) -> Mapping[str, str]:
    """The file's names of tensors by those that the bare base would give them, without the parts that are left out."""
    names = {name.removeprefix(PREFIX).removeprefix(inside): name for name in header}
    return {own: name for own, name in names.items() if not own.startswith(LEFT_OUT)}
