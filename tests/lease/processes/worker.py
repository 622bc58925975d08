"""One worker of the chaos: creates, claims, works, takes over, cancels and deletes, until it is killed.

Owns the choice of what to do and the writing of the trace; :mod:`tests.lease.processes.verdict` judges. It does
what nobody should do, too: it forgets leases, and writes under them much later.
"""

from __future__ import annotations

import dataclasses
import json
import random  # noqa: TID251  # seeded: what comes next
from collections.abc import Callable
from typing import Any

from task_tracker import transitions
from task_tracker.clock import SYSTEM_CLOCK
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
from task_tracker.store import Expired, Lease, LeaseStore, Query, Stored
from tests.lease.processes.trace import UNKNOWN, Sight, Trace, sight_of

__all__ = ["ACCOUNT", "ONE_AT_A_TIME", "USERS", "Worker"]

ACCOUNT = "acme"
USERS = ("alice", "bob")
FIXED_IDS = 12
RESOURCES = ("docs", "wiki", "code")
ORDINARY, ONE_AT_A_TIME = "ordinary", "one"
TYPES = ((ORDINARY, 1), (ONE_AT_A_TIME, 1))

OUTCOMES: dict[type[Exception], str] = {
    TaskExists: "exists",
    TaskNotFound: "absent",
    VersionConflict: "conflict",
    LeaseHeld: "held",
    LeaseLost: "lost",
    InvalidTransition: "illegal",
    StoreUnavailable: UNKNOWN,
}

DUTIES = {
    "create": 16,
    "create_one": 12,
    "claim_key": 14,
    "claim_next": 24,
    "take_over": 24,
    "write_late": 6,
    "cancel": 6,
    "write_without_lease": 5,
    "delete": 16,
    "look": 5,
    "recover": 2,
}

Held = tuple[Lease, TaskRecord]


