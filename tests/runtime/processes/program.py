"""``python -m task_tracker worker`` as a test starts, hears, signals and ends it."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stores.files.lease.store import LeaseTaskStore
from task_tracker import TaskRecord, TaskTracker
from tests.core.support import OWNER
from tests.runtime.processes.tasks import DIRECTORY, Line, lines, registry

__all__ = ["Place", "Program", "expire", "wait_for"]

PROJECT = Path(__file__).resolve().parent.parent.parent.parent
PATIENCE_SECONDS = 60.0
SILENT_SECONDS = 60.0
"""Longer than any lease here, and far from the day after which nobody hopes for a worker any more."""


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Wait until ``condition`` is true, and return what it gave."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it never came to that: {what}"
        time.sleep(0.002)
    return found


class Program:
    """One worker process."""

    def __init__(self, arguments: list[str], environment: dict[str, str], said: Path) -> None:
        self._said = said
        self._stderr = said.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "task_tracker", "worker", *arguments],
            cwd=PROJECT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        self.pid = self.process.pid
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.settings: dict[str, Any] = json.loads(line) if line else {}

    def wait_said(self, event: str) -> None:
        """Wait for an event in its log."""
        wait_for(lambda: f'"event":"{event}"' in self._said.read_text(), f"it says {event}")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def freeze(self) -> None:
        """Stop it, and return when it stands still."""
        self.signal(signal.SIGSTOP)
        pid, status = os.waitpid(self.pid, os.WUNTRACED)
        assert pid == self.pid
        assert os.WIFSTOPPED(status), f"the worker ended: {status}"

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """As ``kill -9`` does."""
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)

    def terminate(self) -> int:
        """Ask it to stop, and return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        self._stderr.close()
        if error is not None:
            sys.stderr.write(self._said.read_text())
        assert self.process.stdout is not None
        self.process.stdout.close()


def expire(root: Path) -> None:
    """Have all leases that nobody renews be over, as if their time had passed; holders that live renew theirs."""
    for entry in _entries(root):
        with contextlib.suppress(FileNotFoundError):  # given up, or taken over
            renewed_at = entry.stat().st_mtime - SILENT_SECONDS
            os.utime(entry, (renewed_at, renewed_at))


def _entries(root: Path) -> Iterable[Path]:
    return (root / "local" / ".task_tracker" / "leases").glob("*/*@*")


class Place:
    """A directory that worker processes and the test share.

    Leases are long, so that a machine that is busy costs none, and renewed often, so that who looks for dead holders
    finds them soon after :meth:`expire`.
    """

    def __init__(self, path: Path, *, lease_seconds: float, heartbeat_seconds: float) -> None:
        self.root = path / "root"
        self.log = path / "log"
        self.log.mkdir(parents=True)
        self._lease_seconds, self._heartbeat_seconds = lease_seconds, heartbeat_seconds
        self._numbers = itertools.count(1)
        self.store = LeaseTaskStore(
            self.root, durability="none", lease_seconds=lease_seconds, heartbeat_seconds=heartbeat_seconds
        )
        self.tracker = TaskTracker(self.store, handlers=registry())

    def start(self, *arguments: str) -> Program:
        return Program(
            [
                "--handlers=tests.runtime.processes.tasks:registry",
                f"--root={self.root}",
                "--durability=none",
                f"--lease-seconds={self._lease_seconds}",
                f"--heartbeat-seconds={self._heartbeat_seconds}",
                "--log-format=json",
                *arguments,
            ],
            {**os.environ, DIRECTORY: str(self.log)},
            self.log / f"said-{next(self._numbers)}",
        )

    def submit(self, task_type: str, **options: Any) -> TaskRecord:
        return self.tracker.submit(task_type, **options, **OWNER).record

    def seen(self, task: TaskRecord) -> TaskRecord:
        record = self.tracker.get(task.task_id, **OWNER)
        assert record is not None
        return record

    def lines(self, what: str | None = None) -> list[Line]:
        return lines(self.log, what)

    def wait_begun(self, number: int = 1) -> None:
        wait_for(lambda: len(self.lines("begin")) >= number, f"{number} handlers have begun")

    def times_begun(self, task: TaskRecord) -> int:
        """How often its handler has begun, under attempts that grow.

        Their numbers say nothing more: what was claimed by a process whose loop then did not run for a second, on a
        busy machine, was given back, and the claim after it has the next number.
        """
        attempts = [line["attempt"] for line in self.lines("begin") if line["task"] == task.task_id]
        assert attempts == sorted(set(attempts)), f"attempts began as {attempts}"
        return len(attempts)

    def wait_ended(self, task: TaskRecord) -> TaskRecord:
        return self.tracker.wait(task.task_id, **OWNER, timeout=PATIENCE_SECONDS)

    def expire(self) -> None:
        """Have all leases of those who are dead or frozen be over."""
        expire(self.root)

    def heartbeat(self) -> int:
        """When the lease was renewed that was renewed longest ago."""
        return min((entry.stat().st_mtime_ns for entry in _entries(self.root)), default=0)

    def wait_heartbeats_of_a_lease(self) -> None:
        """Wait for more heartbeats than there are in a lease."""
        for _ in range(math.ceil(self._lease_seconds / self._heartbeat_seconds) + 1):
            self._wait_heartbeat(self.heartbeat())

    def _wait_heartbeat(self, last: int) -> None:
        wait_for(lambda: self.heartbeat() != last, "a heartbeat")
