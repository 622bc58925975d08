"""The harness of the store on PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

import psycopg
import pytest

from stores.postgres.connections import BoundedConnection, opener
from stores.postgres.rows import Rows, said
from stores.postgres.store import PostgresTaskStore
from task_tracker.codec import decode_record
from task_tracker.errors import CorruptRecord
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import LeaseStore
from task_tracker.testing import StoreHarness
from tests.contract.lease_harnesses import SteppedClock
from tests.postgres.grounds import Ground, Grounds

LEASE_SECONDS = 30.0
TOO_LONG = ["x" * 501, "x" * 5000, "漢" * 167, "🎈" * 126]
OF_KEY = "WHERE account_id = %s AND user_id = %s AND task_id = %s"
NOT_JSON = ("22P02", "22021", "22P05", "54001", "23514")
"""What the server says of text that no json column takes."""

Wrapper = Callable[[Callable[[], BoundedConnection]], Callable[[], BoundedConnection]]


class PostgresHarness(StoreHarness):
    """One schema. ``wrap`` makes of what opens connections something that opens others."""

    unstorable_ids = TOO_LONG

    def __init__(self, grounds: Grounds, wrap: Wrapper = lambda open_one: open_one) -> None:
        self._grounds = grounds
        self._wrap = wrap
        self.ground: Ground = grounds.take()
        self._down = False
        self._reads = 0
        self.spec = (
            "postgres",
            {
                "dsn": self.ground.dsn,
                "lease_seconds": LEASE_SECONDS,
                "options": {
                    "schema": self.ground.names.schema,
                    "table_prefix": self.ground.names.prefix,
                    "pool_size": 2,
                },
            },
        )
        self._clocks: dict[int, SteppedClock] = {}

    def open(self) -> PostgresTaskStore:
        clock = SteppedClock()
        inner = self._wrap(opener(self.ground.dsn, connect_seconds=5, statement_seconds=30))
        nowhere = opener("host=127.0.0.1 port=1 connect_timeout=2", connect_seconds=2, statement_seconds=2)
        store = self.ground.store(
            lease_seconds=LEASE_SECONDS,
            clock=clock,
            open_connection=lambda: nowhere() if self._down else inner(),
            listen_dsn=self.ground.dsn,  # behind a pooler there has to be another way
        )
        self._clocks[id(store)] = clock
        return store

    # ---- behind its back -----------------------------------------------------------------------------

    def plant(self, key: TaskKey, data: bytes) -> None:
        record: TaskRecord | None = None
        with contextlib.suppress(CorruptRecord):
            record = decode_record(data, key, "planted")
        try:
            self._plant(key, data.decode(), record)
        except (psycopg.Error, UnicodeDecodeError) as error:
            if isinstance(error, psycopg.Error) and error.sqlstate not in (*NOT_JSON, None):
                raise
            pytest.skip("a json column holds JSON and nothing else")

    def _plant(self, key: TaskKey, text: str, record: TaskRecord | None) -> None:
        if record is None:
            if self.ground.run(
                f"UPDATE {{tasks}} SET record = %s, revision = DEFAULT {OF_KEY} RETURNING 1", text, *key
            ):
                return
            columns = {
                "task_type": "?",
                "status": "?",
                "kind": b"",
                "blocks": False,
                "created_at": 0.0,
                "unreadable": True,
            }
        else:
            columns = said(record)
            for name in ("account_id", "user_id", "task_id", "record", "runs", "waits", "news"):
                del columns[name]
            columns["unreadable"] = False
        columns = {**columns, "creation": (record and record.creation) or "planted", "record": text}
        names = ", ".join(columns)
        values = ", ".join(["%s"] * len(columns))
        self.ground.run(
            f"INSERT INTO {{tasks}} (account_id, user_id, task_id, {names}) VALUES (%s, %s, %s, {values}) "
            f"ON CONFLICT (account_id, user_id, task_id) DO UPDATE SET ({names}) = ROW({values}), revision = DEFAULT",
            *key,
            *columns.values(),
            *columns.values(),
        )

    def peek(self, key: TaskKey) -> bytes | None:
        found = self.ground.run(f"SELECT record::text FROM {{tasks}} {OF_KEY}", *key)
        return found[0][0].encode() if found else None

    def remove(self, key: TaskKey) -> None:
        self.ground.run(f"DELETE FROM {{tasks}} {OF_KEY}", *key)

    # ---- hooks ---------------------------------------------------------------------------------------

    def fresh(self) -> PostgresHarness:
        return PostgresHarness(self._grounds, self._wrap)

    def close(self) -> None:
        self._grounds.give_back(self.ground)

    def age(self, seconds: float) -> None:
        # An interval of a thousand years is fine, a time before Christ as well.
        self.ground.run(
            "UPDATE {migrations} SET applied_at = applied_at - make_interval(secs => %s)", seconds
        )

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        self._down = True
        self.ground.run(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = %s",
            self.ground.names.schema,
        )
        yield
        self._down = False

    @contextlib.contextmanager
    def undeletable(self, key: TaskKey) -> Iterator[None]:
        self.ground.run(
            "CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION 'this one stays'; END $$"
        )
        condition = " AND ".join(
            f"OLD.{name} = {psycopg.sql.quote(value)}" for name, value in key._asdict().items()
        )
        self.ground.run(
            "CREATE TRIGGER refuse BEFORE DELETE ON {tasks} FOR EACH ROW "
            f"WHEN ({condition}) EXECUTE FUNCTION {{schema}}.refuse()"
        )
        yield
        self.ground.run("DROP FUNCTION {schema}.refuse CASCADE")

    def lapse(self, store: LeaseStore, seconds: float) -> None:
        self.ground.lapse(seconds)

    def let_pass(self, store: LeaseStore, seconds: float) -> None:
        self._clocks[id(store)].passed_seconds += seconds

    def step_clock(self, store: LeaseStore, seconds: float) -> None:
        self._clocks[id(store)].wrong_by_seconds += seconds

    def now(self) -> float:
        return float(self.ground.run("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0])

    @contextlib.contextmanager
    def counting(self) -> Iterator[PostgresHarness]:
        """Count the records that are read while the block runs."""
        decode = Rows.decode

        def counted(rows: Rows, data: bytes, key: TaskKey) -> TaskRecord:
            self._reads += 1
            return decode(rows, data, key)

        with mock.patch.object(Rows, "decode", counted):
            yield self

    def reads(self) -> int:
        return self._reads
