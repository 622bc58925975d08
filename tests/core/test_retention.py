"""Terms, and the sweep that acts on them."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence

import pytest

from task_tracker import Retention, SettingsError, StoreUnavailable, TaskStatus, TaskTracker
from task_tracker.cache import TaskCache
from task_tracker.records import TaskKey
from task_tracker.retention import BATCH, RetentionSweep
from task_tracker.store import Purged, Stored
from tests.core.support import OWNER, START, FakeClock, WatchedStore, drive_to, join, record_of

DAY = 86_400.0


def sweep_of(store: WatchedStore, clock: FakeClock, retention: Retention | None = None) -> RetentionSweep:
    return RetentionSweep(store, TaskCache(100), retention or Retention(), clock)


def test_terms_are_a_day_and_a_week_for_failures_by_themselves() -> None:
    assert Retention().cutoffs(START) == {
        TaskStatus.COMPLETED: START - DAY,
        TaskStatus.CANCELLED: START - DAY,
        TaskStatus.FAILED: START - 7 * DAY,
    }


def test_none_keeps_for_ever_and_zero_is_a_term_too() -> None:
    assert Retention(None, None, 0).cutoffs(START) == {TaskStatus.FAILED: START}


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["completed_seconds", "cancelled_seconds", "failed_seconds"])
def test_senseless_terms_are_refused(name: str, seconds: float) -> None:
    with pytest.raises(SettingsError, match=rf"retention\.{name} is {seconds}; give seconds of 0 or more"):
        Retention(**{name: seconds})


@pytest.mark.parametrize("status", ["completed", "cancelled", "failed"])
@pytest.mark.parametrize(
    ("term", "age", "kept"), [(60.0, 59.9, True), (60.0, 60.0, False), (0.0, 0.0, False)]
)
def test_each_state_has_its_own_term(
    clock: FakeClock, status: str, term: float, age: float, kept: bool
) -> None:
    """[D134] failed and cancelled tasks have terms of their own; 0 drops at the next sweep."""
    with TaskTracker(clock=clock, retention=Retention(**{f"{status}_seconds": term})) as tracker:
        task = tracker.create("t", **OWNER)
        drive_to(tracker, task.task_id, status)
        clock.advance(age)
        assert tracker.purge() == (0 if kept else 1)
        assert (tracker.get(task.task_id, **OWNER) is not None) is kept


def test_none_keeps_everything_for_ever(clock: FakeClock) -> None:
    """[D134]"""
    with TaskTracker(clock=clock, retention=None) as tracker:
        task = tracker.create("t", **OWNER)
        tracker.fail(task.task_id, "x")
        clock.advance(1000 * 365 * DAY)
        assert tracker.purge() == 0
        assert tracker.get(task.task_id) is not None


@pytest.mark.parametrize("status", ["pending", "running", "cancelling"])
def test_active_tasks_never_expire(clock: FakeClock, status: str) -> None:
    """[D132] work under way is kept, however long it takes."""
    with TaskTracker(clock=clock, retention=Retention(0, 0, 0)) as tracker:
        task = tracker.create("t", **OWNER)
        drive_to(tracker, task.task_id, status)
        clock.advance(1000 * DAY)
        assert tracker.purge() == 0
        assert tracker.get(task.task_id) is not None


def test_a_term_counts_from_the_last_change(clock: FakeClock) -> None:
    with TaskTracker(clock=clock) as tracker:
        task = tracker.create("t", **OWNER)
        clock.advance(10 * DAY)
        tracker.complete(task.task_id)
        assert tracker.purge() == 0
        clock.advance(DAY)
        assert tracker.purge() == 1


# ---- the sweep -------------------------------------------------------------------------------------


class ScriptedStore(WatchedStore):
    """Answers purges from a list."""

    def __init__(self, *batches: Purged) -> None:
        super().__init__()
        self.batches = list(batches)
        self.limits: list[int] = []

    def purge(self, cutoffs: Mapping[TaskStatus, float], *, limit: int) -> Purged:
        self.limits.append(limit)
        return self._call("purge", None, lambda: self.batches.pop(0))


def keys(*names: str) -> Sequence[TaskKey]:
    return [TaskKey("acme", "alice", name) for name in names]


def test_batches_follow_until_there_is_no_more(clock: FakeClock) -> None:
    store = ScriptedStore(Purged(keys("a", "b"), 0, True), Purged(keys("c"), 0, False))
    assert sweep_of(store, clock).sweep() == 3
    assert store.limits == [BATCH, BATCH]


def test_what_was_deleted_leaves_the_cache(clock: FakeClock) -> None:
    cache = TaskCache(10)
    cache.put(Stored(record_of("completed", task_id="a"), 1), 0)
    cache.put(Stored(record_of("completed", task_id="b"), 2), 0)
    RetentionSweep(ScriptedStore(Purged(keys("a"), 0, False)), cache, Retention(), clock).sweep()
    assert [record.task_id for record in cache.records()] == ["b"]


def test_a_batch_of_nothing_but_failures_ends_the_sweep(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """[D130] a failed delete is counted, reported, and left to the next sweep."""
    store = ScriptedStore(Purged([], 3, True), Purged(keys("a", "b", "c"), 0, False))
    sweep = sweep_of(store, clock)
    assert sweep.sweep() == 0
    assert "3 expired tasks could not be deleted; the next sweep tries again" in caplog.text
    assert sweep.sweep() == 3


def test_failures_among_deletions_do_not_go_on_for_ever(clock: FakeClock) -> None:
    store = ScriptedStore(*[Purged(keys("a"), 499, True)] * 10)
    assert sweep_of(store, clock).sweep() == 3
    assert store.count_of("purge") == 3


def test_the_store_is_tidied_also_when_everything_is_kept(clock: FakeClock) -> None:
    """A purge without cut-offs deletes no record, and removes what crashes left."""
    store = ScriptedStore(Purged([], 0, False))
    assert sweep_of(store, clock, Retention(None, None, None)).sweep() == 0
    assert store.count_of("purge") == 1


def test_a_round_is_a_sweep_and_a_failed_one_is_repeated_at_the_usual_time(clock: FakeClock) -> None:
    store = ScriptedStore(Purged([], 0, False))
    sweep = sweep_of(store, clock)
    assert sweep.run_once() == sweep.on_error() == sweep.sweep_seconds == 300.0
    store.go_down(StoreUnavailable("away"))
    with pytest.raises(StoreUnavailable):
        sweep.run_once()


def test_a_sweep_by_hand_works_while_no_thread_runs(tracker: TaskTracker, clock: FakeClock) -> None:
    """`stop_cleanup_loop` is safe when nothing runs, and must not make `purge` a no-op that says nothing."""
    task = tracker.create("t", **OWNER)
    tracker.complete(task.task_id)
    clock.advance(2 * DAY)
    tracker.stop_cleanup_loop()
    assert tracker.purge() == 1


def test_stopping_the_thread_ends_its_sweep_after_the_batch(clock: FakeClock) -> None:
    store = ScriptedStore(*[Purged(keys("a"), 0, True)] * 2)
    gate = store.gate("purge", None)
    sweep = sweep_of(store, clock)
    sweep.start()
    gate.wait_entered()
    thread = next(thread for thread in threading.enumerate() if thread.name == "task_tracker retention sweep")
    sweep.stop(timeout_seconds=0.0)
    gate.open()
    join(thread)
    assert store.count_of("purge") == 1


def test_the_first_sweep_of_the_loop_comes_after_a_while(store: WatchedStore) -> None:
    """The real clock: nothing is due for minutes."""
    with TaskTracker(store) as tracker:
        tracker.start_cleanup_loop()
        tracker.start_cleanup_loop()
        tracker.stop_cleanup_loop()
        tracker.stop_cleanup_loop()
    assert store.count_of("purge") == 0


def test_a_closed_tracker_starts_no_thread(store: WatchedStore) -> None:
    """Nobody would stop it. What ends late can still be stored."""
    before = set(threading.enumerate())
    tracker = TaskTracker(store)
    task = tracker.create("t", **OWNER)
    tracker.close()
    with pytest.raises(RuntimeError, match="this tracker is closed; build a new one"):
        tracker.start_cleanup_loop()
    with pytest.raises(RuntimeError, match="this tracker is closed; build a new one"):
        tracker.start_reconciler()
    assert set(threading.enumerate()) <= before
    late = tracker.fail(task.task_id, "too late")
    assert late is not None
    assert late.status == "failed"


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
def test_a_rhythm_of_no_seconds_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"sweep_seconds is .*; give more than 0 seconds"):
        TaskTracker(sweep_seconds=seconds)
