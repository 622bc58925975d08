"""Schemas to test in: made once, emptied and used again.

Owns the connection behind the stores' backs. A ground belongs to one test at a time.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from stores.postgres.migrating import Migrations
from stores.postgres.names import Names
from stores.postgres.store import PostgresTaskStore
from task_tracker.clock import SYSTEM_CLOCK

LEASED = "(token IS NOT NULL OR status IN ('running', 'cancelling')) IS TRUE"
"""Of a row: it is held, or runs although nobody holds it."""
TABLES = ("tasks", "deletions", "paused", "workers", "listeners")
Control = psycopg.Connection[tuple[Any, ...]]

_numbers = itertools.count(1)


@dataclasses.dataclass(frozen=True)
class Ground:
    """A schema with the tables of a store in it, and a connection that no store knows."""

    dsn: str
    names: Names
    control: Control

    def run(self, text: str, *params: object) -> list[tuple[Any, ...]]:
        """Run SQL with the names of the tables in braces."""
        cursor = self.control.execute(self.names.fill(text), params)
        return cursor.fetchall() if cursor.description is not None else []

    def empty(self) -> None:
        """Leave nothing of the last test."""
        deletions = "".join(f"DELETE FROM {{{table}}}; " for table in TABLES)
        self.control.execute(
            self.names.fill(deletions + "UPDATE {migrations} SET applied_at = clock_timestamp()")
        )

    def lapse(self, seconds: float) -> None:
        """Make every heartbeat and every worker's fact look so much older."""
        self.run(
            "UPDATE {tasks} SET since = since - d.ago, heartbeat_at = heartbeat_at - d.ago, "
            "lease_expires_at = lease_expires_at - d.ago FROM (SELECT make_interval(secs => %s) AS ago) d "
            f"WHERE {LEASED}",
            seconds,
        )
        self.run("UPDATE {workers} SET published_at = published_at - make_interval(secs => %s)", seconds)

    def bring_forward(self, seconds: float) -> None:
        """Make all start times come so much earlier: the database's clock cannot be moved."""
        self.run("UPDATE {tasks} SET not_before = not_before - %s", seconds)

    def store(self, **options: Any) -> PostgresTaskStore:
        """Open a store here."""
        return PostgresTaskStore(
            self.dsn, schema=self.names.schema, table_prefix=self.names.prefix, **options
        )


class Grounds:
    """All of one session."""

    def __init__(self, dsn: str) -> None:
        self.server = dsn
        # No test is about power cuts, and each commit would wait for the disk.
        self.dsn = make_conninfo(dsn, options="-c synchronous_commit=off")
        self.control: Control = psycopg.connect(self.dsn, autocommit=True)
        self._session = f"task_tracker_test_{os.getpid()}_{SYSTEM_CLOCK.new_token()[:8]}"
        self._made: list[Names] = []
        self._free: list[Names] = []

    def take(self, *, migrated: bool = True) -> Ground:
        """Return an empty ground; one without any table if it is not to be ``migrated``."""
        if migrated and self._free:
            ground = self._ground(self._free.pop())
            ground.empty()
            return ground
        names = Names(f"{self._session}_{next(_numbers)}", "" if next(_numbers) % 4 else "tt ")
        self._made.append(names)
        ground = self._ground(names)
        if migrated:
            store = ground.store(pool_size=1)
            store.prepare(migrate=True)
            store.close()
        return ground

    def _ground(self, names: Names) -> Ground:
        # By its name the sessions of one ground are told from others.
        dsn = make_conninfo(self.dsn, application_name=names.schema)
        return Ground(dsn, names, self.control)

    def give_back(self, ground: Ground) -> None:
        """Take back a ground that was migrated and is as it was, but for its rows."""
        self._free.append(ground.names)

    def close(self) -> None:
        """Drop everything."""
        for names in self._made:
            self.control.execute(
                sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(names.schema))
            )
        self.control.close()


def newest_migration(names: Names) -> int:
    return Migrations(names).newest
