"""Pauses between two questions to a store: for work, and to one that does not answer.

Owns how they grow. Refuses to wait.
"""

from __future__ import annotations

from typing import Final

from task_tracker.clock import Clock

__all__ = ["Pauses", "outage_pauses"]

_FIRST_OUTAGE_SECONDS: Final = 0.1
_LONGEST_OUTAGE_SECONDS: Final = 5.0
_LONG_SECONDS: Final = 0.25


class Pauses:
    """Pauses that double from ``shortest_seconds`` to ``longest_seconds``, jittered."""

    def __init__(self, clock: Clock, shortest_seconds: float, longest_seconds: float) -> None:
        self._clock = clock
        self._shortest = shortest_seconds
        self._longest = longest_seconds
        self.restart()

    def restart(self) -> None:
        """Begin with the shortest one again."""
        self._next = self._shortest

    @property
    def are_long(self) -> bool:
        """Whether the next one is too long to sleep through while something becomes due."""
        return self._next > _LONG_SECONDS

    def next(self) -> float:
        """Return the next one."""
        pause = self._next
        self._next = min(2 * pause, self._longest)
        return self._clock.jitter(pause)


def outage_pauses(clock: Clock) -> Pauses:
    """Return the pauses between two questions to a store that does not answer."""
    return Pauses(clock, _FIRST_OUTAGE_SECONDS, _LONGEST_OUTAGE_SECONDS)
