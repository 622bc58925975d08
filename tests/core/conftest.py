"""Fixtures of the core's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from task_tracker import TaskTracker
from tests.core.leasing import Processes
from tests.core.support import FakeClock, WatchedStore, join, own_threads


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = own_threads()
    yield
    left = own_threads() - before
    for thread in left:
        join(thread)  # one that has done its work may still be on its way out


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore()


@pytest.fixture
def tracker(clock: FakeClock) -> Iterator[TaskTracker]:
    """A tracker on a memory store of its own."""
    with TaskTracker(clock=clock) as made:
        yield made


@pytest.fixture
def watched(clock: FakeClock, store: WatchedStore) -> Iterator[TaskTracker]:
    """A tracker on ``store``."""
    with TaskTracker(store, clock=clock) as made:
        yield made


@pytest.fixture
def processes(clock: FakeClock) -> Processes:
    """Trackers on one store whose leases expire after 30 seconds."""
    return Processes(clock)
