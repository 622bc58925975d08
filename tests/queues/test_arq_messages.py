"""ArqWakeUp: what is sent, under which name, and what becomes of it if Redis is away."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from arq.connections import RedisSettings, create_pool
from arq.constants import in_progress_key_prefix, job_key_prefix, result_key_prefix
from arq.jobs import JobDef

from stores import InMemoryTaskStore
from task_tracker import HandlerRegistry, TaskTracker
from task_tracker.errors import SettingsError, StoreUnavailable
from task_tracker.queues.messages import ArqWakeUp, open_arq
from task_tracker.records import TaskKey
from task_tracker.testing import FakeClock
from task_tracker.wakeups import WakeUp
from tests.core.support import OWNER, background
from tests.queues.redis_server import RedisServer, free_port, redis_binary

KEY = TaskKey("acme", "alice", "task-1")


@pytest.fixture
def way(redis_url: str, tmp_path: Path) -> Iterator[ArqWakeUp]:
    made = ArqWakeUp(redis_url, queue_name=f"queue of {tmp_path}")
    yield made
    made.close()


def queued(way: ArqWakeUp, **options: Any) -> list[JobDef]:
    """What ARQ itself reads."""

    async def ask() -> list[JobDef]:
        pool = await create_pool(way.redis_settings, default_queue_name=way.queue_name, **options)
        try:
            return await pool.queued_jobs()
        finally:
            await pool.aclose()

    return asyncio.run(ask())


def client(way: ArqWakeUp) -> Any:
    assert way._client is not None
    return way._client


def names(way: ArqWakeUp) -> list[str]:
    return [name.decode() for name in client(way).zrange(way.queue_name, 0, -1)]


# ---- what is sent ------------------------------------------------------------------------------------


def test_a_message_holds_the_ids_and_nothing_else(way: ArqWakeUp) -> None:
    """[D112] [D143] Neither payloads nor credentials leave the store."""
    registry = HandlerRegistry()
    registry.register("ingest", handler="app.ingest:run")
    with TaskTracker(InMemoryTaskStore(), handlers=registry, wake_up=way) as tracker:
        task = tracker.submit("ingest", {"doc": "x" * 100_000}, private={"key": "hunter2"}, **OWNER)
        assert tracker.wake_up_failures == 0
    (job,) = queued(way)
    assert (job.function, job.args, job.kwargs) == ("task_tracker", ("acme", "alice", task.task_id), {})
    (name,) = names(way)
    assert name.startswith("task_tracker:")
    message = client(way).get(job_key_prefix + name)
    assert b"hunter2" not in message
    assert len(message) < 300
    assert 0 < client(way).ttl(job_key_prefix + name) <= 86_400


def test_many_are_sent_in_few_calls(way: ArqWakeUp) -> None:
    way.wake([TaskKey("acme", "alice", f"task-{number}") for number in range(250)])
    assert len(queued(way)) == 250
    way.wake([])


def test_who_is_announced_again_has_one_message_all_the_same(way: ArqWakeUp) -> None:
    for _ in range(3):
        way.wake([KEY, KEY])
    assert len(queued(way)) == 1


def test_one_that_was_taken_can_be_sent_again(way: ArqWakeUp) -> None:
    """Also if ARQ has kept a result under its name, as it does of messages that have grown too old."""
    way.wake([KEY])
    (name,) = names(way)
    client(way).zrem(way.queue_name, name)
    client(way).delete(job_key_prefix + name)
    client(way).set(result_key_prefix + name, b"expired")
    way.wake([KEY])
    assert names(way) == [name]


def test_while_one_is_worked_on_the_next_one_has_another_name(way: ArqWakeUp) -> None:
    """[D120] ARQ keeps the name of what a dead worker had for as long as the longest function may take."""
    for number in range(1, 5):
        way.wake([KEY])
        way.wake([KEY])
        assert len(names(way)) == number
        client(way).set(in_progress_key_prefix + names(way)[-1], b"1")
    assert {name.rpartition(":")[0] for name in names(way)} == {names(way)[0].rpartition(":")[0]}


def test_a_message_for_later_is_held_back(way: ArqWakeUp) -> None:
    """Its name is another one, so that one for now does not wait for it; the time that was said last counts."""
    now = way._clock.now()
    for seconds in (7200, 3600):
        way.wake_later([KEY], now + seconds)
    ((name, at_ms),) = client(way).zrange(way.queue_name, 0, -1, withscores=True)
    assert at_ms == pytest.approx((now + 3600.1) * 1000, abs=1)
    assert client(way).pttl(job_key_prefix + name.decode()) > 86_400_000
    way.wake([KEY])
    assert len(queued(way)) == 2
    assert client(way).zscore(way.queue_name, name) == at_ms


def test_what_is_submitted_for_later_is_sent_for_later(way: ArqWakeUp) -> None:
    """Also when it was submitted before; what is due by now is sent for now."""
    registry = HandlerRegistry()
    registry.register("ingest", handler="app.ingest:run")
    clock = FakeClock(start=way._clock.now())
    with TaskTracker(InMemoryTaskStore(clock=clock), handlers=registry, wake_up=way, clock=clock) as tracker:
        for _ in range(2):
            tracker.submit("ingest", **OWNER, not_before=clock.now() + 3600, dedupe=True)
        assert tracker.wake_up_failures == 0
        (found,) = client(way).zrange(way.queue_name, 0, -1, withscores=True)
        assert found[1] == pytest.approx((clock.now() + 3600.1) * 1000, abs=1)
        tracker.submit("ingest", **OWNER, not_before=clock.now() - 1)
    assert len(queued(way)) == 2


def test_there_is_an_end_to_names(way: ArqWakeUp) -> None:
    for _ in range(30):
        way.wake([KEY])
        for name in names(way):
            client(way).set(in_progress_key_prefix + name, b"1")
    assert len(names(way)) == 16


def test_two_owners_of_one_id_have_two_messages(way: ArqWakeUp) -> None:
    """[D066]"""
    way.wake([TaskKey("acme", "alice", "t"), TaskKey("acme", "bob", "t"), TaskKey("acme:alice", "", "t")])
    assert len(queued(way)) == 3


def test_it_writes_as_the_worker_reads(redis_url: str, tmp_path: Path) -> None:
    way = ArqWakeUp(
        redis_url,
        queue_name=f"queue of {tmp_path}",
        function_name="durable",
        job_serializer=lambda job: json.dumps(job).encode(),
    )
    way.wake([KEY])
    (job,) = queued(way, job_deserializer=json.loads)
    assert (job.function, list(job.args)) == ("durable", list(KEY))
    way.close()


def test_nobody_is_woken_and_nobody_is_kept() -> None:
    clock = FakeClock()
    way: WakeUp = ArqWakeUp("redis://127.0.0.1", clock=clock)
    with background(lambda: way.wait(10)) as answers:
        clock.until_waiting()
        way.interrupt()
    assert answers == [False]


# ---- outages -----------------------------------------------------------------------------------------


def test_a_redis_that_is_away_leaves_a_pending_task_and_a_count() -> None:
    """[D118] The caller gets a truthful answer, and it is quick."""
    clock = FakeClock()
    registry = HandlerRegistry()
    registry.register("ingest", handler="app.ingest:run")
    way = ArqWakeUp(f"redis://:hunter2@127.0.0.1:{free_port()}/0", clock=clock)
    with TaskTracker(InMemoryTaskStore(), handlers=registry, wake_up=way, clock=clock) as tracker:
        task = tracker.submit("ingest", **OWNER)
        assert task.created
        assert task.record.status == "pending"
        assert tracker.wake_up_failures == 1
        again = tracker.submit("ingest", dedupe=True, resource_id="kb", **OWNER)
        assert tracker.wake_up_failures == 2
        assert tracker.submit("ingest", dedupe=True, resource_id="kb", **OWNER).task_id == again.task_id


def test_a_deaf_one_too_and_no_password_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        way = ArqWakeUp(f"redis://:hunter2@127.0.0.1:{deaf.getsockname()[1]}/0", clock=FakeClock())
        for complaint in ("does not answer", "tried again in"):
            with pytest.raises(StoreUnavailable, match=complaint) as raised:
                way.wake([KEY])
            assert "hunter2" not in str(raised.value)
        assert "hunter2" not in repr(way)
        way.close()


# ---- settings ----------------------------------------------------------------------------------------


def test_a_url_says_what_arqs_settings_say() -> None:
    settings = ArqWakeUp("rediss://bob:p%40ss@example.org:7000/3").redis_settings
    assert (settings.host, settings.port, settings.database) == ("example.org", 7000, 3)
    assert (settings.username, settings.password, settings.ssl) == ("bob", "p@ss", True)
    assert ArqWakeUp("unix:///run/redis.sock?db=2").redis_settings == RedisSettings(
        unix_socket_path="/run/redis.sock", database=2
    )
    assert ArqWakeUp("redis://localhost").redis_settings == RedisSettings()
    mine = RedisSettings(host="example.org", conn_timeout=3)
    assert ArqWakeUp(mine).redis_settings is mine


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        (RedisSettings(password="hunter2"), "redis://localhost:6379/0"),
        (RedisSettings(host="h", port=1, database=2, ssl=True), "rediss://h:1/2"),
        (RedisSettings(unix_socket_path="/s", database=2), "unix:///s?db=2"),
        (
            RedisSettings(host=[("a", 1), ("b", 2)], sentinel=True, password="hunter2"),
            "mymaster at the sentinels a:1,b:2",
        ),
    ],
)
def test_where_that_is_can_be_said(settings: RedisSettings, where: str) -> None:
    assert ArqWakeUp(settings).where == where


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis://:hun/ter2@host/0", "no URL"),
        ("redis://:hunter2@host/0?socket_timeout=3", "socket_timeout"),
    ],
)
def test_what_cannot_be_meant_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint) as raised:
        ArqWakeUp(url)
    assert "ter2" not in str(raised.value)
    with pytest.raises(SettingsError, match="sentinel"):
        ArqWakeUp(RedisSettings(host=[("a", 1)])).wake([KEY])


def test_a_configured_one_may_name_its_queue() -> None:
    way = open_arq("arq+redis://:pw@host:1/2?queue=mine")
    assert way.queue_name == "mine"
    assert way.redis_settings == RedisSettings(host="host", port=1, database=2, password="pw")
    assert open_arq("arq+unix:///s?db=3").redis_settings.database == 3


def test_behind_sentinels_the_master_is_found(tmp_path: Path) -> None:
    if redis_binary() is None:
        pytest.skip("needs the program redis-server")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with RedisServer(tmp_path / "one") as master:
        rules = tmp_path / "two" / "sentinel.conf"
        rules.write_text(f"sentinel monitor mymaster 127.0.0.1 {master.port} 1\n")
        with RedisServer(tmp_path / "two", sentinel=rules) as sentinel:
            way = ArqWakeUp(RedisSettings(host=[("127.0.0.1", sentinel.port)], sentinel=True))
            way.wake([KEY])
            assert master.ask("ZCARD", way.queue_name) == 1
            way.close()
