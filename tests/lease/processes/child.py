"""One other process on the same directory: ``python -m tests.lease.processes.child <root> <how>``.

Owns what it can be asked for, over pipes, in JSON lines; and how a test stops it, by signals or at a system call
of its own. ``how`` is ``store`` or ``tracker``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stores.files.lease.store import LeaseTaskStore
from stores.files.ops import FileOps
from task_tracker import TaskRecord, TaskTracker
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.records import TaskKey, TaskStatus
from task_tracker.store import Lease, Stored

__all__ = ["Child"]

PROJECT = Path(__file__).resolve().parent.parent.parent.parent
PATIENCE_SECONDS = 30.0


class Child:
    """The test's side of it."""

    def __init__(self, root: Path, how: str, **options: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", __name__, str(root), how, json.dumps(options)],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        try:
            assert self.hear() == "ready"
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def ask(self, call: str, *arguments: Any, **keywords: Any) -> Any:
        """Have it do something and return the answer; ``{"error": name}`` if that raised."""
        self.tell(call, *arguments, **keywords)
        return self.hear()

    def tell(self, call: str, *arguments: Any, **keywords: Any) -> None:
        """Have it do something, for :meth:`hear` to say later what came of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([call, arguments, keywords]) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the child ended without a word; its error is above"
        return json.loads(line)

    def freeze(self) -> None:
        """Stop it, and return when it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_until_frozen()

    def wait_until_frozen(self) -> None:
        """Wait for it to stop, by our signal or by its own."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (waited := os.waitpid(self.pid, os.WUNTRACED | os.WNOHANG))[0]:
            assert time.monotonic() < deadline, "it does not stop"
            time.sleep(0.001)
        assert os.WIFSTOPPED(waited[1]), f"the child ended: {waited[1]}"

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if kind is not None:
            self.kill()
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            self._process.stdout.close()


# ---- in the other process ----------------------------------------------------------------------------------


class StoppingOps(FileOps):
    """Stops the process right before a system call on a path that holds some text, once armed."""

    def __init__(self) -> None:
        self._armed: tuple[Sequence[str], str] | None = None
        for name in ("rename", "replace", "exchange", "unlink", "rmdir", "link", "mkdir", "utime"):
            setattr(self, name, self._stopping(name, getattr(FileOps, name)))

    def arm(self, calls: Sequence[str], path: str) -> None:
        self._armed = calls, path

    def _stopping(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: str, *rest: Any) -> Any:
            if self._armed is not None and name in self._armed[0] and self._armed[1] in path:
                self._armed = None
                os.kill(os.getpid(), signal.SIGSTOP)
            return function(path, *rest)

        return call


class StoreRole:
    """Makes calls on a lease store; holds the leases by task id."""

    def __init__(self, root: str, options: dict[str, Any]) -> None:
        self._ops = StoppingOps()
        self._store = LeaseTaskStore(root, ops=self._ops, **options)
        self._held: dict[str, tuple[Lease, TaskRecord]] = {}

    def stop_before(self, calls: Sequence[str], path: str) -> None:
        """Stop at the next of these system calls on a path that holds this text."""
        self._ops.arm(calls, path)

    def claim(self, task_id: str, holder: str = "child") -> int | None:
        taken = self._store.claim(TaskKey("acme", "alice", task_id), holder=holder)
        if taken is None:
            return None
        lease, stored = taken
        self._held[task_id] = lease, stored.record
        return lease.epoch

    def renew(self, task_id: str) -> bool:
        """Renew, and tell whether the task is to be cancelled."""
        lease, _ = self._held[task_id]
        self._store.renew(lease)
        return lease.cancel_requested.is_set()

    def is_lost(self, task_id: str) -> bool:
        return self._held[task_id][0].lost.is_set()

    def write(self, call: str, task_id: str, status: str, message: str) -> Any:
        lease, record = self._held[task_id]
        record = dataclasses.replace(
            record, status=TaskStatus(status), message=message, updated_at=SYSTEM_CLOCK.now()
        )
        return getattr(self._store, call)(lease, record).record.to_dict()

    def get(self, task_id: str) -> Any:
        found = self._store.get(TaskKey("acme", "alice", task_id))
        assert isinstance(found, Stored)
        return found.record.to_dict()

    def close(self) -> None:
        self._store.close()


class TrackerRole:
    """Makes calls on a tracker."""

    def __init__(self, root: str, options: dict[str, Any]) -> None:
        self._tracker = TaskTracker(LeaseTaskStore(root, durability="none", **options))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **keywords: _plain(getattr(self._tracker, name)(*arguments, **keywords))

    def is_lost(self, task_id: str) -> bool:
        lease = self._tracker.lease_of(task_id)
        assert lease is not None
        return lease.lost.wait(PATIENCE_SECONDS)

    def fork(self, task_id: str) -> Any:
        """Fork; answer what the forked child could do with the task that this process holds."""
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            answer: dict[str, Any] = {"lease": repr(self._tracker.lease_of(task_id))}
            calls = {"update": lambda: self.update(task_id, message="of the child"), "live": self._live}
            for name, call in calls.items():
                try:
                    answer[name] = call()
                except Exception as error:  # noqa: BLE001  # told to whoever asked
                    answer[name] = type(error).__name__
            os.write(writing, json.dumps(answer).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as told:
            answer = json.loads(told.read())
        os.waitpid(pid, 0)
        return answer

    def _live(self) -> str:
        task_id = "of-the-child"
        self._tracker.create("reindex", task_id=task_id, account_id="acme", user_id="alice")
        self._tracker.start(task_id)
        done = self._tracker.complete(task_id, "done")
        assert done is not None
        return done.status.value


def _plain(answer: Any) -> Any:
    return answer.to_dict() if isinstance(answer, TaskRecord) else answer


def main(root: str, how: str, options: str) -> None:
    roles: dict[str, Callable[..., Any]] = {"store": StoreRole, "tracker": TrackerRole}
    role = roles[how](root, json.loads(options))
    say("ready")
    while line := sys.stdin.readline():
        call, arguments, keywords = json.loads(line)
        try:
            say(getattr(role, call)(*arguments, **keywords))
        except Exception as error:  # noqa: BLE001  # told to whoever asked
            say({"error": type(error).__name__, "message": str(error)})
    role.close()


def say(message: object) -> None:
    print(json.dumps(message), flush=True)  # noqa: T201  # that is how it talks


if __name__ == "__main__":
    main(*sys.argv[1:])
