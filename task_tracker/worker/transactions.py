"""Transactions of handlers: rows of their own and the task's record, committed together or not at all.

Owns how such a block begins, what it can say it ends with, and that a coroutine which is cancelled leaves nothing half
done. Refuses to know the database: the store gives a connection of its driver's, and keeps the fence.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any, Final, TypeVar

from task_tracker.call_threads import NoThread, Share
from task_tracker.clock import Clock
from task_tracker.errors import CapabilityMissing, LeaseLost, StoreUnavailable
from task_tracker.redaction import redact_error
from task_tracker.sizes import Sizes
from task_tracker.store import HasTransactions, Lease, LeaseStore, StoreTransaction
from task_tracker.worker.attempts import AttemptRecord, pauses
from task_tracker.worker.calls import Calls, Kept
from task_tracker.worker.checkpoints import checkpointed, encode_checkpoint
from task_tracker.worker.effects import WorkDirectory
from task_tracker.worker.outcomes import Done, Result, as_done
from task_tracker.worker.settling import ending_of
from task_tracker.worker.stops import StopSignal

__all__ = ["BEGINNING_AT_ONCE", "HookTransaction", "TaskTransaction", "Transacting"]

_T = TypeVar("_T")

BEGINNING_AT_ONCE: Final = 4
"""Threads in which blocks wait for a connection. Those that end blocks, and so give connections back, are others."""
_CALLS_PER_TASK: Final = 2
_within: contextvars.ContextVar[StoreTransaction | None] = contextvars.ContextVar("_within", default=None)
"""The transaction of the block that was begun last in this context; it may have ended."""


class TaskTransaction:
    """What a block of ``ctx.transaction()`` is given.

    ``connection`` is the driver's (for PostgreSQL a ``psycopg.AsyncConnection``, in a plain function a
    ``psycopg.Connection``), in a transaction. It is of no use after the block, which alone ends the transaction; in
    ``on_failure`` after the end of that.
    """

    def __init__(self, connection: Any, transacting: Transacting, *, is_ending: bool = False) -> None:
        self.connection: Any = connection
        self._attempt = transacting.attempt
        self._sizes = transacting.sizes
        self._is_ending = is_ending
        self._said: bytes | Done | None = None

    def checkpoint(self, data: object) -> None:
        """Have the transaction end with ``data`` stored as the checkpoint. Raises ValueError for what cannot be stored.

        Nothing is sent before the end of the block. Raises RuntimeError if it was said before how the block ends.
        """
        self._check_unsaid()
        self._said = encode_checkpoint(data, self._sizes)

    def complete(self, result: object = None, *, resource_id: str | None = None) -> None:
        """Have the transaction end with the task completed; what the handler returns after that does not count.

        Raises Fail for a result that is not JSON (``unserializable_result``) or too large (``result_too_large``),
        RuntimeError as :meth:`checkpoint`.
        """
        self._check_unsaid()
        said = result if resource_id is None else Result(result, resource_id)
        self._said = as_done(said, self._sizes)
        self._attempt.may_be_settled = True

    def _check_unsaid(self) -> None:
        if self._is_ending:
            raise RuntimeError(
                "on_failure has nothing to note: this transaction ends with the end of the task"
            )
        if self._said is not None:
            raise RuntimeError("it was said before how this transaction ends; begin another one")


@dataclasses.dataclass(slots=True, eq=False)
class Transacting:
    """How the transactions of one attempt begin and end."""

    store: LeaseStore
    lease: Lease
    attempt: AttemptRecord
    signal: StopSignal
    workdir: WorkDirectory
    store_calls: Calls
    begin_calls: Calls
    kept: Kept
    sizes: Sizes
    clock: Clock
    under_way: set[StoreTransaction] = dataclasses.field(default_factory=set, init=False)

    def begin(self, *, for_loop: bool) -> StoreTransaction:
        """Begin one. Blocks. Raises CapabilityMissing, LeaseLost, StoreUnavailable."""
        store = self.capable()
        self.signal.check_lease()
        return store.begin(self.lease, for_loop=for_loop)

    def capable(self) -> HasTransactions:
        """Return the store. Raises CapabilityMissing unless it has transactions."""
        if isinstance(self.store, HasTransactions):
            return self.store
        raise CapabilityMissing(
            f"{type(self.store).__name__} shares no transaction with other tables; use the postgres backend, or write "
            "under ctx.fence and call ctx.checkpoint afterwards"
        )

    # ---- blocks of handlers --------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def on_loop(self) -> AsyncIterator[TaskTransaction]:
        """See :meth:`TaskContext.transaction`."""
        self._check_outside()
        begun = await self._begun_on_loop()
        block = TaskTransaction(begun.connection, self)
        with self._known(begun):
            try:
                yield block
                begun.revoke()
            except GeneratorExit:
                begun.roll_back()  # the handler never ended, and is thrown away after its loop
                raise
            except BaseException:
                await self._to_its_end(self.undo(begun))
                raise
            await self._to_its_end(self._conclude_on_loop(begun, block))

    @contextlib.contextmanager
    def blocking(self) -> Iterator[TaskTransaction]:
        """See :meth:`BlockingTaskContext.transaction`."""
        self._check_outside()
        begun = self._begun()
        block = TaskTransaction(begun.connection, self)
        with self._known(begun):
            try:
                yield block
                begun.revoke()
            except BaseException:
                begun.roll_back()
                raise
            try:
                self._conclude(begun, block)
            except StoreUnavailable as error:
                for pause in self._pauses_in_doubt(error):
                    if self._is_found_out(error):
                        return
                    self.signal.pause(pause)

    def _check_outside(self) -> None:
        """Raise CapabilityMissing, and RuntimeError within a block: all who wait in one could wait for each other."""
        self.capable()
        if _within.get() in self.under_way:
            raise RuntimeError(
                "ctx.transaction() within a block of it would wait for a second connection while it keeps the first; "
                "use `connection.transaction()` for a part of the block, or begin the other one after it"
            )

    async def undo_all(self) -> None:
        """Undo what a handler has begun that goes on although its attempt is over: nobody waits for its locks."""
        for begun in list(self.under_way):
            await self.undo(begun)

    async def undo(self, begun: StoreTransaction) -> None:
        """Undo one."""
        try:
            await self.store_calls.make(begun.roll_back)
        except NoThread:
            begun.roll_back()

    def undo_later(self, begun: StoreTransaction) -> None:
        """Undo one without waiting for that."""
        with contextlib.suppress(RuntimeError):  # no thread any more: its session ends with the process
            self.store_calls.submit(begun.roll_back)

    @contextlib.contextmanager
    def _known(self, begun: StoreTransaction) -> Iterator[None]:
        self.under_way.add(begun)
        _within.set(begun)
        try:
            yield
        finally:
            self.under_way.discard(begun)

    async def _begun_on_loop(self) -> StoreTransaction:
        for pause in pauses(self.clock):
            self.signal.check()
            try:
                return await self.begin_to_its_end()
            except (StoreUnavailable, NoThread):
                await asyncio.sleep(pause)
        raise AssertionError("pauses never end")

    async def begin_to_its_end(self) -> StoreTransaction:
        """Begin one for this loop. Cancelled, it leaves none behind."""
        making = self.begin_calls.make(lambda: self.begin(for_loop=True))
        begun: list[StoreTransaction] = []

        async def note() -> None:
            begun.append(await making)

        try:
            await self._to_its_end(note())
        except BaseException:
            for transaction in begun:
                await self._to_its_end(self.undo(transaction))
            raise
        return begun[0]

    def _begun(self) -> StoreTransaction:
        for pause in pauses(self.clock):
            self.signal.check()
            try:
                return self.begin(for_loop=False)
            except StoreUnavailable:
                self.signal.pause(pause)
        raise AssertionError("pauses never end")

    # ---- their ends ------------------------------------------------------------------------------------

    def _conclude(self, begun: StoreTransaction, block: TaskTransaction) -> None:
        """Write the last word of a block and commit, or undo it."""
        try:
            self.signal.check()
        except BaseException:
            begun.roll_back()
            raise
        now, said = self.clock.now(), block._said
        commit = self.attempt.commit_within
        if said is None:
            commit(begun, "look", check=self.signal.check)
        elif isinstance(said, Done):
            ending = ending_of(said, None, now, self.workdir.name)
            assert ending is not None, "it is written that something was done"
            commit(begun, "end", ending.step, self.signal.check)
            return
        else:
            commit(begun, "commit", lambda record: checkpointed(record, said, now), self.signal.check)
        self.signal.check()

    async def _conclude_on_loop(self, begun: StoreTransaction, block: TaskTransaction) -> None:
        share = Share(self.lease.key, _CALLS_PER_TASK)
        try:
            await self.store_calls.make(lambda: self._conclude(begun, block), share)
            return
        except NoThread as error:
            begun.roll_back()
            raise StoreUnavailable(
                f"nothing was written, there is no thread to commit it: {error}"
            ) from error
        except asyncio.CancelledError:
            self.undo_later(begun)  # the worker ends, and may not even have begun this
            raise
        except StoreUnavailable as error:
            problem = error
        for pause in self._pauses_in_doubt(problem):
            if await self.store_calls.make(lambda: self._is_found_out(problem), share):
                return
            await asyncio.sleep(pause)

    def _pauses_in_doubt(self, error: StoreUnavailable) -> Iterator[float]:
        """Return the pauses while it is not known whether a transaction was committed; the handler may be told to stop.

        Raises ``error`` if that is not in doubt: nothing was written then.
        """
        if not self.attempt.is_in_doubt:
            raise error
        for pause in pauses(self.clock):
            yield pause
            self.signal.check()

    def _is_found_out(self, error: StoreUnavailable) -> bool:
        """Return True for a transaction that was committed, False if the store cannot say; else raise ``error``."""
        try:
            if self.attempt.is_committed():
                return True
        except StoreUnavailable:
            return False
        raise error

    async def _to_its_end(self, awaited: Awaitable[_T]) -> _T:
        """Await something that must not be left in the middle: a cancellation waits for its end.

        An error of what was awaited goes before the cancellation: it says what came of it.
        """
        task = self.kept.start(_awaiting(awaited), f"transaction of {self.lease.key.task_id}")
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                cancelled = error
        value = task.result()
        if cancelled is not None:
            raise cancelled
        return value


async def _awaiting(awaited: Awaitable[_T]) -> _T:
    return await awaited


class HookTransaction:
    """The transaction in which a task is ended, for its ``on_failure``: begun when that asks for it.

    Whatever goes wrong in a block of it undoes all of it. Thread-safe: a hook may overrun its time in a thread.
    """

    def __init__(self, transacting: Transacting) -> None:
        self._transacting = transacting
        self._lock = threading.Lock()
        self._begun: StoreTransaction | None = None
        self._problem: str | None = None
        self._is_over = False

    @contextlib.asynccontextmanager
    async def on_loop(self) -> AsyncIterator[TaskTransaction]:
        """See :meth:`TaskContext.transaction`."""
        self._transacting.capable()
        if self._begun is None:
            begun = await self._transacting.begin_to_its_end()
            if not self._take(begun):
                await self._transacting.undo(begun)
        with self._block() as block:
            yield block

    @contextlib.contextmanager
    def blocking(self) -> Iterator[TaskTransaction]:
        """See :meth:`BlockingTaskContext.transaction`."""
        self._transacting.capable()
        if self._begun is None:
            begun = self._transacting.begin(for_loop=False)
            if not self._take(begun):
                begun.roll_back()
        with self._block() as block:
            yield block

    def taken(self) -> tuple[StoreTransaction | None, str | None]:
        """Return what the hook began, None if nothing, and what went wrong in it; it can begin nothing more."""
        with self._lock:
            self._is_over = True
            return self._begun, self._problem

    def _take(self, begun: StoreTransaction) -> bool:
        """Keep what was begun; False if another one is kept, or it is too late."""
        with self._lock:
            if self._is_over or self._begun is not None:
                return False
            self._begun = begun
            return True

    @contextlib.contextmanager
    def _block(self) -> Iterator[TaskTransaction]:
        begun = self._begun
        if begun is None or self._is_over:
            raise LeaseLost("the time of this on_failure is over, and its task ends without it")
        try:
            yield TaskTransaction(begun.connection, self._transacting, is_ending=True)
        except BaseException as error:
            self._problem = f"its rows were rolled back: {redact_error(error)}"
            raise
