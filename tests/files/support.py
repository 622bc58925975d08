"""What the tests of the files backends share: system calls that are recorded and failed, clocks, children."""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

from stores.files import places
from stores.files.local import LocalFiles
from stores.files.ops import FileOps
from stores.files.persistent import PersistentTaskStore
from task_tracker.clock import SYSTEM_CLOCK, Clock, wall_ns
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Query, Stored, TaskStore

PROJECT = Path(__file__).parent.parent.parent
PATIENCE = 60.0
"""Seconds after which a wait for another process or thread is given up. Never reached when all is well."""

OWNER: dict[str, Any] = {"account_id": "acme", "user_id": "alice"}
DIRECTORY = "/local/acme/tasks/alice"

READS = ("read", "fstat", "stat", "lstat", "listdir", "scandir")
WRITES = ("write", "fsync", "mkdir", "link", "replace", "exchange", "unlink")
OPERATIONS = ("open", "close", *READS, *WRITES)


@dataclasses.dataclass(frozen=True)
class Call:
    """One system call. ``path`` is that of the descriptor where it takes one; ``target`` of link and replace;
    ``data`` of write."""

    name: str
    path: str
    target: str | None = None
    data: bytes = b""


class WatchedOps(FileOps):
    """System calls that are recorded, and fail when a test says so.

    A failing ``close`` closes all the same, as the kernel does. ``fsync`` does nothing: no test cuts the power.
    ``pauses`` holds what would have been slept.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.pauses: list[float] = []
        self.on_pause: Callable[[], object] = lambda: None
        self.before: Callable[[Call], object] = lambda _: None
        """Called before each call, in its thread; what it raises is what the call raises."""
        self.after: Callable[[Call], object] = lambda _: None
        self.struck: list[Call] = []
        """What was failed."""
        self.open_descriptors: dict[int, str] = {}
        for name in OPERATIONS:
            function = getattr(FileOps, name) if name != "fsync" else lambda _: None
            setattr(self, name, functools.partial(self._call, name, function))
        swap(self, pause=self._pause)

    def fail(
        self,
        code: int,
        *,
        nth: int = 1,
        forever: bool = False,
        on: Iterable[str] = OPERATIONS,
        path: str = "",
    ) -> None:
        """Fail the ``nth`` call from now of ``on`` whose path holds ``path``; once or from then on."""
        names = frozenset(on)
        seen = 0

        def strike(call: Call) -> None:
            nonlocal seen
            if call.name not in names or path not in f"{call.path} {call.target}":
                return
            seen += 1
            if seen == nth or (forever and seen > nth):
                self.struck.append(call)
                raise OSError(code, os.strerror(code), call.path)

        self.before = strike
        self.struck.clear()

    def heal(self) -> None:
        self.before = lambda _: None

    def forget(self) -> None:
        self.calls.clear()

    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    def count(self, *names: str, path: str = "") -> int:
        return sum(call.name in names and path in (call.target or call.path) for call in self.calls)

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        first = arguments[0]
        path = self.open_descriptors.get(first, f"descriptor {first}") if isinstance(first, int) else first
        target = arguments[1] if name in ("link", "replace") else None
        call = Call(name, path, target, arguments[1] if name == "write" else b"")
        self.calls.append(call)
        if name == "close":
            self.open_descriptors.pop(first, None)
            function(first)
            self.before(call)
            self.after(call)
            return None
        self.before(call)
        answer = function(*arguments, **keywords)
        if name == "open":
            self.open_descriptors[answer] = path
        try:
            self.after(call)
        except BaseException:
            if name == "open":
                os.close(answer)
                del self.open_descriptors[answer]
            raise
        return answer

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.on_pause()


class StepClock:
    """Time that moves when it is told to, and by waiting. ``during_wait`` holds what happens meanwhile."""

    def __init__(self, now: float = 4_100_000_000.0) -> None:
        self._now = now
        self._monotonic = 0.0
        self.during_wait: list[Callable[[], object]] = []

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now = round(self._now + seconds, 6)
        self._monotonic += seconds

    def new_id(self, at: float) -> str:
        return SYSTEM_CLOCK.new_id(at)

    def new_token(self) -> str:
        return SYSTEM_CLOCK.new_token()

    def jitter(self, seconds: float) -> float:
        return seconds

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        del condition
        self.advance(seconds)
        if self.during_wait:
            self.during_wait.pop(0)()


def local_files(
    root: Path, ops: FileOps | None = None, clock: Clock = SYSTEM_CLOCK, **options: Any
) -> LocalFiles:
    return LocalFiles(str(root), clock, ops=ops, **options)


def local_store(
    root: Path,
    ops: FileOps | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
    durability: str = "none",
    retry_denied: bool = False,
    lock_timeout_seconds: float = 10.0,
    prefix: str = "/local",
) -> PersistentTaskStore:
    """A store on a directory whose system calls go through ``ops``."""
    watched = functools.partial(LocalFiles, ops=ops, retry_denied=retry_denied)
    with mock.patch.object(places, "LocalFiles", watched):
        return PersistentTaskStore(
            root,
            clock=clock,
            durability=durability,
            lock_timeout_seconds=lock_timeout_seconds,
            prefix=prefix,
        )


def swap(target: object, **members: object) -> None:
    """Give an object other members."""
    for name, member in members.items():
        setattr(target, name, member)


def path_of(root: Path, key: TaskKey) -> Path:
    """Where a record of ordinary ids lives, by the words of the format."""
    return root / "local" / key.account_id / "tasks" / key.user_id / f"{key.task_id}.json"


def plant(path: Path, data: bytes) -> None:
    """Put bytes in place as a foreign writer does: whole, by renaming."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / ".planted"
    temporary.write_bytes(data)
    temporary.replace(path)


