"""When a task is tried again, and whether it is at all: the rule that executor and rescuer share.

Owns arithmetic, and the count of claims that use up no attempt. Refuses to write. Attempts are counted at claim, so
that a crash counts: a task that kills its worker is not tried for ever. What a worker gave back because it was shut
down, or could not begin, is no fault of the task; stores cannot know that, so the record says how often it was.
"""

from __future__ import annotations

from typing import Final

import orjson

from task_tracker.clock import Clock
from task_tracker.handlers import Handler
from task_tracker.records import TaskRecord, compact
from task_tracker.submitting import INTERRUPTED

__all__ = ["attempts_allowed", "attempts_used", "may_retry", "retry_at", "retry_pause", "uncounted"]

_MOST_DOUBLINGS: Final = 32
"""2 to this power seconds is longer than any limit; larger powers would only overflow."""


def attempts_allowed(handler: Handler, record: TaskRecord) -> int:
    """Return how many attempts ``record`` may have: one, unless its handler is idempotent.

    A task's own ``max_attempts`` wins over the handler's.
    """
    if not handler.idempotent:
        return 1
    return record.max_attempts if record.max_attempts is not None else handler.max_attempts


def attempts_used(record: TaskRecord, attempts: int) -> int:
    """Return how many of so many ``attempts`` count: those that were interrupted do not."""
    return max(attempts - _interrupted(record), 0)


def uncounted(record: TaskRecord) -> TaskRecord:
    """Return a ``record`` that is given back, with the note that the attempt under way does not count."""
    meta = record.meta
    if not isinstance(meta, dict):
        meta = {}
    meta[INTERRUPTED] = _interrupted(record) + 1
    return record.changed(meta_json=compact(orjson.dumps(meta)))


def may_retry(handler: Handler, record: TaskRecord, attempts: int) -> bool:
    """Tell whether a task may be tried again after so many ``attempts``."""
    return attempts_used(record, attempts) < attempts_allowed(handler, record)


def retry_pause(handler: Handler, attempts: int, clock: Clock) -> float:
    """Return the seconds to wait after so many ``attempts``: doubled each time, limited, jittered."""
    doublings = min(max(attempts - 1, 0), _MOST_DOUBLINGS)
    return clock.jitter(min(handler.retry_seconds * 2.0**doublings, handler.retry_limit_seconds))


def retry_at(handler: Handler, attempts: int, clock: Clock) -> float:
    """Return the Unix time before which a task is not tried again after so many ``attempts``."""
    return clock.now() + retry_pause(handler, attempts, clock)


def _interrupted(record: TaskRecord) -> int:
    meta = record.meta if record.meta_json is not None else None
    number = meta.get(INTERRUPTED) if isinstance(meta, dict) else None
    return number if isinstance(number, int) and number > 0 else 0  # a file may hold anything
