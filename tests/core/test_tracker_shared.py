"""Two trackers of one store, as two processes have them: in memory, and on one directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from stores import InMemoryTaskStore, LeaseTaskStore, PersistentTaskStore
from task_tracker import InvalidTransition, LeaseHeld, TaskRecord, TaskTracker
from task_tracker.store import TaskStore
from tests.core.leasing import without_threads
from tests.core.support import OWNER, FakeClock, in_threads

Two = tuple[TaskTracker, TaskTracker]


@pytest.fixture(params=["memory", "files", "leases"])
def two(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Two]:
    stores: list[TaskStore]
    if request.param == "memory":
        stores = [InMemoryTaskStore(clock=clock)] * 2
    elif request.param == "leases":
        stores = [LeaseTaskStore(tmp_path, durability="none", clock=clock) for _ in range(2)]
    else:
        stores = [PersistentTaskStore(tmp_path, durability="none", clock=clock) for _ in range(2)]
    ours, theirs = (TaskTracker(store, clock=clock) for store in stores)
    if request.param == "leases":
        without_threads(ours)
        without_threads(theirs)
    yield ours, theirs
    ours.close()
    theirs.close()


def status(tracker: TaskTracker, task_id: str) -> str:
    found = tracker.get(task_id, **OWNER)
    assert found is not None
    return str(found.status)


def test_each_sees_at_once_what_the_other_did(two: Two, clock: FakeClock) -> None:
    """[D121] [D122]"""
    ours, theirs = two
    task = ours.create("t", "r", **OWNER)
    assert theirs.get(task.task_id, **OWNER) == task
    for number in range(20):
        writer, reader = (ours, theirs) if number % 2 else (theirs, ours)
        clock.advance(1)
        written = writer.update(task.task_id, **OWNER, progress=number, stage=str(number))
        assert reader.get(task.task_id, **OWNER) == written
        assert reader.list_tasks(**OWNER) == [written]
        assert reader.list_tasks() == [written]
    theirs.start(task.task_id, **OWNER)
    assert status(ours, task.task_id) == "running"
    assert ours.has_running("t", "r", **OWNER)
    assert ours.create_if_no_running("t", "r", **OWNER) is None
    theirs.complete(task.task_id, {"n": 1}, **OWNER)
    assert ours.wait(task.task_id, timeout=0).result == {"n": 1}
    assert not ours.has_running("t", "r", **OWNER)
    assert not ours.has_running("t", "r")


ENDS: list[Callable[[TaskTracker, str], object]] = [
    lambda t, i: t.complete(i, {"n": 1}, **OWNER),
    lambda t, i: t.fail(i, "broke", **OWNER),
    lambda t, i: t.mark_cancelled(i, **OWNER),
]


def test_of_all_ends_at_once_one_wins_everywhere(two: Two) -> None:
    """[D037]"""
    ours, theirs = two
    for _ in range(10):
        task_id = ours.create("t", **OWNER).task_id
        ours.start(task_id)
        theirs.get(task_id, **OWNER)
        answers = in_threads(*[partial(end, tracker, task_id) for end in ENDS for tracker in two])
        final = ours.get(task_id, **OWNER)
        assert theirs.get(task_id, **OWNER) == final
        for answer in answers:
            # Where there are leases only who started a task can end it; the other one may be told that first.
            assert answer == final or isinstance(answer, InvalidTransition | LeaseHeld)
        assert any(answer == final for answer in answers)


def test_a_cancel_at_the_same_time_as_a_start_is_never_lost(two: Two) -> None:
    """[D038] the start was refused, or the task is to stop."""
    ours, theirs = two
    for _ in range(20):
        task_id = ours.create("t", **OWNER).task_id
        theirs.get(task_id, **OWNER)
        started, cancelled = in_threads(
            partial(ours.start, task_id), partial(theirs.cancel, task_id, **OWNER)
        )
        assert isinstance(cancelled, TaskRecord)
        if isinstance(started, InvalidTransition):
            assert status(ours, task_id) == "cancelled", "nobody works on it"
        else:
            assert cancelled.status == status(ours, task_id) == "cancelling"
            assert ours.is_cancellation_requested(task_id)


def test_a_cancel_at_the_same_time_as_progress_is_never_lost(two: Two) -> None:
    """[D038] [D125] a whole record is written each time, from what was read before."""
    ours, theirs = two
    for _ in range(10):
        task_id = ours.create("t", **OWNER).task_id
        ours.start(task_id)
        theirs.get(task_id, **OWNER)

        def progress(task_id: str = task_id) -> None:
            for number in range(10):
                ours.update(task_id, progress=number)

        answers = in_threads(progress, partial(theirs.cancel, task_id, **OWNER))
        assert answers[0] is None
        found = ours.get(task_id)
        assert found is not None
        assert (found.status, found.progress) == ("cancelling", 9)


def test_one_of_all_who_create_if_none_runs_wins(two: Two) -> None:
    """[D059]"""
    for _ in range(10):
        answers = in_threads(
            *[partial(tracker.create_if_no_running, "t", "r", **OWNER) for tracker in two for _ in range(3)]
        )
        (created,) = [answer for answer in answers if answer is not None]
        assert isinstance(created, TaskRecord)
        two[1].complete(created.task_id, **OWNER)


def test_progress_from_many_threads_of_both_is_all_taken(two: Two) -> None:
    """[D125] nobody's write is refused for another's sake, and none is half of two."""
    ours, theirs = two
    task_id = ours.create("t", **OWNER).task_id
    calls = [
        partial(tracker.update, task_id, **OWNER, stage=f"{name}{number}", message=f"{name}{number}")
        for name, tracker in (("a", ours), ("b", theirs))
        for number in range(6)
    ]
    answers = in_threads(*calls)
    assert all(isinstance(answer, TaskRecord) for answer in answers)
    found = ours.get(task_id)
    assert found is not None
    assert found.stage == found.message
    assert theirs.get(task_id, **OWNER) == found
