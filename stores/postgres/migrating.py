"""Migrations: numbered SQL files, each applied once, by whoever comes first of any number of processes.

Owns what is in the database of this store and what is still to come. A migration and the note that it was applied are
one transaction, under an advisory lock that lasts as long as that. Refuses a database that is newer than this code.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from stores.postgres.connections import BoundedConnection
from stores.postgres.database import begin
from stores.postgres.names import Names
from stores.postgres.trouble import unavailable
from task_tracker.errors import SettingsError
from task_tracker.redaction import redact_text

__all__ = ["Migration", "Migrations"]

_FILE: Final = re.compile(r"(\d{4})_\w+\.sql")
_LOCK_SECONDS: Final = 60.0
"""How long a process waits for another one's migration."""
_STATEMENT_SECONDS: Final = 600.0
_OLDEST_SERVER: Final = 130_000
_NO_TABLE: Final = ("42P01", "3F000")
_REFUSED: Final = "TT001"
"""What migrations raise themselves, with a message that says what to do."""
_MISFITS: Final = ("22", "23", "54")
"""Classes of errors that a row is to blame for: a value or its form, a constraint, a size."""

_TABLE: Final = """\
CREATE TABLE IF NOT EXISTS {migrations} (
    number integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)"""
_NOTE: Final = "INSERT INTO {migrations} (number, name) VALUES ({number}, {name})"


class Migration(NamedTuple):
    """One step: its number, the name of its file, and what it says."""

    number: int
    name: str
    text: str


class Migrations:
    """The steps of this code, for tables of these ``names``. ``directory`` is for tests."""

    def __init__(self, names: Names, directory: Path | None = None) -> None:
        self.names = names
        self.steps = _read(directory)

    @property
    def newest(self) -> int:
        """The number of the last step."""
        return len(self.steps)

    def pending(self, connection: BoundedConnection) -> Sequence[Migration]:
        """Return the steps that are still to be applied. Raises SettingsError if the database is newer."""
        _check_server(connection)
        with _trouble("tell its migrations"):
            try:
                found = connection.execute(
                    self.names.fill("SELECT coalesce(max(number), 0) FROM {migrations}")
                ).fetchone()
            except psycopg.Error as error:
                if error.sqlstate not in _NO_TABLE:
                    raise
                found = None
            return self._named(connection, self._after(found[0] if found is not None else 0))

    def _named(self, connection: BoundedConnection, steps: Sequence[Migration]) -> Sequence[Migration]:
        """Have the first step say so if it will take in an unversioned table."""
        if not steps or steps[0].number != 1:
            return steps
        table = self.names.fill("SELECT to_regclass({tasks_name}) IS NOT NULL")
        if connection.execute(table).fetchone() != (True,):
            return steps
        name = f"{steps[0].name} (takes in the unversioned table {self.names.table('tasks')})"
        return [steps[0]._replace(name=name), *steps[1:]]

    def check(self, connection: BoundedConnection) -> None:
        """Raise SettingsError unless all steps have been applied and no others."""
        pending = self.pending(connection)
        if pending:
            raise SettingsError(
                f"the tables {self.names.table('*')} lack the migration {pending[0].name} (of {len(pending)} to come); "
                "run `python -m task_tracker migrate`, or set storage.task_tracker.migrate to true"
            )

    def apply(self, connection: BoundedConnection) -> list[Migration]:
        """Apply what is to come and return what was applied here; any number of processes may do so at once.

        Raises SettingsError (a newer database), StoreUnavailable.
        """
        applied = []
        patience, connection.patience_seconds = connection.patience_seconds, _STATEMENT_SECONDS
        try:
            while self.pending(connection):
                with _trouble("migrate"):
                    applied += self._apply_one(connection)
        finally:
            connection.patience_seconds = patience
        return applied

    def _apply_one(self, connection: BoundedConnection) -> list[Migration]:
        with _transaction(connection):
            connection.execute(b"SELECT pg_advisory_xact_lock(%s)", [self.names.lock_key("migrate")])
            # Asked only now: whoever held the lock before may have done it all.
            found = connection.execute(b"SELECT to_regnamespace(%s)", [_quoted(self.names.schema)]).fetchone()
            if found == (None,):
                connection.execute(self.names.fill("CREATE SCHEMA {schema}"))
            connection.execute(self.names.fill(_TABLE))
            done = connection.execute(
                self.names.fill("SELECT coalesce(max(number), 0) FROM {migrations}")
            ).fetchone()
            assert done is not None, "an aggregate always answers"
            pending = self._after(done[0])
            if not pending:
                return []
            named = self._named(connection, pending)
            with contextlib.nullcontext() if named is pending else _taking_in():
                connection.execute(self.names.fill(pending[0].text))
            connection.execute(self._note(pending[0]))
            return [*named[:1]]

    def script(self) -> str:
        """Return all steps as SQL for whoever may not let a program change tables."""
        parts = [self.names.fill("CREATE SCHEMA IF NOT EXISTS {schema}"), self.names.fill(_TABLE)]
        text = "".join(f"{part.as_string(None)};\n\n" for part in parts)
        for step in self.steps:
            filled = self.names.fill(step.text).as_string(None)
            text += (
                f"-- {step.name}\nBEGIN;\n{filled.rstrip()}\n{self._note(step).as_string(None)};\nCOMMIT;\n\n"
            )
        return text.rstrip() + "\n"

    def _note(self, step: Migration) -> sql.Composed:
        return self.names.fill(_NOTE, {"number": sql.Literal(step.number), "name": sql.Literal(step.name)})

    def _after(self, done: int) -> Sequence[Migration]:
        if done > self.newest:
            raise SettingsError(
                f"the tables {self.names.table('*')} are at migration {done}, this version knows {self.newest}; "
                "upgrade durable-task-tracker here"
            )
        return self.steps[done:]


