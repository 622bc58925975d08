"""list_tasks, has_running and the counts at the level of the tracker."""

from __future__ import annotations

from typing import Any

import pytest

from stores import InMemoryTaskStore
from task_tracker import CorruptRecord, TaskPage, TaskRecord, TaskTracker
from task_tracker.store import Page, Query
from tests.core.support import OWNER, STATUSES, FakeClock, Owner, WatchedStore, drive_to, ids, record_of

BOB: Owner = {"account_id": "acme", "user_id": "bob"}


def several(tracker: TaskTracker, clock: FakeClock, number: int, **owner: str) -> list[str]:
    """Create some tasks, a second apart; newest first."""
    made = []
    for _ in range(number):
        clock.advance(1)
        made.append(tracker.create("t", **(owner or OWNER)).task_id)
    return made[::-1]


@pytest.mark.parametrize("owner", [OWNER, {"account_id": "acme"}, {}, {"user_id": "alice"}])
def test_lists_are_newest_first_and_cut_into_pages(
    tracker: TaskTracker, clock: FakeClock, owner: Owner
) -> None:
    made = several(tracker, clock, 7)
    assert ids(tracker.list_tasks(**owner)) == made
    found: list[str] = []
    cursor = None
    for size in (3, 3, 1):
        page = tracker.list_tasks(limit=3, before=cursor, **owner)
        assert isinstance(page, TaskPage)
        assert len(page) == size
        found += ids(page)
        cursor = page.next_cursor
    assert found == made
    assert cursor is None


def test_a_page_goes_on_where_it_ended_whatever_was_created_since(
    tracker: TaskTracker, clock: FakeClock
) -> None:
    made = several(tracker, clock, 4)
    first = tracker.list_tasks(limit=2, **OWNER)
    several(tracker, clock, 3)
    assert ids(tracker.list_tasks(limit=2, before=first.next_cursor, **OWNER)) == made[2:]


def test_fifty_is_the_page_unless_told_otherwise(tracker: TaskTracker, clock: FakeClock) -> None:
    several(tracker, clock, 60)
    for owner in (OWNER, {}):
        assert len(tracker.list_tasks(**owner)) == 50
        assert len(tracker.list_tasks(limit=None, **owner)) == 60
        assert len(tracker.list_tasks(limit=300, **owner)) == 60
        assert len(tracker.list_tasks(None, None, None, 5, **owner)) == 5


@pytest.mark.parametrize("owner", [OWNER, {"account_id": "acme"}, {}])
def test_filters_apply_before_the_page_is_cut(tracker: TaskTracker, clock: FakeClock, owner: Owner) -> None:
    """[D137] one old failure behind 200 newer completions."""
    (failed,) = several(tracker, clock, 1)
    tracker.fail(failed, "x")
    for task_id in several(tracker, clock, 200):
        tracker.complete(task_id)
    page = tracker.list_tasks(status="failed", **owner)
    assert ids(page) == [failed]
    assert page.next_cursor is None


@pytest.mark.parametrize("owner", [OWNER, {"account_id": "acme"}, {}])
def test_all_filters_hold_together(tracker: TaskTracker, owner: Owner) -> None:
    for task_type in ("t1", "t2"):
        for resource_id in (None, "", "r"):
            for status in STATUSES:
                drive_to(tracker, tracker.create(task_type, resource_id, **OWNER).task_id, status)
    for status in STATUSES:
        assert len(tracker.list_tasks(status=status, **owner)) == 6
        assert len(tracker.list_tasks(status=str(status), **owner)) == 6
        (found,) = tracker.list_tasks("t1", status, "r", **owner)
        assert (found.task_type, found.status, found.resource_id) == ("t1", status, "r")
    assert len(tracker.list_tasks("t2", **owner)) == 18
    assert len(tracker.list_tasks(resource_id="", **owner)) == 12
    assert tracker.list_tasks("t3", **owner) == []


@pytest.mark.parametrize("status", ["", "Running", "paused", "RUNNING"])
def test_a_state_that_cannot_be_meant_is_refused(tracker: TaskTracker, status: str) -> None:
    for owner in (OWNER, {}):
        with pytest.raises(ValueError, match=r"unknown status .*; known are pending, running, "):
            tracker.list_tasks(status=status, **owner)


@pytest.mark.parametrize("limit", [0, -1, True, 2.5, "5"])
def test_a_limit_that_cannot_be_meant_is_refused(tracker: TaskTracker, limit: Any) -> None:
    """[D156]"""
    for owner in (OWNER, {}):
        with pytest.raises(
            ValueError, match="limit must be a whole number of 1 or more, or None for all; not"
        ):
            tracker.list_tasks(limit=limit, **owner)


