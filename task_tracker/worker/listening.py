"""Listening for wake-ups, beside the loop that claims.

Owns the thread that waits for them. Refuses to know what is done when one is heard.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from task_tracker.clock import Clock
from task_tracker.duty import Duty
from task_tracker.wakeups import WakeUp

__all__ = ["Listener"]

_LISTEN_SECONDS: Final = 60.0
_INTERRUPT_SECONDS: Final = 0.02
_DEAF_SECONDS: Final = 5.0
"""The pause after one that failed."""


class Listener(Duty):
    """Waits for wake-ups in a thread of its own and calls ``heard`` for each."""

    def __init__(self, wake_up: WakeUp, clock: Clock, heard: Callable[[], None]) -> None:
        super().__init__("wake-up listener", clock)
        self._wake_up = wake_up
        self._heard = heard
        self._interrupting: threading.Thread | None = None

    def run_once(self) -> float | None:
        """Wait for one."""
        if self._wake_up.wait(_LISTEN_SECONDS):
            self._heard()
            return 0.0
        return _INTERRUPT_SECONDS  # one that does not wait at all must not take a whole core

    def on_error(self) -> float:
        """Polling finds what is not heard; the connection may be back soon."""
        return self._clock.jitter(_DEAF_SECONDS)

    def finish(self, seconds: float) -> bool:
        """End the thread; False if it hangs for longer than ``seconds``."""
        deadline = self._clock.monotonic() + seconds
        while self.running or not self.stop(_INTERRUPT_SECONDS):
            self.stop(0.0)
            self._interrupt()  # again and again: the thread may have been about to wait
            if self._clock.monotonic() >= deadline:
                return False
        return True

    def _interrupt(self) -> None:
        """Interrupt the wait, in a thread: that may hang as well, and is not to be begun once more then."""
        if self._interrupting is None or not self._interrupting.is_alive():
            thread = threading.Thread(
                target=self._interrupt_here, name="task_tracker interrupting", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # there is none
                self._interrupt_here()
                return
            self._interrupting = thread
        self._interrupting.join(_INTERRUPT_SECONDS)

    def _interrupt_here(self) -> None:
        with contextlib.suppress(BaseException):  # that it cannot be interrupted costs time
            self._wake_up.interrupt()
