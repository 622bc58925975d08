"""A store that fails when a test says so.

Owns faults and counters. Refuses to know what it wraps: every call goes to the inner store unless a fault is
due.
"""

# long: one method for each operation of the seam

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from task_tracker.errors import StoreUnavailable
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import (
    Capabilities,
    EffectsPlace,
    Expired,
    Finding,
    HasEffects,
    Lease,
    LeaseStore,
    Page,
    Purged,
    Query,
    Stored,
    TaskStore,
    Unchanged,
    Version,
    WorkerFact,
    Workload,
)

__all__ = [
    "EFFECTS_OPERATIONS",
    "LEASE_OPERATIONS",
    "OPERATIONS",
    "FaultyEffectsStore",
    "FaultyLeaseStore",
    "FaultyStore",
]

OPERATIONS: Final = frozenset(
    {
        "create",
        "create_if_no_active",
        "update",
        "get",
        "list",
        "delete",
        "has_active",
        "count",
        "owners",
        "delete_owner",
        "purge",
        "examine",
    }
)
LEASE_OPERATIONS: Final = frozenset(
    {
        "claim",
        "claimable",
        "renew",
        "commit",
        "release",
        "end",
        "request_cancel",
        "expired",
        "take_over",
        "recover",
        "unclaimed",
        "next_due_seconds",
        "workload",
        "take_in",
        "pause",
        "unpause",
        "paused",
        "publish",
        "withdraw",
        "facts",
    }
)
EFFECTS_OPERATIONS: Final = frozenset({"effects", "effects_path"})
_ALL: Final = OPERATIONS | LEASE_OPERATIONS | EFFECTS_OPERATIONS

_T = TypeVar("_T")


@dataclasses.dataclass(slots=True)
class _Plan:
    """An action that comes at the Nth matching call, once or from then on."""

    action: Callable[[], None]
    operations: frozenset[str]
    remaining: int
    forever: bool
    after: bool

    def is_due(self, operation: str) -> bool:
        if operation not in self.operations or (self.remaining <= 0 and not self.forever):
            return False
        self.remaining -= 1
        return self.remaining <= 0


