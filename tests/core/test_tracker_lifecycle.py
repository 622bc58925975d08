"""What the calls that change a task mean: starting, progress, ends, cancelling; strict and not."""

from __future__ import annotations

import itertools
import logging
import math
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from task_tracker import (
    AmbiguousTask,
    InvalidTaskId,
    InvalidTransition,
    StoreUnavailable,
    TaskNotFound,
    TaskRecord,
    TaskTracker,
)
from tests.core.support import (
    OWNER,
    START,
    TERMINAL,
    FakeClock,
    LastWriteWinsStore,
    WatchedStore,
    drive_to,
    in_threads,
    record_of,
)


def new(tracker: TaskTracker, **fields: Any) -> str:
    return tracker.create("t", "r", **OWNER, **fields).task_id


# ---- the usual way ---------------------------------------------------------------------------------


def test_the_usual_way(tracker: TaskTracker, clock: FakeClock) -> None:
    task_id = new(tracker)
    clock.advance(1)
    started = tracker.start(task_id, stage="read")
    assert started is not None
    assert (started.status, started.stage, started.updated_at) == ("running", "read", START + 1)
    clock.advance(1)
    updated = tracker.update(task_id, progress=12.5, message="half of it")
    assert updated is not None
    assert (updated.progress, updated.message, updated.stage) == (12.5, "half of it", "read")
    clock.advance(1)
    ended = tracker.complete(task_id, {"archived": True}, resource_id="sess-2")
    assert ended is not None
    assert (ended.status, ended.result, ended.resource_id) == ("completed", {"archived": True}, "sess-2")
    assert (ended.progress, ended.stage, ended.updated_at) == (100.0, "completed", START + 3)
    assert tracker.get(task_id) == ended


def test_calls_that_change_nothing_return_the_task_and_write_nothing(
    watched: TaskTracker, store: WatchedStore
) -> None:
    task_id = new(watched)
    running = watched.start(task_id, stage="read")
    store.calls.clear()
    assert watched.start(task_id) == running
    assert watched.start(task_id, stage="read") == running
    assert watched.update(task_id) == running
    assert watched.update_stage(task_id, "read") == running
    assert store.count_of("update") == 0
    ended = watched.fail(task_id, "broke")
    assert watched.fail(task_id, "broke") == ended
    assert store.count_of("update") == 1


def test_the_stage_can_be_set_before_the_start(tracker: TaskTracker) -> None:
    task_id = new(tracker)
    waiting = tracker.update_stage(task_id, "queued")
    assert waiting is not None
    assert (waiting.status, waiting.stage) == ("pending", "queued")
    assert tracker.start(task_id).stage == "queued"  # type: ignore[union-attr]


@pytest.mark.parametrize("status", TERMINAL)
def test_a_pending_task_can_end_without_a_start(tracker: TaskTracker, status: str) -> None:
    task_id = new(tracker)
    drive_to(tracker, task_id, status)
    assert tracker.get(task_id).status == status  # type: ignore[union-attr]


def test_times_are_those_of_the_call_however_long_the_store_takes(
    store: WatchedStore, clock: FakeClock
) -> None:
    with TaskTracker(store, clock=clock) as tracker:
        task_id = new(tracker)
        store.before("update", lambda: clock.advance(60))
        assert tracker.complete(task_id).updated_at == START  # type: ignore[union-attr]


@pytest.mark.parametrize("progress", [-0.1, 100.1, math.nan, math.inf, True, "50", [1]])
def test_progress_that_is_none_is_refused(tracker: TaskTracker, progress: Any) -> None:
    task_id = new(tracker)
    with pytest.raises(ValueError, match="progress must be a number from 0 to 100"):
        tracker.update(task_id, progress=progress)
    assert tracker.get(task_id).progress is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "call",
    [
        lambda t, i: t.update(i, stage=5),
        lambda t, i: t.update(i, message=b"x"),
        lambda t, i: t.update_stage(i, 5),
        lambda t, i: t.start(i, stage=5),
        lambda t, i: t.fail(i, "x", error_code=5),
        lambda t, i: t.complete(i, resource_id=5),
    ],
)
def test_text_that_is_none_is_refused_before_anything_changes(
    tracker: TaskTracker, call: Callable[[TaskTracker, str], object]
) -> None:
    task_id = new(tracker)
    with pytest.raises((TypeError, ValueError), match=r"must be a string, not (int|bytes)"):
        call(tracker, task_id)
    assert tracker.get(task_id).status == "pending"  # type: ignore[union-attr]


