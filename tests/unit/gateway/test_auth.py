"""Who may call: known by the hash of their token, as long as the file says so."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from google.rpc import code_pb2
from pydantic import ValidationError

from shoal_common import tokens
from shoal_common.errors import CallError
from shoal_common.tokens import TokenEntry
from shoal_gateway import token_file as token_file_module
from shoal_gateway.auth import Auth, permitted
from shoal_gateway.settings import GatewaySettings
from shoal_gateway.token_file import TokenFile
from tests.support.until import until


def write(file: Path, **tenants: str) -> None:
    """One token a tenant, named like it."""
    entries = [
        TokenEntry.model_validate({"sha256": tokens.digest(f"{tenant}-token"), "tenant": tenant, "scopes": [scope]})
        for tenant, scope in tenants.items()
    ]
    file.write_text(tokens.written(entries))


def refusal(call: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(CallError) as refused:
        call()
    return refused.value.code, refused.value.reason


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    write(path, acme="infer", ops="admin")
    return path


def test_without_a_file_everybody_is_the_default_tenant() -> None:
    for authorization in (None, "Bearer whatever", b"\xff"):
        identity = Auth(None).identify(authorization)
        assert (identity.tenant, identity.weight) == ("default", 1.0)
        assert all(permitted(identity, scope) is identity for scope in tokens.SCOPES)


@pytest.mark.parametrize("authorization", ["Bearer acme-token", "bearer acme-token", "Bearer   acme-token "])
def test_a_token_is_known_by_its_hash(file: Path, authorization: str) -> None:
    identity = Auth(TokenFile(file)).identify(authorization)
    assert permitted(identity, "infer").tenant == "acme"
    assert refusal(lambda: permitted(identity, "admin")) == (code_pb2.PERMISSION_DENIED, "SCOPE_MISSING")


@pytest.mark.parametrize(
    ("authorization", "reason"),
    [
        (None, "TOKEN_MISSING"),
        ("", "TOKEN_MALFORMED"),
        ("acme-token", "TOKEN_MALFORMED"),
        ("Basic acme-token", "TOKEN_MALFORMED"),
        ("Bearer ", "TOKEN_MALFORMED"),
        (b"Bearer acme-token", "TOKEN_MALFORMED"),
        ("Bearer acme-toke", "TOKEN_UNKNOWN"),
        (f"Bearer {tokens.digest('acme-token')}", "TOKEN_UNKNOWN"),
        ("Bearer \udc80", "TOKEN_UNKNOWN"),
    ],
)
def test_whoever_is_not_known_is_refused(file: Path, authorization: str | bytes | None, reason: str) -> None:
    assert refusal(lambda: Auth(TokenFile(file)).identify(authorization)) == (code_pb2.UNAUTHENTICATED, reason)


def test_the_operator_is_known_beside_the_file(file: Path) -> None:
    auth = Auth(TokenFile(file, tokens.digest("made here")))
    assert permitted(auth.identify("Bearer made here"), "admin").tenant == "operator"
    assert refusal(lambda: Auth(TokenFile(file)).identify("Bearer made here"))[1] == "TOKEN_UNKNOWN"


@pytest.fixture
async def followed(file: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TokenFile]:
    monkeypatch.setattr(token_file_module, "LOOK_S", 0.01)
    known = TokenFile(file)
    following = asyncio.create_task(known.follow())
    yield known
    following.cancel()


async def test_a_changed_file_is_taken(file: Path, followed: TokenFile) -> None:
    write(file, bravo="infer")
    await until(lambda: followed.find("bravo-token"))
    assert followed.find("acme-token") is None, "it was revoked"


async def test_a_broken_file_changes_nothing_until_it_is_mended(file: Path, followed: TokenFile) -> None:
    fresh = file.with_suffix(".new")
    for broken in ("", "- {tenant: x}", None):
        if broken is None:
            file.unlink()
        else:
            file.write_text(broken)
        before = token_file_module._stamp(file)
        await until(lambda: followed._stamp == before)  # noqa: B023
        assert followed.find("acme-token") is not None
    write(fresh, bravo="infer")
    os.replace(fresh, file)
    await until(lambda: followed.find("bravo-token") and not followed.find("acme-token"))


def settings(**fields: Any) -> GatewaySettings:
    return GatewaySettings(registry="unix:/r", **fields)


def test_only_a_gateway_that_asks_for_tokens_listens_to_other_machines(file: Path) -> None:
    assert settings(listen="127.0.0.1:1").tokens == ""
    assert settings(listen="0.0.0.0:1", tokens=str(file)).listen == "0.0.0.0:1"
    with pytest.raises(ValidationError, match="can be reached from other machines"):
        settings(listen="0.0.0.0:1")


def test_a_file_that_cannot_be_used_is_named_before_anything_starts(file: Path) -> None:
    file.write_text("- {tenant: acme}")
    with pytest.raises(ValidationError, match=r"tokens\.yaml entry 0, sha256"):
        settings(listen="unix:/g", tokens=str(file))
