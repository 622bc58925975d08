"""The rescuer: settles tasks of handlers whose holder has stopped, and finds those that nobody here knows.

Owns what becomes of them: once more if the handler may run twice and has attempts left, else failed through its
``on_failure``. The reconciler of :mod:`task_tracker.reconciler` leaves such tasks to it. Refuses to judge by its own
clock, and to touch tasks of a type or version for which there is no handler here: another worker may have it.
Any number of workers may do this at once: of two that take the same task one loses, harmlessly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from task_tracker.call_threads import Share
from task_tracker.clock import Clock
from task_tracker.errors import InvalidTransition, LeaseHeld, LeaseLost, StoreUnavailable, TaskNotFound
from task_tracker.handlers import Handler, HandlerRegistry
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Expired, Lease, LeaseStore, Stored, Workload
from task_tracker.worker.calls import Calls
from task_tracker.worker.executor import Ended
from task_tracker.worker.heartbeat import Heartbeats
from task_tracker.worker.hooks import Hooks
from task_tracker.worker.limits import Kind
from task_tracker.worker.outcomes import CancelledOutcome, Failed, Outcome, RetryAt
from task_tracker.worker.pauses import outage_pauses
from task_tracker.worker.readiness import StoreHealth
from task_tracker.worker.retrying import attempts_allowed, attempts_used, may_retry, retry_at

__all__ = ["RESCUE_THREADS", "Rescued", "Rescuer", "judged_loss"]

_log = logging.getLogger("task_tracker")

Settle = Callable[[Lease, Stored, Outcome], Awaitable[Ended]]

BATCH: Final = 1000
_AT_ONCE: Final = 4
"""Tasks that a pass settles at the same time."""
_PATIENCE_SECONDS: Final = 5.0
"""How long a pass of the background waits for one of them. What takes longer goes on beside the passes that follow."""
_MOST_UNDER_WAY: Final = 16
"""Of those; while there are so many none is begun."""
_ITEMS: Final = Share("tasks that are taken over", _AT_ONCE)
"""Of the threads; others are left for what a pass asks beside that."""
RESCUE_THREADS: Final = _AT_ONCE + 2
_UNTIMED_PAUSE_SECONDS: Final = 60.0
_LOOK_FOR_STRANGERS_SECONDS: Final = 60.0
_ERRORS_TOLD: Final = 3

LOST: Final = "the process that worked on it stopped"


class _Item(NamedTuple):
    """A task that is being settled, and since when by the monotonic clock."""

    task: asyncio.Task[str]
    since: float


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
        # What may not be cancelled is not, and cannot be tried again either: stores cancel what is given back then.
        return CancelledOutcome() if handler.cancellable else Failed(LOST, "holder_lost")
    if may_retry(handler, record, attempts):
        return RetryAt(retry_at(handler, attempts_used(record, attempts), clock), LOST, "holder_lost")
    if attempts_allowed(handler, record) > 1:
        used = attempts_used(record, attempts)
        return Failed(f"{LOST}, in the last of {used} attempts", "crash_loop")
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
        self._outage = outage_pauses(clock)
        self._stopping = asyncio.Event()
        self._look_for_strangers_at = -math.inf
        self._waiting_strangers: Counter[Kind] = Counter()
        self._reported: set[Kind] = set()
        self._under_way: dict[TaskKey, _Item] = {}
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
        """For how long the pass that is under way has been so, or what keeps passes from beginning anything; else 0."""
        items = list(self._under_way.values())
        since = [item.since for item in items] if len(items) >= _MOST_UNDER_WAY else []
        if self._began_at is not None:
            since.append(self._began_at)
        return self._clock.monotonic() - min(since) if since else 0.0

    def stop(self) -> None:
        """Begin nothing more; :meth:`run` returns when what it has begun is settled."""
        self._stopping.set()

    async def run(self) -> None:
        """Make passes until told to stop. Survives whatever the store does."""
        heartbeat = self._store.heartbeat_seconds
        period = _UNTIMED_PAUSE_SECONDS if math.isinf(heartbeat) else heartbeat
        while not self._stopping.is_set():
            pause = self._clock.jitter(period)
            try:
                await self.rescue(_PATIENCE_SECONDS)
            except Exception as error:  # noqa: BLE001  # logged; the next pass tries again
                if not isinstance(error, StoreUnavailable):
                    _log.exception(
                        "a pass of the rescuer failed; it goes on", extra={"event": "rescue_pass_failed"}
                    )
                self._health.away("rescuing", error)
                pause = min(pause, self._outage.next())
            else:
                self._outage.restart()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
        if self._under_way:
            await asyncio.wait(self.under_way)

    async def rescue(self, patience_seconds: float | None = None) -> Rescued:
        """Make one pass and say what it did. Raises StoreUnavailable if the store cannot be asked.

        A task that is not settled after ``patience_seconds`` goes on beside this pass and those that follow, which
        leave it alone; None waits for all.
        """
        self._began_at = self._clock.monotonic()
        try:
            return await self._pass(patience_seconds)
        finally:
            self._began_at = None

    @property
    def under_way(self) -> set[asyncio.Task[str]]:
        """What is being settled."""
        return {item.task for item in self._under_way.values()}

    async def _pass(self, patience: float | None) -> Rescued:
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
            left = await self._rescue_batch(batch, tally, strangers, patience)
            if len(batch) < limit or left == len(batch) or len(self._under_way) >= _MOST_UNDER_WAY:
                break
            limit = left + BATCH
        if not self._stopping.is_set():
            await self._look_for_strangers(strangers)
            self.workload = await self._calls.make(self._store.workload)
            self._counted_at = self._clock.monotonic()
        self._health.answered("rescuing")
        tally["left"] = sum(strangers.values())
        return Rescued(**{name: tally[name] for name in Rescued._fields})

    async def _ask_expired(self, limit: int) -> Sequence[Expired]:
        return await self._calls.make(lambda: self._store.expired(limit=limit))

    async def _rescue_batch(
        self, batch: Sequence[Expired], tally: Counter[str], strangers: Counter[Kind], patience: float | None
    ) -> int:
        """Settle what can be settled; return how many are as they were."""
        strangers.clear()  # the batch holds everything that was left before
        waiting = iter(batch)
        left = 0

        async def work_off() -> None:
            nonlocal left
            for expired in waiting:
                if self._stopping.is_set() or len(self._under_way) >= _MOST_UNDER_WAY:
                    return
                word = await self._attend(expired, strangers, patience)
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
                extra={"event": "rescue_incomplete"},
            )
        return left

    async def _attend(self, expired: Expired, strangers: Counter[Kind], patience: float | None) -> str:
        """Settle one, or see it begun; return a word for what came of it."""
        key = expired.record.key
        if key in self._under_way:
            return "left"
        task = asyncio.get_running_loop().create_task(
            self._rescue(expired, strangers), name=f"rescuing {key.task_id}"
        )
        self._under_way[key] = _Item(task, self._clock.monotonic())
        task.add_done_callback(lambda _: self._under_way.pop(key))
        try:
            await asyncio.wait({task}, timeout=patience)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            return task.result()
        _log.warning(
            "task %s is not settled after %g s; that goes on, and the others are seen to",
            key.task_id,
            patience,
            extra={"event": "rescue_slow", "task_id": key.task_id},
        )
        return "left"

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
            lambda: self._store.take_over(expired, holder=self._holder(), count_attempt=False), _ITEMS
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
            waiting = await self._calls.make(
                lambda: self._store.unclaimed(except_types=self._registry.kinds(), handled=True, limit=BATCH)
            )
            # A store may have to look at every waiting task for that.
            self._look_for_strangers_at = now + _LOOK_FOR_STRANGERS_SECONDS
            self._waiting_strangers = Counter(_kind(stored.record) for stored in waiting)
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
