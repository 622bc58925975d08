"""What listings cost, and that they are right whatever comes and goes meanwhile."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest

from stores.files.indexes import Indexes
from stores.files.layout import Layout
from stores.files.persistent import PersistentTaskStore
from stores.files.shelf import RecordShelf
from stores.files.versions import FileVersion
from task_tracker.codec import encode_record
from task_tracker.errors import CorruptRecord, StoreUnavailable
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import Query, Stored
from task_tracker.testing import RecordMaker
from tests.files.support import (
    COMPLETED,
    FAILED,
    OPERATIONS,
    RUNNING,
    Call,
    WatchedOps,
    age,
    has_active,
    ids,
    local_files,
    local_store,
    path_of,
    plant,
    swap,
)


def fill(root: Path, records: list[TaskRecord]) -> None:
    """Put records there, and let them grow old enough for their time stamps to be proof."""
    for record in records:
        plant(path_of(root, record.key), encode_record(record))
    settle(root)


def settle(root: Path) -> None:
    for path in root.rglob("*"):
        age(path, 10)


def reads(ops: WatchedOps) -> int:
    return ops.count("read", path=".json")


# ---- what it costs -----------------------------------------------------------------------------------------


def test_an_unchanged_directory_is_not_even_listed(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """[D136] Three calls to look at the directory, whatever is asked and however much is in it."""
    fill(root, [*make.many(300, status=COMPLETED), *(make(f"own-{number}") for number in range(20))])
    store = local_store(root, ops)
    query = Query("acme", "alice", status="failed")
    store.list(query)
    assert has_active(store)
    for ask in (
        lambda: store.list(query),
        lambda: store.list(Query("acme", "alice", limit=20)),
        lambda: store.count("acme", "alice"),
        lambda: has_active(store),
        lambda: store.create_if_no_active(make()),
    ):
        ask()
        ops.forget()
        ask()
        assert ops.names() == ["open", "fstat", "close"]


def test_a_page_of_a_cold_directory_reads_about_a_page(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """[D136] Names of generated ids sort by creation: the history behind the page stays unread."""
    records = make.many(600, status=COMPLETED)
    fill(root, records)
    store = local_store(root, ops)
    page = store.list(Query("acme", "alice", limit=10))
    assert [stored.record for stored in page.items] == records[:-11:-1]
    assert reads(ops) <= 128
    page = store.list(Query("acme", "alice", limit=10, before=page.next_cursor))
    assert [stored.record for stored in page.items] == records[-11:-21:-1]
    assert reads(ops) <= 128


def test_ended_records_are_read_once(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """[D136] One change by another process: of 300 ended and 20 active ones, only what can have changed is read."""
    ended, active = make.many(300, status=COMPLETED), make.many(20)
    fill(root, [*ended, *active])
    store, other = local_store(root, ops), local_store(root)
    assert has_active(store)
    assert len(ids(store)) == 320
    assert reads(ops) == 320
    other.update(make.changed(active[3], status=RUNNING), expected=None)
    ops.forget()
    assert has_active(store)
    assert reads(ops) == 1
    assert ops.count("stat") == 20
    new = make()
    other.create(new)
    ops.forget()
    assert has_active(store)
    assert reads(ops) <= 2
    assert ids(store)[0] == new.task_id


def test_results_stay_on_disk(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """[D136] The index holds no results: a big history is listed without being kept in memory."""
    big = b'"' + b"x" * 200_000 + b'"'
    fill(root, make.many(150, status=COMPLETED, result_json=big))
    store = local_store(root, ops)
    assert len(ids(store)) == 150
    assert store._indexes._shelf._bytes <= 16 << 20
    assert len(ids(store, status="failed")) == 0


def test_a_miss_reads_no_records(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """[D139] It is confirmed by the names alone, listed or remembered; another record's trouble is not its."""
    fill(root, [make(f"own-{number}") for number in range(50)])
    store = local_store(root, ops)
    ops.fail(errno.EIO, on=["read"], forever=True)
    for _ in range(2):
        with pytest.raises(KeyError, match="no task unheard-of"):
            store.get(make.key())
    assert ops.count("listdir") == 2
    ops.heal()
    assert len(ids(store)) == 50
    ops.fail(errno.EIO, on=["read", "listdir"], forever=True)
    with pytest.raises(KeyError, match="no task unheard-of"):
        store.get(make.key())


