"""Plans that the server keeps for statements that come often, and what becomes of calls when it has none any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from stores.postgres.store import PostgresTaskStore
from task_tracker.errors import LeaseHeld
from task_tracker.testing import RecordMaker
from task_tracker.testing.answers import claimed_by
from tests.postgres.grounds import Ground

OFTEN = 8
KIND = ("reindex", 1)


@pytest.fixture
def make() -> RecordMaker:
    return RecordMaker(own_fields=False)


@pytest.fixture
def store(ground: Ground) -> Iterator[PostgresTaskStore]:
    with closing(ground.store(pool_size=1)) as store:
        yield store


def known_plans(store: PostgresTaskStore) -> int:
    connection = store._connections.take()
    try:
        found = connection.execute(b"SELECT count(*) FROM pg_prepared_statements", prepare=False).fetchone()
    finally:
        store._connections.give_back(connection)
    assert found is not None
    return int(found[0])


def forget_plans(store: PostgresTaskStore) -> None:
    """As a server does that another one has taken the place of; the driver does not notice."""
    connection = store._connections.take()
    connection.pgconn.exec_(b"DEALLOCATE ALL")
    store._connections.give_back(connection)


def use(store: PostgresTaskStore, make: RecordMaker, times: int = OFTEN) -> None:
    for _ in range(times):
        store.create(make(handler_version=1))
        claimed = store.claim(holder="w", task_types=[KIND])
        assert claimed is not None
        store.renew(claimed[0])
        assert store.get(claimed[0].key) == claimed[1]


def test_what_comes_often_is_planned_once(store: PostgresTaskStore, make: RecordMaker) -> None:
    use(store, make)
    assert known_plans(store) >= 4


def test_what_is_refused_costs_no_plan(store: PostgresTaskStore, make: RecordMaker) -> None:
    """Each refusal undoes a transaction; what the connection has prepared outlasts that."""
    use(store, make)
    record = store.create(make()).record
    store.claim(record.key, holder="w")
    before = known_plans(store)
    for _ in range(2 * OFTEN):
        with pytest.raises(LeaseHeld):
            store.claim(record.key, holder="another")
    assert known_plans(store) >= before


def test_server_that_has_forgotten_is_told_again(store: PostgresTaskStore, make: RecordMaker) -> None:
    """Also in the middle of a transaction; nobody notices."""
    use(store, make)
    forget_plans(store)
    use(store, make)
    assert known_plans(store) >= 4


def test_where_plans_are_forgotten_again_and_again_none_are_made(
    store: PostgresTaskStore, make: RecordMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler that does not show: each call may be on another server."""
    use(store, make)
    taken = store._connections.take

    def take() -> object:
        connection = taken()
        connection.pgconn.exec_(b"DEALLOCATE ALL")
        return connection

    monkeypatch.setattr(store._connections, "take", take)
    use(store, make, times=8 * OFTEN)
    monkeypatch.undo()
    assert known_plans(store) == 0


def test_table_that_was_altered_is_planned_anew(
    ground: Ground, store: PostgresTaskStore, make: RecordMaker
) -> None:
    """By a migration, while this process went on."""
    key = store.create(make()).record.key
    lease, _ = claimed_by(store, key)
    for _ in range(OFTEN):
        store.request_cancel(key)
    ground.run("ALTER TABLE {tasks} ALTER holder TYPE varchar(300)")
    assert store.request_cancel(key).record.task_id == key.task_id
    store.renew(lease)
    assert lease.cancel_requested.is_set()
    ground.run("ALTER TABLE {tasks} ALTER holder TYPE text")  # as other tests expect it


def test_rows_that_are_claimed_are_found_without_a_search(
    ground: Ground, store: PostgresTaskStore, make: RecordMaker
) -> None:
    """Also by a server that has not counted the rows yet: in the queue's index, and then by their places."""
    for _ in range(200):
        store.create(make(handler_version=1))
    table = ground.names.table("tasks").rpartition(".")[2]
    connection = store._connections.take()
    try:
        params = {"types": ["reindex"], "versions": [1], "depth": 16, "most": 4}
        lines = connection.execute(b"EXPLAIN " + store._database.statements["next"], params).fetchall()
    finally:
        store._connections.give_back(connection)
    plan = "\n".join(line for (line,) in lines)
    assert "Tid Scan" in plan
    assert f"Seq Scan on {table}" not in plan
    assert "_waiting" not in plan
