"""A profile's files on this machine: where they lie, and whether they are what the profile says.

No framework is imported: the registry checks with it, and a worker before it asks a runtime to load.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from shoal_common import safetensors_header
from shoal_common.profile import Profile, Source

HUB_FILES = ("*.safetensors", "*.json", "tokenizer*", "vocab.txt", "merges.txt", "*.model")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
WIDTH_KEYS = ("hidden_size", "dim", "d_model", "n_embd")
NUMBER_KEYS = (*WIDTH_KEYS, "max_position_embeddings", "pad_token_id")
PADDED_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl")
"""Model types whose first text position follows the padding token's id, so that fewer are left."""
HEADER_BYTES = 100_000_000
"""The longest header that safetensors itself reads."""

Violation = tuple[str, str]


class WeightsError(Exception):
    """Files that cannot be used. `violations` are (field path in the profile, what is wrong)."""

    def __init__(self, violations: list[Violation]) -> None:
        super().__init__("; ".join(f"{path}: {what}" for path, what in violations))
        self.violations = violations


def verified(profile: Profile) -> Path:
    """The folder of a profile's files, located and checked. Blocks; a hub source may be downloaded.

    Raises:
        WeightsError: they are not there, cannot be read, or are not what the profile says.
    """
    folder = locate(profile.source)
    try:
        violations = check(folder, profile)
    except OSError as error:
        violations = [("source", f"{folder} cannot be read: {error}")]
    if violations:
        raise WeightsError(violations)
    return folder


def locate(source: Source) -> Path:
    """The folder that a source means. Blocks; a hub source not in the local cache is downloaded.

    Raises:
        WeightsError: there is no such package, folder or hub revision.
    """
    if source.package is not None:
        return _in_package(source.package, source.path or "")
    if source.folder is not None:
        return _folder(source.folder)
    return _from_hub(source.hub or "", source.revision or "")


def check(folder: Path, profile: Profile) -> list[Violation]:
    """What is wrong with the files of a folder, by the profile's fields; empty when nothing is.

    A model that is only ever simulated needs its tokenizer alone.
    """
    if profile.runtimes == ("sim",):
        return list(_check_tokenizer(folder))
    return [*_check_config(folder, profile), *_check_tokenizer(folder), *_check_weights(folder)]


def _in_package(package: str, path: str) -> Path:
    try:
        distribution = metadata.distribution(package)
    except (metadata.PackageNotFoundError, ValueError):
        raise WeightsError(
            [("source.package", f"the Python package {package!r} is not installed: pip install {package}")]
        ) from None
    if not any(str(file).startswith(f"{path}/") for file in distribution.files or ()):
        raise WeightsError([("source.path", f"the package {package} holds no folder {path!r}")])
    return Path(str(distribution.locate_file(path)))


def _folder(folder: str) -> Path:
    path = Path(folder)
    if not path.is_absolute():
        raise WeightsError([("source.folder", f"{folder!r} must be an absolute path")])
    if not path.is_dir():
        raise WeightsError([("source.folder", f"{folder!r} is no folder on this machine")])
    return path


def _from_hub(repository: str, revision: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise WeightsError([("source.hub", "needs the package huggingface_hub: pip install huggingface_hub")]) from None
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(HUB_FILES)))
    except Exception as error:  # the hub's own, requests' and the operating system's kinds
        raise WeightsError([("source.hub", f"{repository}@{revision} cannot be fetched: {error}"[:1000])]) from error


def _check_config(folder: Path, profile: Profile) -> Iterator[Violation]:
    config = _read_json(folder / "config.json")
    if not isinstance(config, dict):
        yield "source", f"config.json is missing in {folder}, or is not a JSON object"
        return
    numbers = {key: config[key] for key in NUMBER_KEYS if config.get(key) is not None}
    if wrong := [key for key, value in numbers.items() if type(value) is not int]:
        for key in wrong:
            yield "source", f"{key} in config.json of {folder} is {str(numbers[key])[:80]!r}, no whole number"
        return
    width = next((numbers[key] for key in WIDTH_KEYS if key in numbers), None)
    if width is not None and width != profile.encode.dimensions:
        yield "encode.dimensions", f"profile says {profile.encode.dimensions}, the model has {width}"
    positions = _positions(config.get("model_type"), numbers)
    if positions is not None and profile.encode.max_tokens > positions:
        yield "encode.max_tokens", f"profile says {profile.encode.max_tokens}, the model has {positions} positions"


def _positions(model_type: object, numbers: dict[str, int]) -> int | None:
    bound = numbers.get("max_position_embeddings")
    if bound is None or bound < 0:
        return None
    if model_type in PADDED_POSITIONS:
        return bound - numbers.get("pad_token_id", 1) - 1
    return bound


def _check_tokenizer(folder: Path) -> Iterator[Violation]:
    if not isinstance(_read_json(folder / "tokenizer.json"), dict):
        yield "source", f"tokenizer.json is missing in {folder}, or is not a JSON object"


def _check_weights(folder: Path) -> Iterator[Violation]:
    files = sorted(path for path in folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
        if pickles:
            yield "source", f"only safetensors are loaded, and {pickles[0]} in {folder} is not"
        else:
            yield "source", f"model.safetensors is missing in {folder}"
    yield from _check_index(folder, {path.name for path in files})
    for path in files:
        try:
            with path.open("rb") as file:
                safetensors_header.read(file, path.stat().st_size, HEADER_BYTES)
        except safetensors_header.HeaderError as error:
            yield "source", f"{path.name} in {folder} {error}"


def _check_index(folder: Path, files: set[str]) -> Iterator[Violation]:
    path = folder / "model.safetensors.index.json"
    if not path.exists():
        return
    index = _read_json(path)
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        yield "source", f"{path.name} in {folder} is no JSON object whose weight_map names a file for each tensor"
        return
    for name in sorted(set(shards.values()) - files):
        fault = "is missing in" if Path(name).name == name else "is not in"
        yield "source", f"{name[:200]!r} {fault} {folder}, and {path.name} names it"


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
