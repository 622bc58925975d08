"""Workers that Redis wakes, as configuration builds them: quick while it is there, unharmed while it is not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from task_tracker import HandlerRegistry, StorageConfig, TaskTracker
from task_tracker.cli.worker_settings import WorkerSettings, effective
from task_tracker.errors import SettingsError
from task_tracker.queues.messages import ArqWakeUp
from task_tracker.queues.redis import RedisWakeUp
from task_tracker.wakeups import open_wake_up
from task_tracker.worker.worker import Worker
from tests.core.support import OWNER, PATIENCE
from tests.queues.redis_server import RedisServer, free_port
from tests.runtime.processes.program import Program
from tests.runtime.processes.tasks import DIRECTORY
from tests.runtime.processes.tasks import registry as process_registry
from tests.runtime.work import WORK, registry, until
from tests.runtime.workers import no_thread_is_left

HOURS = (3600.0, 7200.0)
"""Pauses between two looks that no test survives: whatever is found in time was announced."""


def tracker_on(url: str | None, root: Path, handlers: HandlerRegistry | None = None) -> TaskTracker:
    config = StorageConfig(
        task_tracker={"backend": "lease", "root": str(root), "durability": "none", "wake_up": url}
    )
    return config.build_task_tracker(handlers=handlers or registry(), cleanup=False, reconcile=False)


def way_of(tracker: TaskTracker) -> RedisWakeUp:
    way = tracker.waking.wake_up
    assert isinstance(way, RedisWakeUp)
    return way


async def ended(tracker: TaskTracker, task_id: str) -> str:
    record = await asyncio.to_thread(tracker.wait, task_id, **OWNER, timeout=PATIENCE)
    return str(record.status)


# ---- working -----------------------------------------------------------------------------------------


def test_a_task_is_announced_through_an_outage_and_after_it(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """[D108] [D110] What came while Redis was away is found when it is back; the worker stays ready all the time."""
    WORK.begin()

    async def main() -> None:
        with tracker_on(redis_server.url, tmp_path) as here, tracker_on(redis_server.url, tmp_path) as there:
            async with Worker(there, poll_seconds=HOURS) as worker:
                await until(lambda: way_of(there).until_listening(0))
                first = here.submit("note", **OWNER)
                assert await ended(here, first.task_id) == "completed"
                redis_server.stop()
                missed = here.submit("note", **OWNER)
                assert here.wake_up_failures == 1
                await until(lambda: not way_of(there).until_listening(0))
                assert worker.status().ready
                redis_server.start()
                assert await ended(here, missed.task_id) == "completed", "who comes back looks once"
                await until(lambda: _can_wake(way_of(here)))
                last = here.submit("note", **OWNER)
                assert await ended(here, last.task_id) == "completed"
            way_of(here).close()
            way_of(there).close()

    with no_thread_is_left():
        asyncio.run(main())
    assert len(WORK.runs) == 3


def test_what_is_for_later_is_found_when_its_time_has_come(redis_url: str, tmp_path: Path) -> None:
    """By a worker that slept when it was submitted, and by itself when it is to be tried again."""
    WORK.begin()
    handlers = registry(idempotent=True, retry_seconds=0.01)

    async def main() -> None:
        with (
            tracker_on(redis_url, tmp_path) as here,
            tracker_on(redis_url, tmp_path, handlers=handlers) as there,
        ):
            async with Worker(there, poll_seconds=HOURS):
                await until(lambda: way_of(there).until_listening(0))
                later = here.submit("note", **OWNER, not_before=here.clock.now() + 0.2)
                assert await ended(here, later.task_id) == "completed"
                failing = here.submit("boom", **OWNER)
                assert await ended(here, failing.task_id) == "failed"
            way_of(here).close()
            way_of(there).close()

    asyncio.run(main())
    assert len(WORK.runs) == 4


def test_what_a_worker_gives_back_as_it_stops_is_found_by_another_one(redis_url: str, tmp_path: Path) -> None:
    WORK.begin()
    handlers = registry(idempotent=True)

    async def main() -> None:
        with (
            tracker_on(redis_url, tmp_path, handlers=handlers) as here,
            tracker_on(redis_url, tmp_path, handlers=handlers) as there,
        ):
            stopping = Worker(here, poll_seconds=HOURS)
            await stopping.start()
            task = here.submit("hold", **OWNER)
            await until(lambda: WORK.runs)
            async with Worker(there, poll_seconds=HOURS):
                await until(lambda: way_of(there).until_listening(0))
                assert await stopping.stop(0) == 0
                await until(lambda: len(WORK.runs) == 2)
                WORK.open()
                assert await ended(here, task.task_id) == "completed"
            way_of(here).close()
            way_of(there).close()

    asyncio.run(main())


def _can_wake(way: RedisWakeUp) -> bool:
    with contextlib.suppress(Exception):  # it rests for a while after a failure
        way.wake([])
        return True
    return False


def test_without_redis_tasks_are_found_by_looking(tmp_path: Path) -> None:
    """[D118]"""
    WORK.begin()
    url = f"redis://127.0.0.1:{free_port()}/0"

    async def main() -> None:
        with tracker_on(url, tmp_path) as tracker:
            async with Worker(tracker):
                task = tracker.submit("note", **OWNER)
                assert await ended(tracker, task.task_id) == "completed"
            assert tracker.wake_up_failures == 1
            way_of(tracker).close()

    asyncio.run(main())


def test_a_worker_stops_although_redis_is_silent(redis_server: RedisServer, tmp_path: Path) -> None:
    """[D109]"""
    WORK.begin()

    async def main() -> None:
        with tracker_on(redis_server.url, tmp_path) as tracker:
            worker = Worker(tracker, poll_seconds=HOURS)
            await worker.start()
            await until(lambda: way_of(tracker).until_listening(0))
            tracker.submit("hold", **OWNER)
            await until(lambda: WORK.runs)
            redis_server.freeze()
            assert await worker.stop(0) == 0
            redis_server.thaw()
            way_of(tracker).close()

    with no_thread_is_left():
        asyncio.run(main())


def test_a_worker_of_the_command_line_is_woken(redis_url: str, tmp_path: Path) -> None:
    """Its settings say where Redis is, and do not say the password."""
    root = tmp_path / "root"
    worker = Program(
        [
            "--handlers=tests.runtime.processes.tasks:registry",
            f"--root={root}",
            "--durability=none",
            "--log-format=json",
            "--shortest-poll-seconds=3600",
            "--longest-poll-seconds=3600",
        ],
        {"PATH": "", DIRECTORY: str(tmp_path), "TASK_TRACKER__WAKE_UP": f"{redis_url}?channel=mine"},
        tmp_path / "said",
    )
    config = StorageConfig(
        task_tracker={"backend": "lease", "root": str(root), "wake_up": f"{redis_url}?channel=mine"}
    )
    with worker, config.build_task_tracker(handlers=process_registry()) as tracker:
        assert worker.settings["storage"]["wake_up"] == redis_url
        task = tracker.submit("quick", **OWNER)
        assert tracker.wait(task.task_id, **OWNER, timeout=PATIENCE).status == "completed"
        assert worker.terminate() == 0
        way_of(tracker).close()


# ---- settings ----------------------------------------------------------------------------------------


def test_a_configured_password_is_not_shown(tmp_path: Path) -> None:
    url = "redis://bob:hunter2@h:6379/0"
    config = StorageConfig(task_tracker={"backend": "lease", "root": str(tmp_path), "wake_up": url})
    assert "hunter2" not in f"{config!r} {config.model_dump()}"
    shown = json.dumps(effective(WorkerSettings(), config.task_tracker))
    assert "hunter2" not in shown
    assert "bob" in shown
    assert effective(WorkerSettings(), StorageConfig().task_tracker)["storage"]["wake_up"] is None  # type: ignore[index]
    with pytest.raises(SettingsError, match="wake_up") as raised:
        StorageConfig(task_tracker={"wake_up": [url]})
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://h:1/0", RedisWakeUp),
        ("rediss://h:1/0", RedisWakeUp),
        ("unix:///s", RedisWakeUp),
        ("arq+redis://h:1/0?queue=mine", ArqWakeUp),
        ("arq+rediss://h:1/0", ArqWakeUp),
        ("arq+unix:///s", ArqWakeUp),
    ],
)
def test_a_url_says_which_it_is(url: str, kind: type[object]) -> None:
    assert type(open_wake_up(url)) is kind


def test_an_unknown_one_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(SettingsError, match="begins with redis://") as raised:
        open_wake_up("amqp://:hunter2@h")
    assert "hunter2" not in str(raised.value)


def test_a_wake_up_for_nobody_is_refused(tmp_path: Path) -> None:
    """There are no workers without leases."""
    config = StorageConfig(
        task_tracker={"backend": "persistent", "root": str(tmp_path), "wake_up": "redis://h"}
    )
    with pytest.raises(SettingsError, match=r"wake_up is set, but the backend 'persistent' has no leases"):
        config.build_task_tracker()


@pytest.mark.parametrize(
    ("package", "url", "extra"),
    [
        ("redis", "redis://h", "durable-task-tracker[redis]"),
        ("redis", "arq+redis://h", "durable-task-tracker[arq]"),
        ("arq", "arq+redis://h", "durable-task-tracker[arq]"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(package: str, url: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{package!r}] = None
from task_tracker import SettingsError
from task_tracker.wakeups import open_wake_up
try:
    open_wake_up({url!r})
except SettingsError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert f"pip install '{extra}'" in ran.stdout
    assert package in ran.stdout
