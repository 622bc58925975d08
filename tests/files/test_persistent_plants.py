"""Files that somebody else put there: damaged, foreign, newer, older, mixed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from task_tracker import TaskTracker
from task_tracker.codec import encode_record
from task_tracker.errors import CorruptRecord, InvalidTransition, TaskExists
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Query
from task_tracker.testing import RecordMaker
from tests.files.support import (
    COMPLETED,
    OWNER,
    RUNNING,
    StepClock,
    fetch,
    has_active,
    ids,
    local_store,
    path_of,
    plant,
)

KEY = TaskKey("acme", "alice", "task-1")


def document(**fields: Any) -> dict[str, Any]:
    ten = {
        "task_id": "task-1",
        "task_type": "reindex",
        "status": "running",
        "created_at": 1_750_000_000.5,
        "updated_at": 1_750_000_001,
        "resource_id": "docs",
        "account_id": "acme",
        "user_id": "alice",
        "result": None,
        "error": None,
    }
    return {name: value for name, value in (ten | fields).items() if value is not ...}


DAMAGED = {
    "empty": b"",
    "half": b'{"task_id": "task-1", "status": "run',
    "binary": bytes(range(256)),
    "encrypted": b"\x93NUMPY\x00\x01gAAAAABk",
    "zeros": b"\0" * 4096,
    "list": b"[]",
    "null": b"null",
    "text": b'"task-1"',
    "byte order mark": b"\xef\xbb\xbf" + json.dumps(document()).encode(),
    "utf-16": json.dumps(document()).encode("utf-16"),
    "deep": b'{"task_id": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "two documents": json.dumps(document()).encode() * 2,
    "no id": json.dumps(document(task_id=...)).encode(),
    "no status": json.dumps(document(status=...)).encode(),
    "no type": json.dumps(document(task_type=...)).encode(),
    "no time": json.dumps(document(created_at=...)).encode(),
    "status is a number": json.dumps(document(status=7)).encode(),
    "status is null": json.dumps(document(status=None)).encode(),
    "time is a list": json.dumps(document(created_at=[])).encode(),
    "time is true": json.dumps(document(created_at=True)).encode(),
    "time is no time": json.dumps(document(created_at="yesterday")).encode(),
    "time is infinite": b'{"task_id": "task-1", "task_type": "t", "status": "running", "created_at": 1e999}',
    "resource is a dict": json.dumps(document(resource_id={})).encode(),
    "another task's": json.dumps(document(task_id="task-2")).encode(),
    "another user's": json.dumps(document(user_id="bob")).encode(),
    "another account's": json.dumps(document(account_id="globex")).encode(),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_record_is_one_clear_error(root: Path, make: RecordMaker, damage: str) -> None:
    """[D069] [D087] get names the path, nothing overwrites it, and everything else goes on."""
    path = path_of(root, KEY)
    plant(path, DAMAGED[damage])
    store = local_store(root)
    store.create(make("neighbour", resource_id="other"))

    with pytest.raises(CorruptRecord) as caught:
        store.get(KEY)
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)
    with pytest.raises(CorruptRecord):
        store.update(make("task-1"), expected=None)
    with pytest.raises(CorruptRecord):
        store.delete(KEY)
    with pytest.raises(TaskExists):
        store.create(make("task-1"))

    page = store.list(Query("acme", "alice"))
    assert [stored.record.task_id for stored in page.items] == ["neighbour"]
    assert [error.path for error in page.corrupt] == [str(path)]
    assert not has_active(store), "it was never read, so nobody could ever end it"
    assert store.count("acme", "alice") == {"reindex": {"pending": 1}}
    assert path.read_bytes() == DAMAGED[damage]


def test_a_directory_among_the_records(root: Path, make: RecordMaker) -> None:
    """[D069]"""
    path_of(root, KEY).mkdir(parents=True)
    store = local_store(root)
    store.create(make("neighbour"))
    page = store.list(Query("acme", "alice"))
    assert [stored.record.task_id for stored in page.items] == ["neighbour"]
    assert [error.path for error in page.corrupt] == [str(path_of(root, KEY))]


@pytest.mark.parametrize("own_ids", [True, False])
def test_one_bad_record_among_a_hundred(root: Path, make: RecordMaker, own_ids: bool) -> None:
    """[D070] list gives 99 and reports one; dedupe has a stated answer; purge goes on; get still raises."""
    clock = StepClock()
    with TaskTracker(local_store(root, clock=clock), clock=clock) as tracker:
        records = [
            tracker.create("reindex", str(number), task_id=f"own-{number}" if own_ids else None, **OWNER)
            for number in range(100)
        ]
        for record in records[:50]:
            tracker.complete(record.task_id)
        bad = path_of(root, records[70].key)
        plant(bad, b"{")
        with TaskTracker(local_store(root, clock=clock), clock=clock) as fresh:
            page = fresh.list_tasks(limit=None, **OWNER)
            assert len(page) == 99
            assert [error.path for error in page.corrupt] == [str(bad)]
            assert len(fresh.list_tasks(limit=10, **OWNER)) == 10
            assert fresh.has_running("reindex", "71", **OWNER)
            assert not fresh.has_running("reindex", "70", **OWNER)
            assert fresh.create_if_no_running("reindex", "70", **OWNER) is not None
            with pytest.raises(CorruptRecord):
                fresh.get(records[70].task_id, **OWNER)
            with pytest.raises(CorruptRecord):
                fresh.complete(records[70].task_id, None, **OWNER)
            clock.advance(10 * 86_400)
            assert fresh.purge() == 50
        assert bad.read_bytes() == b"{"


def test_a_record_that_is_mended_is_listed_again(root: Path, make: RecordMaker) -> None:
    """[D069]"""
    store = local_store(root)
    plant(path_of(root, KEY), b"{")
    assert ids(store) == []
    plant(path_of(root, KEY), json.dumps(document()).encode())
    assert ids(store) == ["task-1"]
    assert store.list(Query("acme")).corrupt == []
    assert has_active(store)


def test_an_active_record_that_is_damaged_keeps_counting_as_active(root: Path, make: RecordMaker) -> None:
    """[D070] It is still somebody's; a second one of its kind would run beside it."""
    store = local_store(root)
    own, generated = make("task-1"), make(resource_id="generated")
    store.create(own)
    store.create(generated)
    assert has_active(store)
    for record in (own, generated):
        plant(path_of(root, record.key), b"{")
        assert has_active(store, record.resource_id)
        assert store.create_if_no_active(make(resource_id=record.resource_id)) is None
    assert ids(store) == []
    assert len(store.list(Query("acme", "alice")).corrupt) == 2
    path_of(root, own.key).unlink()
    assert not has_active(store)


