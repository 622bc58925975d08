"""RedisWakeUp: heard by all that listen, lost without harm, quick to fail, patient in coming back."""

from __future__ import annotations

import logging
import os
import socket
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

import task_tracker.queues.redis as module
from task_tracker.errors import SettingsError, StoreUnavailable
from task_tracker.queues.connecting import client_of
from task_tracker.queues.redis import RedisWakeUp
from task_tracker.records import TaskKey
from task_tracker.testing import FakeClock
from task_tracker.wakeups import WakeUp, Waking
from tests.core.support import PATIENCE, background, own_threads
from tests.queues.redis_server import RedisServer, free_port, redis_binary
from tests.runtime.workers import no_thread_is_left

KEYS = [TaskKey("acme", "alice", "task-1")]


class Ways:
    """Makes ways as several processes have them, and closes them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._made: list[RedisWakeUp] = []

    def __call__(self, **options: object) -> RedisWakeUp:
        way = RedisWakeUp(self.url, **options)  # type: ignore[arg-type]
        self._made.append(way)
        return way

    def listening(self, **options: object) -> RedisWakeUp:
        """One that hears the channel, and whose first look is over."""
        way = self(**options)
        assert way.wait(PATIENCE), "it does not reach Redis"
        assert way.until_listening(PATIENCE)
        return way

    def close(self) -> None:
        for way in self._made:
            way.close()


@pytest.fixture
def ways(redis_url: str) -> Iterator[Ways]:
    made = Ways(redis_url)
    with no_thread_is_left():
        yield made
        made.close()


@pytest.fixture
def nowhere() -> str:
    """Where nobody listens."""
    return f"redis://:hunter2@127.0.0.1:{free_port()}/0"


def waiting(*ways: RedisWakeUp) -> None:
    """Return once somebody waits on each of them."""
    for way in ways:
        while not way.is_waited_for:
            threading.Event().wait(0.001)


# ---- waking ------------------------------------------------------------------------------------------


def test_it_is_what_the_protocol_says(ways: Ways) -> None:
    way: WakeUp = ways()
    way.interrupt()


def test_who_waits_elsewhere_is_woken(ways: Ways) -> None:
    here, there = ways(), ways.listening()
    with background(lambda: there.wait(PATIENCE)) as answers:
        waiting(there)
        here.wake(KEYS)
    assert answers == [True]


def test_all_that_listen_are_woken(ways: Ways) -> None:
    """Of many workers none is the only one that could have heard it."""
    here, many = ways(), [ways.listening() for _ in range(5)]
    with background(lambda: many[0].wait(PATIENCE)) as twice:
        answers = [twice]
        blocks = [background(partial(way.wait, PATIENCE)) for way in many]
        answers += [block.__enter__() for block in blocks]
        waiting(*many)
        here.wake(KEYS)
        for block in blocks:
            block.__exit__(None, None, None)
    assert answers == [[True]] * 6


def test_who_comes_to_the_channel_looks_once(ways: Ways) -> None:
    """Something may have been said before, and nobody keeps it."""
    way = ways()
    ways().wake(KEYS)
    assert way.wait(PATIENCE) is True
    assert way.wait(0) is False


def test_other_channels_are_not_heard(ways: Ways) -> None:
    way, same = ways.listening(channel="a"), ways.listening(channel="b")
    ways(channel="b").wake(KEYS)
    assert same.wait(PATIENCE) is True
    assert way.wait(0) is False


def test_a_worker_that_is_to_stop_is_not_kept(ways: Ways) -> None:
    way = ways.listening()
    with background(lambda: way.wait(PATIENCE)) as answers:
        waiting(way)
        way.interrupt()
    assert answers == [False]


def test_redis_holds_nothing_and_learns_nothing(ways: Ways) -> None:
    """No ids, no payloads, and no key that could pile up while nobody listens."""
    with client_of(ways.url) as client, client.pubsub() as heard:
        before = client.dbsize()
        heard.subscribe("nothing but this")
        way = ways(channel="nothing but this")
        for _ in range(100):
            way.wake(KEYS)
        messages = [heard.get_message(timeout=PATIENCE) for _ in range(101)]
        assert [message["data"] for message in messages] == [1, *[b""] * 100]
        assert client.dbsize() == before


def test_a_burst_is_heard_as_one(ways: Ways) -> None:
    way = ways.listening()
    here = ways()
    for _ in range(500):
        here.wake(KEYS)
    assert way.wait(PATIENCE) is True


# ---- outages -----------------------------------------------------------------------------------------


def test_after_a_restart_who_waits_looks_once(redis_server: RedisServer, ways: Ways) -> None:
    """[D108] [D110] What was said meanwhile is gone, so the worker has to look."""
    way = ways.listening()
    with background(lambda: way.wait(PATIENCE)) as answers:
        waiting(way)
        redis_server.restart()
    assert answers == [True]
    with background(lambda: way.wait(PATIENCE)) as answers:
        waiting(way)
        ways().wake(KEYS)
    assert answers == [True], "and it hears again"


def test_a_connection_that_was_closed_is_no_outage(redis_server: RedisServer, ways: Ways) -> None:
    way = ways()
    way.wake(KEYS)
    redis_server.restart()
    way.wake(KEYS)


def test_trying_again_is_no_hot_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, nowhere: str
) -> None:
    """[D108] Pauses grow to five seconds, and one line says it all."""
    tries = []
    monkeypatch.setattr(module, "client_of", lambda url: tries.append(url) or client_of(url))  # type: ignore[func-returns-value]
    clock = FakeClock()
    way = RedisWakeUp(nowhere, clock=clock)
    tries.clear()
    with caplog.at_level(logging.INFO, "task_tracker"), background(lambda: way.wait(1000)) as answers:
        for pause in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
            clock.until_waiting(2)  # the one that waits, and the pause of the one that tries
            before = len(tries)
            clock.advance(pause * 0.99)
            assert len(tries) == before
            clock.advance(pause * 0.011)
        clock.until_waiting(2)
        way.close()
    assert answers == [False]
    assert len(tries) == 9
    (said,) = [record for record in caplog.records if record.__dict__.get("event") == "wake_up_away"]
    assert "hunter2" not in said.getMessage()


def test_waking_fails_quickly_and_then_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that takes connections and says nothing: the first call waits for a second, the next ones do not try."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        clock = FakeClock()
        way = RedisWakeUp(f"redis://:hunter2@127.0.0.1:{deaf.getsockname()[1]}/0", clock=clock)
        with pytest.raises(StoreUnavailable, match="does not answer") as raised:
            way.wake(KEYS)
        assert "hunter2" not in str(raised.value)
        published: list[object] = []
        monkeypatch.setattr(redis.Redis, "publish", lambda *message: published.append(message))
        with pytest.raises(StoreUnavailable, match="tried again in"):
            way.wake(KEYS)
        assert not published
        clock.advance(5)
        way.wake(KEYS)
        assert published
        way.wake(KEYS)
        way.close()


def test_what_fails_is_counted_and_the_rest_grows(nowhere: str) -> None:
    """[D118]"""
    clock = FakeClock()
    way = RedisWakeUp(nowhere, clock=clock)
    waking = Waking(way, clock)
    for pause in (0.25, 0.5, 1, 2, 4, 5, 5):
        assert waking.wake(KEYS) is False
        clock.advance(pause * 0.9)
        assert waking.wake(KEYS) is False
        clock.advance(pause * 0.11)
    assert waking.failures == 14


def test_a_connection_that_is_silent_for_ever_is_given_up(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A firewall that forgot it tells nobody: the server is asked for a sign of life."""
    clock = FakeClock()
    way = RedisWakeUp(redis_server.url, clock=clock)
    with caplog.at_level(logging.INFO, "task_tracker"), background(lambda: way.wait(PATIENCE)):
        assert way.until_listening(PATIENCE)
    with background(lambda: way.wait(10_000)) as answers:
        for _ in range(3):
            heard = way._listener._heard_at
            clock.advance(16)
            while way._listener._heard_at == heard:  # it answers: all is well
                threading.Event().wait(0.001)
        assert way.until_listening(0)
        redis_server.freeze()
        clock.advance(16)
        clock.advance(16)
        while way.until_listening(0):
            threading.Event().wait(0.001)
        redis_server.thaw()
        clock.until_waiting(2)
        clock.advance(5)
    assert answers == [True], "and once it is back, who waits looks"
    way.close()


