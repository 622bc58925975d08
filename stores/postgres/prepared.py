"""Statements that a connection has prepared, sent over libpq itself: the driver's cursor costs more than such a call.

Owns which statements those are (they come often, with values that need no adapting), how values are written, and that
no answer is waited for for ever. Rows are read by the driver. Refuses everything else: None says that it is for a
cursor, which raises what is to be raised.
"""

from __future__ import annotations

import math
import re
import select
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import abc
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, PipelineStatus
from psycopg.pq.abc import PGconn, PGresult

from stores.postgres.trouble import TooLong
from task_tracker.clock import SYSTEM_CLOCK

__all__ = ["Found", "PreparedStatements"]

Found = tuple[list[tuple[Any, ...]], int]
"""Rows, and how many the statement has touched."""

_MOST: Final = 200
"""Ways in which one connection sends its statements."""
_TEXT, _BINARY = 0, 1
_LONGEST_INTEGER: Final = 2**63 - 1
_NAMED: Final = re.compile(rb"%\((\w+)\)s|%%")
_READABLE: Final = select.POLLIN | select.POLLPRI
_DONE: Final = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class _Numbered(NamedTuple):
    """A statement as the server takes it, and what picks its parameters in their order."""

    text: bytes
    pick: Callable[[Mapping[str, Any]], tuple[Any, ...]]


@lru_cache(maxsize=512)
def _numbered(statement: bytes) -> _Numbered:
    names: dict[str, int] = {}

    def numbered(match: re.Match[bytes]) -> bytes:
        if match[1] is None:
            return b"%"
        return b"$%d" % names.setdefault(match[1].decode(), len(names) + 1)

    text = _NAMED.sub(numbered, statement)
    if len(names) > 1:
        return _Numbered(text, itemgetter(*names))
    return _Numbered(text, lambda params: tuple(params[name] for name in names))


# ---- values ----------------------------------------------------------------------------------------------
# What they are to the server is said only where it could not tell (https://www.postgresql.org/docs/current/
# protocol-flow.html, "Extended Query"): a text may be anything.


class _NotPlain(Exception):
    """A value is for the driver to write, or to refuse."""


def _of_text(value: str) -> bytes:
    if "\0" in value:
        raise _NotPlain
    return value.encode()


def _of_integer(value: int) -> bytes:
    if not -_LONGEST_INTEGER <= value <= _LONGEST_INTEGER:
        raise _NotPlain
    return b"%d" % value


_number_of: Final = psycopg.adapters.types.get_oid

_WRITERS: Final[Mapping[type, tuple[int, int, Callable[[Any], bytes | None]]]] = {
    type(None): (0, _TEXT, lambda _: None),
    str: (0, _TEXT, _of_text),
    int: (_number_of("int8"), _TEXT, _of_integer),
    bool: (_number_of("bool"), _TEXT, lambda value: b"t" if value else b"f"),
    float: (_number_of("float8"), _TEXT, lambda value: repr(value).encode()),
    bytes: (_number_of("bytea"), _BINARY, lambda value: value),
}
"""By type, exactly: the number of the server's type (0: it is to find out), the format, how a value is written."""


class _Plan:
    """One statement with values of certain types. ``reader`` reads its rows, once it has the columns."""

    __slots__ = ("name", "reader", "times")

    def __init__(self) -> None:
        self.times = 0
        self.name: bytes | None = None
        self.reader: abc.Transformer | None = None


class _Way(NamedTuple):
    """How a statement is sent with values of these Python types, of which several may be one to the server."""

    plan: _Plan
    types: list[int]
    formats: list[int]
    writers: list[Callable[[Any], bytes | None]]


