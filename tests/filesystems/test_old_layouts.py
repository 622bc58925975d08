"""Records where earlier trackers kept them: found, imported, never lost; and what else `examine` finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stores import PersistentTaskStore
from stores.files.old_layouts import ASIDE, OLD_LAYOUT
from stores.files.temporaries import FOREIGN_SECONDS
from task_tracker.codec import encode_record
from task_tracker.errors import CapabilityMissing
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.store import Finding
from task_tracker.testing import MovingClient, PlainClient, RecordMaker
from tests.files.support import age, fetch, has_active, ids, local_store, path_of, plant
from tests.filesystems.odd import odd
from tests.filesystems.support import opened
from tests.objects.server import S3Server
from tests.objects.support import open_on

FIRST = "local/acme/_system/tasks/alice"
SECOND = "local/acme/tasks"


def found(store: PersistentTaskStore, *, fix: bool = False) -> list[tuple[str, str, bool]]:
    return [
        (finding.kind, finding.where.rpartition("/local/")[2], finding.fixed)
        for finding in store.examine(fix=fix)
    ]


def old_bytes(record: TaskRecord) -> bytes:
    """As the first generation wrote it: indented, in its own order."""
    return json.dumps(json.loads(encode_record(record)), indent=2).encode()


@pytest.mark.parametrize("kind", ["directory", "fsspec"])
@pytest.mark.parametrize("place", [FIRST, SECOND])
def test_old_records_are_found_and_imported(root: Path, make: RecordMaker, place: str, kind: str) -> None:
    record = make()
    old = root / place / f"{record.task_id}.json"
    plant(old, old_bytes(record))
    store = local_store(root) if kind == "directory" else opened(odd(root))
    assert ids(store) == []
    where = str(old.relative_to(root / "local"))
    assert found(store) == [(OLD_LAYOUT, where, False)]
    assert ids(store) == [], "looking changes nothing"
    assert found(store, fix=True) == [(OLD_LAYOUT, where, True)]
    assert fetch(store, record.key) == record
    assert has_active(store)
    assert path_of(root, record.key).read_bytes() == old_bytes(record)
    assert not old.exists()
    assert old.with_name(old.name + ASIDE).read_bytes() == old_bytes(record)
    assert found(store) == []


def test_the_message_says_where_it_goes(root: Path, make: RecordMaker) -> None:
    record = make()
    plant(root / FIRST / f"{record.task_id}.json", old_bytes(record))
    (finding,) = local_store(root).examine()
    assert str(path_of(root, record.key)) in finding.message


def test_a_record_of_today_is_never_overwritten(root: Path, make: RecordMaker) -> None:
    """It is used; the old one stays for a person to compare."""
    store = local_store(root)
    record = make()
    now = make.changed(record, status=TaskStatus.COMPLETED)
    store.create(now)
    old = root / FIRST / f"{record.task_id}.json"
    plant(old, old_bytes(record))
    (finding,) = store.examine(fix=True)
    assert (finding.kind, finding.fixed) == (OLD_LAYOUT, False)
    assert "is there and differs" in finding.message
    assert fetch(store, record.key) == now
    assert old.read_bytes() == old_bytes(record)


def test_an_import_that_was_interrupted_is_finished(root: Path, make: RecordMaker) -> None:
    """Copied already, not put aside yet; or both, and the original not removed yet."""
    store = local_store(root)
    record = make()
    data = old_bytes(record)
    old = root / SECOND / f"{record.task_id}.json"
    for left in ([path_of(root, record.key)], [path_of(root, record.key), old.with_name(old.name + ASIDE)]):
        for path in (*left, old):
            plant(path, data)
        assert [finding.fixed for finding in store.examine(fix=True)] == [True]
        assert not old.exists()
    assert fetch(store, record.key) == record


def test_another_one_was_put_aside_before(root: Path, make: RecordMaker) -> None:
    store = local_store(root)
    record = make()
    old = root / SECOND / f"{record.task_id}.json"
    plant(old, old_bytes(record))
    plant(old.with_name(old.name + ASIDE), b"another")
    (finding,) = store.examine(fix=True)
    assert not finding.fixed
    assert "beside this one and differs" in finding.message
    assert old.exists()
    assert fetch(store, record.key) == record


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("task.json", {"user_id": None}, "does not say whose"),
        ("task.json", {"user_id": 7}, "does not say whose"),
        ("other.json", {}, "it says it is task"),
        ("task.json", {"account_id": "other"}, "it says it is task"),
        ("task.json", {"user_id": "x" * 300}, "takes 300 bytes"),
    ],
)
def test_what_cannot_be_imported_is_left(
    root: Path, make: RecordMaker, name: str, change: dict[str, Any], reason: str
) -> None:
    document = json.loads(encode_record(make("task"))) | change
    plant(root / SECOND / name, json.dumps(document).encode())
    (finding,) = local_store(root).examine(fix=True)
    assert finding.kind == OLD_LAYOUT
    assert reason in finding.message
    assert not finding.fixed
    assert (root / SECOND / name).exists()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"x"'])
def test_damaged_old_records_are_left(root: Path, data: bytes) -> None:
    for place in (FIRST, SECOND):
        plant(root / place / "task.json", data)
    findings = local_store(root).examine(fix=True)
    assert [(finding.kind, finding.fixed) for finding in findings] == [(OLD_LAYOUT, False)] * 2


def test_names_that_were_not_encoded(root: Path, make: RecordMaker) -> None:
    """Users such as `agent:main` had a directory of that very name, which no id leads to today."""
    records = [make("plain", user_id="agent:main"), make("a:b"), make("c", account_id="x y")]
    for record in records:
        path = root / f"local/{record.account_id}/tasks/{record.user_id}/{record.task_id}.json"
        plant(path, old_bytes(record))
    store = local_store(root)
    assert [kind for kind, _, _ in found(store)] == [OLD_LAYOUT] * 3
    assert [fixed for _, _, fixed in found(store, fix=True)] == [True] * 3
    for record in records:
        assert fetch(store, record.key) == record
    assert found(store) == []


def test_a_user_whose_name_looks_like_a_file(root: Path, make: RecordMaker) -> None:
    store = local_store(root)
    store.create(make(user_id="x.json"))
    store.create(make(account_id="_system"))
    assert found(store) == []


def test_ids_that_carry_another_time(root: Path, make: RecordMaker) -> None:
    """Imported like created: the directory is marked, and no page leaves the record out."""
    store = local_store(root)
    newest = make()
    store.create(newest)
    old = make(created_at=newest.created_at + 3600)
    misleading = TaskRecord(**{**_fields(old), "task_id": make(created_at=1e9).task_id})
    plant(root / SECOND / f"{misleading.task_id}.json", old_bytes(misleading))
    assert [finding.fixed for finding in store.examine(fix=True)] == [True]
    assert ids(local_store(root), limit=1) == [misleading.task_id]


def _fields(record: TaskRecord) -> dict[str, Any]:
    return {
        name: getattr(record, name)
        for name in ("task_id", "task_type", "status", "created_at", "updated_at", "account_id", "user_id")
    }


def test_an_object_store(s3_server: S3Server, make: RecordMaker) -> None:
    url = s3_server.new_root()
    store = open_on(s3_server, url)
    records = [make("first"), make("second")]
    for record, place in zip(records, (FIRST, SECOND), strict=True):
        s3_server.put(
            f"{url.partition('//')[2].partition('/')[2]}/{place}/{record.task_id}.json", old_bytes(record)
        )
    assert ids(store) == []
    assert [finding.kind for finding in store.examine()] == [OLD_LAYOUT] * 2
    assert [finding.fixed for finding in store.examine(fix=True)] == [True] * 2
    assert ids(store) == ["second", "first"]
    assert has_active(store)
    assert list(store.examine()) == []


def test_a_client_that_moves(make: RecordMaker) -> None:
    client = MovingClient()
    record = make()
    for directory in ("/local", "/local/acme", "/local/acme/tasks"):
        client.mkdir(directory)
    path = f"/local/acme/tasks/{record.task_id}.json"
    client.write(path, old_bytes(record))
    store = PersistentTaskStore(client)
    assert [finding.fixed for finding in store.examine(fix=True)] == [True]
    assert fetch(store, record.key) == record
    assert list(store.examine()) == []


def test_a_client_that_cannot_remove(make: RecordMaker) -> None:
    """What was imported stays where it was, and is said to be no longer used."""
    client = PlainClient()
    record = make()
    for directory in ("/local", "/local/acme", "/local/acme/tasks"):
        client.mkdir(directory)
    client.write(f"/local/acme/tasks/{record.task_id}.json", old_bytes(record))
    store = PersistentTaskStore(client)
    for _ in range(2):
        (finding,) = store.examine(fix=True)
        assert finding.fixed
        assert "not used any more" in finding.message
    assert fetch(store, record.key) == record


# ---- other things --------------------------------------------------------------------------------------


def test_damaged_records_are_named_and_left(root: Path, make: RecordMaker) -> None:
    store = local_store(root)
    store.create(make())
    path = path_of(root, make.key("damaged"))
    plant(path, b"{")
    (finding,) = store.examine(fix=True)
    assert finding == Finding("corrupt_record", str(path), finding.message)
    assert str(path) in finding.message
    assert path.read_bytes() == b"{"


def test_temporary_files_of_the_dead(root: Path, make: RecordMaker) -> None:
    store = local_store(root)
    store.create(make())
    directory = path_of(root, make.key("x")).parent
    for place in (directory, root / "local/.task_tracker"):
        for second, seconds in ((1, FOREIGN_SECONDS + 9), (2, 0)):
            temporary = place / f".tmp-00000000-1-{second}-00000000-1"
            temporary.write_bytes(b"half")
            age(temporary, seconds)
    where = [f"{place}/.tmp-00000000-1-1-00000000-1" for place in (".task_tracker", "acme/tasks/alice")]
    assert found(store) == [("temporary_file", path, False) for path in where]
    assert found(store, fix=True) == [("temporary_file", path, True) for path in where]
    assert found(store) == []
    assert len([*directory.glob(".tmp-*")]) == 1, "it may still be written"


def test_nothing_is_mended_on_a_root_of_leases(root: Path, make: RecordMaker) -> None:
    record = make()
    plant(root / SECOND / f"{record.task_id}.json", old_bytes(record))
    plant(root / "local/.task_tracker/format", b"{}")
    store = local_store(root)
    assert len(found(store)) == 1
    with pytest.raises(CapabilityMissing, match="lease store owns this root"):
        store.examine(fix=True)


def test_nothing_is_there(root: Path) -> None:
    assert found(local_store(root / "nowhere")) == []
