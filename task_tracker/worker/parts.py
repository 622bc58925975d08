"""What the contexts of handlers stand on: of a worker, and of one attempt.

Owns that what few handlers ask for is made when one does. Refuses to know what handlers may call.
"""

from __future__ import annotations

import asyncio
import threading
from typing import NamedTuple

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

    __slots__ = ("_making", "_transacting", "_workdir", "around", "attempt", "loop", "signal")

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
        self._making = threading.Lock()
        self._workdir: WorkDirectory | None = None
        self._transacting: Transacting | None = None

    @property
    def workdir(self) -> WorkDirectory:
        """Its directory."""
        with self._making:
            if self._workdir is None:
                self._workdir = WorkDirectory(self.around.store, self.attempt.lease)
            return self._workdir

    @property
    def effects_dir(self) -> str | None:
        """What the record says of that directory; None if nobody asked for it."""
        return None if self._workdir is None else self._workdir.name

    @property
    def transacting(self) -> Transacting:
        """Its transactions."""
        around, workdir = self.around, self.workdir
        with self._making:
            if self._transacting is None:
                self._transacting = Transacting(
                    around.store,
                    self.attempt.lease,
                    self.attempt,
                    self.signal,
                    workdir,
                    around.store_calls,
                    around.begin_calls,
                    around.kept,
                    around.sizes,
                    around.clock,
                )
            return self._transacting

    @property
    def has_transacted(self) -> bool:
        """Whether anybody asked for transactions."""
        return self._transacting is not None
