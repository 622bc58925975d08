"""Threads that make a trial hard: one that reads all the time, several that do the same thing at once.

Owns starting and ending them. Refuses to judge what it means.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Self

from stores.files.connection import Connection
from task_tracker.errors import TaskTrackerError

__all__ = ["Race", "Watching"]


class Watching:
    """A thread that reads a file over and over during the block, and notes whether it saw something else."""

    def __init__(
        self, connection: Connection, path: str, *, allowed: set[bytes], may_be_missing: bool = False
    ) -> None:
        self._connection = connection
        self._path = path
        self._allowed = allowed
        self._may_be_missing = may_be_missing
        self._enough = threading.Event()
        self._looked = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.looks = 0
        self.broken = False

    def _watch(self) -> None:
        while not self._enough.is_set():
            try:
                whole = self._connection.read(self._path) in self._allowed
            except FileNotFoundError:
                whole = self._may_be_missing
            except TaskTrackerError:
                whole = False  # not to be read just now is not whole either
            self.broken = self.broken or not whole
            self.looks += 1
            self._looked.set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._looked.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()


class Race:
    """Threads that call the same thing at the same time, round after round."""

    def __init__(self, calls: list[Callable[[str], bool]]) -> None:
        self._calls = calls
        self._barrier = threading.Barrier(len(calls) + 1)
        self._outcomes: list[Any] = [None] * len(calls)
        self._path = ""
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), daemon=True) for number in range(len(calls))
        ]

    def _serve(self, number: int) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):  # which is how it ends
            while True:
                self._barrier.wait()
                try:
                    self._outcomes[number] = self._calls[number](self._path)
                except Exception as error:  # noqa: BLE001  # whatever it is, it is neither won nor lost
                    self._outcomes[number] = error
                self._barrier.wait()

    def run(self, path: str) -> list[Any]:
        """Return what each call returned or raised."""
        self._path = path
        self._barrier.wait()
        self._barrier.wait()
        return list(self._outcomes)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._barrier.abort()
        for thread in self._threads:
            thread.join()