class FaultyStore(TaskStore):
    """Wraps ``store``. ``calls`` counts what was asked, by the operation's name, failed calls included.

    ::

        store = FaultyStore(InMemoryTaskStore())
        store.fail(on="update", nth=2)                    # the second update from now does not happen
        store.fail(on="create", after=True)               # the next create happens, its reply is lost
        store.fail(forever=True)                          # the store is down until heal()
        store.interrupt(lambda: other.update(...), on="update")   # somebody else comes first

    Around a store with leases it is a :class:`FaultyLeaseStore`, and a :class:`FaultyEffectsStore` around one that
    has places for files of attempts.
    """

    def __new__(cls, store: TaskStore) -> FaultyStore:  # noqa: PYI034  # one kind or the other
        """Return a store with leases around one with leases, and the like."""
        if cls is not FaultyStore or not isinstance(store, LeaseStore):
            return object.__new__(cls)
        return object.__new__(FaultyEffectsStore if isinstance(store, HasEffects) else FaultyLeaseStore)

    def __init__(self, store: TaskStore) -> None:
        self.inner: Final = store
        self.capabilities: Capabilities = store.capabilities
        if not isinstance(self, LeaseStore):
            self.capabilities = dataclasses.replace(store.capabilities, leases=False)
        self.blocking = store.blocking  # type: ignore[misc]  # the instance says what it wraps
        self.calls: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._plans: list[_Plan] = []

    # ---- what tests do -------------------------------------------------------------------------------

    def fail(
        self,
        error: Exception | None = None,
        *,
        on: str | Collection[str] = _ALL,
        nth: int = 1,
        forever: bool = False,
        after: bool = False,
    ) -> None:
        """Raise ``error`` (StoreUnavailable by default) at the ``nth`` call from now of the operations ``on``.

        Once, or ``forever``, that is until :meth:`heal`. With ``after`` the call takes effect first: only its
        reply is lost.
        """
        if error is None:
            error = StoreUnavailable("the store does not answer (a fault that a test asked for); try again")
        fault = error

        def strike() -> None:
            raise fault.with_traceback(None)

        self.interrupt(strike, on=on, nth=nth, forever=forever, after=after)

    def interrupt(
        self,
        action: Callable[[], None],
        *,
        on: str | Collection[str] = _ALL,
        nth: int = 1,
        forever: bool = False,
        after: bool = False,
    ) -> None:
        """Call ``action`` right before the ``nth`` call from now (or right ``after`` it), in its thread."""
        operations = frozenset({on} if isinstance(on, str) else on)
        if unknown := operations - _ALL:
            raise ValueError(f"a store has no operation {min(unknown)!r}; it has {', '.join(sorted(_ALL))}")
        if nth < 1:
            raise ValueError(f"nth counts from 1, not {nth}")
        with self._lock:
            self._plans.append(_Plan(action, operations, nth, forever, after))

    def heal(self) -> None:
        """Forget all faults."""
        with self._lock:
            self._plans.clear()

    def _call(self, operation: str, call: Callable[[], _T]) -> _T:
        after = self._before(operation)
        answer = call()
        after()
        return answer

    def _before(self, operation: str) -> Callable[[], None]:
        """Do what is planned before a call, and return what is to be called after it."""
        with self._lock:
            self.calls[operation] += 1
            due = [plan for plan in self._plans if plan.is_due(operation)]
        for plan in due:
            if not plan.after:
                plan.action()

        def after() -> None:
            for plan in due:
                if plan.after:
                    plan.action()

        return after

    # ---- the seam ------------------------------------------------------------------------------------

    def create(self, record: TaskRecord) -> Stored:
        """See :meth:`TaskStore.create`."""
        return self._call("create", lambda: self.inner.create(record))

    def create_if_no_active(self, record: TaskRecord) -> Stored | None:
        """See :meth:`TaskStore.create_if_no_active`."""
        return self._call("create_if_no_active", lambda: self.inner.create_if_no_active(record))

    def update(self, record: TaskRecord, *, expected: Version | None) -> Stored:
        """See :meth:`TaskStore.update`."""
        return self._call("update", lambda: self.inner.update(record, expected=expected))

    def get(self, key: TaskKey, *, known: Version | None = None) -> Stored | Unchanged:
        """See :meth:`TaskStore.get`."""
        return self._call("get", lambda: self.inner.get(key, known=known))

    def list(self, query: Query) -> Page:
        """See :meth:`TaskStore.list`."""
        return self._call("list", lambda: self.inner.list(query))

    def delete(self, key: TaskKey, *, expected: Version | None = None) -> None:
        """See :meth:`TaskStore.delete`."""
        return self._call("delete", lambda: self.inner.delete(key, expected=expected))

    def has_active(
        self, account_id: str, user_id: str | None, task_type: str, resource_id: str | None
    ) -> bool:
        """See :meth:`TaskStore.has_active`."""
        return self._call(
            "has_active", lambda: self.inner.has_active(account_id, user_id, task_type, resource_id)
        )

    def count(self, account_id: str, user_id: str | None) -> dict[str, dict[str, int]]:
        """See :meth:`TaskStore.count`."""
        return self._call("count", lambda: self.inner.count(account_id, user_id))

    def owners(self) -> Iterator[tuple[str, str]]:
        """See :meth:`TaskStore.owners`."""
        return self._call("owners", self.inner.owners)

    def delete_owner(self, account_id: str, user_id: str) -> int:
        """See :meth:`TaskStore.delete_owner`."""
        return self._call("delete_owner", lambda: self.inner.delete_owner(account_id, user_id))

    def purge(self, cutoffs: Mapping[TaskStatus, float], *, limit: int) -> Purged:
        """See :meth:`TaskStore.purge`."""
        return self._call("purge", lambda: self.inner.purge(cutoffs, limit=limit))

    def examine(self, *, fix: bool = False) -> Sequence[Finding]:
        """See :meth:`TaskStore.examine`."""
        return self._call("examine", lambda: self.inner.examine(fix=fix))

    def watch(self, on_change: Callable[[TaskKey | None], None]) -> AbstractContextManager[None]:
        """Watch the inner store; never fails by plan."""
        return self.inner.watch(on_change)

    def close(self) -> None:
        """Close the inner store; never fails by plan."""
        self.inner.close()