def test_texts_are_made_storable_and_credentials_in_messages_masked(tracker: TaskTracker) -> None:
    task_id = new(tracker)
    task = tracker.update(task_id, stage="a\0b", message="GET https://u:s3cret@host/ \udfff")
    assert task is not None
    assert task.stage == "a\ufffdb"
    assert "s3cret" not in str(task.message)
    assert "\udfff" not in str(task.message)
    ended = tracker.fail(task_id, "x", error_code="code\0")
    assert ended is not None
    assert ended.error_code == "code\ufffd"


# ---- cancelling ------------------------------------------------------------------------------------


def test_cancelling_a_pending_task_ends_it(tracker: TaskTracker) -> None:
    """[D038] it can no longer be started."""
    task_id = new(tracker)
    assert tracker.cancel(task_id).status == "cancelled"  # type: ignore[union-attr]
    assert tracker.is_cancellation_requested(task_id)
    with pytest.raises(InvalidTransition):
        tracker.start(task_id)


@pytest.mark.parametrize("end", ["complete", "fail", "mark_cancelled"])
def test_cancelling_a_running_task_asks_and_the_work_decides(tracker: TaskTracker, end: str) -> None:
    """[D038] [D039] shown as cancelling until the work has really ended; what it ended with survives."""
    task_id = new(tracker)
    tracker.start(task_id)
    assert not tracker.is_cancellation_requested(task_id)
    asked = tracker.cancel(task_id)
    assert asked is not None
    assert (asked.status, asked.cancel_requested_at) == ("cancelling", START)
    assert tracker.is_cancellation_requested(task_id)
    assert tracker.has_running("t", "r", **OWNER)
    assert tracker.cancel(task_id) == asked, "asking twice is asking once"
    with pytest.raises(InvalidTransition, match="it is to stop"):
        tracker.start(task_id)
    assert tracker.update(task_id, message="cleaning up").status == "cancelling"  # type: ignore[union-attr]
    ended = getattr(tracker, end)(task_id, *(["broke"] if end == "fail" else []))
    assert ended.status == {"complete": "completed", "fail": "failed", "mark_cancelled": "cancelled"}[end]
    assert not tracker.has_running("t", "r", **OWNER)
    assert tracker.is_cancellation_requested(task_id) is (end == "mark_cancelled")


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_cancel_that_comes_too_late_says_so(tracker: TaskTracker, status: str) -> None:
    """[D038] a stored result survives."""
    task_id = new(tracker)
    drive_to(tracker, task_id, status)
    before = tracker.get(task_id)
    with pytest.raises(InvalidTransition, match=f"cannot cancel task {task_id}, which is {status}"):
        tracker.cancel(task_id)
    assert tracker.get(task_id) == before


@pytest.mark.parametrize("other", ["start", "complete", "fail", "update_stage"])
def test_a_cancel_between_reading_and_writing_is_not_lost(
    store: WatchedStore, clock: FakeClock, other: str
) -> None:
    """[D038] another process cancels right before our write takes effect: we begin again from what it made."""
    with TaskTracker(store, clock=clock) as ours, TaskTracker(store, clock=clock) as theirs:
        task_id = new(ours)
        if other != "start":
            ours.start(task_id)
        store.before("update", partial(theirs.cancel, task_id, **OWNER))
        arguments = {"fail": ["broke"], "update_stage": ["s"]}.get(other, [])
        if other == "start":
            with pytest.raises(InvalidTransition):
                ours.start(task_id)
            assert ours.get(task_id).status == "cancelled"  # type: ignore[union-attr]
            return
        record = getattr(ours, other)(task_id, *arguments)
        assert record.status == {"complete": "completed", "fail": "failed"}.get(other, "cancelling")
        assert record.cancel_requested_at is not None, "the wish is on record"
        assert theirs.get(task_id, **OWNER) == record


# ---- the first end wins ----------------------------------------------------------------------------

