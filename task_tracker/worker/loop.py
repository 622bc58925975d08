"""The claim loop: while a slot is free, take the next task; when there is none, wait for a hint or a while.

Owns when the store is asked. Runs on the worker's event loop, so that nothing more is claimed while a handler
blocks it: others may take those tasks. Refuses to know what is done with a claimed task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from task_tracker.clock import Clock
from task_tracker.duty import Duty
from task_tracker.errors import SettingsError, StoreUnavailable
from task_tracker.store import Lease, LeaseStore, Stored
from task_tracker.wakeups import WakeUp
from task_tracker.worker.calls import Calls
from task_tracker.worker.heartbeat import Heartbeats
from task_tracker.worker.limits import Limits
from task_tracker.worker.readiness import StoreHealth
from task_tracker.worker.slots import Slots

__all__ = ["ClaimLoop", "Claimer", "Listener", "Pauses"]

_log = logging.getLogger("task_tracker")

_FIRST_OUTAGE_SECONDS: Final = 0.1
_LONGEST_OUTAGE_SECONDS: Final = 5.0
_LISTEN_SECONDS: Final = 60.0
_INTERRUPT_SECONDS: Final = 0.02

Claimed = tuple[Lease, Stored]


class Pauses:
    """Pauses that double from ``shortest_seconds`` to ``longest_seconds``, jittered."""

    def __init__(self, clock: Clock, shortest_seconds: float, longest_seconds: float) -> None:
        if not 0 < shortest_seconds <= longest_seconds:
            raise SettingsError(
                f"poll_seconds is ({shortest_seconds!r}, {longest_seconds!r}); give the shortest and the longest "
                "pause, more than 0 seconds each"
            )
        self._clock = clock
        self._shortest = shortest_seconds
        self._longest = longest_seconds
        self.restart()

    def restart(self) -> None:
        """Begin with the shortest one again."""
        self._next = self._shortest

    def next(self) -> float:
        """Return the next one."""
        pause = self._next
        self._next = min(2 * pause, self._longest)
        return self._clock.jitter(pause)


class Batch(NamedTuple):
    """What one visit to the store brought. ``error``: why there is not more."""

    claimed: list[Claimed]
    error: Exception | None = None


class Claimer:
    """Claims for one worker. What it returns is renewed already."""

    def __init__(
        self,
        store: LeaseStore,
        limits: Limits,
        heartbeats: Heartbeats,
        clock: Clock,
        holder: Callable[[], str],
    ) -> None:
        self._store = store
        self._limits = limits
        self._heartbeats = heartbeats
        self._clock = clock
        self._holder = holder

    def claim(self, most: int) -> Batch:
        """Claim up to ``most`` tasks. Never raises: what was claimed before an error is claimed all the same."""
        claimed: list[Claimed] = []
        try:
            while len(claimed) < most:
                one = self._claim_one()
                if one is None:
                    break
                claimed.append(one)
        except Exception as error:  # noqa: BLE001  # handed on, with what was claimed before
            return Batch(claimed, error)
        return Batch(claimed)

    def _claim_one(self) -> Claimed | None:
        kinds = self._limits.claimable()
        if not kinds:
            return None
        asked_at = self._clock.monotonic()
        claimed = self._store.claim(
            holder=self._holder(), task_types=kinds, max_running=self._limits.max_running or None
        )
        if claimed is None:
            return None
        lease, stored = claimed
        try:
            self._heartbeats.hold(lease, stored, asked_at)
        except RuntimeError as error:
            # Without a heartbeat the lease would be lost in the middle of the work; it expires by itself.
            raise StoreUnavailable(
                f"no thread could be started to keep the lease on task {lease.key.task_id}; it goes to another worker"
            ) from error
        return claimed


class ClaimLoop:
    """Fills free slots until it is stopped. ``start`` is given what was claimed, each with its slot taken.

    ``refuse`` is awaited for what was claimed when it was told to stop already.
    """

    def __init__(
        self,
        claimer: Claimer,
        slots: Slots,
        calls: Calls,
        health: StoreHealth,
        pauses: Pauses,
        clock: Clock,
        *,
        start: Callable[[Lease, Stored], object],
        refuse: Callable[[Lease, Stored], Awaitable[None]],
    ) -> None:
        self._claimer = claimer
        self._slots = slots
        self._calls = calls
        self._health = health
        self._pauses = pauses
        self._outage = Pauses(clock, _FIRST_OUTAGE_SECONDS, _LONGEST_OUTAGE_SECONDS)
        self._start = start
        self._refuse = refuse
        self._news = asyncio.Event()
        self._stopping = False

    def look(self) -> None:
        """Have it look for work now: a task may wait, a slot may be free. On the loop's thread."""
        self._news.set()

    def stop(self) -> None:
        """Claim nothing more; :meth:`run` returns once a claim that is under way has come back."""
        self._stopping = True
        self._news.set()

    async def run(self) -> None:
        """Claim until told to stop. Survives whatever the store does."""
        while not self._stopping:
            self._news.clear()  # before looking: what is heard while looking leads to another look
            free = self._slots.free
            pause: float | None = None
            if free:
                batch = await self.fill(free)
                if batch.error is not None:
                    pause = self._outage.next()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._stopped(), pause)  # no hint makes a store come back
                    continue
                self._outage.restart()
                if batch.claimed:
                    self._pauses.restart()
                if len(batch.claimed) == free:
                    continue  # there may be more; if no slot is free, the next turn waits for one
                pause = self._pauses.next()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), pause)

    async def fill(self, free: int) -> Batch:
        """Claim up to ``free`` tasks and start them."""
        batch = await self._calls.make(lambda: self._claimer.claim(free))
        if batch.error is not None:
            self._trouble(batch.error)
        else:
            self._health.answered()
        for lease, stored in batch.claimed:
            if self._stopping:
                await self._refuse(lease, stored)
            else:
                self._slots.take()
                self._start(lease, stored)
        return batch

    def _trouble(self, error: Exception) -> None:
        if not isinstance(error, StoreUnavailable):
            _log.error("claiming failed; it goes on", exc_info=error, extra={"event": "claim_failed"})
        self._health.away(error)

    async def _stopped(self) -> None:
        while not self._stopping:
            self._news.clear()
            await self._news.wait()


class Listener(Duty):
    """Waits for wake-ups in a thread of its own and calls ``heard`` for each."""

    def __init__(self, wake_up: WakeUp, clock: Clock, heard: Callable[[], None]) -> None:
        super().__init__("wake-up listener", clock)
        self._wake_up = wake_up
        self._heard = heard

    def run_once(self) -> float | None:
        """Wait for one."""
        if self._wake_up.wait(_LISTEN_SECONDS):
            self._heard()
        return 0.0

    def on_error(self) -> float:
        """Polling finds what is not heard; the connection may be back soon."""
        return self._clock.jitter(_LONGEST_OUTAGE_SECONDS)

    def finish(self, seconds: float) -> bool:
        """End the thread; False if it hangs for longer than ``seconds``."""
        deadline = self._clock.monotonic() + seconds
        while self.running or not self.stop(_INTERRUPT_SECONDS):
            self.stop(0.0)
            with contextlib.suppress(Exception):  # that it cannot be interrupted costs time
                self._wake_up.interrupt()  # again and again: the thread may have been about to wait
            if self._clock.monotonic() >= deadline:
                return False
        return True
