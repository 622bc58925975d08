"""How a record that has ended is deleted: by whoever announced it alone.

Owns ``deletes/``. Looking at a record and unlinking it are two steps, and the id may be used again in between;
so each deleter announces itself, and the record is renamed into the announcement, which a later recovery
takes away from a deleter that sleeps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import orjson

from stores.files.lease.control import Control
from stores.files.lease.names import digest
from task_tracker.clock import Clock
from task_tracker.errors import StoreUnavailable, TaskTrackerError
from task_tracker.records import TaskKey

__all__ = ["Busy", "Deletions"]

DEAD: Final = "dead"
_MOST_LEFT: Final = 1000


class Busy(Exception):  # the caller waits and tries again
    """Somebody else is deleting this task."""


class Deletions:
    """The deletions of one control directory. ``mark`` makes a removed record known to other processes."""

    def __init__(self, control: Control, clock: Clock, mark: Callable[[str, TaskKey], None]) -> None:
        self._control = control
        self._clock = clock
        self._mark = mark
        self._left: set[str] = set()
        """Own announcements that could not be removed: they would stand in our own way."""

    def delete(self, key: TaskKey, path: str, check: Callable[[], bool]) -> bool:
        """Remove the record at ``path`` if ``check`` still says so; False if not. Raises Busy.

        ``check`` reads the record, and may raise. Raises FileNotFoundError if there is none.
        """
        self._clear_left()
        task = digest(key) + "-"
        own = f"{task}{self._clock.new_token()}"
        directory = f"{self._control.deletes}/{own}"
        try:
            with contextlib.suppress(FileExistsError):  # a repeated request: nobody else uses the token
                self._control.ops.mkdir(directory)
        except FileNotFoundError as error:
            raise StoreUnavailable(
                f"{self._control.deletes} is not there; mount the root again, or run doctor with fix"
            ) from error
        try:
            others = [name for name in self._control.names(self._control.deletes) if name.startswith(task)]
            if others != [own]:
                raise Busy
            if not check():
                return False
            self._take(path, directory)
            # The record is gone. What is left of it here is ours to remove the next time, or recovery's.
            with contextlib.suppress(OSError, TaskTrackerError):
                self._mark(f"{directory}/{DEAD}", key)
            return True
        finally:
            if len(self._left) < _MOST_LEFT:
                self._left.add(own)
            with contextlib.suppress(OSError):
                if self._control.remove_directory(directory):
                    self._left.discard(own)

    def _clear_left(self) -> None:
        for name in list(self._left):
            with contextlib.suppress(OSError):
                if self.recover(name):
                    self._left.discard(name)

    def _take(self, path: str, directory: str) -> None:
        """Move the record into our directory. Raises FileNotFoundError if there is none, Busy."""
        try:
            self._control.ops.rename(path, f"{directory}/{DEAD}")
        except FileNotFoundError:
            if not self._control.exists(directory):
                raise Busy from None  # taken away from us: whoever did it has not deleted anything else
            if not self._control.exists(f"{directory}/{DEAD}"):  # otherwise a repeated request
                raise

    def recover(self, name: str) -> bool:
        """Finish what a deleter left, or take it away from one that sleeps; True if it is gone."""
        directory = f"{self._control.deletes}/{name}"
        dead = f"{directory}/{DEAD}"
        if self._control.remove_directory(directory):
            return True
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            ids = orjson.loads(self._control.read(dead))
            self._mark(dead, TaskKey(ids["account_id"], ids["user_id"], ids["task_id"]))
        self._control.remove_file(dead)
        return self._control.remove_directory(directory)
