"""Listening: one connection on which the database tells of changes, while somebody in this process wants to know.

Owns that connection and its thread, and the row which says to writers that somebody listens. Whoever listens
hears himself before he believes that he hears others; then, and after every loss of the connection, all who wait are
told once that anything may have changed. Refuses to be relied on: what is not heard is found by looking.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, LiteralString

import orjson
import psycopg
from psycopg import sql

from stores.postgres.connections import BoundedConnection, Connections, Opener
from stores.postgres.database import Database
from stores.postgres.doorbell import Doorbell
from stores.postgres.names import Names
from stores.postgres.rows import ANYTHING, news_of
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.duty import Duty
from task_tracker.errors import TaskTrackerError
from task_tracker.forks import renew_after_fork
from task_tracker.records import TaskKey
from task_tracker.redaction import redact_text

__all__ = ["Listener"]

_log = logging.getLogger("task_tracker")

_LINGER_SECONDS: Final = 5.0
"""How long it goes on listening at least once nobody wants to know."""
_RENEW_SECONDS: Final = 15.0
_GONE_SECONDS: Final = 60.0
"""How long writers believe that somebody listens who is not heard of."""
_PROBE_SECONDS: Final = 5.0
"""How soon one has to hear oneself."""
_FAREWELL_SECONDS: Final = 1.0
_SHORTEST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 10.0
_POOLER_PAUSE_SECONDS: Final = 60.0
_TROUBLE: Final = (psycopg.Error, TaskTrackerError, OSError, ValueError)

OnChange = Callable[[TaskKey | None], None]


class _Deaf(Exception):
    """Notifications do not come on this connection, and will not when it is opened again."""


class Listener(Duty):
    """What a store hears. ``open_connection`` leads to the server itself; if only hoped (``direct`` is False) it is
    asked whether a pooler is in between."""

    def __init__(self, database: Database, names: Names, open_connection: Opener, *, direct: bool) -> None:
        super().__init__("postgres listener", SYSTEM_CLOCK)
        self.failures = 0
        """How often listening failed in this process."""
        self._database = database
        self._names = names
        self._direct = direct
        self._connections = Connections(open_connection, size=1, patience_seconds=_PROBE_SECONDS)
        self._waiting_channel = names.channel("waiting")
        self._changes_channel = names.channel("changes")
        self._closed = False
        self._bell: Doorbell | None = None
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begin anew: in a forked child nobody watches, and the connection is the parent's."""
        self._lock = threading.Lock()
        self._changes: dict[object, OnChange] = {}
        self._queue: dict[object, Callable[[], None]] = {}
        self._left_at = dict.fromkeys(("changes", "queue"), -_LINGER_SECONDS)
        self._identity = self._clock.new_token()
        self.hearing = threading.Event()
        """Set while all that is wanted is heard."""
        self._pause = _SHORTEST_PAUSE_SECONDS
        self._away_since: float | None = None
        if self._bell is not None:
            self._bell.close()
        self._bell = None
        self._connection: BoundedConnection | None = None
        self._forget()

    def _forget(self) -> None:
        self._with_changes: bool | None = None
        self._probe: str | None = None
        self._probe_until = self._renew_at = self._noted_at = self._heard_at = 0.0
        self._proven = False

    # ---- who wants to know ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self, on_change: OnChange) -> Iterator[None]:
        """See :meth:`TaskStore.watch`."""
        with self._listed(self._changes, "changes", on_change):
            yield

    @contextlib.contextmanager
    def watching_queue(self, on_waiting: Callable[[], None]) -> Iterator[None]:
        """See :meth:`LeaseStore.watch_queue`."""
        with self._listed(self._queue, "queue", on_waiting):
            yield

    @contextlib.contextmanager
    def _listed(self, where: dict[object, Any], what: str, callback: object) -> Iterator[None]:
        me = object()
        with self._lock:
            where[me] = callback
            self._left_at[what] = self._clock.monotonic()
            if self._bell is None and not self._closed:
                self._bell = Doorbell()
        self._want()
        try:
            yield
        finally:
            with self._lock:
                where.pop(me, None)
                self._left_at[what] = self._clock.monotonic()

    def _want(self) -> None:
        if self._closed:
            return
        try:
            self.start()
        except RuntimeError as error:  # there are no threads any more
            self._lost(error)
        self._ring()

    def _ring(self) -> None:
        with self._lock:
            if self._bell is not None:
                self._bell.ring()

    def _is_wanted(self, *what: str) -> bool:
        with self._lock:
            now = self._clock.monotonic()
            watched = {"changes": self._changes, "queue": self._queue}
            return not self._closed and any(
                watched[name] or now - self._left_at[name] < _LINGER_SECONDS for name in what
            )

    # ---- the thread ----------------------------------------------------------------------------------

    def stop(self, timeout_seconds: float | None = 10.0) -> bool:
        """End the thread and the connection, for good; return whether they have ended."""
        self._closed = True
        self._ring()
        ended = super().stop(timeout_seconds)
        if ended:
            self._let_go()
        return ended

    def _let_go(self) -> None:
        self._drop()
        with self._lock:
            bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()

    def run_once(self) -> float | None:
        """Hear what has come and wait for more; return the pause until the next round, None to end."""
        try:
            if not self._is_wanted("changes", "queue"):
                self.last_round()
                if not self._is_wanted("changes", "queue"):
                    self._drop()
                    return None
                self.start()  # somebody came in between, and counted on this thread
                return None
            self._listen()
        except _Deaf as error:
            return self._lost(error, _POOLER_PAUSE_SECONDS)
        except _TROUBLE as error:
            return self._lost(error)
        finally:
            if (
                self.told_to_stop and self._closed
            ):  # whoever stopped it has not waited for the end of this round
                self._let_go()
        return 0.0

    def on_error(self) -> float:
        """Begin with a new connection, whatever it was: all are told to look then."""
        self._drop()
        return self._next_pause()

    def _listen(self) -> None:
        connection = self._connection if self._connection is not None else self._connect()
        now = self._clock.monotonic()
        with_changes = self._is_wanted("changes")
        if with_changes != self._with_changes:
            self._choose(connection, with_changes)
        elif now >= self._renew_at:
            # A process that was stopped for long was taken for gone, and was told nothing.
            gone = now - self._noted_at >= _GONE_SECONDS
            self._note(probe=gone or now - self._heard_at >= _RENEW_SECONDS, look=gone)
        elif self._probe is not None and now >= self._probe_until:
            raise (ConnectionError if self._proven else _Deaf)("nothing is heard on this connection")
        if self._hear(connection.notifies(timeout=0)) or self._bell is None:
            return
        until = self._renew_at if self._probe is None else min(self._renew_at, self._probe_until)
        self._bell.wait(connection.fileno(), max(0.0, until - self._clock.monotonic()))

    def _connect(self) -> BoundedConnection:
        connection = self._connections.take()
        self._connection = connection
        self._forget()
        if not self._direct:
            found = connection.execute(b"SELECT pg_backend_pid()").fetchone()
            if found != (connection.info.backend_pid,):
                raise _Deaf(
                    "a pooler is in between, and it may be one that takes each transaction elsewhere; give "
                    "storage.task_tracker.options.listen_dsn, which leads to the server itself"
                )
        _say(connection, "LISTEN {}", self._waiting_channel)
        return connection

    def _choose(self, connection: BoundedConnection, with_changes: bool) -> None:
        """Listen to what is wanted now."""
        begins = with_changes or self._with_changes is None
        if with_changes:
            _say(connection, "LISTEN {}", self._changes_channel)
        elif self._with_changes:
            _say(connection, "UNLISTEN {}", self._changes_channel)
        self._with_changes = with_changes
        self._note(probe=begins, look=begins)

    def _note(self, *, probe: bool, look: bool) -> None:
        """Tell writers that somebody listens; with ``look`` all are to look once that is heard."""
        if look:
            self.hearing.clear()
        if probe:
            self._probe = self._clock.new_token()
            self._probe_until = self._clock.monotonic() + _PROBE_SECONDS
        params = {
            "name": self._identity,
            "changes": self._with_changes,
            "seconds": _GONE_SECONDS,
            "probe": self._probe,
        }
        noted_at = self._clock.monotonic()
        self._database.write("note who listens", lambda session: session.one("listen", params))
        self._noted_at, self._renew_at = noted_at, noted_at + _RENEW_SECONDS

    # ---- what is heard -------------------------------------------------------------------------------

    def _hear(self, notifications: Iterable[psycopg.Notify]) -> bool:
        """Pass on what has come; return whether there was anything."""
        keys: dict[TaskKey | None, None] = {}
        heard = waiting = False
        for notification in notifications:
            heard = True
            if notification.payload == self._probe:
                self._probe = None
                self._proven = True
                if not self.hearing.is_set():
                    self._is_back()
                    keys[None], waiting = None, True
                continue
            told = _key_in(notification.payload)
            if told is not _ALIEN:
                keys[told] = None  # type: ignore[index]  # a key or None
                waiting = waiting or notification.channel == self._waiting_channel
        if heard:
            self._heard_at = self._clock.monotonic()
        with self._lock:
            on_changes, on_waitings = [*self._changes.values()], [*self._queue.values()] if waiting else []
        for on_waiting in on_waitings:
            on_waiting()
        for on_change in on_changes:
            for key in [None] if None in keys else keys:
                on_change(key)
        return heard

    def _is_back(self) -> None:
        self.hearing.set()
        self._pause = _SHORTEST_PAUSE_SECONDS
        if self._away_since is not None:
            _log.info(
                "PostgreSQL tells of changes again after %.0f s",
                self._clock.monotonic() - self._away_since,
                extra={"event": "listen_back"},
            )
        self._away_since = None

    # ---- what goes wrong -----------------------------------------------------------------------------

    def _lost(self, error: Exception, pause: float | None = None) -> float:
        self._drop()
        self.failures += 1
        if self._away_since is None:
            self._away_since = self._clock.monotonic()
            said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            _log.warning(
                "PostgreSQL does not tell of changes (%s); it is tried again and again, and they are found by looking "
                "until then",
                redact_text(said),
                extra={"event": "listen_away"},
            )
        return self._next_pause() if pause is None else self._clock.jitter(pause)

    def _next_pause(self) -> float:
        pause = self._pause
        self._pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return self._clock.jitter(pause)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        heard = self.hearing.is_set()
        self.hearing.clear()
        self._forget()
        with contextlib.suppress(psycopg.Error):
            if heard and not connection.closed:
                connection.patience_seconds = _FAREWELL_SECONDS
                connection.execute(self._database.statements["listen_no_more"], {"name": self._identity})
        with contextlib.suppress(psycopg.Error):
            connection.close()
        self._connections.give_back(connection)


def _say(connection: BoundedConnection, text: LiteralString, channel: str) -> None:
    connection.execute(sql.SQL(text).format(sql.Identifier(channel)))


_ALIEN: Final = object()


def _key_in(payload: str) -> object:
    """Return the key that was told, None for any, ``_ALIEN`` for what this library never sent."""
    if payload == ANYTHING:
        return None
    try:
        said = orjson.loads(payload)
    except ValueError:
        return _ALIEN
    if (
        isinstance(said, list)
        and len(said) == len(TaskKey._fields)
        and all(isinstance(part, str) for part in said)
    ):
        key = TaskKey(*said)
        return key if news_of(key) == payload else _ALIEN
    return _ALIEN
