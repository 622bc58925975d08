"""A shift: everything that a worker has while it works, bound to one event loop.

Owns how the parts are put together and the order in which they end: claiming first, heartbeats last. Refuses to
decide what an attempt does (:mod:`task_tracker.worker.executor`) or when to claim (:mod:`task_tracker.worker.loop`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from task_tracker import transitions
from task_tracker.errors import TaskTrackerError
from task_tracker.handlers import HandlerRegistry
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import Lease, LeaseStore, Stored
from task_tracker.tracker import TaskTracker
from task_tracker.wakeups import NoWakeUp, WakeUp
from task_tracker.worker.calls import Calls
from task_tracker.worker.crew import Crew
from task_tracker.worker.executor import Executor
from task_tracker.worker.heartbeat import Heartbeats
from task_tracker.worker.hooks import Hooks
from task_tracker.worker.limits import Limits
from task_tracker.worker.loop import Claimer, ClaimLoop, Listener, Pauses
from task_tracker.worker.readiness import Fact, LoopWatch, StoreHealth, WorkerStatus
from task_tracker.worker.rescuing import Rescued, Rescuer
from task_tracker.worker.resources import Resources
from task_tracker.worker.slots import Slots

__all__ = ["Shift", "Terms"]

_log = logging.getLogger("task_tracker")

_CLAIM_THREADS: Final = 2
_RESCUE_THREADS: Final = 4
_RELAYED: Final = 2
"""How many waiting tasks a finished one announces: enough that a chain of them does not die out."""
_RESTART_SECONDS: Final = 1.0
_PARTS_END_SECONDS: Final = 5.0
_SLOW_PASS_SECONDS: Final = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terms:
    """What a worker was told, checked."""

    tracker: TaskTracker
    store: LeaseStore
    registry: HandlerRegistry
    concurrency: int
    timeout_seconds: float
    poll_seconds: tuple[float, float]
    limits: Limits
    hooks: Hooks
    wake_up: WakeUp
    rescue: bool
    holder: Callable[[], str]


class Shift:
    """Made on the loop that it is to run on."""

    def __init__(self, terms: Terms) -> None:
        self.loop = asyncio.get_running_loop()
        self._terms = terms
        self._clock = clock = terms.tracker.clock
        self._hooks = terms.hooks
        self._health = StoreHealth(clock, terms.hooks)
        self._calls = Calls(_CLAIM_THREADS, blocking=terms.store.blocking)
        self._rescue_calls = Calls(_RESCUE_THREADS, blocking=terms.store.blocking)
        self._heartbeats = Heartbeats(terms.store, clock, self._signalled, terms.hooks)
        self._slots = Slots(terms.concurrency, self.look)
        self._watch = LoopWatch(self.loop, clock, terms.hooks)
        self._resources = Resources(terms.registry)
        self._executor = Executor(
            terms.tracker,
            terms.registry,
            self._resources,
            holdings=self._heartbeats.holdings,
            locks=self._heartbeats.locks,
            hooks=terms.hooks,
            threads=terms.concurrency,
            default_timeout_seconds=terms.timeout_seconds,
        )
        self.crew = Crew(self._executor, self._heartbeats, self._slots, terms.registry, clock, self._relay)
        self._claims = ClaimLoop(
            Claimer(terms.store, terms.limits, self._heartbeats, clock, terms.holder),
            self._slots,
            self._calls,
            self._health,
            Pauses(clock, *terms.poll_seconds),
            clock,
            start=self.crew.start,
            refuse=self._give_back,
        )
        self._rescuer = Rescuer(
            terms.store,
            terms.registry,
            self._heartbeats,
            self._rescue_calls,
            self._health,
            terms.hooks,
            clock,
            holder=terms.holder,
            settle=self._executor.settle,
        )
        self._listener = Listener(terms.wake_up, clock, self._heard)
        self._duties: list[asyncio.Task[None]] = []
        self._relays: set[asyncio.Task[None]] = set()
        self._told_to_stop = asyncio.Event()
        self._in_a_hurry = asyncio.Event()

    # ---- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin: everything that may wait does so in the background."""
        self._watch.start()
        self._duties = [self._keep("claiming", self._claims.run)]
        if self._terms.rescue:
            self._duties.append(self._keep("rescuing", self._rescuer.run))
        if not isinstance(self._terms.wake_up, NoWakeUp):
            self._listener.start()

    def told(self) -> None:
        """Take note that the worker is to stop; the second time: now."""
        if self._told_to_stop.is_set():
            self._in_a_hurry.set()
        self._told_to_stop.set()

    async def until_told(self) -> None:
        """Return once it is to stop."""
        await self._told_to_stop.wait()

    def look(self) -> None:
        """Have it look for work. From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self.loop.call_soon_threadsafe(self._claims.look)

    async def rescue(self) -> Rescued:
        """Make one pass over what workers that stopped have left."""
        return await self._rescuer.rescue()

    async def run_until_idle(self) -> int:
        """Settle what is left of others, then work until nothing waits; return how many attempts ended here."""
        if self._terms.rescue:
            await self._rescuer.rescue()
        while True:
            batch = await self._claims.fill(self._slots.free) if self._slots.free else None
            if batch is not None and batch.error is not None:
                raise batch.error
            under_way = self.crew.under_way()
            if not under_way and batch is not None and not batch.claimed:
                return self.crew.ended
            if under_way:
                await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)

    async def stop(self, drain_seconds: float) -> int:
        """End everything in its order; return how many attempts or handlers were left behind."""
        self._told_to_stop.set()
        self._claims.stop()
        self._rescuer.stop()
        self._hooks.tell("draining", running=self.running)
        try:
            await self.crew.drain(drain_seconds, self._in_a_hurry)
            await self._end_duties()
            left = await self.crew.leave()
            await self._resources.aclose()
        finally:
            # Whatever still runs was told to stop. From here on no lease is renewed, and others may have the tasks.
            await self._executor.aclose()
            self._calls.end()
            self._rescue_calls.end()
            ending = Calls(1)
            for finish in (self._listener.finish, self._watch.stop, self._heartbeats.finish):
                await ending.make(partial(finish, _PARTS_END_SECONDS))
            ending.end()
        self._hooks.tell("stopped", left=left)
        return left

    async def _end_duties(self) -> None:
        if self._duties:
            await asyncio.wait(self._duties, timeout=_PARTS_END_SECONDS)
        for task in (*self._duties, *self._relays):
            task.cancel()
        await asyncio.gather(*self._duties, *self._relays, return_exceptions=True)

    def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return self.loop.create_task(self._kept(name, work), name=f"task_tracker {name}")

    async def _kept(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work``, and begin it again if it breaks: a worker that looks well and does nothing is the worst one."""
        while True:
            try:
                await work()
            except Exception:  # noqa: BLE001  # logged, and begun again
                _log.exception(
                    "%s broke; it begins again", name, extra={"event": "duty_failed", "duty": name}
                )
                if self._told_to_stop.is_set():
                    return
                await asyncio.sleep(self._clock.jitter(_RESTART_SECONDS))
            else:
                return

    # ---- what is claimed -------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """How many attempts have not ended."""
        return len(self.crew)

    def _signalled(self, lease: Lease) -> None:
        """Hear from a heartbeat that a lease is lost, or its task to be cancelled. In any thread."""
        record = self.crew.record_of(lease)
        if record is not None and lease.lost.is_set():
            self._hooks.tell("lease_lost", record)
        self._executor.notice(lease)

    async def _give_back(self, lease: Lease, stored: Stored) -> None:
        """Let go of what was claimed while the worker was told to stop: no line of its handler has run."""

        def release() -> None:
            with contextlib.suppress(TaskTrackerError):  # it expires then
                self._terms.store.release(lease, transitions.released(stored.record, self._clock.now()))

        try:
            await self._calls.make(release)
        finally:
            self._heartbeats.let_go(lease)

    # ---- wake-ups --------------------------------------------------------------------------------------

    def _heard(self) -> None:
        self.look()

    def _relay(self, record: TaskRecord) -> None:
        """Announce what a limit kept waiting: this end has made room for it, maybe on another worker."""
        if (
            record.task_type not in self._terms.limits.max_running
            or isinstance(self._terms.wake_up, NoWakeUp)
            or self._told_to_stop.is_set()
        ):
            return
        task = self.loop.create_task(self._announce(record), name="task_tracker relay")
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)

    async def _announce(self, record: TaskRecord) -> None:
        assert record.handler_version is not None
        kind = record.task_type, record.handler_version

        def waiting() -> list[TaskKey]:
            return [one.record.key for one in self._terms.store.unclaimed(task_types=[kind], limit=_RELAYED)]

        with contextlib.suppress(TaskTrackerError):  # a hint less; they are found by looking
            keys = await self._calls.make(waiting)
            if keys:
                self._terms.tracker.waking.wake(keys)

    # ---- asking --------------------------------------------------------------------------------------

    def status(self, name: str, state: str, facts: Mapping[str, Fact]) -> WorkerStatus:
        """Return what is known now. From any thread."""
        limits, rescuer = self._terms.limits, self._rescuer
        beat, blocked, away = (
            self._heartbeats.age_seconds,
            self._watch.blocked_seconds,
            self._health.away_seconds,
        )
        work = rescuer.workload
        in_time = beat is None or beat <= self._terms.store.lease_seconds
        duties = all(not duty.done() for duty in self._duties)
        well = (
            in_time and duties and not blocked and not away and rescuer.under_way_seconds < _SLOW_PASS_SECONDS
        )
        return WorkerStatus(
            name=name,
            state=state,
            ready=state == "working" and well and all(fact.ready for fact in facts.values()),
            slots=self._slots.most,
            running=len(self.crew),
            oldest_running_seconds=self.crew.oldest_seconds,
            last_heartbeat_seconds=beat,
            blocked_loop_seconds=blocked,
            store_away_seconds=away,
            rescuing_seconds=rescuer.under_way_seconds,
            backlog=None if work is None else work.waiting,
            oldest_waiting_seconds=None if work is None else work.oldest_waiting_seconds,
            running_everywhere=None if work is None else work.running,
            oldest_running_everywhere_seconds=None if work is None else work.oldest_running_seconds,
            counted_seconds=rescuer.counted_seconds,
            paused=tuple(limits.paused),
            gated=tuple(limits.gated),
            unknown_kinds=rescuer.strangers,
            facts=facts,
        )