ENDS: dict[str, Callable[[TaskTracker, str], object]] = {
    "complete": lambda t, i: t.complete(i, {"n": 1}, **OWNER),
    "fail": lambda t, i: t.fail(i, "broke", **OWNER),
    "mark_cancelled": lambda t, i: t.mark_cancelled(i, **OWNER),
}
LATE: dict[str, Callable[[TaskTracker, str], object]] = ENDS | {
    "start": lambda t, i: t.start(i, **OWNER),
    "update_stage": lambda t, i: t.update_stage(i, "late", **OWNER),
    "cancel": lambda t, i: t.cancel(i, **OWNER),
    "other complete": lambda t, i: t.complete(i, {"n": 2}, **OWNER),
    "other fail": lambda t, i: t.fail(i, "broke otherwise", **OWNER),
}
REPEATS = {("complete", "complete"), ("fail", "fail"), ("mark_cancelled", "mark_cancelled")} | {
    ("mark_cancelled", "cancel")
}


@pytest.mark.parametrize(("first", "second"), list(itertools.product(ENDS, LATE)))
@pytest.mark.parametrize("same_process", [True, False])
def test_nothing_that_comes_late_changes_an_end(
    store: WatchedStore, clock: FakeClock, first: str, second: str, same_process: bool
) -> None:
    """[D037]"""
    with TaskTracker(store, clock=clock) as ours, TaskTracker(store, clock=clock) as theirs:
        task_id = new(ours)
        ours.start(task_id, stage="s")
        assert theirs.get(task_id, **OWNER).status == "running"  # type: ignore[union-attr]
        ended = ENDS[first](ours, task_id)
        late = ours if same_process else theirs
        if (first, second) in REPEATS:
            assert LATE[second](late, task_id) == ended
        else:
            with pytest.raises(InvalidTransition, match="its first end is final"):
                LATE[second](late, task_id)
        assert ours.get(task_id) == theirs.get(task_id) == ended


@pytest.mark.parametrize("order", list(itertools.permutations(ENDS)))
def test_of_all_ends_at_once_one_wins_whatever_the_order(store: WatchedStore, order: tuple[str, ...]) -> None:
    """[D037] from two processes' trackers and six threads."""
    with TaskTracker(store) as ours, TaskTracker(store) as theirs:
        for _ in range(5):
            task_id = new(ours)
            ours.start(task_id)
            theirs.get(task_id, **OWNER)
            answers = in_threads(*[partial(ENDS[end], t, task_id) for end in order for t in (ours, theirs)])
            final = ours.get(task_id, **OWNER)
            assert final is not None
            assert final.status.is_terminal
            assert theirs.get(task_id, **OWNER) == final
            for answer in answers:
                assert answer == final or isinstance(answer, InvalidTransition)
            winners = [answer for answer in answers if not isinstance(answer, InvalidTransition)]
            assert len(winners) == 2, "the winner and its repeat from the other process"


def test_an_end_that_lands_between_reading_and_writing_wins(store: WatchedStore, clock: FakeClock) -> None:
    """[D037] in the store, not just under a lock of this process."""
    with TaskTracker(store, clock=clock) as ours, TaskTracker(store, clock=clock) as theirs:
        task_id = new(ours)
        store.before("update", lambda: ENDS["fail"](theirs, task_id))
        with pytest.raises(InvalidTransition):
            ours.complete(task_id, {"n": 1})
        assert ours.get(task_id).status == "failed"  # type: ignore[union-attr]


def test_within_one_process_the_first_end_wins_also_without_compare_and_set(clock: FakeClock) -> None:
    """[D037]"""
    store = LastWriteWinsStore()
    with TaskTracker(store, clock=clock) as tracker:
        for _ in range(10):
            task_id = new(tracker)
            answers = in_threads(*[partial(end, tracker, task_id) for end in ENDS.values() for _ in range(2)])
            assert sum(isinstance(answer, InvalidTransition) for answer in answers) == 4
            stored = store.inner.get(record_of(task_id=task_id).key)
            assert tracker.get(task_id) == stored.record  # type: ignore[union-attr]