@pytest.mark.parametrize("before", ["", "abc", "task-1", "AAAA"])
def test_a_cursor_of_nobody_is_refused(tracker: TaskTracker, before: str) -> None:
    for owner in (OWNER, {}):
        with pytest.raises(ValueError, match="is not a cursor; pass the next_cursor of an earlier page"):
            tracker.list_tasks(before=before, **owner)


def test_a_list_without_an_account_shows_the_cache_of_all_owners(
    store: WatchedStore, clock: FakeClock
) -> None:
    with TaskTracker(store, clock=clock) as ours, TaskTracker(store, clock=clock) as theirs:
        mine = several(ours, clock, 2)
        bobs = several(ours, clock, 1, **BOB)
        assert ids(ours.list_tasks()) == [*bobs, *mine]
        assert ids(ours.list_tasks(user_id="bob")) == bobs
        assert theirs.list_tasks() == [], "nothing in its cache"
        assert ids(theirs.list_tasks(**OWNER)) == mine
        assert ids(theirs.list_tasks()) == mine, "now there is"


def test_what_was_listed_can_be_continued_without_an_owner(store: WatchedStore, clock: FakeClock) -> None:
    with TaskTracker(store, clock=clock) as ours, TaskTracker(store, clock=clock) as theirs:
        (task_id,) = several(ours, clock, 1)
        theirs.list_tasks(account_id="acme")
        assert theirs.start(task_id) is not None


def test_has_running_without_an_account_looks_at_the_cache_of_all_owners(tracker: TaskTracker) -> None:
    task = tracker.create("t", "r", **BOB)
    assert tracker.has_running("t", "r")
    assert tracker.has_running("t", "r", user_id="bob")
    assert not tracker.has_running("t", "r", user_id="alice")
    assert not tracker.has_running("t", None)
    assert not tracker.has_running("t2", "r")
    tracker.cancel(task.task_id)
    assert not tracker.has_running("t", "r")


def test_a_state_of_a_newer_version_counts_as_running_and_is_listed(
    store: WatchedStore, clock: FakeClock
) -> None:
    """[D144] shown, not acted on."""
    stranger = store.create(record_of("paused", task_id="newer", resource_id="r")).record
    with TaskTracker(store, clock=clock) as tracker:
        assert tracker.list_tasks(**OWNER) == [stranger]
        assert tracker.list_tasks() == [stranger]
        assert tracker.has_running("session_commit", "r")
        assert tracker.has_running("session_commit", "r", **OWNER)
        assert tracker.create_if_no_running("session_commit", "r", **OWNER) is None
        assert tracker.stats(**OWNER) == {"session_commit": {"paused": 1}}
        for call in (tracker.start, tracker.complete, tracker.cancel, tracker.delete):
            with pytest.raises(ValueError, match=r"upgrade before acting on it|cancel it or let it end"):
                call("newer")
        with pytest.raises(ValueError, match="1 tasks that have not ended"):
            tracker.delete_user_tasks(**OWNER)
        assert tracker.purge() == 0


class DamagedStore(InMemoryTaskStore):
    """Lists report a record that cannot be read."""

    def list(self, query: Query) -> Page:
        broken = CorruptRecord("/r/a.json is not a task record", path="/r/a.json")
        return super().list(query)._replace(corrupt=[broken])


def test_what_a_listing_skipped_is_reported_and_logged(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """[D070]"""
    with TaskTracker(DamagedStore(), clock=clock) as tracker:
        (task_id,) = several(tracker, clock, 1)
        page = tracker.list_tasks(**OWNER)
    assert ids(page) == [task_id]
    assert [corrupt.path for corrupt in page.corrupt] == ["/r/a.json"]
    assert "a listing skipped a record: /r/a.json is not a task record" in caplog.text


def test_counts(tracker: TaskTracker) -> None:
    done = tracker.create("t1", **OWNER)
    tracker.create("t1", **BOB)
    tracker.create("t2", **OWNER)
    tracker.complete(done.task_id)
    expected: dict[str, Any] = {"t1": {"completed": 1, "pending": 1}, "t2": {"pending": 1}}
    assert tracker.count() == 3
    assert tracker.snapshot_counts_by_type() == tracker.stats("acme") == expected
    assert tracker.stats(**BOB) == {"t1": {"pending": 1}}


def test_records_are_handed_out_as_they_are_and_not_copied(tracker: TaskTracker) -> None:
    task = tracker.create("t", **OWNER)
    tracker.complete(task.task_id, list(range(1000)))
    found = [tracker.get(task.task_id), tracker.list_tasks()[0], tracker.list_tasks(**OWNER)[0]]
    assert all(isinstance(one, TaskRecord) and one is found[0] for one in found)
