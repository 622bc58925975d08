"""A store that is away, damaged or slow: what the tracker says, and what it keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from task_tracker import (
    CorruptRecord,
    InvalidTransition,
    StoreUnavailable,
    TaskNotFound,
    TaskRecord,
    TaskTracker,
)
from task_tracker import outcomes as outcomes_module
from tests.core.support import (
    OWNER,
    PATIENCE,
    START,
    FakeClock,
    LastWriteWinsStore,
    WatchedStore,
    background,
    ids,
)

AWAY = StoreUnavailable("the disk does not answer; try again")


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes that wait are tried when the test says so, not by their thread."""
    monkeypatch.setattr(outcomes_module.PendingOutcomes, "start", lambda self, delay: None)


# ---- away is not gone ------------------------------------------------------------------------------

CALLS: dict[str, Callable[[TaskTracker, str], object]] = {
    "create": lambda t, i: t.create("t", "r", **OWNER),
    "create_if_no_running": lambda t, i: t.create_if_no_running("t", "r", **OWNER),
    "start": lambda t, i: t.start(i),
    "update": lambda t, i: t.update(i, progress=1),
    "complete": lambda t, i: t.complete(i, 1),
    "fail": lambda t, i: t.fail(i, "x"),
    "cancel": lambda t, i: t.cancel(i),
    "mark_cancelled": lambda t, i: t.mark_cancelled(i),
    "is_cancellation_requested": lambda t, i: t.is_cancellation_requested(i),
    "get": lambda t, i: t.get(i),
    "get with owner": lambda t, i: t.get(i, **OWNER),
    "get of another": lambda t, i: t.get("other", **OWNER),
    "list_tasks": lambda t, i: t.list_tasks(),
    "list_tasks with owner": lambda t, i: t.list_tasks(**OWNER),
    "list_tasks of the account": lambda t, i: t.list_tasks(account_id="acme"),
    "has_running": lambda t, i: t.has_running("t", "r"),
    "has_running with owner": lambda t, i: t.has_running("t", "r", **OWNER),
    "stats": lambda t, i: t.stats("acme"),
    "delete": lambda t, i: t.delete(i),
    "delete_user_tasks": lambda t, i: t.delete_user_tasks(**OWNER),
    "purge": lambda t, i: t.purge(),
    "wait": lambda t, i: t.wait(i),
}


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("call", CALLS)
def test_a_store_that_is_away_is_never_no_task_and_never_an_empty_list(
    store: WatchedStore, clock: FakeClock, call: str, strict: bool
) -> None:
    """[D071]"""
    with TaskTracker(store, clock=clock, strict=strict) as tracker:
        task = tracker.create("t", "r", **OWNER)
        store.go_down(AWAY)
        with pytest.raises(StoreUnavailable, match="the disk does not answer") as raised:
            CALLS[call](tracker, task.task_id)
        assert raised.value is AWAY or raised.value.__cause__ is AWAY
        store.come_back()
        found = tracker.get(task.task_id)
        assert found is not None
        assert found.status == "pending", "nothing was concluded, nothing was half done"


def test_ended_tasks_are_shown_while_the_store_is_away(watched: TaskTracker, store: WatchedStore) -> None:
    task = watched.create("t", **OWNER)
    watched.complete(task.task_id, 1)
    store.go_down(AWAY)
    assert watched.get(task.task_id).result == 1  # type: ignore[union-attr]
    assert watched.wait(task.task_id).result == 1
    assert ids(watched.list_tasks()) == [task.task_id], "what the cache has is all there is to ask"
    assert watched.snapshot_counts_by_type() == {"t": {"completed": 1}}


def test_a_failed_write_leaves_the_cache_as_it_was(watched: TaskTracker, store: WatchedStore) -> None:
    """[D073] at this level: what is shown is what is stored."""
    task = watched.create("t", **OWNER)
    store.go_down(AWAY, "update")
    with pytest.raises(StoreUnavailable):
        watched.start(task.task_id)
    assert watched.get(task.task_id) == task
    assert watched.list_tasks() == [task]


