"""Who holds what, and what waits for a holder: the books that the memory store keeps beside its records.

Owns leases, their heartbeats, the order of waiting tasks, and what workers and operators tell each other. Refuses to
change records or to lock: the store calls under its own lock.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple

import orjson

from task_tracker import transitions
from task_tracker.errors import LeaseHeld, LeaseLost
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import FORGOTTEN_SECONDS, Lease, Version, WorkerFact, check_fact

__all__ = ["Evidence", "Hold", "Holds", "Notices", "Waiting"]

_HELD_BY_SOMEBODY = (TaskStatus.RUNNING, TaskStatus.CANCELLING)


@dataclasses.dataclass(slots=True)
class Hold:
    """A lease with the monotonic times of its last heartbeat and of its claim."""

    lease: Lease
    beat: float
    since: float


class Evidence(NamedTuple):
    """What was seen of an expired lease: its token and heartbeat, or the version of a record without a holder."""

    token: str | None
    beat: float
    version: Version


class Holds:
    """Leases by task, and the records that run although nobody holds them: these expire as well."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self.expire = not math.isinf(lease_seconds)
        self._holds: dict[TaskKey, Hold] = {}
        self._unheld: dict[TaskKey, float] = {}

    def find(self, key: TaskKey) -> Hold | None:
        """Return who holds the task, or None."""
        return self._holds.get(key)

    def current(self, lease: Lease) -> Hold:
        """Return the hold that ``lease`` stands for. Raises LeaseLost, and marks the lease, if there is none."""
        hold = self._holds.get(lease.key)
        if lease.lost.is_set() or hold is None or hold.lease.token != lease.token:
            lease.lost.set()
            raise LeaseLost(
                f"the lease of task {lease.key.task_id} (epoch {lease.epoch}, {lease.holder}) is somebody else's "
                "now; stop working on it"
            )
        return hold

    def take(self, lease: Lease, now: float) -> None:
        """Note that ``lease`` holds its task from now on; whoever held it before has lost it."""
        before = self._holds.get(lease.key)
        if before is not None:
            before.lease.lost.set()
        self._unheld.pop(lease.key, None)
        self._holds[lease.key] = Hold(lease, now, before.since if before is not None else now)

    def drop(self, key: TaskKey) -> None:
        """Note that nobody holds the task any more."""
        self._holds.pop(key, None)
        self._unheld.pop(key, None)

    def wrote(self, record: TaskRecord, now: float) -> None:
        """Note a write: one that leaves a task running that nobody holds counts as a heartbeat."""
        if record.key in self._holds:
            return
        if record.status in _HELD_BY_SOMEBODY:
            self._unheld[record.key] = now
        else:
            self._unheld.pop(record.key, None)

    def check_free(self, record: TaskRecord, now: float, *, claim: bool = False) -> None:
        """Raise LeaseHeld if somebody holds the task; to who wants to ``claim`` it, also if it merely runs."""
        hold = self._holds.get(record.key)
        if hold is not None:
            holder, beat = hold.lease.holder, hold.beat
        elif claim and record.status in _HELD_BY_SOMEBODY:
            holder = record.attempt.holder if record.attempt is not None else ""
            beat = self._unheld.get(record.key, math.nan)
        else:
            return
        age = None if math.isnan(beat) else now - beat
        heard = "" if age is None else f", last heard of {age:.0f} s ago"
        raise LeaseHeld(
            f"task {record.task_id} is held by {holder or 'nobody known'}{heard}; wait until it ends, is released "
            "or its lease has expired",
            holder=holder,
            heartbeat_age_seconds=age,
        )

    def silent(self, now: float) -> Iterator[tuple[float, TaskKey, str | None]]:
        """Iterate over what has expired: last heartbeat, task and token (None: nobody holds it)."""
        for key, hold in self._holds.items():
            if now - hold.beat > self._lease_seconds:
                yield hold.beat, key, hold.lease.token
        for key, beat in self._unheld.items():
            if now - beat > self._lease_seconds:
                yield beat, key, None

    def is_still(self, key: TaskKey, evidence: Evidence, version: Version) -> bool:
        """Tell whether nothing has moved since ``evidence`` was seen."""
        hold = self._holds.get(key)
        if evidence.token is None or hold is None:
            return evidence.token is None and hold is None and evidence.version == version
        return (hold.lease.token, hold.beat) == (evidence.token, evidence.beat)

    def by_type(self, type_of: Callable[[TaskKey], str]) -> Counter[str]:
        """Return how many leases there are of each task type."""
        return Counter(type_of(key) for key in self._holds)


