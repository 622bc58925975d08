"""Connections: kept, bounded, replaced when they break, and never shared with a forked child."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import cast

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stores.postgres.connections import BoundedConnection, Connections, opener
from stores.postgres.options import PostgresSettings
from stores.postgres.store import PostgresTaskStore
from stores.postgres.trouble import TooLong, unreached
from task_tracker.errors import SettingsError, StoreUnavailable
from task_tracker.records import TaskStatus
from task_tracker.store import Query, StoreOptions
from task_tracker.testing import RecordMaker
from task_tracker.testing.racing import race
from tests.postgres.grounds import Ground
from tests.postgres.server import NoServer, own_server

PATIENCE_SECONDS = 30.0


@pytest.fixture
def pool(ground: Ground) -> Iterator[Connections]:
    open_one = opener(ground.dsn, connect_seconds=5, statement_seconds=30)
    with closing(Connections(open_one, size=2, patience_seconds=PATIENCE_SECONDS)) as pool:
        yield pool


def backends(ground: Ground) -> set[int]:
    """Return the sessions of this ground's stores that are there."""
    rows = ground.run(
        "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND pid <> pg_backend_pid()",
        ground.names.schema,
    )
    return {pid for (pid,) in rows}


def end_sessions(ground: Ground) -> None:
    """End all sessions of this ground's stores, and wait until they are gone."""
    ground.run(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = %s",
        ground.names.schema,
    )


