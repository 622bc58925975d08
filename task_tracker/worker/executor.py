"""The executor: one claimed task in, one settled record out.

Owns the pipeline of an attempt: prepare, run, judge, ask for another try, call ``on_failure``, write. Each stage takes
an outcome and gives one; nothing is raised between them. Refuses to claim, to renew leases and to count slots: the
worker does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from task_tracker.call_threads import NoThread, Share
from task_tracker.errors import CapabilityMissing, LeaseLost, StoreUnavailable
from task_tracker.handlers import HandlerRegistry
from task_tracker.holdings import Holdings
from task_tracker.keyed_locks import KeyedLocks
from task_tracker.records import TaskStatus
from task_tracker.store import Lease, LeaseStore, Stored
from task_tracker.submitting import Submitter
from task_tracker.tracker import TaskTracker
from task_tracker.worker.attempts import AttemptRecord
from task_tracker.worker.calls import After, Calls, Kept
from task_tracker.worker.ends import Ends
from task_tracker.worker.finishing import Ended, Finisher
from task_tracker.worker.hooks import Hooks
from task_tracker.worker.launching import Launcher
from task_tracker.worker.options import check_seconds
from task_tracker.worker.outcomes import (
    Failed,
    LeftBehind,
    Outcome,
    StopReason,
    error_text,
    judged,
)
from task_tracker.worker.parts import Parts, Surroundings
from task_tracker.worker.reporting import report, report_broken
from task_tracker.worker.resources import Resources
from task_tracker.worker.running import Did
from task_tracker.worker.shortage import Shortage
from task_tracker.worker.starting import Starter
from task_tracker.worker.stops import StopSignal
from task_tracker.worker.supervising import Supervision, Timeouts
from task_tracker.worker.transactions import BEGINNING_AT_ONCE
from task_tracker.worker.under_way import UnderWay

__all__ = ["Ended", "Executor"]

_log = logging.getLogger("task_tracker")

TIMEOUT_SECONDS: Final = 3600.0
HOOK_SECONDS: Final = 30.0
IMPORT_SECONDS: Final = 600.0
_STORE_CALLS: Final = 4
_UNWIND_SECONDS: Final = 1.0


class Executor:
    """Runs attempts of handlers of ``registry`` on the event loop in which it is used.

    ``holdings`` are the leases that somebody renews and ``locks`` those that he looks at when a renewal is refused;
    what is executed must be held there (by itself it is put there, as if it had been claimed just now).
    ``threads``: how many sync handlers may run at once; one for each slot. ``default_timeout_seconds`` is for
    handlers without one of their own; a task may shorten either, never exceed it. ``hook_seconds``: what an
    ``on_failure`` may take. ``import_seconds``: how long a task waits for its handler to be imported, before its own
    time begins; then it is given back. ``ahead`` is called, in the thread that has written how attempts ended, with the
    number of those that leave nothing running; it may return what that thread is to do then.
    """

    def __init__(
        self,
        tracker: TaskTracker,
        registry: HandlerRegistry,
        resources: Resources,
        *,
        holdings: Holdings | None = None,
        locks: KeyedLocks | None = None,
        hooks: Hooks | None = None,
        threads: int = _STORE_CALLS,
        default_timeout_seconds: float = TIMEOUT_SECONDS,
        hook_seconds: float = HOOK_SECONDS,
        import_seconds: float = IMPORT_SECONDS,
        ahead: Callable[[int], After | None] = lambda _: None,
    ) -> None:
        self._access = tracker.access
        self._store = _leases_of(tracker)
        self._clock = tracker.clock
        self._registry = registry
        if holdings is None:
            terms = self._store.lease_seconds, self._store.heartbeat_seconds
            holdings = Holdings(self._clock, lease_seconds=terms[0], heartbeat_seconds=terms[1])
        self.holdings = holdings
        self.locks = locks if locks is not None else KeyedLocks()
        self._hooks = hooks if hooks is not None else Hooks()
        self._kept = Kept()
        self._starter = Starter(self._kept, threads, check_seconds("import_seconds", import_seconds))
        self.shortage = Shortage(self._clock, registry, self._starter.handler_calls)
        """Of threads, for which handlers waited."""
        self._store_calls = Calls(max(_STORE_CALLS, threads), blocking=self._store.blocking, short=True)
        # Threads even where the store needs none: a wake-up may go over a network.
        self._submit_calls = Calls(_STORE_CALLS)
        self._sizes = tracker.sizes
        self._begin_calls = Calls(BEGINNING_AT_ONCE, blocking=self._store.blocking)
        self._around = Surroundings(
            store=self._store,
            resources=resources,
            store_calls=self._store_calls,
            begin_calls=self._begin_calls,
            submitter=Submitter(self._access, self._clock, registry, tracker.waking, tracker.sizes),
            submit_calls=self._submit_calls,
            sizes=self._sizes,
            kept=self._kept,
            clock=self._clock,
        )
        self._finisher = Finisher(
            self._starter,
            self._store_calls,
            Ends(self._store, self._store_calls, max(_STORE_CALLS, threads), ahead),
            self.holdings,
            self._clock,
            hook_seconds=check_seconds("hook_seconds", hook_seconds),
            ahead=ahead,
        )
        self._timeouts = Timeouts()
        self._launcher = Launcher(
            self._starter,
            self.shortage,
            self._timeouts,
            self._clock,
            check_seconds("default_timeout_seconds", default_timeout_seconds),
        )
        self._running: dict[Lease, UnderWay] = {}
        self._is_interrupted = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def running(self) -> int:
        """How many attempts are under way."""
        return len(self._running)

    @property
    def left_behind(self) -> int:
        """How many handlers, or their ``on_failure``, go on although their attempts are over."""
        return self._starter.left_behind

    @property
    def writes_wait(self) -> bool:
        """Whether the store has to end others, one by one, that wait for nothing but a thread. From any thread."""
        return self._store_calls.has_more and not self._store.ends_together

    async def execute(self, lease: Lease, stored: Stored) -> Ended:
        """Run one attempt of a task that was just claimed, and settle it. Raises nothing but CancelledError.

        Cancelled, it stops the handler, waits for nothing and writes nothing: the lease expires.
        """
        return await self.see_through(self.begin(lease, stored))

    def begin(self, lease: Lease, stored: Stored) -> UnderWay:
        """Do the first half of :meth:`execute`: :meth:`see_through` is to follow, best as a task made at once.

        A handler that takes neither an import nor a thread begins in the loop's next turn, before that task does: if it
        is short it has ended by then, and nobody has to be woken for it.
        """
        attempt = self._add(lease, stored)
        # Before its handler begins, whose first step may have the task cancelled.
        attempt.look = partial(self._look_for_wish, lease)
        self._access.changes.add(lease.key, attempt.look)
        if self._hooks.are_there:
            waited = max(0.0, self._clock.now() - stored.record.created_at)
            self._hooks.tell("attempt_started", stored.record, seconds=waited)
        try:
            self._launcher.start_at_once(attempt)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # logged, and an outcome
            attempt.refused = _broken(attempt, error)
        return attempt

    async def see_through(self, attempt: UnderWay) -> Ended:
        """Do the second half of :meth:`execute`."""
        try:
            ended = await self._finisher.finish(attempt, await self._outcome(attempt))
        finally:
            self._remove(attempt)
        if self._hooks.are_there:
            self._hooks.tell(
                "attempt_ended",
                ended.record if ended.record is not None else attempt.record.record,
                seconds=self._clock.monotonic() - attempt.began_at,
                outcome=ended.outcome.name,
            )
        return ended

    async def settle(self, lease: Lease, stored: Stored, outcome: Outcome) -> Ended:
        """Write ``outcome`` of an attempt that did not run here, under a lease that was taken over, say."""
        attempt = self._add(lease, stored)
        attempt.is_foreign = True
        try:
            return await self._finisher.finish(attempt, outcome)
        finally:
            self._remove(attempt)

    def notice(self, lease: Lease) -> None:
        """Look at ``lease``: it may be lost, or its task is to be cancelled. From any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nothing runs
                self._loop.call_soon_threadsafe(self._notice, lease)

    def interrupt(self) -> None:
        """Have all handlers stop, because the worker ends; what is executed from now on does not begin."""
        self._is_interrupted = True
        for attempt in list(self._running.values()):
            attempt.stop(StopReason.SHUTDOWN)

    def interrupt_one(self, lease: Lease) -> None:
        """Have one handler stop, as :meth:`interrupt` does. Safe if its attempt has ended."""
        attempt = self._running.get(lease)
        if attempt is not None:
            attempt.stop(StopReason.SHUTDOWN)

    def writing_seconds(self, lease: Lease) -> float:
        """For how long the store has been asked to take the outcome of an attempt; 0 if it is not known yet."""
        attempt = self._running.get(lease)
        if attempt is None or attempt.writing_since is None:
            return 0.0
        return asyncio.get_running_loop().time() - attempt.writing_since

    def may_leave(self, lease: Lease) -> bool:
        """Whether the store may count a task as running no more whose handler goes on here. From any thread."""
        attempt = self._running.get(lease)
        if attempt is None:
            return True  # it has just ended
        is_over = attempt.writing_since is not None or attempt.record.may_be_settled or lease.lost.is_set()
        return is_over and bool(attempt.going_on)

    async def aclose(self) -> None:
        """Cancel what goes on beside attempts, end the threads; wait a second at most. Twice is safe."""
        self._is_interrupted = True
        self._timeouts.end()
        tasks = self._kept.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_UNWIND_SECONDS)
        self._starter.end()
        self._store_calls.end()
        self._submit_calls.end()
        self._begin_calls.end()

    # ---- what is under way -----------------------------------------------------------------------------

    def _add(self, lease: Lease, stored: Stored) -> UnderWay:
        self._loop = asyncio.get_running_loop()
        holding = self.holdings.current(lease.key)
        if (holding is None or holding.lease is not lease) and not lease.lost.is_set():
            self.holdings.put(lease, stored, self._clock.monotonic())
        record = AttemptRecord(
            self._access, self._store, self.holdings, self.locks, self._clock, lease, stored
        )
        handler = self._registry.get(stored.record.task_type, stored.record.handler_version or 0)
        signal = StopSignal(lease, self._clock, cancellable=handler is None or handler.cancellable)
        parts = Parts(self._around, record, signal, self._loop)
        attempt = UnderWay(lease, record, handler, signal, parts, self._clock.monotonic())
        self._running[lease] = attempt
        if self._is_interrupted:
            attempt.stop(StopReason.SHUTDOWN)
        return attempt

    def _remove(self, attempt: UnderWay) -> None:
        if attempt.look is not None:
            self._access.changes.remove(attempt.lease.key, attempt.look)
        attempt.signal.end()
        self._running.pop(attempt.lease, None)
        if attempt.run is not None and attempt.run.did is None:
            self._starter.leave(attempt.run)

    # ---- run -----------------------------------------------------------------------------------------

    async def _outcome(self, attempt: UnderWay) -> Outcome:
        """Return how the attempt ends, whatever breaks: a task must not run on paper only."""
        try:
            if attempt.run is None and attempt.refused is None:
                await self._launcher.start(attempt)
            if attempt.refused is not None:
                return attempt.refused
            supervision = attempt.supervision
            assert supervision is not None, "it was started"
            if attempt.lease.cancel_requested.is_set():
                self._notice(attempt.lease)
            return self._judged(attempt, supervision, await supervision.wait())
        except (Exception, SystemExit) as error:  # noqa: BLE001  # logged, and an outcome
            return _broken(attempt, error)

    def _judged(self, attempt: UnderWay, supervision: Supervision, did: Did | LeftBehind) -> Outcome:
        seen = attempt.signal.reason
        reason = StopReason.LOST if seen is StopReason.LOST else supervision.reason
        outcome = judged(did, reason, supervision.timeout_seconds, seen=seen, sizes=self._sizes)
        report(attempt.lease.key.task_id, did, outcome)
        return outcome

    # ---- what happens meanwhile ------------------------------------------------------------------------

    def _look_for_wish(self, lease: Lease) -> None:
        """A record was written in this process; somebody may have cancelled it through the same tracker."""
        cached = self._access.cache.get(lease.key)
        if (
            cached is not None
            and cached.record.status is TaskStatus.CANCELLING
            and cached.record.created_at == lease.created_at
        ):
            lease.cancel_requested.set()
            self.notice(lease)

    def _notice(self, lease: Lease) -> None:
        attempt = self._running.get(lease)
        if attempt is None:
            return
        if lease.lost.is_set():
            attempt.stop(StopReason.LOST)
        elif lease.cancel_requested.is_set() and not attempt.is_cancel_noticed:
            attempt.is_cancel_noticed = True
            if attempt.handler is None or attempt.handler.cancellable:
                attempt.stop(StopReason.CANCEL)
            self._kept.start(self._acknowledge(attempt), f"cancelling {lease.key.task_id}")

    async def _acknowledge(self, attempt: UnderWay) -> None:
        """Have the record say that the task is to stop; its end does if this cannot."""
        with contextlib.suppress(LeaseLost, StoreUnavailable, NoThread):
            await self._store_calls.make(attempt.record.commit, Share(attempt.lease.key, 1))


def _broken(attempt: UnderWay, error: BaseException) -> Outcome:
    """Return how an attempt ends of which something broke here."""
    report_broken(attempt.lease.key.task_id, error)
    if attempt.run is not None:
        attempt.signal.set(StopReason.SHUTDOWN)
        attempt.run.stop()
    return Failed(error_text(error), "internal_error", may_retry=True)


def _leases_of(tracker: TaskTracker) -> LeaseStore:
    if tracker.access.leases is None:
        raise CapabilityMissing(
            f"{type(tracker.store).__name__} has no leases, and handlers run under leases only; use the lease backend"
        )
    return tracker.access.leases
