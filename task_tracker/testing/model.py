"""Any store against a plain dict: the same calls, the same answers.

Owns the model, which is the contract in its shortest form. Hypothesis chooses the calls and, when an answer
differs, finds a short sequence that shows it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from task_tracker import transitions
from task_tracker.errors import (
    CapabilityMissing,
    InvalidTransition,
    TaskExists,
    TaskNotFound,
    TaskTrackerError,
    VersionConflict,
)
from task_tracker.records import TERMINAL, TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Cursor, Purged, Query, Stored, TaskStore, Unchanged, Version
from task_tracker.testing.answers import as_said
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.samples import START, RecordMaker

__all__ = ["StoreStateMachine", "state_machine_for"]

# What comes first is drawn more often: it is where things meet.
_OWNERS = [("acme", "alice"), ("acme", "alice"), ("acme", "alice"), ("acme", "bob"), ("globex", "alice")]
_IDS = ["one", "one", "two", "Three/3", None, None]
_TYPES = ["reindex", "ingest"]
_RESOURCES = [None, "docs"]
_STATES = [
    *TaskStatus,
    TaskStatus.PENDING,
    TaskStatus.RUNNING,
    TaskStatus.COMPLETED,
    TaskStatus.parse("paused"),
]

owners = st.sampled_from(_OWNERS)
users = st.sampled_from([*_OWNERS, ("acme", None), ("acme", None), ("globex", None)])
instances = st.sampled_from([0, 1])
moments = st.integers(0, 2).map(lambda seconds: START + seconds / 2)
picks = st.integers(0, 999)
"""Which one of those that there are: the remainder counts."""


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what a record says, its key apart. Times are few, so that there are ties."""
    created_at = draw(moments)
    return {
        "task_type": draw(st.sampled_from(_TYPES)),
        "resource_id": draw(st.sampled_from(_RESOURCES)),
        "status": draw(st.sampled_from(_STATES)),
        "created_at": created_at,
        "updated_at": created_at + draw(st.integers(0, 3)),
        "completed_at": draw(st.sampled_from([None, None, None, START])),
        "message": draw(st.sampled_from([None, "", "page 7", "\u00e9 \U0001f388"])),
    }


