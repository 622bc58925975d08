"""Time, ids and randomness: the only module that asks the machine for them.

Everything else gets a :class:`Clock` handed in, so that tests decide what time it is.
Refuses to know anything about tasks.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from typing import Final, Protocol

from task_tracker.forks import renew_after_fork

__all__ = ["SYSTEM_CLOCK", "Clock", "SystemClock", "is_generated_id", "time_of_id", "uuid7_text", "wall_ns"]

_SUB_MILLISECOND_STEPS: Final = (
    4096  # RFC 9562, 6.2 method 3: the 12 bits of rand_a hold a fraction of the ms
)
_FOLLOW_JUMP_MS: Final = 1000
_GENERATED_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class Clock(Protocol):
    """What the library needs from the outside world. Times are seconds."""

    def now(self) -> float:
        """Return Unix time in seconds, UTC, rounded to microseconds."""

    def monotonic(self) -> float:
        """Return seconds of a clock that never steps; its zero means nothing."""

    def new_id(self, at: float) -> str:
        """Return a fresh UUIDv7 for Unix time ``at``; later calls sort after earlier ones of the same time."""

    def new_token(self) -> str:
        """Return 32 hex digits that nobody else has."""

    def jitter(self, seconds: float) -> float:
        """Return a random time between half of ``seconds`` and ``seconds``."""

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Wait on ``condition`` (held by the caller) until it is notified or ``seconds`` have passed."""


class SystemClock:
    """The real one."""

    def __init__(self) -> None:
        self._ids = _IdSequence()

    def now(self) -> float:
        """Return Unix time in seconds, UTC, rounded to microseconds."""
        return (time.time_ns() + 500) // 1000 / 1_000_000

    def monotonic(self) -> float:
        """Return ``time.monotonic()``."""
        return time.monotonic()

    def new_id(self, at: float) -> str:
        """Return a fresh UUIDv7 for Unix time ``at``."""
        return self._ids.next(at)

    def new_token(self) -> str:
        """Return 32 hex digits from the system's random source."""
        return os.urandom(16).hex()

    def jitter(self, seconds: float) -> float:
        """Return a random time between half of ``seconds`` and ``seconds``."""
        return seconds * random.uniform(0.5, 1.0)  # spreads retries, decides nothing

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Wait on ``condition`` for at most ``seconds``."""
        condition.wait(min(seconds, threading.TIMEOUT_MAX))


class _IdSequence:
    """UUIDv7 that grow within this process, even while the clock stands still or steps back a little."""

    def __init__(self) -> None:
        self._last = (0, 0)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        self._lock = threading.Lock()

    def next(self, at: float) -> str:
        exact = at * 1000
        milliseconds = int(exact // 1)
        stamp = (milliseconds, int((exact - milliseconds) * _SUB_MILLISECOND_STEPS))
        with self._lock:
            # A clock that stands still or steps back a little is counted on; a jump is followed.
            if stamp <= self._last and self._last[0] - stamp[0] < _FOLLOW_JUMP_MS:
                stamp = (self._last[0], self._last[1] + 1)
                if stamp[1] == _SUB_MILLISECOND_STEPS:
                    stamp = (stamp[0] + 1, 0)
            self._last = stamp
        return uuid7_text(*stamp, int.from_bytes(os.urandom(8)) >> 2)


def uuid7_text(milliseconds: int, fraction: int, randomness: int) -> str:
    """Return the UUIDv7 of RFC 9562, 5.7: 48 bits of Unix ms, 12 bits of fraction, 62 random bits."""
    time = f"{milliseconds & (2**48 - 1):012x}"
    rest = f"{0x2 << 62 | randomness:016x}"
    return f"{time[:8]}-{time[8:]}-7{fraction:03x}-{rest[:4]}-{rest[4:]}"


def is_generated_id(task_id: str) -> bool:
    """Tell whether ``task_id`` has the form of a generated id: a UUIDv7 in lower-case canonical text."""
    return _GENERATED_ID.fullmatch(task_id) is not None


def time_of_id(task_id: str) -> float:
    """Return the Unix time in seconds that a generated id carries (millisecond steps)."""
    return int(task_id[:8] + task_id[9:13], 16) / 1000


def wall_ns() -> int:
    """Return this host's wall clock in nanoseconds, to compare with a file's ``st_mtime_ns`` and nothing else.

    Never a test's clock: the kernel stamps files with the real one.
    """
    return time.time_ns()


SYSTEM_CLOCK: Final = SystemClock()