class Waiting:
    """Pending tasks that a handler is to work on, per type and version, in the order in which they are claimed."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], list[tuple[tuple[int, float, str], TaskKey]]] = {}
        self._starts: dict[tuple[str, int], list[tuple[float, TaskKey]]] = {}

    def add(self, record: TaskRecord) -> None:
        """Add ``record`` if it waits for a handler."""
        if record.status is TaskStatus.PENDING and record.handler_version is not None:
            kind = record.task_type, record.handler_version
            insort(self._places.setdefault(kind, []), (transitions.claim_order(record), record.key))
            if record.not_before is not None:
                insort(self._starts.setdefault(kind, []), (record.not_before, record.key))

    def remove(self, record: TaskRecord) -> None:
        """Remove ``record``, as it was when it was added, if it is there."""
        if record.status is not TaskStatus.PENDING or record.handler_version is None:
            return
        kind = record.task_type, record.handler_version
        places = self._places[kind]
        del places[bisect_left(places, (transitions.claim_order(record), record.key))]
        if not places:
            del self._places[kind]
        if record.not_before is not None:
            starts = self._starts[kind]
            del starts[bisect_left(starts, (record.not_before, record.key))]
            if not starts:
                del self._starts[kind]

    def next_starts(self, kinds: Iterable[tuple[str, int]], now: float) -> Iterator[float]:
        """Iterate over the first start time of each kind that is still to come."""
        for kind in kinds:
            starts = self._starts.get(kind, [])
            place = bisect_right(starts, now, key=itemgetter(0))
            if place < len(starts):
                yield starts[place][0]

    def of(self, kinds: Iterable[tuple[str, int]]) -> Iterator[TaskKey]:
        """Iterate over the tasks of these kinds, in one order."""
        merged = heapq.merge(*(self._places.get(kind, ()) for kind in dict.fromkeys(kinds)))
        return (key for _, key in merged)


class Notices:
    """Which task types are paused, and what workers say of themselves. Times are monotonic."""

    def __init__(self) -> None:
        self.paused: set[str] = set()
        self._facts: dict[str, tuple[bytes, float, float]] = {}

    def publish(self, fact: WorkerFact, now: float) -> None:
        """Keep a fact in the place of the last one of this name. Raises ValueError."""
        self._facts[fact.name] = check_fact(fact), fact.life_seconds, now

    def withdraw(self, name: str) -> None:
        """Drop a fact, if there is one."""
        self._facts.pop(name, None)

    def facts(self, now: float, *, living: bool) -> list[WorkerFact]:
        """Return the facts that hold, or else those whose life has ended, by name."""
        return [
            WorkerFact(name, orjson.loads(data), life_seconds, now - at)
            for name, (data, life_seconds, at) in sorted(self._facts.items())
            if (now - at <= life_seconds) == living
        ]

    def forget(self, now: float, limit: int) -> None:
        """Drop facts whose life ended long ago, ``limit`` of them at most."""
        old = [
            fact
            for fact in self.facts(now, living=False)
            if fact.age_seconds > fact.life_seconds + FORGOTTEN_SECONDS
        ]
        for fact in old[:limit]:
            self.withdraw(fact.name)
