"""Summaries of one owner's tasks, kept in order: what a listing needs to know without the records.

Owns the order of listings and the count of active tasks. Refuses to hold results, payloads or files: a
summary is about 260 bytes, whatever the task produced. Not thread-safe; whoever keeps one guards it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from task_tracker import transitions
from task_tracker.errors import CorruptRecord
from task_tracker.records import TaskRecord, TaskStatus

__all__ = ["Listing", "Summary", "TaskPage", "in_order"]

_K = TypeVar("_K")


class TaskPage(list[TaskRecord]):
    """A page of records: a plain list that also knows where the next page begins.

    ``next_cursor`` goes into ``before`` of the next call (None: this is the last page). ``corrupt`` names
    what was skipped because it cannot be read.
    """

    def __init__(
        self,
        records: Iterable[TaskRecord] = (),
        *,
        next_cursor: str | None = None,
        corrupt: Sequence[CorruptRecord] = (),
    ) -> None:
        super().__init__(records)
        self.next_cursor = next_cursor
        self.corrupt = tuple(corrupt)


class Summary(NamedTuple):
    """What a filter can ask about a task."""

    task_id: str
    task_type: str
    status: TaskStatus
    resource_id: str | None
    created_at: float
    updated_at: float
    blocks: bool
    """Whether it keeps another one of its kind from being created (``transitions.blocks_duplicates``)."""

    @classmethod
    def of(cls, record: TaskRecord) -> Summary:
        """Return the summary of ``record``."""
        return cls(
            record.task_id,
            record.task_type,
            record.status,
            record.resource_id,
            record.created_at,
            record.updated_at,
            transitions.blocks_duplicates(record.status, record.completed_at),
        )

    @property
    def place(self) -> tuple[float, str]:
        """What listings are ordered by."""
        return self.created_at, self.task_id


class Listing:
    """Summaries by id, in order of creation per state, with active ones counted by kind."""

    def __init__(self) -> None:
        self._summaries: dict[str, Summary] = {}
        self._places: dict[TaskStatus, list[tuple[float, str]]] = {}
        self._active: dict[tuple[str, str | None], set[str]] = {}
        self._counts: Counter[tuple[str, TaskStatus]] = Counter()

    def __len__(self) -> int:
        """Return the number of summaries."""
        return len(self._summaries)

    def __iter__(self) -> Iterator[Summary]:
        """Iterate in no particular order."""
        return iter(self._summaries.values())

    def get(self, task_id: str) -> Summary | None:
        """Return the summary of a task, or None."""
        return self._summaries.get(task_id)

    def put(self, summary: Summary) -> None:
        """Add a summary, or replace the one of the same id."""
        old = self._summaries.get(summary.task_id)
        if old == summary:
            return
        if old is not None:
            self.remove(old.task_id)
        self._summaries[summary.task_id] = summary
        insort(self._places.setdefault(summary.status, []), summary.place)
        self._counts[summary.task_type, summary.status] += 1
        if summary.blocks:
            self._active.setdefault((summary.task_type, summary.resource_id), set()).add(summary.task_id)

    def remove(self, task_id: str) -> None:
        """Remove a summary if it is there."""
        summary = self._summaries.pop(task_id, None)
        if summary is None:
            return
        places = self._places[summary.status]
        del places[bisect_left(places, summary.place)]
        if not places:
            del self._places[summary.status]
        _decrement(self._counts, (summary.task_type, summary.status))
        if summary.blocks:
            kind = summary.task_type, summary.resource_id
            self._active[kind].discard(task_id)
            if not self._active[kind]:
                del self._active[kind]

    def newest(
        self, *, status: str | None = None, before: tuple[float, str] | None = None
    ) -> Iterator[Summary]:
        """Iterate from the newest to the oldest, those placed before ``before``; stop when you have enough.

        The listing must not change meanwhile.
        """
        wanted = self._places if status is None else [known for known in self._places if known == status]
        ordered = [_backwards(self._places[known], before) for known in wanted]
        merged = ordered[0] if len(ordered) == 1 else heapq.merge(*ordered, reverse=True)
        for _, task_id in merged:
            yield self._summaries[task_id]

    def has_active(self, task_type: str, resource_id: str | None) -> bool:
        """Tell whether one of this kind is active."""
        return (task_type, resource_id) in self._active

    def newest_active(
        self, task_type: str, resource_id: str | None, without: Container[str]
    ) -> Summary | None:
        """Return the newest one of this kind that is active, ``without`` some ids; None if there is none."""
        found = (
            self._summaries[task_id]
            for task_id in self._active.get((task_type, resource_id), ())
            if task_id not in without
        )
        return max((one for one in found if one.status.is_active), key=lambda one: one.place, default=None)

    def active_ids(self) -> list[str]:
        """Return the ids of all that have not ended, unknown states included."""
        return [
            task_id
            for status, places in self._places.items()
            if not status.is_terminal
            for _, task_id in places
        ]

    def count_into(self, counts: dict[str, dict[str, int]]) -> None:
        """Add the numbers per type and state to ``counts``."""
        for (task_type, status), number in self._counts.items():
            by_status = counts.setdefault(task_type, {})
            by_status[status.value] = by_status.get(status.value, 0) + number


def _backwards(
    places: list[tuple[float, str]], before: tuple[float, str] | None
) -> Iterator[tuple[float, str]]:
    end = len(places) if before is None else bisect_left(places, before)
    for index in range(end - 1, -1, -1):
        yield places[index]


def _decrement(counter: Counter[_K], name: _K) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]


def in_order(counts: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return counts with types by name, and states as they follow each other; those of newer versions come last."""
    places = {status.value: place for place, status in enumerate(TaskStatus)}
    last = len(places)
    return {
        task_type: dict(sorted(of_type.items(), key=lambda item: (places.get(item[0], last), item[0])))
        for task_type, of_type in sorted(counts.items())
    }
