"""Behind a pooler in transaction mode: the contract, and what a session must not be asked to keep."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stores.postgres import listening
from stores.postgres.connections import Opener, opener
from stores.postgres.store import PostgresTaskStore
from task_tracker import transitions
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.records import TaskKey
from task_tracker.testing import LeaseStoreContract, RecordMaker
from task_tracker.testing.answers import claimed_by
from task_tracker.testing.contract import unreadable
from tests.postgres.grounds import Ground, Grounds
from tests.postgres.harness import PostgresHarness
from tests.postgres.pooling import pooled
from tests.postgres.server import free_port

PATIENCE_SECONDS = 30.0


@pytest.mark.slow
class TestContractBehindAPooler(LeaseStoreContract):
    """The whole suite, each transaction on another session. [D115]"""

    @pytest.fixture(autouse=True)
    def _half(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(unreadable, "HALF", b'{"task_id": "planted", "status": "pending"}')

    @pytest.fixture
    def harness(self, grounds: Grounds) -> Iterator[PostgresHarness]:
        harness = PostgresHarness(grounds, pooled)
        with harness.counting():
            yield harness
        harness.close()


def through_a_pooler(ground: Ground) -> Opener:
    return pooled(opener(ground.dsn, connect_seconds=5, statement_seconds=30))


def live(store: PostgresTaskStore) -> None:
    """Do everything once that a worker, a tracker and a reconciler do."""
    make = RecordMaker(own_fields=False)
    record = store.create(make(handler_version=1)).record
    assert store.create_if_no_active(make()) is None
    claimed = store.claim(holder="w", task_types=[("reindex", 1)], max_running={"reindex": 1})
    assert claimed is not None
    lease, stored = claimed
    store.renew(lease)
    stored = store.commit(lease, stored.record.changed(message="half way"))
    store.request_cancel(record.key)
    store.renew(lease)
    assert lease.cancel_requested.is_set()
    store.release(lease, transitions.released(stored.record, stored.record.updated_at))
    store.pause("reindex")
    store.unpause("reindex")
    other = store.create(make(resource_id="r")).record
    lease, stored = claimed_by(store, other.key)
    store.end(lease, transitions.completed(stored.record, stored.record.updated_at, b"1"))
    assert store.count("acme", "alice") == {"reindex": {"cancelled": 1, "completed": 1}}
    assert [store.recover(), [*store.expired()], [*store.examine()]] == [0, [], []]
    assert store.delete_owner("acme", "alice") == 2


def test_life_of_tasks_behind_a_pooler(ground: Ground) -> None:
    """[D115]"""
    with closing(ground.store(open_connection=through_a_pooler(ground))) as store:
        for _ in range(3):
            live(store)


def test_first_boot_behind_a_pooler(bare: Ground) -> None:
    """Migrations need no session either. [D107] [D115]"""
    with closing(bare.store(open_connection=through_a_pooler(bare))) as store:
        store.prepare(migrate=True)
        live(store)


def test_no_statement_is_prepared_behind_a_pooler(ground: Ground) -> None:
    """The number of the server's process is another one than the pooler has told. [D115]"""
    with closing(ground.store(pool_size=1, open_connection=through_a_pooler(ground))) as store:
        live(store)
        connection = store._connections.take()
        assert connection.prepare_after is None
        store._connections.give_back(connection)


def test_sessions_are_asked_to_keep_nothing(ground: Ground) -> None:
    """No advisory lock, no setting; plans only, where nothing is in between. [D115]"""
    with closing(ground.store(pool_size=1)) as store:
        for _ in range(8):
            live(store)
        connection = store._connections.take()
        questions = {
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()": 0,
            "SELECT count(*) FROM pg_settings WHERE name LIKE '%timeout%' AND source = 'session'": 0,
            "SELECT count(*) FROM pg_listening_channels()": 0,
        }
        for question, expected in questions.items():
            assert connection.execute(question.encode()).fetchone() == (expected,), question
        store._connections.give_back(connection)


def test_database_whose_transactions_are_stricter_by_default(ground: Ground) -> None:
    """Each statement then runs in a transaction of its own, as strict as it needs to be."""
    dsn = make_conninfo(
        ground.dsn,
        options="-c default_transaction_isolation=serializable -c default_transaction_read_only=on",
    )
    with closing(Ground(dsn, ground.names, ground.control).store()) as store:
        live(store)


# ---- the real one ------------------------------------------------------------------------------------


@contextmanager
def pgbouncer(program: str, dsn: str, mode: str = "transaction") -> Iterator[str]:
    """Run PgBouncer in front of ``dsn``; give the connection string that leads through it."""
    place = conninfo_to_dict(dsn)
    if not str(place.get("host", "")).startswith("127."):
        pytest.skip("the server is not reached over TCP on this host")
    port, user = free_port(), str(place.get("user", "postgres"))
    with tempfile.TemporaryDirectory(prefix="task-tracker-pgbouncer-") as directory:
        Path(directory, "users").write_text(f'"{user}" ""\n')
        Path(directory, "ini").write_text(
            f"[databases]\n{place['dbname']} = host={place['host']} port={place['port']} user={user}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
            f"auth_file = {directory}/users\npool_mode = {mode}\ndefault_pool_size = 3\n"
            "server_reset_query = DISCARD ALL\nserver_reset_query_always = 1\n"
        )
        os.chmod(directory, 0o755)  # it refuses to be root
        process = subprocess.Popen(
            [program, f"{directory}/ini"],
            user=65534 if os.geteuid() == 0 else None,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        through = make_conninfo(host="127.0.0.1", port=port, user=user, dbname=str(place["dbname"]))
        try:
            deadline = SYSTEM_CLOCK.monotonic() + PATIENCE_SECONDS
            while True:
                try:
                    psycopg.connect(through, connect_timeout=3).close()
                    break
                except psycopg.OperationalError:
                    assert process.poll() is None, "PgBouncer has ended"
                    assert SYSTEM_CLOCK.monotonic() < deadline, "PgBouncer does not answer"
            yield through
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


def _installed() -> str:
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed")
    return program


@pytest.mark.slow
def test_life_of_tasks_behind_pgbouncer(grounds: Grounds, bare: Ground) -> None:
    """[D107] [D115]"""
    with (
        pgbouncer(_installed(), grounds.server) as dsn,
        closing(Ground(dsn, bare.names, bare.control).store(pool_size=5)) as store,
    ):
        store.prepare(migrate=True)
        for _ in range(8):
            live(store)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_listening_behind_pgbouncer(
    grounds: Grounds, ground: Ground, make: RecordMaker, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """It is found out, and a way around it is used: the server itself, or a pooler that keeps sessions. [D115]"""
    monkeypatch.setattr(listening, "_PROBE_SECONDS", 1.0)
    with pgbouncer(_installed(), grounds.server, mode) as dsn:
        behind = Ground(dsn, ground.names, ground.control)
        with closing(behind.store()) as store, store.watch(lambda _: None):
            while not store.listen_failures:
                pass
            live(store)
        for way in (dsn, ground.dsn):
            heard: SimpleQueue[TaskKey | None] = SimpleQueue()
            with closing(behind.store(listen_dsn=way)) as store, store.watch(heard.put):
                if way == dsn and mode == "transaction":
                    while not store.listen_failures:
                        pass
                    live(store)
                    continue
                assert heard.get(timeout=PATIENCE_SECONDS) is None
                record = store.create(make()).record
                assert heard.get(timeout=PATIENCE_SECONDS) == record.key
