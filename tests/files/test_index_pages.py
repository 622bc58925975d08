"""Pages of listings while records come, go and come again."""

from __future__ import annotations

import dataclasses
import random  # noqa: TID251  # seeded: which records come and go
from pathlib import Path

import pytest

from task_tracker.codec import encode_record
from task_tracker.records import TaskRecord
from task_tracker.store import Cursor, Query
from task_tracker.testing import RecordMaker
from tests.files.support import (
    COMPLETED,
    FAILED,
    RUNNING,
    age,
    fetch,
    has_active,
    ids,
    local_store,
    path_of,
    plant,
)


@pytest.mark.parametrize("own_id", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_an_id_that_is_used_again(root: Path, make: RecordMaker, own_id: bool, elsewhere: bool) -> None:
    """A deleted task's id, created anew by this or by another instance: it is what it is now, not what it was."""
    store = local_store(root)
    first = make("own" if own_id else None, status=COMPLETED)
    store.create(first)
    store.create(make(status=COMPLETED))
    assert not has_active(store)
    for path in root.rglob("*"):
        age(path, 10)
    assert len(ids(store)) == 2

    other = local_store(root) if elsewhere else store
    other.delete(first.key)
    second = dataclasses.replace(first, status=RUNNING, created_at=first.created_at + 60)
    other.create(second)
    assert has_active(store)
    assert store.create_if_no_active(make()) is None
    assert ids(store, status="running") == [first.task_id]
    assert fetch(store, first.key) == second
    ended = make.changed(second, status=FAILED)
    other.update(ended, expected=None)
    assert not has_active(store)
    assert ids(store, status="failed") == [first.task_id]

    other.delete(first.key)  # and again, where it is known that ids do that
    third = dataclasses.replace(second, created_at=second.created_at + 60)
    other.create(third)
    assert has_active(store)
    assert fetch(store, first.key) == third


def test_an_id_that_is_used_again_after_a_sweep(root: Path, make: RecordMaker) -> None:
    """Deleted by purge and by delete_owner, too."""
    store = local_store(root)
    record = make(status=COMPLETED)
    for delete in (
        lambda: store.purge({COMPLETED: 9e9}, limit=10).deleted,
        lambda: store.delete_owner("acme", "alice"),
    ):
        store.create(record)
        assert not has_active(store)
        assert delete()
        store.create(dataclasses.replace(record, status=RUNNING))
        assert has_active(store)
        store.update(record, expected=None)
        store.delete(record.key)


@pytest.mark.parametrize("limit", [1, 3, 70, None])
def test_ids_that_carry_another_time_are_in_their_place(
    root: Path, make: RecordMaker, limit: int | None
) -> None:
    """[D137] An id made early and used late does not hide behind the history."""
    store = local_store(root)
    early = [make().task_id for _ in range(5)]
    for record in make.many(200):
        store.create(record)
    late = [make(task_id) for task_id in early]
    for record in late:
        store.create(record)
    fresh = local_store(root)
    expected = [record.task_id for record in late[::-1]][: limit or 5]
    assert ids(fresh, limit=limit)[: len(expected)] == expected


@pytest.mark.parametrize("limit", [1, 5, 100])
def test_ids_and_times_that_disagree_a_little(root: Path, make: RecordMaker, limit: int) -> None:
    """[D137] Clocks step back and counters run ahead: within a second names may sort otherwise than records."""
    chance = random.Random(7)
    start = make.clock.now() + 10
    records = []
    for number in range(600):
        moment = start + number / 500
        records.append(
            make(make.clock.new_id(moment), created_at=round(moment + chance.uniform(-0.45, 0.45), 6))
        )
    for record in records:
        plant(path_of(root, record.key), encode_record(record))
    records.sort(key=lambda record: (record.created_at, record.task_id), reverse=True)
    store = local_store(root)
    page = store.list(Query("acme", "alice", limit=limit))
    assert [stored.record for stored in page.items] == records[:limit]
    for reader in (store, local_store(root)):
        after = reader.list(Query("acme", "alice", limit=limit, before=page.next_cursor))
        assert [stored.record for stored in after.items] == records[limit : 2 * limit]
    middle = Cursor.of(records[300])
    after = local_store(root).list(Query("acme", "alice", limit=limit, before=middle))
    assert [stored.record for stored in after.items] == records[301 : 301 + limit]


# ---- pages -------------------------------------------------------------------------------------------------


def test_pages_while_records_come_and_go(root: Path, make: RecordMaker) -> None:
    """[D137] None is given twice, none that stayed is left out, filters before the cut, order kept."""
    chance = random.Random(7)
    store, other = local_store(root), local_store(root)
    records = [
        make(
            f"own-{number}" if chance.random() < 0.3 else None,
            status=chance.choice([COMPLETED, FAILED, RUNNING]),
            user_id=chance.choice(["alice", "bob", "carol"]),
            resource_id=chance.choice(["docs", "mail"]),
        )
        for number in range(150)
    ]
    for record in records:
        store.create(record)
    for query in (
        Query("acme", "alice", limit=7),
        Query("acme", None, limit=7),
        Query("acme", None, status="failed", limit=4),
        Query("acme", "bob", resource_id="mail", limit=3),
        Query("acme", None, task_type="reindex", status="running", resource_id="docs", limit=1),
    ):
        stays = [record for record in records if matches(query, record)]
        found: list[TaskRecord] = []
        page = store.list(query)
        while True:
            found += [stored.record for stored in page.items]
            if page.next_cursor is None:
                break
            other.create(make(user_id=chance.choice(["alice", "bob"])))
            page = store.list(dataclasses.replace(query, before=page.next_cursor))
        assert [record for record in found if record in records] == stays[::-1]
        assert len(set(found)) == len(found)


def matches(query: Query, record: TaskRecord) -> bool:
    return query.user_id in (None, record.user_id) and query.matches(
        record.task_type, record.status, record.resource_id
    )


@pytest.mark.parametrize("created_at", [float("inf"), float("-inf"), float("nan"), 1e300, -1.0, 0.0])
def test_a_cursor_that_somebody_made_up(root: Path, make: RecordMaker, created_at: float) -> None:
    """[D156] It is a place like any other, or none; never an error of ours."""
    store = local_store(root)
    for record in make.many(3):
        store.create(record)
    page = store.list(Query("acme", "alice", before=Cursor(created_at, "x", "alice")))
    assert len(page.items) in (0, 3)
