"""A root that is ready for a lease store, and the store of a simulated process.

Owns the prepared directories, how the store is made, and which errors may end a program. Any other is a finding.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Iterator
from typing import Any, Final

import orjson

from stores.files.lease.store import LeaseTaskStore
from task_tracker.codec import encode_record
from task_tracker.errors import (
    InvalidTransition,
    LeaseHeld,
    LeaseLost,
    StoreUnavailable,
    TaskExists,
    TaskNotFound,
    VersionConflict,
)
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from tests.lease.simulation.calls import Terrain
from tests.lease.simulation.disk import ROOT, Disk, succeeded
from tests.lease.simulation.processes import START_SECONDS, Process

__all__ = ["CONTROL", "RECORDS", "key", "legacy", "prepared", "promised", "record", "store_of"]

RECORDS: Final = "/sim/local/acme/tasks/alice"
CONTROL: Final = "/sim/local/.task_tracker"
DIRECTORIES: Final = (
    RECORDS,
    *(
        f"{CONTROL}/{name}"
        for name in ("new", "ready", "later", "idle/00", "leases/00", "keys/00", "deletes", "adopt", "spares")
    ),
)
NOTICES: Final = (f"{CONTROL}/paused", f"{CONTROL}/workers")
"""Nothing changes in there unless a scenario is about pausing, so that a look at them is no step."""
FILES: Final = {
    f"{CONTROL}/format": orjson.dumps({"format": 1, "shards": 1}),
    f"{CONTROL}/opened": orjson.dumps({"opened_at": START_SECONDS}),
}
ADOPTED: Final = f"{CONTROL}/adopted"
LEASE_SECONDS: Final = 30.0

PROMISED: Final = (
    InvalidTransition,
    LeaseHeld,
    LeaseLost,
    StoreUnavailable,
    TaskExists,
    TaskNotFound,
    VersionConflict,
)

StoreClass = type[LeaseTaskStore]


def prepared(files: dict[str, bytes] | None = None, *, pausing: bool = False) -> tuple[Disk, Terrain]:
    """Return a disk with a marked root, and the directories that are always there.

    ``files`` are records that were there before; without any, it was found out that there are none. ``pausing``:
    task types are paused and resumed.
    """
    disk = Disk.empty()
    content_of = FILES | (files or {ADOPTED: b""})
    wanted: dict[str, bytes | None] = {}
    for path in (*DIRECTORIES, *NOTICES, *content_of):
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts)):
            wanted["/" + "/".join(parts[:depth])] = None
        wanted[path] = content_of.get(path)
    for number, (path, content) in enumerate(wanted.items(), start=1):
        above, _, name = path.rpartition("/")
        parent = disk.walk(ROOT, [part for part in above.split("/") if part])
        disk, result = (
            disk.mkdir(parent, name, number)
            if content is None
            else disk.create(parent, name, number, content)
        )
        assert succeeded(result), path
    terrain = Terrain(disk, (*DIRECTORIES, *NOTICES), [ADOPTED] if files else [])
    terrain.frozen.update(NOTICES if not pausing else NOTICES[1:])
    return disk, terrain


def store_of(process: Process, kind: StoreClass | None = None) -> LeaseTaskStore:
    """Return the store of a process; its threads share it."""
    store = process.shared.get("store")
    if store is None:
        store = process.shared["store"] = (kind or process.shared.get("kind") or LeaseTaskStore)(
            "/sim",
            durability=process.shared.get("durability", "none"),
            lock_timeout_seconds=0.002,
            lease_seconds=LEASE_SECONDS,
            clock=process.clock,
            ops=process.ops,
            shards=1,
            prepared=True,
        )
        store._ownership._locks = process.locks
    assert isinstance(store, LeaseTaskStore)
    return store


def key(task: str) -> TaskKey:
    """Return the triple of a task."""
    return TaskKey("acme", "alice", task)


def record(task: str, kind: str = "", **fields: Any) -> TaskRecord:
    """Return a new task. ``kind`` is what only one may be active of."""
    return TaskRecord(
        task,
        "work",
        TaskStatus.PENDING,
        START_SECONDS,
        START_SECONDS,
        "acme",
        "alice",
        resource_id=kind or task,
        **fields,
    )


@contextlib.contextmanager
def promised() -> Iterator[None]:
    """End quietly what ends in an error that the store promises.

    No call fails here by itself: "unavailable" may only say that others were quicker again and again.
    """
    try:
        yield
    except StoreUnavailable as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno != errno.EBUSY:
            raise
    except PROMISED:
        pass


def legacy(status: str = "pending", task: str = "t") -> dict[str, bytes]:
    """Return the file of a record that was written by a store without leases."""
    fields = dataclasses.replace(record(task), status=TaskStatus(status))
    return {f"{RECORDS}/{task}.json": encode_record(fields)}
