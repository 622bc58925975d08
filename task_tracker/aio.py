"""AsyncTaskTracker: the same calls as coroutines, a thin facade over the synchronous tracker.

Owns the deadline of a call and what becomes of one that never began. Refuses to keep anything that belongs
to one event loop: the same object serves any thread and any loop, also several at once.
"""

# long: one method for each call of the public interface, as in tracker.py

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from task_tracker import endings
from task_tracker.call_threads import CallThreads, NoThread, Share
from task_tracker.defaults import CALL_SECONDS, MAX_THREADS
from task_tracker.endings import Ending
from task_tracker.errors import LeaseHeld, StoreUnavailable, TaskNotFound, TaskTrackerError
from task_tracker.listing import TaskPage
from task_tracker.reconciler import Reconciled
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import Finding, Lease, OnLoop, WorkerFact
from task_tracker.submitting import Submission
from task_tracker.tracker import TaskTracker
from task_tracker.waiting import Contending, Waiting

__all__ = ["AsyncTaskTracker"]

_T = TypeVar("_T")

_log = logging.getLogger("task_tracker")

_SHORTEST_LOOK_SECONDS: Final = 1.0


class AsyncTaskTracker:
    """Every method of :class:`TaskTracker` that may touch the store, awaited.

    Calls that the cache can answer return without a thread hop. The others run on at most ``max_threads``
    threads of this object's own, of which a quarter may be busy with one task and half with one owner's
    lists: what hangs does not take them all. A call that has not returned after ``call_seconds`` raises
    StoreUnavailable (a write that has begun may still land; the outcome of a task is kept and tried again if
    it has not). When an ``await`` is cancelled, a write that was started is let to its end before the
    cancellation goes on; one that was not started yet never is, outcomes excepted. A read is left alone at
    once. After :meth:`close`, calls raise RuntimeError.
    """

    def __init__(
        self,
        tracker: TaskTracker | None = None,
        *,
        max_threads: int = MAX_THREADS,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        if max_threads < 1:
            raise ValueError(f"max_threads must be at least 1, not {max_threads}")
        if not call_seconds > 0:
            raise ValueError(f"call_seconds must be more than 0, not {call_seconds}")
        self._tracker = tracker if tracker is not None else TaskTracker()
        self._max_threads = max_threads
        self._call_seconds = call_seconds
        self._threads = CallThreads(max_threads)
        # A wrapper that nobody closes takes its threads along when nobody has it any more.
        weakref.finalize(self, self._threads.end).atexit = False
        self._closed = False

    @property
    def tracker(self) -> TaskTracker:
        """The synchronous tracker behind it."""
        return self._tracker

    # ---- creating ------------------------------------------------------------------------------------

    async def create(
        self,
        task_type: str,
        resource_id: str | None = None,
        *,
        account_id: str,
        user_id: str,
        task_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        payload: object = None,
        private: object = None,
        connection: object = None,
    ) -> TaskRecord:
        """As :meth:`TaskTracker.create`; ``connection`` is one of coroutines."""
        with _lent(connection) as joined:
            return await self._run(
                lambda: self._tracker.create(
                    task_type,
                    resource_id,
                    account_id=account_id,
                    user_id=user_id,
                    task_id=task_id,
                    meta=meta,
                    payload=payload,
                    private=private,
                    connection=joined,
                ),
                self._of_owner(account_id, user_id),
            )

    async def create_if_no_running(
        self, task_type: str, resource_id: str | None, *, account_id: str, user_id: str
    ) -> TaskRecord | None:
        """As :meth:`TaskTracker.create_if_no_running`."""
        return await self._run(
            lambda: self._tracker.create_if_no_running(
                task_type, resource_id, account_id=account_id, user_id=user_id
            ),
            self._of_owner(account_id, user_id),
        )

    # ---- submitting ----------------------------------------------------------------------------------

    async def submit(
        self,
        task_type: str,
        payload: object = None,
        *,
        account_id: str,
        user_id: str,
        resource_id: str | None = None,
        version: int | None = None,
        dedupe: bool = False,
        not_before: float | None = None,
        priority: int | None = None,
        timeout_seconds: float | None = None,
        max_attempts: int | None = None,
        task_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        private: object = None,
        unregistered: bool = False,
        connection: object = None,
    ) -> Submission:
        """As :meth:`TaskTracker.submit`; ``connection`` is one of coroutines (``psycopg.AsyncConnection``)."""
        with _lent(connection) as joined:
            return await self._run(
                lambda: self._tracker.submit(
                    task_type,
                    payload,
                    account_id=account_id,
                    user_id=user_id,
                    resource_id=resource_id,
                    version=version,
                    dedupe=dedupe,
                    not_before=not_before,
                    priority=priority,
                    timeout_seconds=timeout_seconds,
                    max_attempts=max_attempts,
                    task_id=task_id,
                    meta=meta,
                    private=private,
                    unregistered=unregistered,
                    connection=joined,
                ),
                self._of_owner(account_id, user_id),
            )

    async def wake(self, submission: Submission) -> bool:
        """As :meth:`TaskTracker.wake`."""
        return await self._run(lambda: self._tracker.wake(submission), self._of_task(submission.task_id))

    async def retry(
        self,
        task_id: str,
        account_id: str | None = None,
        user_id: str | None = None,
        *,
        payload: object = None,
        private: object = None,
        version: int | None = None,
        not_before: float | None = None,
        unregistered: bool = False,
    ) -> Submission:
        """As :meth:`TaskTracker.retry`."""
        return await self._run(
            lambda: self._tracker.retry(
                task_id,
                account_id,
                user_id,
                payload=payload,
                private=private,
                version=version,
                not_before=not_before,
                unregistered=unregistered,
            ),
            self._of_task(task_id),
        )

    async def resume(
        self,
        task_id: str,
        account_id: str | None = None,
        user_id: str | None = None,
        *,
        payload: object = None,
        private: object = None,
        version: int | None = None,
        not_before: float | None = None,
        unregistered: bool = False,
    ) -> Submission:
        """As :meth:`TaskTracker.resume`."""
        return await self._run(
            lambda: self._tracker.resume(
                task_id,
                account_id,
                user_id,
                payload=payload,
                private=private,
                version=version,
                not_before=not_before,
                unregistered=unregistered,
            ),
            self._of_task(task_id),
        )

    @property
    def wake_up_failures(self) -> int:
        """As :attr:`TaskTracker.wake_up_failures`."""
        return self._tracker.wake_up_failures

    # ---- working -------------------------------------------------------------------------------------

    async def start(
        self,
        task_id: str,
        account_id: str | None = None,
        user_id: str | None = None,
        *,
        stage: str | None = None,
        wait_seconds: float = 0,
    ) -> TaskRecord | None:
        """As :meth:`TaskTracker.start`, without holding a thread while it waits.

        If the ``await`` is cancelled the task may have been started all the same: end or release it.
        """
        contending = Contending(self._tracker.clock, wait_seconds)
        while True:
            try:
                return await self._run(
                    lambda: self._tracker._start(task_id, account_id, user_id, stage), self._of_task(task_id)
                )
            except LeaseHeld as held:
                pause = contending.pause(held)
            await asyncio.sleep(pause)

    async def release(
        self, task_id: str, account_id: str | None = None, user_id: str | None = None
    ) -> TaskRecord | None:
        """As :meth:`TaskTracker.release`."""
        return await self._run(
            lambda: self._tracker.release(task_id, account_id, user_id), self._of_task(task_id)
        )

    def lease_of(
        self, task_id: str, account_id: str | None = None, user_id: str | None = None
    ) -> Lease | None:
        """As :meth:`TaskTracker.lease_of`; a plain method, it asks no store."""
        return self._tracker.lease_of(task_id, account_id, user_id)

    async def update(
        self,
        task_id: str,
        account_id: str | None = None,
        user_id: str | None = None,
        *,
        stage: str | None = None,
        progress: float | None = None,
        message: str | None = None,
    ) -> TaskRecord | None:
        """As :meth:`TaskTracker.update`."""
        return await self._run(
            lambda: self._tracker.update(
                task_id, account_id, user_id, stage=stage, progress=progress, message=message
            ),
            self._of_task(task_id),
        )

    async def update_stage(
        self, task_id: str, stage: str, account_id: str | None = None, user_id: str | None = None
    ) -> TaskRecord | None:
        """As :meth:`TaskTracker.update_stage`."""
        return await self._run(
            lambda: self._tracker.update_stage(task_id, stage, account_id, user_id), self._of_task(task_id)
        )

    async def complete(
        self,
        task_id: str,
        result: object = None,
        account_id: str | None = None,
        user_id: str | None = None,
        *,
        resource_id: str | None = None,
    ) -> TaskRecord | None:
        """As :meth:`TaskTracker.complete`."""
        now = self._tracker.clock.now()
        return await self._end(
            lambda: endings.completion(task_id, result, now, resource_id=resource_id),
            task_id,
            account_id,
            user_id,
        )

    async def fail(
        self,
        task_id: str,
        error: object,
        account_id: str | None = None,
        user_id: str | None = None,
        *,
        error_code: str | None = None,
    ) -> TaskRecord | None:
        """As :meth:`TaskTracker.fail`."""
        now = self._tracker.clock.now()
        return await self._end(
            lambda: endings.failure(error, now, error_code=error_code), task_id, account_id, user_id
        )

    # ---- cancelling ----------------------------------------------------------------------------------

    async def cancel(
        self, task_id: str, account_id: str | None = None, user_id: str | None = None
    ) -> TaskRecord | None:
        """As :meth:`TaskTracker.cancel`."""
        return await self._run(
            lambda: self._tracker.cancel(task_id, account_id, user_id), self._of_task(task_id)
        )

    async def is_cancellation_requested(
        self, task_id: str, account_id: str | None = None, user_id: str | None = None
    ) -> bool:
        """As :meth:`TaskTracker.is_cancellation_requested`."""
        return await self._read(
            lambda: self._tracker.is_cancellation_requested(task_id, account_id, user_id),
            self._of_task(task_id),
        )

    async def mark_cancelled(
        self, task_id: str, account_id: str | None = None, user_id: str | None = None
    ) -> TaskRecord | None:
        """As :meth:`TaskTracker.mark_cancelled`."""
        now = self._tracker.clock.now()
        return await self._end(lambda: endings.cancellation(now), task_id, account_id, user_id)

    # ---- asking --------------------------------------------------------------------------------------

    async def get(
        self, task_id: str, account_id: str | None = None, user_id: str | None = None
    ) -> TaskRecord | None:
        """As :meth:`TaskTracker.get`."""
        self._check_open()
        ended = self._tracker.access.ended(task_id, account_id, user_id)
        if ended is not None:
            return ended
        return await self._read(
            lambda: self._tracker.get(task_id, account_id, user_id), self._of_task(task_id)
        )

    async def list_tasks(
        self,
        task_type: str | None = None,
        status: str | None = None,
        resource_id: str | None = None,
        limit: int | None = 50,
        account_id: str | None = None,
        user_id: str | None = None,
        *,
        before: str | None = None,
    ) -> TaskPage:
        """As :meth:`TaskTracker.list_tasks`."""
        return await self._read(
            lambda: self._tracker.list_tasks(
                task_type, status, resource_id, limit, account_id, user_id, before=before
            ),
            self._of_owner(account_id, user_id),
        )

    async def has_running(
        self,
        task_type: str,
        resource_id: str | None,
        account_id: str | None = None,
        user_id: str | None = None,
    ) -> bool:
        """As :meth:`TaskTracker.has_running`."""
        return await self._read(
            lambda: self._tracker.has_running(task_type, resource_id, account_id, user_id),
            self._of_owner(account_id, user_id),
        )

    async def wait(
        self,
        task_id: str,
        account_id: str | None = None,
        user_id: str | None = None,
        timeout: float | None = None,  # the name callers know
        poll_interval: float | None = None,
    ) -> TaskRecord:
        """As :meth:`TaskTracker.wait`, without holding a thread meanwhile."""
        access = self._tracker.access
        key = access.resolve_to_write(task_id, account_id, user_id)
        waiting = Waiting(task_id, self._tracker.clock, timeout, poll_interval)
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        with access.awaited(key, lambda: _set(changed, loop)):
            while True:
                changed.clear()
                ended = await self._look(waiting, key)
                if ended is not None:
                    return ended
                pause = waiting.pause()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), pause)

    async def _look(self, waiting: Waiting, key: TaskKey) -> TaskRecord | None:
        remaining = waiting.remaining()
        try:
            record = await self._read(
                lambda: self._tracker.get(key.task_id, key.account_id, key.user_id),
                self._of_task(key.task_id),
                seconds=None if remaining is None else max(remaining, _SHORTEST_LOOK_SECONDS),
            )
        except StoreUnavailable as error:
            waiting.not_answered(error)
            return None
        return waiting.answered(record)

    async def effects_path(
        self, task_id: str, account_id: str | None = None, user_id: str | None = None
    ) -> str | None:
        """As :meth:`TaskTracker.effects_path`."""
        return await self._read(
            lambda: self._tracker.effects_path(task_id, account_id, user_id), self._of_task(task_id)
        )

    def count(self) -> int:
        """As :meth:`TaskTracker.count`; a plain method, it only looks at the cache."""
        return self._tracker.count()

    def snapshot_counts_by_type(self) -> dict[str, dict[str, int]]:
        """As :meth:`TaskTracker.snapshot_counts_by_type`; a plain method, it only looks at the cache."""
        return self._tracker.snapshot_counts_by_type()

    async def stats(self, account_id: str, user_id: str | None = None) -> dict[str, dict[str, int]]:
        """As :meth:`TaskTracker.stats`."""
        return await self._read(
            lambda: self._tracker.stats(account_id, user_id), self._of_owner(account_id, user_id)
        )

    # ---- deleting ------------------------------------------------------------------------------------

    async def delete(self, task_id: str, account_id: str | None = None, user_id: str | None = None) -> bool:
        """As :meth:`TaskTracker.delete`."""
        return await self._run(
            lambda: self._tracker.delete(task_id, account_id, user_id), self._of_task(task_id)
        )

    async def delete_user_tasks(self, account_id: str, user_id: str) -> int:
        """As :meth:`TaskTracker.delete_user_tasks`."""
        return await self._run(
            lambda: self._tracker.delete_user_tasks(account_id, user_id), self._of_owner(account_id, user_id)
        )

    async def purge(self) -> int:
        """As :meth:`TaskTracker.purge`."""
        return await self._run(self._tracker.purge)

    # ---- life ----------------------------------------------------------------------------------------

    def start_cleanup_loop(self) -> None:
        """As :meth:`TaskTracker.start_cleanup_loop`; it runs on a thread and needs no event loop."""
        self._tracker.start_cleanup_loop()

    def stop_cleanup_loop(self) -> None:
        """As :meth:`TaskTracker.stop_cleanup_loop`."""
        self._tracker.stop_cleanup_loop()

    async def reconcile(self, *, wait: bool = False) -> Reconciled:
        """As :meth:`TaskTracker.reconcile`."""
        return await self._run(partial(self._tracker.reconcile, wait=wait))

    def start_reconciler(self) -> None:
        """As :meth:`TaskTracker.start_reconciler`; it runs on a thread and needs no event loop."""
        self._tracker.start_reconciler()

    def stop_reconciler(self) -> None:
        """As :meth:`TaskTracker.stop_reconciler`."""
        self._tracker.stop_reconciler()

    async def pause_type(self, task_type: str) -> None:
        """As :meth:`TaskTracker.pause_type`."""
        await self._run(partial(self._tracker.pause_type, task_type))

    async def resume_type(self, task_type: str) -> None:
        """As :meth:`TaskTracker.resume_type`."""
        await self._run(partial(self._tracker.resume_type, task_type))

    async def paused_types(self) -> Sequence[str]:
        """As :meth:`TaskTracker.paused_types`."""
        return await self._read(self._tracker.paused_types, self._of_workers())

    async def workers(self) -> Sequence[WorkerFact]:
        """As :meth:`TaskTracker.workers`."""
        return await self._read(self._tracker.workers, self._of_workers())

    async def doctor(self, *, fix: bool = False) -> Sequence[Finding]:
        """As :meth:`TaskTracker.doctor`."""
        return await self._run(lambda: self._tracker.doctor(fix=fix))

    def close(self) -> None:
        """Wait for calls under way, ``call_seconds`` at most, end the threads, close the tracker. Twice is safe."""
        self._closed = True
        hanging = self._threads.close(self._call_seconds, self._tracker.clock.monotonic)
        if hanging:
            _log.warning(
                "%d call%s not returned within %s seconds; closing without waiting any longer",
                hanging,
                " has" if hanging == 1 else "s have",
                self._call_seconds,
                extra={"event": "calls_left_behind"},
            )
        self._tracker.close()

    async def aclose(self) -> None:
        """Close without blocking the event loop."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Self:
        """Return the tracker; leaving the block closes it."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.aclose()

    # ---- how a call is made --------------------------------------------------------------------------

    async def _read(self, call: Callable[[], _T], share: Share | None, *, seconds: float | None = None) -> _T:
        return await self._run(call, share, seconds=seconds, settle=False)

    async def _end(
        self, make: Callable[[], Ending], task_id: str, account_id: str | None, user_id: str | None
    ) -> TaskRecord | None:
        return await self._run(
            lambda: self._tracker._end(make(), task_id, account_id, user_id),
            self._of_task(task_id),
            instead=lambda: self._keep(make(), task_id, account_id, user_id),
        )

    async def _run(
        self,
        call: Callable[[], _T],
        share: Share | None = None,
        *,
        seconds: float | None = None,
        settle: bool = True,
        instead: Callable[[], str] = lambda: "try again",
    ) -> _T:
        """Run ``call`` on a thread. ``instead`` is for one that did not begin: do something else, and say what."""
        self._check_open()
        if not self._tracker.store.blocking:
            return call()
        limit = self._call_seconds if seconds is None else min(seconds, self._call_seconds)
        context = contextvars.copy_context()
        try:
            started = self._threads.submit(partial(context.run, call), share)
        except NoThread as error:
            raise StoreUnavailable(f"{error}, the call did not begin; {instead()}") from error
        future: asyncio.Future[_T] = asyncio.wrap_future(started)
        future.add_done_callback(_look_at)
        deadline = self._tracker.clock.monotonic() + limit
        try:
            done, _ = await asyncio.wait({future}, timeout=limit)
        except asyncio.CancelledError:
            if self._threads.withdraw(started):
                # What would have been refused for its arguments is no loss.
                with contextlib.suppress(ValueError, TypeError, TaskTrackerError):
                    instead()
            elif settle:
                await self._settle(future, deadline)
            raise
        if done:
            return future.result()
        if self._threads.withdraw(started):
            raise StoreUnavailable(
                f"no thread was free within {limit} seconds, the call did not begin; {instead()}"
            )
        raise StoreUnavailable(
            f"the store has not answered within {limit} seconds; what was begun may still take effect, ask again"
        )

    def _keep(self, ending: Ending, task_id: str, account_id: str | None, user_id: str | None) -> str:
        """Keep an ending that did not begin, as if the store had been away; return what became of it."""
        try:
            key = self._tracker.access.resolve_to_write(task_id, account_id, user_id)
        except TaskNotFound:
            return "try again"
        if self._tracker._keep(ending, key):
            return (
                f"the outcome of task {task_id} is kept and tried again in the background as long as this "
                "process lives"
            )
        if self._tracker.access.outcomes.waits(key):
            return (
                f"an earlier outcome of task {task_id} waits for the store and will win; this one was not kept, "
                "ask again once the store answers"
            )
        return "try again"

    def _of_task(self, task_id: str) -> Share:
        return Share(("task", task_id), max(1, self._max_threads // 4))

    def _of_owner(self, account_id: str | None, user_id: str | None) -> Share:
        return Share(("owner", account_id, user_id), max(1, self._max_threads // 2))

    def _of_workers(self) -> Share:
        """For what readiness asks every few seconds: while a store hangs it must not take all threads."""
        return Share("workers", max(1, self._max_threads // 4))

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this AsyncTaskTracker is closed; build a new one")

    async def _settle(self, future: asyncio.Future[_T], deadline: float) -> None:
        """Let a started call come to its end, however often the waiting is cancelled."""
        while not future.done():
            remaining = deadline - self._tracker.clock.monotonic()
            if remaining <= 0:
                return
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({future}, timeout=remaining)


def _set(event: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
    """Set a loop's event from any thread; a loop that has closed has nobody waiting."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(event.set)


def _look_at(future: asyncio.Future[_T]) -> None:
    """Take note of the error of a call that nobody waits for any more, so that asyncio does not complain."""
    if not future.cancelled():
        future.exception()


@contextlib.contextmanager
def _lent(connection: object) -> Iterator[OnLoop | None]:
    """Give a caller's connection, None if there is none, to a call on another thread until the caller goes on."""
    if connection is None:
        yield None
        return
    lent = OnLoop(connection, asyncio.get_running_loop(), threading.Event())
    try:
        yield lent
    finally:
        lent.is_over.set()
