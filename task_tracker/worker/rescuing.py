"""The rescuer: settles tasks of handlers whose holder has stopped, and finds those that nobody here knows.

Owns what becomes of them: once more if the handler may run twice and has attempts left, else failed through its
``on_failure``. The reconciler of :mod:`task_tracker.reconciler` leaves such tasks to it. Refuses to judge by its own
clock, and to touch tasks of a type or version for which there is no handler here: another worker may have it.
Any number of workers may do this at once: of two that take the same task one loses, harmlessly.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from task_tracker.clock import Clock
from task_tracker.errors import InvalidTransition, LeaseHeld, LeaseLost, StoreUnavailable, TaskNotFound
from task_tracker.handlers import Handler, HandlerRegistry
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.store import Expired, Lease, LeaseStore, Stored, Workload
from task_tracker.worker.calls import Calls
from task_tracker.worker.executor import Ended
from task_tracker.worker.heartbeat import Heartbeats
from task_tracker.worker.hooks import Hooks
from task_tracker.worker.limits import Kind
from task_tracker.worker.outcomes import CancelledOutcome, Failed, Outcome, RetryAt
from task_tracker.worker.readiness import StoreHealth
from task_tracker.worker.retrying import attempts_allowed, may_retry, retry_at

__all__ = ["Rescued", "Rescuer", "judged_loss"]

_log = logging.getLogger("task_tracker")

Settle = Callable[[Lease, Stored, Outcome], Awaitable[Ended]]

BATCH: Final = 1000
_AT_ONCE: Final = 4
"""Tasks that are settled at the same time: an ``on_failure`` that hangs holds up its own only."""
_UNTIMED_PAUSE_SECONDS: Final = 60.0
_LOOK_FOR_STRANGERS_SECONDS: Final = 60.0
_ERRORS_TOLD: Final = 3

LOST: Final = "the process that worked on it stopped"


class Rescued(NamedTuple):
    """What one pass did."""

    retried: int = 0
    """Pending again."""
    failed: int = 0
    """Ended as ``holder_lost`` or ``crash_loop``."""
    cancelled: int = 0
    recovered: int = 0
    """What crashes had left half-made, settled by the store."""
    left: int = 0
    """Of a type or version that is not known here: left to others."""
    errors: int = 0
    """What could not be settled in this pass; the next one tries again."""


def judged_loss(
    handler: Handler, record: TaskRecord, attempts: int, *, cancel_requested: bool, clock: Clock
) -> Outcome:
    """Return what becomes of a task whose holder has stopped after so many ``attempts``."""
    if cancel_requested or record.status is TaskStatus.CANCELLING:
        return CancelledOutcome()
    if may_retry(handler, record, attempts):
        return RetryAt(retry_at(handler, attempts, clock), LOST, "holder_lost")
    if attempts_allowed(handler, record) > 1:
        return Failed(f"{LOST}, and so did the others that tried: {attempts} attempts", "crash_loop")
    return Failed(LOST, "holder_lost")


class Rescuer:
    """Makes a pass every heartbeat. ``settle`` writes an outcome under a lease, after ``on_failure`` if it failed."""

    def __init__(
        self,
        store: LeaseStore,
        registry: HandlerRegistry,
        heartbeats: Heartbeats,
        calls: Calls,
        health: StoreHealth,
        hooks: Hooks,
        clock: Clock,
        *,
        holder: Callable[[], str],
        settle: Settle,
    ) -> None:
        self._store = store
        self._registry = registry
        self._heartbeats = heartbeats
        self._calls = calls
        self._health = health
        self._hooks = hooks
        self._clock = clock
        self._holder = holder
        self._settle = settle
        self._stopping = asyncio.Event()
        self._look_for_strangers_at = -math.inf
        self._waiting_strangers: Counter[Kind] = Counter()
        self._reported: set[Kind] = set()
        self._began_at: float | None = None
        self._counted_at: float | None = None
        self.strangers: tuple[Kind, ...] = ()
        """Kinds of tasks that wait, or whose holder has stopped, and that nobody here has a handler for."""
        self.workload: Workload | None = None
        """What waited and ran when it was counted last."""

    @property
    def counted_seconds(self) -> float | None:
        """How long ago the workload was counted; None if it never was."""
        return None if self._counted_at is None else self._clock.monotonic() - self._counted_at

    @property
    def under_way_seconds(self) -> float:
        """For how long the pass that is under way has been so; 0 between passes."""
        return 0.0 if self._began_at is None else self._clock.monotonic() - self._began_at

    def stop(self) -> None:
        """Begin nothing more; :meth:`run` returns when what it has begun is settled."""
        self._stopping.set()

    async def run(self) -> None:
        """Make passes until told to stop. Survives whatever the store does."""
        while not self._stopping.is_set():
            try:
                await self.rescue()
            except StoreUnavailable as error:
                self._health.away(error)
            except Exception:  # noqa: BLE001  # logged; the next pass tries again
                _log.exception("a pass of the rescuer failed; it goes on", extra={"event": "rescue_failed"})
            heartbeat = self._store.heartbeat_seconds
            pause = self._clock.jitter(_UNTIMED_PAUSE_SECONDS if math.isinf(heartbeat) else heartbeat)
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
            except TimeoutError:
                continue

    async def rescue(self) -> Rescued:
        """Make one pass and say what it did. Raises StoreUnavailable if the store cannot be asked."""
        self._began_at = self._clock.monotonic()
        try:
            return await self._pass()
        finally:
            self._began_at = None

    async def _pass(self) -> Rescued:
        tally: Counter[str] = Counter()
        while not self._stopping.is_set():
            recovered = await self._calls.make(lambda: self._store.recover(limit=BATCH))
            tally["recovered"] += recovered
            if recovered < BATCH:
                break
        strangers: Counter[Kind] = Counter()
        limit = BATCH
        while not self._stopping.is_set():
            batch = await self._ask_expired(limit)
            left = await self._rescue_batch(batch, tally, strangers)
            if len(batch) < limit or left == len(batch):
                break
            limit = left + BATCH
        if not self._stopping.is_set():
            await self._look_for_strangers(strangers)
            self.workload = await self._calls.make(self._store.workload)
            self._counted_at = self._clock.monotonic()
        self._health.answered()
        tally["left"] = sum(strangers.values())
        return Rescued(**{name: tally[name] for name in Rescued._fields})

    async def _ask_expired(self, limit: int) -> Sequence[Expired]:
        return await self._calls.make(lambda: self._store.expired(limit=limit))

    async def _rescue_batch(
        self, batch: Sequence[Expired], tally: Counter[str], strangers: Counter[Kind]
    ) -> int:
        """Settle what can be settled; return how many are as they were."""
        strangers.clear()  # the batch holds everything that was left before
        waiting = iter(batch)
        left = 0

        async def work_off() -> None:
            nonlocal left
            for expired in waiting:
                if self._stopping.is_set():
                    return
                word = await self._rescue(expired, strangers)
                if word in ("left", "errors"):
                    left += 1
                if word != "left":
                    tally[word] += 1
                if word == "errors" and tally["errors"] > _ERRORS_TOLD:
                    await asyncio.sleep(0)

        await asyncio.gather(*(work_off() for _ in range(min(_AT_ONCE, len(batch)))))
        if tally["errors"] > _ERRORS_TOLD:
            _log.warning(
                "%d tasks could not be settled in this pass; the next one tries again",
                tally["errors"],
                extra={"event": "rescue_failed"},
            )
        return left

    async def _rescue(self, expired: Expired, strangers: Counter[Kind]) -> str:
        """Settle one; return a word for what came of it."""
        record = expired.record
        if record.handler_version is None or self._heartbeats.holds(record.key):
            return "left"  # a plain tracker's, or held here and renewed since it was seen
        handler = self._registry.get(record.task_type, record.handler_version)
        if handler is None:
            strangers[record.task_type, record.handler_version] += 1
            return "left"
        try:
            return await self._take(expired, handler)
        except (LeaseHeld, LeaseLost, InvalidTransition, TaskNotFound):
            return "left"  # somebody was quicker, or it has moved on
        except Exception as error:  # noqa: BLE001  # logged; the others are to be settled all the same
            _log.warning(
                "task %s could not be settled; the next pass tries again",
                record.task_id,
                exc_info=error,
                extra={"event": "rescue_failed", "task_id": record.task_id},
            )
            return "errors"

    async def _take(self, expired: Expired, handler: Handler) -> str:
        asked_at = self._clock.monotonic()
        taken = await self._calls.make(
            lambda: self._store.take_over(expired, holder=self._holder(), count_attempt=False)
        )
        if taken is None:
            return "left"
        lease, stored = taken
        self._heartbeats.hold(lease, stored, asked_at)  # an on_failure may take longer than a lease
        try:
            outcome = judged_loss(
                handler,
                stored.record,
                lease.attempt_count,
                cancel_requested=lease.cancel_requested.is_set(),
                clock=self._clock,
            )
            ended = await self._settle(lease, stored, outcome)
        finally:
            self._heartbeats.let_go(lease)
        if ended.record is None:
            return "left"  # somebody was quicker after all
        word = {"retry": "retried", "cancelled": "cancelled"}.get(ended.outcome.name, "failed")
        # Said here alone: the record's error is for everybody, and the attempt is the one that ended it.
        _log.warning(
            "task %s was held by %s, last heard of %.0f s before; %s",
            expired.record.task_id,
            expired.holder or "nobody known",
            expired.heartbeat_age_seconds,
            word,
            extra={
                "event": "rescued",
                "task_id": expired.record.task_id,
                "holder": expired.holder,
                "outcome": word,
            },
        )
        self._hooks.tell("rescued", ended.record, outcome=word)
        return word

    # ---- what nobody here knows ------------------------------------------------------------------------

    async def _look_for_strangers(self, running: Counter[Kind]) -> None:
        now = self._clock.monotonic()
        if now >= self._look_for_strangers_at:
            waiting = await self._calls.make(lambda: self._store.unclaimed(handled=True, limit=BATCH))
            # A store may have to look at every waiting task for that.
            self._look_for_strangers_at = now + _LOOK_FOR_STRANGERS_SECONDS
            self._waiting_strangers = Counter(
                kind
                for kind in (_kind(stored.record) for stored in waiting)
                if self._registry.get(*kind) is None
            )
        found = self._waiting_strangers + running
        self.strangers = tuple(sorted(found))
        self._reported &= set(found)  # gone, and worth a word if they come again
        for kind in self.strangers:
            if kind not in self._reported:
                self._reported.add(kind)
                self._report(*kind, found[kind])

    def _report(self, task_type: str, version: int, number: int) -> None:
        _log.warning(
            "%d tasks of type %s version %d wait for a handler that this worker does not have; they are left to "
            "workers that have it",
            number,
            task_type,
            version,
            extra={
                "event": "kind_unknown",
                "task_type": task_type,
                "handler_version": version,
                "waiting": number,
            },
        )
        self._hooks.tell("kind_unknown", task_type=task_type, version=version, waiting=number)


def _kind(record: TaskRecord) -> Kind:
    assert record.handler_version is not None, "only tasks that wait for a handler were asked for"
    return record.task_type, record.handler_version
