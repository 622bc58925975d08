"""Deleting what has expired, and single tasks: faithful answers, bounded batches, nothing that comes back."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from stores import PersistentTaskStore
from task_tracker import Retention, TaskTracker
from task_tracker.errors import (
    CapabilityMissing,
    InvalidTransition,
    StoreUnavailable,
    TaskNotFound,
    VersionConflict,
)
from task_tracker.records import TaskStatus
from task_tracker.testing import MovingClient, PlainClient, RecordMaker, RemovingClient
from tests.files.support import (
    COMPLETED,
    FAILED,
    OWNER,
    RUNNING,
    StepClock,
    WatchedOps,
    fetch,
    has_active,
    ids,
    local_store,
    path_of,
    swap,
)

ALL = {COMPLETED: 9e9, FAILED: 9e9, TaskStatus.CANCELLED: 9e9}


# ---- purge ---------------------------------------------------------------------------------------------------


def test_purge_goes_in_batches_over_all_owners(root: Path, make: RecordMaker) -> None:
    """[D130] [D135] At most as many as asked for, and it says whether there is more."""
    store = local_store(root)
    for user in ("alice", "bob", "carol"):
        for record in make.many(4, status=COMPLETED, user_id=user):
            store.create(record)
        store.create(make(status=RUNNING, user_id=user))
    fresh = local_store(root)
    numbers = []
    while True:
        batch = fresh.purge(ALL, limit=5)
        numbers.append((len(batch.deleted), batch.more))
        if not batch.more:
            break
    assert numbers == [(5, True), (5, True), (2, False)]
    assert fresh.count("acme", None) == {"reindex": {"running": 3}}
    assert len(fresh._indexes._shelf._shelf) == 3, "what is gone is not kept"


def test_a_delete_that_fails_is_counted_and_tried_again(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """[D130] It does not stop the rest, and nothing reappears."""
    store = local_store(root, ops)
    for record in make.many(5, status=COMPLETED):
        store.create(record)
    ops.fail(errno.EIO, on=["replace"], path=".json", nth=2)
    batch = store.purge(ALL, limit=100)
    assert (len(batch.deleted), batch.failed, batch.more) == (4, 1, False)
    ops.heal()
    assert len(ids(store)) == 1
    batch = store.purge(ALL, limit=100)
    assert (len(batch.deleted), batch.failed) == (1, 0)
    assert ids(local_store(root)) == []


def test_what_was_pushed_out_of_the_cache_is_purged(root: Path) -> None:
    """[D130] [D131] Cached, evicted, or written by a process that is gone: all of it."""
    clock = StepClock()
    with TaskTracker(local_store(root, clock=clock), clock=clock) as first:
        for _ in range(10):
            first.complete(first.create("reindex", **OWNER).task_id)
    with TaskTracker(local_store(root, clock=clock), clock=clock, max_cached=5) as tracker:
        for _ in range(10):
            tracker.complete(tracker.create("reindex", **OWNER).task_id)
        clock.advance(86_400)
        assert tracker.purge() == 20
        assert tracker.count() == 0
        assert tracker.list_tasks(**OWNER) == []


def test_retention_that_keeps_everything(root: Path) -> None:
    """[D134]"""
    clock = StepClock()
    with TaskTracker(local_store(root, clock=clock), clock=clock, retention=None) as tracker:
        tracker.complete(tracker.create("reindex", **OWNER).task_id)
        clock.advance(1000 * 86_400)
        assert tracker.purge() == 0
        assert len(tracker.list_tasks(**OWNER)) == 1
    with TaskTracker(local_store(root, clock=clock), clock=clock, retention=Retention(0, 0, 0)) as tracker:
        assert tracker.purge() == 1


def test_a_record_that_was_used_again_meanwhile_is_not_purged(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """Expired when it was looked at, another life by the time it is locked."""
    store = local_store(root, ops)
    record = make("own", status=COMPLETED)
    store.create(record)
    store.purge({}, limit=10)
    assert not has_active(store)
    again = make("own", status=RUNNING)

    def interrupt(call: object) -> None:
        if getattr(call, "name", "") == "stat" and getattr(call, "path", "").endswith("format"):
            ops.heal()
            other = local_store(root)
            other.delete(record.key)
            other.create(again)

    real = store._marks.check_writable
    calls = 0

    def look() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:  # the first is purge's own
            ops.before = interrupt
        real()

    swap(store._marks, check_writable=look)
    assert store.purge(ALL, limit=10) == ([], 0, False)
    assert fetch(store, again.key) == again


def test_a_record_that_somebody_else_purged(root: Path, make: RecordMaker) -> None:
    """Two sweeps at once: each record is counted by one of them."""
    store, other = local_store(root), local_store(root)
    for record in make.many(3, status=COMPLETED):
        store.create(record)
    summaries = store._indexes.of("acme", "alice").summaries
    swap(store._indexes.of("acme", "alice"), summaries=lambda: (summaries(), other.purge(ALL, limit=2))[0])
    assert len(store.purge(ALL, limit=10).deleted) == 1


@pytest.mark.parametrize("bad", ["account", "user"])
def test_one_owner_that_cannot_be_read_does_not_keep_the_others_records(
    root: Path, ops: WatchedOps, make: RecordMaker, bad: str
) -> None:
    """[D130] A link, missing rights, a broken directory: counted, and on to the next."""
    store = local_store(root, ops)
    for account, user in (("acme", "alice"), ("bad", "first"), ("zeta", "zoe")):
        store.create(make(status=COMPLETED, account_id=account, user_id=user))
    place = f"{root}/local/bad/tasks" + ("/first" if bad == "user" else "")
    ops.fail(errno.EACCES, on=["open", "scandir"], path=place, forever=True)
    batch = store.purge(ALL, limit=10)
    assert sorted(key.account_id for key in batch.deleted) == ["acme", "zeta"]
    assert (batch.failed, batch.more) == (1, False)
    ops.heal()
    assert [key.account_id for key in store.purge(ALL, limit=10).deleted] == ["bad"]


def test_an_outage_ends_a_purge(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """[D071] Nothing could be looked at: that is not "nothing to delete"."""
    store = local_store(root, ops)
    store.create(make(status=COMPLETED))
    ops.fail(errno.EIO, forever=True)
    with pytest.raises(StoreUnavailable):
        store.purge(ALL, limit=10)


@pytest.mark.parametrize("call", ["ls", "read"])
def test_a_server_that_does_not_answer_is_not_asked_for_every_owner(make: RecordMaker, call: str) -> None:
    """Each question may take until a timeout."""
    client = RemovingClient()
    store = PersistentTaskStore(client)
    for number in range(5):
        store.create(make(status=COMPLETED, user_id=f"user-{number}"))
    store = PersistentTaskStore(client)
    store.purge({}, limit=1)
    asked = 0
    real = getattr(client, call)

    def answer(path: str, *rest: object) -> object:
        nonlocal asked
        if "/tasks" not in path:
            return real(path, *rest)
        asked += 1
        raise TimeoutError("no answer")

    setattr(client, call, answer)
    with pytest.raises(StoreUnavailable, match="no answer"):
        store.purge(ALL, limit=10)
    assert asked == 1


# ---- delete ----------------------------------------------------------------------------------------------------


def test_delete_answers_faithfully(root: Path, make: RecordMaker) -> None:
    """[D083] Unknown, twice, another owner's, active, changed."""
    store = local_store(root)
    record = make(status=COMPLETED)
    stored = store.create(record)
    active = store.create(make())
    for key in (make.key(), record.key._replace(user_id="bob"), record.key._replace(account_id="globex")):
        with pytest.raises(TaskNotFound):
            store.delete(key)
    with pytest.raises(InvalidTransition):
        store.delete(active.record.key)
    store.update(make.changed(record, message="changed"), expected=None)
    with pytest.raises(VersionConflict):
        store.delete(record.key, expected=stored.version)
    store.delete(record.key)
    with pytest.raises(TaskNotFound):
        store.delete(record.key)


