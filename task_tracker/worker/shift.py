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
from typing import Any, Final

from task_tracker.handlers import HandlerRegistry
from task_tracker.records import TaskRecord
from task_tracker.store import Lease, LeaseStore, Stored
from task_tracker.tracker import TaskTracker
from task_tracker.wakeups import NoWakeUp, WakeUp
from task_tracker.worker.calls import Calls
from task_tracker.worker.crew import Crew
from task_tracker.worker.executor import Ended, Executor
from task_tracker.worker.heartbeat import Heartbeats
from task_tracker.worker.hooks import Hooks
from task_tracker.worker.limits import Limits
from task_tracker.worker.listening import Listener
from task_tracker.worker.loop import Claimer, ClaimLoop
from task_tracker.worker.outcomes import Outcome
from task_tracker.worker.pauses import Pauses
from task_tracker.worker.presence import Presence
from task_tracker.worker.readiness import SLOW_SECONDS, Fact, LoopWatch, StoreHealth, WorkerStatus
from task_tracker.worker.relays import Relays
from task_tracker.worker.rescuing import RESCUE_THREADS, Rescued, Rescuer
from task_tracker.worker.resources import Resources
from task_tracker.worker.slots import Slots
from task_tracker.worker.stopping import finish_all

__all__ = ["RELAYED", "Shift", "Terms"]

_log = logging.getLogger("task_tracker")

_CLAIM_THREADS: Final = 2
RELAYED: Final = 2
"""How many waiting tasks a finished one announces: enough that a chain of them does not die out."""
_RESTART_SECONDS: Final = 1.0
_PARTS_END_SECONDS: Final = 5.0
_CUT_SECONDS: Final = 1.0


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
    instance: Callable[[], str]
    """As ``holder``, but no other worker's as well."""
    status: Callable[[], WorkerStatus]


