"""OnDemandWorker: a worker that claims one task each time that it is told to, and none by itself.

For queues that decide when something runs and how much at once (ARQ): each of their messages is one permission to run
the next task. Owns what such a permission comes to. All else is that of :class:`task_tracker.worker.worker.Worker`:
heartbeats, rescuing, draining, readiness. Refuses to wait for room: who comes while all slots are taken is turned away,
and the next attempt that ends announces what waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from task_tracker.call_threads import NoThread
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import Lease
from task_tracker.worker.shift import RELAYED, Shift, Terms
from task_tracker.worker.worker import Worker

__all__ = ["OnDemandWorker", "Visit", "Word"]

_log = logging.getLogger("task_tracker")

_UNFINISHED_SECONDS: Final = 5.0

Word = Literal["ran", "nothing", "full", "stopping", "away"]


class Visit(NamedTuple):
    """What a permission came to.

    ``ran``: an attempt at the task ``key`` began and has ended. ``nothing``: no task waits that may run now.
    ``full``: all slots are taken. ``stopping``: the worker does not work (any more). ``away``: the store did not
    answer.
    """

    word: Word
    key: TaskKey | None = None


class _Begun(NamedTuple):
    """An attempt that was begun on somebody's behalf."""

    lease: Lease
    record: TaskRecord
    attempt: asyncio.Task[None]


class _Caller:
    """Who waits for a visit."""

    gone = False


class OnDemandWorker(Worker):
    """Runs :meth:`run_next` as often as it is called, ``concurrency`` of them at once. Takes what a Worker takes."""

    _shift: SingleShift | None

    async def run_next(self, hinted: TaskKey | None = None) -> Visit:
        """Claim the next task that may run here, see its attempt through, and say what came of it.

        Next is what the store says: of the kinds that there are handlers for, whose start time has come, by priority
        and age, within ``max_running``. ``hinted`` is the task that somebody spoke of; if another one was next, that
        one is announced anew. Nothing is waited for but the attempt. Cancelled, it has the handler told that the
        worker ends, and waits until the task is settled; cancelled again, it waits no longer.
        """
        shift = self._shift
        return Visit("stopping") if shift is None else await shift.run_next(hinted)

    def owe(self) -> None:
        """Take note that tasks wait that nobody speaks of: each attempt that ends announces two, until none is left."""
        shift = self._shift
        if shift is not None:
            shift.owe()

    @property
    def has_room(self) -> bool:
        """Whether it works and a slot is free."""
        shift = self._shift
        return shift is not None and shift.has_room

    def _new_shift(self) -> SingleShift:
        return SingleShift(self._terms)


class SingleShift(Shift):
    """A shift whose claims come one by one, from outside."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._visits: set[asyncio.Task[_Begun | Word]] = set()
        self._payments: set[object] = set()
        self._is_owing = False  # somebody was turned away: a task may wait of which nobody speaks any more

    def _start_claiming(self) -> None:
        """Do nothing: whoever calls :meth:`run_next` does."""

    def _start_listening(self) -> None:
        """Nor is anything heard: the queue speaks to whoever calls that."""

    def owe(self) -> None:
        """See :meth:`OnDemandWorker.owe`. From any thread."""
        self._is_owing = True

    @property
    def has_room(self) -> bool:
        """Whether a slot is free. From any thread."""
        return self._slots.free > 0 and not self._told_to_stop.is_set()

    async def run_next(self, hinted: TaskKey | None) -> Visit:
        """See :meth:`OnDemandWorker.run_next`."""
        if self._told_to_stop.is_set():
            return Visit("stopping")
        if not self._slots.free:
            self._is_owing = True
            return Visit("full")
        self._slots.take()  # before the store is asked: two that come at once must not share the last one
        caller = _Caller()
        visit = self.loop.create_task(self._begin(caller), name="task_tracker claim")
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)
        try:
            begun = await asyncio.shield(visit)  # a claim that is under way cannot be called back
        except asyncio.CancelledError:
            caller.gone = True
            raise
        if not isinstance(begun, _Begun):
            return Visit(begun)
        if hinted is not None and begun.lease.key != hinted:
            self._relays.start(lambda: self._announce([hinted]))
        await self._see_through(begun)
        return Visit("ran", begun.lease.key)

    # ---- within --------------------------------------------------------------------------------------

    async def _begin(self, caller: _Caller) -> _Begun | Word:
        """Claim one and begin it, in the slot that was taken for it."""
        is_kept = False
        try:
            try:
                batch = await self._claims.one()
            except NoThread as error:
                _log.warning("no thread to claim a task: %s", error, extra={"event": "no_claim_thread"})
                return "away"
            if not batch.claimed:
                return "nothing" if batch.error is None else "away"
            ((lease, stored),) = batch.claimed
            if caller.gone or self._told_to_stop.is_set():
                await self._give_back(lease, stored)
                return "stopping"
            begun = _Begun(lease, stored.record, self.crew.start(lease, stored))
            is_kept = True
            return begun
        finally:
            if not is_kept:
                self._slots.give_back()

    async def _see_through(self, begun: _Begun) -> None:
        try:
            await asyncio.wait({begun.attempt})
        except asyncio.CancelledError:
            self._executor.interrupt_one(begun.lease)
            await asyncio.wait({begun.attempt}, timeout=self.crew.patience_seconds(begun.record))
            raise

    async def _end_duties(self) -> None:
        if self._visits:
            await asyncio.wait(set(self._visits), timeout=_UNFINISHED_SECONDS)
        await super()._end_duties()

    # ---- wake-ups --------------------------------------------------------------------------------------

    def _relay(self, record: TaskRecord) -> None:
        # One that is under way may fail, and this end may be the last one for long. They come one after the other.
        if (self._is_owing or self._payments) and not self._told_to_stop.is_set():
            payment = object()
            self._payments.add(payment)
            if not self._relays.start(lambda: self._pay(payment)):
                self._payments.discard(payment)
        else:
            super()._relay(record)

    def _pay(self, payment: object) -> None:
        """Announce what may wait since somebody was turned away; that is owed until no more waits than is announced."""
        was_owing = self._is_owing
        self._is_owing = False  # before looking: who is turned away meanwhile makes it owing again
        is_done = not was_owing
        try:
            if is_done:
                return
            waiting = self._terms.store.claimable(task_types=self._terms.limits.registered, limit=RELAYED + 1)
            is_done = self._announce(waiting[:RELAYED])
            is_done = is_done and len(waiting) <= RELAYED
        finally:
            self._is_owing = self._is_owing or not is_done
            self._payments.discard(payment)

    def _announce(self, keys: Sequence[TaskKey]) -> bool:
        return not keys or self._terms.tracker.waking.wake(keys)