# ---- trouble -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_ids", [True, False])
def test_a_record_that_could_not_be_read_is_not_forgotten(
    root: Path, ops: WatchedOps, make: RecordMaker, own_ids: bool
) -> None:
    """[D071] Whichever read fails first, once: the next question is answered rightly, nothing stays missing."""
    records = [make(f"own-{number}" if own_ids else None, resource_id=str(number)) for number in range(5)]
    fill(root, records)
    nth = 0
    while True:
        nth += 1
        store = local_store(root, ops)
        ops.fail(errno.EIO, nth=nth, on=[name for name in OPERATIONS if name != "close"])
        with contextlib.suppress(StoreUnavailable):
            has_active(store, "3")
        ops.heal()
        assert [has_active(store, str(number)) for number in range(5)] == [True] * 5
        assert ids(store) == [record.task_id for record in records[::-1]]
        if not ops.struck:
            break
    assert nth > 15


@pytest.mark.parametrize("own_ids", [True, False])
@pytest.mark.parametrize("ask", [has_active, ids], ids=["has_active", "list"])
def test_a_listed_record_that_cannot_be_opened_is_not_left_out(
    root: Path, ops: WatchedOps, make: RecordMaker, own_ids: bool, ask: object
) -> None:
    """[D104] A network disk that is late: unavailable for now, rather than less than there is."""
    record = make("own" if own_ids else None)
    fill(root, [record])
    store = local_store(root, ops)
    ops.fail(errno.ENOENT, on=["open"], path=".json", forever=True)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="is listed but cannot be opened yet"):
            ask(store)  # type: ignore[operator]
    with pytest.raises(StoreUnavailable, match="is listed but cannot be opened yet"):
        store.get(record.key)
    ops.heal()
    assert has_active(store)
    assert ids(store) == [record.task_id]


@pytest.mark.parametrize("own_ids", [True, False])
def test_a_record_deleted_while_it_is_read_is_gone(
    root: Path, ops: WatchedOps, make: RecordMaker, own_ids: bool
) -> None:
    """Listed, and gone at the opening: not an error."""
    records = [make(f"own-{number}" if own_ids else None) for number in range(3)]
    fill(root, records)
    store = local_store(root, ops)
    victim = path_of(root, records[1].key)
    ops.before = lambda call: victim.unlink(missing_ok=True) if call.path == str(victim) else None
    assert ids(store) == [records[2].task_id, records[0].task_id]
    assert has_active(store)