class TestPool:
    def test_connection_is_kept_for_the_next_call(self, pool: Connections, ground: Ground) -> None:
        first = pool.take()
        pool.give_back(first)
        assert pool.take() is first
        assert backends(ground) == {first.info.backend_pid}
        pool.give_back(first)

    def test_there_are_no_more_than_are_allowed(self, pool: Connections, ground: Ground) -> None:
        """Whoever comes too many waits until one is given back."""
        mine = [pool.take(), pool.take()]
        got: list[BoundedConnection] = []
        waiter = threading.Thread(target=lambda: got.append(pool.take()))
        waiter.start()
        assert not got
        assert len(backends(ground)) == 2
        pool.give_back(mine[0])
        waiter.join(PATIENCE_SECONDS)
        assert got == [mine[0]]
        for connection in mine:
            pool.give_back(connection)

    def test_waiting_for_one_has_an_end(self, ground: Ground) -> None:
        open_one = opener(ground.dsn, connect_seconds=5, statement_seconds=30)
        with closing(Connections(open_one, size=1, patience_seconds=0.01)) as pool:
            connection = pool.take()
            with pytest.raises(StoreUnavailable, match=r"all 1 connections .* raise .*options\.pool_size"):
                pool.take()
            pool.give_back(connection)

    def test_many_threads_share_few_connections(self, ground: Ground, make: RecordMaker) -> None:
        with closing(ground.store(pool_size=2)) as store:
            records = make.many(40, status=TaskStatus.COMPLETED)
            assert all(race(*[partial(store.create, record) for record in records]))
            assert len(backends(ground)) <= 2
            assert store.count("acme", "alice") == {"reindex": {"completed": 40}}

    def test_connection_in_the_middle_of_something_is_not_given_to_others(self, pool: Connections) -> None:
        connection = pool.take()
        connection.execute("BEGIN")
        pool.give_back(connection)
        assert connection.closed
        other = pool.take()
        assert other.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        pool.give_back(other)

    def test_connection_that_failed_to_open_takes_no_place(self, ground: Ground) -> None:
        plain = opener(ground.dsn, connect_seconds=5, statement_seconds=30)
        answers: list[Callable[[], BoundedConnection]] = []

        def answer() -> BoundedConnection:
            return answers.pop()()

        with closing(Connections(answer, size=1, patience_seconds=0.01)) as pool:
            for _ in range(3):
                answers.append(opener("host=127.0.0.1 port=1", connect_seconds=2, statement_seconds=2))
                with pytest.raises(psycopg.OperationalError):
                    pool.take()
            answers.append(plain)
            pool.give_back(pool.take())

    def test_closed_pool_keeps_nothing(self, pool: Connections, ground: Ground) -> None:
        """What is in use when it is closed is closed when it comes back; twice is safe."""
        used, idle = pool.take(), pool.take()
        pool.give_back(idle)
        pool.close()
        pool.close()
        assert (idle.closed, used.closed) == (True, False)
        pool.give_back(used)
        assert used.closed
        late = pool.take()
        pool.give_back(late)
        assert late.closed

    def test_connections_that_nobody_needs_are_closed(
        self, pool: Connections, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        busy, idle = pool.take(), pool.take()
        pool.give_back(idle)
        monkeypatch.setattr("stores.postgres.connections._IDLE_SECONDS", 0.0)
        while not idle.closed:  # until its clock has ticked
            pool.give_back(busy)
            if not idle.closed:
                busy = pool.take()
                busy = busy if busy is not idle else pool.take()
        assert not busy.closed


class TestBreaks:
    def test_session_that_was_ended_is_replaced(self, ground: Ground, make: RecordMaker) -> None:
        """By an administrator, or a failover: the next call does not notice."""
        with closing(ground.store(pool_size=3)) as store:
            race(*[lambda: store.count("acme", None)] * 3)
            before = backends(ground)
            end_sessions(ground)
            store.create(make())
            assert backends(ground).isdisjoint(before)

    def test_session_that_is_ended_in_the_middle_of_a_call_is_replaced(
        self, ground: Ground, make: RecordMaker
    ) -> None:
        """While it waits for a lock: the call is tried again on another connection."""
        with closing(ground.store(pool_size=1)) as store, closing(psycopg.connect(ground.dsn)) as other:
            record = store.create(make()).record
            mine = backends(ground) - {other.info.backend_pid}
            other.execute(ground.names.fill("SELECT 1 FROM {tasks} FOR UPDATE"))
            outcome: list[object] = []
            caller = threading.Thread(
                target=lambda: outcome.append(store.request_cancel(record.key).record.status)
            )
            caller.start()
            while not ground.run(
                "SELECT 1 FROM unnest(%s::int[]) pid WHERE cardinality(pg_blocking_pids(pid)) > 0", [*mine]
            ):
                assert caller.is_alive()
            ground.run("SELECT pg_terminate_backend(pid, 10000) FROM unnest(%s::int[]) pid", [*mine])
            other.rollback()
            caller.join(PATIENCE_SECONDS)
            assert outcome == [TaskStatus.CANCELLED]

    @pytest.mark.slow
    def test_server_that_is_stopped_and_started_again(self, make: RecordMaker) -> None:
        """Unavailable in between, at once and as such; afterwards everything is as it was. [D006]"""
        with contextlib.ExitStack() as stack:
            try:
                server = stack.enter_context(own_server())
            except NoServer as error:
                pytest.skip(str(error))
            with closing(PostgresTaskStore(server.dsn)) as store:
                store.prepare(migrate=True)
                record = store.create(make()).record
                for how in (signal.SIGINT, signal.SIGQUIT):
                    server.stop(how)
                    for call in (lambda: store.get(record.key), lambda: store.create(make(resource_id="r"))):
                        with pytest.raises(StoreUnavailable, match="Connection refused"):
                            call()
                    server.start()
                    assert store.get(record.key).record == record  # type: ignore[union-attr]
                store.create(make())


class TestUnreached:
    @pytest.mark.parametrize(
        ("wrong", "advice"),
        [
            (
                {"dbname": "not_there"},
                "this database is not there; create it, or mend storage.task_tracker.dsn",
            ),
            ({"user": "not_there"}, "the server does not let this user in; create the role"),
            ({"port": "1"}, "try again once the server is up; if it is, look at storage.task_tracker.dsn"),
        ],
    )
    def test_what_to_do_is_said(self, ground: Ground, wrong: dict[str, str], advice: str) -> None:
        """Not to try again, where that is of no use. [D071]"""
        with (
            closing(PostgresTaskStore(make_conninfo(ground.dsn, **wrong))) as store,
            pytest.raises(StoreUnavailable) as refused,
        ):
            store.count("acme", None)
        said = str(refused.value)
        assert said.startswith("cannot connect to PostgreSQL to count tasks (connection to server ")
        assert advice in said
        assert ("try again" in said) == ("port" in wrong)

    @pytest.mark.parametrize(
        ("text", "advice"),
        [
            ('FATAL:  password authentication failed for user "bob"', "does not take this user and password"),
            ("fe_sendauth: no password supplied", "does not take this user and password"),
            ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "bob"', "allow it in pg_hba.conf"),
            ('FATAL:  role "bob" is not permitted to log in', "does not let this user in"),
            ("FATAL:  no such database: tasks", "this database is not there"),
            ("FATAL:  sorry, too many clients already", "has no connection left"),
            ("FATAL:  the database system is starting up", "try again once the server is up"),
            ('FATAL:  Datenbank "tasks" existiert nicht', "if it is, look at storage.task_tracker.dsn"),
        ],
    )
    def test_what_servers_say_that_let_nobody_in(self, text: str, advice: str) -> None:
        """libpq tells no SQLSTATE of it."""
        error = psycopg.OperationalError(f'connection failed: connection to server at "db" failed: {text}')
        assert error.sqlstate is None
        assert advice in str(unreached(error, "tell workers"))
        assert "it may have happened" in str(unreached(error, "tell workers", maybe=True))

    def test_password_that_is_missing_is_known_in_any_language(self) -> None:
        asked = cast("psycopg.pq.abc.PGconn", SimpleNamespace(needs_password=True))
        error = psycopg.OperationalError("connection failed: Passwort fehlt", pgconn=asked)
        assert "does not take this user and password" in str(unreached(error, "tell workers"))


class TestTime:
    def test_server_that_does_not_answer_a_statement(self, ground: Ground) -> None:
        """The statement is cancelled, the connection thrown away, and nobody waits for ever."""
        open_one = opener(ground.dsn, connect_seconds=5, statement_seconds=0.1)
        with closing(Connections(open_one, size=1, patience_seconds=1)) as pool:
            connection = pool.take()
            pid = connection.info.backend_pid
            with pytest.raises(TooLong):
                connection.execute("SELECT pg_sleep(600)")
            pool.give_back(connection)
            assert connection.closed
            while pid in backends(ground):  # it was told to stop
                pass

    def test_lock_that_somebody_keeps(self, ground: Ground, make: RecordMaker) -> None:
        """Calls with a transaction are given up by the server, single statements by this side."""
        with closing(ground.store(lock_timeout_seconds=0.05, statement_seconds=0.2)) as store:
            record = store.create(make()).record
            claimed = store.claim(record.key, holder="h")
            assert claimed is not None
            with closing(psycopg.connect(ground.dsn)) as other:
                other.execute(ground.names.fill("SELECT 1 FROM {tasks} FOR UPDATE"))
                with pytest.raises(StoreUnavailable, match="somebody else has locked it for too long"):
                    store.request_cancel(record.key)
                with pytest.raises(StoreUnavailable, match=r"does not answer.*may have happened"):
                    store.renew(claimed[0])
            store.renew(claimed[0])
            assert not claimed[0].lost.is_set()

    def test_process_that_stops_in_the_middle_of_a_transaction_keeps_no_lock(
        self, ground: Ground, make: RecordMaker
    ) -> None:
        """SIGSTOP between the lock and the write: the server ends the session, and others go on. [D022]"""
        with closing(ground.store(lock_timeout_seconds=0.2)) as asleep, closing(ground.store()) as other:
            record = asleep.create(make(handler_version=1)).record
            database = asleep._database
            connection = database.connections.take()
            session = database._session(connection, again=False, quiet=False)

            def lock_and_sleep() -> None:
                with session.transaction():
                    session.one("lock", record.key._asdict())
                    # The other one waits for its lock as long as the server lets the sleeper sleep.
                    assert other.claim(record.key, holder="h") is not None
                    session.run("delete", record.key._asdict())

            with pytest.raises(psycopg.Error, match="idle-in-transaction timeout"):
                lock_and_sleep()
            database.connections.give_back(connection)
            assert other.get(record.key).record.status is TaskStatus.RUNNING  # type: ignore[union-attr]

    def test_host_that_accepts_and_says_nothing(self) -> None:
        """A connection has to come about within its time."""
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen()
            port = deaf.getsockname()[1]
            open_one = opener(
                f"host=127.0.0.1 port={port} connect_timeout=2", connect_seconds=60, statement_seconds=1
            )
            with pytest.raises(psycopg.OperationalError, match="timeout"):
                open_one()


class TestForks:
    def test_child_has_connections_of_its_own(self, ground: Ground, make: RecordMaker) -> None:
        """And says no word on its parent's, not even when it ends. [D091]"""
        with closing(ground.store(pool_size=3)) as store:
            record = store.create(make()).record
            all_there_can_be = [store._connections.take() for _ in range(3)]
            for connection in all_there_can_be:
                store._connections.give_back(connection)
            busy = store._connections.take()  # in use by another thread, as it were
            before = backends(ground)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    created = store.create(make("by the child", resource_id="r"))
                    idle = store._connections.take()
                    if created.record.task_id == "by the child" and idle.info.backend_pid not in before:
                        status = 0
                    store._connections.give_back(idle)
                    store._connections.give_back(busy)
                    store.close()
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            assert before <= backends(ground)
            assert busy.execute("SELECT 1").fetchone() == (1,)
            store._connections.give_back(busy)
            race(*[lambda: store.count("acme", None)] * 3)
            assert before <= backends(ground)
            assert len(backends(ground)) <= 3, "those of the child are gone"
            listed = store.list(Query("acme")).items
            assert [found.record.task_id for found in listed] == ["by the child", record.task_id]


class TestSecrets:
    DSN = "postgresql://bob:open-sesame@127.0.0.1:1/db?sslmode=disable"

    def test_connection_string_is_shown_nowhere(self) -> None:
        """Not in messages, causes, representations."""
        store = PostgresTaskStore(self.DSN)
        with pytest.raises(StoreUnavailable) as raised:
            store.count("acme", None)
        options = StoreOptions(dsn=self.DSN)
        shown = [
            str(raised.value),
            str(raised.value.__cause__),
            repr(options),
            repr(PostgresSettings.of(options)),
        ]
        assert "open-sesame" not in " ".join([*shown, repr(store), repr(vars(store))])

    @pytest.mark.parametrize(
        "dsn", ["bob open-sesame", "postgresql://bob:open-sesame@[::1/db", "passwrd=open-sesame"]
    )
    def test_what_is_no_connection_string_is_not_quoted(self, dsn: str) -> None:
        with pytest.raises(SettingsError, match=r"storage\.task_tracker\.dsn is no PostgreSQL") as raised:
            opener(dsn, connect_seconds=1, statement_seconds=1)
        assert "open-sesame" not in str(raised.value)
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__
