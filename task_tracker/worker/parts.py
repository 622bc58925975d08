"""What the contexts of handlers stand on: of a worker, and of one attempt.

Owns that what few handlers ask for is made when one does. Refuses to know what handlers may call.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from task_tracker.clock import Clock
from task_tracker.sizes import Sizes
from task_tracker.store import LeaseStore
from task_tracker.submitting import Submitter
from task_tracker.worker.attempts import AttemptRecord
from task_tracker.worker.calls import Calls, Kept
from task_tracker.worker.effects import WorkDirectory
from task_tracker.worker.resources import Resources
from task_tracker.worker.stops import StopSignal
from task_tracker.worker.transactions import Transacting

__all__ = ["Parts", "Surroundings"]


class Surroundings(NamedTuple):
    """What the contexts of all attempts of a worker stand on."""

    store: LeaseStore
    resources: Resources
    store_calls: Calls
    begin_calls: Calls
    """In which transactions begin."""
    submitter: Submitter
    submit_calls: Calls
    """For what may wait for more than the store."""
    sizes: Sizes
    kept: Kept
    clock: Clock


class Parts:
    """What the contexts of one attempt stand on. Thread-safe."""

    __slots__ = ("_made", "around", "attempt", "loop", "signal")

    def __init__(
        self,
        around: Surroundings,
        attempt: AttemptRecord,
        signal: StopSignal,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.around = around
        self.attempt = attempt
        self.signal = signal
        self.loop = loop
        self._made: dict[str, Any] = {}

    @property
    def workdir(self) -> WorkDirectory:
        """Its directory."""
        made: WorkDirectory | None = self._made.get("workdir")
        if made is None:  # two threads may find that, and get the same one
            made = self._made.setdefault("workdir", WorkDirectory(self.around.store, self.attempt.lease))
        return made

    @property
    def effects_dir(self) -> str | None:
        """What the record says of that directory; None if nobody asked for it."""
        return self.workdir.name if "workdir" in self._made else None

    @property
    def transacting(self) -> Transacting:
        """Its transactions."""
        made: Transacting | None = self._made.get("transacting")
        if made is None:  # as above
            around = self.around
            new = Transacting(
                around.store,
                self.attempt.lease,
                self.attempt,
                self.signal,
                self.workdir,
                around.store_calls,
                around.begin_calls,
                around.kept,
                around.sizes,
                around.clock,
            )
            made = self._made.setdefault("transacting", new)
        return made

    @property
    def has_transacted(self) -> bool:
        """Whether anybody asked for transactions."""
        return "transacting" in self._made
