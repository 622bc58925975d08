"""What a lease store can be in the middle of when a fault strikes: every operation, each with what was there before.

Owns the scenes. A scene says how to get there and what to do; what the fault is, and how to judge it, is other modules'
business. The task in question is ``task``; records whose state may be seen half-way are named.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from stores.files.ops import FileOps
from stores.files.persistent import PersistentTaskStore
from task_tracker import transitions
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import StoreUnavailable, TaskTrackerError
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.store import Expired, Lease, LeaseStore, Query, Stored, WorkerFact
from tests.files.support import StepClock
from tests.lease.faults.aftermath import HEARTBEAT_SECONDS, LEASE_SECONDS, age, key_of, open_lease_store

TASK: Final = "task"
HANDLER: Final = ("reindex", 1)


def record_of(task_id: str = TASK, **fields: Any) -> TaskRecord:
    """A pending task of acme/alice, created two minutes ago."""
    created_at = SYSTEM_CLOCK.now() - 120
    ordinary: dict[str, Any] = {
        "task_id": task_id,
        "task_type": "reindex",
        "status": TaskStatus.PENDING,
        "created_at": created_at,
        "updated_at": created_at,
        "account_id": "acme",
        "user_id": "alice",
        "resource_id": "docs",
    }
    return TaskRecord(**(ordinary | fields))


class Desk:
    """One process's place of work: its store and what it has in hands."""

    def __init__(self, root: Path, ops: FileOps | None = None, **options: Any) -> None:
        self.root = root
        self.ops = ops
        self.clock = StepClock(SYSTEM_CLOCK.now())
        self.store: LeaseStore = open_lease_store(root, self.clock, ops=ops, **options)
        self.lease: Lease | None = None
        self.expired: Expired | None = None
        self.record = record_of()

    def claim(self, task_id: str = TASK) -> None:
        """Hold a task from now on."""
        claimed = self.store.claim(key_of(task_id), holder="holder")
        assert claimed is not None
        self.hold(claimed)

    def hold(self, claimed: tuple[Lease, Stored]) -> None:
        self.lease, stored = claimed
        self.record = stored.record

    @property
    def held(self) -> Lease:
        assert self.lease is not None
        return self.lease

    def changed(self, **fields: Any) -> TaskRecord:
        """The record with ``fields`` changed."""
        self.clock.advance(1)
        return dataclasses.replace(self.record, updated_at=self.clock.now(), **fields)

    def late(self) -> str | None:
        """What a holder that is over and done with gets told: the error's name, None if its write landed."""
        if self.lease is None:
            return "no lease"
        try:
            self.store.commit(self.lease, self.changed(message="late"))
        except TaskTrackerError as error:
            return type(error).__name__
        return None


