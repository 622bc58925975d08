"""What simulated processes do with a lease store: the library's own code, on a simulated disk.

Owns short programs of public calls, each as a user of the store would write it. Refuses to look behind the store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from stores.files.lease.ownership import EntryLease
from task_tracker import transitions
from task_tracker.errors import (
    InvalidTransition,
    LeaseLost,
)
from task_tracker.records import TERMINAL, TaskStatus
from task_tracker.store import Lease, Query, Stored
from tests.lease.simulation.processes import Process, Program
from tests.lease.simulation.world import key, promised, record, store_of


def in_turn(*programs: Program) -> Program:
    """Return one program after the other."""

    def program(process: Process) -> None:
        for each in programs:
            each(process)

    return program


# ---- creating, claiming, ending ---------------------------------------------------------------------------


def create(task: str = "t", kind: str = "", *, alone: bool = False, **fields: Any) -> Program:
    """Create a task; ``alone``: unless one of its kind is active."""

    def program(process: Process) -> None:
        store = store_of(process)
        new = record(task, kind, **fields)
        with promised():
            stored = store.create_if_no_active(new) if alone else store.create(new)
            if stored is not None:
                process.note("created", task, stored.record.creation)

    return program


def claim(process: Process, task: str = "t") -> tuple[Lease, Stored] | None:
    """Claim a task by its key."""
    return granted(process, store_of(process).claim(key(task), holder=process.actor.name))


def granted(process: Process, claimed: tuple[Lease, Stored] | None) -> tuple[Lease, Stored] | None:
    """Say that a lease was given."""
    if claimed is not None:
        lease, stored = claimed
        process.note(
            "granted", f"{lease.key.task_id} {stored.record.creation or 'legacy'}", lease.epoch, lease.token
        )
    return claimed


@contextlib.contextmanager
def held(process: Process, lease: Lease) -> Iterator[None]:
    """Say what a holder is told: that its lease is lost."""
    try:
        yield
    except LeaseLost:
        assert isinstance(lease, EntryLease)
        process.note("told that it is lost", lease.key.task_id, lease.token, lease.entry.path)
        raise


def check(process: Process, lease: Lease, life: str | None) -> bool:
    """Heartbeat; return whether a cancel is waiting."""
    process.ops.turn()
    process.note("looks for a cancel", lease.key.task_id, life)
    store_of(process).renew(lease)
    seen = lease.cancel_requested.is_set()
    assert isinstance(lease, EntryLease)
    process.note("looked for a cancel", lease.key.task_id, life, seen, lease.entry.path)
    return seen


def finish(process: Process, lease: Lease, stored: Stored, *, retry: bool = False, steps: int = 0) -> None:
    """Work on a claimed task to its end, or give it back."""
    store, now = store_of(process), process.clock.now()
    with held(process, lease):
        for step in range(steps):
            stored = store.commit(lease, transitions.progressed(stored.record, now, progress=step + 1.0))
        if check(process, lease, stored.record.creation):
            store.end(lease, transitions.cancelled(stored.record, now))
        elif retry:
            store.release(lease, transitions.released(stored.record, now))
        else:
            store.end(lease, transitions.completed(stored.record, now, b"{}"))


def work(task: str = "t", *, retry: bool = False) -> Program:
    """Claim a task and end it, or give it back."""

    def program(process: Process) -> None:
        with promised():
            claimed = claim(process, task)
            if claimed is not None:
                finish(process, *claimed, retry=retry)

    return program


def taken(task: str = "t", kind: str = "") -> Program:
    """Create and claim a task: what a holder has done before anything else happens."""

    def program(process: Process) -> None:
        create(task, kind)(process)
        process.shared["claimed"] = claim(process, task)

    return program


def hold(*, retry: bool = False, steps: int = 0) -> Program:
    """Go on with the task that was claimed before."""

    def program(process: Process) -> None:
        with promised():
            finish(process, *process.shared["claimed"], retry=retry, steps=steps)

    return program


def heartbeat(process: Process) -> None:
    """Renew the lease that was claimed before."""
    lease, stored = process.shared["claimed"]
    with promised():
        check(process, lease, stored.record.creation)


def progress(process: Process) -> None:
    """Commit once under the lease that was claimed before."""
    lease, stored = process.shared["claimed"]
    with promised():
        store_of(process).commit(
            lease, transitions.progressed(stored.record, process.clock.now(), progress=7.0)
        )


def let_go(process: Process) -> None:
    """Give back the task that was claimed before."""
    lease, stored = process.shared["claimed"]
    with promised():
        store_of(process).release(lease, transitions.released(stored.record, process.clock.now()))


def ended(task: str = "t", kind: str = "", *, leaving: bool = False) -> Program:
    """Create, claim and complete a task. ``leaving``: crash before its entry and announcement are removed."""

    def program(process: Process) -> None:
        taken(task, kind)(process)
        lease, stored = process.shared["claimed"]
        store = store_of(process)
        with contextlib.ExitStack() as crash:
            if leaving:
                crash.enter_context(mock.patch.object(store._control, "remove_file", return_value=False))
                crash.enter_context(mock.patch.object(store._entries, "remove"))
            store.end(lease, transitions.completed(stored.record, process.clock.now(), b"{}"))

    return program


# ---- reconciling ------------------------------------------------------------------------------------------


def recover(process: Process) -> None:
    """Settle what is half-made."""
    with promised():
        store_of(process).recover()


def watch(process: Process) -> None:
    """Look at all leases for the first time."""
    store = store_of(process)
    with promised():
        store.expired()
    process.clock.pass_time(2 * store.lease_seconds)


def settle(process: Process) -> None:
    """Take over what has expired and end it."""
    store = store_of(process)
    with promised():
        for expired in store.expired():
            with promised():
                taken_over = granted(
                    process, store.take_over(expired, holder=process.actor.name, count_attempt=False)
                )
                if taken_over is not None:
                    lease, stored = taken_over
                    wanted = lease.cancel_requested.is_set()
                    store.end(
                        lease,
                        transitions.abandoned(stored.record, process.clock.now(), cancel_requested=wanted),
                    )


reconcile = in_turn(watch, settle)
"""A thief: thinks every holder dead."""


def recovery(process: Process) -> None:
    """A reconciler that runs alone after everybody has crashed, and then a newcomer."""
    store, clock = store_of(process), process.clock
    for _ in range(2):
        if process.shared.get("doctor"):
            store.examine(fix=True)
        store.recover()
        store.expired()
        clock.pass_time(2 * store.lease_seconds)
        for expired in store.expired():
            taken_over = store.take_over(expired, holder="recovery", count_attempt=False)
            if taken_over is not None:
                lease, stored = taken_over
                wanted = lease.cancel_requested.is_set()
                store.end(lease, transitions.abandoned(stored.record, clock.now(), cancel_requested=wanted))
        for waiting in store.unclaimed(limit=100):
            with contextlib.suppress(InvalidTransition):  # the claim ended it: a cancel was waiting
                claimed = store.claim(waiting.record.key, holder="recovery", count_attempt=False)
                if claimed is not None:
                    lease, stored = claimed
                    store.end(lease, transitions.never_started(stored.record, clock.now()))
    if process.shared.get("doctor"):
        store.examine(fix=True)
    # Announcements of the crashed are judged, and removed, by whoever wants to be alone next.
    for kind in ("t", "one"):
        newcomer = store.create_if_no_active(record(f"new-{kind}", kind))
        process.note("key is free", kind, newcomer is not None)
        if newcomer is not None:
            store.request_cancel(newcomer.record.key)


# ---- others -----------------------------------------------------------------------------------------------


def cancel(task: str = "t") -> Program:
    """Ask for a task to be cancelled."""

    def program(process: Process) -> None:
        with promised():
            stored = store_of(process).request_cancel(key(task))
            assert stored.record.status in (TaskStatus.CANCELLING, TaskStatus.CANCELLED), stored
            process.note("requested", task, stored.record.creation)

    return program


def look(task: str = "t") -> Program:
    """Read a task: a cancel that was asked for is seen."""

    def program(process: Process) -> None:
        process.ops.turn()
        process.note("looks at", task)
        with promised():
            found = store_of(process).get(key(task))
            assert isinstance(found, Stored)
            process.note("looked at", task, found.record.creation, found.record.status.value)

    return program


def delete(task: str = "t") -> Program:
    """Delete a task that has ended."""

    def program(process: Process) -> None:
        with promised():
            store_of(process).delete(key(task))

    return program


def retain(process: Process) -> None:
    """Delete, as retention does, what has ended."""
    with promised():
        store_of(process).purge(dict.fromkeys(TERMINAL, process.clock.now() + 1), limit=10)


def update(task: str = "t") -> Program:
    """Write on behalf of whoever holds the task, if nobody does."""

    def program(process: Process) -> None:
        store = store_of(process)
        with promised():
            found = store.get(key(task))
            assert isinstance(found, Stored)
            if found.record.status.is_active:
                changed = transitions.progressed(found.record, process.clock.now(), message="on behalf")
                store.update(changed, expected=found.version)

    return program


def listing(process: Process) -> None:
    """List the owner's tasks: every one that was there before and stays is there, none is there twice."""
    process.ops.turn()
    process.note("lists")
    with promised():
        page = store_of(process).list(Query("acme", "alice"))
        assert not page.corrupt, page.corrupt
        process.note("listed", tuple((item.record.task_id, item.record.creation) for item in page.items))


def asking(task: str = "t") -> Program:
    """Ask whether a task of this kind is active."""

    def program(process: Process) -> None:
        process.ops.turn()
        process.note("asks", task)
        with promised():
            answer = store_of(process).has_active("acme", "alice", "work", task)
            process.note("answered", task, answer)

    return program


def adopt(task: str = "t") -> Program:
    """Give a record without an entry one, as every call does that finds none."""

    def program(process: Process) -> None:
        store = store_of(process)
        with promised():
            found = store.get(key(task))
            assert isinstance(found, Stored)
            if found.record.status.is_active and store._entries.find(found.record) is None:
                store._births.adopt(found.record)

    return program


def idle(process: Process) -> None:
    """Do nothing any more."""