# ---- of other versions -------------------------------------------------------------------------------------


def test_a_record_of_the_first_generation_is_read_and_carried_on(root: Path) -> None:
    """Files are interchangeable: ten keys in, ten keys out, until an extension is set."""
    plant(path_of(root, KEY), json.dumps(document(status="pending")).encode())
    with TaskTracker(local_store(root)) as tracker:
        ended = tracker.complete("task-1", {"pages": 3}, **OWNER)
        assert ended is not None
        written = json.loads(path_of(root, KEY).read_bytes())
        assert list(written) == list(document())
        assert (written["status"], written["result"]) == ("completed", {"pages": 3})


@pytest.mark.parametrize("name", ["updated_at", "resource_id", "account_id", "user_id", "result", "error"])
def test_missing_optional_fields_get_defaults(root: Path, name: str) -> None:
    """[D144] Of an older version."""
    plant(path_of(root, KEY), json.dumps(document(**{name: ...})).encode())
    record = fetch(local_store(root), KEY)
    assert record.key == KEY
    assert record.updated_at == (1_750_000_001 if name != "updated_at" else record.created_at)


def test_what_a_newer_version_wrote_survives(root: Path) -> None:
    """[D144] Unknown fields and a schema version come back from a round trip."""
    strange = document(schema_version=99, lane={"name": "fast", "weight": 2**53 + 1}, meta={"a": 1})
    plant(path_of(root, KEY), json.dumps(strange).encode())
    with TaskTracker(local_store(root)) as tracker:
        tracker.update("task-1", message="still here", **OWNER)
    written = json.loads(path_of(root, KEY).read_bytes())
    assert (written["schema_version"], written["lane"], written["message"]) == (
        99,
        strange["lane"],
        "still here",
    )


