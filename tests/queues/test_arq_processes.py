"""Real ARQ workers, a real Redis: killed, restarted, frozen. Every task ends, once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from arq.connections import create_pool

from tests.core.support import OWNER
from tests.queues.arq_processes import Scene
from tests.queues.redis_server import RedisServer
from tests.runtime.processes.program import PROJECT, wait_for

KILLED_SUBMITTER = """
import os, sys
from stores import LeaseTaskStore
from task_tracker import TaskTracker
from task_tracker.wakeups import NoWakeUp
from tests.runtime.processes.tasks import registry

class Killed(NoWakeUp):
    def wake(self, keys):
        os.kill(os.getpid(), 9)

tracker = TaskTracker(LeaseTaskStore(sys.argv[1], durability="none"), handlers=registry(), wake_up=Killed())
tracker.submit("quick", task_id="orphan", account_id="acme", user_id="alice")
"""


@pytest.fixture
def scene(tmp_path: Path, redis_server: RedisServer) -> Iterator[Scene]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as path:
        made = Scene(Path(path), redis_server)
        yield made
        made.close()


def test_tasks_run_beside_other_functions_and_the_worker_stops_cleanly(scene: Scene) -> None:
    async def enqueue_other() -> None:
        pool = await create_pool(scene.way.redis_settings)
        await pool.enqueue_job("other", "hello")
        await pool.aclose()

    tasks = [scene.submit("quick", payload=number) for number in range(10)]
    with scene.start() as worker:
        asyncio.run(enqueue_other())
        assert [task.result for task in scene.wait_ended(*tasks)] == list(range(10))
        wait_for((scene.log / "others").exists, "the other function has run")
        scene.wait_noted()
        assert worker.terminate() == 0
        assert worker.said("worker_stopped") == 1
    assert len(scene.lines("begin")) == 10


def test_what_was_never_sent_runs_once(scene: Scene) -> None:
    """[D118] Redis was away at the submit, or the submitter died between its commit and the message."""
    scene.server.stop()
    unsent = scene.submit("quick")
    assert scene.tracker.wake_up_failures == 1
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_SUBMITTER, str(scene.root)], cwd=PROJECT, timeout=60, check=False
    )
    assert killed.returncode == -9
    orphan = scene.tracker.get("orphan", **OWNER)
    assert orphan is not None
    with scene.start() as worker:
        worker.wait_said("arq_redis_away")
        scene.server.start()
        assert {task.status for task in scene.wait_ended(unsent, orphan)} == {"completed"}
        scene.wait_noted()
        assert worker.terminate() == 0
    assert sorted(line["task"] for line in scene.lines("begin")) == sorted([unsent.task_id, "orphan"])


def test_a_redis_that_is_restarted_and_has_lost_everything_costs_no_task(scene: Scene) -> None:
    """[D110] [D118] What runs goes on, what was announced is announced again, and the process is the same one."""
    with scene.start(concurrency=2) as worker:
        running = [scene.submit("hold") for _ in range(2)]
        scene.wait_begun(2)
        waiting = [scene.submit("quick") for _ in range(5)]
        scene.server.stop()
        unsent = scene.submit("quick")
        scene.go(*running)
        assert {task.status for task in scene.wait_ended(*running)} == {"completed"}, "without any Redis"
        worker.wait_said("arq_redis_away")
        scene.server.start()
        assert {task.status for task in scene.wait_ended(*waiting, unsent)} == {"completed"}
        worker.wait_said("arq_redis_back")
        scene.wait_noted()
        assert worker.terminate() == 0
    begun = [line["task"] for line in scene.lines("begin")]
    assert len(begun) == len(set(begun)) == 8


def test_what_a_killed_worker_had_is_settled_within_its_lease(scene: Scene) -> None:
    """[D120] Though ARQ holds its messages for hours: job_timeout is an hour here."""
    with scene.start() as first:
        once, often = scene.submit("hold"), scene.submit("again")
        scene.wait_begun(2)
        first.kill()
    with scene.start() as second:
        (lost,) = scene.wait_ended(once)
        assert (lost.status, lost.error_code) == ("failed", "holder_lost")
        scene.wait_begun(3)
        scene.go(often)
        (again,) = scene.wait_ended(often)
        assert again.status == "completed"
        assert again.attempt is not None
        assert again.attempt.count == 2
        second.terminate()
    assert len(scene.lines("end")) == 1


@pytest.mark.parametrize("how", ["gone", pytest.param("silent", marks=pytest.mark.slow)])
def test_a_worker_stops_although_redis_does_not_answer(scene: Scene, how: str) -> None:
    """[D109] Its tasks are settled all the same: the store is there."""
    with scene.start() as worker:
        once, often = scene.submit("hold"), scene.submit("again")
        scene.wait_begun(2)
        if how == "gone":
            scene.server.stop()
        else:
            scene.server.freeze()
        worker.terminate()
    assert scene.seen(often).status == "pending"
    assert (scene.seen(once).status, scene.seen(once).error_code) == ("failed", "interrupted")
    assert len(scene.lines("stopped")) == 2
