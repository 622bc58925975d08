"""How a tracker reaches records: cache first, the store whenever the cache may be stale.

Owns the loops that make reads fresh and writes first-wins. Refuses to know which steps exist: a step is a
function from record to record (:mod:`task_tracker.transitions`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from task_tracker.cache import TaskCache
from task_tracker.changes import Changes
from task_tracker.clock import Clock, is_generated_id
from task_tracker.errors import (
    AmbiguousTask,
    CapabilityMissing,
    CorruptRecord,
    InvalidTaskId,
    InvalidTransition,
    LeaseLost,
    StoreUnavailable,
    TaskNotFound,
    VersionConflict,
)
from task_tracker.keyed_locks import KeyedLocks
from task_tracker.listing import TaskPage
from task_tracker.outcomes import PendingOutcomes
from task_tracker.ownership import Ownership, Step
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import HasTransactions, Joined, Lease, LeaseStore, Query, Stored, TaskStore, Unchanged
from task_tracker.watched import Watched

__all__ = ["RecordAccess", "Step", "check_owner"]

_CONFLICTS_BEFORE_GIVING_UP: Final = 100


class RecordAccess:
    """Store, cache and waiters as one. Thread-safe; the store is asked outside of all locks but the task's."""

    def __init__(self, store: TaskStore, clock: Clock, *, max_cached: int, holder: str | None = None) -> None:
        self.store = store
        self.cache = TaskCache(max_cached)
        self.changes = Changes()
        self._watched = Watched(store, self.changes)
        self.outcomes = PendingOutcomes(clock)
        self._locks = KeyedLocks()
        self.leases = _leases_of(store)
        """The store as one with leases, None if it has none."""
        self.ownership = (
            None
            if self.leases is None
            else Ownership(self.leases, self.cache, self._locks, clock, self.note, holder=holder)
        )
        """What this tracker holds, None on a store without leases."""

    @contextlib.contextmanager
    def awaited(self, key: TaskKey, callback: Callable[[], None]) -> Iterator[None]:
        """Have ``callback`` called after changes of ``key`` while the block runs; others' too, if the store tells."""
        with self.changes.subscribed(key, callback), self._watched.awaited():
            yield

    @property
    def _exact(self) -> bool:
        """Whether versions are compared. Asked each time: a server that was away says it only later."""
        return self.store.capabilities.compare_and_set

    def resolve(self, task_id: str, account_id: str | None, user_id: str | None) -> TaskKey | None:
        """Return the key that a call means: the given owner's, or the one cached owner's of this id.

        Raises ValueError for a blank owner or an id that is no text, AmbiguousTask if several cached owners fit.
        """
        if not isinstance(task_id, str):  # a UUID, say, which would look like a task that is not there
            raise InvalidTaskId(f"task_id is {task_id!r:.80}; it must be text, as create() returns it")
        check_owner(account_id, user_id)
        if account_id is not None and user_id is not None:
            return TaskKey(account_id, user_id, task_id)
        known = [
            key
            for key in self.cache.keys_of(task_id)
            if account_id in (None, key.account_id) and user_id in (None, key.user_id)
        ]
        if len(known) > 1:
            raise AmbiguousTask(f"{len(known)} owners have a task {task_id}; name account_id and user_id")
        return known[0] if known else None

    def resolve_to_write(self, task_id: str, account_id: str | None, user_id: str | None) -> TaskKey:
        """Return the key that a call means. Raises TaskNotFound instead of returning None."""
        key = self.resolve(task_id, account_id, user_id)
        if key is None:
            raise TaskNotFound(
                f"no task {task_id} is known to this process; pass account_id and user_id to have the store asked"
            )
        return key

    def ended(self, task_id: str, account_id: str | None, user_id: str | None) -> TaskRecord | None:
        """Return the record if the cache alone can answer: one that has ended. Asks nobody."""
        key = self.resolve(task_id, account_id, user_id)
        cached = None if key is None else self.cache.get(key)
        return cached.record if cached is not None and _is_final(cached.record) else None

    # ---- reading -------------------------------------------------------------------------------------

    def load(self, key: TaskKey) -> Stored | None:
        """Return the record as it stands now, None if there is none. Raises StoreUnavailable, CorruptRecord."""
        cached = self.cache.get(key)
        if cached is not None and _is_final(cached.record):
            return cached
        return self._ask(key, cached)

    def load_page(self, query: Query) -> TaskPage:
        """Return a page from the store and remember what is on it."""
        mark = self.cache.mark()
        page = self.store.list(query)
        for stored in page.items:
            if self.cache.get(stored.record.key) is not stored:
                self.cache.put(stored, mark)
        return TaskPage(
            (stored.record for stored in page.items),
            next_cursor=page.next_cursor.encode() if page.next_cursor else None,
            corrupt=page.corrupt,
        )

    def confirm_active(self) -> dict[TaskKey, CorruptRecord]:
        """Make the cache true again: ask the store about every record in it that has not ended.

        Returns those that cannot be read any more; what is cached of them is how they were read last.
        """
        corrupt: dict[TaskKey, CorruptRecord] = {}
        for key, cached in self.cache.active():
            try:
                self._ask(key, cached)
            except CorruptRecord as error:
                corrupt[key] = error
        return corrupt

    def _ask(self, key: TaskKey, cached: Stored | None) -> Stored | None:
        mark = self.cache.mark()
        try:
            answer = self.store.get(key, known=None if cached is None else cached.version)
        except TaskNotFound:
            if cached is not None:
                self.cache.drop(key)
            return None
        if isinstance(answer, Unchanged):
            assert cached is not None, "a store said 'unchanged' without having been told what is known"
            if answer.version is cached.version:
                return cached
            answer = Stored(cached.record, answer.version)
        self.cache.put(answer, mark)
        if self.ownership is not None:
            self.ownership.noticed(answer.record)
        return answer

    # ---- writing -------------------------------------------------------------------------------------

    def add(
        self, record: TaskRecord, *, unless_active: bool = False, joined: Joined | None = None
    ) -> TaskRecord | None:
        """Create ``record``; None if ``unless_active`` and one of its kind is active.

        One that is ``joined`` to a transaction of the caller's is not remembered: it may never be there.
        """
        mark = self.cache.mark()
        place: TaskStore | Joined = self.store if joined is None else joined
        stored = place.create_if_no_active(record) if unless_active else place.create(record)
        if stored is None:
            return None
        if joined is not None:
            return stored.record
        key = record.key
        self._forget_loss(key)
        self.cache.put(stored, mark)
        if self.cache.get(key) is not stored:
            self._look_again(key)  # dropped meanwhile: it, or what had its id before
        return stored.record

    def joined(self, connection: object) -> Joined:
        """Return what creates records in the caller's transaction, of which the cache is told nothing.

        Raises CapabilityMissing, and TypeError, ValueError for a connection that will not do.
        """
        if not isinstance(self.store, HasTransactions):
            raise CapabilityMissing(
                f"{type(self.store).__name__} shares no transaction with other tables; use the postgres backend, or "
                "leave connection out: create the task first and your rows after it"
            )
        return self.store.joined(connection)

    def change(self, key: TaskKey, step: Step) -> TaskRecord:
        """Apply ``step`` to the record as it stands and store what comes out; return it.

        The cached record is only a guess: a write that started from a stale one is refused by the store and
        begun again, and neither "nothing to do" nor "not allowed" is concluded from an active record that
        was not confirmed. Of a task that is held here, what was written last is the truth. An outcome that waits
        for the store comes first. Raises TaskNotFound, InvalidTransition, StoreUnavailable, CorruptRecord;
        LeaseHeld if a live process holds the task, LeaseLost if this tracker held it and has lost it.
        """
        self.outcomes.land(key)
        return self._apply(key, step)

    def start(self, key: TaskKey, step: Step) -> TaskRecord:
        """Claim a task where there are leases, then apply ``step``. Raises as :meth:`change`."""
        if self.ownership is None:
            return self.change(key, step)
        self.outcomes.land(key)
        with self._locks.hold(key):
            return self.ownership.start(key, step)

    def cancel(self, key: TaskKey, step: Step) -> TaskRecord:
        """Apply ``step``, which cancels a task or asks for it, whoever holds the task. Raises as :meth:`change`."""
        if self.leases is None or self.ownership is None:
            return self.change(key, step)
        self.outcomes.land(key)
        with self._locks.hold(key):
            holding = self.ownership.holdings.current(key)
            if holding is not None and holding.stored is not None:
                with contextlib.suppress(LeaseLost):
                    record = self.ownership.write(holding, step)
                    holding.lease.cancel_requested.set()
                    return record
        mark = self.cache.mark()
        try:
            stored = self.leases.request_cancel(key)
        except TaskNotFound:
            self.cache.drop(key)
            raise
        self.note(stored, mark)
        self.ownership.noticed(stored.record)
        return stored.record

    def _apply(self, key: TaskKey, step: Step, *, under: Lease | None = None) -> TaskRecord:
        """Apply ``step``; if it was meant ``under`` a lease, not under another one that was claimed since."""
        with self._locks.hold(key):
            holding = None if self.ownership is None else self.ownership.held(key)
            if self.ownership is not None and holding is not None:
                if under is not None and holding.lease is not under:
                    raise LeaseLost(f"task {key.task_id} was lost and started anew; leave it to whoever did")
                return self.ownership.write(holding, step)
            if self._exact:
                done = self._change_unconfirmed(key, step)
                if done is not None:
                    return done
            for _ in range(_CONFLICTS_BEFORE_GIVING_UP):
                # Asked even if the cache holds an end: the id may have been used again elsewhere.
                current = self._ask(key, self.cache.get(key))
                if current is None:
                    raise TaskNotFound(
                        f"no task {key.task_id}: unknown, deleted or somebody else's; check the id and the owner"
                    )
                changed = step(current.record)
                if changed is current.record:
                    return changed
                try:
                    return self._write(changed, current)
                except VersionConflict:
                    continue
        raise StoreUnavailable(
            f"task {key.task_id} was changed by others {_CONFLICTS_BEFORE_GIVING_UP} times in a row; try again"
        )

    def finish(self, key: TaskKey, step: Step) -> TaskRecord:
        """Apply a step that ends the task; keep the outcome if the store cannot be reached.

        The first outcome wins, also while it waits: a second one only lands if the first could not.
        Raises as :meth:`change`; StoreUnavailable means that the outcome is kept and tried again.
        """
        try:
            return self.change(key, step)
        except StoreUnavailable as error:
            if self.keep(key, step):
                what = (
                    f"the outcome of task {key.task_id} could not be stored and is tried again in the background "
                    "as long as this process lives"
                )
            elif self.outcomes.waits(key):
                what = (
                    f"an earlier outcome of task {key.task_id} waits for the store and will win; this one was not "
                    "kept, ask again once the store answers"
                )
            else:
                raise
            raise StoreUnavailable(f"{what}: {error}") from error

    def keep(self, key: TaskKey, step: Step) -> bool:
        """Keep a step that ends a task for later; False if it was not taken (:meth:`PendingOutcomes.keep`).

        It is meant for the task as it is known now: if its id is used again meanwhile, that is another one's.
        """
        known = self.cache.get(key)
        life = None if known is None else known.record.created_at
        holding = None if self.ownership is None else self.ownership.holdings.current(key)
        lease = None if holding is None else holding.lease

        def of_this_life(record: TaskRecord) -> TaskRecord:
            if life is not None and record.created_at != life:
                raise TaskNotFound(
                    f"task {key.task_id} was deleted; another one has its id now, which goes on"
                )
            return step(record)

        kept = self.outcomes.keep(key, lambda: self._apply(key, of_this_life, under=lease))
        if kept and holding is not None:
            holding.settling = True
        return kept

    def delete_owner(self, account_id: str, user_id: str) -> int:
        """Delete all records of an owner; return how many. Raises InvalidTransition while some are active."""
        before = dict(self.cache.of_owner(account_id, user_id))
        deleted = self.store.delete_owner(account_id, user_id)
        after = self.cache.of_owner(account_id, user_id)
        self.cache.drop_owner(account_id, user_id)
        for key, stored in after:
            if before.get(key) is not stored:
                self._look_again(key)  # written while the others were deleted: it may be a new one
        return deleted

    def delete(self, key: TaskKey) -> bool:
        """Delete a record that has ended; False if there is none. Raises InvalidTransition if it is active."""
        before = self.cache.get(key)
        try:
            self.store.delete(key)
        except TaskNotFound:
            self._forget(key, before)
            return False
        self._forget_loss(key)
        self._forget(key, before)
        self.changes.announce(key)
        return True

    def _forget(self, key: TaskKey, before: Stored | None) -> None:
        """Drop a deleted record from the cache, unless its id was used again meanwhile."""
        after = self.cache.get(key)
        self.cache.drop(key)
        if after is not before:
            self._look_again(key)

    def _look_again(self, key: TaskKey) -> None:
        """Have the cache know a record that it may have dropped wrongly. Not worth failing a call that is done."""
        with contextlib.suppress(StoreUnavailable, CorruptRecord):
            self._ask(key, None)

    def _change_unconfirmed(self, key: TaskKey, step: Step) -> TaskRecord | None:
        """Try to write from the cached record without asking first; None if that proved nothing."""
        guess = self.cache.get(key)
        if guess is None:
            return None
        try:
            changed = step(guess.record)
            return None if changed is guess.record else self._write(changed, guess)
        except (InvalidTransition, VersionConflict):
            return None

    def _write(self, record: TaskRecord, current: Stored) -> TaskRecord:
        mark = self.cache.mark()
        try:
            stored = self.store.update(record, expected=current.version if self._exact else None)
        except TaskNotFound:
            self.cache.drop(record.key)
            raise
        self.note(stored, mark)
        return stored.record

    def note(self, stored: Stored, mark: int) -> None:
        """Remember a record that was written after ``mark`` was taken (``cache.mark``), and tell who waits for it."""
        self.cache.put(stored, mark)
        self.changes.announce(stored.record.key)

    def _forget_loss(self, key: TaskKey) -> None:
        """The task of which a lease was lost is gone; another one may have its id."""
        if self.ownership is not None:
            self.ownership.holdings.forget(key)


def check_owner(*names: str | None) -> None:
    """Raise ValueError for a name that is given and blank (or no text): blank is not the same as not given."""
    for name in names:
        if name is not None and (not isinstance(name, str) or not name.strip()):
            raise ValueError("Task ownership requires non-empty account_id and user_id")


def _leases_of(store: TaskStore) -> LeaseStore | None:
    if not store.capabilities.leases:
        return None
    if not isinstance(store, LeaseStore):
        raise TypeError(f"{type(store).__name__} says that it has leases and is no LeaseStore; make it one")
    return store


def _is_final(record: TaskRecord) -> bool:
    """Tell whether a cached record can be believed without asking: it has ended, and its id never comes again.

    An id of the caller's own may be used again after a deletion, by another process too.
    """
    return record.status.is_terminal and is_generated_id(record.task_id)
