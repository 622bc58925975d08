"""Several tasks claimed in one transaction: each as if it were alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from stores.postgres.store import PostgresTaskStore
from task_tracker import transitions
from task_tracker.records import TaskStatus
from task_tracker.testing import RecordMaker
from tests.postgres.grounds import Ground

KIND = ("reindex", 1)


@pytest.fixture
def make() -> RecordMaker:
    return RecordMaker(own_fields=False)


@pytest.fixture
def store(ground: Ground) -> Iterator[PostgresTaskStore]:
    with closing(ground.store(pool_size=2)) as store:
        yield store


def several(store: PostgresTaskStore, most: int, **limits: int) -> list[str]:
    claimed = store.claim_several(most, holder="w", task_types=[KIND], max_running=limits or None)
    return [lease.key.task_id for lease, _ in claimed]


def test_each_has_a_lease_of_its_own(store: PostgresTaskStore, make: RecordMaker) -> None:
    """[D007] [D008]"""
    for priority in (1, 3, 2):
        store.create(make(f"p{priority}", handler_version=1, priority=priority))
    claimed = store.claim_several(2, holder="w", task_types=[KIND])
    assert [lease.key.task_id for lease, _ in claimed] == ["p3", "p2"]
    assert len({lease.token for lease, _ in claimed}) == 2
    for lease, stored in claimed:
        record = stored.record
        assert (lease.epoch, lease.holder, lease.attempt_count) == (1, "w", 1)
        assert record.status is TaskStatus.RUNNING
        assert store.get(lease.key) == stored
        store.renew(lease)
    first, second = claimed
    store.end(first[0], transitions.completed(first[1].record, first[1].record.updated_at, b"1"))
    store.release(second[0], transitions.released(second[1].record, second[1].record.updated_at))
    assert several(store, 5) == ["p2", "p1"]
    assert several(store, 5) == []


def test_no_more_than_a_limit_allows(store: PostgresTaskStore, make: RecordMaker) -> None:
    for _ in range(4):
        store.create(make(handler_version=1))
    assert len(several(store, 4, reindex=2)) == 1
    assert len(several(store, 4, reindex=2)) == 1
    assert several(store, 4, reindex=2) == []
    assert len(several(store, 4)) == 2


def test_what_is_no_record_holds_up_no_other(
    ground: Ground, store: PostgresTaskStore, make: RecordMaker
) -> None:
    for name in ("a", "b", "c"):
        store.create(make(name, handler_version=1))
    ground.run("UPDATE {tasks} SET record = '{{}}' WHERE task_id IN ('a', 'b')")
    assert several(store, 2) == ["c"]
    assert several(store, 2) == []


def test_what_has_become_due_comes_before_what_waits(
    ground: Ground, store: PostgresTaskStore, make: RecordMaker
) -> None:
    """Also for a store that has just found something, and therefore does not look first."""
    for name in ("a", "b", "c"):
        store.create(make(name, handler_version=1))
    assert several(store, 1) == ["a"]
    store.create(make("later", handler_version=1, priority=9, not_before=4e9))
    assert several(store, 1) == ["b"]
    ground.bring_forward(4e9)
    assert several(store, 1) == ["later"]
    store.create(make("at last", handler_version=1, not_before=4e9))
    assert several(store, 1) == ["c"]
    ground.bring_forward(4e9)
    assert several(store, 1) == ["at last"]


def test_what_is_due_and_locked_by_somebody_is_not_waited_for(
    ground: Ground, store: PostgresTaskStore, make: RecordMaker
) -> None:
    for name in ("a", "b"):
        store.create(make(name, handler_version=1))
    assert several(store, 1) == ["a"]
    store.create(make("later", handler_version=1, priority=9, not_before=4e9))
    ground.bring_forward(4e9)
    with ground.control.transaction():
        ground.run("SELECT FROM {tasks} WHERE task_id = 'later' FOR UPDATE")
        assert several(store, 1) == ["b"]
    assert several(store, 1) == ["later"]
