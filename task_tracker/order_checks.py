"""What is asked for with a submitted task: which handler, when, how urgent, how long, how often.

Owns the bounds of the numbers, so that every store can keep what was accepted. Refuses to store or to encode.
"""

from __future__ import annotations

from typing import Final, NoReturn

from task_tracker.errors import SettingsError
from task_tracker.handlers import Handler, HandlerRegistry

__all__ = [
    "LARGEST_NUMBER",
    "check_attempts",
    "check_flag",
    "check_priority",
    "check_start_time",
    "check_timeout",
    "refuse_unregistered",
]

LARGEST_NUMBER: Final = 2**31 - 1
_LARGEST_PRIORITY: Final = 10**9
_YEAR_10000: Final = 253_402_300_800
"""A Unix time. What comes later was given in milliseconds; a timeout is no longer than that either."""


def check_start_time(at: float | None) -> float | None:
    """Return the Unix time before which a task is not to begin. Raises ValueError."""
    if at is None:
        return None
    if not _is_number(at) or not 0 <= at < _YEAR_10000:
        raise ValueError(f"not_before must be a Unix time in seconds, not {at!r:.80}; years end with 9999")
    return float(at)


def check_flag(value: bool, name: str) -> bool:
    """Return ``value`` if it is True or False: a text, "false" say, would count as true. Raises ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r:.80}")
    return value


def check_priority(priority: int | None) -> int | None:
    """Return ``priority`` if it can be one. Raises ValueError."""
    if priority is not None and (
        isinstance(priority, bool)
        or not isinstance(priority, int)
        or not -_LARGEST_PRIORITY <= priority <= _LARGEST_PRIORITY
    ):
        raise ValueError(
            f"priority must be a whole number from -{_LARGEST_PRIORITY} to {_LARGEST_PRIORITY}, not {priority!r:.80}"
        )
    return priority


def check_timeout(seconds: float | None, handler: Handler | None) -> float | None:
    """Return what an attempt may take: no more than the handler's own time. Raises ValueError."""
    if seconds is None:
        return None
    if not _is_number(seconds) or not 0 < seconds < _YEAR_10000:
        raise ValueError(
            f"timeout_seconds must be a finite number above 0, not {seconds!r:.80}; {_YEAR_10000} is too long"
        )
    if handler is not None and handler.timeout_seconds is not None and seconds > handler.timeout_seconds:
        raise ValueError(
            f"timeout_seconds is {seconds:g}, more than the {handler.timeout_seconds:g} of the handler of "
            f"{handler.task_type!r}; give no more than that"
        )
    return float(seconds)


def check_attempts(attempts: int | None, handler: Handler | None) -> int | None:
    """Return how often a task may be tried: once, if the handler is not idempotent. Raises ValueError."""
    if attempts is None:
        return None
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= LARGEST_NUMBER:
        raise ValueError(f"max_attempts must be a whole number of 1 or more, not {attempts!r:.80}")
    if attempts > 1 and handler is not None and not handler.idempotent:
        raise ValueError(
            f"max_attempts is {attempts}, and the handler of {handler.task_type!r} is not idempotent, so it must run "
            "once at most; leave it out"
        )
    return attempts


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def refuse_unregistered(handlers: HandlerRegistry, task_type: str, version: int | None) -> NoReturn:
    """Raise SettingsError for a handler that is not registered here."""
    versions = [str(known) for name, known in handlers.kinds() if name == task_type]
    which = f"version {version} of {task_type!r}" if versions else repr(task_type)
    rest = f", known are versions {', '.join(versions)}" if versions else ""
    raise SettingsError(
        f"no handler for {which} is registered here{rest}; pass unregistered=True if workers elsewhere have one"
    )
