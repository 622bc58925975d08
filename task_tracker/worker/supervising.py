"""One handler under its limits: its time, a wish to cancel it, the end of the worker, the loss of its lease.

Owns what a handler is told and how long it is waited for then. Refuses to say what that means for the task.
"""

from __future__ import annotations

import asyncio

from task_tracker.worker.outcomes import LeftBehind, StopReason
from task_tracker.worker.running import Did, HandlerRun
from task_tracker.worker.stops import StopSignal

__all__ = ["Supervision"]


class Supervision:
    """From the start of ``run`` until it has ended or is left behind. Used on the loop only.

    The first reason to stop counts. A lost lease overrides all others; a handler that was cancelled and goes on is
    left behind when its time is over or the worker ends, which is then the reason.
    """

    def __init__(
        self, run: HandlerRun, signal: StopSignal, *, timeout_seconds: float, cleanup_seconds: float
    ) -> None:
        self.reason: StopReason | None = None
        """Why it was told to stop; None if it was not."""
        self._run = run
        self._signal = signal
        self._cleanup_seconds = cleanup_seconds
        self._overdue: StopReason | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._loop = run.ended.get_loop()
        self._end: asyncio.Future[Did | LeftBehind] = self._loop.create_future()
        self._timeout = self._loop.call_later(timeout_seconds, self.stop, StopReason.TIMEOUT)
        run.ended.add_done_callback(self._handler_ended)

    def stop(self, reason: StopReason) -> None:
        """Tell the handler to stop. Safe when it was told before, or has ended."""
        if self._end.done():
            return
        is_first = self.reason is None
        if is_first or (reason is StopReason.LOST and self.reason is not StopReason.LOST):
            self.reason = reason
            self._signal.set(reason)
            self._tell(reason)
        elif self.reason is StopReason.CANCEL and reason is not StopReason.CANCEL and self._overdue is None:
            self._overdue = reason
            self._tell(reason)

    async def wait(self) -> Did | LeftBehind:
        """Return what the handler did. Cancelled, it tells the handler that the worker ends, and waits no longer."""
        try:
            return await self._end
        except asyncio.CancelledError:
            self._signal.set(StopReason.SHUTDOWN)
            self._run.stop()
            raise
        finally:
            self._timeout.cancel()
            if self._patience is not None:
                self._patience.cancel()

    def _tell(self, reason: StopReason) -> None:
        self._run.stop()
        patience = self._run.patience_seconds(reason, self._cleanup_seconds)
        if patience is not None and self._patience is None:
            self._patience = self._loop.call_later(patience, self._leave)

    def _leave(self) -> None:
        if not self._end.done():
            if self._overdue is not None and self.reason is StopReason.CANCEL:
                self.reason = self._overdue
            self._end.set_result(LeftBehind())

    def _handler_ended(self, ended: asyncio.Future[Did]) -> None:
        if not self._end.done():
            self._end.set_result(ended.result())
