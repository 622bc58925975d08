"""The harnesses of this project's stores."""

import contextlib
import errno
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from stores.files.layout import Layout
from stores.files.ops import FileOps
from stores.files.persistent import PersistentTaskStore
from stores.memory import InMemoryTaskStore
from task_tracker.codec import decode_record, encode_record
from task_tracker.errors import CorruptRecord
from task_tracker.records import TaskKey
from task_tracker.store import LeaseStore, TaskStore
from task_tracker.testing import FakeClock, FaultyStore, PlainClient, RemovingClient, StoreHarness

LAYOUT = Layout("/local")
LEASE_SECONDS = 30.0
TICK_NS = 16_000_000
OPENED = "/local/.task_tracker/opened"

TOO_LONG = ["x" * 201, "x" * 256, "x" * 5000, "漢" * 100, "🎈" * 80, "/" * 67]


def place(key: TaskKey) -> str:
    return "/".join(LAYOUT.place(key))


class MemoryHarness(StoreHarness):
    """Records in a dict. ``kind`` is the store's class."""

    def __init__(self, kind: Callable[..., TaskStore] = InMemoryTaskStore) -> None:
        self._kind = kind
        self._clock = FakeClock()
        self._store = kind(lease_seconds=LEASE_SECONDS, clock=self._clock)
        inner = self._store.inner if isinstance(self._store, FaultyStore) else self._store
        assert isinstance(inner, InMemoryTaskStore)
        self._memory = inner

    def open(self) -> TaskStore:
        return self._store

    def lapse(self, store: LeaseStore, seconds: float) -> None:
        self._clock.advance(seconds)

    let_pass = lapse

    def step_clock(self, store: LeaseStore, seconds: float) -> None:
        self._clock.step(seconds)

    def now(self) -> float:
        return self._clock.now()

    def plant(self, key: TaskKey, data: bytes) -> None:
        try:
            record = decode_record(data, key, "memory")
        except CorruptRecord:
            pytest.skip("memory holds records, not bytes")
        self._memory._put(record)

    def peek(self, key: TaskKey) -> bytes | None:
        stored = self._memory._records.get(key)
        return None if stored is None else encode_record(stored.record)

    def remove(self, key: TaskKey) -> None:
        self._memory._drop(key)

    def fresh(self) -> "MemoryHarness":
        return MemoryHarness(self._kind)


class DirectoryHarness(StoreHarness):
    """Files below a directory of this host. ``kind`` is the store's class."""

    unstorable_ids = TOO_LONG

    def __init__(self, root: Path, kind: type[PersistentTaskStore] = PersistentTaskStore) -> None:
        self._root = root
        self._kind = kind
        self._numbers = itertools.count()
        self.spec = ("persistent", {"root": str(root)})

    def open(self) -> PersistentTaskStore:
        return self._kind(self._root)

    def _path(self, key: TaskKey) -> Path:
        return self._root / place(key).lstrip("/")

    def plant(self, key: TaskKey, data: bytes) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Named like nothing of this library's, and renamed as every careful writer does.
        temporary = path.parent / f"foreign-{next(self._numbers)}"
        temporary.write_bytes(data)
        temporary.replace(path)

    def peek(self, key: TaskKey) -> bytes | None:
        path = self._path(key)
        return path.read_bytes() if path.exists() else None

    def remove(self, key: TaskKey) -> None:
        self._path(key).unlink()

    def fresh(self) -> "DirectoryHarness":
        return QuickDirectoryHarness(self._root / f"fresh-{next(self._numbers)}", self._kind)

    def age(self, seconds: float) -> None:
        path = self._root / OPENED.lstrip("/")
        opened_at = json.loads(path.read_bytes())["opened_at"]
        path.write_text(json.dumps({"opened_at": opened_at - seconds}))

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        # A symbolic link to itself: every path that leads through it fails with ELOOP, for root as well.
        prefix, aside = self._root / "local", self._root / "aside"
        prefix.rename(aside)
        prefix.symlink_to(prefix)
        try:
            yield
        finally:
            prefix.unlink()
            aside.rename(prefix)

    @contextlib.contextmanager
    def unreachable(self, key: TaskKey) -> Iterator[None]:
        path, inner = str(self._path(key)), FileOps.open

        def open_unless_broken(target: str, flags: int, mode: int = 0o777) -> int:
            if target == path:
                raise OSError(errno.EIO, "Input/output error", target)
            return inner(target, flags, mode)

        with mock.patch.object(FileOps, "open", staticmethod(open_unless_broken)):
            yield

    @contextlib.contextmanager
    def undeletable(self, key: TaskKey) -> Iterator[None]:
        path = str(self._path(key))

        def replace(source: str, target: str) -> None:
            if source == path:
                raise PermissionError(errno.EPERM, "Operation not permitted", source)
            os.replace(source, target)

        with mock.patch.object(FileOps, "replace", staticmethod(replace)):
            yield