@dataclasses.dataclass(frozen=True)
class Scene:
    """``before`` brings a desk to the point, ``act`` is what the fault strikes."""

    name: str
    before: Callable[[Desk], object]
    act: Callable[[Desk], object]
    between: frozenset[str] = frozenset()
    """Words that a record may have in the middle, besides the old and the new one."""
    final: str | None = None
    """How the task must end after ``act`` was acknowledged and its process died; None: anyhow."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


# ---- before ----------------------------------------------------------------------------------------------


def nothing(_: Desk) -> None:
    """A root that has been opened."""


def waiting(desk: Desk) -> None:
    desk.store.create(desk.record)


def waiting_for_workers(desk: Desk) -> None:
    desk.record = record_of(handler_version=1, priority=3)
    desk.store.create(desk.record)


def paused(desk: Desk) -> None:
    waiting_for_workers(desk)
    desk.store.pause("reindex")


def published(desk: Desk) -> None:
    waiting_for_workers(desk)
    desk.store.publish(WorkerFact("worker", {"ready": False}, 20.0))


def held(desk: Desk) -> None:
    waiting(desk)
    desk.claim()


def held_and_written(desk: Desk) -> None:
    held(desk)
    desk.record = desk.store.commit(desk.held, desk.changed(message="half")).record


def held_and_cancelled(desk: Desk) -> None:
    held(desk)
    desk.store.request_cancel(key_of(TASK))


def ended(desk: Desk) -> None:
    held(desk)
    desk.store.end(desk.held, transitions.completed(desk.record, desk.clock.now(), b"3"))
    desk.lease = None


def two_ended(desk: Desk) -> None:
    ended(desk)
    desk.store.create(record_of("other", status=TaskStatus.FAILED, resource_id="others"))


def abandoned(desk: Desk) -> None:
    """Somebody else held the task, wrote something and died half-way through his next write."""
    other = Desk(desk.root)
    held_and_written(other)
    for stage in (desk.root / "local" / ".task_tracker").rglob("stage-*"):
        (stage / "x").write_bytes(b"{")
    age(desk.root)
    desk.store.expired()
    desk.clock.advance(LEASE_SECONDS + 2 * HEARTBEAT_SECONDS + 1)
    (desk.expired,) = desk.store.expired()


def written_by_the_persistent_store(desk: Desk) -> None:
    """An older directory, opened as it is: one task waits, one runs, one has ended."""
    older = PersistentTaskStore(desk.root / "older", durability="none")
    older.create(record_of())
    older.create(record_of("running", status=TaskStatus.RUNNING, resource_id="b"))
    older.create(record_of("ended", status=TaskStatus.COMPLETED, resource_id="c"))
    target = desk.root / "local" / "acme"
    (desk.root / "older" / "local" / "acme").rename(target)
    age(target)


# ---- act -------------------------------------------------------------------------------------------------


def create(desk: Desk) -> object:
    return desk.store.create(desk.record)


def create_if_no_active(desk: Desk) -> object:
    return desk.store.create_if_no_active(desk.record)


def create_for_workers(desk: Desk) -> object:
    return desk.store.create(record_of(handler_version=1, priority=-1))


def create_for_later(desk: Desk) -> object:
    return desk.store.create(record_of(handler_version=1, not_before=SYSTEM_CLOCK.now() + 3600))


def create_ended(desk: Desk) -> object:
    return desk.store.create(record_of(status=TaskStatus.COMPLETED))


def create_when_taken(desk: Desk) -> object:
    assert desk.store.create_if_no_active(record_of("second")) is None
    return None


def claim(desk: Desk) -> object:
    return _held(desk, desk.store.claim(key_of(TASK), holder="holder"))


def claim_next(desk: Desk) -> object:
    return _held(desk, desk.store.claim(holder="holder", task_types=[HANDLER]))


def renew(desk: Desk) -> None:
    desk.store.renew(desk.held)


def commit(desk: Desk) -> object:
    return desk.store.commit(desk.held, desk.changed(message="whole" * 1000))


def release(desk: Desk) -> object:
    return desk.store.release(desk.held, transitions.released(desk.record, desk.clock.now()))


def end(desk: Desk) -> object:
    return desk.store.end(desk.held, transitions.completed(desk.record, desk.clock.now(), b'{"pages":3}'))


def update(desk: Desk) -> object:
    return desk.store.update(desk.changed(message="updated"), expected=None)


def complete_what_nobody_holds(desk: Desk) -> object:
    return desk.store.update(transitions.completed(desk.record, desk.clock.now(), b"1"), expected=None)


def cancel(desk: Desk) -> object:
    return desk.store.request_cancel(key_of(TASK))


def delete(desk: Desk) -> None:
    desk.store.delete(key_of(TASK))


def purge(desk: Desk) -> None:
    cutoff = SYSTEM_CLOCK.now() + 10_000
    purged = desk.store.purge({TaskStatus.COMPLETED: cutoff, TaskStatus.FAILED: cutoff}, limit=10)
    if purged.failed:
        raise StoreUnavailable("some records could not be deleted; ask again")


def delete_owner(desk: Desk) -> None:
    desk.store.delete_owner("acme", "alice")


def take_over(desk: Desk) -> object:
    assert desk.expired is not None
    return _held(desk, desk.store.take_over(desk.expired, holder="taker"))


def _held(desk: Desk, claimed: tuple[Lease, Stored] | None) -> Stored | None:
    """Go on with what was got; there may be nothing to be got where somebody else was quicker."""
    if claimed is None:
        return None
    desk.hold(claimed)
    return claimed[1]


def adopt(desk: Desk) -> None:
    for _ in range(2):
        desk.store.recover()
        desk.store.examine(fix=True)


def watch(desk: Desk) -> None:
    desk.store.expired()


def open_again(desk: Desk) -> None:
    Desk(desk.root, ops=desk.ops)


def get(desk: Desk) -> object:
    return desk.store.get(key_of(TASK))


def list_all(desk: Desk) -> None:
    assert len(desk.store.list(Query("acme")).items) == 2


def has_active(desk: Desk) -> None:
    assert desk.store.has_active("acme", "alice", "reindex", "docs")


def look_for_work(desk: Desk) -> None:
    assert len(desk.store.unclaimed(limit=10)) <= 1, (
        "one that cannot be read is left out, and said in the log"
    )
    assert desk.store.workload().waiting == 1


def examine(desk: Desk) -> None:
    desk.store.examine()


def pause(desk: Desk) -> None:
    desk.store.pause("reindex")


def unpause(desk: Desk) -> None:
    desk.store.unpause("reindex")


def publish(desk: Desk) -> None:
    desk.store.publish(WorkerFact("worker", {"ready": True}, 20.0))


def withdraw(desk: Desk) -> None:
    desk.store.withdraw("worker")


def write_in_place(desk: Desk) -> None:
    path = desk.root / "local" / "acme" / "tasks" / "alice" / f"{TASK}.json"
    document = path.read_bytes().replace(b'"half"', b'"whole"')
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(handle, document[:100])
        os.write(handle, document[100:])
    finally:
        os.close(handle)


WRITING: Final = (
    Scene("create", nothing, create),
    Scene("create_if_no_active", nothing, create_if_no_active),
    Scene("create_for_workers", nothing, create_for_workers),
    Scene("create_for_later", nothing, create_for_later),
    Scene("create_ended", nothing, create_ended),
    Scene("create_when_taken", waiting, create_when_taken),
    Scene("claim", waiting, claim),
    Scene("claim_next", waiting_for_workers, claim_next),
    Scene("renew", held, renew),
    Scene("commit", held_and_written, commit),
    Scene("commit_synced", held_and_written, commit, options={"durability": "full"}),
    Scene("commit_unsynced", held_and_written, commit, options={"durability": "none"}),
    Scene("release", held_and_written, release),
    Scene(
        "release_when_cancelled",
        held_and_cancelled,
        release,
        between=frozenset({"pending", "cancelling"}),
        final="cancelled",
    ),
    Scene("end", held_and_written, end),
    Scene("end_when_cancelled", held_and_cancelled, end),
    Scene("update", waiting, update),
    Scene("complete_what_nobody_holds", waiting, complete_what_nobody_holds),
    Scene("cancel_what_waits", waiting, cancel, final="cancelled"),
    Scene("cancel_what_runs", held, cancel, final="cancelled"),
    Scene("take_over", abandoned, take_over),
    Scene("adopt", written_by_the_persistent_store, adopt),
    Scene("pause", waiting_for_workers, pause),
    Scene("unpause", paused, unpause),
    Scene("publish", waiting_for_workers, publish),
    Scene("publish_again", published, publish),
    Scene("withdraw", published, withdraw),
)
DELETING: Final = (
    Scene("delete", ended, delete),
    Scene("purge", two_ended, purge),
    Scene("delete_owner", two_ended, delete_owner),
)
READING: Final = (
    Scene("open_again", waiting, open_again),
    Scene("get", held_and_cancelled, get),
    Scene("list_all", two_ended, list_all),
    Scene("has_active", waiting, has_active),
    Scene("look_for_work", waiting_for_workers, look_for_work),
    Scene("watch", held, watch),
    Scene("examine", held_and_written, examine),
)
CARELESS: Final = Scene("careless", held_and_written, write_in_place)
"""Not the store's: what a writer does that knows no better. Shows that the judgement bites."""
SCENES: Final = WRITING + DELETING
"""Those that change something on disk."""


def told(answer: object) -> str | None:
    """What an acknowledgement says of the record."""
    if isinstance(answer, Stored):
        message = answer.record.message
        return f"{answer.record.status.value}" + (f":{message}" if message else "")
    return None
