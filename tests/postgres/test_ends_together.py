"""Several ends in one statement: none waits for another one's row, and none fails for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from stores.postgres import ending
from stores.postgres.rows import revision_of, said
from stores.postgres.store import PostgresTaskStore
from task_tracker import transitions
from task_tracker.errors import LeaseLost, StoreUnavailable
from task_tracker.records import TaskRecord
from task_tracker.store import Lease, Stored
from task_tracker.testing import RecordMaker
from tests.postgres.cutting import Scissors, cut_opener
from tests.postgres.grounds import Ground

KIND = ("reindex", 1)
_End = tuple[Lease, TaskRecord]


@pytest.fixture
def scissors() -> Scissors:
    return Scissors()


@pytest.fixture
def store(ground: Ground, scissors: Scissors) -> Iterator[PostgresTaskStore]:
    with closing(
        ground.store(pool_size=2, lock_timeout_seconds=0.3, open_connection=cut_opener(ground, scissors))
    ) as store:
        yield store


def ends(store: PostgresTaskStore, count: int, result: bytes = b"1") -> list[_End]:
    make = RecordMaker(own_fields=False)
    for number in range(count):
        store.create(make(f"t{number}", handler_version=1))
    claimed = store.claim_several(count, holder="w", task_types=[KIND])
    assert len(claimed) == count
    return [
        (lease, transitions.completed(stored.record, stored.record.updated_at + 1, result))
        for lease, stored in claimed
    ]


def kinds(found: Sequence[Stored | Exception | None]) -> list[type]:
    return [type(one) for one in found]


def test_what_is_written_is_what_each_alone_would_have_written(
    ground: Ground, store: PostgresTaskStore
) -> None:
    """Every column, whatever is in the record."""
    together = ends(store, 3, json.dumps({'"{}",\\': ["NULL", None, "ä\n\t€", "\\u0041"]}).encode())
    columns = (
        "task_id, creation, record::text, unreadable, task_type, status, resource_id, kind, blocks, alone, created_at, "
        "handler_version, priority, not_before, deferred, ended_at, epoch, token, holder, attempts, since, "
        "heartbeat_at, lease_expires_at"
    )
    changed = [
        (lease, record.changed(resource_id=resource, not_before=5.25, priority=-3, message='"\\'))
        for (lease, record), resource in zip(together, (None, "", 'a,"b\\c}'), strict=True)
    ]
    ground.run("CREATE TABLE before AS SELECT * FROM {tasks}")
    try:
        assert kinds(store.end_several(changed)) == [Stored] * 3
        written = ground.run(f"SELECT {columns} FROM {{tasks}} ORDER BY task_id")
        ground.run("DELETE FROM {tasks}")
        named = ", ".join(
            name
            for (name,) in ground.run(
                "SELECT attname::text FROM pg_attribute WHERE attrelid = 'before'::regclass AND attnum > 0"
            )
        )
        ground.run(f"INSERT INTO {{tasks}} ({named}) SELECT {named} FROM before")
    finally:
        ground.run("DROP TABLE before")
    for lease, record in changed:
        store.end(lease, record)
    assert ground.run(f"SELECT {columns} FROM {{tasks}} ORDER BY task_id") == written


def test_end_says_what_its_record_says(ground: Ground, store: PostgresTaskStore) -> None:
    """Also where it is not what was said when the task was claimed; nothing is left of the lease."""
    ((lease, record),) = ends(store, 1)
    ground.run("UPDATE {tasks} SET alone = true, deferred = true, unreadable = true, status = 'cancelling'")
    stored = store.end(
        lease,
        record.changed(
            task_type="other", resource_id="r", created_at=5.0, handler_version=9, not_before=4e9, priority=-3
        ),
    )
    asked = said(stored.record)
    (found,) = ground.run(
        "SELECT record::text, task_type, status, resource_id, kind, blocks, created_at, handler_version, priority, "
        "not_before, ended_at, revision FROM {tasks}"
    )
    columns = "record task_type status resource_id kind blocks created_at handler_version priority not_before ended_at"
    assert found == (*(asked[column] for column in columns.split()), revision_of(stored.version))
    (left,) = ground.run(
        "SELECT alone, deferred, unreadable, token, holder, since, heartbeat_at, lease_expires_at FROM {tasks}"
    )
    assert left == (False, False, False, None, None, None, None, None)


def test_row_that_somebody_has_locked_holds_up_no_other(ground: Ground, store: PostgresTaskStore) -> None:
    """It is left to be ended by itself, which waits; the others are committed before that."""
    three = ends(store, 3)
    with ground.control.transaction():
        ground.run("SELECT FROM {tasks} WHERE task_id = 't1' FOR UPDATE")
        found = store.end_several(three)
        assert kinds(found) == [Stored, type(None), Stored]
    assert [store.get(lease.key) for lease, _ in three[::2]] == found[::2]
    assert isinstance(store.end(*three[1]), Stored)


def test_record_that_the_server_refuses_fails_no_other(ground: Ground, store: PostgresTaskStore) -> None:
    three = ends(store, 3)
    ground.run(
        "ALTER TABLE {tasks} ADD CONSTRAINT of_a_test CHECK (task_id <> 't1' OR status <> 'completed')"
    )
    try:
        assert store.end_several(three) == [None] * 3, "nobody knows which one it was"
        with pytest.raises(StoreUnavailable, match="did not end task t1"):
            store.end(*three[1])
        assert kinds(store.end_several(three[::2])) == [Stored] * 2
    finally:
        ground.run("ALTER TABLE {tasks} DROP CONSTRAINT of_a_test")
    assert isinstance(store.end(*three[1]), Stored)


def test_record_that_cannot_be_sent_fails_no_other(store: PostgresTaskStore) -> None:
    first, (lease, record), last = ends(store, 3)
    found = store.end_several([first, (lease, record.changed(message="a\0b")), last])
    assert kinds(found) == [Stored, ValueError, Stored]
    assert isinstance(store.end(lease, record), Stored)


def test_many_are_written_in_parts(
    store: PostgresTaskStore, scissors: Scissors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "_MOST", 4)
    many = ends(store, 10)
    scissors.cut_at(0, after=False)
    assert kinds(store.end_several(many)) == [Stored] * 10
    assert scissors.seen == 3
    monkeypatch.setattr(ending, "_MOST_CHARACTERS", 10)
    store.delete_owner("acme", "alice")
    few = ends(store, 3)
    scissors.cut_at(0, after=False)
    assert kinds(store.end_several(few)) == [Stored] * 3
    assert scissors.seen == 3, "each of them is longer"


@pytest.mark.parametrize("nth", range(1, 7))
def test_connection_that_breaks_among_ends_that_are_looked_for(
    ground: Ground, store: PostgresTaskStore, scissors: Scissors, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """Their answer was lost. What is found of some stays known; of the others it is said that nobody knows. [D016]"""
    four = ends(store, 4)
    ground.run("UPDATE {tasks} SET token = 'of another' WHERE task_id = 't2'")
    connections = store._database.connections

    def cut_again() -> None:
        scissors.cut_at(nth, after=False)
        monkeypatch.undo()

    monkeypatch.setattr(connections, "forget_idle", cut_again)
    scissors.cut_at(1, after=True)
    found = store.end_several(four)
    scissors.put_away()
    for (lease, record), one in zip(four, found, strict=True):
        if lease.key.task_id == "t2":
            assert isinstance(one, LeaseLost | StoreUnavailable)
        elif isinstance(one, Stored):
            assert store.get(lease.key) == one
        else:
            assert isinstance(one, StoreUnavailable)
            stored = store.get(lease.key)
            assert isinstance(stored, Stored)
            assert stored.record.result == record.result
    assert kinds(found).count(Stored) == min(3, (nth - 1) // 4)


def test_server_that_is_away_is_told_to_each(store: PostgresTaskStore, scissors: Scissors) -> None:
    """In errors of their own: whoever raises one adds to it."""
    three = ends(store, 3)
    scissors.cut_at(1, after=False, forever=True)
    found = store.end_several(three)
    scissors.put_away()
    assert kinds(found) == [StoreUnavailable] * 3
    assert len({id(one) for one in found}) == 3
    assert kinds(store.end_several(three)) == [Stored] * 3


def test_statements_with_lists_keep_their_plans(ground: Ground, store: PostgresTaskStore) -> None:
    """They are planned for any list, whatever the server has counted: planning takes longer than what is planned."""
    ground.run("ANALYZE {tasks}")
    for _ in range(20):
        store.end_several(ends(store, 2))
        store.delete_owner("acme", "alice")
    connection = store._connections.take()
    plans = connection.execute(
        b"SELECT generic_plans, left(statement, 80) FROM pg_prepared_statements "
        b"WHERE statement LIKE '%unnest(%' AND statement LIKE '%UPDATE%'"
    ).fetchall()
    store._connections.give_back(connection)
    assert len(plans) == 3
    assert all(plan[0] > 5 for plan in plans), plans