class PreparedStatements:
    """Those of one connection, on which a statement is prepared once it has come ``after`` times."""

    def __init__(self, connection: psycopg.Connection[Any], after: int) -> None:
        self._connection = connection
        self._after = after
        self._plans: dict[tuple[bytes, tuple[int, ...]], _Plan] = {}
        self._ways: dict[tuple[bytes, tuple[type, ...]], _Way | None] = {}
        self._named = 0
        self._poll: select.poll | None = None

    def execute(self, statement: bytes, params: Mapping[str, Any], patience_seconds: float) -> Found | None:
        """Run a statement; None: it is for a cursor, nothing was sent. Raises psycopg.Error, among them TooLong."""
        text, pick = _numbered(statement)
        given = pick(params)
        way = self._way(statement, tuple(map(type, given)))
        pgconn = self._connection.pgconn
        if way is None or pgconn.pipeline_status != PipelineStatus.OFF:
            return None
        try:
            values = [write(value) for write, value in zip(way.writers, given, strict=True)]
        except (_NotPlain, UnicodeError):
            return None
        plan = way.plan
        deadline = SYSTEM_CLOCK.monotonic() + patience_seconds
        with self._connection.lock:
            if plan.name is None:
                self._named += 1
                name = b"task_tracker_%d" % self._named
                pgconn.send_prepare(name, text, way.types)
                self._answer(pgconn, deadline)
                plan.name = name
            pgconn.send_query_prepared(plan.name, values, way.formats)
            result = self._answer(pgconn, deadline)
        return self._rows(plan, result), result.command_tuples or 0

    def _way(self, statement: bytes, kinds: tuple[type, ...]) -> _Way | None:
        """Return how to send a statement; None if it has not come often enough, or has values for the driver."""
        key = statement, kinds
        try:
            way = self._ways[key]
        except KeyError:
            if len(self._ways) >= _MOST:
                return None
            way = self._ways[key] = self._new_way(statement, kinds)
        if way is not None and way.plan.name is None:
            way.plan.times += 1
            if way.plan.times <= self._after:
                return None
        return way

    def _new_way(self, statement: bytes, kinds: tuple[type, ...]) -> _Way | None:
        try:
            written = [_WRITERS[kind] for kind in kinds]
        except KeyError:
            return None
        types, formats, writers = map(list, zip(*written, strict=True)) if written else ([], [], [])
        return _Way(self._plans.setdefault((statement, tuple(types)), _Plan()), types, formats, writers)

    def _rows(self, plan: _Plan, result: PGresult) -> list[tuple[Any, ...]]:
        number = result.ntuples
        if not number:
            return []
        if plan.reader is None:
            plan.reader = Transformer(self._connection)
            plan.reader.set_pgresult(result)
        else:  # the columns of a prepared statement never change
            plan.reader.set_pgresult(result, set_loaders=False)
        try:
            return plan.reader.load_rows(0, number, tuple)
        finally:
            plan.reader.set_pgresult(None, set_loaders=False)

    def _answer(self, pgconn: PGconn, deadline: float) -> PGresult:
        """Return the answer to what was just sent. Raises psycopg.Error."""
        while pgconn.flush():
            if self._ready(pgconn, _READABLE | select.POLLOUT, deadline) & _READABLE:
                pgconn.consume_input()
        result: PGresult | None = None
        while True:
            while pgconn.is_busy():
                self._ready(pgconn, _READABLE, deadline)
                pgconn.consume_input()
            more = pgconn.get_result()
            if more is None:
                break
            result = more if result is None else result
        if result is None:
            raise psycopg.OperationalError("the server has sent no answer")
        if result.status not in _DONE:
            raise error_from_result(result)
        return result

    def _ready(self, pgconn: PGconn, wanted: int, deadline: float) -> int:
        """Wait until the connection can be read, or written to if that is ``wanted`` too. Raises TooLong."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(pgconn.socket, wanted)
        else:
            self._poll.modify(pgconn.socket, wanted)
        left = deadline - SYSTEM_CLOCK.monotonic()
        found: Sequence[tuple[int, int]] = ()
        if left > 0:
            found = self._poll.poll(None if left == math.inf else math.ceil(left * 1000))
        if not found:
            raise TooLong("the server does not answer")
        return found[0][1] & (_READABLE | select.POLLOUT) or _READABLE  # an error shows when it is read
