"""How many tasks of a type run, and who gives back of those who claim at the same moment.

Owns the limits ``max_running``: exact, whatever the schedule, and always leaving the place to somebody. Refuses to
grab, to give back and to know what waits.

A claim may go on only while fewer than the limit are there of those that its first look, after its own entry lay in
``leases/``, found there. Whoever came last of any number of claims has seen all others, so they are never too many. It
gives back only if enough of these run, or come before it in one order that all agree on; so the first of those who
meet goes on as soon as the others have gone. Who comes after its first look need not be waited for: he sees it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stores.files.lease.names import EntryName
from stores.files.lease.ownership import Grabbed, Patience
from task_tracker.records import TaskRecord, TaskStatus

__all__ = ["LONGEST_WAIT_SECONDS", "Room"]

LONGEST_WAIT_SECONDS = 1.0
"""For a claim that comes at the same moment and does not go on: its process may have stopped."""


class _Other(NamedTuple):
    """Somebody else's entry. ``runs``: its claim is complete, so that it goes on until its task ends."""

    path: str
    name: EntryName
    runs: bool


class Room:
    """What is in ``leases/``, by type. ``leases`` lists it, ``read`` returns an entry's record, if it has one."""

    def __init__(
        self,
        leases: Callable[[], Iterator[tuple[str, EntryName]]],
        read: Callable[[str, EntryName], TaskRecord | None],
    ) -> None:
        self._leases = leases
        self._read = read
        self._types: dict[EntryName, str] = {}

    def counts(self) -> Counter[str]:
        """Return how many leases there are of each type, those that are being taken included."""
        types: dict[EntryName, str] = {}
        counts: Counter[str] = Counter()
        for path, name in self._leases():
            task_type = self._type(path, name)
            if task_type is not None:
                types[name._replace(settled=True)] = task_type
                counts[task_type] += 1
        self._types = types  # a name never comes back, so what it means is final
        return counts

    def is_taken(self, grabbed: Grabbed, limit: int, patience: Patience) -> bool:
        """Tell whether the task that was grabbed has to be given back; waits for who comes at the same moment."""
        own = grabbed.entry.name
        others = [
            _Other(path, name._replace(settled=True), False)
            for path, name in self._leases()
            if not name.is_of(own) and self._type(path, name) == grabbed.record.task_type
        ]
        while len(others) >= limit:
            others = [self._looked_at(other) for other in others]
            ahead = sum(other.runs or _order(other.name) < _order(own) for other in others)
            if ahead >= limit or not patience.wait():
                return True
            others = self._still_there(others)
        return False

    def _still_there(self, others: list[_Other]) -> list[_Other]:
        now = {(name.key, name.life): (path, name) for path, name in self._leases()}
        left = []
        for other in others:
            path, name = now.get((other.name.key, other.name.life), (None, None))
            if path is None or name is None:
                continue
            found = _Other(path, name._replace(settled=True), other.runs)
            # Under another name it was given back, and claimed by somebody who sees us; or it was taken over.
            if other.runs or found.name == other.name or self._looked_at(found).runs:
                left.append(found)
        return left

    def _looked_at(self, other: _Other) -> _Other:
        if other.runs:
            return other
        record = self._read(other.path, other.name)
        return other._replace(runs=record is not None and record.status is not TaskStatus.PENDING)

    def _type(self, path: str, name: EntryName) -> str | None:
        """Return the type of a lease; None for one that lasts for one call, or whose task cannot be read."""
        if name.short:
            return None
        known = self._types.get(name._replace(settled=True))
        if known is not None:
            return known
        record = self._read(path, name)
        return None if record is None else record.task_type


def _order(name: EntryName) -> tuple[str, str]:
    """Return who is first of those who claim at the same moment: who has the older task."""
    return name.sort, name.token
