"""The patience of `wait`, and how waiters of this process are told."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from task_tracker import StoreUnavailable, TaskKey, TaskNotFound, TaskRecord, TaskTracker
from task_tracker.changes import Changes
from task_tracker.waiting import Waiting
from tests.core.support import (
    OWNER,
    FakeClock,
    Owner,
    WatchedStore,
    background,
    drive_to,
    in_threads,
    record_of,
)

KEY = TaskKey("acme", "alice", "task-1")


def waiting_of(clock: FakeClock, timeout: float | None = None, poll: float | None = None) -> Waiting:
    return Waiting("task-1", clock, timeout, poll)


def failing() -> TaskRecord:
    raise StoreUnavailable("away")


# ---- patience --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, "1", True, {}])
@pytest.mark.parametrize("name", ["timeout", "poll_interval"])
def test_senseless_times_are_refused(clock: FakeClock, name: str, seconds: Any) -> None:
    times: dict[str, Any] = {"timeout": None, "poll_interval": None} | {name: seconds}
    with pytest.raises(ValueError, match=f"{name} must be seconds of 0 or more, or None"):
        Waiting("task-1", clock, **times)
    with pytest.raises(ValueError, match="poll_interval must be more than 0"):
        waiting_of(clock, poll=0)


def test_looks_are_frequent_at_first_and_rarer_later(clock: FakeClock) -> None:
    waiting = waiting_of(clock)
    pauses = [waiting.pause() for _ in range(12)]
    assert pauses[0] == 0.02
    assert pauses == sorted(pauses)
    assert pauses[-2:] == [0.5, 0.5]
    assert [waiting_of(clock, poll=3.0).pause() for _ in range(2)] == [3.0, 3.0]


def test_a_timeout_is_kept_to_the_end_and_says_that_the_task_goes_on(clock: FakeClock) -> None:
    waiting = waiting_of(clock, timeout=1.0, poll=0.4)
    for expected in (0.4, 0.4, 0.2):
        pause = waiting.pause()
        assert pause == pytest.approx(expected)
        clock.advance(pause)
    with pytest.raises(
        TimeoutError, match=r"task-1 has not ended within 1.0 seconds; it goes on, wait again"
    ):
        waiting.pause()


@pytest.mark.parametrize("status", ["pending", "running", "cancelling", "paused"])
def test_what_has_not_ended_is_waited_for(clock: FakeClock, status: str) -> None:
    assert waiting_of(clock).look(lambda: record_of(status)) is None


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_an_end_is_returned(clock: FakeClock, status: str) -> None:
    record = record_of(status)
    assert waiting_of(clock).look(lambda: record) is record


def test_an_unknown_task_ends_the_wait_at_once(clock: FakeClock) -> None:
    with pytest.raises(TaskNotFound, match="no task task-1 to wait for"):
        waiting_of(clock).look(lambda: None)


def test_a_store_that_is_away_for_a_moment_does_not_end_the_wait(clock: FakeClock) -> None:
    waiting = waiting_of(clock)
    assert waiting.look(failing) is None
    clock.advance(59.9)
    assert waiting.look(failing) is None
    assert waiting.look(record_of) is None
    clock.advance(60.0)
    assert waiting.look(failing) is None, "the minute begins anew after an answer"
    clock.advance(60.0)
    with pytest.raises(StoreUnavailable):
        waiting.look(failing)


# ---- telling ---------------------------------------------------------------------------------------


def test_only_those_who_wait_for_the_task_are_told_and_only_while_they_wait() -> None:
    changes = Changes()
    told: list[str] = []
    changes.announce(KEY)
    with changes.subscribed(KEY, lambda: told.append("a")):
        with changes.subscribed(KEY, lambda: told.append("b")):
            changes.announce(KEY)
        changes.announce(KEY._replace(user_id="bob"))
        changes.announce(KEY)
    changes.announce(KEY)
    assert told == ["a", "b", "a"]
    assert changes._callbacks == {}, "nothing is left behind"


def test_an_error_in_the_block_ends_the_subscription() -> None:
    changes = Changes()
    with pytest.raises(ZeroDivisionError), changes.subscribed(KEY, lambda: None):
        raise ZeroDivisionError
    assert changes._callbacks == {}


# ---- TaskTracker.wait ------------------------------------------------------------------------------


def test_wait_returns_what_has_ended_without_looking_twice(tracker: TaskTracker, clock: FakeClock) -> None:
    task = tracker.create("t", **OWNER)
    tracker.complete(task.task_id, 5)
    assert tracker.wait(task.task_id).result == 5
    assert tracker.wait(task.task_id, **OWNER).result == 5
    assert clock.waited == []


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_wait_ends_with_the_task(tracker: TaskTracker, clock: FakeClock, status: str) -> None:
    """[D127] the waiter on the id that `create` returned is told."""
    task = tracker.create("t", **OWNER)
    clock.during_wait = [
        lambda: tracker.start(task.task_id),
        lambda: tracker.update(task.task_id, progress=5),
        lambda: drive_to(tracker, task.task_id, status),
    ]
    assert tracker.wait(task.task_id).status == status
    assert len(clock.waited) == 3


def test_wait_is_told_of_an_end_in_another_thread_at_once(store: WatchedStore) -> None:
    """With the real clock and a poll interval of an hour: only being told ends it."""
    with TaskTracker(store) as tracker:
        task = tracker.create("t", **OWNER)
        tracker.start(task.task_id)
        looked = store.gate("get", task.task_id)
        with background(lambda: tracker.wait(task.task_id, poll_interval=3600.0)) as answers:
            looked.wait_entered()
            looked.open()
            tracker.complete(task.task_id, 1)
        assert isinstance(answers[0], TaskRecord)
        assert answers[0].result == 1


def test_an_end_between_the_look_and_the_wait_is_not_missed(store: WatchedStore, clock: FakeClock) -> None:
    with TaskTracker(store, clock=clock) as tracker:
        task = tracker.create("t", **OWNER)
        real_pause = Waiting.pause

        def pause(waiting: Waiting) -> float:
            tracker.complete(task.task_id)
            return real_pause(waiting)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Waiting, "pause", pause)
            assert tracker.wait(task.task_id).status == "completed"
        assert clock.waited == [], "it looked again instead of waiting"


def test_wait_notices_an_end_in_another_process_by_polling(store: WatchedStore, clock: FakeClock) -> None:
    """[D122] another tracker on the same store stands for another process."""
    with TaskTracker(store, clock=clock) as ours, TaskTracker(store, clock=clock) as theirs:
        task = ours.create("t", **OWNER)
        assert theirs.start(task.task_id, **OWNER)
        clock.during_wait = [lambda: None, lambda: theirs.complete(task.task_id, {"n": 1})]
        assert ours.wait(task.task_id, timeout=10).result == {"n": 1}
        assert clock.waited == [0.02, pytest.approx(0.03)]


def test_wait_raises_when_time_is_up(tracker: TaskTracker, clock: FakeClock) -> None:
    task = tracker.create("t", **OWNER)
    with pytest.raises(TimeoutError):
        tracker.wait(task.task_id, timeout=2.0)
    assert sum(clock.waited) == pytest.approx(2.0)
    with pytest.raises(TimeoutError):
        tracker.wait(task.task_id, timeout=0)


def test_wait_ends_when_the_task_is_deleted(tracker: TaskTracker, clock: FakeClock) -> None:
    """[D139] purged meanwhile: a waiter is not left waiting."""
    task = tracker.create("t", **OWNER)

    def end_and_delete() -> None:
        other = tracker.access
        tracker.complete(task.task_id)
        assert other.delete(task.key)

    clock.during_wait = [end_and_delete]
    with pytest.raises(TaskNotFound):
        tracker.wait(task.task_id)


def test_wait_is_told_at_once_of_a_deletion_in_this_process(store: WatchedStore) -> None:
    """[D139] the end was another process's, and would have been found an hour later."""
    with TaskTracker(store) as ours, TaskTracker(store) as theirs:
        task = ours.create("t", **OWNER)
        looked = store.gate("get", task.task_id)
        looked.open()
        with background(lambda: ours.wait(task.task_id, poll_interval=3600.0)) as answers:
            looked.wait_entered()
            theirs.complete(task.task_id, **OWNER)
            assert ours.delete(task.task_id)
        # It may have looked between the end and the deletion.
        assert isinstance(answers[0], (TaskNotFound, TaskRecord))


