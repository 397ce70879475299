"""A LoRA's adapter_config.json as PEFT writes it, read strictly: what a key asks for is done, or refused by its name.

Which modules a configuration means, and with which rank and scaling, is PEFT's own rule. Its patterns are regular
expressions of whoever wrote the file: they are matched within a bound of time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import regex
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from shoal_common import limits

MATCH_S = 0.05
"""What one pattern may take on one module's name."""
ALL_LINEAR = "all-linear"
"""PEFT's word for every linear layer. What is saved names them by a list: the word alone is refused."""

Rank = Annotated[int, Field(ge=1, le=limits.ADAPTER_RANK)]
Alpha = Annotated[float, Field(gt=0, le=limits.ADAPTER_ALPHA)]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=limits.ADAPTER_PATTERN_CHARS)]
Patterns = Annotated[tuple[Pattern, ...], Field(max_length=limits.ADAPTER_PATTERNS)]
Layer = Annotated[int, Field(ge=0, le=limits.ADAPTER_LAYERS)]

IRRELEVANT = frozenset(
    {
        "auto_mapping",
        "ensure_weight_tying",
        "inference_mode",
        "lora_dropout",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "runtime_config",
    }
)
"""Keys that say nothing of the values that a trained adapter gives."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
    "bias": ("none",),
    "corda_config": (None,),
    "eva_config": (None, {}),
    "fan_in_fan_out": (False,),
    "kasa_config": (None,),
    "layer_replication": (None, []),
    "loftq_config": (None, {}),
    "lora_bias": (False,),
    "lora_ga_config": (None,),
    "megatron_config": (None,),
    "modules_to_save": (None, []),
    "monteclora_config": (None,),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
    "use_bdlora": (None, False),
    "use_dora": (False,),
    "use_qalora": (False,),
    "velora_config": (None,),
}
"""Keys of what is not served, each with the values that do not ask for it."""
INITIALISATIONS = (True, False, "gaussian", "eva", "orthogonal")
"""Ways to begin training that leave the base's weights as they are."""


class AdapterError(ValueError):
    """An adapter that cannot be served. `violations` are (file, key or field, what is wrong)."""

    def __init__(self, violations: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path}: {what}" for path, what in violations))
        self.violations = violations


class AdapterConfig(BaseModel):
    """What a configuration asks for."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    peft_type: Literal["LORA"]
    r: Rank = 8
    lora_alpha: Alpha = 8
    rank_pattern: Annotated[dict[Pattern, Rank], Field(max_length=limits.ADAPTER_PATTERNS)] = {}
    alpha_pattern: Annotated[dict[Pattern, Alpha], Field(max_length=limits.ADAPTER_PATTERNS)] = {}
    use_rslora: bool = False
    target_modules: Patterns | Pattern
    """Names' ends, or one regular expression for whole names."""
    exclude_modules: Patterns | Pattern | None = None
    layers_to_transform: tuple[Layer, ...] | Layer | None = None
    layers_pattern: Patterns | Pattern | None = None
    base_model_name_or_path: Annotated[str, StringConstraints(max_length=1024)] | None = None
    revision: Annotated[str, StringConstraints(max_length=128)] | None = None
    task_type: Annotated[str, StringConstraints(max_length=64)] | None = None

    @model_validator(mode="after")
    def _targets_are_named(self) -> AdapterConfig:
        if self.target_modules in (ALL_LINEAR, ()):
            raise ValueError(f"target_modules is {self.target_modules!r}; name the modules")
        return self

    @model_validator(mode="after")
    def _patterns_are_regular(self) -> AdapterConfig:
        written = [*self.rank_pattern, *self.alpha_pattern, *_patterns(self.layers_pattern)]
        written += [one for one in (self.target_modules, self.exclude_modules) if isinstance(one, str)]
        for pattern in written:
            try:
                regex.compile(pattern)
            except (regex.error, RecursionError) as error:
                raise ValueError(f"{pattern[:80]!r} is no regular expression: {error}") from None
        return self

    def targets(self, module: str) -> bool:
        """Whether a module of the base, by its dotted name, is adapted.

        Raises:
            AdapterError: a pattern takes too long.
        """
        if _names(self.exclude_modules, module):
            return False
        if isinstance(self.target_modules, str) or module in self.target_modules:
            return _names(self.target_modules, module)
        return _names(self.target_modules, module) and self._is_layer(module)

    def rank(self, module: str) -> int:
        """The rank of a module's matrices.

        Raises:
            AdapterError: a pattern takes too long.
        """
        return next((rank for key, rank in self.rank_pattern.items() if _ends_as(key, module)), self.r)

    def scaling(self, module: str) -> float:
        """What a module's product of matrices is multiplied by.

        Raises:
            AdapterError: a pattern takes too long.
        """
        alpha = next((alpha for key, alpha in self.alpha_pattern.items() if _ends_as(key, module)), self.lora_alpha)
        rank = self.rank(module)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def _is_layer(self, module: str) -> bool:
        layers = (self.layers_to_transform,) if isinstance(self.layers_to_transform, int) else self.layers_to_transform
        if not layers:
            return True
        # The first number in a name is its layer; those of experts and the like come after it.
        patterns = [rf"(?:^|.*?\.){one}\.(?P<index>\d+)\." for one in _patterns(self.layers_pattern)] or [
            r".*?\.[^.]*\.(?P<index>\d+)\."
        ]
        found = next((match for one in patterns if (match := _match(one, module))), None)
        return found is not None and int(found["index"]) in layers


