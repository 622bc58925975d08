"""One process of a history: makes calls on one task, chosen by a seed, and notes what it asked and was told.

Owns the choice of calls and the words for their answers (:mod:`tests.lease.processes.contract` knows what they
mean). Works with any store; leases are used where the store has them.
"""

from __future__ import annotations

import dataclasses
import random  # noqa: TID251  # seeded: which call comes next
import time
from collections.abc import Callable
from typing import Any, Protocol

from task_tracker.clock import SYSTEM_CLOCK
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
from task_tracker.store import Expired, Lease, LeaseStore, Stored, TaskStore, Unchanged

__all__ = ["Actor", "Notes"]

ANSWERS: dict[type[Exception], str] = {
    TaskExists: "exists",
    TaskNotFound: "absent",
    VersionConflict: "conflict",
    LeaseHeld: "held",
    LeaseLost: "lost",
    InvalidTransition: "ended",
}

PLAIN = {"create": 15, "get": 25, "update": 40, "finish": 5, "delete": 15}
BLIND = {"create": 15, "get": 35, "update": 50}
FREE = {"claim": 30, "create": 12, "update": 14, "get": 16, "cancel": 12, "delete": 10, "stale_commit": 6}
HOLDING = {"commit": 40, "renew": 16, "release": 14, "end": 12, "get": 10, "cancel": 5, "claim": 3}
ROBBING = FREE | {"take_over": 40}
ROBBED = HOLDING | {"doze": 40}

PATIENCE_TERMS = 6
"""Lease terms that a lease is waited for: enough for it to run out, and to be watched, on a busy machine."""

Choice = dict[str, int]


class Notes(Protocol):
    """Where a history is kept."""

    def begin(self, call: str, asked: tuple[Any, ...]) -> None:
        """Note a call before it is made."""

    def end(self, answer: tuple[Any, ...] | None) -> None:
        """Note what came of it."""


