"""What a transformers model class demands of its caller: which class, how positions count, how many there are."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from shoal_torch_runtime.errors import LoadError


def read_config(folder: Path) -> PreTrainedConfig:
    """Reads config.json.

    Raises:
        LoadError: no such file, not JSON, an architecture that transformers does not have itself (a repository's own
            code is never run), an encoder-decoder, or quantized weights.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise LoadError(f"config.json is missing in {folder}")
    try:
        raw: dict[str, Any] = json.loads(path.read_text())
        model_type = raw.get("model_type")
    except (ValueError, AttributeError) as error:
        raise LoadError(f"config.json cannot be read: {error}") from None
    if model_type not in CONFIG_MAPPING:
        code = " and code of the repository is not run" if raw.get("auto_map") else ""
        raise LoadError(f"config.json: model_type {model_type!r} is not known to transformers{code}")
    if raw.get("quantization_config"):
        raise LoadError("config.json: quantization_config is set; only plain f32, f16 and bf16 weights are loaded")
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if config.is_encoder_decoder:
        raise LoadError(f"config.json: model_type {model_type!r} is an encoder-decoder, only encoders are run")
    return config


def model_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class of the bare model, without heads.

    Raises:
        LoadError: transformers has none for this architecture.
    """
    if type(config) not in MODEL_MAPPING:
        raise LoadError(f"config.json: transformers has no bare model for model_type {config.model_type!r}")
    found: Any = MODEL_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple) else found


def without_pooler(cls: type[PreTrainedModel]) -> dict[str, Any]:
    """Arguments that leave out a pooling layer nobody reads, where the class has one."""
    return {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(cls.__init__).parameters else {}


def takes_position_ids(model: PreTrainedModel) -> bool:
    """Whether a caller can say where a token stands, which packed rows need."""
    return "position_ids" in inspect.signature(model.forward).parameters


def first_position(model: PreTrainedModel) -> int:
    """Position of a row's first token: RoBERTa and its kin count from the padding id + 1."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def positions(model: PreTrainedModel) -> int | None:
    """Longest row that the model has positions for; None where its config sets no bound."""
    bound = getattr(model.config, "max_position_embeddings", None)
    return None if bound is None or bound < 0 else bound - first_position(model)
