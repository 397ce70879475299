"""The file of tokens: who may call, as which tenant, for what. It holds hashes, never a token."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from shoal_common import limits

Scope = Literal["infer", "admin", "adapters:write", "adapters:promote"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
OPEN_TENANT = "default"
"""Whose the calls are where no tokens are asked for."""
OPERATOR_TENANT = "operator"
"""Whose the calls of a mesh's own tools are, where they are."""

Tenant = Annotated[str, Field(pattern=rf"^[a-z0-9][a-z0-9._-]{{0,{limits.TENANT_CHARS - 1}}}$")]
Weight = Annotated[float, Field(ge=1 / limits.TENANT_WEIGHT, le=limits.TENANT_WEIGHT)]


class BadTokens(ValueError):
    """The file cannot be used; the message says what is wrong, and where."""


class TokenEntry(BaseModel):
    """What one token stands for."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Of the token's UTF-8 bytes, in lower-case hexadecimal."""
    tenant: Tenant
    scopes: list[Scope] = Field(min_length=1)
    weight: Weight = 1.0
    """The tenant's share of a busy lane, beside the others' weights."""


_ENTRIES = TypeAdapter(list[TokenEntry])


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls."""

    tenant: str
    scopes: frozenset[str]
    weight: float = field(default=1.0, kw_only=True)


OPEN = Identity(OPEN_TENANT, frozenset(SCOPES))
OPERATOR = Identity(OPERATOR_TENANT, frozenset(SCOPES))


def digest(token: str) -> str:
    """A token's hash as the file holds it."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def identities(entries: Iterable[TokenEntry]) -> dict[str, Identity]:
    """Identities by their tokens' hashes."""
    return {each.sha256: Identity(each.tenant, frozenset(each.scopes), weight=each.weight) for each in entries}


def read(path: Path) -> list[TokenEntry]:
    """The entries of a file; raises BadTokens, naming the file, as `parse` or because it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(limits.TOKENS_FILE_BYTES + 1)
    except OSError as error:
        raise BadTokens(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > limits.TOKENS_FILE_BYTES:
        raise BadTokens(f"{path} has more than {limits.TOKENS_FILE_BYTES:,} bytes")
    try:
        return parse(raw.decode())
    except UnicodeDecodeError:
        raise BadTokens(f"{path} is not UTF-8") from None
    except BadTokens as error:
        raise BadTokens(f"{path} {error}") from None


def parse(text: str) -> list[TokenEntry]:
    """The entries of a file.

    Raises:
        BadTokens: it is empty, no YAML, has wrong or unknown fields, a hash twice, or a tenant with two weights.
            An empty list is allowed, and lets nobody in.
    """
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # 2001-99-99 is a ValueError, [[[[… recurses
        raise BadTokens(f"is not YAML: {' '.join(str(error).split())}") from None
    if document is None:
        raise BadTokens("is empty; a list of tokens is needed, [] for none")
    try:
        entries = _ENTRIES.validate_python(document)
    except ValidationError as error:
        raise BadTokens("; ".join(_complaint(each["loc"], each["msg"]) for each in error.errors())) from None
    _check_together(entries)
    return entries


def written(entries: Iterable[TokenEntry]) -> str:
    """The text of a file with these entries."""
    return yaml.safe_dump([each.model_dump() for each in entries], sort_keys=False)


def _check_together(entries: Iterable[TokenEntry]) -> None:
    seen: set[str] = set()
    weights: dict[str, float] = {}
    for number, entry in enumerate(entries):
        if entry.sha256 in seen:
            raise BadTokens(f"entry {number}: the token of this hash stands there twice")
        seen.add(entry.sha256)
        weight = weights.setdefault(entry.tenant, entry.weight)
        if weight != entry.weight:
            raise BadTokens(f"entry {number}: tenant {entry.tenant} has weight {weight:g} before, and {entry.weight:g}")


def _complaint(place: tuple[int | str, ...], what: str) -> str:
    if not place:
        return what
    number, *fields = place
    return f"entry {number}{''.join(f', {each}' for each in fields)}: {what}"
