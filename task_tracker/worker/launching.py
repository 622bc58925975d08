"""The first half of an attempt: from a claimed task to a handler that runs.

Owns what keeps a handler from being started, how long that is waited for, and when its time begins. Refuses to judge
what it does then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from task_tracker.call_threads import NoThread
from task_tracker.clock import Clock
from task_tracker.handlers import Handler
from task_tracker.worker.attempts import pauses
from task_tracker.worker.outcomes import Failed, Interrupted, Raised, judged
from task_tracker.worker.running import is_async
from task_tracker.worker.shortage import Shortage
from task_tracker.worker.starting import Function, Starter
from task_tracker.worker.supervising import Supervision, Timeouts
from task_tracker.worker.under_way import UnderWay

__all__ = ["Launcher"]

_log = logging.getLogger("task_tracker")

_THREAD_TRIES: Final = 5
_NO_THREAD_PAUSE_SECONDS: Final = 10.0
"""For how long a task is not claimed again that found no thread: it would find none, at full speed."""


class Launcher:
    """Of one executor. ``timeout_seconds`` is for handlers without a time of their own."""

    def __init__(
        self, starter: Starter, shortage: Shortage, timeouts: Timeouts, clock: Clock, timeout_seconds: float
    ) -> None:
        self._starter = starter
        self._shortage = shortage
        self._timeouts = timeouts
        self._clock = clock
        self._timeout_seconds = timeout_seconds

    def start_at_once(self, attempt: UnderWay) -> None:
        """Start the handler if it takes neither an import nor a thread; :meth:`start` does otherwise."""
        handler = attempt.handler
        if handler is not None and handler.is_loaded and attempt.signal.reason is None:
            function = handler.load()
            if is_async(function):
                self._start_function(attempt, handler, function)

    async def start(self, attempt: UnderWay) -> None:
        """Start the handler as soon as that can be, or say why it is ``refused``.

        Its time has not begun: neither an import nor the wait for a thread is part of it.
        """
        problem: NoThread | None = None
        waits = pauses(self._clock)
        for number in range(_THREAD_TRIES + 1):
            try:
                await self._start_now(attempt)
                return
            except NoThread as error:
                problem = error
                self._shortage.note(error)
            if number == _THREAD_TRIES:
                break
            # Meanwhile the slot is taken, so that no more is claimed than could be begun.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(attempt.told.wait(), next(waits))
        _log.warning(
            "task %s is given back, there is no thread for it: %s",
            attempt.lease.key.task_id,
            problem,
            extra={"event": "no_thread", "task_id": attempt.lease.key.task_id},
        )
        attempt.refused = Interrupted(began=False, after=self._clock.jitter(_NO_THREAD_PAUSE_SECONDS))

    async def _start_now(self, attempt: UnderWay) -> None:
        """Do that once. Raises NoThread."""
        function = None if attempt.signal.reason is not None else await self._imported(attempt)
        reason = attempt.signal.reason
        if reason is not None:  # it was to stop before it began
            did = Raised(asyncio.CancelledError(), began=False)
            attempt.refused = judged(did, reason, self._timeout_of(attempt))
            return
        assert function is not None, "only who was told to stop gets nothing"
        if isinstance(function, Failed | Interrupted):
            attempt.refused = function
        else:
            assert attempt.handler is not None, "a function is a handler's"
            self._start_function(attempt, attempt.handler, function)

    async def _imported(self, attempt: UnderWay) -> Function | Failed | Interrupted | None:
        """Return what is to be called, or how the attempt ends since there is nothing to call.

        None if it was told to stop meanwhile.
        """
        record = attempt.record.record
        if attempt.handler is not None:
            return await self._starter.imported(attempt.handler, record.task_id, attempt.told)
        _log.error(
            "task %s is of type %s version %s, for which there is no handler here; it is given back",
            record.task_id,
            record.task_type,
            record.handler_version,
            extra={"event": "claimed_kind_unknown", "task_id": record.task_id},
        )
        return Interrupted(began=False)

    def _start_function(self, attempt: UnderWay, handler: Handler, function: Function) -> None:
        """Start a handler, whose time begins now, or say how the attempt ends since it cannot be. Raises NoThread."""
        run = self._starter.start(handler, function, attempt.record.record, attempt.parts)
        if isinstance(run, Failed):
            attempt.refused = run
            return
        attempt.run = run
        attempt.supervision = Supervision(
            run,
            attempt.signal,
            self._timeouts,
            timeout_seconds=self._timeout_of(attempt),
            cleanup_seconds=handler.cleanup_seconds,
        )
        reason = attempt.signal.reason
        if reason is not None:  # since it was started, in its first step: a loop may take that at once
            attempt.supervision.stop(reason)

    def _timeout_of(self, attempt: UnderWay) -> float:
        handler, own = attempt.handler, attempt.record.record.timeout_seconds
        longest = self._timeout_seconds
        if handler is not None and handler.timeout_seconds is not None:
            longest = handler.timeout_seconds
        return min(own, longest) if own is not None and own > 0 else longest  # a file may hold anything
