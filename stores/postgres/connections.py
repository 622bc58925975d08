"""Connections to the database, kept for the next call: at most so many, each used by one thread at a time.

Owns how a connection is opened, that no wait on one lasts for ever, and that no process uses a connection of
another. Has no threads: whoever needs a connection opens it, and gets the driver's error at once if that fails. Refuses
session state (settings, session locks), and prepared statements unless it was told that nothing is in between: the
server behind a pooler is another one each time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import select
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final, TypeVar

import psycopg
from psycopg import conninfo
from psycopg.adapt import Buffer, Loader
from psycopg.rows import TupleRow

from stores.postgres.prepared import Found, PreparedStatements
from stores.postgres.trouble import TooLong
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import SettingsError, StoreUnavailable
from task_tracker.forks import renew_after_fork

__all__ = ["BoundedConnection", "Connections", "Opener", "RawJson", "opener"]

_T = TypeVar("_T")

_IDLE_SECONDS: Final = 60.0
"""How long a connection that nobody needs is kept."""
_PREPARE_AFTER: Final = 3
"""Times that a statement is sent as it is."""
_AT_REST: Final = psycopg.pq.TransactionStatus.IDLE
_CANCEL_SECONDS: Final = 1
_LONGEST_GRACE_SECONDS: Final = 2.0
"""How much longer than the server this side waits."""
_KEEPALIVE: Final = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""A peer that vanished is noticed within half a minute; a setting of the connection string wins."""


class RawJson(Loader):
    """JSON as bytes: the codec reads it."""

    def load(self, data: Buffer) -> bytes:
        """Return the bytes."""
        return bytes(data)


class BoundedConnection(psycopg.Connection[TupleRow]):
    """A connection on which no answer is waited for longer than ``patience_seconds``."""

    patience_seconds: float = math.inf
    _poll: select.poll | None = None
    prepare_after: int | None = None
    """How often a statement comes before it is prepared here; None: never. The driver itself prepares none: it would
    have the server forget all plans after a ROLLBACK."""
    _statements: PreparedStatements | None = None

    def ask(self, statement: bytes, params: Mapping[str, Any], *, rows: bool) -> Found:
        """Run a statement; return its ``rows``, if it gives any, and how many it has touched.

        Raises psycopg.Error, among them TooLong.
        """
        if self.prepare_after is not None:
            if self._statements is None:
                self._statements = PreparedStatements(self, self.prepare_after)
            found = self._statements.execute(statement, params, self.patience_seconds)
            if found is not None:
                return found
        cursor = self.execute(statement, params)
        return cursor.fetchall() if rows else [], cursor.rowcount

    def wait(self, gen: Generator[Any, Any, _T], *args: Any, **kwargs: Any) -> _T:
        """Wait as the driver does, but not for ever. Raises TooLong."""
        return super().wait(_bounded(gen, SYSTEM_CLOCK.monotonic() + self.patience_seconds), *args, **kwargs)

    @property
    def is_silent(self) -> bool:
        """Whether it is open and nothing has come: on an idle connection what comes is its end."""
        if self.closed:
            return False
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.fileno(), select.POLLIN | select.POLLPRI)
        return not self._poll.poll(0)


def _bounded(gen: Generator[Any, Any, _T], deadline: float) -> Generator[Any, Any, _T]:
    # The driver looks in several times a second, also when nothing has come.
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if SYSTEM_CLOCK.monotonic() > deadline:
                raise TooLong("the server does not answer")
            wanted = gen.send(ready)
    except StopIteration as done:
        answer: _T = done.value
        return answer


Opener = Callable[[], BoundedConnection]


def opener(dsn: str, *, connect_seconds: float, statement_seconds: float, setting: str = "dsn") -> Opener:
    """Return what opens connections to ``dsn``. Raises SettingsError if that is no connection string.

    The connection string is kept here and shown nowhere.
    """
    try:
        given = conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        # The driver's message quotes parts of it.
        raise SettingsError(
            f"storage.task_tracker.{setting} is no PostgreSQL connection string; give "
            "postgresql://user:password@host/database"
        ) from None
    defaults = {
        **_KEEPALIVE,
        "connect_timeout": max(2, math.ceil(connect_seconds)),  # the shortest that libpq takes
        "application_name": "task_tracker",
    }
    wanted: dict[str, Any] = {**defaults, **given, "client_encoding": "utf8"}
    asked = conninfo.make_conninfo(**wanted)

    def open_one() -> BoundedConnection:
        connection = BoundedConnection.connect(asked, autocommit=True, prepare_threshold=None)
        for name in ("json", "jsonb"):
            connection.adapters.register_loader(name, RawJson)
        connection.patience_seconds = statement_seconds + min(statement_seconds, _LONGEST_GRACE_SECONDS)
        return connection

    return open_one


@dataclasses.dataclass(slots=True)
class _Idle:
    connection: BoundedConnection
    since: float


