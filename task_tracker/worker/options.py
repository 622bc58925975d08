"""What a worker may be told: the values that are of no part's own.

Owns the checks, so that a mistake is said where the worker is built and not hours later by a task. Refuses to know
defaults.
"""

from __future__ import annotations

import sys
from typing import Final

from task_tracker.errors import SettingsError
from task_tracker.redaction import clean_text
from task_tracker.wakeups import WakeUp

__all__ = ["check_flag", "check_kind", "check_name", "check_poll_seconds", "check_seconds", "check_wake_up"]

LONGEST_NAME: Final = 200


def check_seconds(name: str, value: float, *, zero: bool = False) -> float:
    """Return ``value`` if it is a finite time above 0, or 0 if that is allowed. Raises SettingsError."""
    if not _is_number(value) or not (0 < value <= sys.float_info.max or (zero and value == 0)):
        raise SettingsError(f"{name} is {value!r:.80}; give a finite number of seconds above 0")
    return value


def check_poll_seconds(pauses: tuple[float, float]) -> tuple[float, float]:
    """Return ``pauses`` if they are the shortest and the longest. Raises SettingsError."""
    if not isinstance(pauses, tuple | list) or len(pauses) != 2 or not all(map(_is_number, pauses)):
        raise SettingsError(
            f"poll_seconds is {pauses!r:.80}; give two numbers, the shortest and the longest pause"
        )
    shortest, longest = pauses
    if not 0 < shortest <= longest <= sys.float_info.max:
        raise SettingsError(
            f"poll_seconds is ({shortest!r}, {longest!r}); give the shortest and the longest pause, more than 0 "
            "seconds each"
        )
    return shortest, longest


def check_name(name: str | None) -> None:
    """Raise SettingsError unless ``name`` is one line that logs, stores and people can read, or None."""
    if name is None:
        return
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or clean_text(name) != name:
        raise SettingsError(f"name is {name!r:.80}; give one line of plain text")
    if len(name) > LONGEST_NAME:
        raise SettingsError(f"name has {len(name)} characters; give {LONGEST_NAME} at most")


def check_kind(name: str, value: object, kind: type) -> None:
    """Raise SettingsError unless ``value`` is a ``kind``."""
    if not isinstance(value, kind):
        raise SettingsError(f"{name} is of the type {type(value).__name__}; give a {kind.__name__}")


def check_flag(name: str, value: bool) -> bool:
    """Return ``value`` if it is True or False; a text, "false" say, would count as true. Raises SettingsError."""
    if not isinstance(value, bool):
        raise SettingsError(f"{name} is {value!r:.80}; give True or False")
    return value


def check_wake_up(wake_up: WakeUp) -> WakeUp:
    """Return ``wake_up`` if it can be waited for. Raises SettingsError."""
    words = ("wake", "wait", "interrupt")
    if isinstance(wake_up, type) or not all(callable(getattr(wake_up, word, None)) for word in words):
        raise SettingsError(
            f"wake_up is {wake_up!r:.80}; give an object with wake(keys), wait(seconds) and interrupt()"
        )
    return wake_up


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
