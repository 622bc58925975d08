"""Other processes for the tests: ``python -m tests.files.children <role> <arguments>``. They speak JSON lines."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stores.files.local import LocalFiles
from stores.files.ops import FileOps
from stores.files.persistent import PersistentTaskStore
from task_tracker import TaskRecord, TaskTracker
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import StoreUnavailable
from task_tracker.store import Query
from task_tracker.testing import RecordMaker
from tests.files.support import (
    COMPLETED,
    DIRECTORY,
    RUNNING,
    WatchedOps,
    descriptors,
    ids,
    left_over,
    local_store,
)


def say(message: object) -> None:
    print(json.dumps(message), flush=True)  # noqa: T201  # that is how it talks


def hear() -> Any:
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def tracker(root: str) -> None:
    """Make the calls that are asked for, one after the other."""
    with TaskTracker(PersistentTaskStore(root, durability="none")) as made:
        say("ready")
        while (asked := hear()) is not None:
            call, arguments, keywords = asked
            try:
                say(plain(getattr(made, call)(*arguments, **keywords)))
            except Exception as error:  # noqa: BLE001  # told to whoever asked
                say({"error": type(error).__name__, "message": str(error)})


def plain(answer: Any) -> Any:
    if isinstance(answer, TaskRecord):
        return answer.to_dict()
    if isinstance(answer, list):
        return [plain(item) for item in answer]
    return answer


def hold(root: str) -> None:
    """Hold the lock of a user until told otherwise."""
    files = LocalFiles(root, SYSTEM_CLOCK, durability="none")
    with files.exclusively(DIRECTORY, make=True):
        say("held")
        hear()
    say("released")
    hear()


class BlockedOps(FileOps):
    """Stops for ever before a name appears, having said so."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def link(self, *_: object) -> None:  # type: ignore[override]
        self._stop()

    def exchange(self, *_: object) -> None:
        self._stop()

    def replace(self, *_: object) -> None:  # type: ignore[override]
        self._stop()

    def _stop(self) -> None:
        os.write(self._pipe, b"!")
        signal.pause()


def crash(root: str, number: str) -> None:
    """Start writers, each its own process and user, let each write its temporary file, kill all but one."""
    reading, writing = os.pipe()
    pids = []
    for index in range(int(number)):
        pid = os.fork()
        if not pid:
            write(root, index, writing)
        pids.append(pid)
    heard = b""
    while len(heard) < len(pids):
        heard += os.read(reading, len(pids))
    *dead, live = pids
    for pid in dead:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    say({"dead": dead, "live": live})
    hear()
    os.kill(live, signal.SIGKILL)
    os.waitpid(live, 0)
    say("all dead")


def write(root: str, index: int, pipe: int) -> None:
    """Half of the writers create, half replace. Never returns."""
    user = f"user-{index}"
    make = RecordMaker()
    record = make("task-1", user_id=user)
    if index % 2:
        local_store_of(root, FileOps()).create(record)
        local_store_of(root, BlockedOps(pipe)).update(record, expected=None)
    else:
        local_store_of(root, BlockedOps(pipe)).create(record)
    os._exit(1)


def local_store_of(root: str, ops: FileOps) -> PersistentTaskStore:
    return local_store(Path(root), ops)


def few_descriptors(root: str, cycles: str) -> None:
    """Run cycles of all calls, failing ones among them, with hardly any descriptors to spare."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    ops = WatchedOps()
    store = local_store_of(root, ops)
    make = RecordMaker()
    before = descriptors()
    failures = 0
    for cycle in range(int(cycles)):
        record = make(user_id=f"user-{cycle % 5}", resource_id=str(cycle))
        if cycle % 3 == 0:
            ops.fail(
                errno.EIO,
                nth=cycle % 40 + 1,
                on=["open", "write", "fstat", "link", "replace", "read", "stat"],
            )
        try:
            stored = store.create(record)
            stored = store.update(make.changed(record, status=RUNNING), expected=stored.version)
            store.get(record.key)
            store.list(Query("acme", record.user_id, limit=2))
            store.update(make.changed(record, status=COMPLETED), expected=stored.version)
            if cycle % 2:
                store.delete(record.key)
        except StoreUnavailable:
            failures += 1
        ops.heal()
        ops.forget()
    say({"before": len(before), "after": len(descriptors()), "failures": failures})


def small_files(root: str) -> None:
    """Write a record that is bigger than this process may write."""
    store = local_store_of(root, FileOps())
    make = RecordMaker()
    stored = store.create(make("task-1"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    changed = make.changed(stored.record, message="x" * 100_000)
    try:
        store.update(changed, expected=stored.version)
    except StoreUnavailable as error:
        say([type(error.__cause__).__name__, str(error)])
    say({"ids": ids(store), "left over": left_over(Path(root))})
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.update(changed, expected=stored.version)
    say("written")


ROLES: dict[str, Callable[..., None]] = {
    "tracker": tracker,
    "hold": hold,
    "crash": crash,
    "few_descriptors": few_descriptors,
    "small_files": small_files,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
