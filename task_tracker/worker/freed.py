"""Slots of attempts whose ends were written, and who claims for them: the thread that wrote, or the loop.

Owns the promise that exactly one of them does. A freed slot is *left over* (nobody has begun to claim for it: the loop
counts it as free, and whoever claims next takes it along) or *taken on* (a thread claims for it, or is about to: the
loop does not count it). Refuses to claim.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

__all__ = ["FreedSlots"]

_MOST_LEFT_OVER: Final = 8
"""Slots that may stay empty while ends are written."""


class FreedSlots:
    """Of one worker. Thread-safe; threads take on nothing before :meth:`open` and after :meth:`close`."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._left_over = 0
        self._taken_on = 0
        self._is_claiming = False
        self._is_open = False

    @property
    def taken_on(self) -> int:
        """For how many slots a thread claims, or is about to."""
        return self._taken_on

    def open(self) -> None:
        """Let threads claim."""
        self._is_open = True

    def close(self) -> None:
        """Let no thread begin to claim any more."""
        with self._changing:
            self._is_open = False

    def add(self, number: int, *, others_wait: bool) -> bool:
        """Take note of ends; return whether this thread is to claim now. To be called before anybody knows of them.

        With ``others_wait`` that is left to who writes the next end. If another thread is about to claim it does so for
        these as well; while one claims, whatever the store does, the loop has them.
        """
        with self._changing:
            if self._is_claiming or not self._is_open:
                return False
            if self._taken_on:
                self._taken_on += number
                return False
            self._left_over += number
            if others_wait and self._left_over < _MOST_LEFT_OVER:
                return False
            self._taken_on, self._left_over = self._left_over, 0
            return True

    def begin_claiming(self) -> int:
        """Have the thread that was told so claim, for as many as this returns: for none once it is closed.

        :meth:`end_claiming` is to follow, once what was claimed is where the loop counts it.
        """
        with self._changing:
            self._is_claiming = True
            return self._taken_on if self._is_open else 0

    def end_claiming(self) -> None:
        """Take note that the thread has claimed."""
        with self._changing:
            self._taken_on = 0
            self._is_claiming = False

    def counted(self, free: Callable[[], int]) -> int:
        """Have the loop claim for what is free now: return how many slots that is, of those that ``free`` says.

        ``free`` has to count what a thread has claimed; no thread takes on anything meanwhile.
        """
        with self._changing:
            self._left_over = 0
            return free() - self._taken_on