def parse(data: bytes) -> AdapterConfig:
    """Reads adapter_config.json.

    Raises:
        AdapterError: not a JSON object, over the size limit, keys that are not known or not served, or values
            out of range; names every one of them.
    """
    if len(data) > limits.ADAPTER_CONFIG_BYTES:
        what = f"has {len(data):,} bytes, at most {limits.ADAPTER_CONFIG_BYTES:,} are allowed"
        raise AdapterError([("adapter_config.json", what)])
    try:
        keys = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise AdapterError([("adapter_config.json", f"is not JSON: {error}"[:500])]) from None
    if not isinstance(keys, dict):
        raise AdapterError([("adapter_config.json", "must be a JSON object")])
    violations = [
        (key, f"is {_shown(keys[key])}, which is not served; only {' or '.join(map(_shown, neutral))} is")
        for key, neutral in NEUTRAL.items()
        if key in keys and keys[key] not in neutral
    ]
    if (beginning := keys.get("init_lora_weights", True)) not in INITIALISATIONS:
        what = f"is {_shown(beginning)}, which changes the base's weights; convert the adapter to a plain LoRA first"
        violations.append(("init_lora_weights", what))
    served = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in keys.items()
        if key not in IRRELEVANT and key not in NEUTRAL and key != "init_lora_weights"
    }
    try:
        config = AdapterConfig.model_validate(served)
    except ValidationError as error:
        violations += [_violation(fault) for fault in error.errors()]
    else:
        if not violations:
            return config
    raise AdapterError(violations)


def _violation(fault: Any) -> tuple[str, str]:
    path = ".".join(str(part)[:80] for part in fault["loc"]) or "adapter_config.json"
    if fault["type"] == "extra_forbidden":
        return path, "is not known here: what it asks for is not served"
    return path, fault["msg"]


def _patterns(patterns: Sequence[str] | str | None) -> Sequence[str]:
    return (patterns,) if isinstance(patterns, str) else patterns or ()


def _names(modules: Sequence[str] | str | None, module: str) -> bool:
    """Whether modules, named by their names' ends or by one pattern, hold a module."""
    if isinstance(modules, str):
        return _match(modules, module, whole=True) is not None
    return any(module == one or module.endswith(f".{one}") for one in modules or ())


def _ends_as(pattern: str, module: str) -> bool:
    return _match(rf"(.*\.)?({pattern})$", module) is not None


def _match(pattern: str, module: str, *, whole: bool = False) -> regex.Match[str] | None:
    compiled = regex.compile(pattern)
    try:
        return (compiled.fullmatch if whole else compiled.match)(module, timeout=MATCH_S)
    except TimeoutError:
        what = f"the pattern {pattern[:80]!r} takes more than {MATCH_S * 1e3:.0f} ms on {module!r}"
        raise AdapterError([("adapter_config.json", what)]) from None


def _shown(value: Any) -> str:
    return json.dumps(value)[:80]
