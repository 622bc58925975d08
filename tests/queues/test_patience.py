"""Patience: calls of ARQ's worker outlive a Redis that is away, and do not outlive the worker."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import logging
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import redis
from arq.connections import ArqRedis, RedisSettings, create_pool

import task_tracker.queues.patience as module
from stores import InMemoryTaskStore
from task_tracker import TaskTracker
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.queues.arq import ArqTasks, ArqWakeUp
from task_tracker.queues.patience import Patience
from task_tracker.testing import FakeClock
from tests.core.support import PATIENCE, join
from tests.queues.redis_server import RedisServer, redis_binary
from tests.runtime.work import until


class Line:
    """A line to Redis that fails so many times."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.failures = failures
        self.error = error if error is not None else redis.ConnectionError("redis://:hunter2@h is away")
        self.tries = 0
        self.mended = 0

    async def do(self) -> str:
        self.tries += 1
        if self.tries <= self.failures:
            raise self.error
        return "answer"

    async def mend(self, error: Exception) -> None:
        self.mended += 1


class Quick(FakeClock):
    """Pauses are over at once."""

    def jitter(self, seconds: float) -> float:
        self.advance(seconds)
        return 0.0


def test_a_call_waits_until_redis_is_back(caplog: pytest.LogCaptureFixture) -> None:
    """[D110] An hour if need be, and says so twice."""
    told: list[str | None] = []
    patience, line = Patience(Quick(), "redis://h", told.append), Line(800)
    with caplog.at_level(logging.INFO, "task_tracker"):
        assert asyncio.run(patience.call_with_retry(line.do, line.mend)) == "answer"
    assert line.mended == 800
    assert [record.__dict__["event"] for record in caplog.records] == ["arq_redis_away", "arq_redis_back"]
    assert len(told) == 2
    assert told[1] is None
    assert "hunter2" not in f"{caplog.text} {told}"
    assert patience.away_seconds == 0


def test_a_worker_that_is_to_stop_does_not_wait_for_redis() -> None:
    """[D109]"""
    clock = FakeClock()
    patience, line = Patience(clock, "redis://h"), Line(10)

    async def main() -> None:
        call = asyncio.create_task(patience.call_with_retry(line.do, line.mend))
        await until(lambda: line.mended)
        clock.advance(7)
        assert patience.away_seconds == 7
        patience.hurry()
        with pytest.raises(redis.ConnectionError):
            await call
        with pytest.raises(redis.ConnectionError):
            await patience.call_with_retry(line.do, line.mend)
        assert line.tries == 2
        patience.restart()
        line.failures = 0
        assert await patience.call_with_retry(line.do, line.mend) == "answer"

    asyncio.run(main())


def test_what_is_no_outage_is_raised_at_once() -> None:
    patience, line = Patience(FakeClock(), "redis://h"), Line(1, redis.ResponseError("wrong"))
    with pytest.raises(redis.ResponseError):
        asyncio.run(patience.call_with_retry(line.do, line.mend))
    assert not line.mended


def test_all_connections_share_one() -> None:
    way = ArqWakeUp(RedisSettings(host="h"))
    with TaskTracker(InMemoryTaskStore(), wake_up=way) as tracker:
        settings = ArqTasks(tracker).redis_settings
    assert settings.retry is not None
    assert copy.deepcopy(settings.retry) is settings.retry
    assert dataclasses.replace(settings, retry=None, retry_on_error=None) == way.redis_settings


# ---- with a server -----------------------------------------------------------------------------------


@asynccontextmanager
async def patient(server: RedisServer, patience: Patience) -> AsyncIterator[ArqRedis]:
    """The client of an ARQ worker, as ArqTasks makes it."""
    settings = RedisSettings(port=server.port, retry=patience, retry_on_error=Patience.ERRORS)
    client = await create_pool(settings)
    patience.spread(client)
    try:
        yield client
    finally:
        await client.aclose()


async def get(client: ArqRedis) -> object:
    return await client.get("key")


@contextmanager
def hanging_up(port: int) -> Iterator[list[int]]:
    """Take connections and close them at once, as a proxy does whose server is away; the list counts them."""
    taken: list[int] = []
    with socket.create_server(("127.0.0.1", port)) as listening:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    connection.close()
                    taken.append(1)

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        yield taken
        listening.shutdown(socket.SHUT_RDWR)
    join(thread)


