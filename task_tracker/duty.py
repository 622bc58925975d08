"""A background duty: something to be done again and again, on a thread that can be stopped.

Owns the thread. Subclasses say what one round is (``run_once``), which is all that tests call.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

from task_tracker.clock import Clock

__all__ = ["Duty"]

_log = logging.getLogger("task_tracker")


class Duty(ABC):
    """A named daemon thread around :meth:`run_once`. Starting twice and stopping twice are safe."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False

    @abstractmethod
    def run_once(self) -> float | None:
        """Do one round; return the seconds until the next one, or None to end the thread."""

    def on_error(self) -> float:
        """Return the seconds until the next round after one that raised."""
        return 60.0

    @property
    def running(self) -> bool:
        """True while the thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, delay_seconds: float = 0.0) -> None:
        """Start the thread unless it runs; the first round comes after ``delay_seconds``."""
        with self._wake:
            # A fork leaves the object and takes the thread: is_alive() is False in the child then.
            if self.running and not self._stopping:
                return
            self._stopping = False
            self._thread = threading.Thread(
                target=self._run, args=(delay_seconds,), name=f"task_tracker {self._name}", daemon=True
            )
            self._thread.start()

    def stop(self, timeout_seconds: float | None = 10.0) -> None:
        """End the thread and wait for it, ``timeout_seconds`` at most."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_seconds)
            if not thread.is_alive():
                self._stopping = False

    def _run(self, delay_seconds: float) -> None:
        me = threading.current_thread()
        pause: float | None = delay_seconds
        while True:
            with self._wake:
                if pause is None or not self._wait(pause):
                    if self._thread is me:
                        self._thread = None
                    return
            try:
                pause = self.run_once()
            except Exception:
                # A duty outlives whatever one round meets; the next one tries again.
                _log.exception("%s failed; it goes on", self._name, extra={"event": "duty_failed"})
                pause = self.on_error()

    def _wait(self, seconds: float) -> bool:
        """Wait, holding the condition; return False if the duty was stopped meanwhile."""
        deadline = self._clock.monotonic() + seconds
        while not self._stopping:
            remaining = deadline - self._clock.monotonic()
            if remaining <= 0:
                return True
            self._clock.wait(self._wake, remaining)
        return False
