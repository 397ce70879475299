"""The catalogue: profiles that can be registered by name, packaged ones and those of the operator's folder."""

from __future__ import annotations

from pathlib import Path

from shoal_common.profile import ProfileError, parse_profile

PACKAGED = Path(__file__).with_name("catalogue")


class CatalogueError(Exception):
    """A profile that the settings name and that cannot be used."""


def chosen(names: str, folder: str) -> dict[str, str]:
    """Profile texts by model name, for comma-separated catalogue names or paths of profile files.

    Raises:
        CatalogueError: no such name or file, or it is no valid profile.
    """
    catalogue = {path.stem: path for path in sorted(PACKAGED.glob("*.yaml"))}
    if folder:
        if not Path(folder).is_dir():
            raise CatalogueError(f"SHOAL_CATALOGUE: {folder!r} is no folder")
        catalogue |= {path.stem: path for path in sorted(Path(folder).glob("*.yaml"))}
    texts: dict[str, str] = {}
    for wanted in filter(None, (name.strip() for name in names.split(","))):
        path = catalogue.get(wanted, Path(wanted))
        try:
            text = path.read_text()
            texts[parse_profile(text).name] = text
        except OSError as error:
            raise CatalogueError(
                f"SHOAL_REGISTER: {wanted!r} is no name in the catalogue ({', '.join(catalogue)}) "
                f"and no readable file: {error.strerror}"
            ) from None
        except (ProfileError, UnicodeDecodeError) as error:
            raise CatalogueError(f"SHOAL_REGISTER: {path}: {error}") from None
    return texts