# ---- damaged ---------------------------------------------------------------------------------------

BROKEN = CorruptRecord("/r/a.json is not a task record: it is empty; repair it by hand", path="/r/a.json")


def test_a_record_that_became_unreadable_does_not_fail_what_asks_for_many(
    watched: TaskTracker, store: WatchedStore, caplog: pytest.LogCaptureFixture
) -> None:
    """[D070] one damaged record among those in the cache; a single get still raises."""
    good, bad = watched.create("t", "good", **OWNER), watched.create("t", "bad", **OWNER)
    store.errors_of[bad.task_id] = BROKEN
    page = watched.list_tasks()
    assert ids(page) == [good.task_id]
    assert page.corrupt == (BROKEN,)
    assert "/r/a.json" in caplog.text
    assert watched.list_tasks(user_id="bob").corrupt == ()
    assert watched.has_running("t", "bad"), "it counts as it was last read"
    assert watched.has_running("t", "good")
    for call in (watched.get, watched.complete, watched.start):
        with pytest.raises(CorruptRecord):
            call(bad.task_id)
    store.come_back()
    assert len(watched.list_tasks()) == 2


ENDS: dict[str, Callable[[TaskTracker, str], object]] = {
    "complete": lambda t, i: t.complete(i, {"n": 1}),
    "fail": lambda t, i: t.fail(i, "broke"),
    "mark_cancelled": lambda t, i: t.mark_cancelled(i),
}


# ---- outcomes that the store did not take ----------------------------------------------------------


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("kind", [WatchedStore, LastWriteWinsStore])
@pytest.mark.parametrize("end", ENDS)
def test_an_outcome_waits_for_the_store_and_is_not_shown_before_it_has_landed(
    kind: type[WatchedStore], clock: FakeClock, end: str
) -> None:
    """[D129]"""
    store = kind()
    with TaskTracker(store, clock=clock) as tracker, TaskTracker(store, clock=clock) as other:
        task = tracker.create("t", **OWNER)
        tracker.start(task.task_id)
        store.go_down(AWAY)
        with pytest.raises(StoreUnavailable, match="is tried again in the background"):
            ENDS[end](tracker, task.task_id)
        with pytest.raises(StoreUnavailable):
            tracker.get(task.task_id)
        assert tracker.snapshot_counts_by_type() == {"t": {"running": 1}}
        assert tracker.access.outcomes.run_once() == 0.2
        clock.advance(30)
        store.come_back()
        assert tracker.get(task.task_id).status == "running", "not yet"  # type: ignore[union-attr]
        assert tracker.access.outcomes.run_once() is None
        found = tracker.get(task.task_id)
        assert found is not None
        assert found.status == {"complete": "completed", "fail": "failed"}.get(end, "cancelled")
        assert found.updated_at == START, "when it happened, not when it could be stored"
        assert other.get(task.task_id, **OWNER) == found


@pytest.mark.usefixtures("still")
def test_the_first_outcome_wins_also_while_it_waits(watched: TaskTracker, store: WatchedStore) -> None:
    """[D129] [D037] and the loser is told that it was not kept."""
    task = watched.create("t", **OWNER)
    store.go_down(AWAY)
    with pytest.raises(StoreUnavailable, match="is tried again in the background"):
        watched.complete(task.task_id, 1)
    with pytest.raises(
        StoreUnavailable, match=r"an earlier outcome of task .* will win; this one was not kept"
    ):
        watched.fail(task.task_id, "x")
    store.come_back()
    with pytest.raises(InvalidTransition, match=r"cannot fail task .*, which is completed"):
        watched.fail(task.task_id, "x")
    assert watched.get(task.task_id).result == 1  # type: ignore[union-attr]
    assert len(watched.access.outcomes) == 0


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("late", ["cancel", "start", "update"])
def test_whatever_comes_after_an_outcome_that_waits_comes_after_it(
    watched: TaskTracker, store: WatchedStore, late: str
) -> None:
    """[D129] [D038] a cancel of a task that is known to be completed must not undo that."""
    task = watched.create("t", **OWNER)
    store.go_down(AWAY)
    with pytest.raises(StoreUnavailable):
        watched.complete(task.task_id, 1)
    with pytest.raises(StoreUnavailable):
        getattr(watched, late)(task.task_id)
    store.come_back()
    with pytest.raises(InvalidTransition, match="which is completed"):
        getattr(watched, late)(task.task_id)
    assert watched.get(task.task_id).status == "completed"  # type: ignore[union-attr]


