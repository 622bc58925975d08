"""When a task is tried again, and whether it is at all: the rule that executor and rescuer share.

Owns arithmetic. Refuses to write. Attempts are counted at claim, so that a crash counts: a task that kills its
worker is not tried for ever.
"""

from __future__ import annotations

from typing import Final

from task_tracker.clock import Clock
from task_tracker.handlers import Handler
from task_tracker.records import TaskRecord

__all__ = ["attempts_allowed", "may_retry", "retry_at", "retry_pause"]

_MOST_DOUBLINGS: Final = 32
"""2 to this power seconds is longer than any limit; larger powers would only overflow."""


def attempts_allowed(handler: Handler, record: TaskRecord) -> int:
    """Return how many attempts ``record`` may have: one, unless its handler is idempotent.

    A task's own ``max_attempts`` wins over the handler's.
    """
    if not handler.idempotent:
        return 1
    return record.max_attempts if record.max_attempts is not None else handler.max_attempts


def may_retry(handler: Handler, record: TaskRecord, attempts: int) -> bool:
    """Tell whether a task may be tried again after so many ``attempts``."""
    return attempts < attempts_allowed(handler, record)


def retry_pause(handler: Handler, attempts: int, clock: Clock) -> float:
    """Return the seconds to wait after so many ``attempts``: doubled each time, limited, jittered."""
    doublings = min(max(attempts - 1, 0), _MOST_DOUBLINGS)
    return clock.jitter(min(handler.retry_seconds * 2.0**doublings, handler.retry_limit_seconds))


def retry_at(handler: Handler, attempts: int, clock: Clock) -> float:
    """Return the Unix time before which a task is not tried again after so many ``attempts``."""
    return clock.now() + retry_pause(handler, attempts, clock)
