"""What the tests about claims share: many tasks in one bucket, a clock that stands still, calls that are counted."""

import os
from collections import Counter

import pytest

from stores.files.ops import FileOps
from task_tracker import transitions
from task_tracker.clock import SYSTEM_CLOCK
from tests.lease.support import ShiftedClock, control, open_store

KIND = [("reindex", 1)]
MANY = 20
CALLS = (
    *("open", "read", "write", "fsync", "fstat", "stat", "lstat", "listdir", "scandir", "mkdir", "rmdir"),
    *("link", "replace", "rename", "unlink", "utime", "exchange"),
)


class StillClock(ShiftedClock):
    """One that stands still unless it is moved, so that nothing is looked at because time has passed."""

    def __init__(self) -> None:
        super().__init__()
        self._now, self._monotonic = SYSTEM_CLOCK.now(), SYSTEM_CLOCK.monotonic()

    def now(self) -> float:
        return self._now + self.stepped

    def monotonic(self) -> float:
        return self._monotonic + self.ahead


class CountingOps(FileOps):
    """Real system calls, counted by name, with the paths that were listed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.listed: list[str] = []
        for name in CALLS:
            setattr(self, name, self._counted(name, getattr(FileOps, name)))

    def _counted(self, name, function):
        def call(path, *rest, **options):
            self.counts[name] += 1
            if name == "listdir":
                self.listed.append(path)
            return function(path, *rest, **options)

        return call

    def restart(self) -> None:
        self.counts.clear()
        self.listed.clear()


def opened(root, ops=None, **options):
    return open_store(root, ops, clock=StillClock(), **options)


def of_one_bucket(make, number, **fields):
    """Return records that wait in one bucket, a microsecond apart."""
    at = make.clock.now() // 1 + 1000
    return [
        make(
            handler_version=1,
            created_at=at + n / 1_000_000,
            updated_at=at + n / 1_000_000,
            resource_id=f"r{n}",
            **fields,
        )
        for n in range(number)
    ]


def fill(store, make, number=MANY, **fields):
    """Create tasks in one bucket; return their ids, oldest first."""
    records = of_one_bucket(make, number, **fields)
    for record in records:
        store.create(record)
    return [record.task_id for record in records]


def claim(store, **options):
    return store.claim(**({"holder": "worker", "task_types": KIND} | options))


def take(store, **options):
    found = claim(store, **options)
    return None if found is None else found[1].record.task_id


def end(store, claimed):
    lease, stored = claimed
    return store.end(lease, transitions.completed(stored.record, stored.record.updated_at, b"1"))


def run(store):
    claimed = claim(store)
    assert claimed is not None
    end(store, claimed)


def bucket_of(root, kind="reindex+v1"):
    (found,) = (path for path in (control(root) / "ready" / kind).glob("*/*/*") if any(path.iterdir()))
    return found


def skip_unless_links_count(root):
    """Skip a test where a directory's links do not count what is in it: nothing is remembered there."""
    (root / "probe" / "inner").mkdir(parents=True)
    if os.stat(root / "probe").st_nlink != 3:
        pytest.skip("links do not count what is in a directory")
