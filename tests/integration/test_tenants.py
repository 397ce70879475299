"""A whole mesh that asks for tokens: who has none is not served, and one who floods it does not keep others out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import shoal
import shoal.aio
from shoal.cli.main import app
from shoal_supervisor.embedded import EmbeddedMesh
from tests.support import sim

MODEL = "slow"
FLOOD = 200
"""Requests of 40 ms each on two devices: four seconds of work."""
TEXT = "a text of some twenty tokens that costs what a long one would, since the device is slow: " * 3


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens") / "tokens.yaml"


def token(file: Path, tenant: str, *scopes: str) -> str:
    """A new token, made as people make them."""
    args = [arg for scope in scopes for arg in ("--scope", scope)]
    made = CliRunner().invoke(app, ["token", "new", "--tenant", tenant, *args, "--file", str(file)])
    assert made.exit_code == 0, made.stderr
    return made.stdout.strip()


@pytest.fixture(scope="module")
def tenants(file: Path) -> dict[str, str]:
    """Tokens by tenant."""
    return {"quiet": token(file, "quiet"), "flood": token(file, "flood"), "ops": token(file, "ops", "admin")}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory, file: Path, tenants: dict[str, str]) -> Iterator[EmbeddedMesh]:
    folder = tmp_path_factory.mktemp("mesh")
    cost = {"batch_ms": 30.0, "token_us": 500.0}
    tuned = {"sim": {"cost": cost, "interactive_ms": 150.0, "bulk_ms": 300.0}}
    with EmbeddedMesh(
        folder / "state",
        models=[str(sim.sim_profile(folder, MODEL, tuned=tuned))],
        workers=0,
        sim=sim.sim_file(folder, cost=cost),
        sim_workers=2,
        tokens=file,
    ) as running:
        running.wait_for_model(MODEL)
        yield running


def test_without_a_token_nobody_is_served(mesh: EmbeddedMesh, tenants: dict[str, str]) -> None:
    with shoal.connect(mesh.address) as client, pytest.raises(shoal.Unauthenticated) as refused:
        client.encode(TEXT, model=MODEL)
    assert refused.value.reason == "TOKEN_MISSING"
    with shoal.connect(mesh.address, token=tenants["ops"]) as client, pytest.raises(shoal.PermissionDenied):
        client.encode(TEXT, model=MODEL)
    with shoal.connect(mesh.address, token=tenants["quiet"]) as client:
        assert client.encode(TEXT, model=MODEL).shape == (sim.DIMENSIONS,)


def test_the_mesh_s_own_tools_have_a_token(mesh: EmbeddedMesh) -> None:
    status = CliRunner().invoke(app, ["status", "--state", str(mesh.state)])
    assert status.exit_code == 0, status.output
    assert f"model {MODEL}: ready" in status.output


def test_a_token_made_while_it_runs_is_taken(mesh: EmbeddedMesh, file: Path) -> None:
    late = token(file, "late")

    async def served() -> bool:
        async with shoal.aio.connect(mesh.address, token=late) as client:
            for _ in range(100):
                try:
                    return (await client.encode(TEXT, model=MODEL)).shape == (sim.DIMENSIONS,)
                except shoal.Unauthenticated:
                    await asyncio.sleep(0.05)
        return False

    assert asyncio.run(served())


def test_a_flood_leaves_others_served(mesh: EmbeddedMesh, tenants: dict[str, str]) -> None:
    async def answered_before_the_quiet() -> int:
        answered = 0
        async with (
            shoal.aio.connect(mesh.address, token=tenants["flood"]) as flood,
            shoal.aio.connect(mesh.address, token=tenants["quiet"]) as quiet,
            asyncio.TaskGroup() as tasks,
        ):

            async def one() -> None:
                nonlocal answered
                await flood.encode(TEXT, model=MODEL, timeout=120.0)
                answered += 1

            flooding = [tasks.create_task(one()) for _ in range(FLOOD)]
            while answered < 5:
                await asyncio.sleep(0.02)
            before = answered
            await quiet.encode(TEXT, model=MODEL, timeout=120.0)
            before = answered - before
            for task in flooding:
                task.cancel()
        return before

    # In the order of arrival it would be all the others; two windows of batches are what devices have in hand.
    assert asyncio.run(answered_before_the_quiet()) < FLOOD / 4