class Shift:
    """Made on the loop that it is to run on."""

    def __init__(self, terms: Terms) -> None:
        self.loop = asyncio.get_running_loop()
        self._terms = terms
        self._clock = clock = terms.tracker.clock
        self._hooks = terms.hooks
        self._health = StoreHealth(clock, terms.hooks)
        self._calls = Calls(_CLAIM_THREADS, blocking=terms.store.blocking, short=True)
        self._rescue_calls = Calls(RESCUE_THREADS, blocking=terms.store.blocking)
        self._heartbeats = Heartbeats(terms.store, clock, self._signalled, terms.hooks)
        self._slots = Slots(terms.concurrency, lambda: self._claims.look())  # noqa: PLW0108  # made below
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
            ahead=lambda most: self._claims.ahead(most, others_wait=self._executor.writes_wait),
        )
        self.crew = Crew(
            self._executor, self._heartbeats, self._slots, terms.registry, clock, self._attempt_ended
        )
        self._claimer = Claimer(
            terms.store,
            terms.limits,
            self._heartbeats,
            clock,
            terms.holder,
            self._executor.shortage,
            self.crew.beyond_limits,
        )
        self._claims = ClaimLoop(
            self._claimer,
            self._slots,
            self._calls,
            self._health,
            Pauses(clock, *terms.poll_seconds),
            clock,
            start=self.crew.start,
            refuse=self._give_back,
            no_thread=self._executor.shortage.note,
            give_back=self._let_go,
        )
        self._watch = LoopWatch(
            self.loop, clock, terms.hooks, self._claims.blocked, self._heartbeats.look_at_deadlines
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
            settle=self._settle,
        )
        self._presence = Presence(
            terms.store,
            clock,
            instance=terms.instance,
            kinds=terms.limits.registered,
            status=terms.status,
        )
        self._listener = Listener(terms.wake_up, clock, self.look)
        self._duties: list[asyncio.Task[None]] = []
        self._relays = Relays(terms.tracker.waking, blocking=terms.store.blocking)
        self._stops_at = 0.0
        self._told_to_stop = asyncio.Event()
        self._in_a_hurry = asyncio.Event()
        terms.hooks.begin()
        terms.limits.gates.begin()

    # ---- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin: everything that may wait does so in the background. Raises RuntimeError if there is no thread."""
        self._watch.start()
        self._presence.start()
        self._start_listening()
        self._start_claiming()
        if self._terms.rescue:
            self._duties.append(self._keep("rescuing", self._rescuer.run))

    def told(self) -> None:
        """Take note that the worker is to stop; the second time: now."""
        if self._told_to_stop.is_set():
            self._in_a_hurry.set()
        self._told_to_stop.set()

    def hurry_in(self, seconds: float) -> None:
        """Let what runs have no more than that: somebody else wants the worker to stop as well."""
        self.loop.call_later(seconds, self._in_a_hurry.set)

    async def until_told(self) -> None:
        """Return once it is to stop."""
        await self._told_to_stop.wait()

    def look(self) -> None:
        """Have it look for work. From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self.loop.call_soon_threadsafe(self._claims.look)

    async def rescue(self) -> Rescued:
        """Make one pass over what workers that stopped have left."""
        self._watch.start()
        return await self._rescuer.rescue()

    async def run_until_idle(self) -> int:
        """Settle what is left of others, then work until nothing waits; return how many attempts ended here.

        Handlers that linger are not waited for, nor what waits for their slots.
        """
        self._watch.start()
        if self._terms.rescue:
            await self._rescuer.rescue()
        self._claims.go_ahead()
        while True:
            batch = await self._claims.fill_free()
            if batch.error is not None:
                raise batch.error
            if len(self.crew) or self._claims.is_owing:
                await self._claims.news()
            elif not batch.claimed:
                return self.crew.ended

    async def stop(self, drain_seconds: float) -> int:
        """End everything in its order; return how many attempts or handlers were left behind.

        Cancelled, it has what runs told, gives that a moment, and ends everything all the same.
        """
        self._stops_at = self.loop.time()
        self._told_to_stop.set()
        self._claims.stop()
        self._duties.append(self._keep("giving back", self._claims.refuse_rest))
        self._rescuer.stop()
        self._presence.soon()
        self._hooks.tell("draining", running=self.running)
        left = 0
        try:
            await self.crew.drain(drain_seconds, self._in_a_hurry)
            await self._end_duties()
            left = await self.crew.leave()
            await self._resources.aclose()
        except asyncio.CancelledError:
            self._relays.end()
            for task in self._beside():
                task.cancel()
            left = await self.crew.cut_short()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._resources.aclose(), _CUT_SECONDS)
            raise
        finally:
            # Whatever still runs was told to stop. From here on no lease is renewed, and others may have the tasks.
            try:
                await self._executor.aclose()
            finally:
                await self._end_parts(left)
        return left

    async def _end_parts(self, left: int) -> None:
        self._relays.end()
        self._calls.end()
        self._rescue_calls.end()
        self._terms.limits.gates.end()
        parts = (
            self._listener.finish,
            self._presence.finish,
            self._watch.stop,
            self._heartbeats.finish,
            lambda _: self._hooks.tell("stopped", left=left),
            self._hooks.finish,
        )
        await finish_all(parts, _PARTS_END_SECONDS)

    async def _end_duties(self) -> None:
        if self._duties:
            # They have been told before the attempts were waited for.
            left = self._stops_at + _PARTS_END_SECONDS - self.loop.time()
            await asyncio.wait(self._duties, timeout=max(_PARTS_END_SECONDS / 10, left))
        # What was given back others are to hear of.
        await self._relays.finish(_PARTS_END_SECONDS / 10)
        beside = self._beside()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)

    def _beside(self) -> list[asyncio.Task[Any]]:
        return [*self._duties, *self._rescuer.under_way]

    def _start_listening(self) -> None:
        if not isinstance(self._terms.wake_up, NoWakeUp):
            self._listener.start()

    def _start_claiming(self) -> None:
        self._duties.append(self._keep("claiming", self._claims.run))

    def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return self.loop.create_task(self._kept(name, work), name=f"task_tracker {name}")

    async def _kept(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work``, and begin it again if it breaks: a worker that looks well and does nothing is the worst one."""
        while True:
            try:
                await work()
            except Exception:  # noqa: BLE001  # logged, and begun again
                _log.exception("%s broke; it begins again", name, extra={"event": "duty_broke", "duty": name})
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
        try:
            await self._calls.make(lambda: self._let_go(lease, stored))
        finally:
            self._heartbeats.let_go(lease)
        self._relays.given_back(stored.record)

    def _let_go(self, lease: Lease, stored: Stored) -> None:
        """Do that here and now, in whatever thread."""
        try:
            self._claimer.give_back(lease, stored)
        finally:
            self._heartbeats.let_go(lease)

    async def _settle(self, lease: Lease, stored: Stored, outcome: Outcome) -> Ended:
        ended = await self._executor.settle(lease, stored, outcome)
        self._claims.look()
        self._relays.written(ended.record)
        return ended

    # ---- wake-ups --------------------------------------------------------------------------------------

    def _attempt_ended(self, claimed: TaskRecord, written: TaskRecord | None) -> None:
        self._claims.look()  # also if its slot is not free yet, and for when it is to be tried again
        self._relay(claimed)
        self._relays.written(written)

    def _relay(self, record: TaskRecord) -> None:
        """Announce what a limit kept waiting: this end has made room for it, maybe on another worker."""
        if (
            record.task_type not in self._terms.limits.max_running
            or isinstance(self._terms.wake_up, NoWakeUp)
            or self._told_to_stop.is_set()
        ):
            return
        assert record.handler_version is not None
        kind = record.task_type, record.handler_version

        def announce() -> None:
            waiting = self._terms.store.claimable(task_types=[kind], limit=RELAYED)
            if waiting:
                self._terms.tracker.waking.wake(waiting)

        self._relays.start(announce)

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
        in_time = not self._heartbeats.is_stuck and (beat is None or beat <= self._terms.store.lease_seconds)
        duties = all(not duty.done() for duty in self._duties)
        lingering, without_lease = sum(self.crew.lingering.values()), self.crew.without_lease
        no_thread = self._executor.shortage.is_on
        well = (
            in_time
            and duties
            and not blocked
            and not away
            and not without_lease
            and lingering < self._slots.most
            and not no_thread
            and max(self._claims.claiming_seconds, rescuer.under_way_seconds) < SLOW_SECONDS
        )
        return WorkerStatus(
            name=name,
            state=state,
            ready=state == "working" and well and all(fact.ready for fact in facts.values()),
            slots=self._slots.most,
            running=len(self.crew),
            lingering=lingering,
            without_lease=without_lease,
            oldest_running_seconds=self.crew.oldest_seconds,
            last_heartbeat_seconds=beat,
            blocked_loop_seconds=blocked,
            store_away_seconds=away,
            no_thread=no_thread,
            claiming_seconds=self._claims.claiming_seconds,
            rescuing_seconds=rescuer.under_way_seconds,
            backlog=None if work is None else work.waiting,
            oldest_waiting_seconds=None if work is None else work.oldest_waiting_seconds,
            running_everywhere=None if work is None else work.running,
            oldest_running_everywhere_seconds=None if work is None else work.oldest_running_seconds,
            counted_seconds=rescuer.counted_seconds,
            paused=tuple(limits.paused),
            paused_everywhere=self._presence.paused,
            gated=tuple(limits.gated),
            unknown_kinds=rescuer.strangers,
            facts=facts,
        )