@pytest.mark.parametrize("owner", [{}, OWNER, {"account_id": "acme"}])
@pytest.mark.parametrize("task_id", ["never-existed", "", "../x"])
def test_wait_for_an_unknown_task_does_not_wait(
    tracker: TaskTracker, clock: FakeClock, task_id: str, owner: Owner
) -> None:
    """[D139]"""
    with pytest.raises(TaskNotFound):
        tracker.wait(task_id, **owner)
    assert clock.waited == []


def test_wait_puts_up_with_an_outage_for_a_minute(
    watched: TaskTracker, store: WatchedStore, clock: FakeClock
) -> None:
    task = watched.create("t", **OWNER)
    store.go_down(StoreUnavailable("away"), "get")
    clock.during_wait = [lambda: None, store.come_back, lambda: watched.complete(task.task_id)]
    assert watched.wait(task.task_id).status == "completed"
    other = watched.create("t", **OWNER)
    store.go_down(StoreUnavailable("away"), "get")
    with pytest.raises(StoreUnavailable):
        watched.wait(other.task_id)


def test_many_waiters_on_one_task_are_all_told(store: WatchedStore) -> None:
    with TaskTracker(store) as tracker:
        task = tracker.create("t", **OWNER)
        looked = store.gate("get", task.task_id)
        everybody = threading.Barrier(5)

        def wait() -> object:
            everybody.wait(30)
            return tracker.wait(task.task_id, poll_interval=3600.0).status

        def complete() -> object:
            everybody.wait(30)
            looked.wait_entered()
            looked.open()
            return tracker.complete(task.task_id)

        answers = in_threads(*[wait] * 4, complete)
    assert answers[:4] == ["completed"] * 4
    assert tracker.access.changes._callbacks == {}
