"""Many processes that do one thing at the same time: ``python -m tests.lease.processes.crowd <role> <json>``.

Owns forking them, letting all begin at once and bringing back their answers.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stores.files.lease.store import LeaseTaskStore
from stores.files.ops import FileOps
from task_tracker import TaskRecord, transitions
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import StoreUnavailable, TaskTrackerError
from task_tracker.records import TaskKey, TaskStatus
from task_tracker.testing.jobs import compete

__all__ = ["crowd"]

PROJECT = Path(__file__).resolve().parent.parent.parent.parent
PATIENCE_SECONDS = 240.0


def crowd(role: str, size: int, **arguments: Any) -> list[Any]:
    """Run a role of this module in ``size`` processes at once and return their answers."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-m", __name__, role, str(size), json.dumps(arguments)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            told, _ = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, "a process failed; its error is above"
    return json.loads(told)  # type: ignore[no-any-return]


# ---- in the other processes ----------------------------------------------------------------------------------


def main(role: str, size: int, arguments: dict[str, Any]) -> None:
    """Fork, wait until all are ready, let them go, and print what each of them answers."""
    ready, told = os.pipe(), os.pipe()
    go, gone = os.pipe()
    pids = []
    for index in range(size):
        pid = os.fork()
        if not pid:
            os.close(gone)
            _member(ROLES[role], index, arguments, ready[1], go, told[1])
        pids.append(pid)
    os.close(ready[1])
    os.close(told[1])
    heard = 0
    while heard < size and (more := os.read(ready[0], size)):
        heard += len(more)
    os.close(gone)  # which all of them hear at once
    with os.fdopen(told[0]) as answers:
        found = [json.loads(line) for line in answers]
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    assert not any(statuses), statuses
    print(json.dumps(found))  # noqa: T201  # that is how it answers


def _member(
    role: Callable[..., Any], index: int, arguments: dict[str, Any], ready: int, go: int, told: int
) -> None:
    """Be one of them. Never returns."""
    code = 1
    try:

        def sync() -> None:
            os.write(ready, b"!")
            os.read(go, 1)

        answer = role(index, sync, **arguments)
        os.write(told, json.dumps(answer).encode() + b"\n")
        code = 0
    except BaseException:  # noqa: BLE001  # shown, and told by the exit code
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _record(task_id: str, user_id: str = "alice", status: TaskStatus = TaskStatus.PENDING) -> TaskRecord:
    now = SYSTEM_CLOCK.now()
    return TaskRecord(task_id, "reindex", status, now, now, "acme", user_id, resource_id="docs")


def create_first(index: int, sync: Callable[[], None], root: str, user_id: str) -> str:
    """Open the directory and create a task of a user that nobody has heard of."""
    sync()
    store = LeaseTaskStore(root, durability="none")
    return store.create(_record(f"task-{index}", user_id)).record.task_id


def create_one(index: int, sync: Callable[[], None], root: str, calls: int, flag: str) -> int:
    """Create and end tasks of one kind; fails if another one is active meanwhile."""
    store = LeaseTaskStore(root, durability="none")
    sync()
    return compete(store, sync, _record(f"of-{index}"), calls, flag)


class FailingOps(FileOps):
    """Fails one system call with EIO, once armed."""

    def __init__(self) -> None:
        self._left = 0
        for name in dir(FileOps):
            if not name.startswith("_") and name not in ("close", "pause", "exchange"):
                setattr(self, name, self._failing(getattr(FileOps, name)))

    def arm(self, nth: int) -> None:
        """Fail the ``nth`` call from now; 0 for none."""
        self._left = nth

    def _failing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if self._left:
                self._left -= 1
                if not self._left:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), str(arguments[0]))
            return function(*arguments, **keywords)

        return call


def cycle(index: int, sync: Callable[[], None], root: str, cycles: int) -> dict[str, int]:
    """Create, claim, renew and end, with failures among them, and hardly any descriptors to spare."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    ops = FailingOps()
    store = LeaseTaskStore(root, durability="none", ops=ops)
    sync()
    before = len(os.listdir("/proc/self/fd"))
    failures = ended = 0
    for number in range(cycles):
        record = _record(f"task-{number}", f"user-{number % 5}")
        if number % 3 == 0:
            ops.arm(number // 3 % 60 + 1)
        try:
            ended += _live(store, record)
        except StoreUnavailable:
            failures += 1
        except TaskTrackerError as error:
            raise AssertionError(f"cycle {number}") from error
        ops.arm(0)
    return {
        "before": before,
        "after": len(os.listdir("/proc/self/fd")),
        "failures": failures,
        "ended": ended,
    }


def _live(store: LeaseTaskStore, record: TaskRecord) -> bool:
    store.create(record)
    claimed = store.claim(TaskKey(*record.key), holder="cycle")
    assert claimed is not None
    lease, stored = claimed
    store.renew(lease)
    store.end(lease, transitions.completed(stored.record, SYSTEM_CLOCK.now(), b"null"))
    store.delete(record.key)
    return True


ROLES: dict[str, Callable[..., Any]] = {
    "create_first": create_first,
    "create_one": create_one,
    "cycle": cycle,
}

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
