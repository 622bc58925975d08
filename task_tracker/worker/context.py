"""What a handler is given: the task, and what it may say and ask while it works.

Owns the calls of a handler. There are two kinds, so that no call blocks a loop and none has to be awaited in a
thread: :class:`TaskContext` for ``async def``, :class:`BlockingTaskContext` for ``def``. Refuses to end the task:
what the handler returns or raises does.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Coroutine
from concurrent.futures import CancelledError as FutureCancelledError
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Final, TypeVar, Unpack

from task_tracker.call_threads import NoThread, Share
from task_tracker.errors import StoreUnavailable
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.submitting import Submission
from task_tracker.worker.attempts import pauses
from task_tracker.worker.checkpoints import checkpoint_of, checkpointed, encode_checkpoint
from task_tracker.worker.follow_ups import FollowUp, follow_up
from task_tracker.worker.outcomes import ShuttingDown
from task_tracker.worker.parts import Parts
from task_tracker.worker.transactions import HookTransaction, TaskTransaction

__all__ = ["BlockingTaskContext", "TaskContext", "current_context", "entered"]

_T = TypeVar("_T")

_log = logging.getLogger("task_tracker")

_CALLS_PER_TASK: Final = 2


class _Context:
    """``hook`` is the transaction in which the task is ended, of a context that is given to ``on_failure``."""

    def __init__(self, parts: Parts, hook: HookTransaction | None = None) -> None:
        self._parts = parts
        self._hook = hook
        self._attempt = parts.attempt
        self._signal = parts.signal

    # ---- the task --------------------------------------------------------------------------------------

    @property
    def record(self) -> TaskRecord:
        """The task as it was written last."""
        return self._attempt.record

    @property
    def key(self) -> TaskKey:
        """The triple (account_id, user_id, task_id)."""
        return self._attempt.lease.key

    @property
    def task_type(self) -> str:
        """The type of the task."""
        return self.record.task_type

    @property
    def version(self) -> int:
        """The version of the handler that the task is for."""
        return self.record.handler_version or 0

    @property
    def attempt_count(self) -> int:
        """Which attempt this is, counted from 1; those that crashed count."""
        return self._attempt.lease.attempt_count

    @property
    def fence(self) -> tuple[int, int]:
        """A pair that grows with every claim: whoever stores it refuses writes that come with a smaller one."""
        return self._attempt.lease.fence

    @property
    def last_checkpoint(self) -> Any:
        """What :meth:`checkpoint` stored last, in this attempt or one before it; None if nothing."""
        return checkpoint_of(self.record)

    def get_private(self) -> Any:
        """Return the credentials that came with the task; None if there are none."""
        return self.record.get_private()

    @property
    def workdir(self) -> str:
        """A directory of this attempt's own, made now. If it completes the task, ``effects_dir`` names it; otherwise
        it is removed some time. Raises CapabilityMissing where the store has no place for one, LeaseLost once the
        attempt is over or somebody else may have the task, StoreUnavailable.
        """
        return self._parts.workdir.path

    # ---- stopping --------------------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether somebody wants the task cancelled."""
        return self._signal.cancel_requested

    @property
    def stopping(self) -> bool:
        """Whether the handler is to stop, for whatever reason."""
        return self._signal.reason is not None

    def check(self) -> None:
        """Raise if the handler is to stop: Cancelled, OutOfTime, ShuttingDown, LeaseLost.

        The first three pass by ``except Exception``. Threads have to ask; nothing else stops them.
        """
        if self._hook is not None:
            self._signal.check_lease()
        else:
            self._signal.check()

    # ---- within ----------------------------------------------------------------------------------------

    def _note(self, percent: float | None, message: str | None, stage: str | None) -> bool:
        self._check_working()
        self._signal.check_lease()
        return self._attempt.note(percent, message, stage)

    def _commit_checkpoint(self, encoded: bytes) -> None:
        now = self._parts.around.clock.now()
        self._attempt.commit(lambda record: checkpointed(record, encoded, now))

    def _check_working(self) -> None:
        if self._hook is not None:
            raise RuntimeError("on_failure has nothing to note: the handler's attempt has ended")

    def _store_is_away(self, error: Exception) -> None:
        task_id = self.key.task_id
        _log.warning(
            "a checkpoint of task %s waits for the store: %s",
            task_id,
            error,
            extra={"event": "checkpoint_waits", "task_id": task_id},
        )


