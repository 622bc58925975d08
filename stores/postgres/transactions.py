"""Transactions for handlers: their own rows, and the fenced write of the record, in one.

Owns how such a transaction begins and ends, and how to find out afterwards whether it was committed. The write of the
record is the last statement; the row is locked from then on, so nobody takes the task over in between. Refuses to know
what handlers write.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from stores.postgres.connections import BoundedConnection, Connections
from stores.postgres.database import Database, SessionInside, begin, limits
from stores.postgres.lending import AsyncLent, Lent, lent, stop_users
from stores.postgres.ownership import Ownership, Write, check_not_lost
from stores.postgres.trouble import is_lost, unavailable, unreached
from task_tracker.errors import StoreUnavailable
from task_tracker.records import TaskRecord
from task_tracker.store import Lease, Stored

__all__ = ["PostgresTransaction", "Transactions"]

_TRIES: Final = 2
"""Of a beginning: a connection that was idle may be dead."""
_UNKNOWN_THERE: Final = "22023"
"""A number of a transaction that the server has never given out: it is another server, which knows less."""


class Transactions:
    """Begins them, on connections of their own: those of the store are left for heartbeats.

    A statement of a handler's may take ``statement_seconds`` and wait ``lock_seconds``; between two of them
    ``idle_seconds`` may pass. Handlers may set other limits.
    """

    def __init__(
        self,
        connections: Connections,
        database: Database,
        ownership: Ownership,
        *,
        lock_seconds: float,
        statement_seconds: float,
        idle_seconds: float,
    ) -> None:
        self.connections = connections
        self.database = database
        self.ownership = ownership
        self._beginning = begin(
            lock_seconds=lock_seconds, statement_seconds=statement_seconds, idle_seconds=idle_seconds
        )
        # Those who wait for the row must not wait for a handler: limits of the last statements, whatever it has set.
        self.last_limits = limits(lock_seconds=lock_seconds, statement_seconds=statement_seconds)

    def begin(self, lease: Lease, *, for_loop: bool) -> PostgresTransaction:
        """See :meth:`HasTransactions.begin`."""
        check_not_lost(lease)
        what = f"begin a transaction of task {lease.key.task_id}"
        for tries_left in reversed(range(_TRIES)):
            try:
                connection = self.connections.take()
            except psycopg.Error as error:
                raise unreached(error, what) from error
            try:
                number = _asked(connection, f"{self._beginning}; SELECT pg_current_xact_id()::text")
            except psycopg.Error as error:
                again = tries_left > 0 and is_lost(error, connection)
                self.connections.give_back(connection)
                if not again:
                    raise unavailable(error, what) from error
                self.connections.forget_idle()
            except BaseException:
                self.connections.give_back(connection)
                raise
            else:
                return PostgresTransaction(self, lease, connection, number, for_loop=for_loop)
        raise AssertionError("the last try returns or raises")


class PostgresTransaction:
    """One of them; see :class:`StoreTransaction`. ``number`` is the one that the server knows it by."""

    def __init__(
        self,
        source: Transactions,
        lease: Lease,
        connection: BoundedConnection,
        number: str,
        *,
        for_loop: bool,
    ) -> None:
        self._source = source
        self._lease = lease
        self._own = connection
        self._number = number
        self._is_over = False
        self._using = threading.Lock()
        self._lent: Lent | AsyncLent = lent(connection, for_loop=for_loop)
        self.connection: Any = self._lent

    def revoke(self) -> None:
        """See :meth:`StoreTransaction.revoke`."""
        self._lent.use.end()
        if self._lent.use.is_under_way:
            raise RuntimeError(
                "a statement on the connection of this transaction is still under way, in another thread or asyncio "
                "task; wait for it within the block"
            )

    def look(self) -> bool:
        """See :meth:`StoreTransaction.look`."""
        with self._using, _told("look at its lease"):
            return self._source.ownership.look(self._session(), self._lease)

    def write(self, how: Write, record: TaskRecord) -> Stored:
        """See :meth:`StoreTransaction.write`."""
        work = self._source.ownership.writing(how, self._lease, record)
        with self._using, _told(f"{how} task {self._lease.key.task_id}"):
            return work(self._session())

    def commit(self) -> None:
        """See :meth:`StoreTransaction.commit`."""
        with self._using:
            if not self._end():
                raise _rolled_back()
            try:
                self._own.execute(b"COMMIT")
            except psycopg.Error as error:
                if error.sqlstate is not None and not is_lost(error, self._own):
                    raise  # a constraint that was deferred until now: nothing was written
                raise unavailable(error, "commit a transaction", maybe=True) from error
            finally:
                self._source.connections.give_back(self._own)

    def is_committed(self) -> bool:
        """See :meth:`StoreTransaction.is_committed`."""
        try:
            found = self._source.database.read(
                "tell what became of a transaction",
                lambda session: session.one("fate", {"xid": self._number}),
            )
        except StoreUnavailable as error:
            if isinstance(error.__cause__, psycopg.Error) and error.__cause__.sqlstate == _UNKNOWN_THERE:
                return False
            raise
        fate = None if found is None else found[0]
        if fate in ("committed", "aborted"):
            return bool(fate == "committed")
        raise StoreUnavailable(
            f"PostgreSQL cannot tell yet what became of transaction {self._number} ({fate or 'too long ago'}); ask "
            "again"
        )

    def roll_back(self) -> None:
        """See :meth:`StoreTransaction.roll_back`."""
        if self._is_over:
            return
        is_free = stop_users(self._own, self._lent.use)
        with self._using:
            if not self._end():
                return
            if not is_free:
                self._source.connections.abandon(self._own)
                return
            try:
                self._own.execute(b"ROLLBACK")
            except psycopg.Error:
                pass  # the connection is thrown away, and the server undoes it
            finally:
                self._source.connections.give_back(self._own)

    # ---- within --------------------------------------------------------------------------------------

    def _session(self) -> SessionInside:
        """Return a session for the last statements. Raises RuntimeError if the users have left no transaction."""
        if self._is_over:
            raise _rolled_back()
        if self._own.info.transaction_status is TransactionStatus.INERROR:
            raise RuntimeError(
                "a statement of this transaction had failed, so it can only be rolled back; put what may fail into "
                "`connection.transaction()`, which undoes that part alone"
            )
        number = _asked(
            self._own, f"{self._source.last_limits}; SELECT pg_current_xact_id_if_assigned()::text"
        )
        if number != self._number:
            raise RuntimeError(
                "the transaction was ended within its block, so what it wrote is not bound to the task; leave COMMIT "
                "and ROLLBACK to the end of the block"
            )
        database = self._source.database
        return SessionInside(
            self._own, database.statements, "", again=False, explicit=False, quiet=database.quiet
        )

    def _end(self) -> bool:
        """End it; False if that was done before."""
        was_over, self._is_over = self._is_over, True
        return not was_over


def _rolled_back() -> StoreUnavailable:
    return StoreUnavailable("this transaction was rolled back, nothing was written; begin another one")


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Have what the driver raises in the block be StoreUnavailable: nothing was written."""
    try:
        yield
    except psycopg.Error as error:
        raise unavailable(error, what) from error


def _asked(connection: BoundedConnection, text: str) -> Any:
    """Run several statements and return the first column of what the last one found."""
    cursor = connection.execute(text.encode())
    while cursor.nextset():
        pass
    found = cursor.fetchone()
    return None if found is None else found[0]
