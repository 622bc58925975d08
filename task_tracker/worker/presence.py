"""What a worker says of itself in the store, for others to read: that it lives, what it does, and whether it is well.

Owns the fact with its short life, on a thread of its own, so that it goes out also while the event loop is blocked
(and says so then), and a store that hangs holds nothing else up. Refuses to find anything out: it says what the
worker's status says.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from task_tracker.clock import Clock
from task_tracker.duty import Duty
from task_tracker.errors import TaskTrackerError
from task_tracker.holdings import host_name
from task_tracker.redaction import clean_text, redact_text
from task_tracker.store import LeaseStore, WorkerFact
from task_tracker.worker.limits import Kind
from task_tracker.worker.readiness import WorkerStatus

__all__ = ["LIFE_SECONDS", "SAID_EVERY_SECONDS", "Presence"]

_log = logging.getLogger("task_tracker")

SAID_EVERY_SECONDS: Final = 5.0
LIFE_SECONDS: Final = 20.0
"""How long others believe it: one that comes late, or a store that is away for a moment, ends no life."""
_LONGEST_DETAIL: Final = 500


class Presence(Duty):
    """Says every few seconds what ``status`` returns, under ``instance``, a name that no other worker has."""

    def __init__(
        self,
        store: LeaseStore,
        clock: Clock,
        *,
        instance: Callable[[], str],
        kinds: Sequence[Kind],
        status: Callable[[], WorkerStatus],
    ) -> None:
        super().__init__("presence", clock)
        self._store = store
        self._instance = instance
        self._kinds = kinds
        self._status = status
        self._is_over = False
        self._is_failing = False
        self.paused: tuple[str, ...] = ()
        """The types that are paused for all workers, as they were known when that was asked last."""

    def run_once(self) -> float | None:
        """Say it once; or, when the worker has stopped, take it back, which is the last round."""
        try:
            if not self._is_over:
                status = self._status()
                self._store.publish(WorkerFact(self._instance(), self._data(status), LIFE_SECONDS))
                self.paused = tuple(self._store.paused())
            if self._is_over:  # maybe since it was said
                self._store.withdraw(self._instance())
        except TaskTrackerError as error:
            self._failed(error)
        else:
            self._is_failing = False
        return None if self._is_over else SAID_EVERY_SECONDS

    def on_error(self) -> float:
        """Go on as if nothing had been."""
        return SAID_EVERY_SECONDS

    def finish(self, seconds: float) -> bool:
        """Take back what was said; False if the store did not let that be done within ``seconds``.

        A thread that hangs in the store does it when it comes to it. Otherwise the fact's life ends, and ``doctor``
        names the worker.
        """
        self._is_over = True
        return self.end_soon(seconds)

    def _data(self, status: WorkerStatus) -> dict[str, Any]:
        data = dataclasses.asdict(status)
        for fact in data["facts"].values():
            fact["detail"] = redact_text(clean_text(fact["detail"]))[
                :_LONGEST_DETAIL
            ]  # the embedding server's words
        return {
            **data,
            "kinds": [list(kind) for kind in self._kinds],
            "host": host_name(),
            "pid": os.getpid(),
        }

    def _failed(self, error: TaskTrackerError) -> None:
        if self._is_failing:
            return
        self._is_failing = True
        _log.warning(
            "what this worker says of itself cannot be stored, so others will take it for dead; it goes on: %s",
            error,
            extra={"event": "presence_failed"},
        )
