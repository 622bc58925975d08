"""The second half of an attempt: from an outcome to the record that is written.

Owns the stages after the handler: has it ended its task itself, is it tried again, ``on_failure``, the write that is
repeated while the store is away. Refuses to run handlers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from task_tracker.call_threads import NoThread
from task_tracker.clock import Clock
from task_tracker.errors import LeaseLost, StoreUnavailable
from task_tracker.handlers import Handler
from task_tracker.holdings import Holdings
from task_tracker.records import JSON_NULL, TaskRecord, TaskStatus
from task_tracker.redaction import redact_error
from task_tracker.store import StoreTransaction
from task_tracker.worker.attempts import pauses
from task_tracker.worker.calls import After, Calls
from task_tracker.worker.ends import Ends
from task_tracker.worker.outcomes import CancelledOutcome, Done, Failed, Lost, Outcome, RetryAt
from task_tracker.worker.retrying import attempts_used, may_retry, retry_at
from task_tracker.worker.settling import Ending, ending_of, under_wish
from task_tracker.worker.starting import Starter
from task_tracker.worker.transactions import HookTransaction
from task_tracker.worker.under_way import UnderWay

__all__ = ["Ended", "Finisher"]

_log = logging.getLogger("task_tracker")


class Ended(NamedTuple):
    """What became of an attempt."""

    outcome: Outcome
    record: TaskRecord | None
    """As it was written; None if nothing was."""
    handler_ended: asyncio.Future[Any] | None = None
    """Done once the handler and its ``on_failure`` have really ended, if they go on; the slot is taken until then."""


class Finisher:
    """``hook_seconds``: what an ``on_failure`` may take. ``ahead``: see :class:`Executor`."""

    def __init__(
        self,
        starter: Starter,
        store_calls: Calls,
        ends: Ends,
        holdings: Holdings,
        clock: Clock,
        *,
        hook_seconds: float,
        ahead: Callable[[int], After | None],
    ) -> None:
        self._starter = starter
        self._store_calls = store_calls
        self._ends = ends
        self._holdings = holdings
        self._clock = clock
        self._hook_seconds = hook_seconds
        self._ahead_of_one = partial(ahead, 1)

    async def finish(self, attempt: UnderWay, outcome: Outcome) -> Ended:
        """Write what ``outcome`` means and return what became of the attempt. Raises nothing but CancelledError.

        What a transaction of the handler's has ended is ended: the first end counts.
        """
        if attempt.record.may_be_settled:
            completed = await self._completed(attempt)
            if completed is not None:
                return _ended(attempt, _as_completed(outcome, completed), completed)
        if attempt.parts.has_transacted:
            await attempt.parts.transacting.undo_all()
        if not isinstance(outcome, Done):
            outcome = under_wish(
                self._tried_again(attempt, outcome),
                attempt.handler,
                cancel_requested=attempt.lease.cancel_requested.is_set(),
            )
        ending = ending_of(outcome, attempt.handler, self._clock.now(), attempt.parts.effects_dir)
        if ending is None:
            self._holdings.drop(attempt.lease)
            return _ended(attempt, outcome, None)
        if ending.is_failure and attempt.handler is not None and attempt.handler.on_failure is not None:
            written = await self._write_after_hook(attempt, attempt.handler, ending)
        else:
            written = await self._write(attempt, ending)
        if isinstance(written, Lost):
            return _ended(attempt, written, None)
        if written.status is TaskStatus.CANCELLED and not isinstance(outcome, CancelledOutcome):
            outcome = CancelledOutcome()  # somebody wanted that while it was given back
        return _ended(attempt, outcome, written)

    def _tried_again(self, attempt: UnderWay, outcome: Outcome) -> Outcome:
        handler, record, attempts = attempt.handler, attempt.record.record, attempt.lease.attempt_count
        if not isinstance(outcome, Failed) or not outcome.may_retry or handler is None:
            return outcome
        if not may_retry(handler, record, attempts):
            return outcome
        at = (
            retry_at(handler, attempts_used(record, attempts), self._clock)
            if outcome.after is None
            else self._clock.now() + outcome.after
        )
        return RetryAt(at, outcome.error, outcome.error_code)

    async def _completed(self, attempt: UnderWay) -> TaskRecord | None:
        """Return the record if a transaction of the handler's has completed the task; only the store can know."""
        attempt.writing_since = asyncio.get_running_loop().time()
        for pause in pauses(self._clock):
            with contextlib.suppress(StoreUnavailable, NoThread):
                return await self._store_calls.make(attempt.record.settled)
            await asyncio.sleep(pause)
        raise AssertionError("pauses never end")

    async def _write_after_hook(
        self, attempt: UnderWay, handler: Handler, ending: Ending
    ) -> TaskRecord | Lost:
        """Call ``on_failure``, then write the ending, in the transaction that it has used if it has."""
        transaction = HookTransaction(attempt.parts.transacting)
        try:
            problem = await self._call_hook(attempt, handler, ending, transaction)
        except BaseException:
            begun, _ = transaction.taken()
            if begun is not None:
                attempt.parts.transacting.undo_later(begun)
            raise
        begun, rolled_back = transaction.taken()
        problem = problem or rolled_back
        if problem is None and begun is not None:
            return await self._write(attempt, ending, begun)
        if begun is not None:
            await attempt.parts.transacting.undo(begun)
        return await self._write(
            attempt, ending if problem is None else _with_problem(attempt, ending, problem)
        )

    async def _call_hook(
        self, attempt: UnderWay, handler: Handler, ending: Ending, transaction: HookTransaction
    ) -> str | None:
        """Call ``on_failure`` and return what went wrong in that call."""
        try:
            problem, attempt.hook = await self._starter.call_hook(
                handler,
                attempt.record.preview(ending.step),
                attempt.parts,
                transaction,
                self._hook_seconds,
                foreign=attempt.is_foreign,
            )
        except Exception as error:  # noqa: BLE001  # the record ends all the same
            problem = redact_error(error)
        return problem

    async def _write(
        self, attempt: UnderWay, ending: Ending, within: StoreTransaction | None = None
    ) -> TaskRecord | Lost:
        """Write the ending, as often as it takes while the lease is held; the first time ``within`` a transaction.

        If that fails the rows of ``on_failure`` are not there. The task ends all the same, and says so.
        """
        attempt.writing_since = asyncio.get_running_loop().time()
        frees_slot = not attempt.is_foreign and not attempt.going_on
        together = self._ends.are_together and within is None
        write = _writing(attempt, ending) if within is None else _writing_within(attempt, ending, within)
        waits: Iterator[float] | None = None
        try:
            while True:
                try:
                    if together and waits is None:
                        ended = await self._ends.write(attempt.record, ending, frees_slot=frees_slot)
                        if ended is not None:
                            return ended
                    return await self._store_calls.make(
                        write, then=self._ahead_of_one if frees_slot else None
                    )
                except (StoreUnavailable, NoThread) as error:
                    if waits is None:
                        _say_that_it_waits(attempt, error)
                if waits is None:
                    waits = pauses(self._clock)
                await asyncio.sleep(next(waits))
        except LeaseLost as error:
            return Lost(str(error))
        except Exception as error:  # noqa: BLE001  # the lease expires, and whoever rescues the task decides
            _log.exception(
                "the outcome of task %s cannot be stored",
                attempt.lease.key.task_id,
                extra={"event": "outcome_refused", "task_id": attempt.lease.key.task_id},
            )
            self._holdings.drop(attempt.lease)
            return Lost(redact_error(error))