def test_without_compare_and_set_nothing_is_written_from_memory(clock: FakeClock) -> None:
    """[D037] what another process ended is not written over by what was cached before."""
    store = LastWriteWinsStore()
    with TaskTracker(store, clock=clock) as ours, TaskTracker(store, clock=clock) as theirs:
        task_id = new(ours)
        ours.start(task_id)
        ended = ENDS["fail"](theirs, task_id)
        for late in LATE.values():
            if late is not LATE["fail"]:
                with pytest.raises(InvalidTransition):
                    late(ours, task_id)
        assert ours.get(task_id) == ended


def test_a_refusal_is_not_concluded_from_what_was_cached(store: WatchedStore, clock: FakeClock) -> None:
    """Cached in a state that forbids the step; meanwhile a newer version has taken the task out of it."""
    paused = store.create(record_of("paused")).record
    with TaskTracker(store, clock=clock) as tracker:
        assert tracker.get("task-1", **OWNER) == paused
        with pytest.raises(InvalidTransition):
            tracker.start("task-1")
        store.inner.update(record_of("running"), expected=None)
        assert tracker.complete("task-1").status == "completed"  # type: ignore[union-attr]


def test_a_store_that_others_write_without_end_is_given_up_on(store: WatchedStore, clock: FakeClock) -> None:
    """Bounded, and told as what it is: nothing is known, try again."""
    with TaskTracker(store, clock=clock) as ours, TaskTracker(store, clock=clock) as theirs:
        task_id = new(ours)
        for number in range(200):
            store.before("update", partial(theirs.update, task_id, **OWNER, message=str(number)))
            store.before("update", lambda: None)
        with pytest.raises(StoreUnavailable, match="changed by others 100 times in a row; try again"):
            ours.start(task_id)
        store._before.clear()


@pytest.mark.parametrize("task_id", [None, 5, uuid.UUID(int=7), b"task"])
def test_an_id_that_is_no_text_is_no_unknown_task(tracker: TaskTracker, task_id: Any) -> None:
    for call in (tracker.get, tracker.start, tracker.complete, tracker.cancel):
        with pytest.raises(InvalidTaskId, match=r"task_id is .*; it must be text, as create"):
            call(task_id, **OWNER)


# ---- not strict ------------------------------------------------------------------------------------


OWNERLESS: dict[str, Callable[[TaskTracker, str], object]] = {
    "start without an owner": lambda t, i: t.start(i),
    "complete without an owner": lambda t, i: t.complete(i),
    "update with half an owner": lambda t, i: t.update(i, account_id="acme"),
}


@pytest.mark.parametrize("call", [*LATE, *OWNERLESS])
def test_not_strict_an_unknown_task_is_logged_and_none(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    with TaskTracker(clock=clock, strict=False) as tracker:
        assert (LATE | OWNERLESS)[call](tracker, "unknown") is None
        assert tracker.is_cancellation_requested("unknown") is False
        assert tracker.is_cancellation_requested("unknown", **OWNER) is False
    records = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(records) == 1
    assert "had no effect: no task unknown" in records[0].getMessage()
    assert records[0].event == "call_ignored"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(ENDS, LATE)))
def test_not_strict_a_late_call_is_logged_and_gives_the_task_as_it_is(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, first: str, second: str
) -> None:
    with TaskTracker(clock=clock, strict=False) as tracker:
        task_id = new(tracker)
        ended = ENDS[first](tracker, task_id)
        assert LATE[second](tracker, task_id) == ended
        assert ("had no effect" in caplog.text) is ((first, second) not in REPEATS)


def test_not_strict_other_errors_are_raised_all_the_same(clock: FakeClock, store: WatchedStore) -> None:
    with TaskTracker(store, clock=clock, strict=False) as tracker:
        task_id = new(tracker, task_id="same")
        tracker.create("t", account_id="acme", user_id="bob", task_id="same")
        with pytest.raises(AmbiguousTask):
            tracker.start(task_id)
        with pytest.raises(ValueError, match="progress"):
            tracker.update(task_id, **OWNER, progress=101)
        with pytest.raises(TaskNotFound):
            tracker.wait("unknown")
        store.go_down(StoreUnavailable("away"))
        with pytest.raises(StoreUnavailable):
            tracker.start(task_id, **OWNER)


def test_strict_calls_return_records(tracker: TaskTracker) -> None:
    assert isinstance(tracker.start(new(tracker)), TaskRecord)
