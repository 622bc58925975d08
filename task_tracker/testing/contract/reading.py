"""Reading one record: fresh from where it lives, and cheap to ask whether it has changed."""

from __future__ import annotations

import pytest

from task_tracker.codec import encode_record
from task_tracker.errors import TaskNotFound
from task_tracker.records import TaskKey, TaskStatus
from task_tracker.store import Query, Stored, TaskStore, Unchanged
from task_tracker.testing.answers import fetch, listed
from task_tracker.testing.contract.fixtures import ContractFixtures
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.racing import race
from task_tracker.testing.samples import RecordMaker

__all__ = ["ReadingContract"]


class ReadingContract(ContractFixtures):
    """``get``."""

    def test_unknown_task(self, store: TaskStore, make: RecordMaker) -> None:
        """Where nothing is, TaskNotFound: in an empty store and beside others."""
        with pytest.raises(TaskNotFound):
            store.get(make.key())
        store.create(make())
        with pytest.raises(TaskNotFound):
            store.get(make.key())

    def test_task_of_another_owner_looks_like_no_task(self, store: TaskStore, make: RecordMaker) -> None:
        """Another user of the account, the same user name in another account. [D155]"""
        foreign = [
            TaskKey(account_id, user_id, "own")
            for account_id, user_id in [("acme", "bob"), ("globex", "alice"), ("alice", "acme"), ("acme", "")]
        ]

        def answers() -> list[str]:
            messages = []
            for key in foreign:
                with pytest.raises(TaskNotFound) as raised:
                    store.get(key)
                messages.append(str(raised.value))
            return messages

        before = answers()
        store.create(make("own"))
        assert answers() == before

    def test_record_that_vanished(self, harness: StoreHarness, store: TaskStore, make: RecordMaker) -> None:
        """It is looked for, not remembered."""
        created = store.create(make())
        key = created.record.key
        assert fetch(store, key).record == created.record
        harness.remove(key)
        with pytest.raises(TaskNotFound):
            store.get(key)
        with pytest.raises(TaskNotFound):
            store.get(key, known=created.version)

    def test_record_that_a_foreign_writer_put_there(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """It is found at once, also after a miss, and a change of it as well. [D130]"""
        record = make("planted")
        with pytest.raises(TaskNotFound):
            store.get(record.key)
        assert listed(store) == []
        harness.plant(record.key, encode_record(record))
        assert fetch(store, record.key).record == record
        assert listed(store) == [record]
        record = make.changed(record, status=TaskStatus.RUNNING)
        harness.plant(record.key, encode_record(record))
        assert fetch(store, record.key).record == record
        assert listed(store, Query("acme", "alice", status="running")) == [record]

    # ---- asking whether it has changed -------------------------------------------------------------------

    def test_known_version_that_is_still_stored(self, store: TaskStore, make: RecordMaker) -> None:
        """The answer is Unchanged with a version to go on with, or the record as it was."""
        record = make()
        version = store.create(record).version
        for _ in range(3):
            answer = store.get(record.key, known=version)
            assert isinstance(answer, Unchanged) or answer.record == record
            version = answer.version

    def test_known_version_that_is_not_stored_any_more(self, store: TaskStore, make: RecordMaker) -> None:
        """Then the record itself is the answer, every time."""
        record = make()
        known = [store.create(record).version]
        for number in range(4):
            record = make.changed(record, progress=number)
            known.append(store.update(record, expected=None).version)
            for version in known[:-1]:
                answer = store.get(record.key, known=version)
                assert isinstance(answer, Stored), "said to be unchanged, and is not"
                assert answer.record == record

    def test_known_version_that_this_store_never_gave(self, store: TaskStore, make: RecordMaker) -> None:
        """The record itself is the answer."""
        record = make()
        store.create(record)
        for version in (object(), 0, "", b"", (), record):
            answer = store.get(record.key, known=version)
            assert isinstance(answer, Stored)
            assert answer.record == record

    def test_known_version_and_a_change_by_another_instance(
        self, store: TaskStore, other: TaskStore, make: RecordMaker
    ) -> None:
        """However soon after the read it comes, and though nothing but one letter is different."""
        record = make(message="0")
        store.create(record)
        for number in range(1, 9):
            known = fetch(store, record.key).version
            assert isinstance(store.get(record.key, known=known), (Stored, Unchanged))
            record = make.changed(record, message=str(number), updated_at=record.updated_at)
            other.update(record, expected=None)
            answer = store.get(record.key, known=known)
            assert isinstance(answer, Stored), "said to be unchanged, and is not"
            assert answer.record == record

    def test_known_version_of_an_earlier_life(self, store: TaskStore, make: RecordMaker) -> None:
        """A record that was created again under the same id is another one."""
        old = store.create(make("own", status=TaskStatus.CANCELLED))
        store.delete(old.record.key)
        with pytest.raises(TaskNotFound):
            store.get(old.record.key, known=old.version)
        new = make("own")
        store.create(new)
        answer = store.get(new.key, known=old.version)
        assert isinstance(answer, Stored)
        assert answer.record == new

    # ---- several at once ---------------------------------------------------------------------------------

    def test_reader_never_sees_half_a_record(
        self, store: TaskStore, other: TaskStore, make: RecordMaker
    ) -> None:
        """While somebody writes, every read gives one of the records that were written, whole."""
        record = make(message="0" * 20_000)
        store.create(record)
        versions = [make.changed(record, message=str(number) * 20_000) for number in range(8)]

        def write() -> list[str]:
            for version in versions:
                store.update(version, expected=None)
            return []

        def read() -> list[str]:
            seen = [fetch(other, record.key).record for _ in range(40)]
            return [task.message or "" for task in seen if task not in versions and task != record]

        assert race(write, read, read) == [[], [], []]
