"""Turns errors into one line on stderr and an exit code.

0  all went well
1  the call failed
2  the command line or its input is wrong
3  some items failed; the others were printed
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from shoal import errors

CALL_FAILED = 1
USAGE = 2
ITEMS_FAILED = 3
INTERRUPTED = 130


def say(message: str) -> None:
    """One line on stderr, whatever the message holds."""
    line = " ".join(message.split())
    typer.echo(f"shoal: {line.encode(errors='backslashreplace').decode()}", err=True)


def usage(message: str) -> NoReturn:
    """Ends the command as wrongly used."""
    say(message)
    raise typer.Exit(USAGE)


@contextmanager
def reported() -> Iterator[None]:
    """Ends the command with a line and an exit code if the client raises inside."""
    try:
        yield
    except errors.NotFound as error:
        unnamed = [name for name in error.near if name not in str(error)]
        hint = f" (did you mean {' or '.join(unnamed)}?)" if unnamed else ""
        _fail(f"{error}{hint}", CALL_FAILED)
    except errors.InvalidRequest as error:
        unnamed = [
            f"{each.field}: {each.description}" for each in error.violations if each.description not in str(error)
        ]
        _fail("; ".join([str(error), *unnamed]), CALL_FAILED)
    except errors.Unauthenticated as error:
        _fail(f"{error} (give a token with --token or SHOAL_TOKEN)", CALL_FAILED)
    except errors.CallError as error:
        _fail(str(error), CALL_FAILED)
    except ValueError as error:  # a bad value, an InvalidText among them
        _fail(str(error), USAGE)
    except BrokenPipeError:  # the reader of our output has enough
        sys.stderr.close()
        raise typer.Exit(CALL_FAILED) from None
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), USAGE)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _fail(message: str, exit_code: int) -> NoReturn:
    say(message)
    raise typer.Exit(exit_code) from None
