"""Creations on a connection of the caller's: a task together with the rows that it is about, or neither.

Owns how the statements of this store are sent there, also from another thread to a connection of an event loop. Refuses
to begin, end or repeat anything: the transaction is the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.rows import TupleRow, tuple_row

from stores.postgres.connections import RawJson
from stores.postgres.database import Session, params_of
from stores.postgres.prepared import Found
from stores.postgres.statements import Statements
from stores.postgres.trouble import unavailable
from task_tracker.errors import StoreUnavailable
from task_tracker.store import OnLoop

__all__ = ["JoinedDatabase"]

_T = TypeVar("_T")

_Ask = Callable[[bytes, dict[str, Any], bool], Found]

# Cursors of this module's own: the caller's may give other rows or values, or take other parameters.
_ADAPTERS: Final = AdaptersMap(psycopg.adapters)
_ADAPTERS.register_loader("json", RawJson)


class _Cursor(psycopg.Cursor[TupleRow]):
    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


class _AsyncCursor(psycopg.AsyncCursor[TupleRow]):
    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


class JoinedDatabase:
    """Runs work in the caller's transaction, once. Raises TypeError, ValueError for a connection that will not do."""

    def __init__(self, connection: object, statements: Statements, *, quiet: bool) -> None:
        given = connection.connection if isinstance(connection, OnLoop) else connection
        wanted = psycopg.AsyncConnection if isinstance(connection, OnLoop) else psycopg.Connection
        if not isinstance(given, wanted):
            raise TypeError(
                f"connection is {type(given).__module__}.{type(given).__qualname__}; TaskTracker takes a "
                "psycopg.Connection, AsyncTaskTracker a psycopg.AsyncConnection"
            )
        if given.closed:
            raise ValueError(
                "connection is closed; give one that is open, in the transaction of your own rows"
            )
        if given.info.encoding != "utf-8":
            raise ValueError(
                f"the client_encoding of connection is {given.info.encoding}, which does not hold every text; "
                "connect with client_encoding=utf8"
            )
        self._ask: _Ask
        if isinstance(given, psycopg.AsyncConnection):
            assert isinstance(connection, OnLoop), "those are refused above"
            self._ask = _OnLoop(given, connection).ask
        else:
            self._ask = _Here(given).ask
        self._statements = statements
        self._quiet = quiet

    def read(self, what: str, work: Callable[[Session], _T]) -> _T:
        """Run work that changes nothing. Raises StoreUnavailable; ``what`` is what it would not do, as a verb."""
        return self.write(what, work)

    def write(self, what: str, work: Callable[[Session], _T], *, repeats: bool = True) -> _T:
        """Run work. Raises StoreUnavailable: the caller's transaction can only be rolled back then."""
        try:
            return work(_JoinedSession(self._ask, self._statements, quiet=self._quiet))
        except psycopg.Error as error:
            raise unavailable(error, what) from error


class _JoinedSession(Session):
    def __init__(self, ask: _Ask, statements: Statements, *, quiet: bool) -> None:
        self.again = False
        self._quiet = quiet
        self._ask = ask
        self._statements = statements

    def _found(self, name: str, params: dict[str, Any] | None, *, rows: bool) -> Found:
        return self._ask(self._statements[name], params_of(params, quiet=self._quiet), rows)


class _Here:
    """Asks in the caller's thread."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def ask(self, statement: bytes, params: dict[str, Any], rows: bool) -> Found:
        with _Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(statement, params, prepare=False)
            return cursor.fetchall() if rows else [], cursor.rowcount


class _OnLoop:
    """Asks on the loop on which the caller awaits this call."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], given: OnLoop) -> None:
        self._connection = connection
        self._loop = given.loop
        self._is_over = given.is_over

    def ask(self, statement: bytes, params: dict[str, Any], rows: bool) -> Found:
        return asyncio.run_coroutine_threadsafe(self._ask(statement, params, rows), self._loop).result()

    async def _ask(self, statement: bytes, params: dict[str, Any], rows: bool) -> Found:
        if self._is_over.is_set():  # the next statement would be in whatever the caller does now
            raise StoreUnavailable("the caller has stopped waiting, and its connection is left alone")
        async with _AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(statement, params, prepare=False)
            return await cursor.fetchall() if rows else [], cursor.rowcount
