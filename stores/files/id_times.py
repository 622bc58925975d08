"""Times in generated ids, and how far they are to be believed.

Owns the tolerances. A generated id carries the time at which it was made, which is that of its record unless
somebody used the id again or brought it along.
"""

from __future__ import annotations

from typing import Final

from task_tracker.clock import is_generated_id, time_of_id

__all__ = ["ID_SLACK_SECONDS", "is_recent", "out_of_order"]

ID_SLACK_SECONDS: Final = 1.0
"""How far ``created_at`` may lie from the time in a generated id (clocks step, counters run ahead)."""
RECENT_SECONDS: Final = 10.0
"""Well above ID_SLACK_SECONDS: an id that comes again later than that marks its directory as unordered."""


def out_of_order(task_id: str, created_at: float) -> bool:
    """Tell whether an id of generated form carries another time than its record."""
    return is_generated_id(task_id) and abs(time_of_id(task_id) - created_at) > ID_SLACK_SECONDS


def is_recent(task_id: str, now_ns: int) -> bool:
    """Tell whether a generated id was made a moment ago, by this host's clock: it may come again unnoticed."""
    return abs(time_of_id(task_id) - now_ns / 1e9) < RECENT_SECONDS
