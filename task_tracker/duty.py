"""A background duty: something to be done again and again, on a thread that can be stopped.

Owns the thread. Subclasses say what one round is (``run_once``), which is all that tests call.
"""

from __future__ import annotations

import logging
import os
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
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ending: set[threading.Thread] = set()
        self._is_due = False

    def _held(self) -> threading.Condition:
        """Return the condition to hold. A fork takes the thread away, maybe while it held the parent's."""
        if self._pid != os.getpid():
            self._renew()
        return self._wake

    @abstractmethod
    def run_once(self) -> float | None:
        """Do one round; return the seconds until the next one, or None to end the thread."""

    def on_error(self) -> float:
        """Return the seconds until the next round after one that raised."""
        return 60.0

    @property
    def running(self) -> bool:
        """True while a thread is alive that has not been told to end."""
        thread = self._thread
        return thread is not None and thread not in self._ending and thread.is_alive()

    @property
    def told_to_stop(self) -> bool:
        """True on the duty's own thread once it is to end. Never for others, who may call ``run_once`` too."""
        return threading.current_thread() in self._ending

    def start(self, delay_seconds: float = 0.0) -> None:
        """Start the thread unless it runs; the first round comes after ``delay_seconds``."""
        with self._held():
            if self.running:
                return
            self._is_due = False
            thread = threading.Thread(
                target=self._run, args=(delay_seconds,), name=f"task_tracker {self._name}", daemon=True
            )
            thread.start()  # it waits for what is held here; where there are no threads, nothing has begun
            self._thread = thread

    def stop(self, timeout_seconds: float | None = 10.0) -> bool:
        """End the thread and wait for it, ``timeout_seconds`` at most; return whether it has ended."""
        with self._held():
            thread = self._thread
            if thread is None:
                return True
            # Told one by one: a thread that hangs must not go on because another one was started meanwhile.
            self._ending.add(thread)
            self._wake.notify_all()
        if thread is threading.current_thread():
            return False
        thread.join(timeout_seconds)
        return not thread.is_alive()

    def soon(self) -> None:
        """Have the next round come now instead of when its time has come. Nothing if no thread runs."""
        with self._held():
            self._is_due = self._thread is not None
            self._wake.notify_all()

    def end_soon(self, timeout_seconds: float) -> bool:
        """Wait for the thread, ``timeout_seconds`` at most, whose next round, which is now, is its last by itself."""
        thread = self._thread
        self.soon()
        if thread is None:
            return True
        thread.join(timeout_seconds)
        return not thread.is_alive()

    def last_round(self) -> None:
        """Say, from within a round, that it is the last: whoever calls :meth:`start` now gets a new thread."""
        with self._held():
            if self._thread is threading.current_thread():
                self._ending.add(self._thread)

    def _run(self, delay_seconds: float) -> None:
        pause: float | None = delay_seconds
        while True:
            with self._wake:
                if pause is None or not self._wait(pause):
                    me = threading.current_thread()
                    self._ending.discard(me)
                    if self._thread is me:
                        self._thread = None
                    return
            try:
                pause = self.run_once()
            except Exception:  # noqa: BLE001  # whatever it is, it is logged and the duty goes on
                # A duty outlives whatever one round meets; the next one tries again.
                _log.exception("%s failed; it goes on", self._name, extra={"event": "duty_failed"})
                pause = self.on_error()

    def _wait(self, seconds: float) -> bool:
        """Wait, holding the condition; return False if the duty was stopped meanwhile."""
        deadline = self._clock.monotonic() + seconds
        while not self.told_to_stop:
            remaining = deadline - self._clock.monotonic()
            if remaining <= 0 or self._is_due:
                self._is_due = False
                return True
            self._clock.wait(self._wake, remaining)
        return False
