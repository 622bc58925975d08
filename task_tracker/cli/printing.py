"""What commands print: answers on one stream, remarks on the other, and neither can break a command.

Owns what becomes of a line that cannot be printed. Refuses to know what is said.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from task_tracker.redaction import redact_text

__all__ = ["in_one_line", "note", "prepare", "say"]


def prepare() -> None:
    """Have every character printed, if need be as its number."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # it may be somebody's own, or closed
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def say(line: str) -> None:
    """Print a line of the answer. Where that fails it is said as a remark, unless nobody listens any more."""
    try:
        print(line, flush=True)  # noqa: T201  # that is how it answers
    except OSError as error:
        _give_up(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            note(f"task_tracker: what follows could not be printed ({error.strerror}):")
            note(line)


def note(line: str) -> None:
    """Print a remark to the person who typed the command."""
    try:
        print(line, file=sys.stderr, flush=True)  # noqa: T201  # it talks to a person in a terminal
    except OSError:
        _give_up(sys.stderr)


def in_one_line(text: object) -> str:
    """Return what others have written as one line that does nothing to a terminal, credentials masked."""
    return redact_text("".join(char if char.isprintable() else " " for char in str(text)))


def _give_up(stream: TextIO) -> None:
    """Throw away what a stream still holds and is given from now on: it would fail again at the exit."""
    with contextlib.suppress(OSError, ValueError):  # one that is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
