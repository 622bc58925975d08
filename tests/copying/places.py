"""What the tests of copying start from: the kinds of places, and a run from one to the other.

A further kind of store is one more line in PLACES, and its pairs in PAIRS.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from task_tracker.clock import SystemClock
from task_tracker.copying import Copying, Outcome, Tally, Told
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import LeaseStore, Stored, TaskStore
from task_tracker.testing import RecordMaker, StoreHarness
from tests.contract.harnesses import DirectoryHarness, MemoryHarness
from tests.contract.lease_harnesses import LeaseDirectoryHarness
from tests.contract.objects_harness import ObjectsHarness

PLACES: Final[dict[str, Callable[[pytest.FixtureRequest, Path], StoreHarness]]] = {
    "memory": lambda request, root: MemoryHarness(),
    "persistent": lambda request, root: DirectoryHarness(root),
    "lease": lambda request, root: LeaseDirectoryHarness(root, durability="none"),
    "objects": lambda request, root: ObjectsHarness(request.getfixturevalue("s3_server")),
    "postgres": lambda request, root: _on_postgres(request),
}
PAIRS: Final = [
    ("memory", "lease"),
    ("persistent", "lease"),
    ("lease", "persistent"),
    ("lease", "lease"),
    ("persistent", "objects"),
    ("objects", "lease"),
    ("lease", "postgres"),
    ("postgres", "lease"),
]
LEASE_PAIRS: Final = [("lease", "lease"), ("lease", "postgres"), ("postgres", "lease")]


def _on_postgres(request: pytest.FixtureRequest) -> StoreHarness:
    grounds = request.getfixturevalue("grounds")
    from tests.postgres.harness import PostgresHarness  # its driver may not be installed

    return PostgresHarness(grounds)


class PassingClock(SystemClock):
    """The real clock, on which nobody waits: the time passes at once, for the store that is watched as well."""

    def __init__(self, harness: StoreHarness, store: TaskStore) -> None:
        super().__init__()
        self._harness = harness
        self._store = store
        self._passed = 0.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return super().monotonic() + self._passed

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        assert isinstance(self._store, LeaseStore)
        self.waits.append(seconds)
        self._passed += seconds
        self._harness.let_pass(self._store, seconds)


class Ran(NamedTuple):
    """What came of a run: how many, what was told while copying and while comparing, and the tallies."""

    counts: Counter[Outcome]
    told: list[Told]
    compared: list[Told]
    tallies: list[Tally]
    said: list[str]

    @property
    def is_equal(self) -> bool:
        return not self.compared and all(tally.is_equal for tally in self.tallies)

    def outcome_of(self, record: TaskRecord) -> Outcome:
        """Return what was told of a task, in both passes the same."""
        (first,) = [told for told in self.told if told.where == name_of(record.key)]
        (again,) = [told for told in self.compared if told.where == name_of(record.key)]
        assert first.outcome is again.outcome
        return first.outcome


class Pair(NamedTuple):
    """Two places, and a store on each."""

    old: StoreHarness
    new: StoreHarness
    source: TaskStore
    target: TaskStore

    def run(self, **options: Any) -> Ran:
        """Copy and compare, by way of other instances than those that the test writes with."""
        said: list[str] = []
        told: list[Told] = []
        options.setdefault("clock", PassingClock(self.old, options.get("source", self.source)))
        source, target = options.pop("source", self.source), options.pop("target", self.target)
        copying = Copying(source, target, tell=told.append, say=said.append, **options)
        counts = copying.copy()
        copied = [*told]
        told.clear()
        return Ran(counts, copied, told, [*copying.compare()], said)

    def make(self) -> RecordMaker:
        """Return a maker of records of the source."""
        return RecordMaker(own_fields=not self.source.capabilities.leases)


def name_of(key: TaskKey) -> str:
    return f"{key.account_id}/{key.user_id}/{key.task_id}"


def read(store: TaskStore, key: TaskKey) -> TaskRecord:
    stored = store.get(key)
    assert isinstance(stored, Stored)
    return stored.record


def counts_of(**numbers: int) -> Counter[Outcome]:
    return Counter({Outcome[name.upper()]: number for name, number in numbers.items()})
