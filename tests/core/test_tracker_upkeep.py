"""Deleting, retention, limits and closing at the level of the tracker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stores import InMemoryTaskStore
from task_tracker import (
    AsyncTaskTracker,
    InvalidTransition,
    Retention,
    StorageConfig,
    StoreUnavailable,
    TaskNotFound,
    TaskTracker,
)
from task_tracker.store import Purged
from tests.core.support import (
    ACTIVE,
    OWNER,
    TERMINAL,
    FakeClock,
    Owner,
    WatchedStore,
    background,
    drive_to,
    ids,
    own_threads,
)

DAY = 86_400.0
BOB: Owner = {"account_id": "acme", "user_id": "bob"}


# ---- delete ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", TERMINAL)
@pytest.mark.parametrize("owner", [{}, OWNER])
def test_an_ended_task_can_be_deleted_once(tracker: TaskTracker, status: str, owner: Owner) -> None:
    """[D083] a faithful answer."""
    task = tracker.create("t", **OWNER)
    drive_to(tracker, task.task_id, status)
    assert tracker.delete(task.task_id, **owner) is True
    assert tracker.delete(task.task_id, **owner) is False
    assert tracker.delete(task.task_id, **OWNER) is False
    assert tracker.get(task.task_id, **OWNER) is None
    assert tracker.list_tasks() == tracker.list_tasks(**OWNER) == []
    assert tracker.count() == 0


@pytest.mark.parametrize("status", ACTIVE)
@pytest.mark.parametrize("strict", [True, False])
def test_an_active_task_cannot_be_deleted(clock: FakeClock, status: str, strict: bool) -> None:
    with TaskTracker(clock=clock, strict=strict) as tracker:
        task = tracker.create("t", **OWNER)
        drive_to(tracker, task.task_id, status)
        with pytest.raises(
            InvalidTransition, match=f"is {status}; cancel it or let it end before deleting it"
        ):
            tracker.delete(task.task_id)
        assert tracker.get(task.task_id) is not None


def test_a_task_that_another_process_deleted_leaves_the_cache_at_the_next_delete(
    store: WatchedStore, clock: FakeClock
) -> None:
    with TaskTracker(store, clock=clock) as ours, TaskTracker(store, clock=clock) as theirs:
        task = ours.create("t", **OWNER)
        ours.complete(task.task_id)
        assert theirs.delete(task.task_id, **OWNER)
        assert ours.delete(task.task_id) is False
        assert ours.count() == 0


# ---- delete_user_tasks -----------------------------------------------------------------------------


def test_a_user_with_active_tasks_is_refused_by_name_and_nothing_is_deleted(tracker: TaskTracker) -> None:
    """[D159]"""
    tasks = [tracker.create("t", **OWNER).task_id for _ in range(6)]
    for task_id, status in zip(tasks, (*ACTIVE, *TERMINAL), strict=True):
        drive_to(tracker, task_id, status)
    with pytest.raises(InvalidTransition, match="cancel them or let them end") as refused:
        tracker.delete_user_tasks(**OWNER)
    assert sorted(refused.value.task_ids) == sorted(tasks[:3])
    assert len(tracker.list_tasks(**OWNER)) == 6


def test_a_user_goes_with_all_tasks_and_nobody_elses(tracker: TaskTracker) -> None:
    """[D159]"""
    for owner in (OWNER, BOB, {"account_id": "other", "user_id": "alice"}):
        for _ in range(3):
            tracker.complete(tracker.create("t", **owner).task_id)
    assert tracker.delete_user_tasks(**OWNER) == 3
    assert tracker.delete_user_tasks(**OWNER) == 0
    assert tracker.list_tasks(**OWNER) == tracker.list_tasks(user_id="alice", account_id="acme") == []
    assert {(task.account_id, task.user_id) for task in tracker.list_tasks()} == {
        ("acme", "bob"),
        ("other", "alice"),
    }
    assert tracker.create("t", **OWNER) is not None, "the user may come back"


def test_a_user_that_could_not_be_deleted_half_way_is_deleted_by_calling_again(
    watched: TaskTracker, store: WatchedStore
) -> None:
    """[D159]"""
    task = watched.create("t", **OWNER)
    watched.complete(task.task_id)
    store.errors_after["delete_owner"] = StoreUnavailable("the reply was lost")
    with pytest.raises(StoreUnavailable):
        watched.delete_user_tasks(**OWNER)
    store.come_back()
    assert watched.delete_user_tasks(**OWNER) == 0
    assert watched.get(task.task_id) is None
    assert watched.count() == 0


def test_a_reader_that_was_slower_than_the_deletion_does_not_bring_the_user_back(
    store: WatchedStore, clock: FakeClock
) -> None:
    """[D159] [D130]"""
    with TaskTracker(store, clock=clock) as ours, TaskTracker(store, clock=clock) as theirs:
        task = ours.create("t", **OWNER)
        ours.complete(task.task_id)
        held = threading.Event()
        go_on = threading.Event()

        class SlowReply(WatchedStore):
            def _call(self, operation, subject, call):
                answer = super()._call(operation, subject, call)
                if operation == "get":
                    held.set()
                    assert go_on.wait(30)
                return answer

        with TaskTracker(SlowReply(store.inner), clock=clock) as slow:
            with background(lambda: slow.get(task.task_id, **OWNER)) as answers:
                assert held.wait(30)
                assert slow.delete_user_tasks(**OWNER) == 1
                go_on.set()
            assert answers[0] is not None, "read before it was deleted"
            assert slow.count() == 0
            assert slow.get(task.task_id, **OWNER) is None
        assert theirs.get(task.task_id, **OWNER) is None


# ---- retention -------------------------------------------------------------------------------------


def test_purging_reaches_what_is_cached_what_is_not_and_what_had_to_make_room(
    store: WatchedStore, clock: FakeClock
) -> None:
    """[D130]"""
    with TaskTracker(store, clock=clock) as earlier:
        gone = [earlier.create("t", **OWNER).task_id for _ in range(3)]
        for task_id in gone:
            earlier.complete(task_id)
    with TaskTracker(store, clock=clock, max_cached=2) as tracker:
        mine = [tracker.create("t", **BOB).task_id for _ in range(4)]
        for task_id in mine:
            tracker.complete(task_id)
        assert tracker.count() == 2
        clock.advance(DAY)
        kept = tracker.create("t", **BOB)
        assert tracker.purge() == 7
        assert ids(tracker.list_tasks(account_id="acme")) == [kept.task_id]
        assert tracker.count() == 1
        for task_id, owner in [*((one, OWNER) for one in gone), *((one, BOB) for one in mine)]:
            assert tracker.get(task_id, **owner) is None


class FailsOnce(WatchedStore):
    """The first batch of a purge deletes nothing and says so."""

    failed = False

    def purge(self, cutoffs, *, limit):
        if not self.failed:
            self.failed = True
            return Purged([], 1, False)
        return super().purge(cutoffs, limit=limit)


def test_a_failed_delete_is_tried_again_by_the_next_sweep(clock: FakeClock) -> None:
    """[D130]"""
    with TaskTracker(FailsOnce(), clock=clock) as tracker:
        task = tracker.create("t", **OWNER)
        tracker.complete(task.task_id)
        clock.advance(DAY)
        assert tracker.purge() == 0
        assert tracker.purge() == 1
        assert tracker.get(task.task_id, **OWNER) is None


def test_what_another_process_purged_leaves_the_cache_with_our_own_sweep(
    store: WatchedStore, clock: FakeClock
) -> None:
    """[D130]"""
    with TaskTracker(store, clock=clock) as ours, TaskTracker(store, clock=clock) as theirs:
        task = ours.create("t", **OWNER)
        ours.complete(task.task_id)
        clock.advance(DAY)
        assert theirs.purge() == 1
        assert ours.purge() == 0
        assert ours.get(task.task_id, **OWNER) is None
        assert ours.count() == 0


def test_nothing_reappears_after_a_restart(store: WatchedStore, clock: FakeClock) -> None:
    """[D130]"""
    with TaskTracker(store, clock=clock) as tracker:
        task = tracker.create("t", **OWNER)
        tracker.complete(task.task_id)
        clock.advance(DAY)
        tracker.purge()
    with TaskTracker(store, clock=clock) as tracker:
        assert tracker.list_tasks(**OWNER) == []


@pytest.mark.parametrize("per_hour", [60, pytest.param(417, marks=pytest.mark.slow)])
def test_by_default_any_number_of_tasks_is_bounded(clock: FakeClock, per_hour: int) -> None:
    """[D135] ten days, up to 100,000 tasks, default terms; [D132] nobody polls them."""
    store = InMemoryTaskStore(max_records=200_000)
    with TaskTracker(store, clock=clock) as tracker:
        most = 0
        for hour in range(240):
            for number in range(per_hour):
                task = tracker.create("t", **OWNER)
                if number % 10:
                    tracker.complete(task.task_id)
                elif number % 20:
                    tracker.fail(task.task_id, "x")
                else:
                    tracker.cancel(task.task_id)
            clock.advance(3600)
            if hour % 24 == 23:
                tracker.purge()
                most = max(most, sum(sum(by.values()) for by in tracker.stats("acme").values()))
        assert most < per_hour * (24 + 24 + 7 * 24 // 10)
        assert tracker.count() <= 10_000
        counts = tracker.stats("acme")["t"]
        assert counts["failed"] == pytest.approx(7 * 24 * per_hour // 20, rel=0.1)


# ---- limits ----------------------------------------------------------------------------------------


def test_a_store_for_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="max_records must be at least 1, not 0"):
        InMemoryTaskStore(max_records=0)


def test_active_tasks_are_never_lost_to_a_limit(clock: FakeClock) -> None:
    """[D131] ten active ones where five have room, and many that ended."""
    store = InMemoryTaskStore(max_records=5)
    with TaskTracker(store, clock=clock, max_cached=5) as tracker:
        active = [tracker.create("t", **OWNER).task_id for _ in range(10)]
        for task_id in active:
            tracker.start(task_id)
        for _ in range(200):
            clock.advance(1)
            tracker.complete(tracker.create("t", **OWNER).task_id)
        assert tracker.count() == 5
        assert {task.task_id for task in tracker.list_tasks(status="running", **OWNER)} == set(active)
        assert len(tracker.list_tasks(limit=None, **OWNER)) <= 11
        for task_id in active[:5]:
            assert tracker.complete(task_id, **OWNER) is not None, "one that made room is read again"


def test_a_task_that_made_room_is_continued_without_an_owner(store: WatchedStore, clock: FakeClock) -> None:
    """[D131]"""
    with TaskTracker(store, clock=clock, max_cached=3) as tracker:
        first = tracker.create("t", **OWNER)
        for _ in range(3):
            clock.advance(1)
            tracker.create("t", **OWNER)
        assert tracker.access.cache.get(first.key) is None
        assert tracker.complete(first.task_id, 1).result == 1  # type: ignore[union-attr]


def test_ended_tasks_that_nobody_asks_for_do_not_fill_the_memory(clock: FakeClock) -> None:
    """[D132]"""
    store = InMemoryTaskStore(max_records=100)
    with TaskTracker(store, clock=clock, max_cached=50) as tracker:
        for _ in range(1000):
            tracker.complete(tracker.create("t", **OWNER).task_id)
        assert tracker.count() <= 50
        assert len(tracker.list_tasks(limit=None, **OWNER)) <= 101


# ---- closing ---------------------------------------------------------------------------------------


def test_opening_and_closing_leaves_no_thread(store: WatchedStore) -> None:
    """[D096]"""
    for _ in range(100):
        tracker = AsyncTaskTracker(TaskTracker(store))
        tracker.start_cleanup_loop()
        assert own_threads()
        tracker.close()
        tracker.close()
        assert own_threads() == set()
    assert store.closed == 200


def test_leaving_the_block_closes(store: WatchedStore) -> None:
    with TaskTracker(store) as tracker:
        tracker.start_cleanup_loop()
    assert own_threads() == set()
    assert store.closed == 1
    with pytest.raises(ZeroDivisionError), TaskTracker(store):
        raise ZeroDivisionError
    assert store.closed == 2


# ---- restart ---------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "persistent"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[list[TaskTracker]]:
    """The tracker before a restart and the one after it."""
    trackers: list[TaskTracker] = []
    if request.param == "memory":
        store = WatchedStore()  # outlives the trackers, as a database does
        trackers += [TaskTracker(store, clock=clock), TaskTracker(store, clock=clock)]
    else:
        config = StorageConfig(
            task_tracker={"backend": "persistent", "root": str(tmp_path), "durability": "none"}
        )
        trackers += [config.build_task_tracker(cleanup=False), config.build_task_tracker(cleanup=False)]
    yield trackers
    for tracker in trackers:
        tracker.close()


def test_answers_are_the_same_before_and_after_a_restart(storage: list[TaskTracker]) -> None:
    """[D005] a thousand tasks; as the owner, and as one who looks at the account."""
    before, after = storage
    made = [before.create("t", str(number % 7), **OWNER).task_id for number in range(1000)]
    for number, task_id in enumerate(made[:-1]):
        before.complete(task_id, number)

    def answers(tracker: TaskTracker) -> list[object]:
        return [
            [tracker.get(task_id, **OWNER) for task_id in made],
            list(tracker.list_tasks(limit=None, **OWNER)),
            list(tracker.list_tasks(limit=None, account_id="acme")),
            list(tracker.list_tasks("t", "completed", "3", 20, **OWNER)),
            tracker.has_running("t", str(999 % 7), **OWNER),
            tracker.has_running("t", "x", **OWNER),
            tracker.stats("acme"),
            tracker.list_tasks(**BOB),
        ]

    expected = answers(before)
    before.close()
    assert answers(after) == expected
    assert ids(after.list_tasks(limit=None, account_id="acme")) == sorted(made, reverse=True)
    assert after.complete(made[-1], 999, **OWNER).result == 999  # type: ignore[union-attr]


def test_a_purged_task_is_not_found_after_a_restart_either(storage: list[TaskTracker]) -> None:
    """[D139]"""
    before, after = storage
    task = before.create("t", **OWNER)
    before.complete(task.task_id)
    assert before.delete(task.task_id)
    assert after.get(task.task_id, **OWNER) is None
    with pytest.raises(TaskNotFound):
        after.wait(task.task_id, **OWNER)


def test_a_zero_term_survives_reading_while_it_is_cleaned_up(store: WatchedStore, clock: FakeClock) -> None:
    """[D134]"""
    with TaskTracker(store, clock=clock, retention=Retention(0, 0, 0)) as tracker:
        task = tracker.create("t", **OWNER)
        tracker.complete(task.task_id)
        store.before("purge", lambda: tracker.get(task.task_id, **OWNER))
        assert tracker.purge() == 1
        assert tracker.get(task.task_id, **OWNER) is None