class FaultyLeaseStore(FaultyStore, LeaseStore):
    """The same around a store with leases."""

    inner: LeaseStore  # type: ignore[misc]  # narrower than what any store may be

    def __init__(self, store: LeaseStore) -> None:
        super().__init__(store)
        self.lease_seconds = store.lease_seconds
        self.heartbeat_seconds = store.heartbeat_seconds
        self.ends_together = store.ends_together

    def claim(self, key: TaskKey | None = None, **asked: Any) -> tuple[Lease, Stored] | None:
        """See :meth:`LeaseStore.claim`."""
        return self._call("claim", lambda: self.inner.claim(key, **asked))

    def claimable(self, *, task_types: Sequence[tuple[str, int]], limit: int) -> Sequence[TaskKey]:
        """See :meth:`LeaseStore.claimable`."""
        return self._call("claimable", lambda: self.inner.claimable(task_types=task_types, limit=limit))

    def watch_queue(self, on_waiting: Callable[[], None]) -> AbstractContextManager[None]:
        """Watch the inner store's queue; never fails by plan."""
        return self.inner.watch_queue(on_waiting)

    def announce(self, keys: Sequence[TaskKey]) -> None:
        """See :meth:`LeaseStore.announce`."""
        self._call("announce", lambda: self.inner.announce(keys))

    def renew(self, lease: Lease) -> None:
        """See :meth:`LeaseStore.renew`."""
        self._call("renew", lambda: self.inner.renew(lease))

    def commit(self, lease: Lease, record: TaskRecord) -> Stored:
        """See :meth:`LeaseStore.commit`."""
        return self._call("commit", lambda: self.inner.commit(lease, record))

    def release(self, lease: Lease, record: TaskRecord) -> Stored:
        """See :meth:`LeaseStore.release`."""
        return self._call("release", lambda: self.inner.release(lease, record))

    def end(self, lease: Lease, record: TaskRecord) -> Stored:
        """See :meth:`LeaseStore.end`."""
        return self._call("end", lambda: self.inner.end(lease, record))

    def end_several(self, ends: Sequence[tuple[Lease, TaskRecord]]) -> Sequence[Stored | Exception | None]:
        """See :meth:`LeaseStore.end_several`; each of them counts, and may fail, as a call of ``end``."""
        found: list[Stored | Exception | None] = [None] * len(ends)
        afters: dict[int, Callable[[], None]] = {}
        for number in range(len(ends)):
            try:
                afters[number] = self._before("end")
            except Exception as error:  # noqa: BLE001  # of this one
                found[number] = error
        passed = self.inner.end_several([ends[number] for number in afters])
        for (number, after), one in zip(afters.items(), passed, strict=True):
            found[number] = one
            try:
                if isinstance(one, Stored):
                    after()
            except Exception as error:  # noqa: BLE001  # of this one
                found[number] = error
        return found

    def request_cancel(self, key: TaskKey) -> Stored:
        """See :meth:`LeaseStore.request_cancel`."""
        return self._call("request_cancel", lambda: self.inner.request_cancel(key))

    def expired(self, *, limit: int = 1000) -> Sequence[Expired]:
        """See :meth:`LeaseStore.expired`."""
        return self._call("expired", lambda: self.inner.expired(limit=limit))

    def take_over(
        self, expired: Expired, *, holder: str, count_attempt: bool = True
    ) -> tuple[Lease, Stored] | None:
        """See :meth:`LeaseStore.take_over`."""
        return self._call(
            "take_over", lambda: self.inner.take_over(expired, holder=holder, count_attempt=count_attempt)
        )

    def recover(self, *, limit: int = 1000) -> int:
        """See :meth:`LeaseStore.recover`."""
        return self._call("recover", lambda: self.inner.recover(limit=limit))

    def unclaimed(
        self,
        *,
        task_types: Sequence[tuple[str, int]] | None = None,
        except_types: Sequence[tuple[str, int]] = (),
        handled: bool | None = None,
        older_than_seconds: float = 0.0,
        limit: int,
    ) -> Sequence[Stored]:
        """See :meth:`LeaseStore.unclaimed`."""
        return self._call(
            "unclaimed",
            lambda: self.inner.unclaimed(
                task_types=task_types,
                except_types=except_types,
                handled=handled,
                older_than_seconds=older_than_seconds,
                limit=limit,
            ),
        )

    def next_due_seconds(self, *, task_types: Sequence[tuple[str, int]]) -> float | None:
        """See :meth:`LeaseStore.next_due_seconds`."""
        return self._call("next_due_seconds", lambda: self.inner.next_due_seconds(task_types=task_types))

    def workload(self) -> Workload:
        """See :meth:`LeaseStore.workload`."""
        return self._call("workload", self.inner.workload)

    def take_in(self, record: TaskRecord, *, expected: Version | None = None) -> Stored:
        """See :meth:`LeaseStore.take_in`."""
        return self._call("take_in", lambda: self.inner.take_in(record, expected=expected))

    def pause(self, task_type: str) -> None:
        """See :meth:`LeaseStore.pause`."""
        self._call("pause", lambda: self.inner.pause(task_type))

    def unpause(self, task_type: str) -> None:
        """See :meth:`LeaseStore.unpause`."""
        self._call("unpause", lambda: self.inner.unpause(task_type))

    def paused(self) -> Sequence[str]:
        """See :meth:`LeaseStore.paused`."""
        return self._call("paused", self.inner.paused)

    def publish(self, fact: WorkerFact) -> None:
        """See :meth:`LeaseStore.publish`."""
        self._call("publish", lambda: self.inner.publish(fact))

    def withdraw(self, name: str) -> None:
        """See :meth:`LeaseStore.withdraw`."""
        self._call("withdraw", lambda: self.inner.withdraw(name))

    def facts(self) -> Sequence[WorkerFact]:
        """See :meth:`LeaseStore.facts`."""
        return self._call("facts", self.inner.facts)


class FaultyEffectsStore(FaultyLeaseStore):
    """The same around a store that has places for files of attempts."""

    def effects(self, lease: Lease) -> EffectsPlace | None:
        """See :meth:`HasEffects.effects`."""
        return self._call("effects", lambda: self._places.effects(lease))

    def effects_path(self, record: TaskRecord) -> str | None:
        """See :meth:`HasEffects.effects_path`."""
        return self._call("effects_path", lambda: self._places.effects_path(record))

    @property
    def _places(self) -> HasEffects:
        assert isinstance(self.inner, HasEffects), "one of this kind is made around no other store"
        return self.inner
