"""Attempts with directories of their own, and what is left of them: what the tests of effects begin with."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stores.files.lease.ownership import EntryLease
from stores.files.lease.store import LeaseTaskStore
from task_tracker import transitions
from task_tracker.errors import TaskNotFound
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import Expired, Lease, Stored
from task_tracker.testing import RecordMaker
from tests.lease.support import age, claimed, control

NEVER = 10.0**12


def opened(store: LeaseTaskStore, make: RecordMaker, **fields: object) -> tuple[EntryLease, TaskRecord, Path]:
    """Claim a task and put a file into its attempt's directory."""
    lease, stored = claimed(store, make, **fields)
    return lease, stored.record, filled(store, lease)


def filled(store: LeaseTaskStore, lease: Lease) -> Path:
    place = Path(store.effects(lease).path)
    (place / "index").mkdir()
    (place / "index" / "part").write_text("built")
    return place


def complete(store: LeaseTaskStore, lease: Lease, record: TaskRecord) -> TaskRecord:
    """End a task as a worker does that has asked for the directory."""
    done = transitions.completed(record, 9.0, b"1").changed(effects_dir=store.effects(lease).name)
    return store.end(lease, done).record


def fail(store: LeaseTaskStore, lease: Lease, record: TaskRecord) -> None:
    store.end(lease, transitions.failed(record, 9.0, "no"))


def completed(store: LeaseTaskStore, make: RecordMaker, **fields: object) -> tuple[TaskRecord, Path]:
    lease, record, place = opened(store, make, **fields)
    return complete(store, lease, record), place


def directories(root: Path) -> list[Path]:
    return sorted(path for path in (control(root) / "effects").glob("??/*"))


def markers(root: Path) -> list[str]:
    return sorted(path.name for path in (control(root) / "effects" / "open").glob("*"))


def sweep(store: LeaseTaskStore, root: Path) -> int:
    """Let a lease term pass, and make a pass."""
    age(root, 100)
    return store.recover()


def taken_over(store: LeaseTaskStore, expired: Expired, *, count: bool = True) -> tuple[EntryLease, Stored]:
    taken = store.take_over(expired, holder="other", count_attempt=count)
    assert taken is not None
    assert isinstance(taken[0], EntryLease)
    return taken[0], taken[1]


def failing(call: Callable[..., Any], when: Callable[..., bool], code: int) -> Callable[..., Any]:
    """Return ``call``, which fails for arguments that ``when`` accepts."""

    def maybe(path: Any, *arguments: Any, **keywords: Any) -> Any:
        inside = keywords.get("dir_fd")
        full = path if inside is None else f"{os.readlink(f'/proc/self/fd/{inside}')}/{path}"
        if when(full, *arguments):
            raise OSError(code, os.strerror(code), str(path))
        return call(path, *arguments, **keywords)

    return maybe


def fetched(store: LeaseTaskStore, key: TaskKey) -> TaskRecord:
    """A record with what the store adds."""
    found = store.get(key)
    assert isinstance(found, Stored)
    return found.record


def stored_or_none(store: LeaseTaskStore, key: TaskKey) -> TaskRecord | None:
    try:
        return fetched(store, key)
    except TaskNotFound:
        return None


def age_of(root: Path) -> None:
    for path in (root / ".task_tracker").rglob("*"):
        os.utime(path, (1.0, 1.0))
