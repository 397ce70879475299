"""A model profile: what a model is, where its weights are and how it is run. Immutable by digest."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from shoal_common import limits

ModelName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9][a-z0-9._/-]*$", max_length=limits.MODEL_NAME_CHARS),
]


def _relative(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError("must be a relative path without ..")
    return path


RelativePath = Annotated[str, StringConstraints(max_length=1024), AfterValidator(_relative)]


class Strict(BaseModel):
    """Refuses unknown keys: a misspelt key must never be a silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Source(Strict):
    """Where the files are: exactly one of package, folder and hub."""

    package: str | None = None
    folder: str | None = None
    hub: str | None = None
    path: RelativePath | None = None
    """With package: the folder inside it."""
    revision: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    """With hub: the commit, in full."""

    @model_validator(mode="after")
    def _one_source(self) -> Source:
        if sum(value is not None for value in (self.package, self.folder, self.hub)) != 1:
            raise ValueError("give exactly one of package, folder and hub")
        if (self.path is not None) != (self.package is not None):
            raise ValueError("package and path belong together")
        if (self.revision is not None) != (self.hub is not None):
            raise ValueError("hub and revision belong together")
        return self


class Prompts(Strict):
    """Texts put before an item's text, by role."""

    default: str = ""
    query: str = ""
    document: str = ""


class Encode(Strict):
    """What the model offers Encode."""

    outputs: tuple[Literal["dense"], ...] = Field(default=("dense",), min_length=1)
    dimensions: int = Field(ge=1, le=limits.DIMENSIONS)
    pooling: Literal["mean", "cls", "last"] = "mean"
    normalize: bool = True
    default_max_tokens: int = Field(ge=1, le=limits.MODEL_TOKENS)
    max_tokens: int = Field(ge=1, le=limits.MODEL_TOKENS)
    special_tokens: int = Field(ge=0, le=16)
    """Tokens that the tokenizer adds to one text; checked when the model is loaded."""
    prompts: Prompts = Prompts()

    @model_validator(mode="after")
    def _lengths_fit(self) -> Encode:
        if not self.special_tokens < self.default_max_tokens <= self.max_tokens:
            raise ValueError("special_tokens < default_max_tokens <= max_tokens must hold")
        return self


class Cost(Strict):
    """Seed of the cost model: milliseconds of a batch = batch_ms + token_us·tokens/1e3 + … ."""

    batch_ms: float = Field(default=5.0, ge=0)
    token_us: float = Field(default=100.0, ge=0)
    squared_token_ns: float = Field(default=0.0, ge=0)
    item_us: float = Field(default=0.0, ge=0)


class Tuned(Strict):
    """How to run on one kind of hardware."""

    streams: int | None = Field(default=None, ge=1, le=64)
    """Batches at once when work waits; unset is one a core on CPUs and one on GPUs."""
    threads: int | None = Field(default=None, ge=1, le=256)
    """Threads of a batch that runs alone; unset is all cores of the device."""
    element_type: Literal["f32", "bf16"] | None = None
    cost: Cost = Cost()


class Profile(Strict):
    """A model profile. Its digest is its revision."""

    name: ModelName
    pool: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] = "default"
    source: Source
    encode: Encode
    element_type: Literal["auto", "f32", "bf16"] = "auto"
    """auto measures both when the model is loaded and keeps the faster."""
    bundle: Literal["torch"] = "torch"
    runtimes: tuple[Literal["torch"], ...] = Field(default=("torch",), min_length=1)
    tuned: dict[Literal["cpu", "cuda"], Tuned] = {}

    def canonical_json(self) -> str:
        """The profile as JSON with sorted keys and all defaults spelt out."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def digest(self) -> str:
        """sha256 of the canonical JSON, in hex."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    def tuned_for(self, device: str) -> Tuned:
        """The tuned block for a device such as cpu or cuda:0."""
        kind = "cuda" if device.startswith("cuda") else "cpu"
        return self.tuned.get(kind, Tuned())


class ProfileError(ValueError):
    """A profile that cannot be accepted. `violations` are (field path, what is wrong)."""

    def __init__(self, violations: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path}: {what}" for path, what in violations))
        self.violations = violations


def parse_profile(text: str) -> Profile:
    """Reads a profile from YAML or JSON.

    Raises:
        ProfileError: not a mapping, over the size limit, unknown keys, or values out of range.
    """
    size = len(text.encode())
    if size > limits.PROFILE_BYTES:
        raise ProfileError([("profile", f"has {size:,} bytes, at most {limits.PROFILE_BYTES:,} are allowed")])
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # 2001-99-99 is a ValueError, [[[[… recurses
        raise ProfileError([("profile", f"is not YAML: {error}"[:500])]) from None
    if not isinstance(data, dict):
        raise ProfileError([("profile", "must be a mapping of keys")])
    try:
        return Profile.model_validate(data)
    except ValidationError as error:
        raise ProfileError(
            [(".".join(str(part) for part in e["loc"]) or "profile", e["msg"]) for e in error.errors()]
        ) from None