@pytest.mark.usefixtures("still")
def test_the_same_outcome_again_is_no_second_one(watched: TaskTracker, store: WatchedStore) -> None:
    task = watched.create("t", **OWNER)
    store.go_down(AWAY)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            watched.complete(task.task_id, 1)
    store.come_back()
    assert watched.complete(task.task_id, 1).result == 1  # type: ignore[union-attr]
    assert len(watched.access.outcomes) == 0


@pytest.mark.usefixtures("still")
def test_an_outcome_that_landed_although_the_reply_was_lost_is_no_trouble(
    watched: TaskTracker, store: WatchedStore
) -> None:
    task = watched.create("t", **OWNER)
    store.errors_after["update"] = AWAY
    with pytest.raises(StoreUnavailable):
        watched.complete(task.task_id, 1)
    store.come_back()
    assert watched.access.outcomes.run_once() is None
    assert watched.get(task.task_id).result == 1  # type: ignore[union-attr]


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("meanwhile", ["cancelled", "deleted"])
def test_an_outcome_that_another_process_has_overtaken_is_reported_and_let_go(
    store: WatchedStore, clock: FakeClock, meanwhile: str, caplog: pytest.LogCaptureFixture
) -> None:
    """[D129]"""
    with TaskTracker(store, clock=clock) as ours, TaskTracker(store, clock=clock) as theirs:
        task = ours.create("t", **OWNER)
        store.go_down(AWAY)
        with pytest.raises(StoreUnavailable):
            ours.complete(task.task_id, 1)
        store.come_back()
        theirs.cancel(task.task_id, **OWNER)
        if meanwhile == "deleted":
            theirs.delete(task.task_id, **OWNER)
        assert ours.access.outcomes.run_once() is None
        assert f"the outcome of task {task.task_id} came too late" in caplog.text
        found = ours.get(task.task_id)
        assert (found.status if found else None) == ("cancelled" if meanwhile == "cancelled" else None)


@pytest.mark.usefixtures("still")
def test_when_there_is_no_room_for_an_outcome_the_error_does_not_say_that_it_is_kept(
    watched: TaskTracker, store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes_module, "MAX_PENDING", 0)
    task = watched.create("t", **OWNER)
    store.go_down(AWAY)
    with pytest.raises(StoreUnavailable) as raised:
        watched.complete(task.task_id, 1)
    assert raised.value is AWAY


def test_the_background_thread_lands_it_after_the_outage(store: WatchedStore, clock: FakeClock) -> None:
    """[D129] with its thread, which the fake clock lets run as fast as it can."""
    down = threading.Event()
    tried = threading.Event()

    def fail_until_up() -> None:
        if not down.is_set():
            tried.set()
            raise AWAY

    with TaskTracker(store, clock=clock) as tracker:
        task = tracker.create("t", **OWNER)
        store._before["update"] = [fail_until_up] * 1_000_000
        with pytest.raises(StoreUnavailable):
            tracker.complete(task.task_id, 1)
        tried.clear()
        assert tried.wait(PATIENCE)
        down.set()
        assert tracker.wait(task.task_id).result == 1