def test_a_connection_that_is_lost_after_a_watch_fails_the_transaction_at_its_end(
    redis_server: RedisServer,
) -> None:
    """[D110] ARQ's worker is always between the two while something runs, and would end there."""

    async def main() -> None:
        async with patient(redis_server, Patience(SYSTEM_CLOCK, "here")) as client:
            async with client.pipeline(transaction=True) as pipe:
                await pipe.watch("key")
                redis_server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                assert await pipe.exists("key") == 0
                assert await pipe.zscore("queue", "name") is None
                pipe.multi()
                pipe.set("key", "value")
                with pytest.raises(redis.WatchError):
                    await pipe.execute()
            assert await client.get("key") is None
            async with client.pipeline(transaction=True) as pipe:
                await pipe.watch("key")
                assert await pipe.exists("key") == 0
                pipe.multi()
                pipe.set("key", "value")
                assert await pipe.execute() == [True]
            assert await client.get("key") == b"value"

    asyncio.run(main())


def test_a_proxy_that_hangs_up_is_no_end(redis_server: RedisServer) -> None:
    async def main() -> None:
        async with patient(redis_server, Patience(SYSTEM_CLOCK, "here")) as client:
            redis_server.stop()
            with hanging_up(redis_server.port) as taken:
                calls = [asyncio.create_task(get(client)) for _ in range(3)]
                await until(lambda: len(taken) >= 3)
            assert not any(call.done() for call in calls)
            redis_server.start()
            async with asyncio.timeout(PATIENCE):
                assert await asyncio.gather(*calls) == [None] * 3

    asyncio.run(main())


def test_a_server_that_is_silent_is_given_up_and_tried_again(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel still takes connections, which is no answer."""
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 0.05)
    told: list[str | None] = []
    patience = Patience(SYSTEM_CLOCK, "here", told.append)

    async def main() -> None:
        async with patient(redis_server, patience) as client:
            redis_server.freeze()
            call = asyncio.create_task(get(client))
            await until(lambda: patience.away_seconds > 0.5)
            assert not call.done()
            assert len(told) == 1
            monkeypatch.setattr(module, "_ANSWER_SECONDS", PATIENCE)
            redis_server.thaw()
            async with asyncio.timeout(PATIENCE):
                assert await call is None
            assert not patience.away_seconds
            assert told[1:] == [None]

    asyncio.run(main())


def test_a_transaction_that_is_left_does_not_wait_for_a_silent_server(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D109] ARQ's worker may be told to stop between WATCH and EXEC, and would ask the server to unwatch."""
    monkeypatch.setattr(module, "_LAST_ANSWER_SECONDS", 0.05)

    async def main() -> None:
        async with patient(redis_server, Patience(SYSTEM_CLOCK, "here")) as client:
            async with asyncio.timeout(PATIENCE), client.pipeline(transaction=True) as pipe:
                await pipe.watch("key")
                redis_server.freeze()
            redis_server.thaw()
            assert await get(client) is None

    asyncio.run(main())


def test_who_is_to_stop_does_not_wait_for_the_answer_of_a_silent_server(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D109] Neither for one that was asked before."""
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 10 * PATIENCE)
    monkeypatch.setattr(module, "_LAST_ANSWER_SECONDS", 0.05)
    patience = Patience(SYSTEM_CLOCK, "here")

    async def main() -> None:
        async with patient(redis_server, patience) as client:
            await client.ping()
            redis_server.freeze()
            call = asyncio.create_task(get(client))
            await until(lambda: patience._under_way)
            patience.hurry()
            with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
                await call
            with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
                await client.get("key")
            patience.hurry()

    asyncio.run(main())


def test_a_password_that_is_refused_is_said_at_once(tmp_path: Path) -> None:
    if redis_binary() is None:
        pytest.skip("needs the program redis-server")

    async def main(server: RedisServer) -> None:
        settings = RedisSettings(
            port=server.port,
            password="wrong",
            conn_retries=0,
            retry=Patience(SYSTEM_CLOCK, "here"),
            retry_on_error=Patience.ERRORS,
        )
        with pytest.raises(redis.AuthenticationError):
            await create_pool(settings)

    with RedisServer(tmp_path, "--requirepass", "right") as server:
        asyncio.run(main(server))
