"""What processes do with a store in the contract's tests.

Owns functions for :class:`task_tracker.testing.racing.Crew`. Imports neither pytest nor hypothesis: each of
twenty processes would have to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any

from task_tracker import transitions
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import LeaseHeld, TaskExists
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import LeaseStore, Query, TaskStore
from task_tracker.testing.answers import claimed_by, conflicts, fetch, listed, said
from task_tracker.testing.racing import Sync

__all__ = [
    "assert_whole",
    "change_each",
    "claim_and_hang",
    "claim_each",
    "compete",
    "count_up",
    "create_all",
    "create_in_rounds",
    "create_what_is_free",
    "delete",
    "drain",
    "drain_within",
    "end_each",
    "read",
    "write_for_ever",
]


def create_all(store: TaskStore, sync: Sync, records: list[TaskRecord]) -> None:
    """Create records."""
    for record in records:
        store.create(record)


def read(store: TaskStore, sync: Sync, key: TaskKey) -> tuple[TaskRecord, list[TaskRecord], dict[str, Any]]:
    """Answer what there is to see."""
    return fetch(store, key).record, listed(store), store.count(key.account_id, None)


def delete(store: TaskStore, sync: Sync, key: TaskKey) -> None:
    """Delete a record."""
    store.delete(key)


def create_what_is_free(store: TaskStore, sync: Sync, records: list[TaskRecord]) -> list[bool]:
    """Create records, all processes the same ids at the same time; answer which ones were created."""
    won = []
    for record in records:
        sync()
        try:
            store.create(record)
        except TaskExists:
            won.append(False)
        else:
            won.append(True)
    return won


def create_in_rounds(store: TaskStore, sync: Sync, sample: TaskRecord, rounds: int) -> list[bool]:
    """Ask for a task of one kind, all processes at once; the winner ends it before the next round."""
    won = []
    for _ in range(rounds):
        sync()
        created = store.create_if_no_active(another(sample))
        won.append(created is not None)
        sync()
        if created is not None:
            store.update(completed(created.record), expected=created.version)
    return won


def compete(store: TaskStore, sync: Sync, sample: TaskRecord, calls: int, flag: str) -> int:
    """Create and end tasks of one kind; fail if another one was active meanwhile. Answer how many."""
    won = 0
    for _ in range(calls):
        created = store.create_if_no_active(another(sample))
        if created is None:
            continue
        won += 1
        # Fails if another process is between its creation and its end: a witness that the store cannot fool.
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        active = listed(store, Query(sample.account_id, sample.user_id, status="pending"))
        assert active == [said(created.record)], active
        os.unlink(flag)
        store.update(completed(created.record), expected=created.version)
    return won


def end_each(store: TaskStore, sync: Sync, keys: list[TaskKey], ending: str, message: str) -> list[bool]:
    """End tasks that all processes have seen running; answer which ones were ended here."""
    won = []
    for key in keys:
        running = fetch(store, key)
        sync()
        ended = dataclasses.replace(running.record, status=TaskStatus(ending), message=message)
        try:
            store.update(ended, expected=running.version)
        except conflicts(store):
            won.append(False)
        else:
            won.append(True)
        sync()
        assert fetch(store, key).record.status.is_terminal
    return won


def change_each(store: TaskStore, sync: Sync, keys: list[TaskKey], change: str) -> None:
    """Change tasks that all processes have read before; on a conflict, read and change again."""
    for key in keys:
        current = fetch(store, key)
        sync()
        while True:
            now = SYSTEM_CLOCK.now()
            if change == "cancel":
                changed = transitions.request_cancel(current.record, now)
            else:
                changed = transitions.progressed(current.record, now, progress=50.0)
            try:
                store.update(changed, expected=current.version)
                break
            except conflicts(store):
                current = fetch(store, key)


def count_up(store: TaskStore, sync: Sync, key: TaskKey, steps: int) -> None:
    """Add to a record's revision, step by step."""
    for _ in range(steps):
        counted = False
        while not counted:
            current = fetch(store, key)
            record = dataclasses.replace(current.record, revision=(current.record.revision or 0) + 1)
            with contextlib.suppress(*conflicts(store)):
                store.update(record, expected=current.version)
                counted = True


def write_for_ever(store: TaskStore, sync: Sync, key: TaskKey) -> None:
    """Update a record until killed."""
    record = fetch(store, key).record
    while True:
        for digit in "123456789":
            store.update(dataclasses.replace(record, message=digit * 5000), expected=None)


def another(sample: TaskRecord) -> TaskRecord:
    """Return a record of the same kind with an id of its own."""
    now = SYSTEM_CLOCK.now()
    return dataclasses.replace(sample, task_id=SYSTEM_CLOCK.new_id(now), created_at=now, updated_at=now)


def completed(record: TaskRecord) -> TaskRecord:
    """Return the record as it is after it was completed."""
    return transitions.completed(record, SYSTEM_CLOCK.now(), b"null")


def assert_whole(record: TaskRecord) -> None:
    """Check that a record is one that :func:`write_for_ever` or its test wrote."""
    assert record.message is not None
    assert record.message == record.message[0] * 5000


def claim_each(store: TaskStore, sync: Sync, keys: list[TaskKey], holder: str) -> list[bool]:
    """Claim tasks, all processes the same ones at the same time; answer which ones were claimed, and end them."""
    assert isinstance(store, LeaseStore)
    won = []
    for key in keys:
        sync()
        claimed = None
        with contextlib.suppress(LeaseHeld):
            claimed = claimed_by(store, key, holder)
        sync()
        if claimed is not None:
            store.end(claimed[0], completed(claimed[1].record))
        won.append(claimed is not None)
    return won


def drain(store: TaskStore, sync: Sync, kinds: list[tuple[str, int]], holder: str) -> list[str]:
    """Claim and end the next task until there is none; answer which ones."""
    assert isinstance(store, LeaseStore)
    done = []
    while (claimed := store.claim(holder=holder, task_types=kinds)) is not None:
        lease, stored = claimed
        store.end(lease, completed(stored.record))
        done.append(lease.key.task_id)
    return done


def drain_within(
    store: TaskStore, sync: Sync, kind: tuple[str, int], holder: str, most: int, flags: str
) -> list[str]:
    """Claim and end tasks until none waits, ``most`` at once over all who do; fail if there were more of them."""
    assert isinstance(store, LeaseStore)
    failed = f"{flags}-failed"
    done = []
    while store.unclaimed(task_types=[kind], limit=1) and not os.path.exists(failed):
        claimed = store.claim(holder=holder, task_types=[kind], max_running={kind[0]: most})
        if claimed is None:
            continue
        # A witness that the store cannot fool: as many flags as there may be holders, each taken by one.
        flag = next((flag for number in range(most) if _is_raised(flag := f"{flags}-{number}")), None)
        if flag is None:
            _is_raised(failed)  # nobody is to wait for what is held here
            raise AssertionError(f"more than {most} hold a task of type {kind[0]} at once")
        lease, stored = claimed
        stored = store.commit(lease, transitions.progressed(stored.record, SYSTEM_CLOCK.now(), progress=50.0))
        os.unlink(flag)
        store.end(lease, completed(stored.record))
        done.append(lease.key.task_id)
    return done


def _is_raised(flag: str) -> bool:
    with contextlib.suppress(FileExistsError):
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        return True
    return False


def claim_and_hang(store: TaskStore, sync: Sync, key: TaskKey) -> None:
    """Claim a task, tell, and do nothing until killed."""
    assert isinstance(store, LeaseStore)
    claimed_by(store, key, "victim")
    while True:
        sync()
