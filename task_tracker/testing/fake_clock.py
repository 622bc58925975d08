"""A clock that stands still until a test moves it.

Owns made-up time. Refuses to let anybody sleep: what waits on this clock wakes when it is notified or when
:meth:`FakeClock.advance` has reached its time.
"""

from __future__ import annotations

import itertools
import threading
from typing import Final

from task_tracker.clock import uuid7_text

__all__ = ["FakeClock"]

_PATIENCE_SECONDS: Final = 30.0
_instances = itertools.count(1)


class FakeClock:
    """Implements :class:`task_tracker.clock.Clock`. Thread-safe; ids and tokens are unique in this process.

    A waiting thread blocks for real, without using time: :meth:`advance` wakes it. So a test that lets a
    thread wait says ``clock.until_waiting()`` and then ``clock.advance(seconds)``, and nothing sleeps. If
    nobody moves the clock within ``patience_seconds`` of real time, the waiter raises AssertionError rather
    than hang.
    """

    def __init__(
        self, start: float = 1_700_000_000.0, *, patience_seconds: float = _PATIENCE_SECONDS
    ) -> None:
        self._patience_seconds = patience_seconds
        self._changed = threading.Condition()
        self._now = start
        self._monotonic = 0.0
        self._instance = next(_instances)
        self._numbers = itertools.count(1)
        self._waiters: dict[object, tuple[float, threading.Condition]] = {}

    # ---- what the library asks -----------------------------------------------------------------------

    def now(self) -> float:
        """Return the made-up Unix time."""
        return round(self._now, 6)

    def monotonic(self) -> float:
        """Return the seconds that the clock was advanced by so far."""
        return self._monotonic

    def new_id(self, at: float) -> str:
        """Return a UUIDv7 for ``at`` with a counter in place of randomness: the same in every run."""
        milliseconds, fraction = divmod(at * 1000, 1)
        return uuid7_text(int(milliseconds), int(fraction * 4096), self._number())

    def new_token(self) -> str:
        """Return 32 hex digits, counted."""
        return f"{self._number():032x}"

    def jitter(self, seconds: float) -> float:
        """Return ``seconds``: the longest that a real clock would give."""
        return seconds

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Wait until ``condition`` (held) is notified or the clock has been advanced by ``seconds``."""
        if seconds <= 0:
            return
        me = object()
        with self._changed:
            self._waiters[me] = (self._monotonic + seconds, condition)
            self._changed.notify_all()
        try:
            # Whoever advances the clock takes `condition` to notify it, which is held until this waits.
            if not condition.wait(self._patience_seconds):
                raise AssertionError(
                    f"nobody moved the clock for {self._patience_seconds} real seconds; call advance()"
                )
        finally:
            with self._changed:
                self._waiters.pop(me, None)
                self._changed.notify_all()

    # ---- what tests do -------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many threads wait for a time that has not come."""
        return len(self._waiters)

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass and wake who waited for no longer than that."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds}; step() moves the wall clock")
        with self._changed:
            self._now += seconds
            self._monotonic += seconds
            due = [me for me, (deadline, _) in self._waiters.items() if deadline <= self._monotonic]
            # Forgotten at once, so that `until_waiting` after this means a new wait.
            conditions = [self._waiters.pop(me)[1] for me in due]
        for condition in conditions:
            with condition:
                condition.notify_all()

    def step(self, seconds: float) -> None:
        """Move the wall clock alone, as an operator or NTP does. Nobody is woken."""
        with self._changed:
            self._now += seconds

    def until_waiting(self, threads: int = 1) -> None:
        """Return when at least ``threads`` threads wait on this clock. Raises AssertionError if they never do."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._waiters) >= threads, self._patience_seconds):
                raise AssertionError(
                    f"{len(self._waiters)} threads wait on the clock, not {threads}, "
                    f"after {self._patience_seconds} real seconds"
                )

    def _number(self) -> int:
        return self._instance << 40 | next(self._numbers)
