"""Which tasks wait for a worker, in the order in which they are to be claimed.

Owns the walk through ``ready/``, whose directories are type, priority with a coarse time, and finer times, so that
finding the next task lists a few short directories instead of the backlog; and ``later/``, whose tasks move on
when their time has come. Refuses to claim.

What was listed of a last directory, a *bucket*, is used for the next claims as well, since in a burst it is long and
each claim takes one name of it. Nothing depends on that but the order: a claim is a rename, which fails where
somebody was quicker, and a bucket counts as empty only once it was listed anew. The order (priority, then age) holds
because

- the directories above the buckets are listed at each claim, so that whatever came into another bucket is seen;
- a remembered bucket is looked at first. It is listed anew unless its time stamp is the one that it had just after
  our own last claim from it, and its number of links says that it holds as many entries as we remember. Who adds one
  changes both. One who adds an older entry while another one takes a younger away, both in the instant between our
  claim and our look after it or within the same tick of the file server's clock, is not noticed;
- so it is listed anew after a tenth of a second in any case, which is how long such an entry can wait behind others of
  its own type and priority that were created in the same tenth of a second.

Where a directory's links do not count what is in it (btrfs), nothing is remembered.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from stores.files.lease.control import BUCKET_TICKS, TICKS_PER_SECOND, Control, Look
from stores.files.lease.names import EntryName
from task_tracker.clock import Clock

__all__ = ["Queue", "Waiting"]

Waiting = tuple[str, str, EntryName]
"""What sorts first is to be claimed first: rank and age, path, name."""

_EMPTY_SECONDS: Final = 1.0
"""A bucket that is so far from now is removed when it is found empty: hardly anybody fills it any more."""
_BETWEEN_LOOKS_SECONDS: Final = 0.02
"""Start times are rounded up to tenths of a second anyway."""
_WORTH_REMEMBERING: Final = 8
"""A shorter bucket is listed as quickly as it is looked at."""
_REMEMBERED_SECONDS: Final = 0.1
_MOST_NAMES: Final = 10_000
_MOST_BUCKETS: Final = 64
_OWN_LINKS: Final = 2
"""Of an empty directory: its name, and the one that it gives itself."""


class _Bucket(NamedTuple):
    """What is remembered of a bucket."""

    names: Sequence[str]
    """In order; those before ``taken`` are gone. There may be more than are remembered."""
    taken: int
    total: int
    listed_at: float
    look: Look
    """How it looked when it held just that."""


class Queue:
    """What waits in ``ready/`` and ``later/``. Threads may share it: what they remember is proved before it is used."""

    def __init__(self, control: Control, clock: Clock) -> None:
        self._control = control
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._looked_at = -math.inf

    def next(self, task_types: Sequence[tuple[str, int]]) -> Iterator[Waiting]:
        """Iterate over the tasks of these types, highest priority first, then oldest; listed as far as asked.

        Whoever claims one of them says so (:meth:`took`).
        """
        kinds = [
            self._walk(f"{self._control.ready}/{self._control.kind_directory(*kind)}", self._remembered)
            for kind in dict.fromkeys(task_types)
        ]
        return kinds[0] if len(kinds) == 1 else heapq.merge(*kinds)

    def took(self, paths: Sequence[str]) -> None:
        """Take note that the tasks at ``paths`` were claimed by us, in this order."""
        for directory, group in itertools.groupby(paths, _directory):
            bucket = self._buckets.pop(directory, None)
            if bucket is None:
                continue
            names, taken = bucket.names, bucket.taken
            for path in group:
                if taken < len(names) and names[taken] == path[len(directory) + 1 :]:
                    taken += 1
            if taken > bucket.taken:
                self._remember(directory, names, taken, bucket.total, bucket.listed_at)

    def kinds(self) -> list[str]:
        """Return the directories of all types and versions."""
        return self._control.names(self._control.ready)

    def all_ready(self, kind: str) -> Iterator[Waiting]:
        """Iterate over the tasks of one directory of :meth:`kinds`."""
        return self._walk(f"{self._control.ready}/{kind}", self._control.names)

    def all_later(self) -> Iterator[Waiting]:
        """Iterate over the tasks whose time has not come, by start time."""
        return self._walk(self._control.later, self._control.names)

    def is_time_to_look(self) -> bool:
        """Tell whether tasks may be due of which the last claim could not know: not in the next instant."""
        now = self._clock.now()
        if 0 <= now - self._looked_at < _BETWEEN_LOOKS_SECONDS:
            return False
        self._looked_at = now
        return True

    def due(self) -> Iterator[Waiting]:
        """Iterate over the tasks in ``later/`` whose time has come."""
        now = int(self._clock.now() * TICKS_PER_SECOND)
        return self._walk(self._control.later, self._control.names, until=now)

    def next_start_seconds(self) -> float | None:
        """Return in how many seconds the next bucket in ``later/`` begins, whatever kinds its tasks are of.

        By names alone: one that has become empty counts until its time has come.
        """
        self._looked_at = -math.inf  # what has come before this is for the next claim, however soon that is
        now = self._clock.now()
        for _, times in self._buckets_below(self._control.later, (), None):
            with contextlib.suppress(ValueError):  # no bucket of ours
                seconds = _ticks(times) / TICKS_PER_SECOND - now
                if seconds > 0:
                    return seconds
        return None

    # ---- within --------------------------------------------------------------------------------------

    def _walk(
        self, top: str, names_in: Callable[[str], Iterable[str]], *, until: int | None = None
    ) -> Iterator[Waiting]:
        """Iterate over what lies in the buckets below ``top``, in order; not of those that begin after ``until``."""
        for directory, times in self._buckets_below(top, (), until):
            rank, is_empty = times[0].partition(".")[0], True
            for text in names_in(directory):
                is_empty = False
                name = EntryName.parse(text)
                if name is not None:
                    yield f"{rank}.{name.sort}", f"{directory}/{text}", name
            if is_empty:
                self._sweep(directory, times)

    def _buckets_below(
        self, directory: str, times: tuple[str, ...], until: int | None
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Iterate over the buckets below a directory, each with the names on the way to it from the top, ``times``."""
        names = self._control.names(directory)
        if not names and times:
            self._sweep(directory, times)
        for text in names:
            inner = (*times, text)
            if until is not None and _begins_after(inner, until):
                return
            if len(inner) == len(BUCKET_TICKS):
                yield f"{directory}/{text}", inner
            else:
                yield from self._buckets_below(f"{directory}/{text}", inner, until)

    def _remembered(self, directory: str) -> Iterator[str]:
        """Iterate over the names in a bucket, those first that are remembered if it is proved to hold just them."""
        bucket = self._buckets.get(directory)
        remembered: Sequence[str] = ()
        if bucket is not None and self._is_as_left(directory, bucket):
            remembered = bucket.names[bucket.taken :]
            yield from remembered
        self._buckets.pop(directory, None)
        names = self._control.names(directory)
        if len(names) >= _WORTH_REMEMBERING:
            self._remember(directory, names[:_MOST_NAMES], 0, len(names), self._clock.monotonic())
        known = frozenset(remembered)
        yield from [name for name in names if name not in known] if known else names

    def _is_as_left(self, directory: str, bucket: _Bucket) -> bool:
        if bucket.taken == len(bucket.names):
            return False
        if self._clock.monotonic() - bucket.listed_at >= _REMEMBERED_SECONDS:
            return False
        try:
            return self._control.look(directory) == bucket.look
        except OSError:  # listing it says what is wrong
            return False

    def _remember(
        self, directory: str, names: Sequence[str], taken: int, total: int, listed_at: float
    ) -> None:
        """Keep what is known of a bucket, if that is what a look at it shows."""
        try:
            look = self._control.glance(directory)
        except OSError:  # listing it says what is wrong
            return
        if look.links - _OWN_LINKS == total - taken:
            self._buckets[directory] = _Bucket(names, taken, total, listed_at, look)
            for oldest in list(self._buckets)[:-_MOST_BUCKETS]:
                self._buckets.pop(oldest, None)

    def _sweep(self, directory: str, times: tuple[str, ...]) -> None:
        """Remove a bucket that was found empty, unless it is about to be filled."""
        with contextlib.suppress(ValueError, OSError):
            if abs(self._clock.now() - _ticks(times) / TICKS_PER_SECOND) > _EMPTY_SECONDS:
                self._control.remove_directory(directory)


def _directory(path: str) -> str:
    return path.rpartition("/")[0]


def _begins_after(times: Sequence[str], ticks: int) -> bool:
    try:
        return _ticks(times) > ticks
    except ValueError:  # no bucket of ours; what is in it says so
        return False


def _ticks(times: Sequence[str]) -> int:
    """Return the time that names of buckets stand for; those that are missing count as their first."""
    return sum(int(text.rpartition(".")[2]) * ticks for text, ticks in zip(times, BUCKET_TICKS, strict=False))
