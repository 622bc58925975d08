"""What the tests of the lease store share: stores with clocks that can be moved, and looks at the directory."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from stores.files.lease.ownership import EntryLease
from stores.files.lease.store import LeaseTaskStore
from stores.files.ops import FileOps
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.store import Expired, LeaseStore, Stored
from task_tracker.testing import RecordMaker


class ShiftedClock:
    """The real clock, moved: ``ahead`` on the monotonic one, ``stepped`` on the wall."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.stepped = 0.0

    def now(self) -> float:
        return SYSTEM_CLOCK.now() + self.stepped

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic() + self.ahead

    def new_id(self, at: float) -> str:
        return SYSTEM_CLOCK.new_id(at)

    def new_token(self) -> str:
        return SYSTEM_CLOCK.new_token()

    def jitter(self, seconds: float) -> float:
        return SYSTEM_CLOCK.jitter(seconds)

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        SYSTEM_CLOCK.wait(condition, seconds)


def clock_of(store: LeaseStore) -> ShiftedClock:
    assert isinstance(store, LeaseTaskStore)
    assert isinstance(store._clock, ShiftedClock)
    return store._clock


CONTROL = ".task_tracker"
MARKS = {".lock", "adopted", "format", "now", "opened"}


def open_store(root: Path, ops: FileOps | None = None, **options: object) -> LeaseTaskStore:
    """Open a root, without waiting for the disk unless told to."""
    settings: dict = {"durability": "none", "clock": ShiftedClock(), "shards": 1} | options
    return LeaseTaskStore(root, ops=ops, **settings)


def ops_with(**calls: Callable[..., object]) -> FileOps:
    """Return the system calls, some of them replaced."""
    kind = type("Ops", (FileOps,), {name: staticmethod(call) for name, call in calls.items()})
    ops = kind()
    assert isinstance(ops, FileOps)
    return ops


def control(root: Path, *, prefix: str = "local") -> Path:
    return root / prefix / CONTROL


def entries(root: Path) -> list[str]:
    """Return where entries are, without their names' beginnings: place and ``@<epoch>``."""
    found = []
    for path in control(root).rglob("*@*"):
        if path.is_dir():
            place = path.relative_to(control(root)).parts[0]
            found.append(f"{place}@{path.name.rpartition('@')[2].partition('-')[0]}")
    return sorted(found)


def leftovers(root: Path) -> list[str]:
    """Return what is in the control directory besides its marks and its empty shards."""
    found = []
    for path in control(root).rglob("*"):
        if path.name in MARKS and path.parent == control(root):
            continue
        if path.is_file() or "@" in path.name:
            found.append(str(path.relative_to(control(root))))
    return sorted(found)


def age(root: Path, seconds: float) -> None:
    """Make everything in the control directory look older."""
    for path in control(root).rglob("*"):
        then = path.stat().st_mtime_ns - int(seconds * 1e9)
        os.utime(path, ns=(then, then))


def expired_after(store: LeaseStore, root: Path, seconds: float = 1000.0) -> list[Expired]:
    """Let time pass in which nobody renews, and return what has expired then."""
    age(root, seconds)
    store.expired()
    clock_of(store).ahead += seconds
    return list(store.expired())


def claimed(store: LeaseStore, make: RecordMaker, **fields: object) -> tuple[EntryLease, Stored]:
    """Create a task and claim it."""
    record = make(**fields)
    store.create(record)
    found = store.claim(record.key, holder="holder-1")
    assert found is not None
    lease, stored = found
    assert isinstance(lease, EntryLease)
    return lease, stored