def test_a_record_deleted_after_the_index_was_built(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """The page is made of what is there: the shelf is empty, the record is read again, and it is gone."""
    records = make.many(3)
    fill(root, records)
    store = local_store(root, ops)
    assert has_active(store)
    store._indexes._shelf.drop(records[1].key)
    victim = path_of(root, records[1].key)
    ops.before = lambda call: victim.unlink(missing_ok=True) if call.path == str(victim) else None
    assert ids(store) == [records[2].task_id, records[0].task_id]


def test_a_record_that_leaves_the_filter_while_it_is_read(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """[D137] It was active when the index was built and has ended when the page is made: it is not on it."""
    records = make.many(3, status=RUNNING)
    fill(root, records)
    store = local_store(root, ops)
    assert has_active(store)
    store._indexes._shelf.drop(records[1].key)
    victim = path_of(root, records[1].key)

    def end(call: object) -> None:
        if getattr(call, "path", "") == str(victim):
            ops.heal()
            plant(victim, encode_record(make.changed(records[1], status=FAILED)))

    ops.before = end
    assert ids(store, status="running") == [records[2].task_id, records[0].task_id]
    assert ids(store, status="failed") == [records[1].task_id]


def test_records_that_change_all_the_time_end_no_listing(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """A bound on how often a page is begun again; less than there is is not given."""
    record = make(status=RUNNING)
    fill(root, [record])
    store = local_store(root, ops)
    swap(store._indexes._shelf, put=lambda *_: None)
    assert has_active(store)
    path = path_of(root, record.key)
    changes = 0

    def change(call: Call) -> None:
        nonlocal changes
        if call.name == "open" and call.path == str(path):
            changes += 1
            plant(path, encode_record(make.changed(record, message=f"change {changes}")))

    ops.before = change
    with pytest.raises(StoreUnavailable, match="changes faster than it can be listed"):
        ids(store)
    assert changes == 20
    ops.heal()
    assert ids(store) == [record.task_id]


def test_history_is_read_in_batches(root: Path, make: RecordMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others get their turn in between; what goes away meanwhile is not read."""
    monkeypatch.setattr("stores.files.index.LARGEST_BATCH", 10)
    records = make.many(35, status=COMPLETED)
    fill(root, records)
    store = local_store(root)
    index = store._indexes.of("acme", "alice")
    assert ids(store, limit=1) == [records[-1].task_id]
    path_of(root, records[3].key).unlink()
    (root / "local/acme/tasks/alice/%zz.json").write_bytes(b"{}")
    assert len(index.summaries()) == 34
    index.forget("%zz.json")
    assert len(ids(store)) == 34


def test_a_whole_directory_that_goes_away(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    records = [make("own"), *make.many(3, status=COMPLETED)]
    fill(root, records)
    store = local_store(root, ops)
    assert len(ids(store)) == 4
    for path in [*path_of(root, records[0].key).parent.iterdir()]:
        path.unlink()
    path_of(root, records[0].key).parent.rmdir()
    assert ids(store) == []
    assert not has_active(store)
    fill(root, records[:1])
    assert ids(store) == ["own"]


# ---- bounds ------------------------------------------------------------------------------------------------


def stored_of(make: RecordMaker) -> Stored:
    return Stored(make(), FileVersion(b"", None, settled=False))


def test_the_shelf_is_bounded_by_number_and_bytes(make: RecordMaker) -> None:
    """[D096] [D136] The ones not asked for longest make room."""
    shelf = RecordShelf(max_records=3, max_bytes=100)
    records = [stored_of(make) for _ in range(6)]
    for stored in records[:4]:
        shelf.put(stored.record.key, stored, 10)
    assert [shelf.get(stored.record.key) is stored for stored in records[:4]] == [False, True, True, True]
    shelf.get(records[1].record.key)
    shelf.put(records[4].record.key, records[4], 85)
    assert [shelf.get(stored.record.key) is stored for stored in records[:5]] == [
        False,
        True,
        False,
        False,
        True,
    ]
    shelf.put(records[5].record.key, records[5], 101)
    assert [shelf.get(stored.record.key) for stored in records] == [None] * 6
    shelf.put(records[5].record.key, records[5], 100)
    shelf.put(records[5].record.key, records[5], 90)
    assert shelf.get(records[5].record.key) is records[5]
    shelf.drop(records[5].record.key)
    shelf.drop(TaskKey("a", "b", "unheard-of"))
    assert shelf._bytes == 0


def test_indexes_are_bounded_and_rebuilt(
    root: Path, make: RecordMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D096] The owners not asked for longest are given up, the one asked for never."""
    monkeypatch.setattr("stores.files.indexes._CALLS_BETWEEN_COUNTS", 1)
    store = local_store(root)
    for number in range(10):
        for record in make.many(5, user_id=f"user-{number}"):
            store.create(record)
    indexes = Indexes(store._files, Layout("/local"), store._load, max_names=12)
    for number in range(10):
        assert indexes.of("acme", f"user-{number}").has_active("reindex", "docs")
    indexes.of("acme", "user-9")
    assert list(indexes._indexes) == [("acme", "user-8"), ("acme", "user-9")]
    indexes.forget("acme", "user-0", "x.json")  # of an owner that was given up
    assert indexes.of("acme", "user-0").has_active("reindex", "docs")


def test_owners_are_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[D096] Asking for owners that never were costs no memory in the end."""
    monkeypatch.setattr("stores.files.indexes.MAX_OWNERS", 10)
    store = local_store(root)
    for number in range(100):
        assert not store.has_active("acme", f"user-{number}", "reindex", None)
    assert len(store._indexes._indexes) == 10


def test_accounts_and_users_that_are_no_ids_are_passed_over(root: Path, make: RecordMaker) -> None:
    store = local_store(root)
    store.create(make())
    for stray in (
        "local/.hidden/tasks/bob",
        "local/acme/tasks/%zz",
        "local/acme/tasks/.cache",
        "local/empty",
    ):
        (root / stray).mkdir(parents=True)
    (root / "local/acme/tasks/notes.txt").write_text("")
    assert store._indexes.users("acme") == ["alice"]
    assert list(store._indexes.owners([])) == [("acme", "alice")]
    assert PersistentTaskStore(local_root_of(store)).count("acme", None) == {"reindex": {"pending": 1}}


def local_root_of(store: PersistentTaskStore) -> str:
    return store._files.where("", "")


def test_a_corrupt_record_that_was_listed_is_reported_by_the_page_that_meets_it(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """[D070] Damaged between the index and the page."""
    records = make.many(2, status=COMPLETED)
    fill(root, records)
    store = local_store(root, ops)
    assert len(ids(store)) == 2
    store._indexes._shelf.drop(records[0].key)
    plant(path_of(root, records[0].key), b"{")
    page = store.list(Query("acme", "alice"))
    assert [stored.record for stored in page.items] == [records[1]]
    (error,) = page.corrupt
    assert isinstance(error, CorruptRecord)
    assert local_files(root).exists("/local/acme/tasks/alice", f"{records[0].task_id}.json")
