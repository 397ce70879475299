"""`shoal version` and `shoal --version`."""

from __future__ import annotations

import typer


def version() -> None:
    """Print the version."""
    import shoal

    typer.echo(f"shoal {shoal.__version__}")


def show_version(wanted: bool) -> None:
    """Prints the version and exits, if wanted."""
    if wanted:
        version()
        raise typer.Exit
