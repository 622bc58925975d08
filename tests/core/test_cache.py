"""What a process remembers, and what it must not believe."""

from __future__ import annotations

import pytest

from task_tracker import TaskKey, TaskTracker
from task_tracker.cache import TaskCache
from task_tracker.store import Cursor, Query, Stored
from tests.core.support import OWNER, START, FakeClock, drive_to, ids, in_threads, record_of

ALL = Query("", limit=None)


def stored_of(
    task_id: str = "task-1", status: str = "pending", at: float = START, **fields: object
) -> Stored:
    record = record_of(status, task_id=task_id, created_at=at, updated_at=at, **fields)
    return Stored(record, object())


def filled(*stored: Stored, limit: int = 100) -> TaskCache:
    cache = TaskCache(limit)
    for one in stored:
        cache.put(one, cache.mark())
    return cache


def key_of(task_id: str, user_id: str = "alice", account_id: str = "acme") -> TaskKey:
    return TaskKey(account_id, user_id, task_id)


# ---- remembering -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["pending", "completed", "paused"])
def test_what_was_put_is_found(status: str) -> None:
    one = stored_of(status=status)
    cache = filled(one)
    assert cache.get(key_of("task-1")) is one
    assert cache.keys_of("task-1") == (key_of("task-1"),)
    assert len(cache) == 1
    assert cache.get(key_of("task-2")) is None
    assert cache.keys_of("task-2") == ()


def test_an_end_takes_the_place_of_the_active_record() -> None:
    running, ended = stored_of(status="running"), stored_of(status="completed")
    cache = filled(running, ended)
    assert cache.get(key_of("task-1")) is ended
    assert len(cache) == 1
    assert cache.active() == []


def test_a_slow_reader_does_not_put_an_active_state_over_the_end_of_the_same_life() -> None:
    ended = stored_of(status="completed")
    cache = filled(ended, stored_of(status="running"))
    assert cache.get(key_of("task-1")) is ended
    assert cache.active() == []


def test_a_task_created_anew_under_the_same_id_takes_the_place_of_the_old_one() -> None:
    new = stored_of(at=START + 1)
    cache = filled(stored_of(status="completed"), new)
    assert cache.get(key_of("task-1")) is new
    assert len(cache) == 1


def test_only_what_has_not_ended_may_be_stale() -> None:
    cache = filled(stored_of("a"), stored_of("b", "failed"), stored_of("c", "paused"))
    assert [key.task_id for key, _ in cache.active()] == ["a", "c"]


def test_two_owners_may_share_an_id() -> None:
    cache = filled(stored_of(), stored_of(user_id="bob"))
    assert cache.keys_of("task-1") == (key_of("task-1"), key_of("task-1", "bob"))
    cache.drop(key_of("task-1"))
    assert cache.keys_of("task-1") == (key_of("task-1", "bob"),)
    cache.drop(key_of("task-1", "bob"))
    assert cache.keys_of("task-1") == ()


def test_counts_are_by_type_and_state() -> None:
    cache = filled(
        stored_of("a", "running"), stored_of("b", "running"), stored_of("c", "failed", task_type="t")
    )
    assert cache.counts() == {"session_commit": {"running": 2}, "t": {"failed": 1}}


# ---- forgetting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["running", "completed"])
def test_what_was_dropped_while_it_was_read_is_not_remembered(status: str) -> None:
    cache = TaskCache(10)
    mark = cache.mark()
    one = stored_of(status=status)
    cache.drop(key_of("task-1"))
    cache.put(one, mark)
    assert cache.get(key_of("task-1")) is None
    cache.put(one, cache.mark())
    assert cache.get(key_of("task-1")) is one, "read after the drop"


def test_a_dropped_key_is_remembered_as_dropped_as_long_as_others_are() -> None:
    """The second drop of `a` counts, though its first one is long ago."""
    cache = TaskCache(2)
    cache.drop(key_of("a"))
    cache.drop(key_of("b"))
    mark = cache.mark()
    cache.drop(key_of("a"))
    cache.drop(key_of("c"))
    cache.put(stored_of("a"), mark)
    assert cache.get(key_of("a")) is None


def test_an_end_read_before_many_deletions_is_not_believed() -> None:
    """More was dropped meanwhile than is remembered by name: when in doubt the store is asked."""
    cache = TaskCache(2)
    mark = cache.mark()
    for name in "abcd":
        cache.drop(key_of(name))
    cache.put(stored_of("a", "completed"), mark)
    assert cache.get(key_of("a")) is None
    cache.put(stored_of("e"), mark)
    assert cache.get(key_of("e")) is not None, "an active record is asked about anyway"


def test_drop_owner_forgets_that_owner_only() -> None:
    cache = filled(stored_of("a"), stored_of("b", "failed"), stored_of("a", user_id="bob"))
    cache.drop_owner("acme", "alice")
    assert [(record.user_id, record.task_id) for record in cache.records()] == [("bob", "a")]
    assert cache.keys_of("b") == ()


def test_an_end_that_was_being_read_while_its_owner_was_dropped_is_not_remembered() -> None:
    """[D159] deleted users do not come back from a slow reader."""
    cache = TaskCache(10)
    mark = cache.mark()
    cache.drop_owner("acme", "alice")
    cache.put(stored_of(status="completed"), mark)
    assert len(cache) == 0