class TaskContext(_Context):
    """For async handlers. One per attempt; what is noted after the attempt is refused with LeaseLost.

    Its coroutines belong to the worker's event loop: on another one, in a thread say, they raise RuntimeError.
    """

    async def progress(
        self, percent: float | None = None, message: str | None = None, stage: str | None = None
    ) -> None:
        """Note how far the work is (0 to 100), in which stage, and what it does; what is None stays as it is.

        Cheap: a number alone is written when it has moved by two points or after a second, and what was not
        written goes along with the next write. Never fails because the store is away, nor stops a handler. Raises
        LeaseLost, and ValueError for a number that is none.
        """
        self._check_loop()
        if self._note(percent, message, stage):
            with contextlib.suppress(NoThread):
                await self._call(self._attempt.commit_noted)

    async def checkpoint(self, data: object) -> None:
        """Store ``data`` (JSON), so that another attempt, or a task that resumes this one, can go on from here.

        When it returns, the store has it, under this attempt's lease. Raises instead if the handler is to stop
        (:meth:`check`), and ValueError for what cannot be stored or takes more than ``max_checkpoint_bytes``. While
        the store is away it waits.
        """
        self._check_loop()
        self._check_working()
        encoded = encode_checkpoint(data, self._parts.around.sizes)
        for number, pause in enumerate(pauses(self._parts.around.clock)):
            self._signal.check()
            try:
                await self._call(lambda: self._commit_checkpoint(encoded))
                break
            except (StoreUnavailable, NoThread) as error:
                if number == 0:
                    self._store_is_away(error)
            await asyncio.sleep(pause)
        self._signal.check()

    async def submit(self, task_type: str, payload: object = None, **options: Unpack[FollowUp]) -> Submission:
        """Submit another task, as :meth:`task_tracker.TaskTracker.submit`, by itself of the same owner.

        It is a task like others: neither waits for the other. ``meta.submitted_by`` of it names this task, unless it
        is another owner's. ``version`` is by itself the highest that this worker has a handler of.

        Raises what :meth:`check` raises, submitting nothing, and what the tracker's call raises. Not fenced: an
        attempt that runs again submits again, so give ``task_id`` or ``dedupe`` where that matters. Cancelled while
        it waits, it may have been stored.
        """
        self._check_loop()
        order = follow_up(self.key, task_type, payload, options)
        share = Share(self.key, _CALLS_PER_TASK)
        for pause in pauses(self._parts.around.clock):
            self.check()
            with contextlib.suppress(NoThread):  # it did not begin
                return await self._parts.around.submit_calls.make(
                    lambda: self._parts.around.submitter.submit(order), share
                )
            await asyncio.sleep(pause)
        raise AssertionError("pauses never end")

    def transaction(self) -> AbstractAsyncContextManager[TaskTransaction]:
        """Begin a transaction of the store's database for rows of the handler's own: ``async with ... as tx``.

        ``tx.connection`` is in it. At the end of the block the task's lease is looked at, under a lock, and everything
        is committed: with ``tx.checkpoint(data)`` or ``tx.complete(result)`` together with that, as one. Everything is
        undone if the block raises, the lease is lost (LeaseLost) or the handler is to stop (:meth:`check`). While the
        store is away it waits to begin; if it goes away in between, StoreUnavailable says that nothing was written.

        In ``on_failure`` it is the transaction in which the task is ended, committed with that.

        Raises CapabilityMissing on a store without transactions, RuntimeError within another block of the handler.
        """
        self._check_loop()
        return (self._parts.transacting if self._hook is None else self._hook).on_loop()

    async def resource(self, name: str) -> Any:
        """Return what the handlers of this worker share under ``name``; it is built when it is first asked for.

        Raises SettingsError if there is no such name, and what its factory raised.
        """
        self._check_loop()
        return await self._parts.around.resources.get(name)

    def detach(self, coroutine: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start work that is no part of this task: it may outlive it, and knows nothing of it.

        It is lost if the worker ends meanwhile. What must not be lost is submitted as a task.
        """
        self._check_loop()
        context = contextvars.copy_context()
        context.run(_current.set, None)
        task = self._parts.around.kept.start(coroutine, f"detached from {self.key.task_id}", context)
        task.add_done_callback(_report_detached)
        return task

    def _check_loop(self) -> None:
        """Raise RuntimeError on a loop of somebody else's: what waits here is woken on the worker's, or never."""
        if asyncio.get_running_loop() is not self._parts.loop:
            raise RuntimeError(
                "another event loop runs here than the worker's, to which this context belongs; hand the call over "
                "with asyncio.run_coroutine_threadsafe"
            )

    async def _call(self, call: Any) -> None:
        await self._parts.around.store_calls.make(call, Share(self.key, _CALLS_PER_TASK))


class BlockingTaskContext(_Context):
    """For handlers that are ordinary functions, each on a thread of its own: the same calls, which block."""

    def progress(
        self, percent: float | None = None, message: str | None = None, stage: str | None = None
    ) -> None:
        """As :meth:`TaskContext.progress`."""
        if self._note(percent, message, stage):
            self._attempt.commit_noted()

    def checkpoint(self, data: object) -> None:
        """As :meth:`TaskContext.checkpoint`."""
        self._check_working()
        encoded = encode_checkpoint(data, self._parts.around.sizes)
        for number, pause in enumerate(pauses(self._parts.around.clock)):
            self._signal.check()
            try:
                self._commit_checkpoint(encoded)
                break
            except StoreUnavailable as error:
                if number == 0:
                    self._store_is_away(error)
            self._signal.pause(pause)
        self._signal.check()

    def submit(self, task_type: str, payload: object = None, **options: Unpack[FollowUp]) -> Submission:
        """As :meth:`TaskContext.submit`."""
        self.check()
        return self._parts.around.submitter.submit(follow_up(self.key, task_type, payload, options))

    def transaction(self) -> AbstractContextManager[TaskTransaction]:
        """As :meth:`TaskContext.transaction`, for ``with``; ``tx.connection`` blocks."""
        return (self._parts.transacting if self._hook is None else self._hook).blocking()

    def resource(self, name: str) -> Any:
        """As :meth:`TaskContext.resource`. Raises also what :meth:`check` raises, while it waits."""
        building = self._parts.around.resources.get(name)
        try:
            asked = asyncio.run_coroutine_threadsafe(building, self._parts.loop)
        except RuntimeError as error:  # the loop has closed
            building.close()
            self.check()
            raise ShuttingDown("the worker has ended, no resource is built any more") from error
        asked.add_done_callback(lambda _: self._signal.wake())
        try:
            self._signal.wait_for(asked.done, self.check)
        except BaseException:
            asked.cancel()  # the wait, not the build
            raise
        try:
            return asked.result()
        except FutureCancelledError as error:
            self.check()
            raise ShuttingDown("the worker ended before the resource was built") from error


_current: contextvars.ContextVar[TaskContext | BlockingTaskContext | None] = contextvars.ContextVar(
    "task_tracker_context", default=None
)


def current_context() -> TaskContext | BlockingTaskContext | None:
    """Return the context of the handler that this code runs in, None outside of handlers.

    Code that a handler has started and not awaited still sees it, and is refused once the attempt is over.
    """
    return _current.get()


def entered(context: TaskContext | BlockingTaskContext) -> contextvars.Context:
    """Return a copy of this code's context variables in which ``context`` is the current one."""
    variables = contextvars.copy_context()
    variables.run(_current.set, context)
    return variables


def _report_detached(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("%s failed", task.get_name(), exc_info=error, extra={"event": "detached_failed"})