def _read(directory: Path | None) -> Sequence[Migration]:
    place = resources.files("stores.postgres").joinpath("migrations") if directory is None else directory
    steps = [
        Migration(int(matched[1]), path.name.removesuffix(".sql"), path.read_text(encoding="utf-8"))
        for path in place.iterdir()
        if (matched := _FILE.fullmatch(path.name))
    ]
    steps.sort()
    if [step.number for step in steps] != [*range(1, len(steps) + 1)]:
        raise ValueError(f"the migrations in {place} are not numbered from 0001 without a gap")
    return steps


@contextlib.contextmanager
def _transaction(connection: BoundedConnection) -> Iterator[None]:
    connection.execute(begin(lock_seconds=_LOCK_SECONDS, statement_seconds=_STATEMENT_SECONDS).encode())
    try:
        yield
    except BaseException:
        with contextlib.suppress(psycopg.Error):
            connection.execute(b"ROLLBACK")
        raise
    else:
        connection.execute(b"COMMIT")


@contextlib.contextmanager
def _taking_in() -> Iterator[None]:
    """Have what a row of an unversioned table is to blame for be SettingsError: to try again is of no use."""
    try:
        yield
    except psycopg.Error as error:
        if (error.sqlstate or "")[:2] not in _MISFITS:
            raise
        said = redact_text(error.diag.message_primary or type(error).__name__)
        raise SettingsError(
            f"a row of the unversioned table cannot be taken in ({said}); put such rows right, or delete them, and "
            "migrate again: nothing was changed"
        ) from error


@contextlib.contextmanager
def _trouble(what: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate == _REFUSED:
            raise SettingsError(str(error).partition("\n")[0]) from error
        raise unavailable(error, what) from error


def _check_server(connection: BoundedConnection) -> None:
    version = connection.info.server_version
    if version < _OLDEST_SERVER:
        raise SettingsError(
            f"the server is PostgreSQL {version // 10_000}; this store needs {_OLDEST_SERVER // 10_000} or newer"
        )


def _quoted(name: str) -> Any:
    """Return a name as functions take it that read names from text."""
    return sql.Identifier(name).as_string(None)