@pytest.mark.usefixtures("still")
def test_close_tries_once_more(
    store: WatchedStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """[D129]"""
    tracker = TaskTracker(store, clock=clock)
    task = tracker.create("t", **OWNER)
    store.go_down(AWAY)
    with pytest.raises(StoreUnavailable):
        tracker.complete(task.task_id, 1)
    store.come_back()
    tracker.close()
    assert store.inner.get(task.key).record.result == 1  # type: ignore[union-attr]
    assert caplog.text == ""


@pytest.mark.usefixtures("still")
def test_close_says_what_is_lost(
    store: WatchedStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """[D129] the record stays as it was, for somebody to settle."""
    tracker = TaskTracker(store, clock=clock)
    tasks = [tracker.create("t", **OWNER) for _ in range(11)]
    store.go_down(AWAY, "update")
    for task in tasks:
        with pytest.raises(StoreUnavailable):
            tracker.complete(task.task_id, 1)
    tracker.close()
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage().startswith("11 outcomes could not be stored and are lost with this process")
    assert tasks[3].task_id in record.getMessage()
    assert record.getMessage().endswith(", ...")
    assert sorted(record.task_ids) == sorted(ids(tasks))  # type: ignore[attr-defined]
    assert store.inner.get(tasks[0].key).record.status == "pending"  # type: ignore[union-attr]
    assert store.closed == 1


def test_close_does_not_wait_for_ever_for_a_store_that_hangs(
    store: WatchedStore, clock: FakeClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D129] a thread that is stuck in the store is told to end and left; close does not get stuck after it."""
    stop = outcomes_module.PendingOutcomes.stop
    monkeypatch.setattr(outcomes_module.PendingOutcomes, "stop", lambda self: stop(self, 0.0))
    tracker = TaskTracker(store, clock=clock)
    task = tracker.create("t", **OWNER)
    store.errors["update"] = AWAY
    with pytest.raises(StoreUnavailable):
        tracker.complete(task.task_id, 1)
    gate = store.gate("update", task.task_id)
    gate.wait_entered()
    tracker.close()
    assert "1 outcomes could not be stored" in caplog.text
    assert not gate.passed.is_set()
    store.come_back()
    gate.open()


# ---- slow ------------------------------------------------------------------------------------------


def test_a_slow_write_of_one_task_holds_up_nobody_else(store: WatchedStore, clock: FakeClock) -> None:
    """[D123]"""
    with TaskTracker(store, clock=clock) as tracker:
        slow, other, ended = (tracker.create("t", str(n), **OWNER) for n in range(3))
        tracker.complete(ended.task_id)
        gate = store.gate("update", slow.task_id)
        with background(lambda: tracker.start(slow.task_id)) as answers:
            gate.wait_entered()
            assert tracker.get(ended.task_id) is not None
            assert tracker.get(other.task_id, **OWNER) is not None
            assert tracker.get(slow.task_id).status == "pending", "reading it is not held up either"  # type: ignore[union-attr]
            assert tracker.start(other.task_id) is not None
            assert tracker.complete(other.task_id, 1) is not None
            assert len(tracker.list_tasks(**OWNER)) == 3
            assert len(tracker.list_tasks()) == 3
            assert tracker.has_running("t", "0", **OWNER)
            assert tracker.create("t", **OWNER) is not None
            assert tracker.create_if_no_running("t", "0", **OWNER) is None
            gate.open()
        assert isinstance(answers[0], TaskRecord)


def test_the_table_of_locks_does_not_grow(store: WatchedStore, clock: FakeClock) -> None:
    """[D123]"""
    with TaskTracker(store, clock=clock) as tracker:
        slow = tracker.create("t", **OWNER)
        gate = store.gate("update", slow.task_id)
        with background(lambda: tracker.start(slow.task_id)):
            gate.wait_entered()
            for _ in range(50):
                tracker.complete(tracker.create("t", **OWNER).task_id)
            assert len(tracker.access._locks) == 1
            gate.open()
        with pytest.raises(TaskNotFound):
            tracker.start("unknown", **OWNER)
        assert len(tracker.access._locks) == 0
