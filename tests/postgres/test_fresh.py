"""Claims of tasks that this process has just created: in one statement, unless anybody has touched them since."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from stores.postgres.fresh import Fresh
from stores.postgres.store import PostgresTaskStore
from task_tracker import transitions
from task_tracker.errors import InvalidTransition, LeaseHeld, TaskNotFound
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.testing import RecordMaker
from tests.contract.lease_harnesses import SteppedClock
from tests.postgres.grounds import Ground


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def store(ground: Ground, clock: SteppedClock) -> Iterator[PostgresTaskStore]:
    with closing(ground.store(pool_size=1, clock=clock)) as store:
        yield store


@pytest.fixture
def other(ground: Ground) -> Iterator[PostgresTaskStore]:
    with closing(ground.store(pool_size=1)) as store:
        yield store


def cancelled(other: PostgresTaskStore, record: TaskRecord) -> None:
    other.request_cancel(record.key)


def deleted(other: PostgresTaskStore, record: TaskRecord) -> None:
    cancelled(other, record)
    other.delete(record.key)


def claimed(other: PostgresTaskStore, record: TaskRecord) -> None:
    assert other.claim(record.key, holder="other") is not None


@pytest.mark.parametrize(
    ("touch", "error"),
    [(cancelled, InvalidTransition), (deleted, TaskNotFound), (claimed, LeaseHeld)],
)
def test_what_somebody_has_touched_is_not_claimed(
    store: PostgresTaskStore,
    other: PostgresTaskStore,
    make: RecordMaker,
    touch: Callable[[PostgresTaskStore, TaskRecord], None],
    error: type[Exception],
) -> None:
    record = store.create(make()).record
    touch(other, record)
    with pytest.raises(error):
        store.claim(record.key, holder="mine")


def test_what_somebody_has_changed_is_claimed_as_it_is_now(
    store: PostgresTaskStore, other: PostgresTaskStore, make: RecordMaker
) -> None:
    stored = store.create(make())
    other.update(stored.record.changed(message="of another"), expected=None)
    taken = store.claim(stored.record.key, holder="mine")
    assert taken is not None
    assert taken[1].record.message == "of another"


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"handler_version": 3, "priority": -7, "resource_id": "r", "not_before": 4e9},
        {"handler_version": 1, "resource_id": "", "message": '"\\ä', "not_before": 1.5},
    ],
)
def test_row_is_as_any_other_claim_leaves_it(
    ground: Ground,
    store: PostgresTaskStore,
    other: PostgresTaskStore,
    make: RecordMaker,
    said: dict[str, Any],
) -> None:
    """In every column, though fewer are written; also if somebody has set the row aside meanwhile."""
    for user, creator in (("fresh", store), ("read", other)):
        stored = creator.create_if_no_active(make("t", user_id=user, created_at=1.0, **said))
        assert stored is not None
        ground.run("UPDATE {tasks} SET unreadable = true WHERE user_id = %s", user)
        assert store.claim(stored.record.key, holder="mine") is not None
    one, another = ground.run(
        "SELECT record::jsonb - '{{user_id,creation,attempt,started_at,updated_at}}'::text[], "
        "record::jsonb -> 'attempt' ->> 'epoch', record::jsonb -> 'attempt' ->> 'token' = token, unreadable, "
        "task_type, status, resource_id, kind, blocks, alone, created_at, handler_version, priority, not_before, "
        "deferred, ended_at, epoch, holder, attempts, abs(extract(epoch FROM since - heartbeat_at)) < 0.1, "
        "round(extract(epoch FROM lease_expires_at - heartbeat_at)::numeric, 1) FROM {tasks}"
    )
    assert one == another


def test_claim_on_behalf_of_somebody_uses_up_what_is_known(
    store: PostgresTaskStore, other: PostgresTaskStore, make: RecordMaker
) -> None:
    """It raises the epoch and leaves the record as it was: no fence is given twice."""
    record = store.create(make()).record
    between = other.claim(record.key, holder="other", count_attempt=False)
    assert between is not None
    other.release(between[0], transitions.released(between[1].record, record.updated_at))
    taken = store.claim(record.key, holder="mine")
    assert taken is not None
    assert taken[0].epoch > between[0].epoch


def test_time_is_the_databases(store: PostgresTaskStore, clock: SteppedClock, make: RecordMaker) -> None:
    """Whatever this host's clock says. [D022]"""
    clock.wrong_by_seconds = 5e8
    record = store.create(make(handler_version=1, created_at=1.0, updated_at=1.0)).record
    clock.passed_seconds += 30
    taken = store.claim(record.key, holder="mine")
    assert taken is not None
    started_at = taken[1].record.started_at
    assert started_at is not None
    assert abs(started_at - 30 - (clock.now() - 5e8)) < 20


def test_what_is_known_is_soon_too_old(clock: SteppedClock, make: RecordMaker) -> None:
    fresh, record = Fresh(clock), make()
    fresh.note(record, 7, 100.0)
    clock.passed_seconds += 61
    assert fresh.take(record.key) is None


def test_only_the_last_ones_are_known_and_each_once(clock: SteppedClock, make: RecordMaker) -> None:
    fresh, records = Fresh(clock), make.many(600)
    for record in records:
        fresh.note(record, 7, 100.0)
    assert fresh.take(records[0].key) is None
    assert fresh.take(records[-1].key) is not None
    assert fresh.take(records[-1].key) is None
    assert fresh.take(TaskKey("acme", "alice", "nothing")) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_forked_child_knows_nothing(clock: SteppedClock, make: RecordMaker) -> None:
    fresh, record = Fresh(clock), make()
    fresh.note(record, 7, 100.0)
    child = os.fork()
    if child == 0:
        os._exit(0 if fresh.take(record.key) is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert fresh.take(record.key) is not None


def test_what_was_created_running_is_not_claimed(store: PostgresTaskStore, make: RecordMaker) -> None:
    record = store.create(make(status=TaskStatus.RUNNING)).record
    with pytest.raises(LeaseHeld):
        store.claim(record.key, holder="mine")
