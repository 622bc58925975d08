"""Notifications: who hears of what, and what is never sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from queue import Empty, SimpleQueue
from typing import Any

import psycopg
import pytest

from stores.postgres import listening
from stores.postgres.connections import BoundedConnection, opener
from stores.postgres.database import Session
from stores.postgres.rows import ANYTHING, news_of
from stores.postgres.store import PostgresTaskStore
from task_tracker import transitions
from task_tracker.errors import CapabilityMissing
from task_tracker.records import TaskKey
from task_tracker.store import Stored
from task_tracker.testing import RecordMaker
from task_tracker.testing.answers import claimed_by
from tests.core.support import PATIENCE
from tests.postgres.ears import Ear, hearing, until_gone
from tests.postgres.grounds import Ground
from tests.postgres.test_connections import backends
from tests.runtime.workers import no_thread_is_left


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    with no_thread_is_left():
        yield


@pytest.fixture
def ear(ground: Ground) -> Iterator[Ear]:
    with closing(Ear(ground)) as ear:
        yield ear


@pytest.fixture
def store(ground: Ground) -> Iterator[PostgresTaskStore]:
    with closing(ground.store()) as store:
        yield store


# ---- what is told ------------------------------------------------------------------------------------------


def test_life_of_a_task_as_it_is_told(store: PostgresTaskStore, ear: Ear, make: RecordMaker) -> None:
    """Its states, each once: not its heartbeats, not its progress, and never what is in it. [D112] [D155]"""
    record = store.create(make(handler_version=1, payload_json=b'"secret"')).record
    news = news_of(record.key)
    assert ear.heard() == [("waiting", news)]
    lease, stored = claimed_by(store, record.key)
    assert ear.heard() == [("changes", news)]
    for _ in range(3):
        store.renew(lease)
        stored = store.commit(lease, stored.record.changed(message="on its way", progress=50.0))
    assert ear.heard() == []
    store.release(lease, transitions.released(stored.record, stored.record.updated_at))
    assert ear.heard() == [("waiting", news)]
    lease, stored = claimed_by(store, record.key)
    store.request_cancel(record.key)
    assert ear.heard() == [("changes", news)] * 2
    store.request_cancel(record.key)
    store.renew(lease)
    assert ear.heard() == []
    store.end(lease, transitions.cancelled(stored.record, stored.record.updated_at))
    assert ear.heard() == [("changes", news)]


def test_claims_are_told_however_they_are_made(store: PostgresTaskStore, ear: Ear, make: RecordMaker) -> None:
    """From the queue, several at once; but not if the record stays as it is."""
    records = [store.create(make(handler_version=1)).record for _ in range(4)]
    ear.heard()
    assert store.claim(holder="w", task_types=[("reindex", 1)]) is not None
    assert ear.heard() == [("changes", news_of(records[0].key))]
    store.claim_several(2, holder="w", task_types=[("reindex", 1)])
    assert ear.heard() == [("changes", news_of(record.key)) for record in records[1:3]]
    store.claim(records[3].key, holder="w", count_attempt=False)
    assert ear.heard() == []


def test_ends_are_told_however_many_come_together(
    ground: Ground, store: PostgresTaskStore, ear: Ear, make: RecordMaker
) -> None:
    """Each once; and those of a store that tells nobody, or while nobody listens, are not."""

    def end(store: PostgresTaskStore) -> list[tuple[str, str]]:
        for _ in range(2):
            store.create(make(handler_version=1))
        claimed = store.claim_several(2, holder="w", task_types=[("reindex", 1)])
        ear.heard()
        ends = [
            (lease, transitions.completed(of.record, of.record.updated_at, b"1")) for lease, of in claimed
        ]
        assert all(isinstance(found, Stored) for found in store.end_several(ends))
        return [("changes", news_of(lease.key)) for lease, _ in claimed]

    assert sorted(end(store)) == sorted(ear.heard())
    with closing(ground.store(listen=False)) as silent:
        assert end(silent)
    assert ear.heard() == []
    ground.run("UPDATE {listeners} SET until = clock_timestamp()")
    assert end(store)
    assert ear.heard() == []


def test_tasks_without_a_handler_wake_no_worker(
    store: PostgresTaskStore, ear: Ear, make: RecordMaker
) -> None:
    """Those whose time has not come do: who sleeps for long is to learn when that is."""
    plain, later = store.create(make()).record, store.create(make(handler_version=1, not_before=4e9)).record
    due = store.create(make(handler_version=1, not_before=1.0)).record
    assert ear.heard() == [
        ("changes", news_of(plain.key)),
        ("waiting", news_of(later.key)),
        ("waiting", news_of(due.key)),
    ]
    store.update(plain.changed(message="half way"), expected=None)
    assert ear.heard() == []
    store.request_cancel(plain.key)
    assert ear.heard() == [("changes", news_of(plain.key))]


def test_nothing_is_sent_while_nobody_listens(
    ground: Ground, store: PostgresTaskStore, make: RecordMaker
) -> None:
    """Commits that notify wait for each other, in the whole cluster."""
    with closing(Ear(ground, counted=False)) as ear:
        record = store.create(make(handler_version=1)).record
        store.announce([record.key])
        store.request_cancel(record.key)
        assert ear.heard() == []
        ground.run("INSERT INTO {listeners} VALUES ('worker', false, 'infinity')")
        record = store.create(make(handler_version=1)).record
        store.request_cancel(record.key)  # of that nobody wants to know
        assert ear.heard() == [("waiting", news_of(record.key))]
        ground.run("UPDATE {listeners} SET until = clock_timestamp()")
        store.create(make(handler_version=1))
        assert ear.heard() == []


def test_creation_that_is_rolled_back_wakes_nobody(
    store: PostgresTaskStore, ear: Ear, make: RecordMaker
) -> None:
    """The word goes out with the commit. [D118]"""
    born, params = store._records._born(make(handler_version=1), alone=False)

    def undone(session: Session) -> None:
        with session.transaction():
            assert session.one("create", params) is not None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store._database.write("create and undo", undone)
    assert ear.heard() == []
    created = store.create(born).record
    assert ear.heard() == [("waiting", news_of(created.key))]


def test_a_thousand_creations_in_one_transaction(
    store: PostgresTaskStore, ear: Ear, make: RecordMaker
) -> None:
    """Payloads do not matter, ids are short enough. [D112]"""
    records = [make(handler_version=1, payload_json=b'"' + b"x" * 10_000 + b'"') for _ in range(1000)]

    def all_of_them(session: Session) -> None:
        with session.transaction():
            for record in records:
                session.one("create", store._records._born(record, alone=False)[1])

    store._database.write("create many", all_of_them)
    assert ear.heard() == [("waiting", news_of(record.key)) for record in records]


@pytest.mark.parametrize("character", ["x", "\x01", '"', "\N{BALLOON}"])
def test_longest_ids_can_be_told(
    store: PostgresTaskStore, ear: Ear, make: RecordMaker, character: str
) -> None:
    """Or it is told that anything may have changed. [D112]"""
    long = character * (500 // len(character.encode()))
    record = store.create(make(long, account_id=long, user_id=long)).record
    ((_, payload),) = ear.heard()
    assert payload == news_of(record.key)
    assert len(payload.encode()) < 8000
    assert (payload == ANYTHING) == (character == "\x01")


def test_full_queue_of_notifications_fails_no_write(ground: Ground, ear: Ear, make: RecordMaker) -> None:
    """It fills up when some session neither hears nor ends. Simulated: it takes eight gigabytes. [D112]"""
    refused = []

    class Full(BoundedConnection):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            if isinstance(params, dict) and params.get("news") is not None:
                refused.append(params["news"])
                super().execute(
                    "DO $$ BEGIN RAISE 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; END $$"
                )
            return super().execute(query, params, **options)

    plain = opener(ground.dsn, connect_seconds=5, statement_seconds=30)

    def full() -> BoundedConnection:
        connection = plain()
        connection.__class__ = Full
        return connection

    with closing(ground.store(open_connection=full)) as store:
        record = store.create(make(handler_version=1)).record
        lease, stored = claimed_by(store, record.key)
        store.end(lease, transitions.completed(stored.record, stored.record.updated_at, b"1"))
    assert len(refused) == 3
    assert ear.heard() == []


def test_filling_queue_of_notifications_fails_no_transaction_of_others(
    ground: Ground, ear: Ear, make: RecordMaker
) -> None:
    """A handler's or a caller's is not begun again, so it sends nothing long before its commit could fail."""
    ground.run(
        "CREATE FUNCTION {schema}.pg_notification_queue_usage() RETURNS float8 LANGUAGE sql AS 'SELECT 0.6'"
    )
    path = psycopg.conninfo.make_conninfo(
        ground.dsn, options=f'-c search_path="{ground.names.schema}",pg_catalog'
    )
    try:
        with (
            closing(dataclasses.replace(ground, dsn=path).store()) as store,
            psycopg.connect(path) as connection,
        ):
            store.joined(connection).create(make(handler_version=1))
            connection.commit()
            (claimed,) = store.claim_several(2, holder="w", task_types=[("reindex", 1)])
            store.announce([claimed[0].key])
            lease, stored = claimed_by(store, store.create(make(handler_version=1)).record.key)
            within = store.begin(lease, for_loop=False)
            within.revoke()
            within.write("end", transitions.completed(stored.record, stored.record.updated_at, b"1"))
            within.commit()
        assert ear.heard() == []
    finally:
        ground.run("DROP FUNCTION {schema}.pg_notification_queue_usage()")


# ---- who hears it ------------------------------------------------------------------------------------------


def test_others_hear_of_a_task(ground: Ground, store: PostgresTaskStore, make: RecordMaker) -> None:
    """By its key, and whoever has left hears nothing more. [D121]"""
    with closing(ground.store()) as other:
        with hearing(other) as heard, hearing(other) as heard_too:
            record = store.create(make()).record
            assert (heard.get(timeout=PATIENCE), heard_too.get(timeout=PATIENCE)) == (record.key, record.key)
        with hearing(other) as again:
            store.request_cancel(record.key)
            assert again.get(timeout=PATIENCE) == record.key
        with pytest.raises(Empty):
            heard.get_nowait()


def test_what_is_alien_or_comes_twice_harms_nobody(
    ground: Ground, store: PostgresTaskStore, make: RecordMaker
) -> None:
    """Anybody who may connect to the database can send."""
    key = TaskKey("acme", "alice", "task-1")
    aliens = [
        "",
        "hello",
        "1",
        "{}",
        "[1,2,3]",
        '["a","b"]',
        '["a","b","c","d"]',
        '["a", "b", "c"]',
        "[" * 5000,
    ]
    with hearing(store) as heard:
        waiting: SimpleQueue[None] = SimpleQueue()
        with store.watch_queue(lambda: waiting.put(None)):
            for payloads, last in (((*aliens, news_of(key), news_of(key)), key), ((ANYTHING,), None)):
                for payload in payloads:
                    for channel in ("waiting", "changes"):
                        ground.run("SELECT pg_notify(%s, %s)", ground.names.channel(channel), payload)
                told: set[TaskKey | None] = set()
                while last not in told:  # it may come twice, and all at once be told as one
                    told.add(heard.get(timeout=PATIENCE))
                assert told <= {key, last}
            waiting.get(timeout=PATIENCE)


def test_one_connection_while_somebody_wants_to_know(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """None before, none when the store is closed, and none once nobody has wanted to know for a while."""
    with closing(ground.store(pool_size=1)) as store:
        store.prepare()
        before = backends(ground)
        with hearing(store):
            (mine,) = backends(ground) - before
            with hearing(store), store.watch_queue(lambda: None):
                assert backends(ground) == before | {mine}
            assert ground.run("SELECT changes FROM {listeners}") == [(True,)]
        assert store._listener.running
        monkeypatch.setattr(listening, "_LINGER_SECONDS", 0.0)
        store._listener._ring()
        assert store._listener.end_soon(PATIENCE)
        assert ground.run("SELECT count(*) FROM {listeners}") == [(0,)]
        with hearing(store):
            pass
    until_gone(ground)


def test_it_says_so_again_and_again(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a word to itself if it is quiet, so that a connection which is dead without a sign is found out."""
    monkeypatch.setattr(listening, "_RENEW_SECONDS", 0.01)
    with closing(ground.store()) as store, closing(Ear(ground, counted=False)) as ear, hearing(store):
        (first,) = ground.run("SELECT until FROM {listeners}")
        while ground.run("SELECT until FROM {listeners}") <= [first]:
            pass
        while not ear.heard():
            pass
        assert store.listen_failures == 0


def test_who_was_stopped_for_long_looks_again(
    store: PostgresTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers have taken it for gone, and told it nothing. [D108]"""
    with hearing(store) as heard:
        monkeypatch.setattr(listening, "_RENEW_SECONDS", 0.0)
        monkeypatch.setattr(listening, "_GONE_SECONDS", 0.0)
        store._listener._renew_at = 0.0
        store._listener._ring()
        assert heard.get(timeout=PATIENCE) is None


def test_listening_can_be_switched_off(ground: Ground, ear: Ear, make: RecordMaker) -> None:
    """Nobody is told, and nobody listens."""
    with closing(ground.store(listen=False)) as store:
        assert not store.capabilities.watch
        record = store.create(make(handler_version=1)).record
        store.request_cancel(record.key)
        assert ear.heard() == []
        for call in (lambda: store.watch(lambda _: None), lambda: store.watch_queue(lambda: None)):
            with pytest.raises(CapabilityMissing):
                call()
        with pytest.raises(CapabilityMissing):
            store.announce([record.key])
