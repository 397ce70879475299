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


def _without_repeats(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) != len(names):
        raise ValueError("must name each at most once")
    return names


RuntimeName = Literal["torch", "sim"]
Runtimes = Annotated[tuple[RuntimeName, ...], Field(min_length=1), AfterValidator(_without_repeats)]
Inputs = Annotated[tuple[Literal["text", "media"], ...], Field(min_length=1), AfterValidator(_without_repeats)]


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

    inputs: Inputs = ("text",)
    """Kinds of item that it takes."""
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

    @model_validator(mode="after")
    def _takes_texts(self) -> Encode:
        if "text" not in self.inputs:
            raise ValueError("inputs must name text: media alone is not served")
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
    interactive_ms: float | None = Field(default=None, ge=1, le=10_000)
    """What a batch of the class interactive may take at most; unset leaves it to the worker."""
    bulk_ms: float | None = Field(default=None, ge=1, le=10_000)
    """As interactive_ms, of the class bulk."""
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
    runtimes: Runtimes = ("torch",)
    """Those that may run it; a device has one."""
    tuned: dict[Literal["cpu", "cuda", "sim"], Tuned] = {}

    @model_validator(mode="after")
    def _media_are_simulated(self) -> Profile:
        if "media" in self.encode.inputs and self.runtimes != ("sim",):
            raise ValueError("encode.inputs: media are taken by simulated models alone so far: runtimes must be [sim]")
        return self

    def canonical_json(self) -> str:
        """The profile as JSON with sorted keys and all defaults spelt out."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def digest(self) -> str:
        """sha256 of the canonical JSON, in hex."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    def tuned_for(self, device: str) -> Tuned:
        """The tuned block for a device such as cpu, cuda:0 or sim:0."""
        wanted = device.partition(":")[0]
        return next((tuned for kind, tuned in self.tuned.items() if kind == wanted), Tuned())

    def runs_on(self, device: str) -> bool:
        """Whether it names the runtime that a device has."""
        return runtime_of(device) in self.runtimes


def runtime_of(device: str) -> RuntimeName:
    """The runtime that a device such as cpu, cuda:0 or sim:0 has."""
    return "sim" if device.startswith("sim") else "torch"


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
