"""An attempt on its way through the stages of the executor.

Owns what one stage leaves for the next: the handler that runs, why it could not be started, what goes on although it
is over. Refuses to know the stages.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from task_tracker.handlers import Handler
from task_tracker.store import Lease
from task_tracker.worker.attempts import AttemptRecord
from task_tracker.worker.outcomes import Outcome, StopReason
from task_tracker.worker.parts import Parts
from task_tracker.worker.running import HandlerRun
from task_tracker.worker.stops import StopSignal
from task_tracker.worker.supervising import Supervision

__all__ = ["UnderWay"]


@dataclasses.dataclass(slots=True, eq=False)
class UnderWay:
    """An attempt on its way through the stages."""

    lease: Lease
    record: AttemptRecord
    handler: Handler | None
    signal: StopSignal
    parts: Parts
    began_at: float
    """By the monotonic clock."""
    look: Callable[[], None] | None = None
    """Called when this process has written its record; None if nobody looks then."""
    run: HandlerRun | None = None
    supervision: Supervision | None = None
    """From the start of its handler."""
    refused: Outcome | None = None
    """How it ends since its handler could not be started."""
    hook: HandlerRun | None = None
    """An ``on_failure`` that goes on although its time is over."""
    is_foreign: bool = False
    """Another worker's: nothing runs here but its ``on_failure``."""
    told: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """Set when it is to stop."""
    is_cancel_noticed: bool = False
    writing_since: float | None = None
    """By the loop's clock: since when the store has been asked to take the outcome."""

    @property
    def going_on(self) -> list[HandlerRun]:
        """What has not ended of the handler and its ``on_failure``."""
        run, hook = self.run, self.hook
        if hook is None and (run is None or run.did is not None):
            return []  # as nearly always
        return [one for one in (run, hook) if one is not None and one.did is None]

    def stop(self, reason: StopReason) -> None:
        """Have the handler stop, or not begin."""
        self.told.set()
        if self.supervision is not None:
            self.supervision.stop(reason)
        else:
            self.signal.set(reason)
