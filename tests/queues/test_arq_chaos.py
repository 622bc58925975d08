"""What takes its time: a minute without Redis, and workers and Redis killed again and again."""

from __future__ import annotations

import contextlib
import os
import random  # noqa: TID251  # seeded: who is hit
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from task_tracker import StorageConfig, TaskRecord
from tests.core.support import OWNER
from tests.queues.arq_processes import ArqProcess, Scene
from tests.queues.redis_server import RedisServer
from tests.runtime.processes.program import Program
from tests.runtime.processes.tasks import registry

pytestmark = pytest.mark.slow

OUTAGE_SECONDS = 60.0
TASKS, BLOWS = 200, 16


@pytest.fixture
def scene(tmp_path: Path, redis_server: RedisServer) -> Iterator[Scene]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as path:
        made = Scene(Path(path), redis_server)
        yield made
        made.close()


def test_after_a_minute_without_redis_all_goes_on_by_itself(scene: Scene) -> None:
    """[D110] An ARQ worker, and one that Redis wakes and that looks once an hour otherwise."""
    hourly = Program(
        [
            "--handlers=tests.runtime.processes.tasks:registry",
            f"--root={scene.root}-2",
            "--durability=none",
            "--log-format=json",
            "--shortest-poll-seconds=3600",
            "--longest-poll-seconds=3600",
        ],
        {**scene.environment, "TASK_TRACKER__WAKE_UP": scene.server.url},
        scene.log / "said-hourly",
    )
    config = StorageConfig(
        task_tracker={"backend": "lease", "root": f"{scene.root}-2", "wake_up": scene.server.url}
    )
    with hourly, scene.start() as worker, config.build_task_tracker(handlers=registry()) as other:
        running = scene.submit("hold")
        before = other.submit("quick", **OWNER)
        scene.wait_begun(2)
        assert other.wait(before.task_id, **OWNER, timeout=60).status == "completed"
        scene.server.stop()
        gone_at = time.monotonic()
        tasks = [scene.submit("quick") for _ in range(5)]
        elsewhere = other.submit("quick", **OWNER)
        assert not elsewhere.record.status.is_terminal
        scene.go(running)
        assert scene.wait_ended(running)[0].status == "completed"
        while (
            time.monotonic() - gone_at < OUTAGE_SECONDS
        ):  # the outage itself: nothing tells that it has lasted
            time.sleep(0.5)
        scene.server.start()
        assert {task.status for task in scene.wait_ended(*tasks)} == {"completed"}
        assert other.wait(elsewhere.task_id, **OWNER, timeout=60).status == "completed"
        assert worker.process.poll() is None
        assert hourly.terminate() == 0
        scene.wait_noted()
        assert worker.terminate() == 0
    assert len(scene.lines("begin")) == 8


def test_a_redis_that_is_silent_for_a_while_costs_nothing(scene: Scene) -> None:
    """[D110] Longer than an answer may take."""
    with scene.start() as worker:
        running = scene.submit("hold")
        scene.wait_begun()
        scene.server.freeze()
        worker.wait_said("arq_redis_away")
        unsent = scene.submit("quick")
        assert scene.tracker.wake_up_failures == 1
        scene.go(running)
        assert scene.wait_ended(running)[0].status == "completed"
        scene.server.thaw()
        assert scene.wait_ended(unsent)[0].status == "completed"
        scene.wait_noted()
        assert worker.terminate() == 0


def test_whatever_is_killed_every_task_ends_and_none_that_must_not_runs_twice(
    scene: Scene, told: list[str]
) -> None:
    """[D003] [D118] [D120] Workers are killed or told to stop, and Redis loses everything, in turn."""
    dice = random.Random(7)
    workers: list[ArqProcess] = []
    tasks: list[TaskRecord] = []
    done: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            workers.append(stack.enter_context(scene.start(concurrency=3)))
        for blow in range(BLOWS):
            for _ in range(TASKS // BLOWS):
                tasks.append(scene.submit(dice.choice(["quick", "quick", "again", "hold"])))
            enough = min(len(scene.lines("begin")) + 5, len(tasks) - 6)
            scene.go(*(task for task in tasks if dice.random() < 0.8))
            scene.wait_begun(enough)
            kind = ("kill", "redis", "stop", "redis")[blow % 4]
            done[kind] += 1
            if kind == "redis":
                scene.server.restart()
                continue
            victim = workers.pop(0)
            os.kill(victim.process.pid, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            victim.process.wait(60)
            workers.append(stack.enter_context(scene.start(concurrency=3)))
        scene.go(*tasks)
        ended = scene.wait_ended(*tasks)
        survivors = [worker for worker in workers if worker.process.poll() is None]
        assert len(survivors) == len(workers), "no worker ends by itself"
    begun_by = Counter(line["task"] for line in scene.lines("begin"))
    ends_by = Counter(line["task"] for line in scene.lines("end"))
    for task in ended:
        often = task.task_type == "again"
        assert begun_by[task.task_id] <= (5 if often else 1), task
        assert task.status == "completed" or task.error_code in {"holder_lost", "interrupted", "crash_loop"}
        if task.status == "completed":
            assert ends_by[task.task_id] >= 1
    statuses = Counter(str(task.error_code or task.status) for task in ended)
    told.append(f"ARQ: {len(ended)} tasks through {dict(done)}: {dict(statuses)}")
