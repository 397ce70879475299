"""The token of a mesh's own tools: kept for them alone, over restarts, and only where tokens are asked for."""

from __future__ import annotations

import stat
from pathlib import Path

from shoal_supervisor import operator_token
from shoal_supervisor.state import StateFolder


def test_it_is_kept_private_and_the_same(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    made = operator_token.prepare(state, wanted=True)
    assert len(made) >= 43 and operator_token.prepare(state, wanted=True) == made == operator_token.read(state)
    assert stat.S_IMODE(state.operator_token.stat().st_mode) == 0o600


def test_one_that_was_half_written_is_made_anew(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    state.operator_token.touch(mode=0o644)
    assert operator_token.prepare(state, wanted=True)
    assert stat.S_IMODE(state.operator_token.stat().st_mode) == 0o600


def test_an_open_mesh_has_none(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    operator_token.prepare(state, wanted=True)
    assert operator_token.prepare(state, wanted=False) == ""
    assert operator_token.read(state) is None