def test_drop_expired_forgets_what_retention_may_delete() -> None:
    old, young = stored_of("a", "completed"), stored_of("b", "completed", START + 10)
    cache = filled(old, young, stored_of("c", "failed"), stored_of("d", "running"))
    cache.drop_expired({old.record.status: START + 5})
    assert sorted(record.task_id for record in cache.records()) == ["b", "c", "d"]
    assert cache.keys_of("a") == ()


# ---- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, -1])
def test_a_cache_for_nothing_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="max_cached must be at least 1"):
        TaskTracker(max_cached=limit)


def test_ended_records_make_room_first_the_oldest_ones_before_others() -> None:
    """[D131]"""
    cache = filled(
        stored_of("old", "running", START),
        *[stored_of(f"e{number}", "completed", START + number) for number in range(1, 5)],
        limit=4,
    )
    assert sorted(record.task_id for record in cache.records()) == ["e2", "e3", "e4", "old"]
    assert cache.keys_of("e1") == ()


def test_active_records_make_room_last_and_stay_known_by_name() -> None:
    """[D131] an active task is never lost: its owner stays known, the store has the record."""
    cache = filled(*[stored_of(f"a{number}", at=START + number) for number in range(5)], limit=3)
    assert len(cache) == 3
    assert cache.get(key_of("a0")) is None
    assert cache.keys_of("a0") == (key_of("a0"),)
    again = stored_of("a0", "completed", START)
    cache.put(again, cache.mark())
    assert cache.get(key_of("a0")) is None, "room was made by the oldest that has ended"
    assert cache.keys_of("a0") == ()


def test_names_of_active_records_that_made_room_are_bounded_too() -> None:
    cache = filled(*[stored_of(f"a{number}", at=START + number) for number in range(10)], limit=3)
    assert len(cache) == 3
    known = [name for name in (f"a{number}" for number in range(10)) if cache.keys_of(name)]
    assert known == [f"a{number}" for number in range(4, 10)], "three held, three known by name"


def test_making_room_is_rare_in_a_large_cache() -> None:
    """A hundredth more than needed goes at once, of active records too: else each put searches them all."""
    cache = filled(*[stored_of(f"a{number}", at=START + number) for number in range(1001)], limit=1000)
    assert len(cache) == 990
    cache = filled(
        *[stored_of(f"e{number}", "completed", START + number) for number in range(1001)], limit=1000
    )
    assert len(cache) == 990


# ---- listing ---------------------------------------------------------------------------------------


def test_newest_pages_with_a_cursor_over_all_owners() -> None:
    cache = filled(
        *[
            stored_of(f"t{number}", at=START + number, user_id="alice" if number % 2 else "bob")
            for number in range(5)
        ]
    )
    first = cache.newest(Query("", limit=3))
    assert ids(first) == ["t4", "t3", "t2"]
    assert first.next_cursor is not None
    rest = cache.newest(Query("", limit=3, before=Cursor.decode(first.next_cursor)))
    assert ids(rest) == ["t1", "t0"]
    assert rest.next_cursor is None
    assert ids(cache.newest(Query("", user_id="bob", limit=None))) == ["t4", "t2", "t0"]


def test_newest_filters_before_it_cuts() -> None:
    """[D137]"""
    cache = filled(
        *[stored_of(f"c{number}", "completed", START + number) for number in range(1, 60)],
        stored_of("f", "failed"),
    )
    assert ids(cache.newest(Query("", status="failed"))) == ["f"]


def test_newest_of_an_empty_cache_is_an_empty_last_page() -> None:
    page = TaskCache(1).newest(ALL)
    assert list(page) == []
    assert page.next_cursor is None


# ---- from many threads -----------------------------------------------------------------------------


def test_readers_and_writers_at_once_keep_the_cache_whole() -> None:
    cache = TaskCache(50)
    names = [f"t{number}" for number in range(100)]

    def write(status: str) -> None:
        for round_number in range(5):
            for number, name in enumerate(names):
                cache.put(stored_of(name, status, START + number), cache.mark())
                if number % 10 == round_number:
                    cache.drop(key_of(name))

    def read() -> None:
        for _ in range(50):
            cache.newest(ALL)
            cache.counts()
            cache.active()
            for name in names:
                found = cache.get(key_of(name))
                assert found is None or found.record.task_id == name

    calls = [lambda: write("running"), lambda: write("completed"), lambda: write("pending"), read, read]
    assert in_threads(*calls) == [None] * 5
    held = [record.key for record in cache.records()]
    assert len(held) == len(set(held)) == len(cache) <= 50
    assert all(cache.keys_of(key.task_id) == (key,) for key in held)


def test_many_distinct_ids_leave_the_cache_bounded() -> None:
    """[D096]"""
    cache = TaskCache(1000)
    for number in range(100_000):
        status = "completed" if number % 10 else "running"
        cache.put(stored_of(str(number), status, START + number), cache.mark())
        if number % 1000 == 0:
            assert len(cache) <= 1000
    assert len(cache) <= 1000
    assert len(cache._owners) <= 2000
    assert len(cache._forgotten) <= 1000


@pytest.mark.slow
def test_a_million_distinct_ids_leave_the_tracker_bounded(clock: FakeClock) -> None:
    """[D096]"""
    with TaskTracker(clock=clock) as tracker:
        cache = tracker.access.cache
        for number in range(1_000_000):
            task = tracker.create("t", **OWNER)
            if number % 100:
                drive_to(tracker, task.task_id, "completed")
            if number % 10_000 == 0:
                assert tracker.count() <= 10_000
        assert tracker.count() <= 10_000
        assert len(cache._owners) <= 20_000
