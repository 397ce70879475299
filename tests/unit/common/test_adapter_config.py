"""adapter_config.json: what PEFT writes is understood as PEFT understands it, and all else is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_common import adapter_config, limits
from shoal_common.adapter_config import AdapterConfig, AdapterError

NAMES = ("query", "key", "value", "dense", "q_proj", "down_proj")
MODULES = [
    *(f"encoder.layer.{n}.attention.self.{name}" for n in (0, 1, 11) for name in ("query", "key", "value")),
    *(f"encoder.layer.{n}.{where}.dense" for n in (0, 1, 11) for where in ("attention.output", "intermediate")),
    *(f"layers.{n}.self_attn.q_proj" for n in (0, 2)),
    "layers.2.mlp.experts.0.down_proj",
    "pooler.dense",
    "dense",
]


def written(**keys: Any) -> bytes:
    return json.dumps({"peft_type": "LORA", "target_modules": ["query", "dense"], **keys}).encode()


def parsed(**keys: Any) -> AdapterConfig:
    return adapter_config.parse(written(**keys))


def violations(data: bytes) -> dict[str, str]:
    with pytest.raises(AdapterError) as refused:
        adapter_config.parse(data)
    assert len(str(refused.value)) < 20_000
    return dict(refused.value.violations)


def test_what_peft_writes_is_read() -> None:
    from peft import LoraConfig

    config = LoraConfig(r=4, lora_alpha=32, target_modules=["query", "value"], lora_dropout=0.1, use_rslora=True)
    keys = config.to_dict()
    keys["target_modules"] = sorted(keys["target_modules"])
    read = adapter_config.parse(json.dumps(keys, default=str).encode())
    assert (read.rank("a.query"), read.scaling("a.query")) == (4, 16.0)


patterns = st.sampled_from(
    [*NAMES, r"layer\.0\..*query", r".*\.1\..*", "encoder.layer.11.attention.self.key", "(q|v).*"]
)


@settings(max_examples=200, deadline=None)
@given(
    targets=st.one_of(
        st.sets(st.sampled_from([*NAMES, *MODULES]), min_size=1), st.sampled_from([r".*\.(query|dense)", "x"])
    ),
    excluded=st.one_of(st.none(), st.lists(st.sampled_from(NAMES), min_size=1), st.just(r".*\.11\..*")),
    layers=st.one_of(st.none(), st.integers(0, 12), st.lists(st.integers(0, 12))),
    layers_pattern=st.one_of(st.none(), st.sampled_from(["layer", "layers"]), st.just(["layers", "layer"])),
    ranks=st.dictionaries(patterns, st.integers(1, 64), max_size=3),
    alphas=st.dictionaries(patterns, st.integers(1, 64), max_size=3),
    rslora=st.booleans(),
)
def test_modules_ranks_and_scalings_are_those_of_peft(
    targets: set[str] | str, excluded: Any, layers: Any, layers_pattern: Any, ranks: Any, alphas: Any, *, rslora: bool
) -> None:
    from types import SimpleNamespace

    from peft.tuners.tuners_utils import check_target_module_exists
    from peft.utils.other import get_pattern_key

    keys: dict[str, Any] = {"target_modules": targets if isinstance(targets, str) else sorted(targets)}
    if not isinstance(targets, str):
        keys |= {"layers_to_transform": layers, "layers_pattern": layers_pattern}
    keys |= {"exclude_modules": excluded, "rank_pattern": ranks, "alpha_pattern": alphas, "use_rslora": rslora}
    ours = parsed(r=8, lora_alpha=16, **keys)
    theirs = SimpleNamespace(**keys, target_parameters=None)
    for module in MODULES:
        assert ours.targets(module) == bool(check_target_module_exists(theirs, module)), module
        rank = ranks.get(get_pattern_key(ranks, module), 8)
        alpha = alphas.get(get_pattern_key(alphas, module), 16)
        assert ours.rank(module) == rank, module
        assert ours.scaling(module) == pytest.approx(alpha / (rank**0.5 if rslora else rank)), module


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("use_dora", True, "true, which is not served; only false is"),
        ("bias", "all", '"all", which is not served; only "none" is'),
        ("modules_to_save", ["classifier"], "not served"),
        ("layer_replication", [[0, 4]], "not served"),
        ("fan_in_fan_out", True, "not served"),
        ("init_lora_weights", "pissa", "changes the base's weights"),
        ("r", 0, "greater than or equal to 1"),
        ("r", limits.ADAPTER_RANK + 1, f"less than or equal to {limits.ADAPTER_RANK}"),
        ("r", "8", "valid integer"),
        ("lora_alpha", float("nan"), "finite"),
        ("lora_alpha", 0, "greater than 0"),
        ("peft_type", "LOHA", "LORA"),
        ("target_modules", "all-linear", "name the modules"),
        ("target_modules", [], "name the modules"),
        ("target_modules", None, ""),
        ("target_modules", "(", "no regular expression"),
        ("rank_pattern", {"query": 0}, "greater than or equal to 1"),
        ("rank_pattern", {"(": 1}, "no regular expression"),
        ("use_everything", True, "is not known here"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(key: str, value: Any, what: str) -> None:
    found = violations(written(**{key: value}))
    assert any((path.startswith(key) or path == "adapter_config.json") and what in said for path, said in found.items())
    assert len(found) <= 2


def test_every_fault_is_named_at_once() -> None:
    found = violations(written(use_dora=True, r=0, surprise=1, lora_alpha=-1))
    assert set(found) == {"use_dora", "r", "surprise", "lora_alpha"}


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    assert set(violations(data)) == {"adapter_config.json"}


def test_a_configuration_is_bounded() -> None:
    assert "at most" in violations(b" " * (limits.ADAPTER_CONFIG_BYTES + 1))["adapter_config.json"]


def test_a_pattern_that_never_ends_is_given_up() -> None:
    config = parsed(target_modules=r"(a|aa)+$")
    with pytest.raises(AdapterError, match="takes more than"):
        config.targets("a" * 60 + "!")
