"""Who listens, in the tests of notifications, and what keeps it from hearing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import psycopg
import pytest
from psycopg import sql

from stores.postgres import listening
from stores.postgres.connections import BoundedConnection, Opener, opener
from stores.postgres.store import PostgresTaskStore
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.records import TaskKey
from tests.core.support import PATIENCE
from tests.postgres.grounds import Ground
from tests.postgres.pooling import pooled
from tests.postgres.test_connections import backends

Heard = SimpleQueue[TaskKey | None]


@contextmanager
def hearing(store: PostgresTaskStore) -> Iterator[Heard]:
    """Watch ``store``; the block begins when it hears."""
    heard: Heard = SimpleQueue()
    begins = not store._listener.hearing.is_set()
    with store.watch(heard.put):
        if begins:
            assert heard.get(timeout=PATIENCE) is None
        yield heard


class Ear:
    """What is sent, heard without this library; with ``counted`` writers know that somebody listens."""

    def __init__(self, ground: Ground, *, counted: bool = True) -> None:
        self._ground = ground
        self._connection = psycopg.connect(ground.dsn, autocommit=True)
        for name in ("waiting", "changes"):
            channel = sql.Identifier(ground.names.channel(name))
            self._connection.execute(sql.SQL("LISTEN {}").format(channel))
        if counted:
            ground.run("INSERT INTO {listeners} VALUES ('ear', true, 'infinity')")

    def heard(self) -> list[tuple[str, str]]:
        """Return what was sent since this was called last, as (channel, payload)."""
        mark = SYSTEM_CLOCK.new_token()
        self._connection.execute(
            "SELECT pg_notify(%s, %s)", [self._ground.names.channel("changes"), mark]
        )  # comes last
        said: list[tuple[str, str]] = []
        for one in self._connection.notifies(timeout=PATIENCE):
            if one.payload == mark:
                return said
            said.append((one.channel.split("_")[2], one.payload))
        raise AssertionError("the mark was not heard")

    def close(self) -> None:
        self._connection.close()


@contextmanager
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for name in ("_SHORTEST_PAUSE_SECONDS", "_LONGEST_PAUSE_SECONDS", "_POOLER_PAUSE_SECONDS"):
            patch.setattr(listening, name, 0.001)
        yield


def until_gone(ground: Ground) -> None:
    """Return once the server has seen that all connections are closed."""
    deadline = SYSTEM_CLOCK.monotonic() + PATIENCE
    while backends(ground):
        assert SYSTEM_CLOCK.monotonic() < deadline, "a connection is left"
    assert ground.run("SELECT count(*) FROM {listeners}") == [(0,)]


def listeners(ground: Ground) -> list[int]:
    rows = ground.run(
        "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND query LIKE 'LISTEN%%'",
        ground.names.schema,
    )
    return [pid for (pid,) in rows]


class Gate:
    """A way to the server that can be shut."""

    def __init__(self, ground: Ground) -> None:
        self._plain = opener(ground.dsn, connect_seconds=5, statement_seconds=30)
        self.is_shut = False
        self.tries = 0

    def open_one(self) -> BoundedConnection:
        self.tries += 1
        if self.is_shut:
            raise psycopg.OperationalError("connection refused\nIs the server running?")
        return self._plain()


def through_a_pooler(ground: Ground) -> Opener:
    return pooled(opener(ground.dsn, connect_seconds=5, statement_seconds=30))
