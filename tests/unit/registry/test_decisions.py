"""Small decisions: what is seeded, when a lane is cleared, what the settings' names mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal_registry.catalogue import PACKAGED, CatalogueError, chosen
from shoal_registry.retired_lanes import GRACE_S, RetiredLanes
from shoal_registry.seeding import is_due

MINILM = (PACKAGED / "minilm.yaml").read_text()


@pytest.mark.parametrize(
    ("registered", "seeded", "due"),
    [
        (None, None, True),
        (None, "new", True),
        ("old", "old", True),
        ("new", "old", True),
        ("new", None, True),
        ("operator's", None, False),
        ("operator's", "old", False),
        ("operator's", "new", False),
    ],
)
def test_an_operators_revision_is_not_undone(registered: str | None, seeded: str | None, due: bool):
    assert is_due(registered, seeded, "new") is due


def test_a_lane_is_cleared_after_its_grace_and_not_when_it_is_wanted_again():
    lanes = RetiredLanes()
    assert lanes.due({"a"}, {"a", "b"}, 0.0) == []
    assert lanes.due({"a"}, {"a", "b"}, GRACE_S - 1) == []
    assert lanes.due({"a"}, {"a", "b"}, GRACE_S) == ["b"]
    assert lanes.due({"a", "b"}, {"a", "b"}, GRACE_S + 1) == []
    assert lanes.due({"a"}, {"a", "b"}, GRACE_S + 2) == []
    assert lanes.due({"a"}, {"a"}, 3 * GRACE_S) == []


def test_the_settings_name_catalogue_entries_and_files(tmp_path: Path):
    other = tmp_path / "other.yaml"
    other.write_text(MINILM.replace("name: minilm", "name: other"))
    assert set(chosen(f"minilm, {other},", "")) == {"minilm", "other"}
    assert set(chosen("other", str(tmp_path))) == {"other"}
    assert chosen("", "") == {}


def test_wrong_names_are_told_before_anything_starts(tmp_path: Path):
    (tmp_path / "broken.yaml").write_text("name: [")
    for names, folder, said in (
        ("nobody", "", "minilm"),
        ("broken", str(tmp_path), "broken.yaml"),
        ("minilm", str(tmp_path / "absent"), "SHOAL_CATALOGUE"),
    ):
        with pytest.raises(CatalogueError, match=said):
            chosen(names, folder)