class Worker:
    """``name`` is that of the process; ``on_claim`` is called after each claim and take-over."""

    def __init__(
        self, name: str, store: LeaseStore, trace: Trace, on_claim: Callable[[], object] = lambda: None
    ) -> None:
        self._name = name
        self._store = store
        self._trace = trace
        self._dice = random.Random(name)
        self._on_claim = on_claim
        self._lives = 0
        self._forgotten: list[Held] = []

    def work_for_ever(self) -> None:
        while True:
            duty = self._dice.choices([*DUTIES], [*DUTIES.values()])[0]
            getattr(self, f"_{duty}")()

    def _call(
        self, name: str, key: TaskKey, make: Callable[[], tuple[str, TaskRecord | None]], **asked: Any
    ) -> str:
        self._trace.intend(name, "/".join(key), **asked)
        told: dict[str, Any] = {}
        try:
            outcome, record = make()
            if record is not None:
                told["sight"] = sight(record)
        except tuple(OUTCOMES) as error:
            outcome = OUTCOMES[type(error)]
        self._trace.outcome(outcome, **told)
        return outcome

    # ---- duties --------------------------------------------------------------------------------------

    def _some_key(self) -> TaskKey:
        user = self._dice.choice(USERS)
        if self._dice.random() < 0.3:
            items = self._store.list(Query(ACCOUNT, user, ONE_AT_A_TIME, limit=10)).items
            if items:
                return self._dice.choice(items).record.key
        return TaskKey(ACCOUNT, user, f"task-{self._dice.randrange(FIXED_IDS)}")

    def _new(self, task_type: str, key: TaskKey) -> TaskRecord:
        self._lives += 1
        now = SYSTEM_CLOCK.now()
        return TaskRecord(
            key.task_id,
            task_type,
            TaskStatus.PENDING,
            now,
            now,
            key.account_id,
            key.user_id,
            resource_id=self._dice.choice(RESOURCES),
            meta_json=b'{"life":"%s:%d"}' % (self._name.encode(), self._lives),
            handler_version=1 if self._dice.random() < 0.8 else None,
            priority=self._dice.choice([None, 0, 5]),
        )

    def _create(self) -> None:
        user = self._dice.choice(USERS)
        record = self._new(ORDINARY, TaskKey(ACCOUNT, user, f"task-{self._dice.randrange(FIXED_IDS)}"))
        self._call(
            "create", record.key, lambda: ("ok", self._store.create(record).record), life=record.meta["life"]
        )

    def _create_one(self) -> None:
        task_id = SYSTEM_CLOCK.new_id(SYSTEM_CLOCK.now())
        record = self._new(ONE_AT_A_TIME, TaskKey(ACCOUNT, self._dice.choice(USERS), task_id))

        def make() -> tuple[str, TaskRecord | None]:
            stored = self._store.create_if_no_active(record)
            return ("none", None) if stored is None else ("ok", stored.record)

        kind = f"{record.user_id}/{record.resource_id}"
        self._call("create_one", record.key, make, life=record.meta["life"], kind=kind)

    def _claim_key(self) -> None:
        self._claim(self._some_key())

    def _claim_next(self) -> None:
        self._claim(None)

    def _claim(self, key: TaskKey | None) -> None:
        if key is None:
            taken = self._take("claim", lambda: self._store.claim(holder=self._name, task_types=TYPES))
        else:
            taken = self._take("claim", lambda: self._store.claim(key, holder=self._name), key)
        if taken is not None:
            self._work(*taken)

    def _take(
        self,
        name: str,
        take: Callable[[], tuple[Lease, Stored] | None],
        key: TaskKey | None = None,
    ) -> Held | None:
        held: Held | None = None
        self._trace.intend(name, "next" if key is None else "/".join(key))
        told: dict[str, Any] = {}
        try:
            taken = take()
            outcome = "none"
            if taken is not None:
                lease, stored = taken
                held = lease, stored.record
                outcome = "ok"
                told = {
                    "task": "/".join(lease.key),
                    "epoch": lease.epoch,
                    "token": lease.token,
                    "sight": sight(stored.record),
                }
        except tuple(OUTCOMES) as error:
            outcome = OUTCOMES[type(error)]
        self._trace.outcome(outcome, **told)
        if held is not None:
            self._on_claim()
        return held

    def _take_over(self) -> None:
        expired = self._store.expired(limit=20)
        if not expired:
            return
        taken = self.take_over(self._dice.choice(expired))
        if taken is None:
            return
        if self._dice.random() < 0.5:
            self.settle(*taken)
        else:
            self._work(*taken)

    def take_over(self, expired: Expired) -> Held | None:
        return self._take(
            "take_over",
            lambda: self._store.take_over(expired, holder=self._name, count_attempt=False),
            expired.record.key,
        )

    def settle(self, lease: Lease, record: TaskRecord) -> None:
        """End a task whose holder has stopped, as reconcilers do."""
        ended = transitions.abandoned(
            record, SYSTEM_CLOCK.now(), cancel_requested=lease.cancel_requested.is_set()
        )
        self._write("end", (lease, record), ended, 1)

    def _work(self, lease: Lease, record: TaskRecord) -> None:
        """Commit a few times under the lease, with heartbeats between, and come to some end."""
        held = lease, record
        sequence = 0
        for _ in range(self._dice.randint(1, 5)):
            sequence += 1
            if self._write("commit", held, record, sequence) != "ok":
                return
            if self._dice.random() < 0.4 and not self._renew(held):
                return
        sequence += 1
        if lease.cancel_requested.is_set():
            self._write("end", held, _with(record, TaskStatus.CANCELLED), sequence)
            return
        way = self._dice.random()
        if way < 0.12:
            self._forgotten = [*self._forgotten[-4:], held]
        elif way < 0.3 and record.status is TaskStatus.RUNNING:
            self._write("release", held, _with(record, TaskStatus.PENDING), sequence)
        else:
            status = self._dice.choice([TaskStatus.COMPLETED, TaskStatus.FAILED])
            self._write("end", held, _with(record, status), sequence)

    def _write_late(self) -> None:
        """Write under a lease that was left alone for a while; it may have been taken over or not."""
        if len(self._forgotten) > 2:
            held = self._forgotten.pop(0)
            self._write("commit", held, held[1], 90)
            if self._dice.random() < 0.5:
                self._write("end", held, _with(held[1], TaskStatus.FAILED), 91)

    def _write(self, call: str, held: Held, record: TaskRecord, sequence: int) -> str:
        lease = held[0]
        record = dataclasses.replace(
            record, message=f"{lease.epoch}.{sequence}", updated_at=SYSTEM_CLOCK.now()
        )
        return self._call(
            call,
            lease.key,
            lambda: ("ok", getattr(self._store, call)(lease, record).record),
            life=record.meta["life"],
            epoch=lease.epoch,
            sequence=sequence,
            status=record.status.value,
        )

    def _renew(self, held: Held) -> bool:
        def make() -> tuple[str, TaskRecord | None]:
            self._store.renew(held[0])
            return "ok", None

        lease, record = held
        return self._call("renew", lease.key, make, life=record.meta["life"], epoch=lease.epoch) == "ok"

    def _write_without_lease(self) -> None:
        """Update what nobody holds, by the version that was read."""
        key = self._some_key()
        try:
            stored = self._store.get(key)
        except (TaskNotFound, StoreUnavailable):
            return
        assert isinstance(stored, Stored)
        record = stored.record
        if record.status is not TaskStatus.PENDING:
            return
        changed = record
        if self._dice.random() < 0.3:
            changed = transitions.completed(record, SYSTEM_CLOCK.now(), b"null")
        changed = dataclasses.replace(changed, updated_at=SYSTEM_CLOCK.now())
        self._call(
            "update",
            key,
            lambda: ("ok", self._store.update(changed, expected=stored.version).record),
            life=record.meta["life"],
            status=changed.status.value,
        )

    def _cancel(self) -> None:
        key = self._some_key()
        self._call("cancel", key, lambda: ("ok", self._store.request_cancel(key).record))

    def _delete(self) -> None:
        key = self._some_key()

        def make() -> tuple[str, TaskRecord | None]:
            self._store.delete(key)
            return "ok", None

        self._call("delete", key, make)

    def _look(self) -> None:
        self.look(self._some_key())

    def look(self, key: TaskKey) -> None:
        def make() -> tuple[str, TaskRecord | None]:
            stored = self._store.get(key)
            assert isinstance(stored, Stored)
            return "ok", stored.record

        self._call("look", key, make)

    def _recover(self) -> None:
        self._store.recover(limit=20)


def _with(record: TaskRecord, status: TaskStatus) -> TaskRecord:
    return dataclasses.replace(record, status=status)


def sight(record: TaskRecord) -> Sight:
    """Return what a record shows, by the same words as those who read its file."""
    return sight_of(json.loads(encode_record(record)))
