"""A store that takes ends together, and what tests of that begin with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from stores import InMemoryTaskStore
from task_tracker import TaskRecord, TaskTracker
from task_tracker.errors import LeaseLost
from task_tracker.records import TaskStatus
from task_tracker.store import Lease, Stored
from task_tracker.testing import FakeClock
from task_tracker.worker.ends import Ends
from task_tracker.worker.worker import Worker
from tests.runtime.work import registry
from tests.runtime.workers import BEAT, LEASE, Crew


class Together(InMemoryTaskStore):
    """Takes ends together, and says how many; ``before`` is called with them."""

    blocking = True
    ends_together = True

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(lease_seconds=LEASE, heartbeat_seconds=BEAT, clock=clock)
        self.groups: list[int] = []
        self.leaves: set[str] = set()
        """Tasks of which it says nothing if they end with others."""
        self.before: Callable[[Sequence[Lease]], None] = lambda _: None

    def end(self, lease: Lease, record: TaskRecord) -> Stored:
        self.groups.append(1)
        self.before([lease])
        return super().end(lease, record)

    def end_several(self, ends: Sequence[tuple[Lease, TaskRecord]]) -> Sequence[Stored | Exception | None]:
        self.groups.append(len(ends))
        self.before([lease for lease, _ in ends])
        found: list[Stored | Exception | None] = []
        for lease, record in ends:
            if lease.key.task_id in self.leaves:
                found.append(None)
                continue
            try:
                found.append(super().end(lease, record))
            except LeaseLost as error:
                found.append(error)
        return found


@pytest.fixture
def store() -> Together:
    return Together(FakeClock())


@pytest.fixture
def crew(store: Together) -> Crew:
    return Crew(store._clock, store)


def tracker_of(crew: Crew) -> TaskTracker:
    handlers = registry()
    handlers.check()  # importing takes turns of the loop
    return crew.tracker(handlers)


def statuses(crew: Crew, tasks: list[TaskRecord]) -> list[TaskStatus]:
    return [crew.seen(task).status for task in tasks]


def ends_of(worker: Worker) -> Ends:
    assert worker._shift is not None
    return worker._shift._executor._finisher._ends
