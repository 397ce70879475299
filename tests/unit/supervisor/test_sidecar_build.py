"""When the sidecar is built, and what is said when it cannot be."""

import os
from pathlib import Path

import pytest

from shoal_supervisor import sidecar_build
from shoal_supervisor.errors import CannotStart


def touch(path: Path, time: float) -> Path:
    path.touch()
    os.utime(path, (time, time))
    return path


def test_it_is_stale_when_absent_or_older_than_a_source(tmp_path: Path):
    binary, old, new = tmp_path / "binary", touch(tmp_path / "a.rs", 100), touch(tmp_path / "b.proto", 300)
    assert sidecar_build.is_stale(binary, [])
    touch(binary, 200)
    assert not sidecar_build.is_stale(binary, [old])
    assert sidecar_build.is_stale(binary, [old, new])


def test_all_its_sources_are_watched():
    repository = sidecar_build.REPOSITORY
    sources = {path.relative_to(repository).as_posix() for path in sidecar_build.sources(repository)}
    assert {
        "sidecar_rs/Cargo.lock",
        "sidecar_rs/Cargo.toml",
        "sidecar_rs/crates/sidecar/Cargo.toml",
        "sidecar_rs/crates/sidecar/src/main.rs",
        "protos/shoal/sidecar/v1/sidecar.proto",
    } <= sources


def test_a_given_binary_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given = tmp_path / "sidecar"
    monkeypatch.setenv(sidecar_build.GIVEN, str(given))
    with pytest.raises(CannotStart, match="not a program"):
        sidecar_build.sidecar_binary(print)
    given.touch(mode=0o755)
    assert sidecar_build.sidecar_binary(print) == given


@pytest.fixture
def unbuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No binary; the folder of programs, empty."""
    monkeypatch.delenv(sidecar_build.GIVEN, raising=False)
    monkeypatch.setenv("CARGO_TARGET_DIR", str(tmp_path / "target"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def test_without_cargo_one_line_says_what_to_do(unbuilt: Path):
    with pytest.raises(CannotStart, match=r"cargo is missing.*rustup.*SHOAL_SIDECAR_BIN") as refusal:
        sidecar_build.sidecar_binary(print)
    assert "\n" not in str(refusal.value)


def test_cargo_builds_what_is_not_there(unbuilt: Path):
    cargo = unbuilt / "cargo"
    cargo.write_text(
        "#!/bin/sh\n[ -f $GOOGLEAPIS_INCLUDE/google/rpc/status.proto ] || exit 9\n"
        '[ "$*" = "build --locked -p shoal-sidecar" ] || exit 8\n'
        '/bin/mkdir -p $CARGO_TARGET_DIR/debug && : > "$CARGO_TARGET_DIR/debug/shoal-sidecar"\n'
    )
    cargo.chmod(0o755)
    said: list[str] = []
    binary = sidecar_build.sidecar_binary(said.append)
    assert binary.is_file()
    assert len(said) == 1
    assert sidecar_build.sidecar_binary(said.append) == binary
    assert len(said) == 1, "nothing changed, so nothing is built"


def test_a_failed_build_is_one_line(unbuilt: Path):
    (unbuilt / "cargo").write_text("#!/bin/sh\nexit 101\n")
    (unbuilt / "cargo").chmod(0o755)
    with pytest.raises(CannotStart, match="cannot be built"):
        sidecar_build.sidecar_binary(print)
