"""What a worker tells the outside while it works: one event, one callable, for metrics and traces alike.

Owns the names of the events and that a hook can do no harm. Refuses to know any metrics library: an adapter is a
function that takes an :class:`Event`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Final

from task_tracker.records import TaskRecord

__all__ = ["EVENTS", "Event", "Hook", "Hooks"]

_log = logging.getLogger("task_tracker")

EVENTS: Final = {
    "attempt_started": "a task was claimed and its handler is about to run; seconds: how long it waited",
    "attempt_ended": "an attempt is over; facts: outcome; seconds: how long it took",
    "lease_lost": "somebody else may have the task; its handler is told to stop",
    "rescued": "a task of a holder that stopped was settled here; facts: outcome",
    "heartbeat": "all leases were renewed once; facts: leases, failed; seconds: how long it took",
    "loop_blocked": "a handler keeps the event loop from running; seconds: for how long by now",
    "store_away": "the store does not answer; facts: error",
    "store_back": "it does again; seconds: how long it did not",
    "kind_unknown": "tasks wait that this worker has no handler for; facts: task_type, version, waiting",
    "draining": "the worker claims nothing more; facts: running",
    "stopped": "the worker has stopped; facts: left (attempts that did not end in time)",
}
"""The events of this version. More may come: hooks ignore those that they do not know."""


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. ``record`` is the task's as it was written last, None if it is about no task."""

    name: str
    record: TaskRecord | None = None
    seconds: float | None = None
    facts: Mapping[str, object] = dataclasses.field(default_factory=dict)


Hook = Callable[[Event], None]
"""Called in whatever thread the event happens in. Must be quick, and is never awaited."""


class Hooks:
    """Those who listen. What one of them raises is logged, once per event, and goes no further."""

    def __init__(self, *hooks: Hook) -> None:
        self._hooks = hooks
        self._complained: set[tuple[int, str]] = set()

    def tell(
        self, name: str, record: TaskRecord | None = None, *, seconds: float | None = None, **facts: object
    ) -> None:
        """Tell everybody. Never raises."""
        if not self._hooks:
            return
        event = Event(name, record, seconds, facts)
        for number, hook in enumerate(self._hooks):
            try:
                hook(event)
            except Exception:  # noqa: BLE001  # logged; metrics must not cost a task
                if (number, name) not in self._complained:
                    self._complained.add((number, name))
                    _log.exception(
                        "a hook failed for %s; it is not said again", name, extra={"event": "hook_failed"}
                    )
