"""Which tasks wait for a worker, in the order in which they are to be claimed.

Owns the walk through ``ready/``, whose directories are type, priority with a coarse time, and finer times, so that
finding the next task lists a few short directories instead of the backlog; and ``later/``, whose tasks move on
when their time has come. Refuses to claim.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterator, Sequence

from stores.files.lease.control import BUCKET_TICKS, TICKS_PER_SECOND, Control
from stores.files.lease.names import EntryName
from task_tracker.clock import Clock

__all__ = ["Queue", "Waiting"]

Waiting = tuple[str, str, EntryName]
"""What sorts first is to be claimed first: rank and age, path, name."""

_EMPTY_SECONDS = 5
"""A bucket that nobody has filled for so long is removed when it is found empty."""


class Queue:
    """What waits in ``ready/`` and ``later/``."""

    def __init__(self, control: Control, clock: Clock) -> None:
        self._control = control
        self._clock = clock

    def next(self, task_types: Sequence[tuple[str, int]]) -> Iterator[Waiting]:
        """Iterate over the tasks of these types, highest priority first, then oldest; listed as far as asked."""
        kinds = [self._of_kind(self._control.kind_directory(*kind)) for kind in dict.fromkeys(task_types)]
        return kinds[0] if len(kinds) == 1 else heapq.merge(*kinds)

    def kinds(self) -> list[str]:
        """Return the directories of all types and versions."""
        return self._control.names(self._control.ready)

    def all_ready(self, kind: str) -> Iterator[Waiting]:
        """Iterate over the tasks of one directory of :meth:`kinds`."""
        return self._of_kind(kind)

    def all_later(self) -> Iterator[Waiting]:
        """Iterate over the tasks whose time has not come, by start time."""
        return self._walk(self._control.later)

    def due(self) -> Iterator[Waiting]:
        """Iterate over the tasks in ``later/`` whose time has come."""
        now = int(self._clock.now() * TICKS_PER_SECOND)
        for waiting in self._walk(self._control.later):
            if _ticks(waiting[1].split("/")[-1 - len(BUCKET_TICKS) : -1]) > now:
                return
            yield waiting

    def _of_kind(self, kind: str) -> Iterator[Waiting]:
        return self._walk(f"{self._control.ready}/{kind}")

    def _walk(self, top: str, times: tuple[str, ...] = ()) -> Iterator[Waiting]:
        """Iterate over what lies in the buckets below ``top``, of which ``times`` were gone through to get there."""
        directory = "/".join((top, *times))
        names = self._control.names(directory)
        if not names and times:
            self._sweep(directory, times)
        for text in names:
            if len(times) < len(BUCKET_TICKS):
                yield from self._walk(top, (*times, text))
            elif (name := EntryName.parse(text)) is not None:
                yield f"{times[0].partition('.')[0]}.{name.sort}", f"{directory}/{text}", name

    def _sweep(self, directory: str, times: tuple[str, ...]) -> None:
        """Remove a bucket that was found empty, unless it is about to be filled."""
        with contextlib.suppress(ValueError, OSError):
            if abs(self._clock.now() - _ticks(times) / TICKS_PER_SECOND) > _EMPTY_SECONDS:
                self._control.remove_directory(directory)


def _ticks(times: Sequence[str]) -> int:
    """Return the time that names of buckets stand for; those that are missing count as their first."""
    return sum(int(text.rpartition(".")[2]) * ticks for text, ticks in zip(times, BUCKET_TICKS, strict=False))