def test_an_unknown_state_is_shown_and_not_acted_on(root: Path) -> None:
    """[D144] It blocks its like, until it says that it has ended; nobody changes, purges or deletes it."""
    plant(path_of(root, KEY), json.dumps(document(status="paused")).encode())
    clock = StepClock()
    with TaskTracker(local_store(root, clock=clock), clock=clock) as tracker:
        task = tracker.get("task-1", **OWNER)
        assert task is not None
        assert task.to_dict()["status"] == "paused"
        assert [found.status.value for found in tracker.list_tasks(**OWNER)] == ["paused"]
        assert tracker.has_running("reindex", "docs", **OWNER)
        for act in (tracker.start, tracker.complete, tracker.cancel, tracker.delete):
            arguments = ["task-1"] if act is not tracker.complete else ["task-1", None]
            with pytest.raises(InvalidTransition):
                act(*arguments, **OWNER)
        with pytest.raises(InvalidTransition) as caught:
            tracker.delete_user_tasks(**OWNER)
        assert caught.value.task_ids == ["task-1"]
        clock.advance(30 * 86_400)
        assert tracker.purge() == 0
        assert tracker.stats("acme") == {"reindex": {"paused": 1}}
    plant(path_of(root, KEY), json.dumps(document(status="paused", completed_at=1_750_000_002)).encode())
    assert not has_active(local_store(root))


# ---- times -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["Asia/Kolkata", "America/New_York", "UTC"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


TIMES = {
    1_767_225_600: 1_767_225_600.0,
    1_767_225_600.25: 1_767_225_600.25,
    "2026-01-01T00:00:00Z": 1_767_225_600.0,
    "2026-01-01T00:00:00": 1_767_225_600.0,  # naive: UTC
    "2026-01-01T05:30:00+05:30": 1_767_225_600.0,
    "2026-01-01 00:00:00.250000": 1_767_225_600.25,
    "2026-03-08T02:30:00": 1_772_937_000.0,  # an hour that New York does not have
    "2026-11-01T01:30:00": 1_793_496_600.0,  # one that it has twice
    "2026-01-01": 1_767_225_600.0,
    -1.5: -1.5,
}


@pytest.mark.parametrize("written", TIMES)
@pytest.mark.usefixtures("zone")
def test_times_in_any_form_are_utc(root: Path, written: float | str) -> None:
    """[D146] Naive, aware, Z and epoch; in any zone and at a change of the clocks."""
    planted = document(created_at=written, updated_at=written, started_at=written, status="completed")
    plant(path_of(root, KEY), json.dumps(planted).encode())
    record = fetch(local_store(root), KEY)
    assert (record.created_at, record.updated_at, record.started_at) == (TIMES[written],) * 3


@pytest.mark.usefixtures("zone")
def test_purge_counts_from_mixed_times(root: Path) -> None:
    """[D146] Sweeps never raise, and delete what is older than a day, however that was written."""
    clock = StepClock(1_767_225_600.0)
    with TaskTracker(local_store(root, clock=clock), clock=clock) as tracker:
        tracker.create("first", account_id="acme", user_id="bob")  # notes when the root was first opened
        clock.advance(3 * 86_400)
        for number, (written, seconds) in enumerate(TIMES.items()):
            key = TaskKey("acme", "alice", f"task-{number}")
            fields = document(task_id=key.task_id, status="completed", created_at=written, updated_at=written)
            plant(path_of(root, key), json.dumps(fields).encode())
            del seconds
        expired = sum(seconds <= clock.now() - 86_400 for seconds in TIMES.values())
        assert tracker.purge() == expired
        assert len(tracker.list_tasks(limit=None, **OWNER)) == len(TIMES) - expired


def test_a_listing_with_times_that_no_id_can_carry(root: Path, make: RecordMaker) -> None:
    """[D146] Nanoseconds, milliseconds and the far past by other writers: pages stay complete and in order."""
    store = local_store(root)
    strange = [1.7e18, 1.7e12, -1e12, 0.0, 1e300]
    expected: list[TaskRecord] = []
    for created_at in strange:
        record = make(created_at=created_at)
        plant(path_of(root, record.key), encode_record(record))
        expected.append(record)
    expected += [make(status=status) for status in (RUNNING, COMPLETED, TaskStatus.FAILED)]
    for record in expected[len(strange) :]:
        store.create(record)
    expected.sort(key=lambda record: (record.created_at, record.task_id), reverse=True)
    for limit in (1, 2, 3, 8, None):
        found: list[TaskRecord] = []
        page = store.list(Query("acme", "alice", limit=limit))
        while True:
            found += [stored.record for stored in page.items]
            if page.next_cursor is None:
                break
            page = store.list(Query("acme", "alice", limit=limit, before=page.next_cursor))
        assert found == expected
