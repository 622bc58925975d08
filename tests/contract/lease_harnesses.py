"""The harness of the lease store on files."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from stores.files.lease.store import LeaseTaskStore
from stores.files.ops import FileOps
from task_tracker.clock import SystemClock
from task_tracker.records import TaskKey
from task_tracker.store import LeaseStore
from tests.contract.harnesses import LEASE_SECONDS, CountingDirectoryHarness

PATIENCE_SECONDS = 2.0
"""How long a call waits for another one on the same task. Some tests wait for all of it."""


class SteppedClock(SystemClock):
    """The real clock, with steps that a test makes: waiting takes real time, so that contenders go on."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_seconds = 0.0
        self.wrong_by_seconds = 0.0

    def now(self) -> float:
        return super().now() + self.wrong_by_seconds

    def monotonic(self) -> float:
        return super().monotonic() + self.passed_seconds


class LeaseDirectoryHarness(CountingDirectoryHarness):
    """Files below a directory of this host, written under leases; every instance has a clock of its own."""

    def __init__(
        self, root: Path, kind: type[LeaseTaskStore] = LeaseTaskStore, durability: str = "edges"
    ) -> None:
        super().__init__(root)
        self._lease_kind = kind
        self._durability = durability
        self._clocks: dict[int, SteppedClock] = {}
        self.spec = ("lease", {"root": str(root), "lease_seconds": LEASE_SECONDS})

    def open(self) -> LeaseTaskStore:  # type: ignore[override]  # another kind of store on the same files
        clock = SteppedClock()
        store = self._lease_kind(
            self._root,
            lease_seconds=LEASE_SECONDS,
            lock_timeout_seconds=PATIENCE_SECONDS,
            clock=clock,
            durability=self._durability,
            shards=1,
        )
        self._clocks[id(store)] = clock
        return store

    def fresh(self) -> "LeaseDirectoryHarness":
        root = self._root / f"fresh-{next(self._numbers)}"
        root.mkdir()
        return LeaseDirectoryHarness(root, self._lease_kind, durability="none")

    def lapse(self, store: LeaseStore, seconds: float) -> None:
        for directory, names, files in os.walk(self._root / "local" / ".task_tracker"):
            for name in (*names, *files):
                if "@" not in name and not directory.endswith("/workers"):
                    continue
                entry = f"{directory}/{name}"
                seen = os.stat(entry)
                os.utime(entry, ns=(seen.st_atime_ns, seen.st_mtime_ns - round(seconds * 1e9)))

    def let_pass(self, store: LeaseStore, seconds: float) -> None:
        self._clocks[id(store)].passed_seconds += seconds

    def step_clock(self, store: LeaseStore, seconds: float) -> None:
        self._clocks[id(store)].wrong_by_seconds += seconds

    @contextlib.contextmanager
    def undeletable(self, key: TaskKey) -> Iterator[None]:
        path = str(self._path(key))

        def rename(source: str, target: str) -> None:
            if source == path:
                raise PermissionError(errno.EPERM, "Operation not permitted", source)
            os.rename(source, target)

        with mock.patch.object(FileOps, "rename", staticmethod(rename)):
            yield
