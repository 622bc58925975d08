"""Sessions on the database: one statement, or one transaction, tried again where that is safe.

Owns the limits of time, the number of tries, and what becomes of the driver's errors. Refuses to know what is asked:
work is a function of a :class:`Session`, and one that writes can be run again after an answer was lost, because it
looks first whether it has happened (``session.again``).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

import psycopg

from stores.postgres.connections import BoundedConnection, Connections
from stores.postgres.prepared import Found
from stores.postgres.statements import Statements
from stores.postgres.trouble import is_conflict, is_forgotten, is_full, is_lost, unavailable, unreached
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import StoreUnavailable
from task_tracker.forks import renew_after_fork

__all__ = ["Database", "Session", "SessionInside", "Works", "begin", "limits", "params_of"]

_T = TypeVar("_T")

_TRIES: Final = 5
"""When the database gives up on a try because of others."""
_LOST_TRIES: Final = 2
"""When the connection breaks: on another one, once."""

_MOST_FORGOTTEN: Final = 10
_FORGOTTEN_SECONDS: Final = 60.0
"""Once the server has forgotten so many statements within this time, none is prepared any more."""
_LONGEST_SECONDS: Final = 2_000_000.0
"""Settings are whole numbers of milliseconds, of 31 bits."""

Row = tuple[Any, ...]

_ASKED: Final = b"SELECT current_setting('default_transaction_isolation'), pg_backend_pid()"


def begin(*, lock_seconds: float, statement_seconds: float, idle_seconds: float | None = None) -> str:
    """Return how a transaction begins: with limits of its own, since nothing set for a session would last.

    A process that is stopped in the middle of it must not keep its locks for ever: it may do so for
    ``idle_seconds``, by itself as long as it may wait for others.
    """
    said = limits(lock_seconds=lock_seconds, statement_seconds=statement_seconds, idle_seconds=idle_seconds)
    return f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {said}"


def limits(*, lock_seconds: float, statement_seconds: float, idle_seconds: float | None = None) -> str:
    """Return what sets these limits for the transaction that is under way."""
    idle_seconds = lock_seconds if idle_seconds is None else idle_seconds
    return (
        f"SET LOCAL lock_timeout = {_milliseconds(lock_seconds)}; "
        f"SET LOCAL statement_timeout = {_milliseconds(statement_seconds)}; "
        f"SET LOCAL idle_in_transaction_session_timeout = {_milliseconds(idle_seconds)}"
    )


def _milliseconds(seconds: float) -> int:
    return max(1, round(min(seconds, _LONGEST_SECONDS) * 1000))


def params_of(params: dict[str, Any] | None, *, quiet: bool) -> dict[str, Any]:
    """Return the parameters of a statement; ``quiet``: it is to tell nobody."""
    params = params or {}
    return {**params, "news": None} if quiet and "news" in params else params


class Session:
    """A connection while one piece of work is done. ``again``: an earlier try of it may have taken effect."""

    def __init__(
        self,
        connection: BoundedConnection,
        statements: Statements,
        beginning: str,
        *,
        again: bool,
        explicit: bool,
        quiet: bool = False,
    ) -> None:
        self.connection = connection
        self.again = again
        self._statements = statements
        self._beginning = beginning
        self._explicit = explicit
        self._quiet = quiet

    def one(self, name: str, params: dict[str, Any] | None = None) -> Row | None:
        """Run a named statement and return its first row, None if there is none."""
        rows, _ = self._found(name, params, rows=True)
        return rows[0] if rows else None

    def all(self, name: str, params: dict[str, Any] | None = None) -> list[Row]:
        """Run a named statement and return its rows."""
        return self._found(name, params, rows=True)[0]

    def run(self, name: str, params: dict[str, Any] | None = None) -> int:
        """Run a named statement and return how many rows it touched."""
        return self._found(name, params, rows=False)[1]

    def _found(self, name: str, params: dict[str, Any] | None, *, rows: bool) -> Found:
        if self._explicit:
            with self.transaction():
                return self._found(name, params, rows=rows)
        return self.connection.ask(self._statements[name], params_of(params, quiet=self._quiet), rows=rows)

    @contextlib.contextmanager
    def transaction(self, *also: str) -> Iterator[None]:
        """Run the block in a transaction; ``also`` is SQL that is sent with its beginning. An error undoes it."""
        explicit, self._explicit = self._explicit, False
        self.connection.execute("; ".join((self._beginning, *also)).encode())
        try:
            yield
        except BaseException:
            # If this fails too the connection is thrown away, and the server undoes it.
            with contextlib.suppress(psycopg.Error):
                self.connection.execute(b"ROLLBACK")
            raise
        else:
            self.connection.execute(b"COMMIT")
        finally:
            self._explicit = explicit


class SessionInside(Session):
    """A session within a transaction that somebody else began, and will end."""

    @contextlib.contextmanager
    def transaction(self, *also: str) -> Iterator[None]:
        """Run the block as it is."""
        yield


class Works(Protocol):
    """What runs work that asks for records or writes them."""

    def read(self, what: str, work: Callable[[Session], _T]) -> _T:
        """See :meth:`Database.read`."""

    def write(self, what: str, work: Callable[[Session], _T], *, repeats: bool = True) -> _T:
        """See :meth:`Database.write`."""


class Database:
    """Where sessions come from. Thread-safe.

    ``prepare`` is called with the first connection of the process: it raises if the tables are not what this code
    expects. ``tells``: writes tell those who listen.
    """

    def __init__(
        self,
        connections: Connections,
        statements: Statements,
        *,
        lock_seconds: float,
        statement_seconds: float,
        prepare: Callable[[BoundedConnection], None],
        tells: bool = True,
    ) -> None:
        self.connections = connections
        self.statements = statements
        self._beginning = begin(lock_seconds=lock_seconds, statement_seconds=statement_seconds)
        self._prepare = prepare
        self._prepared = False
        self._explicit = False
        self._tells = tells
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock: a forked child has a copy."""
        self._lock = threading.Lock()
        self._forgotten: list[float] = []

    def read(self, what: str, work: Callable[[Session], _T]) -> _T:
        """Run work that changes nothing. Raises StoreUnavailable; ``what`` is what it would not do, as a verb."""
        return self._run(what, work, writes=False)

    def write(self, what: str, work: Callable[[Session], _T], *, repeats: bool = True) -> _T:
        """Run work that changes something; ``repeats``: it may be run again after an answer was lost."""
        return self._run(what, work, writes=True, repeats=repeats)

    def _run(self, what: str, work: Callable[[Session], _T], *, writes: bool, repeats: bool = True) -> _T:
        lost = conflicts = plans = 0
        quiet = not self._tells
        while True:
            connection = self._connected(what, maybe=writes and lost > 0)
            try:
                if not self._prepared:
                    self._check(connection)
                return work(self._session(connection, again=lost > 0, quiet=quiet))
            except psycopg.Error as error:
                if is_forgotten(error) and (plans := plans + 1) < _TRIES:
                    self._forget_plans(connection)  # nothing has happened yet
                    continue
                if is_conflict(error):
                    conflicts += 1
                    if conflicts < _TRIES:
                        continue
                    raise unavailable(error, what) from error
                if is_full(error) and not quiet:
                    quiet = True  # a session that hears nothing more must not keep others from writing
                    continue
                gone = is_lost(error, connection)
                if gone:
                    lost += 1
                    self.connections.forget_idle()
                    if repeats and lost < _LOST_TRIES:
                        continue
                maybe = writes and (lost > 0 or error.sqlstate is None)
                raise unavailable(error, what, maybe=maybe) from error
            finally:
                self.connections.give_back(connection)

    def _forget_plans(self, connection: BoundedConnection) -> None:
        """Begin anew with this connection: the tables were altered, or there is a pooler that does not show."""
        now = SYSTEM_CLOCK.monotonic()
        with self._lock:
            self._forgotten = [at for at in self._forgotten if now - at < _FORGOTTEN_SECONDS] + [now]
            often = len(self._forgotten) > _MOST_FORGOTTEN
        if often:
            self.connections.prepare_statements(connection, wanted=False)
            self.connections.forget_idle()
        connection.close()

    @property
    def quiet(self) -> bool:
        """Whether writes tell nobody."""
        return not self._tells

    def prepare(self) -> None:
        """Make sure, once, that the tables are what this code expects. Raises as ``prepare`` does, StoreUnavailable."""
        if not self._prepared:
            self.read("look at its tables", lambda _: None)

    def _session(self, connection: BoundedConnection, *, again: bool, quiet: bool) -> Session:
        return Session(
            connection, self.statements, self._beginning, again=again, explicit=self._explicit, quiet=quiet
        )

    def _connected(self, what: str, *, maybe: bool) -> BoundedConnection:
        try:
            return self.connections.take()
        except psycopg.Error as error:
            raise unreached(error, what, maybe=maybe) from error
        except StoreUnavailable as error:
            if maybe:
                raise unavailable(error, what, maybe=True) from error
            raise

    def _check(self, connection: BoundedConnection) -> None:
        with self._lock:
            if not self._prepared:
                self._prepare(connection)
                found = connection.execute(_ASKED).fetchone()
                assert found is not None, "it always answers"
                isolation, server = found
                # Elsewhere a statement that waited would go by what was there before it waited.
                self._explicit = isolation != "read committed"
                # A pooler gives out numbers of its own: behind it the next transaction is on another server.
                direct = server == connection.info.backend_pid
                self.connections.prepare_statements(connection, wanted=direct)
                self._prepared = True
