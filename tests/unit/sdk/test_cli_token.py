"""`shoal token`, called in process."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from shoal.cli.main import app
from shoal_common import tokens


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.yaml"


def shoal(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["token", *map(str, args)])


def test_a_new_token_is_shown_once_and_kept_as_a_hash(file: Path) -> None:
    made = [shoal("new", "--tenant", "acme", "--file", file), shoal("new", "--tenant", "bravo", "--file", file)]
    shown = [result.stdout.strip() for result in made]
    assert all(len(token) >= 43 for token in shown) and shown[0] != shown[1]
    entries = tokens.read(file)
    assert [entry.sha256 for entry in entries] == [tokens.digest(token) for token in shown]
    assert [(entry.tenant, entry.scopes, entry.weight) for entry in entries] == [
        ("acme", ["infer"], 1.0),
        ("bravo", ["infer"], 1.0),
    ]
    assert not any(token in file.read_text() for token in shown)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_scopes_and_weights(file: Path) -> None:
    new = ("new", "--tenant", "acme", "--file", file)
    assert shoal(*new, "--scope", "admin", "--scope", "infer", "--scope", "infer", "--weight", "2.5").exit_code == 0
    assert shoal(*new).exit_code == 0
    first, second = tokens.read(file)
    assert (first.scopes, first.weight) == (["admin", "infer"], 2.5)
    assert second.weight == 2.5, "the tenant's"


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--tenant", "Acme"), "tenant"),
        (("--tenant", "acme", "--scope", "root"), "scopes.0"),
        (("--tenant", "acme", "--weight", "0"), "weight"),
        (("--tenant", "old", "--weight", "2"), "tenant old has weight 1 before, and 2"),
    ],
)
def test_wrong_usage_changes_nothing(file: Path, args: tuple[str, ...], complaint: str) -> None:
    shoal("new", "--tenant", "old", "--file", file)
    before = file.read_text()
    result = shoal("new", "--file", file, *args)
    assert result.exit_code == 2 and complaint in result.stderr and result.stdout == ""
    assert file.read_text() == before


def test_a_broken_file_is_not_written_over(file: Path) -> None:
    file.write_text("- {tenant: acme}")
    for args in (("new", "--tenant", "acme"), ("list",)):
        result = shoal(*args, "--file", file)
        assert result.exit_code == 2 and "entry 0, sha256" in result.stderr
    assert file.read_text() == "- {tenant: acme}"


def test_list(file: Path) -> None:
    made = shoal("new", "--tenant", "acme", "--file", file).stdout.strip()
    listed = shoal("list", "--file", file)
    _, row = (line.split() for line in listed.stdout.splitlines() if line.strip() and "─" not in line)
    assert row == ["acme", "infer", "1", tokens.digest(made)[:12]]