class QuickDirectoryHarness(DirectoryHarness):
    """The same without waiting for the disk, for tests that write a lot."""

    def open(self) -> PersistentTaskStore:
        return self._kind(self._root, durability="none")


class CountingDirectoryHarness(DirectoryHarness):
    """The same, counting how often a record is opened to be read."""

    _reads = 0

    @contextlib.contextmanager
    def counting(self) -> Iterator["CountingDirectoryHarness"]:
        def open_counted(path: str, flags: int, mode: int = 0o777) -> int:
            if path.endswith(".json") and not flags & (os.O_WRONLY | os.O_RDWR):
                self._reads += 1
            return os.open(path, flags, mode)

        with mock.patch.object(FileOps, "open", staticmethod(open_counted)):
            yield self

    def reads(self) -> int:
        return self._reads


class CoarseDirectoryHarness(DirectoryHarness):
    """The same on a file system whose time stamps tick every 16 ms and whose inode numbers all look alike.

    Kernels before 6.13 stamp in ticks of 4 ms, and ext4 gives the number of a removed file to the next one.
    """

    @contextlib.contextmanager
    def coarse(self) -> Iterator["CoarseDirectoryHarness"]:
        def blur(look: Callable[..., os.stat_result]) -> staticmethod:
            def look_dimly(target: str | int) -> SimpleNamespace:
                seen = look(target)
                ticks = seen.st_mtime_ns // TICK_NS
                return SimpleNamespace(
                    st_mode=seen.st_mode,
                    st_size=seen.st_size,
                    st_dev=seen.st_dev,
                    st_ino=1,
                    st_mtime_ns=ticks * TICK_NS,
                )

            return staticmethod(look_dimly)

        with mock.patch.multiple(FileOps, stat=blur(os.stat), fstat=blur(os.fstat), lstat=blur(os.lstat)):
            yield self


class ClientHarness(StoreHarness):
    """Files behind a client; every store that is opened shares it."""

    unstorable_ids = TOO_LONG

    def __init__(self, kind: type[PlainClient], **manners: bool) -> None:
        self._kind = kind
        self._manners = manners
        self.client = kind(**manners)

    def open(self) -> PersistentTaskStore:
        return PersistentTaskStore(self.client)

    def plant(self, key: TaskKey, data: bytes) -> None:
        path = place(key)
        for end, character in enumerate(path):
            if character == "/" and end:
                with contextlib.suppress(RuntimeError, FileExistsError):
                    self.client.mkdir(path[:end])
        self.client.write(path, data)

    def peek(self, key: TaskKey) -> bytes | None:
        try:
            return self.client.read(place(key))
        except (RuntimeError, FileNotFoundError):
            return None

    def remove(self, key: TaskKey) -> None:
        assert isinstance(self.client, RemovingClient)
        self.client.rm(place(key))

    def fresh(self) -> "ClientHarness":
        return ClientHarness(self._kind, **self._manners)

    def age(self, seconds: float) -> None:
        opened_at = json.loads(self.client.read(OPENED))["opened_at"]
        self.client.write(OPENED, json.dumps({"opened_at": opened_at - seconds}).encode())

    def outage(self) -> contextlib.AbstractContextManager[None]:
        return self.client.outage()

    @contextlib.contextmanager
    def unreachable(self, key: TaskKey) -> Iterator[None]:
        self.client.unreadable.add(place(key))
        yield
        self.client.unreadable.clear()

    @contextlib.contextmanager
    def undeletable(self, key: TaskKey) -> Iterator[None]:
        assert isinstance(self.client, RemovingClient)
        self.client.undeletable.add(place(key))
        yield
        self.client.undeletable.clear()

    def reads(self) -> int:
        return sum(name == "read" and path.endswith(".json") for name, path in self.client.calls)
