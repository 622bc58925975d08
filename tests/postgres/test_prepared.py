"""Statements that a connection has prepared: they give what a cursor gives, and wait no longer."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from stores.postgres.connections import BoundedConnection, opener
from stores.postgres.trouble import TooLong, is_forgotten
from tests.postgres.grounds import Ground

AFTER = 3
STATEMENT = (
    b"SELECT %(text)s::text, %(number)s::bigint, %(yes)s::boolean, %(share)s::float8, %(data)s::bytea, "
    b"%(text)s::text || '%%'"
)
VALUES: dict[str, Any] = {
    "text": "é \\ ' \" \n",
    "number": -(2**63) + 1,
    "yes": True,
    "share": 0.1,
    "data": b"\0\xff",
}


@pytest.fixture
def connection(ground: Ground) -> Iterator[BoundedConnection]:
    with opener(ground.dsn, connect_seconds=5, statement_seconds=30)() as connection:
        connection.prepare_after = AFTER
        yield connection


def ask(connection: BoundedConnection, statement: bytes, params: dict[str, Any]) -> Any:
    return connection.ask(statement, params, rows=not statement.startswith((b"INSERT", b"DELETE")))


def often(connection: BoundedConnection, statement: bytes, params: dict[str, Any]) -> list[Any]:
    return [ask(connection, statement, params) for _ in range(AFTER + 2)]


def prepared(connection: BoundedConnection) -> int:
    found = connection.execute(b"SELECT count(*) FROM pg_prepared_statements", prepare=False).fetchone()
    assert found is not None
    return int(found[0])


@pytest.mark.parametrize(
    "values",
    [
        VALUES,
        dict.fromkeys(VALUES),
        {**VALUES, "yes": False, "number": 0, "share": float("inf"), "text": "", "data": b""},
        {**VALUES, "share": 1e-320, "text": "%(text)s"},
    ],
    ids=["values", "nothing", "edges", "odd"],
)
def test_values_arrive_as_they_are(connection: BoundedConnection, values: dict[str, Any]) -> None:
    text = values["text"]
    row = (*values.values(), None if text is None else text + "%")
    assert often(connection, STATEMENT, {**values, "more": object()}) == [([row], 1)] * (AFTER + 2)
    assert prepared(connection) == 1


def test_values_of_other_types_are_other_statements(connection: BoundedConnection) -> None:
    """A text and no text are one to the server, a number is not."""
    for value in ("a", None, "b"):
        often(connection, b"SELECT %(it)s", {"it": value})
    assert prepared(connection) == 1
    assert often(connection, b"SELECT %(it)s", {"it": 1})[-1] == ([(1,)], 1)
    assert prepared(connection) == 2


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_rows_and_how_many_were_touched(connection: BoundedConnection, rows: int) -> None:
    connection.execute(b"CREATE TEMPORARY TABLE things (number bigint)")
    added = often(connection, b"INSERT INTO things SELECT generate_series(1, %(rows)s)", {"rows": rows})
    assert added == [([], rows)] * (AFTER + 2)
    found = often(connection, b"SELECT number FROM things WHERE number = %(it)s", {"it": rows})
    assert {len(one) for one, _ in found} == {AFTER + 2 if rows else 0}
    assert often(connection, b"DELETE FROM things", {})[0] == ([], rows * (AFTER + 2))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1, 2], [1, 2]),
        (10**20, 10**20),
        ("a\0b", psycopg.DataError),
        ("\ud800", UnicodeEncodeError),
    ],
    ids=["list", "large", "NUL", "half a character"],
)
def test_what_has_to_be_adapted_is_left_to_the_driver(
    connection: BoundedConnection, value: object, expected: object
) -> None:
    for _ in range(AFTER + 2):
        if isinstance(expected, type):
            with pytest.raises(expected):
                ask(connection, b"SELECT %(it)s", {"it": value})
        else:
            assert ask(connection, b"SELECT %(it)s", {"it": value}) == ([(expected,)], 1)
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_error_is_the_one_of_the_driver(connection: BoundedConnection) -> None:
    statement = b"SELECT 1 / %(by)s::bigint"
    often(connection, statement, {"by": 1})
    with pytest.raises(psycopg.errors.DivisionByZero, match="division by zero") as raised:
        ask(connection, statement, {"by": 0})
    assert raised.value.sqlstate == "22012"
    assert raised.value.diag.severity == "ERROR"
    with pytest.raises(psycopg.errors.DivisionByZero) as of_cursor:
        connection.execute(statement, {"by": 0}, prepare=False)
    assert str(raised.value) == str(of_cursor.value)
    assert ask(connection, statement, {"by": 1}) == ([(1,)], 1)


def test_error_of_a_state_that_the_driver_does_not_know(connection: BoundedConnection) -> None:
    connection.execute(
        b"CREATE FUNCTION pg_temp.fail() RETURNS int LANGUAGE plpgsql AS "
        b"$$ BEGIN RAISE 'no' USING ERRCODE = 'TT999'; END $$"
    )
    for _ in range(AFTER + 2):
        with pytest.raises(psycopg.DatabaseError, match="no") as raised:
            ask(connection, b"SELECT pg_temp.fail()", {})
        assert raised.value.sqlstate == "TT999"


def test_statement_that_cannot_be_prepared_leaves_the_connection_usable(
    connection: BoundedConnection,
) -> None:
    for _ in range(AFTER + 3):
        with pytest.raises(psycopg.errors.UndefinedTable):
            ask(connection, b"SELECT FROM nowhere", {})
    assert ask(connection, b"SELECT 1", {}) == ([(1,)], 1)


@pytest.mark.parametrize("characters", [1 << 20, 24 << 20])
def test_values_of_any_length(connection: BoundedConnection, characters: int) -> None:
    """More than the system takes at once: it is sent as the server reads it."""
    asked = {"it": "x" * characters}
    for found in often(connection, b"SELECT length(%(it)s::text), %(it)s::text", asked)[-2:]:
        assert found == ([(characters, asked["it"])], 1)


def test_in_a_transaction(connection: BoundedConnection) -> None:
    """One that failed refuses everything, until it is rolled back; what was prepared within it is kept."""
    connection.execute(b"BEGIN")
    often(connection, b"SELECT %(it)s::bigint", {"it": 1})
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        ask(connection, b"SELECT 'x'::bigint", {})
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        ask(connection, b"SELECT %(it)s::bigint", {"it": 1})
    connection.execute(b"ROLLBACK")
    assert ask(connection, b"SELECT %(it)s::bigint", {"it": 2}) == ([(2,)], 1)
    assert prepared(connection) == 1


def test_what_was_prepared_outlasts_a_transaction_that_is_undone(connection: BoundedConnection) -> None:
    """The driver has prepared nothing of its own, or it would have the server forget all plans."""
    often(connection, b"SELECT %(it)s::bigint", {"it": 1})
    for _ in range(AFTER + 2):
        connection.execute(b"BEGIN; SET LOCAL statement_timeout = 0")
        connection.execute(b"COMMIT")
    connection.execute(b"BEGIN; SET LOCAL statement_timeout = 0")
    connection.execute(b"ROLLBACK")
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert ask(connection, b"SELECT %(it)s::bigint", {"it": 2}) == ([(2,)], 1)
    assert prepared(connection) == 1


def test_stale_plan_is_known_in_any_language(connection: BoundedConnection) -> None:
    connection.execute(b"CREATE TEMPORARY TABLE wide (a int)")
    often(connection, b"SELECT * FROM wide", {})
    connection.execute(b"ALTER TABLE wide ADD b int")
    with pytest.raises(psycopg.errors.FeatureNotSupported) as raised:
        ask(connection, b"SELECT * FROM wide", {})
    raised.value.args = ("gespeicherter Plan darf den Ergebnistyp nicht ändern",)
    assert is_forgotten(raised.value)
    with pytest.raises(psycopg.errors.FeatureNotSupported) as other:
        ask(connection, b"SELECT count(*) FROM wide FOR UPDATE", {})
    other.value.args = ("cached plan must not change result type",)
    assert not is_forgotten(other.value)
    assert not is_forgotten(psycopg.errors.FeatureNotSupported("made by the driver"))


def test_in_a_pipeline_the_driver_sends_it(connection: BoundedConnection) -> None:
    often(connection, b"SELECT %(it)s::bigint", {"it": 1})
    with connection.pipeline():
        assert ask(connection, b"SELECT %(it)s::bigint", {"it": 2}) == ([(2,)], 1)


# ---- time and loss -------------------------------------------------------------------------------------


def waiting(ground: Ground, *, seconds: float) -> BoundedConnection:
    """Return a connection that has prepared a statement which waits for nothing yet."""
    connection = opener(ground.dsn, connect_seconds=5, statement_seconds=seconds)()
    connection.prepare_after = AFTER
    often(connection, b"SELECT pg_sleep(%(seconds)s)", {"seconds": 0.0})
    return connection


def test_answer_is_not_waited_for_for_ever(ground: Ground) -> None:
    with closing(waiting(ground, seconds=0.1)) as connection:
        with pytest.raises(TooLong):
            ask(connection, b"SELECT pg_sleep(%(seconds)s)", {"seconds": 600.0})
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE
        connection.cancel_safe()


def test_session_that_is_ended_is_noticed(ground: Ground) -> None:
    with (
        closing(waiting(ground, seconds=30)) as connection,
        psycopg.connect(ground.dsn, autocommit=True) as other,
    ):
        other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            ask(connection, b"SELECT pg_sleep(%(seconds)s)", {"seconds": 0.0})
        assert connection.closed


def test_interrupt_reaches_the_caller(ground: Ground) -> None:
    """A connection in the middle of something is nobody's any more: the pool throws it away."""
    with (
        closing(waiting(ground, seconds=30)) as connection,
        psycopg.connect(ground.dsn, autocommit=True) as other,
    ):
        pid, main, heard = connection.info.backend_pid, threading.get_ident(), threading.Event()

        def interrupt() -> None:
            while other.execute(
                "SELECT state FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'", [pid]
            ).fetchone() != ("active",):
                pass
            # Once is not enough: one that comes just before the wait begins is seen when that ends.
            while not heard.is_set():
                signal.pthread_kill(main, signal.SIGINT)

        def hear(*_: object) -> None:
            if not heard.is_set():
                heard.set()
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, hear)
        try:
            with pytest.raises(KeyboardInterrupt), meanwhile(interrupt):
                ask(connection, b"SELECT pg_sleep(%(seconds)s)", {"seconds": 600.0})
        finally:
            signal.signal(signal.SIGINT, before)
        connection.cancel_safe()


@contextmanager
def meanwhile(run: Callable[[], None]) -> Iterator[None]:
    """Run something in a thread beside the block."""
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
