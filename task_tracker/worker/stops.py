"""How a handler is told to stop, on whatever thread it runs.

Owns the flag of one attempt. Refuses to stop anything: a coroutine is cancelled by who runs it, and a thread looks
here by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from task_tracker.clock import Clock
from task_tracker.errors import LeaseLost
from task_tracker.store import Lease
from task_tracker.worker.outcomes import Cancelled, OutOfTime, ShuttingDown, StopReason

__all__ = ["StopSignal"]

_LOOK_SECONDS: Final = 1.0
"""How often a thread that waits looks at its lease, of which nobody tells it while the loop is blocked."""


class StopSignal:
    """Thread-safe. Looks at the lease as well, so that what a heartbeat hears is seen even if the loop is blocked."""

    def __init__(self, lease: Lease, clock: Clock, *, cancellable: bool = True) -> None:
        self._lease = lease
        self._clock = clock
        self._cancellable = cancellable
        self._lock = threading.RLock()
        self._awaited: threading.Condition | None = None
        """Made once a thread waits: most handlers never do, and making it takes longer than all else here."""
        self._reason: StopReason | None = None
        self._over = False

    @property
    def reason(self) -> StopReason | None:
        """Why the handler is to stop; None while it is not."""
        if self._lease.lost.is_set():
            return StopReason.LOST
        if self._reason is None and self.cancel_requested and self._cancellable:
            return StopReason.CANCEL
        return self._reason

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody wants the task cancelled, also if its handler cannot be."""
        return self._lease.cancel_requested.is_set()

    def set(self, reason: StopReason) -> None:
        """Have the handler stop. The first reason stays, but for a lost lease."""
        with self._lock:
            if self._reason is None or reason is StopReason.LOST:
                self._reason = reason
            self._wake()

    def end(self) -> None:
        """The attempt is over: whoever still works on it is refused."""
        with self._lock:
            self._over = True
            self._wake()

    def check_lease(self) -> None:
        """Raise LeaseLost if nothing is to be written any more: the lease is lost, or the attempt is over."""
        task_id = self._lease.key.task_id
        if self._lease.lost.is_set():
            raise LeaseLost(f"somebody else may work on task {task_id} now; stop working on it")
        if self._over:
            raise LeaseLost(
                f"this attempt at task {task_id} is over; what goes on after it is another task's work"
            )

    def check(self) -> None:
        """Raise if the handler is to stop: Cancelled, OutOfTime, ShuttingDown, LeaseLost."""
        over = self._over  # first: an attempt that is over had a reason before
        reason, task_id = self.reason, self._lease.key.task_id
        if reason is StopReason.LOST:
            self.check_lease()
        if reason is StopReason.CANCEL:
            raise Cancelled(f"task {task_id} is to be cancelled")
        if reason is StopReason.TIMEOUT:
            raise OutOfTime(f"task {task_id} has taken longer than it may")
        if reason is StopReason.SHUTDOWN:
            raise ShuttingDown(f"the worker that runs task {task_id} ends")
        if over:
            self.check_lease()

    def wait_for(self, is_done: Callable[[], bool], check: Callable[[], None]) -> None:
        """Block this thread until ``is_done``, of which :meth:`wake` tells. Raises what ``check`` raises meanwhile."""
        with self._lock:
            while not is_done():
                check()
                self._wait(_LOOK_SECONDS)

    def wake(self) -> None:
        """Have whoever waits look."""
        with self._lock:
            self._wake()

    def _wake(self) -> None:
        if self._awaited is not None:
            self._awaited.notify_all()

    def pause(self, seconds: float) -> None:
        """Block this thread for ``seconds``, or until the handler is to stop."""
        with self._lock:
            if self.reason is None and not self._over:
                self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        """Wait until something has changed, or for ``seconds``; under the lock, which is free meanwhile."""
        if self._awaited is None:
            self._awaited = threading.Condition(self._lock)
        self._clock.wait(self._awaited, seconds)
