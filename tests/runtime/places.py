"""Stores with leases, seen by processes that submit and by the hands of a worker.

What a worker does is done by tests themselves, with the calls that it makes of the store.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from stores import InMemoryTaskStore, LeaseTaskStore
from task_tracker import (
    HandlerRegistry,
    Submission,
    TaskRecord,
    TaskTracker,
    transitions,
)
from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.records import TaskKey
from task_tracker.store import Lease, LeaseStore, Query, Stored, TaskStore
from tests.core.support import OWNER, FakeClock
from tests.lease.support import ShiftedClock, age

if TYPE_CHECKING:
    from tests.postgres.grounds import Ground

KINDS = ("memory", "lease", "postgres")
V1, V2 = ("ingest", 1), ("ingest", 2)


class Ingest(BaseModel):
    url: str
    depth: int = 1


class Wider(Ingest):
    language: str


PAYLOAD = {"url": "https://example.org", "depth": 2}


def handlers(*versions: int, **fields: Any) -> HandlerRegistry:
    registry = HandlerRegistry()
    for version in versions or (1,):
        registry.register(
            "ingest", version=version, handler="app.ingest:run", **({"payload": Ingest} | fields)
        )
    registry.register("reindex", handler="app.reindex:run", idempotent=True, timeout_seconds=60)
    return registry


class Recording:
    """Says whom it woke, and whether that could be found in the store just then."""

    def __init__(self) -> None:
        self.store: TaskStore | None = None
        self.woken: list[str] = []
        self.error: BaseException | None = None

    def wake(self, keys: Sequence[TaskKey]) -> None:
        assert self.store is not None
        for key in keys:
            self.store.get(key)
            self.woken.append(key.task_id)
        if self.error is not None:
            raise self.error

    def wait(self, seconds: float) -> bool:
        return False

    def interrupt(self) -> None:
        """Nobody waits."""


@dataclasses.dataclass
class Place:
    """A store, a tracker on it, and a worker's hands."""

    store: LeaseStore
    clock: Clock
    advance: Callable[[float], None]
    expire: Callable[[], None]
    way: Recording = dataclasses.field(default_factory=Recording)

    def tracker(self, registry: HandlerRegistry | None = None, **options: Any) -> TaskTracker:
        """Another process: nothing is shared but the store."""
        self.way.store = self.store
        return TaskTracker(
            self.store,
            handlers=registry if registry is not None else handlers(),
            wake_up=self.way,
            clock=self.clock,
            **options,
        )

    def claim(self, *kinds: tuple[str, int]) -> tuple[Lease, TaskRecord] | None:
        """Take the next task as a worker does that has these handlers."""
        claimed = self.store.claim(holder="worker", task_types=kinds or (V1,))
        return None if claimed is None else (claimed[0], claimed[1].record)

    def claimed(self, *kinds: tuple[str, int]) -> tuple[Lease, TaskRecord]:
        claimed = self.claim(*kinds)
        assert claimed is not None
        return claimed

    def drain(self, *kinds: tuple[str, int]) -> list[str]:
        """Claim all that can be claimed; return the ids in that order."""
        order = []
        while (claimed := self.claim(*kinds)) is not None:
            order.append(claimed[1].task_id)
        return order

    def end(self, how: str, *kinds: tuple[str, int], **changes: Any) -> TaskRecord:
        """Take the next task and end it under its lease."""
        lease, record = self.claimed(*kinds)
        now, record = self.clock.now(), record.changed(**changes)
        ended = {
            "completed": lambda: transitions.completed(record, now, b'{"n":1}'),
            "failed": lambda: transitions.failed(record, now, "it broke", error_code="broke"),
            "cancelled": lambda: transitions.cancelled(record, now),
        }[how]()
        return self.store.end(lease, ended).record


def place_for(request: pytest.FixtureRequest, root: Path) -> Iterator[Place]:
    """A place of the kind that a fixture's parameter names, for as long as the test runs."""
    if request.param != "postgres":
        yield place_of(request.param, root)
        return
    ground: Ground = request.getfixturevalue("ground")
    with closing(ground.store(lease_seconds=30)) as store:
        yield Place(store, SYSTEM_CLOCK, ground.bring_forward, partial(ground.lapse, 1000))


def place_of(kind: str, root: Path) -> Place:
    """A place of one of :data:`KINDS` that needs no server."""
    if kind == "memory":
        clock = FakeClock()
        store = InMemoryTaskStore(lease_seconds=30, clock=clock)
        return Place(store, clock, clock.advance, lambda: clock.advance(31))
    shifted = ShiftedClock()
    files = LeaseTaskStore(root, shards=1, durability="none", clock=shifted)

    def advance(seconds: float) -> None:
        shifted.ahead += seconds
        shifted.stepped += seconds

    def expire() -> None:
        age(root, 1000)
        files.expired()  # it watches for a while before it believes anything
        shifted.ahead += 1000

    return Place(files, shifted, advance, expire)


def submit(tracker: TaskTracker, **fields: Any) -> Submission:
    """Submit what most tests submit."""
    return tracker.submit("ingest", **({"payload": PAYLOAD, "resource_id": "kb-7"} | OWNER | fields))


def stored(place: Place, submission: Submission) -> TaskRecord:
    found = place.store.get(submission.record.key)
    assert isinstance(found, Stored)
    return found.record


def count(place: Place) -> int:
    return len(place.store.list(Query("acme", limit=None)).items)
