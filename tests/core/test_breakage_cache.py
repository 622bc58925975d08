"""Tasks that are created just while their predecessors go: their creator keeps knowing them, also without an owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from stores import InMemoryTaskStore
from task_tracker import StoreUnavailable, TaskTracker
from task_tracker.testing import FaultyStore
from tests.core.support import OWNER, FakeClock, Gate, background

Delete = Callable[[TaskTracker], object]


def delete_one(tracker: TaskTracker) -> object:
    return tracker.delete("mine", **OWNER)


def delete_all(tracker: TaskTracker) -> object:
    return tracker.delete_user_tasks(**OWNER)


DELETIONS = [
    pytest.param(delete_one, "delete", "mine", id="delete"),
    pytest.param(delete_all, "delete_owner", "mine", id="delete_owner-same-id"),
    pytest.param(delete_all, "delete_owner", None, id="delete_owner-new-id"),
]


@pytest.fixture
def faulty() -> FaultyStore:
    return FaultyStore(InMemoryTaskStore())


@pytest.fixture
def tracker(faulty: FaultyStore, clock: FakeClock) -> Iterator[TaskTracker]:
    """It knows a task that has ended, ``mine``."""
    with TaskTracker(faulty, clock=clock) as made:
        made.create("t", "r", task_id="mine", **OWNER)
        made.complete("mine", {"life": 1})
        clock.advance(60)
        yield made


def is_known(tracker: TaskTracker, task_id: str) -> None:
    found = tracker.get(task_id)
    assert found is not None
    assert found.status == "pending"
    assert tracker.has_running("t", "next")
    assert [task.task_id for task in tracker.list_tasks()] == [task_id]
    assert tracker.count() == 1
    assert tracker.start(task_id)


@pytest.mark.parametrize(("deletion", "operation", "task_id"), DELETIONS)
def test_created_between_the_deletion_and_the_news_of_it(
    tracker: TaskTracker, faulty: FaultyStore, deletion: Delete, operation: str, task_id: str | None
) -> None:
    created = []
    faulty.interrupt(
        lambda: created.append(tracker.create("t", "next", task_id=task_id, **OWNER)),
        on=operation,
        after=True,
    )
    assert deletion(tracker)
    is_known(tracker, created[0].task_id)


@pytest.mark.parametrize(
    ("deletion", "operation", "task_id", "conditional"),
    [
        (delete_one, "delete", "mine", False),
        (delete_all, "delete_owner", "mine", False),
        (delete_all, "delete_owner", None, False),
        (delete_all, "delete_owner", None, True),
    ],
)
def test_created_before_and_told_of_it_after_the_deletion(
    tracker: TaskTracker,
    faulty: FaultyStore,
    deletion: Delete,
    operation: str,
    task_id: str | None,
    conditional: bool,
) -> None:
    """Both are under way at once, and the creator's thread is the slower one."""
    deleted, created = Gate(), Gate()
    faulty.interrupt(deleted.pass_through, on=operation, after=True)
    faulty.interrupt(created.pass_through, on=["create", "create_if_no_active"], after=True)

    def create() -> object:
        if conditional:
            return tracker.create_if_no_running("t", "next", **OWNER)
        return tracker.create("t", "next", task_id=task_id, **OWNER)

    with ExitStack() as later:
        with background(lambda: deletion(tracker)):
            deleted.wait_entered()
            answers = later.enter_context(background(create))
            created.wait_entered()
            deleted.open()
        created.open()
    (new,) = answers
    is_known(tracker, new.task_id)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("deletion", "operation", "task_id"), DELETIONS)
def test_a_store_that_goes_away_just_then_fails_no_call_that_is_done(
    tracker: TaskTracker, faulty: FaultyStore, deletion: Delete, operation: str, task_id: str | None
) -> None:
    created = []

    def create() -> None:
        created.append(tracker.create("t", "next", task_id=task_id, **OWNER))
        faulty.fail(on="get", forever=True)

    faulty.interrupt(create, on=operation, after=True)
    assert deletion(tracker)
    with pytest.raises(StoreUnavailable):
        tracker.get(created[0].task_id, **OWNER)
    faulty.heal()
    assert tracker.get(created[0].task_id, **OWNER)


@pytest.mark.parametrize(("deletion", "operation", "task_id"), DELETIONS)
def test_what_was_deleted_is_not_known_any_more(
    tracker: TaskTracker, faulty: FaultyStore, deletion: Delete, operation: str, task_id: str | None
) -> None:
    """Also if it was read once more while it was being deleted."""
    del task_id

    def read() -> None:
        assert tracker.list_tasks(**OWNER)

    faulty.interrupt(read, on=operation)
    assert deletion(tracker)
    assert tracker.get("mine") is None
    assert tracker.list_tasks() == []
    assert tracker.count() == 0