def age(path: Path, seconds: float) -> None:
    """Make a file look as if it had last been written so long ago."""
    os.utime(path, ns=(0, wall_ns() - int(seconds * 1e9)))


def fetch(store: TaskStore, key: TaskKey) -> TaskRecord:
    stored = store.get(key)
    assert isinstance(stored, Stored)
    return stored.record


def ids(store: TaskStore, account_id: str = "acme", user_id: str | None = "alice", **query: Any) -> list[str]:
    page = store.list(Query(account_id, user_id, **({"limit": None} | query)))
    return [stored.record.task_id for stored in page.items]


def has_active(store: TaskStore, resource_id: str | None = "docs", user_id: str | None = "alice") -> bool:
    return store.has_active("acme", user_id, "reindex", resource_id)


def left_over(root: Path) -> list[str]:
    """Temporary files anywhere below ``root``."""
    return sorted(str(path.relative_to(root)) for path in root.rglob(".tmp-*"))


def descriptors() -> set[str]:
    """What this process has open. More of it later is a leak; less is what other tests have left to be collected."""
    return set(os.listdir("/proc/self/fd"))


COMPLETED, FAILED, PENDING, RUNNING = (
    TaskStatus.COMPLETED,
    TaskStatus.FAILED,
    TaskStatus.PENDING,
    TaskStatus.RUNNING,
)

TROUBLES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EACCES, errno.EMFILE, errno.EINTR)


class Child:
    """Another process: ``python -m tests.files.children <role> ...``, asked line by line."""

    def __init__(self, role: str, *arguments: object, environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.files.children", role, *map(str, arguments)],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | (environment or {}),
        )
        self.pid = self._process.pid

    def hear(self) -> Any:
        """Return the next thing that the child says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the child ended without a word; its error is above"
        return json.loads(line)

    def tell(self, message: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def ask(self, call: str, *arguments: Any, **keywords: Any) -> Any:
        """Have the child's tracker do something; return the answer, ``{"error": name}`` if it raised."""
        self.tell([call, arguments, keywords])
        return self.hear()

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE if kind is None else 1)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            self._process.stdout.close()


@contextmanager
def in_thread(call: Callable[[], object]) -> Iterator[list[object]]:
    """Run ``call`` on a thread during the block; the list holds its answer or error afterwards."""
    answers: list[object] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001  # handed to the caller
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield answers
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the thread does not end"
