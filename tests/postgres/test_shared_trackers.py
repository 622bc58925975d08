"""Two trackers, and two servers, on one database: what holds on one directory holds here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from task_tracker import StorageConfig, TaskTracker
from tests.core import test_tracker_shared
from tests.core.leasing import without_threads
from tests.core.support import PROPERTY, FakeClock, WatchedStore
from tests.core.test_tracker_machine import TwoTrackers
from tests.http_api import test_http_shared
from tests.http_api.asking import Client, app_with
from tests.http_api.conftest import no_threads_are_left
from tests.postgres.grounds import Ground, Grounds

__all__ = ["no_threads_are_left"]

Two = tuple[TaskTracker, TaskTracker]

NOT_WITH_LEASES = (
    "test_answers_are_the_same_after_a_restart"  # a tracker that is closed gives back what it holds
)

globals().update(
    {
        name: test
        for module in (test_tracker_shared, test_http_shared)
        for name, test in vars(module).items()
        if name.startswith("test_") and name != NOT_WITH_LEASES
    }
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def two(ground: Ground, clock: FakeClock) -> Iterator[Two]:
    ours, theirs = (TaskTracker(ground.store(pool_size=3, clock=clock), clock=clock) for _ in range(2))
    for tracker in (ours, theirs):
        without_threads(tracker)
    with closing(ours), closing(theirs):
        yield ours, theirs


@pytest.fixture
def server(ground: Ground) -> Callable[[], Any]:
    @contextmanager
    def make() -> Iterator[tuple[TaskTracker, Client]]:
        options = {"schema": ground.names.schema, "table_prefix": ground.names.prefix}
        config = StorageConfig(task_tracker={"backend": "postgres", "dsn": ground.dsn, "options": options})
        with config.build_task_tracker(cleanup=False, reconcile=False) as tracker:
            yield tracker, Client(app_with(tracker))

    return make


class OnOneDatabase(TwoTrackers):
    """The model of two trackers, with a store in each process."""

    grounds: Grounds

    def make_stores(self) -> list[WatchedStore]:
        self.ground = self.grounds.take()
        return [WatchedStore(self.ground.store(pool_size=1, clock=self.clock)) for _ in range(2)]

    def teardown(self) -> None:
        super().teardown()
        for store in self.stores:
            store.inner.close()
        self.grounds.give_back(self.ground)


def test_any_sequence_of_calls_on_two_trackers(grounds: Grounds) -> None:
    """The states of all tasks are those of a plain dict."""
    machine = type("Machine", (OnOneDatabase,), {"grounds": grounds})
    run_state_machine_as_test(machine, settings=settings(PROPERTY, max_examples=8, stateful_step_count=25))
