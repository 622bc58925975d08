"""What the driver's errors mean: for the library, and for whoever decides whether to try again.

Owns the reading of SQLSTATE. Refuses to call anything "not found": trouble is StoreUnavailable, with the driver's error
as the cause and without what a connection string holds.
"""

from __future__ import annotations

import re
from typing import Final

import psycopg

from task_tracker.errors import StoreUnavailable
from task_tracker.redaction import redact_text

__all__ = [
    "TooLong",
    "is_conflict",
    "is_forgotten",
    "is_full",
    "is_lost",
    "is_of_a_row",
    "unavailable",
    "unreached",
]

_CONFLICTS: Final = frozenset({"40001", "40P01"})
"""Serialization failure, deadlock: nothing was written, and another try may well succeed."""
_NO_STATEMENT: Final = frozenset({"26000", "42P05"})
"""A prepared statement is not there, or another one of its name is."""
_NOT_SUPPORTED: Final = "0A000"
_OF_CACHED_PLANS: Final = "RevalidateCachedQuery"
"""Where the server finds that a plan is stale (its src/backend/utils/cache/plancache.c). That error has no SQLSTATE of
its own, and what it says is in the server's language."""
_OF_VALUES: Final = frozenset({"22", "23"})
"""Classes: of values, of constraints."""
_TOO_DEEP: Final = "54001"
"""JSON, say, that is nested beyond what the server's stack takes."""
_ENDED: Final = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "25P03"})
"""The server, or an administrator, ended the session."""
_ADVICE: Final = {
    "42P01": "the tables are not there; run `python -m task_tracker migrate`",
    "3F000": "the schema is not there; run `python -m task_tracker migrate`",
    "42501": "the database's user lacks that right; grant it",
    "25006": "this server takes no writes; connect to the primary",
    "25P02": "a statement before it had failed; roll the transaction back and begin anew",
    "55P03": "somebody else has locked it for too long; try again",
    "57014": "it took too long; try again",
    "53300": "the server has no connection left; raise max_connections, or make the pools smaller",
    "3D000": "this database is not there; create it, or mend storage.task_tracker.dsn",
    "28000": "the server does not let this user in; create the role, allow it in pg_hba.conf, or mend "
    "storage.task_tracker.dsn",
    "28P01": "the server does not take this user and password; mend storage.task_tracker.dsn, PGPASSWORD or the "
    "password file",
}
_WHY_UNREACHED: Final = (
    ("3D000", re.compile(r'database ".*" does not exist|no such database')),
    ("28000", re.compile(r'role ".*" does not exist|is not permitted to log in|no pg_hba\.conf entry')),
    ("28P01", re.compile(r"authentication failed|no password supplied")),
    ("53300", re.compile(r"too many clients|remaining connection slots|too many connections")),
)
"""libpq tells no SQLSTATE of a connection that did not come about: what servers and poolers say in English, which is
how they mostly speak. What is not known here has an advice that is true in any case."""
_UNREACHED: Final = "try again once the server is up; if it is, look at storage.task_tracker.dsn"
_DRIVERS_WORDS: Final = re.compile(r"connection (?:failed|is bad): ")
_CHARS: Final = 300


class TooLong(psycopg.OperationalError):
    """The server did not answer within the time that a statement may take."""


def is_conflict(error: psycopg.Error) -> bool:
    """Tell whether the database gave up on this try because of others, having written nothing."""
    return error.sqlstate in _CONFLICTS


def is_forgotten(error: psycopg.Error) -> bool:
    """Tell whether the server has no plan any more for a statement that it had prepared; it was not executed."""
    is_stale = error.sqlstate == _NOT_SUPPORTED and error.diag.source_function == _OF_CACHED_PLANS
    return is_stale or error.sqlstate in _NO_STATEMENT


def is_full(error: psycopg.Error) -> bool:
    """Tell whether the queue of notifications is full, which undid everything."""
    return error.sqlstate == "54000"


def is_of_a_row(error: psycopg.Error) -> bool:
    """Tell whether what was to be written is to blame, which is refused, and would be again; nothing was written."""
    state = error.sqlstate or ""
    return state[:2] in _OF_VALUES or state == _TOO_DEEP


def is_lost(error: psycopg.Error, connection: psycopg.Connection[object]) -> bool:
    """Tell whether the connection is gone, and with it the answer."""
    if isinstance(error, TooLong):
        return False  # it has taken its time already
    state = error.sqlstate or ""
    return connection.closed or state in _ENDED or state.startswith("08")


def unavailable(error: BaseException, what: str, *, maybe: bool = False) -> StoreUnavailable:
    """Return the error to raise ``from`` this one. ``maybe``: what was asked for may have happened."""
    advice = _ADVICE.get(getattr(error, "sqlstate", None) or "", "try again")
    return StoreUnavailable(f"PostgreSQL did not {what} ({_said(error)}): {_advice(advice, maybe)}")


def unreached(error: psycopg.Error, what: str, *, maybe: bool = False) -> StoreUnavailable:
    """Return the same for a connection that did not come about. ``maybe``: an earlier try may have happened."""
    said = _DRIVERS_WORDS.sub("", _said(error), count=1)
    state = error.sqlstate or next((state for state, why in _WHY_UNREACHED if why.search(said)), "")
    if not state and error.pgconn is not None and error.pgconn.needs_password:
        state = "28P01"  # whatever language the server speaks
    advice = _ADVICE.get(state, _UNREACHED)
    return StoreUnavailable(f"cannot connect to PostgreSQL to {what} ({said}): {_advice(advice, maybe)}")


def _said(error: BaseException) -> str:
    said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return redact_text(said)[:_CHARS].strip()


def _advice(advice: str, maybe: bool) -> str:
    return f"it may have happened all the same, so look before you repeat it; {advice}" if maybe else advice
