"""Upgrades from every earlier version, with data: what was there is read back, and acted on, after the last step.

Owns no list of versions: whoever adds a migration has the one before it tested.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stores.postgres.migrating import Migrations
from stores.postgres.rows import said
from stores.postgres.store import PostgresTaskStore
from task_tracker import transitions
from task_tracker.errors import LeaseLost
from task_tracker.records import Attempt, TaskRecord, TaskStatus
from task_tracker.store import Lease, Query
from task_tracker.testing import RecordMaker
from task_tracker.testing.racing import race
from tests.postgres.grounds import Ground
from tests.postgres.test_migrations import FIRST, applied, connect, shape

VERSIONS = range(1, len([*FIRST.glob("*.sql")]) + 1)
NOT_COLUMNS = ("record", "runs", "waits", "news")
TOKEN = "0123456789abcdef0123456789abcdef"  # of a claim


def steps_until(version: int, place: Path) -> Path:
    """The migrations that a version had."""
    place.mkdir()
    for path in sorted(FIRST.glob("*.sql"))[:version]:
        (place / path.name).write_text(path.read_text())
    return place


@dataclasses.dataclass
class Upgraded:
    """A database that was made, and filled, by an earlier version."""

    ground: Ground
    store: PostgresTaskStore
    records: dict[str, TaskRecord]

    def read_back(self) -> dict[str, TaskRecord]:
        page = self.store.list(Query("acme", "alice", limit=None))
        assert page.corrupt == []
        return {stored.record.task_id: stored.record for stored in page.items}


def plant(ground: Ground, record: TaskRecord, **columns: Any) -> TaskRecord:
    """Put a record into the columns that there are, as whoever wrote it did."""
    attempt = Attempt(columns.get("epoch", 0), columns.get("token") or TOKEN, columns.get("holder") or "", 0)
    record = record.changed(creation=f"creation of {record.task_id}", attempt=attempt)
    there = {
        name
        for (name,) in ground.control.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
            [ground.names.schema, f"{ground.names.prefix}tasks"],
        )
    }
    values = said(record)
    row = {name: value for name, value in values.items() if name not in NOT_COLUMNS}
    row |= {"creation": record.creation, "record": values["record"], **columns}
    assert row.keys() <= there, "a column of the first version is gone: say here what it was"
    ground.run(
        f"INSERT INTO {{tasks}} ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})", *row.values()
    )
    return record


def fill(ground: Ground, make: RecordMaker) -> Iterator[TaskRecord]:
    """A record in each state, a task that is held, one whose holder stopped, one for later, one that is set aside."""
    for status in TaskStatus:
        yield plant(ground, make(f"plain {status}", status=status, resource_id=None))
    waiting = make("waiting", handler_version=1, payload_json=b'{"n":1}', priority=3)
    yield plant(ground, waiting)
    yield plant(ground, make("later", handler_version=1, not_before=4e9), deferred=True)
    held = {"epoch": 1, "token": TOKEN, "holder": "w", "attempts": 1, "since": "now", "heartbeat_at": "now"}
    running = make("held", handler_version=1, status=TaskStatus.RUNNING)
    yield plant(ground, running, **held, lease_expires_at="infinity")
    lost = make("lost", handler_version=1, status=TaskStatus.RUNNING)
    yield plant(ground, lost, **held | {"token": TOKEN[::-1]}, lease_expires_at="-infinity")
    yield plant(ground, make("alone", task_type="single", resource_id="r"), alone=True)
    ground.run("INSERT INTO {deletions} (account_id, user_id) VALUES ('acme', 'leaving')")
    ground.run("INSERT INTO {paused} (task_type) VALUES ('halted')")
    ground.run("INSERT INTO {workers} VALUES ('w', '{{}}', 3600, clock_timestamp())")


@pytest.fixture(params=VERSIONS, ids=lambda version: f"from {version}")
def upgraded(
    request: pytest.FixtureRequest, bare: Ground, make: RecordMaker, tmp_path: Path
) -> Iterator[Upgraded]:
    with closing(connect(bare)) as connection:
        Migrations(bare.names, steps_until(request.param, tmp_path / "steps")).apply(connection)
    records = {record.task_id: record for record in fill(bare, make)}
    with closing(bare.store()) as store:
        # By several at once: one of them does it.
        def migrate() -> None:
            with closing(bare.store(pool_size=1)) as other:
                other.prepare(migrate=True)

        assert race(*[migrate] * 4) == [None] * 4
        yield Upgraded(bare, store, records)


def test_everything_is_read_back(upgraded: Upgraded) -> None:
    """Byte for byte, and by whatever is asked for."""
    assert upgraded.read_back() == upgraded.records
    store = upgraded.store
    counts = store.count("acme", "alice")
    assert sum(sum(states.values()) for states in counts.values()) == len(upgraded.records)
    assert store.has_active("acme", "alice", "single", "r")
    assert [stored.record.task_id for stored in store.unclaimed(handled=True, limit=10)] == [
        "waiting",
        "later",
    ]
    assert [*store.paused()] == ["halted"]
    assert [fact.name for fact in store.facts()] == ["w"]
    assert len(applied(upgraded.ground)) == len(VERSIONS)


def test_tables_are_those_of_who_begins_today(upgraded: Upgraded, ground: Ground) -> None:
    assert shape(upgraded.ground) == shape(ground)


def test_everything_is_acted_on(upgraded: Upgraded, make: RecordMaker) -> None:
    """Claimed, renewed, committed, taken over, cancelled, ended, deleted."""
    store, records = upgraded.store, upgraded.records
    assert store.create_if_no_active(make(task_type="single", resource_id="r")) is None

    claimed = store.claim(holder="w", task_types=[("reindex", 1)])
    assert claimed is not None
    lease, stored = claimed
    assert (stored.record.task_id, stored.record.payload) == ("waiting", {"n": 1})
    store.end(lease, transitions.completed(stored.record, stored.record.updated_at, b"1"))
    assert store.claim(holder="w", task_types=[("reindex", 1)]) is None

    running = records["held"]
    lease = Lease(running.key, running.created_at, 1, TOKEN, "w", 1)
    store.renew(lease)
    stored = store.commit(lease, running.changed(message="half way"))
    assert store.request_cancel(running.key).record.status is TaskStatus.CANCELLING
    store.end(lease, transitions.cancelled(stored.record, stored.record.updated_at))

    store.recover()
    (expired,) = [found for found in store.expired() if found.record.task_id == "lost"]
    lost = expired.record
    old = Lease(lost.key, lost.created_at, 1, TOKEN[::-1], "w", 1)
    taken = store.take_over(expired, holder="rescuer")
    assert taken is not None
    with pytest.raises(LeaseLost):
        store.commit(old, lost.changed(message="late"))
    assert taken[0].epoch == 2
    store.release(taken[0], transitions.released(taken[1].record, taken[1].record.updated_at))

    assert store.request_cancel(records["plain pending"].key).record.status is TaskStatus.CANCELLED
    assert store.request_cancel(records["later"].key).record.status is TaskStatus.CANCELLED
    for status in ("completed", "failed", "cancelled", "pending"):
        store.delete(records[f"plain {status}"].key)
    left = upgraded.read_back()
    assert left.keys() == records.keys() - {
        f"plain {name}" for name in ("completed", "failed", "cancelled", "pending")
    }
    assert left["waiting"].result == 1
    assert left["held"].status is TaskStatus.CANCELLED
    assert left["lost"].status is TaskStatus.PENDING


def test_whoever_was_there_before_goes_on(upgraded: Upgraded) -> None:
    """Nothing is found that would have to be mended."""
    upgraded.store.recover()
    kinds = {finding.kind for finding in upgraded.store.examine()}
    assert kinds == {"half_made"}, "the user who is being deleted"
