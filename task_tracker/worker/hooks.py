"""What a worker tells the outside while it works: one event, one callable, for metrics and traces alike.

Owns the names of the events and that a hook can do no harm: while a worker works they are called on a thread of
their own, so that a slow one delays neither heartbeats nor the event loop. Refuses to know any metrics library: an
adapter is a function that takes an :class:`Event`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Self

from task_tracker.call_threads import CallThreads
from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.errors import SettingsError
from task_tracker.records import TaskRecord
from task_tracker.worker.running import is_async

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
"""Called on a thread of the worker's, one event after the other. Never awaited, so it cannot be async."""

MOST_WAITING: Final = 10_000
"""Events that wait for hooks that are too slow; what comes then is dropped, and that is said once."""


class Hooks:
    """Those who listen. What one of them raises is logged, once per event, and goes no further.

    From :meth:`begin` to :meth:`finish` they are told on a thread of their own, otherwise at once, by whoever tells
    them. Raises SettingsError for what cannot be called, or would have to be awaited.
    """

    def __init__(self, *hooks: Hook, clock: Clock = SYSTEM_CLOCK) -> None:
        for hook in hooks:
            if not callable(hook) or is_async(hook):
                raise SettingsError(f"hooks holds {hook!r:.80}; give ordinary functions that take an Event")
        self._hooks = hooks
        self._clock = clock
        self._threads: CallThreads | None = None
        self._complained: set[tuple[int, str]] = set()
        self._is_dropping = False

    @classmethod
    def of(cls, hooks: Sequence[Hook], clock: Clock) -> Self:
        """Return those of a setting."""
        if not isinstance(hooks, Sequence):
            raise SettingsError(f"hooks is {hooks!r:.80}; give a list of functions")
        return cls(*hooks, clock=clock)

    @property
    def are_there(self) -> bool:
        """Whether anybody listens."""
        return bool(self._hooks)

    def begin(self) -> None:
        """Tell them on a thread of their own from now on. Twice is safe."""
        if self._hooks and self._threads is None:
            self._threads = CallThreads(1)

    def finish(self, seconds: float) -> bool:
        """Let them hear what they have not heard yet; False if that takes longer than ``seconds``."""
        threads, self._threads = self._threads, None
        return threads is None or not threads.close(seconds, self._clock.monotonic)

    def tell(
        self, name: str, record: TaskRecord | None = None, *, seconds: float | None = None, **facts: object
    ) -> None:
        """Tell everybody. Never raises."""
        if not self._hooks:
            return
        event = Event(name, record, seconds, facts)
        threads = self._threads
        if threads is None:
            self._call(event)
            return
        try:
            is_full = len(threads) >= MOST_WAITING
            if not is_full:
                threads.post(object(), partial(self._call, event))
        except RuntimeError:  # there is no thread, or they have just been told to end
            is_full = True
        if is_full and not self._is_dropping:
            _log.warning(
                "hooks are not told of %s and more: they are too slow, or there is no thread for them",
                name,
                extra={"event": "hooks_dropped"},
            )
        self._is_dropping = is_full

    def _call(self, event: Event) -> None:
        for number, hook in enumerate(self._hooks):
            try:
                hook(event)
            except BaseException:  # noqa: BLE001  # logged, sys.exit() too; metrics must not cost a task
                if (number, event.name) not in self._complained:
                    self._complained.add((number, event.name))
                    _log.exception(
                        "a hook failed for %s; it is not said again",
                        event.name,
                        extra={"event": "metrics_hook_failed"},
                    )