def _say_that_it_waits(attempt: UnderWay, error: Exception) -> None:
    task_id = attempt.lease.key.task_id
    _log.warning(
        "the outcome of task %s could not be stored and is tried again: %s",
        task_id,
        error,
        extra={"event": "outcome_waits", "task_id": task_id},
    )


def _writing(attempt: UnderWay, ending: Ending) -> Callable[[], TaskRecord]:
    """Return what writes the ending."""
    return partial(attempt.record.settle, ending.step, error=ending.error, error_code=ending.error_code)


def _writing_within(attempt: UnderWay, ending: Ending, within: StoreTransaction) -> Callable[[], TaskRecord]:
    """Return what does so in a transaction the first time, and by itself once that has failed."""
    first: StoreTransaction | None = within
    rolled_back: str | None = None

    def write() -> TaskRecord:
        nonlocal first, ending, rolled_back
        if first is not None:
            begun, first = first, None
            try:
                begun.revoke()
                return attempt.record.commit_within(begun, "end", ending.step)
            except LeaseLost:
                raise
            except Exception as error:  # noqa: BLE001  # whatever the driver raises
                begun.roll_back()
                rolled_back = f"its rows were rolled back: {redact_error(error)}"
        if rolled_back is not None:
            settled = attempt.record.settled()  # its commit may not have been answered
            if settled is not None:
                return settled
            ending, rolled_back = _with_problem(attempt, ending, rolled_back), None
        return _writing(attempt, ending)()

    return write


def _with_problem(attempt: UnderWay, ending: Ending, problem: str) -> Ending:
    """Return the ending, with what went wrong in ``on_failure``."""
    _log.error(
        "on_failure of task %s failed: %s",
        attempt.lease.key.task_id,
        problem,
        extra={"event": "hook_failed", "task_id": attempt.lease.key.task_id},
    )
    return ending._replace(step=lambda record: ending.step(record).changed(hook_error=problem))


def _as_completed(outcome: Outcome, record: TaskRecord) -> Done:
    """Return the outcome of an attempt that has completed its task before it ended."""
    if not isinstance(outcome, Done):
        _log.warning(
            "task %s was completed by a transaction of its handler; how that ended after it (%s) does not count",
            record.task_id,
            outcome.name,
            extra={"event": "completed_before", "task_id": record.task_id, "outcome": outcome.name},
        )
    return Done(JSON_NULL if record.result_json is None else record.result_json, record.resource_id)


def _ended(attempt: UnderWay, outcome: Outcome, record: TaskRecord | None) -> Ended:
    going_on = attempt.going_on
    if not going_on:
        return Ended(outcome, record)
    ends = [run.ended for run in going_on]
    return Ended(outcome, record, ends[0] if len(ends) == 1 else asyncio.gather(*ends))