class StoreStateMachine(RuleBasedStateMachine):
    """Two instances on one place, and the dict that says what they must answer."""

    make_harness: ClassVar[Callable[[], StoreHarness]]

    @initialize(records=st.lists(st.tuples(owners, st.sampled_from(_IDS), fields()), max_size=8))
    def open(self, records: list[tuple[tuple[str, str], str | None, dict[str, Any]]]) -> None:
        """Begin with an empty place, and put some records there."""
        self.harness = type(self).make_harness()
        first = as_said(self.harness.open())
        second = as_said(self.harness.open()) if first.capabilities.shared else first
        self.stores: list[TaskStore] = [first, second]
        self.exact = first.capabilities.compare_and_set
        self.make = RecordMaker()
        self.model: dict[TaskKey, TaskRecord] = {}
        self.keys: list[TaskKey] = [self.make.key()]
        # Versions by the instance that gave them, with the revision that they stand for.
        mine: dict[TaskKey, list[tuple[Version, int]]] = {}
        self.seen = [mine, {} if second is not first else mine]
        self.revision = 0
        for owner, task_id, said in records:
            if TaskKey(*owner, str(task_id)) not in self.model:
                self.create(0, owner, task_id, said, only_one=False)

    def teardown(self) -> None:
        """Compare everything, in a fresh instance as well, and throw the place away."""
        if not hasattr(self, "harness"):
            return
        fresh = as_said(self.harness.open()) if self.stores[0].capabilities.durable else self.stores[0]
        try:
            for store in (*self.stores, fresh):
                for account_id in ("acme", "globex"):
                    page = store.list(Query(account_id, limit=None))
                    assert [record for record, _ in page.items] == self._expected(Query(account_id))
                for key, record in self.model.items():
                    answer = store.get(key)
                    assert isinstance(answer, Stored)
                    assert answer.record == record
        finally:
            for store in (*self.stores, fresh):
                store.close()
            self.harness.close()

    # ---- writing -------------------------------------------------------------------------------------

    @rule(who=instances, owner=owners, task_id=st.sampled_from(_IDS), said=fields(), only_one=st.booleans())
    def create(
        self, who: int, owner: tuple[str, str], task_id: str | None, said: dict[str, Any], only_one: bool
    ) -> None:
        """Create a record, or create it unless one of its kind is active."""
        record = self._record(owner, task_id, said)
        store = self.stores[who]
        if only_one and self._has_active(*owner, record.task_type, record.resource_id):
            assert store.create_if_no_active(record) is None
            return
        create = store.create_if_no_active if only_one else store.create
        if record.key in self.model:
            self._refused(TaskExists, lambda: create(record))
            return
        created = create(record)
        assert created is not None
        assert created.record == record
        self.model[record.key] = record
        self._saw(who, created)

    @rule(who=instances, pick=picks, said=fields(), version=st.none() | picks)
    def update(self, who: int, pick: int, said: dict[str, Any], version: int | None) -> None:
        """Update any record that ever was, with a version that was seen once, or without."""
        key = self._pick(pick)
        record = self._record((key.account_id, key.user_id), key.task_id, said)
        expected, revision = self._version(who, key, version)
        store = self.stores[who]
        final = key in self.model and self.model[key].status.is_terminal
        if final and revision in (None, self.model[key].revision):
            # Nobody changes a record that has ended. Only a store with leases says so; others rely on it.
            if store.capabilities.leases:
                self._refused(InvalidTransition, lambda: store.update(record, expected=expected))
            return
        if expected is not None and not self.exact:
            missing = (CapabilityMissing,) if key in self.model else (CapabilityMissing, TaskNotFound)
            self._refused(missing, lambda: store.update(record, expected=expected))
        elif key not in self.model:
            self._refused(TaskNotFound, lambda: store.update(record, expected=expected))
        elif expected is not None and revision != self.model[key].revision:
            self._refused(VersionConflict, lambda: store.update(record, expected=expected))
        else:
            updated = store.update(record, expected=expected)
            assert updated.record == record
            self.model[key] = record
            self._saw(who, updated)

    @rule(who=instances, pick=picks, status=st.sampled_from(sorted(TERMINAL)))
    def end(self, who: int, pick: int, status: TaskStatus) -> None:
        """End a task that has not ended, and change nothing else."""
        record = self.model.get(self._pick(pick))
        if record is None or record.status.is_terminal:
            return
        self.revision += 1
        ended = dataclasses.replace(record, status=status, revision=self.revision)
        self._saw(who, self.stores[who].update(ended, expected=None))
        self.model[record.key] = ended

    @rule(who=instances, pick=picks, version=st.none() | picks)
    def delete(self, who: int, pick: int, version: int | None) -> None:
        """Delete any record that ever was, with a version that was seen once, or without."""
        key = self._pick(pick)
        expected, revision = self._version(who, key, version)
        store = self.stores[who]

        def delete() -> None:
            store.delete(key, expected=expected)

        if key not in self.model:
            self._refused((TaskNotFound, *self._may_lack(expected)), delete)
            return
        stale = expected is not None and revision != self.model[key].revision
        if not self.model[key].status.is_terminal:
            self._refused((InvalidTransition, *self._may_lack(expected), *[VersionConflict] * stale), delete)
        elif stale:
            self._refused((VersionConflict, *self._may_lack(expected)), delete)
        else:
            try:
                delete()
            except CapabilityMissing:
                assert self._may_lack(expected)
            else:
                del self.model[key]

    @rule(who=instances, owner=owners)
    def delete_owner(self, who: int, owner: tuple[str, str]) -> None:
        """Delete all of an owner's records."""
        theirs = [record for record in self.model.values() if (record.account_id, record.user_id) == owner]
        active = [record.task_id for record in theirs if not record.status.is_terminal]
        if active:
            error = self._refused(InvalidTransition, lambda: self.stores[who].delete_owner(*owner))
            assert isinstance(error, InvalidTransition)
            assert sorted(error.task_ids) == sorted(active)
            return
        assert self.stores[who].delete_owner(*owner) == len(theirs)
        for record in theirs:
            del self.model[record.key]

    @rule(
        who=instances,
        cutoffs=st.dictionaries(st.sampled_from(_STATES), moments)
        | moments.map(lambda moment: dict.fromkeys(_STATES, moment + 1)),
        limit=st.integers(1, 3),
    )
    def purge(self, who: int, cutoffs: dict[TaskStatus, float], limit: int) -> None:
        """Delete some of what has expired."""
        expired = {
            key
            for key, record in self.model.items()
            if transitions.expired(record.status, record.updated_at, cutoffs)
        }
        purged: Purged = self.stores[who].purge(cutoffs, limit=limit)
        assert set(purged.deleted) <= expired
        assert (len(purged.deleted), purged.failed) == (min(limit, len(expired)), 0)
        assert purged.more or len(expired) <= limit
        for key in purged.deleted:
            del self.model[key]

    # ---- asking --------------------------------------------------------------------------------------

    @rule(who=instances, pick=picks, version=st.none() | picks)
    def get(self, who: int, pick: int, version: int | None) -> None:
        """Read any record that ever was, with a version that was seen once, or without."""
        key = self._pick(pick)
        known, revision = self._version(who, key, version)
        store = self.stores[who]
        if key not in self.model:
            self._refused(TaskNotFound, lambda: store.get(key, known=known))
            return
        answer = store.get(key, known=known)
        if isinstance(answer, Unchanged):
            assert known is not None, "only `known` allows a store to answer Unchanged"
            assert revision == self.model[key].revision, "said to be unchanged, and is not"
            answer = Stored(self.model[key], answer.version)
        assert answer.record == self.model[key]
        self._saw(who, answer)

    @rule(
        who=instances,
        user=users,
        task_type=st.sampled_from([None, None, *_TYPES]),
        status=st.sampled_from([None, None, *_STATES]),
        resource_id=st.sampled_from([None, *_RESOURCES]),
        limit=st.sampled_from([None, 1, 1, 2, 3]),
    )
    def listing(
        self,
        who: int,
        user: tuple[str, str | None],
        task_type: str | None,
        status: str | None,
        resource_id: str | None,
        limit: int | None,
    ) -> None:
        """List all pages."""
        query = Query(*user, task_type, status, resource_id, limit)
        expected = self._expected(query)
        given: list[TaskRecord] = []
        while True:
            page = self.stores[who].list(query)
            given += [record for record, _ in page.items]
            assert given == expected[: len(given)]
            assert not page.corrupt
            for stored in page.items:
                self._saw(who, stored)
            if page.next_cursor is None:
                break
            assert len(page.items) == limit
            query = dataclasses.replace(query, before=Cursor.decode(page.next_cursor.encode()))
        assert given == expected

    @rule(who=instances, user=users)
    def count(self, who: int, user: tuple[str, str | None]) -> None:
        """Count by type and state, and ask for each kind whether it is active."""
        store = self.stores[who]
        counts: dict[str, dict[str, int]] = {}
        for record in self._expected(Query(*user)):
            by_status = counts.setdefault(record.task_type, {})
            by_status[record.status.value] = by_status.get(record.status.value, 0) + 1
        assert store.count(*user) == counts
        for kind in itertools.product(_TYPES, _RESOURCES):
            assert store.has_active(*user, *kind) == self._has_active(*user, *kind)

    @rule(who=instances)
    def reopen(self, who: int) -> None:
        """Go on with a fresh instance, where records survive that."""
        if not self.stores[who].capabilities.durable:
            return
        self.stores[who].close()
        self.stores[who] = as_said(self.harness.open())
        self.seen[who] = {}
        if not self.stores[who].capabilities.shared:
            self.stores, self.seen = [self.stores[who]] * 2, [self.seen[who]] * 2

    # ---- the model -----------------------------------------------------------------------------------

    def _record(self, owner: tuple[str, str], task_id: str | None, said: dict[str, Any]) -> TaskRecord:
        self.revision += 1
        account_id, user_id = owner
        record = self.make(
            task_id, account_id=account_id, user_id=user_id, revision=self.revision, **said
        )  # the revision makes every record unlike all others, so that no version comes back
        if record.key not in self.keys:
            self.keys.append(record.key)
        return record

    def _pick(self, pick: int) -> TaskKey:
        # Mostly one that is there.
        keys = [*self.model] if self.model and pick % 4 else self.keys
        return keys[pick // 4 % len(keys)]

    def _version(self, who: int, key: TaskKey, version: int | None) -> tuple[Version | None, int | None]:
        seen = self.seen[who].get(key)
        return (None, None) if version is None or not seen else seen[version % len(seen)]

    def _saw(self, who: int, stored: Stored) -> None:
        assert stored.record.revision is not None
        versions = self.seen[who].setdefault(stored.record.key, [])
        versions.append((stored.version, stored.record.revision))

    def _expected(self, query: Query) -> list[TaskRecord]:
        found = [
            record
            for record in self.model.values()
            if record.account_id == query.account_id
            and query.user_id in (None, record.user_id)
            and query.matches(record.task_type, record.status, record.resource_id)
        ]
        found.sort(key=lambda record: (record.created_at, record.task_id, record.user_id), reverse=True)
        return found

    def _has_active(
        self, account_id: str, user_id: str | None, task_type: str, resource_id: str | None
    ) -> bool:
        return any(
            (record.account_id, record.task_type, record.resource_id) == (account_id, task_type, resource_id)
            and user_id in (None, record.user_id)
            and transitions.blocks_duplicates(record.status, record.completed_at)
            for record in self.model.values()
        )

    def _may_lack(self, expected: Version | None) -> tuple[type[TaskTrackerError], ...]:
        return () if expected is None or self.exact else (CapabilityMissing,)

    @staticmethod
    def _refused(
        errors: type[TaskTrackerError] | tuple[type[TaskTrackerError], ...], call: Callable[[], object]
    ) -> TaskTrackerError:
        try:
            answer = call()
        except errors as error:
            return error
        raise AssertionError(f"answered {answer!r} instead of raising {errors}")


def state_machine_for(make_harness: Callable[[], StoreHarness]) -> type[StoreStateMachine]:
    """Return a state machine whose every run begins with an empty place of ``make_harness``.

    Run it with ``hypothesis.stateful.run_state_machine_as_test``, or take its ``TestCase`` into a test module.
    """
    return type("StoreStateMachine", (StoreStateMachine,), {"make_harness": staticmethod(make_harness)})
