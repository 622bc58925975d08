"""The claim loop: while a slot is free, take the next task; when there is none, wait for a hint or a while.

Owns when the store is asked, and what was claimed until it is started. Runs on the worker's event loop, so that nothing
more is claimed while a handler blocks it: others may take those tasks, and what was just claimed is given back to them.
The one exception saves a way to the loop and back for each task: the thread that has written the ends of attempts
claims the next tasks for their slots (:meth:`ClaimLoop.ahead`). Refuses to know what is done with a claimed task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from task_tracker import transitions
from task_tracker.call_threads import NoThread
from task_tracker.clock import Clock
from task_tracker.errors import StoreUnavailable, TaskTrackerError
from task_tracker.store import Lease, LeaseStore, Stored
from task_tracker.worker.calls import After, Calls
from task_tracker.worker.freed import FreedSlots
from task_tracker.worker.heartbeat import Heartbeats
from task_tracker.worker.limits import Kind, Limits
from task_tracker.worker.pauses import Pauses, outage_pauses
from task_tracker.worker.readiness import StoreHealth
from task_tracker.worker.retrying import uncounted
from task_tracker.worker.shortage import MOST_AT_ONCE, Shortage
from task_tracker.worker.slots import Slots

__all__ = ["ClaimLoop", "Claimer"]

_log = logging.getLogger("task_tracker")

_SPREAD_SECONDS: Final = 0.05
"""Within this time after a start time the workers that wait for it look, so that they do not all come at once."""
_BETWEEN_STARTS_SECONDS: Final = (0.05, 1.0)
"""The shortest and the longest pause between looks for start times of which nothing came."""

Claimed = tuple[Lease, Stored]


class Batch(NamedTuple):
    """What one visit to the store brought. ``error``: why there is not more."""

    claimed: list[Claimed]
    error: Exception | None = None
    due_seconds: float | None = None
    """In how long there may be more, if that was asked and is known."""


class Claimer:
    """Claims for one worker. What it returns is renewed already.

    ``beyond_limits``: how many handlers of a type go on here although their attempts are over. The store counts them no
    more, so that they are taken off the limit of their type here.
    """

    def __init__(
        self,
        store: LeaseStore,
        limits: Limits,
        heartbeats: Heartbeats,
        clock: Clock,
        holder: Callable[[], str],
        shortage: Shortage,
        beyond_limits: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._store = store
        self._beyond_limits = beyond_limits
        self._limits = limits
        self._heartbeats = heartbeats
        self._clock = clock
        self._holder = holder
        self._shortage = shortage

    @property
    def is_short(self) -> bool:
        """Whether the system has no thread for every handler, so that nothing is to be claimed beside another claim."""
        return self._shortage.is_on

    def claim(self, most: int, *, ask_due: bool = False) -> Batch:
        """Claim up to ``most`` tasks. Never raises: what was claimed before an error is claimed all the same.

        With ``ask_due`` also find out when there may be more. That is asked first: a start time that has come by then
        is not in the answer, but its task is among those that are claimed.
        """
        claimed: list[Claimed] = []
        due_seconds: float | None = None
        if self._shortage.is_on:
            most = min(most, MOST_AT_ONCE)
        try:
            if ask_due:
                due_seconds = self._due_seconds()
            while len(claimed) < most and self._claim_some(most - len(claimed), claimed):
                pass
        except Exception as error:  # noqa: BLE001  # handed on, with what was claimed before
            return Batch(claimed, error)
        return Batch(claimed, due_seconds=due_seconds)

    def _due_seconds(self) -> float | None:
        kinds, _ = self._claimable()
        return self._store.next_due_seconds(task_types=kinds) if kinds else None

    def _claim_some(self, most: int, claimed: list[Claimed]) -> bool:
        """Add to ``claimed`` what the store gives in one step; False if that is nothing."""
        kinds, limits = self._claimable()
        if not kinds:
            return False
        asked_at = self._clock.monotonic()
        more = self._store.claim_several(
            most, holder=self._holder(), task_types=kinds, max_running=limits or None
        )
        for number, (lease, stored) in enumerate(more):
            try:
                self._heartbeats.hold(lease, stored, asked_at)
            except RuntimeError as error:
                # Without a heartbeat the lease would be lost in the middle of the work.
                for rest in more[number:]:
                    self.give_back(*rest)
                raise StoreUnavailable(
                    f"no thread could be started to keep the lease on task {lease.key.task_id}; another worker gets it"
                ) from error
            claimed.append((lease, stored))
        return bool(more)

    def give_back(self, lease: Lease, stored: Stored) -> None:
        """Let go of what was claimed: no line of its handler has run. What cannot be given back expires by itself."""
        with contextlib.suppress(TaskTrackerError):
            self._store.release(lease, uncounted(transitions.released(stored.record, self._clock.now())))

    def _claimable(self) -> tuple[Sequence[Kind], Mapping[str, int]]:
        """Return the kinds that may be claimed now, and the limits under which."""
        if self._heartbeats.is_stuck:
            return (), {}  # it would be lost in the middle of the work
        kinds, limits = self._shortage.startable(self._limits.claimable()), self._limits.max_running
        beyond = self._beyond_limits() if limits else {}
        if not beyond:
            return kinds, limits
        limits = {task_type: most - beyond.get(task_type, 0) for task_type, most in limits.items()}
        return (
            [kind for kind in kinds if limits.get(kind[0], 1) > 0],
            {task_type: most for task_type, most in limits.items() if most > 0},
        )


class ClaimLoop:
    """Fills free slots until it is stopped. ``start`` is given what was claimed, each with its slot taken.

    ``refuse`` is awaited for what was claimed when it was told to stop already; ``give_back`` is called, in whatever
    thread, for what cannot be started since the loop is blocked. ``no_thread`` is told that there is none to claim in.
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
        no_thread: Callable[[Exception], None],
        give_back: Callable[[Lease, Stored], None],
    ) -> None:
        self._claimer = claimer
        self._slots = slots
        self._calls = calls
        self._health = health
        self._between_starts = Pauses(clock, *_BETWEEN_STARTS_SECONDS)
        self._pauses = pauses
        self._clock = clock
        self._outage = outage_pauses(clock)
        self._start = start
        self._refuse = refuse
        self._no_thread = no_thread
        self._give_back = give_back
        self._unstarted: deque[Claimed] = deque()
        self._claims_under_way: dict[object, float] = {}
        self._freed = FreedSlots()
        self._news = asyncio.Event()
        self._stopping = False

    @property
    def claiming_seconds(self) -> float:
        """For how long the oldest claim that is under way has been so; 0 between claims. From any thread."""
        began_at = min(list(self._claims_under_way.values()), default=None)
        return 0.0 if began_at is None else self._clock.monotonic() - began_at

    def look(self) -> None:
        """Have it look for work now: a task may wait, a slot may be free. On the loop's thread."""
        self._news.set()

    def ahead(self, most: int, *, others_wait: bool) -> After | None:
        """Claim in this thread, for the slots of attempts whose ends were just written and are not known yet.

        If other calls wait for a thread, that is left to who writes the next end: what is claimed for several slots at
        once costs less. By one thread at a time, whatever the store does, so that others are left for what is to be
        written. None if nothing is to be done here.
        """
        if self._claimer.is_short or not self._freed.add(most, others_wait=others_wait):
            return None
        return self._claim_ahead

    def _claim_ahead(self) -> Callable[[], None]:
        claim = object()
        self._claims_under_way[claim] = self._clock.monotonic()
        number = self._freed.begin_claiming()
        try:
            batch = self._claim(number) if number else None
        finally:
            self._freed.end_claiming()
            del self._claims_under_way[claim]
        if batch is not None:
            self._note(batch)
        return self._news.set

    @property
    def is_owing(self) -> bool:
        """Whether something is claimed and not started, or may be in a moment."""
        return self._freed.taken_on > 0 or bool(self._unstarted)

    def _free(self) -> int:
        """Return for how many more tasks there are slots; they are to be claimed for now."""
        return self._freed.counted(lambda: self._slots.free - len(self._unstarted))

    def go_ahead(self) -> None:
        """Let threads claim ahead from now on, until it is told to stop."""
        self._freed.open()

    async def news(self) -> None:
        """Return once it was told to look, or to stop, since this returned last."""
        await self._news.wait()
        # Attempts often end several at once, and what was claimed for all of them is one call.
        await asyncio.sleep(0)
        self._news.clear()

    def stop(self) -> None:
        """Claim nothing more; :meth:`run` returns once a claim that is under way has come back."""
        self._stopping = True
        self._freed.close()
        self._news.set()

    async def refuse_rest(self) -> None:
        """Refuse what was claimed ahead, also what is just being claimed, once it was told to stop."""
        while self.is_owing:
            self._news.clear()
            while (claimed := self._next_unstarted()) is not None:
                await self._refuse(*claimed)
            if self._freed.taken_on:
                await self._news.wait()

    async def run(self) -> None:
        """Claim until told to stop. Survives whatever the store does."""
        self.go_ahead()
        while not self._stopping:
            self._news.clear()  # before looking: what is heard while looking leads to another look
            await self._start_claimed()
            free = self._free()
            pause: float | None = None
            if free > 0:
                batch = await self.fill(free, ask_due=self._pauses.are_long)
                if batch.error is not None:
                    pause = self._outage.next()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._no_outage(), pause)  # no hint makes a store come back
                    continue
                self._outage.restart()
                if len(batch.claimed) == free:
                    continue  # there may be more; if no slot is free, the next turn waits for one
                pause = self._until_next_start(self._pauses.next(), batch.due_seconds)
            await self._news_within(pause)

    def _until_next_start(self, pause: float, due_seconds: float | None) -> float:
        """Return the pause, ended by the next start time; not again and again while nothing comes of that.

        Others may be quicker, or its task may not be claimed for now: its type is paused, or its limit is reached.
        """
        due = math.inf if due_seconds is None else due_seconds + self._clock.jitter(_SPREAD_SECONDS)
        if due >= pause:
            self._between_starts.restart()
            return pause
        return min(pause, max(due, self._between_starts.next()))

    async def _news_within(self, seconds: float | None) -> None:
        """Return once it was told to look, or to stop, or after ``seconds``: then it is to look as well."""
        if seconds is None:
            await self._news.wait()
            return
        # Not ``wait_for``, which makes a task for each wait in Python 3.11.
        timer = asyncio.get_running_loop().call_later(seconds, self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()

    async def fill_free(self) -> Batch:
        """Start what is claimed already, then claim for as many slots as are free."""
        await self._start_claimed()
        free = self._free()
        return await self.fill(free) if free > 0 else Batch([])

    async def fill(self, free: int, *, ask_due: bool = False) -> Batch:
        """Claim up to ``free`` tasks and start them; see :meth:`Claimer.claim`."""
        try:
            batch = await self._ask(free, ask_due=ask_due)
        except NoThread as error:
            self._no_thread(error)
            return Batch([], error)
        await self._start_claimed()
        return batch

    async def _start_claimed(self) -> None:
        """Start what is claimed, as far as there are slots: one claimed ahead may have come before its slot."""
        while self._stopping or self._slots.free:
            claimed = self._next_unstarted()
            if claimed is None:
                return
            if self._stopping:
                await self._refuse(*claimed)
                continue
            self._slots.take()
            self._start(*claimed)
            self._pauses.restart()
            self._between_starts.restart()
            # One in each turn of the loop: an async handler begins in the next one, and if it blocks the loop there,
            # the others must not be behind it.
            if self._unstarted:
                await asyncio.sleep(0)

    async def one(self) -> Batch:
        """Claim one for whoever starts it himself and has taken a slot for it. Raises NoThread."""
        batch = await self._ask(1)
        claimed = self._next_unstarted()  # unless it was given back because the loop did not run
        return Batch([] if claimed is None else [claimed], batch.error)

    def blocked(self) -> None:
        """Give back what was claimed and is not started: the loop does not run. From any thread."""
        while (claimed := self._next_unstarted()) is not None:
            self._give_back(*claimed)
            task_id = claimed[0].key.task_id
            _log.warning(
                "task %s was claimed and cannot begin while the event loop is blocked; it is given back",
                task_id,
                extra={"event": "given_back", "task_id": task_id},
            )

    async def _ask(self, most: int, *, ask_due: bool = False) -> Batch:
        claim = object()
        self._claims_under_way[claim] = self._clock.monotonic()
        try:
            batch = await self._calls.make(lambda: self._claim(most, ask_due=ask_due))
        finally:
            del self._claims_under_way[claim]
        self._note(batch)
        return batch

    def _claim(self, most: int, *, ask_due: bool = False) -> Batch:
        batch = self._claimer.claim(most, ask_due=ask_due)
        self._unstarted.extend(batch.claimed)
        return batch

    def _next_unstarted(self) -> Claimed | None:
        """Return the next one to whoever asks: whose thread gets it has it."""
        try:
            return self._unstarted.popleft()
        except IndexError:
            return None

    def _note(self, batch: Batch) -> None:
        """Tell how claiming went. In any thread."""
        error = batch.error
        if error is None:
            self._health.answered("claiming")
            return
        if not isinstance(error, StoreUnavailable):
            _log.error("claiming failed; it goes on", exc_info=error, extra={"event": "claim_failed"})
        self._health.away("claiming", error)

    async def _no_outage(self) -> None:
        """Return once it was told to stop, or something was claimed ahead: then the store is back."""
        while not (self._stopping or self._unstarted):
            self._news.clear()
            await self._news.wait()