def test_the_thread_ends_when_nobody_waits_any_more(redis_server: RedisServer) -> None:
    clock = FakeClock()
    way = RedisWakeUp(redis_server.url, clock=clock)
    with no_thread_is_left():
        assert way.wait(PATIENCE)
        assert own_threads()
        clock.advance(5.1)
    assert way.wait(PATIENCE), "and begins again with who waits next"
    way.close()


def test_who_comes_while_the_thread_ends_is_heard(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He saw a thread and counted on it, just when it had found that nobody was there."""
    way = RedisWakeUp(redis_server.url)
    listener = way._listener
    answers = iter([False, True])
    monkeypatch.setattr(listener, "_is_wanted", lambda: next(answers, True))
    assert listener.run_once() is None
    assert way.until_listening(PATIENCE), "another thread was begun"
    way.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_connections_of_its_own(ways: Ways) -> None:
    """[D091]"""
    way = ways.listening()
    way.wake(KEYS)
    assert way.wait(PATIENCE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            first = way.wait(PATIENCE) and way.until_listening(PATIENCE)
            way.wake(KEYS)
            os._exit(0 if first and way.wait(PATIENCE) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert way.wait(PATIENCE) is True, "the parent hears the child"
    assert way.until_listening(0)


# ---- settings ----------------------------------------------------------------------------------------


def test_a_password_is_used_and_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if redis_binary() is None:
        pytest.skip("needs the program redis-server")
    with RedisServer(tmp_path, "--requirepass", "p@ss/word") as server:
        bare = server.url.removeprefix("redis://")
        way = RedisWakeUp(f"redis://:p%40ss%2Fword@{bare}?channel=mine&health_check_interval=0")
        assert way.channel == "mine"
        with background(lambda: way.wait(PATIENCE)):
            assert way.until_listening(PATIENCE)
        way.wake(KEYS)
        assert way.wait(PATIENCE)
        wrong = RedisWakeUp(f"redis://:hunter2@{bare}")
        with pytest.raises(StoreUnavailable) as raised:
            wrong.wake(KEYS)
        with caplog.at_level(logging.INFO, "task_tracker"):
            assert wrong.wait(0.05) is False
        for text in (repr(way), repr(wrong), str(raised.value), caplog.text):
            assert "p%40ss" not in text
            assert "p@ss" not in text
            assert "hunter2" not in text
        way.close()
        wrong.close()


def test_a_socket_of_this_host_will_do(tmp_path: Path) -> None:
    if redis_binary() is None:
        pytest.skip("needs the program redis-server")
    with RedisServer(tmp_path, "--unixsocket", str(tmp_path / "socket")):
        way = RedisWakeUp(f"unix://{tmp_path}/socket?db=1")
        assert way.wait(PATIENCE)
        way.wake(KEYS)
        assert way.wait(PATIENCE)
        way.close()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://:hunter2@host/0", "no URL of a Redis"),
        ("redis://:hun/ter2@host:6379/0", "percent-encoded"),
        ("redis://:hunter2@host:6379/zero", "no URL of a Redis"),
        ("redis://:hunter2@host:6379/0?db=zero", "no URL of a Redis"),
        ("redis://:hunter2@host:6379/0?sockettimeout=3", "does not take"),
    ],
)
def test_a_url_that_is_none_is_refused_and_not_quoted(url: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint) as raised:
        RedisWakeUp(url)
    assert "hun" not in str(raised.value)
    assert "ter2" not in str(raised.value)