class Actor:
    """Makes calls on the task ``key`` until told to stop.

    ``blind`` leaves versions out, and then also what ends a task: whoever writes without looking could change
    one that has ended, which callers never do. ``robbing`` takes over what has expired.
    """

    def __init__(
        self,
        name: str,
        store: TaskStore,
        key: TaskKey,
        seed: str,
        notes: Notes,
        *,
        blind: bool,
        robbing: bool,
    ) -> None:
        self._name = name
        self._store = store
        self._key = key
        self._dice = random.Random(seed)
        self._notes = notes
        self._blind = blind
        self._robbing = robbing
        self._number = 0
        self._seen: Stored | None = None
        self._held: tuple[Lease, TaskRecord] | None = None
        self._stale: tuple[Lease, TaskRecord] | None = None

    def step(self, first: str | None = None) -> None:
        """Make one call: ``first``, or one by chance."""
        choice = self._choice()
        call = first or self._dice.choices([*choice], [*choice.values()])[0]
        getattr(self, f"_{call}")()

    def _choice(self) -> Choice:
        if not self._store.capabilities.leases:
            return BLIND if self._blind else PLAIN
        if self._held is not None:
            return ROBBED if self._robbing else HOLDING
        return ROBBING if self._robbing else FREE

    @property
    def _leases(self) -> LeaseStore:
        assert isinstance(self._store, LeaseStore)
        return self._store

    def _tag(self) -> str:
        self._number += 1
        return f"{self._name}-{self._number}"

    def _note(self, call: str, asked: tuple[Any, ...], make: Callable[[], tuple[Any, ...]]) -> bool:
        """Make a call and note it; tell whether it was answered with a yes."""
        self._notes.begin(call, asked)
        answer: tuple[Any, ...] | None
        try:
            answer = make()
        except StoreUnavailable:
            answer = None
        except tuple(ANSWERS) as error:
            answer = (ANSWERS[type(error)],)
        self._notes.end(answer)
        return answer is not None and answer[0] == "ok"

    # ---- calls that every store has ------------------------------------------------------------------

    def _create(self) -> None:
        tag, now = self._tag(), SYSTEM_CLOCK.now()
        record = TaskRecord(
            self._key.task_id,
            "history",
            TaskStatus.PENDING,
            now,
            now,
            self._key.account_id,
            self._key.user_id,
            message=tag,
        )

        def make() -> tuple[Any, ...]:
            self._seen = self._store.create(record)
            return ("ok",)

        self._note("create", (tag,), make)

    def _get(self) -> None:
        def make() -> tuple[Any, ...]:
            known = self._seen.version if self._seen is not None and self._dice.random() < 0.5 else None
            found = self._store.get(self._key, known=known)
            if isinstance(found, Unchanged):
                assert self._seen is not None
                self._seen = Stored(self._seen.record, found.version)
            else:
                self._seen = found
            return ("ok", *_triple(self._seen.record))

        self._note("get", (), make)

    def _update(self, status: TaskStatus | None = None) -> None:
        seen = self._seen
        if seen is None or not seen.record.status.is_active:
            self._get()
            return
        if self._store.capabilities.leases:
            # What is running is written by its holder; others find it held.
            status = status or (TaskStatus.COMPLETED if self._dice.random() < 0.2 else TaskStatus.PENDING)
            expected = None if self._dice.random() < 0.3 else seen
        else:
            status = status or self._dice.choice([TaskStatus.PENDING, TaskStatus.RUNNING])
            expected = None if self._blind else seen
        tag = self._tag()
        record = dataclasses.replace(seen.record, status=status, message=tag, updated_at=SYSTEM_CLOCK.now())

        def make() -> tuple[Any, ...]:
            stored = self._store.update(record, expected=None if expected is None else expected.version)
            self._seen = stored
            return ("ok", _epoch(stored.record), stored.record.status.value)

        asked = None if expected is None else _triple(expected.record)
        self._note("update", (status.value, tag, asked), make)

    def _finish(self) -> None:
        self._update(TaskStatus.COMPLETED)

    def _delete(self) -> None:
        def make() -> tuple[Any, ...]:
            try:
                self._store.delete(self._key)
            except InvalidTransition:
                return ("active",)
            return ("ok",)

        self._note("delete", (), make)

    # ---- calls of a store with leases ---------------------------------------------------------------------

    def _claim(self) -> None:
        def make() -> tuple[Any, ...]:
            return self._taken(self._leases.claim(self._key, holder=self._name), with_cancel=False)

        self._note("claim", (), make)

    def _take_over(self) -> None:
        """Wait for the lease to expire, unless it is given up meanwhile, and take it over."""
        store = self._leases
        until = time.monotonic() + PATIENCE_TERMS * store.lease_seconds
        while self._is_running() and time.monotonic() < until:
            for expired in store.expired():
                if expired.record.key == self._key:
                    self._rob(expired)
                    return
            time.sleep(store.heartbeat_seconds / 2)  # a store looks twice before it believes
        self._get()

    def _doze(self) -> None:
        """Let the lease run out, wait until somebody has taken the task over, if anybody does, and write late."""
        assert self._held is not None
        mine = self._held[0]
        until = time.monotonic() + PATIENCE_TERMS / 2 * self._leases.lease_seconds
        while self._is_running(mine.epoch) and time.monotonic() < until:
            time.sleep(self._leases.heartbeat_seconds / 2)
        self._commit()

    def _rob(self, expired: Expired) -> None:
        self._note(
            "take_over",
            (),
            lambda: self._taken(self._leases.take_over(expired, holder=self._name), with_cancel=True),
        )

    def _is_running(self, epoch: int | None = None) -> bool:
        """Tell whether the task runs; if ``epoch`` is given, under that epoch."""
        try:
            found = self._store.get(self._key)
        except (TaskNotFound, StoreUnavailable):
            return False
        assert isinstance(found, Stored)
        runs = found.record.status in (TaskStatus.RUNNING, TaskStatus.CANCELLING)
        return runs and epoch in (None, _epoch(found.record))

    def _taken(self, taken: tuple[Lease, Stored] | None, *, with_cancel: bool) -> tuple[Any, ...]:
        if taken is None:
            return ("none",)
        lease, stored = taken
        if self._held is not None:
            self._stale = self._held
        self._held, self._seen = (lease, stored.record), stored
        answer = ("ok", lease.token, lease.epoch, stored.record.status.value)
        return (*answer, lease.cancel_requested.is_set()) if with_cancel else answer

    def _stale_commit(self) -> None:
        """Write under a lease that was lost or given up."""
        if self._stale is None:
            self._get()
            return
        self._write("commit", self._stale)

    def _commit(self) -> None:
        assert self._held is not None
        self._write("commit", self._held)

    def _release(self) -> None:
        assert self._held is not None
        self._write("release", self._held, TaskStatus.PENDING)

    def _end(self) -> None:
        assert self._held is not None
        status = self._dice.choice([TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED])
        self._write("end", self._held, status)

    def _write(self, call: str, held: tuple[Lease, TaskRecord], status: TaskStatus | None = None) -> None:
        lease, record = held
        tag = self._tag()
        record = dataclasses.replace(
            record, status=status or record.status, message=tag, updated_at=SYSTEM_CLOCK.now()
        )
        lost = False

        def make() -> tuple[Any, ...]:
            nonlocal lost
            try:
                self._seen = stored = getattr(self._leases, call)(lease, record)
            except LeaseLost:
                lost = True
                raise
            return ("ok", stored.record.status.value)

        asked = (lease.token, tag) if call != "end" else (lease.token, tag, record.status.value)
        if self._note(call, asked, make):
            if call != "commit":
                self._let_go()
            elif self._held is not None and held is self._held:
                self._held = (lease, record)
        elif lost and held is self._held:
            self._let_go()

    def _let_go(self) -> None:
        self._stale, self._held = self._held, None

    def _renew(self) -> None:
        assert self._held is not None
        lease, _ = self._held

        def make() -> tuple[Any, ...]:
            self._leases.renew(lease)
            return ("ok", lease.cancel_requested.is_set())

        if not self._note("renew", (lease.token,), make) and lease.lost.is_set():
            self._let_go()

    def _cancel(self) -> None:
        def make() -> tuple[Any, ...]:
            stored = self._leases.request_cancel(self._key)
            return ("ok", stored.record.status.value, _epoch(stored.record))

        if self._note("cancel", (), make) and self._dice.random() < 0.5:
            self._get()  # which must see it


def _epoch(record: TaskRecord) -> int:
    return record.attempt.epoch if record.attempt is not None else 0


def _triple(record: TaskRecord) -> tuple[str, str, int]:
    return record.status.value, record.message or "", _epoch(record)