def test_a_record_that_vanishes_under_the_hand_is_not_found(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """[D083] Somebody without locks was quicker."""
    store = local_store(root, ops)
    record = make(status=COMPLETED)
    stored = store.create(record)
    path = path_of(root, record.key)
    ops.before = lambda call: path.unlink() if call.name == "replace" and call.path == str(path) else None
    with pytest.raises(TaskNotFound):
        store.delete(record.key)
    ops.heal()
    with pytest.raises(TaskNotFound):
        store.update(record, expected=stored.version)


def test_a_client_compares_nothing(make: RecordMaker) -> None:
    """Nothing is passed off as atomic that is not."""
    store = PersistentTaskStore(MovingClient())
    stored = store.create(make(status=COMPLETED))
    for call in (
        lambda: store.update(stored.record, expected=stored.version),
        lambda: store.delete(stored.record.key, expected=stored.version),
    ):
        with pytest.raises(CapabilityMissing, match="this place has no compare-and-set; pass expected=None"):
            call()
    store.delete(stored.record.key)


def test_a_client_that_cannot_remove(make: RecordMaker) -> None:
    """Said at once, not after half of it; retention that keeps everything works."""
    store = PersistentTaskStore(PlainClient())
    store.create(make(status=COMPLETED))
    for call in (lambda: store.delete_owner("acme", "alice"), lambda: store.purge(ALL, limit=10)):
        with pytest.raises(CapabilityMissing, match=r"has no rm\(\)"):
            call()
    assert store.purge({}, limit=10) == ([], 0, False)
    assert len(ids(store)) == 1
