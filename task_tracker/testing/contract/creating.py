"""Creating: nothing is overwritten, and one of a kind is active at a time."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest

from task_tracker.errors import InvalidTaskId, TaskExists, TaskNotFound
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Query, Stored, TaskStore
from task_tracker.testing.answers import fetch, is_stored, listed
from task_tracker.testing.contract.fixtures import ACTIVE_STATES, TERMINAL_STATES, ContractFixtures
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.racing import race
from task_tracker.testing.samples import RecordMaker

__all__ = ["CreatingContract"]

REFUSED_BY_ALL = ["", " ", "\t\n", "nul\0inside", "half a character \ud800"]
TRICKY = [
    *(
        "../x",
        "..",
        ".",
        "a/b",
        "/abs",
        "..\\x",
        "C:\\x",
        "%2e%2e%2f",
        "%",
        "line end\n",
        " padded ",
        "a.",
        ".a",
    ),
    *("Task", "task", "TASK", "caf\u00e9", "cafe\u0301", "漢" * 20, "🎈" * 10, "x" * 150),
    *(
        "CON",
        "nul",
        "com1.txt",
        'a<>:"|?*',
        "agent:main",
        "mail+tag@example.org",
        "a&b=c#d",
        "'; --",
        "$HOME",
    ),
    *(
        "x.json",
        "x.json.tmp",
        ".lock",
        ".tmp-1",
        "tasks",
        ".task_tracker",
        "local",
        "null",
        "-",
        "~",
        "*",
        "@",
    ),
]
"""Ids that paths, shells, databases or operating systems take for something else."""


def with_part(record: TaskRecord, part: str, value: str) -> TaskRecord:
    """Return ``record`` with ``value`` as one part of its key."""
    return dataclasses.replace(record, **{part: value})  # type: ignore[arg-type]


each_part = pytest.mark.parametrize("part", ["account_id", "user_id", "task_id"])


class CreatingContract(ContractFixtures):
    """``create`` and ``create_if_no_active``."""

    def test_created_record_is_found(self, store: TaskStore, make: RecordMaker) -> None:
        """What create returns is what is stored."""
        record = make()
        created = store.create(record)
        assert created.record == record
        assert fetch(store, record.key).record == record

    def test_created_record_is_found_by_another_instance_at_once(
        self, store: TaskStore, other: TaskStore, make: RecordMaker
    ) -> None:
        """When create returns, every other user of the store finds the record, in every way. [D121]"""
        assert listed(other) == []
        record = make()
        store.create(record)
        assert fetch(other, record.key).record == record
        assert listed(other, Query("acme", "alice")) == [record]
        assert listed(other, Query("acme")) == [record]
        assert other.has_active("acme", "alice", record.task_type, record.resource_id)
        assert other.count("acme", None) == {record.task_type: {"pending": 1}}
        assert other.create_if_no_active(make()) is None

    @pytest.mark.parametrize("own_id", [True, False])
    def test_create_never_overwrites(self, store: TaskStore, make: RecordMaker, own_id: bool) -> None:
        """A taken key is refused, whatever the id looks like and however the task stands."""
        first = make("own" if own_id else None, status=TaskStatus.COMPLETED)
        store.create(first)
        with pytest.raises(TaskExists):
            store.create(make(first.task_id, task_type="other"))
        assert fetch(store, first.key).record == first

    def test_create_never_overwrites_what_another_instance_created(
        self, store: TaskStore, other: TaskStore, make: RecordMaker
    ) -> None:
        """Not even when this instance has looked before and seen nothing."""
        assert not is_stored(store, make.key("own"))
        first = make("own")
        other.create(first)
        with pytest.raises(TaskExists):
            store.create(make("own"))
        assert fetch(store, first.key).record == first

    def test_create_never_overwrites_bytes_that_are_no_record(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """The key is taken by whatever is there. [D069]"""
        record = make("own")
        harness.plant(record.key, b'{"half": ')
        with pytest.raises(TaskExists):
            store.create(record)
        assert harness.peek(record.key) == b'{"half": '

    def test_create_if_no_active_never_overwrites(self, store: TaskStore, make: RecordMaker) -> None:
        """It raises as create does; None would mean that a task of this kind is active."""
        first = make("own", status=TaskStatus.COMPLETED)
        store.create(first)
        with pytest.raises(TaskExists):
            store.create_if_no_active(make("own"))
        assert fetch(store, first.key).record == first

    def test_same_id_of_other_owners_is_another_task(self, store: TaskStore, make: RecordMaker) -> None:
        """Owners do not see each other's ids, nor are they kept from using them. [D155]"""
        records = [
            make("own", account_id=account_id, user_id=user_id)
            for account_id, user_id in [("acme", "alice"), ("acme", "bob"), ("globex", "alice")]
        ]
        for record in records:
            store.create(record)
        assert [fetch(store, record.key).record for record in records] == records

    def test_an_id_may_be_used_again_after_deletion(self, store: TaskStore, make: RecordMaker) -> None:
        """Deleted means gone."""
        old = store.create(make("own", status=TaskStatus.COMPLETED))
        store.delete(old.record.key)
        new = make("own")
        store.create(new)
        assert fetch(store, new.key).record == new

    # ---- one of a kind -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("status", ACTIVE_STATES)
    def test_active_task_keeps_its_like_from_being_created(
        self, store: TaskStore, make: RecordMaker, status: TaskStatus
    ) -> None:
        """Pending, running and cancelling tasks do. [D059]"""
        active = make(status=status)
        store.create(active)
        assert store.create_if_no_active(make()) is None
        assert listed(store) == [active]

    @pytest.mark.parametrize("status", TERMINAL_STATES)
    def test_ended_task_does_not(self, store: TaskStore, make: RecordMaker, status: TaskStatus) -> None:
        """After each terminal state the next one can be created. [D059]"""
        running = store.create(make(status=TaskStatus.RUNNING))
        assert store.create_if_no_active(make()) is None
        store.update(make.changed(running.record, status=status), expected=None)
        created = store.create_if_no_active(record := make())
        assert created is not None
        assert created.record == record
        assert fetch(store, record.key).record == record

    def test_kinds_are_told_apart_by_type_and_resource(self, store: TaskStore, make: RecordMaker) -> None:
        """Another type, another resource and no resource are other kinds."""
        store.create(make())
        for kind in (
            {"task_type": "other"},
            {"resource_id": "other"},
            {"resource_id": None},
            {"resource_id": ""},
        ):
            assert store.create_if_no_active(make(**kind)) is not None
            assert store.create_if_no_active(make(**kind)) is None

    def test_owners_do_not_block_each_other(self, store: TaskStore, make: RecordMaker) -> None:
        """The same kind for (a, u1), (a, u2) and (b, u1) gives three tasks. [D066]"""
        for account_id, user_id in [("a", "u1"), ("a", "u2"), ("b", "u1")]:
            assert store.create_if_no_active(make(account_id=account_id, user_id=user_id)) is not None
            assert store.create_if_no_active(make(account_id=account_id, user_id=user_id)) is None

    def test_state_of_a_newer_version_blocks_until_it_has_ended(
        self, store: TaskStore, make: RecordMaker
    ) -> None:
        """What cannot be understood is not "no running task", unless it says when it ended. [D144]"""
        paused = TaskStatus.parse("paused")
        store.create(make(status=paused))
        assert store.create_if_no_active(make()) is None
        store.create(make(status=paused, resource_id="r2", completed_at=make.clock.now()))
        assert store.create_if_no_active(make(resource_id="r2")) is not None

    def test_only_one_of_many_threads_creates_an_id(self, store: TaskStore, make: RecordMaker) -> None:
        """Whoever races: one wins, the others are told; the winner's record is the one that is stored."""
        if store.capabilities.exclusive_create:
            records = [make("own", message=str(number)) for number in range(8)]
        else:
            generated = make().task_id
            records = [make(generated, message=str(number)) for number in range(8)]
        outcomes = race(*(partial(store.create, record) for record in records))
        (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Stored)]
        assert [type(outcome) for outcome in outcomes if outcome is not winner] == [TaskExists] * 7
        assert fetch(store, winner.record.key).record == winner.record

    def test_only_one_of_many_threads_creates_a_kind(self, store: TaskStore, make: RecordMaker) -> None:
        """Exact among the threads of one process, on every store. [D060]"""
        for round_number in range(5):
            records = make.many(8, resource_id=f"round {round_number}")
            outcomes = race(*(partial(store.create_if_no_active, record) for record in records))
            (winner,) = [outcome for outcome in outcomes if outcome is not None]
            assert isinstance(winner, Stored)
            assert len(listed(store, Query("acme", resource_id=f"round {round_number}"))) == 1

    # ---- ids ---------------------------------------------------------------------------------------------

    @each_part
    @pytest.mark.parametrize("bad", REFUSED_BY_ALL, ids=ascii)
    def test_id_that_cannot_be_stored(self, store: TaskStore, make: RecordMaker, part: str, bad: str) -> None:
        """Blank ids and ids that are no text are refused by create and found by nobody. [D067] [D077]"""
        self._check_unstorable(store, make, part, bad)

    def test_id_that_this_store_cannot_keep(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """What this backend cannot keep, too long ids for instance, is refused likewise. [D079]"""
        for part in ("account_id", "user_id", "task_id"):
            for bad in harness.unstorable_ids:
                self._check_unstorable(store, make, part, bad)

    def _check_unstorable(self, store: TaskStore, make: RecordMaker, part: str, bad: str) -> None:
        neighbour = make("neighbour", status=TaskStatus.COMPLETED)
        if not is_stored(store, neighbour.key):
            store.create(neighbour)
        record = with_part(make("own", resource_id="its own"), part, bad)
        for create in (store.create, store.create_if_no_active):
            with pytest.raises(InvalidTaskId):
                create(record)
        with pytest.raises(TaskNotFound):
            store.get(record.key)
        with pytest.raises(TaskNotFound):
            store.update(record, expected=None)
        with pytest.raises(TaskNotFound):
            store.delete(record.key)
        if part != "task_id":
            assert listed(store, Query(record.account_id, record.user_id)) == []
            assert store.count(record.account_id, record.user_id) == {}
        assert not store.has_active(record.account_id, record.user_id, record.task_type, record.resource_id)
        assert [task.task_id for task in listed(store)] == ["neighbour"]

    @each_part
    def test_tricky_ids_are_kept_apart(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker, part: str
    ) -> None:
        """Ids that a path would take for something else are ids like any other, or refused. [D077] [D079]

        Each finds itself again, in another instance too, and none reaches another's record.
        """
        records = []
        for tricky in TRICKY:
            record = with_part(make("own", message=tricky), part, tricky)
            try:
                store.create(record)
            except InvalidTaskId:
                assert not is_stored(store, record.key)
            else:
                records.append(record)
        assert len(records) >= len(TRICKY) // 2, "a store that takes hardly any id is of no use"
        for reader in (store, harness.open()):
            assert [fetch(reader, record.key).record for record in records] == records
            for account_id in {record.account_id for record in records}:
                expected = [record for record in reversed(records) if record.account_id == account_id]
                assert listed(reader, Query(account_id, limit=None)) == expected
            if reader is not store:
                reader.close()
        assert all(harness.peek(record.key) is not None for record in records)

    def test_parts_of_a_key_do_not_run_into_each_other(self, store: TaskStore, make: RecordMaker) -> None:
        """Where one part ends and the next begins makes a difference. [D077] [D155]"""
        keys = [
            *[("a/b", "c", "d"), ("a", "b/c", "d"), ("a", "b", "c/d"), ("a/tasks/b", "c", "d")],
            *[
                ("a", "tasks", "d"),
                ("a%2Fb", "c", "d"),
                ("a", "b", "c%2Fd"),
                ("a.b", "c", "d"),
                ("a", "b.c", "d"),
            ],
        ]
        records = [make(task_id, account_id=account, user_id=user) for account, user, task_id in keys]
        for record in records:
            store.create(record)
        assert [fetch(store, TaskKey(*key)).record for key in keys] == records
        assert [record.user_id for record in listed(store, Query("a"))] == ["b.c", "b", "tasks", "b", "b/c"]
