"""`shoal models` and `shoal version`, called in process."""

from __future__ import annotations

import json
from importlib import metadata

import grpc
from typer.testing import CliRunner, Result

from shoal.cli.main import app
from shoal.v1 import models_pb2
from tests.unit.sdk.fake_mesh import FakeMesh, status


def shoal(fake: FakeMesh, *args: str) -> Result:
    return CliRunner().invoke(app, list(args), env={"SHOAL_TARGET": fake.target})


def test_table(fake: FakeMesh) -> None:
    for args in (["models"], ["models", "list"], ["models", "default"]):
        result = shoal(fake, *args)
        assert result.exit_code == 0
        head, _, row = (line for line in result.stdout.splitlines() if line.strip())
        assert head.split() == ["name", "state", "dims", "max", "tokens", "revision", "aliases"]
        assert row.split() == ["minilm", "ready", "384", "512", "0123456789ab", "default"]


def test_json(fake: FakeMesh) -> None:
    (line,) = shoal(fake, "models", "--json").stdout.splitlines()
    assert json.loads(line)["revision"] == "sha256:0123456789abcdef"


def test_unknown(fake: FakeMesh) -> None:
    result = shoal(fake, "models", "minlm")
    assert result.exit_code == 1
    assert result.stderr == "shoal: no model 'minlm' (did you mean minilm or default?)\n"


def test_watch_prints_changes_until_it_ends(fake: FakeMesh) -> None:
    loading = models_pb2.Model(name="other", state=models_pb2.MODEL_STATE_LOADING)
    fake.changes = [models_pb2.WatchModelsResponse(models=[loading])]
    fake.faults.append(status(grpc.StatusCode.UNAUTHENTICATED, "the token has expired"))
    result = shoal(fake, "models", "--watch", "--json")
    assert [json.loads(line)["name"] for line in result.stdout.splitlines()] == ["minilm", "minilm", "other"]
    assert result.exit_code == 1
    assert result.stderr == "shoal: the token has expired (give a token with --token or SHOAL_TOKEN)\n"


def test_version() -> None:
    for args in (["version"], ["--version"]):
        assert CliRunner().invoke(app, args).stdout == f"shoal {metadata.version('shoal')}\n"
