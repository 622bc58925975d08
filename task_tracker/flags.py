"""Flags that threads set and may wait for, and that cost next to nothing until somebody does.

Owns what an event is made of. Exists because each lease has two, and making a ``threading.Event`` takes longer than all
else that a lease is made of: a lock and a condition, for which hardly anybody ever waits.
"""

from __future__ import annotations

import threading

from task_tracker.forks import renew_after_fork

__all__ = ["Flag"]


class _Guard:
    """One lock for all flags: it is held for the length of an assignment."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        self.lock = threading.Lock()


_GUARD = _Guard()


class Flag(threading.Event):
    """An event; what waiting needs is made once somebody waits."""

    def __init__(self) -> None:  # not that of Event, see above
        self._is_on = False
        self._awaited: threading.Event | None = None

    def __repr__(self) -> str:
        """Return what it is and how it stands."""
        return f"<{type(self).__name__}: {'set' if self._is_on else 'unset'}>"

    def is_set(self) -> bool:
        """Tell whether it is set."""
        return self._is_on

    def set(self) -> None:
        """Set it, and wake all who wait."""
        with _GUARD.lock:
            self._is_on = True
            if self._awaited is not None:
                self._awaited.set()

    def clear(self) -> None:
        """Take it back."""
        with _GUARD.lock:
            self._is_on = False
            if self._awaited is not None:
                self._awaited.clear()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or for ``timeout`` seconds; tell whether it is."""
        with _GUARD.lock:
            if self._is_on:
                return True
            if self._awaited is None:
                self._awaited = threading.Event()
        return self._awaited.wait(timeout)