class Connections:
    """The connections of this process, opened when they are needed; a forked child has none at first.

    ``size`` is how many there may be at once; whoever needs one more waits for it, ``patience_seconds`` at most.
    """

    def __init__(self, open_one: Opener, *, size: int, patience_seconds: float) -> None:
        self._open = open_one
        self._size = size
        self._patience = patience_seconds
        self._prepare_after: int | None = None
        self._closed = False
        self._everyone: set[BoundedConnection] = set()
        self._inherited: list[BoundedConnection] = []
        self._begin()
        renew_after_fork(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._idle: list[_Idle] = []
        self._used = 0

    def renew(self) -> None:
        """Begin anew in a forked child; the parent's connections stay the parent's."""
        idle = {idle.connection for idle in self._idle}
        for connection in self._everyone:
            _disown(connection, idle=connection in idle)
        # Kept, because the driver would complain of those that were never closed.
        self._inherited += self._everyone - idle
        self._everyone = set()
        self._begin()

    def take(self) -> BoundedConnection:
        """Return a connection that nobody else has. Raises psycopg.Error, StoreUnavailable."""
        dead: list[BoundedConnection] = []
        try:
            with self._lock:
                connection = self._wait_for_one(dead)
        finally:
            if dead:
                _close_all(dead)
        if connection is not None:
            return connection
        try:
            connection = self._open()
            connection.prepare_after = self._prepare_after
        except BaseException:
            with self._lock:
                self._used -= 1
                self._freed()
            raise
        with self._lock:
            self._everyone.add(connection)
        return connection

    def _wait_for_one(self, dead: list[BoundedConnection]) -> BoundedConnection | None:
        """Return an idle one, or None if the caller is to open one; its place is taken already."""
        deadline: float | None = None
        while True:
            while self._idle:
                connection = self._idle.pop().connection
                if connection.is_silent:
                    self._used += 1
                    return connection
                dead.append(self._forget(connection))
            if self._used < self._size:
                self._used += 1
                return None
            now = SYSTEM_CLOCK.monotonic()
            deadline = now + self._patience if deadline is None else deadline
            left = deadline - now
            if left <= 0:
                raise StoreUnavailable(
                    f"all {self._size} connections of this process have been in use for {self._patience:g} s; try "
                    "again, or raise storage.task_tracker.options.pool_size"
                )
            self._waiting += 1
            try:
                self._changed.wait(left)
            finally:
                self._waiting -= 1

    def give_back(self, connection: BoundedConnection) -> None:
        """Take a connection back, for the next caller if it is as good as new."""
        done = []
        # Asked of libpq itself, for which a connection that is closed or broken is in no known state.
        healthy = connection.pgconn.transaction_status == _AT_REST
        with self._lock:
            if connection not in self._everyone:  # of the parent process
                return
            self._used -= 1
            if healthy and not self._closed:
                now = SYSTEM_CLOCK.monotonic()
                self._idle.append(_Idle(connection, now))
                while now - self._idle[0].since > _IDLE_SECONDS:
                    done.append(self._forget(self._idle.pop(0).connection))
            else:
                done.append(self._forget(connection))
            self._freed()
        if done:
            _close_all(done)

    def prepare_statements(self, connection: BoundedConnection, *, wanted: bool) -> None:
        """Have the server keep the plans of statements that come often, on ``connection`` and on those opened later."""
        self._prepare_after = connection.prepare_after = _PREPARE_AFTER if wanted else None

    def abandon(self, connection: BoundedConnection) -> None:
        """Have no more to do with a connection that another thread uses: whoever closed it would be in its way."""
        with self._lock:
            if connection not in self._everyone:
                return
            self._forget(connection)
            self._used -= 1
            self._freed()

    def forget_idle(self) -> None:
        """Close what nobody uses: the server has ended one connection, and with it perhaps all."""
        with self._lock:
            done = [self._forget(idle.connection) for idle in self._idle]
            self._idle.clear()
        _close_all(done)

    def close(self) -> None:
        """Close all that nobody uses, and the others when they come back; none is kept any more. Twice is safe."""
        with self._lock:
            self._closed = True
        self.forget_idle()

    def _freed(self) -> None:
        """Let one of those go on that wait for a connection; under the lock."""
        if self._waiting:
            self._changed.notify()

    def _forget(self, connection: BoundedConnection) -> BoundedConnection:
        self._everyone.discard(connection)
        return connection


def _close_all(connections: Iterable[BoundedConnection]) -> None:
    """Close connections, whatever they are doing; the server is told to stop."""
    for connection in connections:
        with contextlib.suppress(psycopg.Error):
            if (
                not connection.closed
                and connection.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE
            ):
                connection.cancel_safe(timeout=_CANCEL_SECONDS)
        with contextlib.suppress(psycopg.Error):
            connection.close()


def _disown(connection: BoundedConnection, *, idle: bool) -> None:
    """Let go of a connection of the parent without a word to the server."""
    with contextlib.suppress(psycopg.Error, OSError):
        descriptor = os.open(os.devnull, os.O_RDWR)
        try:
            os.dup2(descriptor, connection.fileno(), inheritable=False)
        finally:
            os.close(descriptor)
        if idle:
            connection.close()  # its farewell goes nowhere
