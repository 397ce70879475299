"""The file of tokens is strict: whoever it does not name clearly is not let in."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_common import limits, tokens
from shoal_common.tokens import BadTokens, TokenEntry

HASH = tokens.digest("a token")
OTHER = tokens.digest("another token")


def entry(sha256: str = HASH, tenant: str = "acme", scopes: str = "[infer]", more: str = "") -> str:
    return f"- {{sha256: {sha256!r}, tenant: {tenant!r}, scopes: {scopes}{more}}}\n"


def test_entries_and_their_defaults() -> None:
    first, second = tokens.parse(entry() + entry(OTHER, "bravo-2", "[infer, admin]", ", weight: 3"))
    assert first == TokenEntry(sha256=HASH, tenant="acme", scopes=["infer"], weight=1.0)
    assert (second.tenant, second.scopes, second.weight) == ("bravo-2", ["infer", "admin"], 3.0)
    found = tokens.identities([first, second])
    assert found[HASH].scopes == {"infer"} and found[OTHER].weight == 3.0


def test_an_empty_list_lets_nobody_in() -> None:
    assert tokens.parse("[]") == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("- [", "is not YAML"),
        ("- 2001-99-99", "is not YAML"),
        ("tenant: acme", "list"),
        (entry(more=", wieght: 2"), "entry 0, wieght"),
        (entry(more=", token: secret"), "entry 0, token"),
        (entry("abc"), "entry 0, sha256"),
        (entry(HASH.upper()), "entry 0, sha256"),
        (entry(f"{HASH} "), "entry 0, sha256"),
        (f"- {{sha256: {'1' * 64}, tenant: acme, scopes: [infer]}}", "entry 0, sha256"),
        ("- {sha256: " + HASH + ", scopes: [infer]}", "entry 0, tenant"),
        (entry(tenant=""), "entry 0, tenant"),
        (entry(tenant="Acme"), "entry 0, tenant"),
        (entry(tenant="a b"), "entry 0, tenant"),
        (entry(tenant="a\\n"), "entry 0, tenant"),
        (entry(tenant="-a"), "entry 0, tenant"),
        (entry(tenant="a" * (limits.TENANT_CHARS + 1)), "entry 0, tenant"),
        (entry(scopes="[]"), "entry 0, scopes"),
        (entry(scopes="infer"), "entry 0, scopes"),
        (entry(scopes="[infer, root]"), "entry 0, scopes, 1"),
        (entry(more=", weight: 0"), "entry 0, weight"),
        (entry(more=", weight: -1"), "entry 0, weight"),
        (entry(more=", weight: .nan"), "entry 0, weight"),
        (entry(more=", weight: .inf"), "entry 0, weight"),
        (entry(more=", weight: '2'"), "entry 0, weight"),
        (entry() + entry(tenant="bravo"), "entry 1: the token of this hash stands there twice"),
        (entry() + entry(OTHER, more=", weight: 2"), "entry 1: tenant acme has weight 1 before, and 2"),
    ],
)
def test_faults_are_named(text: str, complaint: str) -> None:
    with pytest.raises(BadTokens) as bad:
        tokens.parse(text)
    assert complaint in str(bad.value)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    entries = tokens.parse(entry() + entry(OTHER, "bravo", "[admin, infer]", ", weight: 0.5"))
    file = tmp_path / "tokens.yaml"
    file.write_text(tokens.written(entries))
    assert tokens.read(file) == entries


@pytest.mark.parametrize(
    ("raw", "complaint"), [(b"\xff\xfe", "is not UTF-8"), (b"#" * (limits.TOKENS_FILE_BYTES + 1), "more than")]
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, raw: bytes, complaint: str) -> None:
    file = tmp_path / "tokens.yaml"
    with pytest.raises(BadTokens, match="cannot be read"):
        tokens.read(file)
    file.write_bytes(raw)
    with pytest.raises(BadTokens, match=complaint) as bad:
        tokens.read(file)
    assert str(file) in str(bad.value)


@given(st.text(max_size=200))
def test_any_text_is_entries_or_a_complaint(text: str) -> None:
    try:
        tokens.parse(text)
    except BadTokens as error:
        assert str(error)
