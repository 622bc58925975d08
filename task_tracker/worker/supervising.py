"""One handler under its limits: its time, a wish to cancel it, the end of the worker, the loss of its lease.

Owns what a handler is told and how long it is waited for then. Refuses to say what that means for the task.
"""

from __future__ import annotations

import asyncio
import math

from task_tracker.worker.outcomes import LeftBehind, StopReason
from task_tracker.worker.running import Did, HandlerRun
from task_tracker.worker.stops import StopSignal

__all__ = ["Supervision", "Timeouts"]


class Supervision:
    """From the start of ``run`` until it has ended or is left behind. Used on the loop only.

    The first reason to stop counts. A lost lease overrides all others; a handler that was cancelled and goes on is
    left behind when its time is over or the worker ends, which is then the reason.
    """

    __slots__ = (
        "_cleanup_seconds",
        "_deadline",
        "_end",
        "_is_left",
        "_loop",
        "_overdue",
        "_patience",
        "_run",
        "_signal",
        "_timeouts",
        "reason",
        "timeout_seconds",
    )

    def __init__(
        self,
        run: HandlerRun,
        signal: StopSignal,
        timeouts: Timeouts,
        *,
        timeout_seconds: float,
        cleanup_seconds: float,
    ) -> None:
        self.reason: StopReason | None = None
        """Why it was told to stop; None if it was not."""
        self.timeout_seconds = timeout_seconds
        self._run = run
        self._signal = signal
        self._timeouts = timeouts
        self._cleanup_seconds = cleanup_seconds
        self._overdue: StopReason | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._is_left = False
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout_seconds
        self._end: asyncio.Future[None] | None = None

    def stop(self, reason: StopReason) -> None:
        """Tell the handler to stop. Safe when it was told before, or has ended."""
        if self._is_over:
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
            if not self._is_over:  # as a short handler is that began before this
                await self._until_over()
        except asyncio.CancelledError:
            self._signal.set(StopReason.SHUTDOWN)
            self._run.stop()
            raise
        finally:
            if self._patience is not None:
                self._patience.cancel()
        did = self._run.did
        return LeftBehind() if self._is_left or did is None else did

    async def _until_over(self) -> None:
        self._end = self._loop.create_future()
        self._run.tell(self._over)
        self._timeouts.add(self, self._deadline)
        try:
            await self._end
        finally:
            self._timeouts.discard(self)

    @property
    def _is_over(self) -> bool:
        return self._is_left or self._run.did is not None

    def _tell(self, reason: StopReason) -> None:
        self._run.stop()
        patience = self._run.patience_seconds(reason, self._cleanup_seconds)
        if patience is not None and self._patience is None:
            self._patience = self._loop.call_later(patience, self._leave)

    def _leave(self) -> None:
        if not self._is_over:
            if self._overdue is not None and self.reason is StopReason.CANCEL:
                self.reason = self._overdue
            self._is_left = True
            self._over()

    def _over(self) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(None)


class Timeouts:
    """When the time of each handler is over. One timer of the loop for all: most end long before, and one each is dear.

    Used on one loop only.
    """

    def __init__(self) -> None:
        self._deadlines: dict[Supervision, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf

    def add(self, supervision: Supervision, deadline: float) -> None:
        """Have the handler told to stop at ``deadline``, by the loop's clock."""
        self._deadlines[supervision] = deadline
        if deadline < self._next:
            self._set(deadline)

    def discard(self, supervision: Supervision) -> None:
        """Forget it: it is over. The timer stays, and finds less to do."""
        self._deadlines.pop(supervision, None)

    def end(self) -> None:
        """Tell nobody any more."""
        self._deadlines.clear()
        self._set(math.inf)

    def _set(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = deadline
        is_any = deadline < math.inf
        self._timer = asyncio.get_running_loop().call_at(deadline, self._look) if is_any else None

    def _look(self) -> None:
        # A loop calls a little early, within the resolution of its clock.
        now = max(self._next, asyncio.get_running_loop().time())
        due = [supervision for supervision, deadline in self._deadlines.items() if deadline <= now]
        for supervision in due:
            del self._deadlines[supervision]
        self._set(min(self._deadlines.values(), default=math.inf))
        for supervision in due:
            supervision.stop(StopReason.TIMEOUT)
