"""ARQ worker processes on one store and one Redis, started, signalled and killed by a test."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stores import LeaseTaskStore
from task_tracker import TaskRecord, TaskTracker
from task_tracker.queues.arq import ArqWakeUp
from task_tracker.wakeups import WakeUp
from tests.core.support import OWNER
from tests.queues.redis_server import RedisServer
from tests.runtime.processes.program import PROJECT, wait_for
from tests.runtime.processes.tasks import DIRECTORY, Line, go, lines, registry

__all__ = ["ArqProcess", "Scene"]

LEASE_SECONDS = 1.5
PATIENCE_SECONDS = 60.0


class ArqProcess:
    """``arq module.WorkerSettings``."""

    def __init__(
        self,
        environment: dict[str, str],
        said: Path,
        settings: str = "tests.queues.arq_program.WorkerSettings",
    ) -> None:
        self._said = said
        self._file = said.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "arq", settings],
            cwd=PROJECT,
            env=environment,
            stdout=self._file,
            stderr=self._file,
        )

    def said(self, event: str) -> int:
        """How often it has told of an event."""
        return self._said.read_text().count(f'"event":"{event}"')

    def wait_said(self, event: str, number: int = 1) -> None:
        wait_for(lambda: self.said(event) >= number or self._has_ended(), f"it says {event}")
        assert self.said(event) >= number, self._said.read_text()

    def kill(self) -> None:
        """As ``kill -9`` does."""
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)

    def terminate(self) -> int:
        """Ask it to stop, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def _has_ended(self) -> bool:
        return self.process.poll() is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._has_ended():
            self.kill()
        self._file.close()
        if error is not None:
            sys.stderr.write(self._said.read_text())


class Scene:
    """A directory and a Redis that ARQ processes and the test share."""

    def __init__(self, path: Path, server: RedisServer) -> None:
        self.server = server
        self.root = path / "root"
        self.log = path / "log"
        self.log.mkdir(parents=True)
        self._numbers = itertools.count(1)
        self.store = LeaseTaskStore(self.root, durability="none", lease_seconds=LEASE_SECONDS)
        self.way = ArqWakeUp(server.url)
        self.tracker = self.tracker_with(self.way)

    def tracker_with(self, wake_up: WakeUp | None) -> TaskTracker:
        return TaskTracker(self.store, handlers=registry(), wake_up=wake_up)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, DIRECTORY: str(self.log)}

    def start(self, *, max_jobs: int = 10, **options: Any) -> ArqProcess:
        settings = {
            "root": str(self.root),
            "url": self.server.url,
            "lease_seconds": LEASE_SECONDS,
            "max_jobs": max_jobs,
            "options": {"send_seconds": 0.5, **options},
        }
        environment = {**self.environment, "ARQ_OF_A_TEST": json.dumps(settings)}
        return ArqProcess(environment, self.log / f"said-{next(self._numbers)}")

    def submit(self, task_type: str, **options: Any) -> TaskRecord:
        return self.tracker.submit(task_type, **options, **OWNER).record

    def seen(self, task: TaskRecord) -> TaskRecord:
        record = self.tracker.get(task.task_id, **OWNER)
        assert record is not None
        return record

    def lines(self, what: str | None = None) -> list[Line]:
        return lines(self.log, what)

    def go(self, *tasks: TaskRecord) -> None:
        """Let their handlers go on."""
        for task in tasks:
            go(self.log, task.task_id)

    def wait_begun(self, number: int = 1) -> None:
        wait_for(lambda: len(self.lines("begin")) >= number, f"{number} handlers have begun")

    def wait_ended(self, *tasks: TaskRecord) -> list[TaskRecord]:
        return [self.tracker.wait(task.task_id, **OWNER, timeout=PATIENCE_SECONDS) for task in tasks]

    def wait_noted(self) -> None:
        """Wait until ARQ has noted the end of every message: told to stop in the middle of that, its worker breaks."""
        wait_for(lambda: self.server.ask("ZCARD", self.way.queue_name) == 0, "no message is left")
        polls = self._polls()
        wait_for(lambda: self._polls() > polls + 1, "ARQ goes on")

    def _polls(self) -> int:
        said = self.server.ask("INFO", "commandstats")
        return int(said.get("cmdstat_zrangebyscore", {"calls": 0})["calls"])

    def close(self) -> None:
        self.way.close()
        self.tracker.close()
