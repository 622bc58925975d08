"""Notifications: what becomes of those who cannot hear."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from queue import SimpleQueue

import pytest

from stores.postgres import listening
from stores.postgres.store import PostgresTaskStore
from task_tracker.records import TaskKey, TaskStatus
from task_tracker.testing import RecordMaker
from tests.core.support import PATIENCE
from tests.postgres.ears import Gate, Heard, hearing, impatient, listeners, through_a_pooler
from tests.postgres.grounds import Ground
from tests.postgres.test_connections import backends
from tests.runtime.workers import no_thread_is_left


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    with no_thread_is_left():
        yield


@pytest.fixture
def store(ground: Ground) -> Iterator[PostgresTaskStore]:
    with closing(ground.store()) as store:
        yield store


# ---- outages -----------------------------------------------------------------------------------------------


def test_terminated_listener_comes_back_and_all_look(
    ground: Ground,
    store: PostgresTaskStore,
    make: RecordMaker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was said meanwhile is not heard, so everybody is told to look. [D108]"""
    caplog.set_level(logging.INFO, "task_tracker")
    with impatient(monkeypatch), hearing(store) as heard:
        for number in range(1, 6):
            ground.run("SELECT pg_terminate_backend(pid, 10000) FROM unnest(%s) pid", listeners(ground))
            record = store.create(make(handler_version=1)).record  # to whoever is there just now
            while heard.get(timeout=PATIENCE) is not None:
                pass
            assert store.listen_failures >= number
            assert store._listener.hearing.wait(PATIENCE)
            store.request_cancel(record.key)
            while heard.get(timeout=PATIENCE) is None:
                pass
    events = [getattr(record, "event", None) for record in caplog.records]
    assert events.count("listen_away") == events.count("listen_back") == 5


def test_server_that_is_away_for_a_while(
    ground: Ground, make: RecordMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, counted, tried again after pauses that grow; who watches is told to look when it is back. [D108]"""
    gate = Gate(ground)
    with impatient(monkeypatch), closing(ground.store(open_connection=gate.open_one)) as store:
        gate.is_shut = True
        heard: Heard = SimpleQueue()
        with store.watch(heard.put):
            while store.listen_failures < 5:
                pass
            assert heard.empty()
            gate.is_shut = False
            assert heard.get(timeout=PATIENCE) is None
            record = store.create(make()).record
            assert heard.get(timeout=PATIENCE) == record.key
    said = [record for record in caplog.records if getattr(record, "event", "") == "listen_away"]
    assert len(said) == 1
    assert "connection refused" in said[0].getMessage()


def test_pauses_between_tries_grow(ground: Ground) -> None:
    with closing(ground.store()) as store:
        pauses = [store._listener._next_pause() for _ in range(12)]
        assert 0.05 <= pauses[0] <= 0.1
        assert 5.0 <= pauses[-1] <= 10.0


def test_store_is_closed_while_the_server_is_away(ground: Ground) -> None:
    """At once: nobody is waited for, and nothing is left. [D109]"""
    gate = Gate(ground)
    store = ground.store(open_connection=gate.open_one)
    with hearing(store):
        gate.is_shut = True
        ground.run("SELECT pg_terminate_backend(pid, 10000) FROM unnest(%s) pid", [*backends(ground)])
        while not store.listen_failures:
            pass
        store.close()
        assert not store._listener.running
    tries = gate.tries
    with store.watch(lambda _: None):
        assert not store._listener.running
    assert gate.tries == tries


def test_store_is_closed_by_whoever_was_told(ground: Ground, make: RecordMaker) -> None:
    """On the very thread that listens."""
    store = ground.store()
    closed = threading.Event()

    def close(_: TaskKey | None) -> None:
        store.close()
        closed.set()

    with store.watch(close):
        assert closed.wait(PATIENCE)


def test_connection_on_which_nothing_is_heard(
    ground: Ground,
    make: RecordMaker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It leads to another database, say: who does not hear himself hears nobody."""
    monkeypatch.setattr(listening, "_PROBE_SECONDS", 0.01)
    monkeypatch.setattr(ground.names.__class__, "channel", lambda names, name: f"{name} elsewhere")
    with impatient(monkeypatch), closing(ground.store()) as store:
        store.prepare()
        store._listener._waiting_channel = "another one"
        with store.watch(lambda _: None):
            while store.listen_failures < 2:
                pass
    assert "nothing is heard on this connection" in caplog.text


# ---- poolers -----------------------------------------------------------------------------------------------


def test_behind_a_pooler_it_is_said_that_nothing_is_heard(
    ground: Ground, make: RecordMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with what to do; no session of the pooler's is made to listen. [D115]"""
    with (
        impatient(monkeypatch),
        closing(ground.store(open_connection=through_a_pooler(ground))) as store,
        store.watch(lambda _: None),
    ):
        while store.listen_failures < 3:
            pass
        store.create(make())
        assert listeners(ground) == []
    said = [record for record in caplog.records if getattr(record, "event", "") == "listen_away"]
    assert len(said) == 1
    assert "options.listen_dsn" in said[0].getMessage()


def test_behind_a_pooler_with_a_way_around_it(ground: Ground, make: RecordMaker) -> None:
    """[D115]"""
    with (
        closing(ground.store(open_connection=through_a_pooler(ground), listen_dsn=ground.dsn)) as store,
        hearing(store) as heard,
    ):
        record = store.create(make()).record
        assert heard.get(timeout=PATIENCE) == record.key


# ---- forks -------------------------------------------------------------------------------------------------


def test_forked_child_listens_by_itself(ground: Ground, store: PostgresTaskStore, make: RecordMaker) -> None:
    """On a connection of its own; its parent goes on hearing on its."""
    with hearing(store) as heard:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(round(PATIENCE))
                mine: Heard = SimpleQueue()
                with store.watch(mine.put):
                    assert mine.get(timeout=PATIENCE) is None
                    os.write(writing, b"!")
                    while mine.get(timeout=PATIENCE) is None:
                        pass
                    assert heard.empty()
                    code = 0
            finally:
                os._exit(code)
        assert os.read(reading, 1) == b"!"
        record = store.create(make(status=TaskStatus.COMPLETED)).record
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert heard.get(timeout=PATIENCE) == record.key
        os.close(reading)
        os.close(writing)
