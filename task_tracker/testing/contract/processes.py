"""Several processes on one place: what compare-and-set is for.

Needs a harness with ``spec`` and a store that claims ``shared``; the tests of exactness need
``compare_and_set``. What the processes do is in :mod:`task_tracker.testing.jobs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from task_tracker.records import TaskStatus
from task_tracker.store import LeaseStore, Query, Stored, TaskStore
from task_tracker.testing import jobs
from task_tracker.testing.answers import fetch, is_stored, listed
from task_tracker.testing.contract.fixtures import ContractFixtures
from task_tracker.testing.harness import StoreHarness, expired_now
from task_tracker.testing.racing import Crew, StoreSpec
from task_tracker.testing.samples import RecordMaker

__all__ = ["ProcessContract", "ProcessFixtures"]


class ProcessFixtures(ContractFixtures):
    """Processes, and how they open the store."""

    @pytest.fixture(scope="class")
    @classmethod
    def crew(cls) -> Iterator[Crew]:
        """Return processes, for all tests of the class."""
        crew = Crew()
        yield crew
        crew.dismiss()

    @pytest.fixture
    def shared_spec(self, harness: StoreHarness, store: TaskStore) -> StoreSpec:
        """Return how other processes open the store, if it can be shared."""
        if not store.capabilities.shared:
            pytest.skip("the store is not shared between processes")
        if harness.spec is None:
            pytest.skip("the harness has no spec")
        return harness.spec

    @pytest.fixture
    def exact_spec(self, shared_spec: StoreSpec, store: TaskStore) -> StoreSpec:
        """Return the same, if the store promises compare-and-set."""
        if not store.capabilities.compare_and_set:
            pytest.skip("no compare-and-set is claimed")
        return shared_spec


class ProcessContract(ProcessFixtures):
    """What holds across processes."""

    def test_another_process_answers_at_once(
        self, store: TaskStore, shared_spec: StoreSpec, crew: Crew, make: RecordMaker
    ) -> None:
        """What one process wrote, another one reads, lists, counts, ends and deletes. [D121]"""
        assert listed(store) == []
        record = make()
        crew.run(shared_spec, jobs.create_all, [([record],)])
        assert fetch(store, record.key).record == record
        assert listed(store, Query("acme", "alice")) == [record]
        assert store.has_active("acme", "alice", "reindex", "docs")
        ended = make.changed(record, status=TaskStatus.COMPLETED)
        store.update(ended, expected=None)
        assert crew.run(shared_spec, jobs.read, [(record.key,)]) == [
            (ended, [ended], {"reindex": {"completed": 1}})
        ]
        crew.run(shared_spec, jobs.delete, [(record.key,)])
        assert not is_stored(store, record.key)
        assert listed(store) == []

    def test_first_tasks_of_a_new_user(
        self, store: TaskStore, shared_spec: StoreSpec, crew: Crew, make: RecordMaker
    ) -> None:
        """Twenty processes create the first task of one new user at once, and all succeed. [D086]"""
        records = make.many(20, account_id="new", user_id="user")
        crew.run(shared_spec, jobs.create_all, [([record],) for record in records])
        assert listed(store, Query("new", "user")) == records[::-1]

    def test_one_of_many_processes_creates_an_id(
        self, store: TaskStore, shared_spec: StoreSpec, crew: Crew, make: RecordMaker
    ) -> None:
        """The others are told, where exclusive create is claimed."""
        if not store.capabilities.exclusive_create:
            pytest.skip("no exclusive create is claimed")
        rounds = 10
        each = [([make(f"own-{turn}", message=str(who)) for turn in range(rounds)],) for who in range(4)]
        created = crew.run(shared_spec, jobs.create_what_is_free, each)
        for turn, winners in enumerate(zip(*created, strict=True)):
            assert sorted(winners) == [False, False, False, True]
            stored = fetch(store, make.key(f"own-{turn}")).record
            assert stored.message == str(winners.index(True))

    def test_one_of_a_kind_in_each_round(self, exact_spec: StoreSpec, crew: Crew, make: RecordMaker) -> None:
        """Sixteen processes that all ask at once: exactly one creates, the losers get None. [D060]"""
        each = [(make(), 10)] * 16
        won = crew.run(exact_spec, jobs.create_in_rounds, each)
        assert [sum(winners) for winners in zip(*won, strict=True)] == [1] * 10

    def test_one_of_a_kind_at_any_time(
        self, store: TaskStore, exact_spec: StoreSpec, crew: Crew, make: RecordMaker, tmp_path: Path
    ) -> None:
        """Sixteen processes create and end tasks of one kind as fast as they can. [D060]"""
        self._compete(store, exact_spec, crew, make, tmp_path, calls=12)

    @pytest.mark.slow
    def test_one_of_a_kind_at_any_time_for_long(
        self, store: TaskStore, exact_spec: StoreSpec, crew: Crew, make: RecordMaker, tmp_path: Path
    ) -> None:
        """The same with 200 calls each. [D060]"""
        self._compete(store, exact_spec, crew, make, tmp_path, calls=200)

    def _compete(
        self, store: TaskStore, spec: StoreSpec, crew: Crew, make: RecordMaker, tmp_path: Path, calls: int
    ) -> None:
        flag = str(tmp_path / "one is active")
        won = crew.run(spec, jobs.compete, [(make(), calls, flag)] * 16)
        assert sum(won) >= 1
        records = listed(store, Query("acme", "alice", limit=None))
        assert [record.status for record in records] == [TaskStatus.COMPLETED] * sum(won)
        assert not store.has_active("acme", "alice", "reindex", "docs")

    @pytest.mark.parametrize(
        "endings", [("completed", "failed"), ("completed", "cancelled"), ("failed", "failed")]
    )
    def test_first_end_wins_between_processes(
        self, store: TaskStore, exact_spec: StoreSpec, crew: Crew, make: RecordMaker, endings: tuple[str, str]
    ) -> None:
        """Two processes saw the task running and both end it: one does, the other is told. [D037]"""
        records = make.many(10, status=TaskStatus.RUNNING)
        for record in records:
            store.create(record)
        keys = [record.key for record in records]
        ended = crew.run(
            exact_spec, jobs.end_each, [(keys, ending, f"by {who}") for who, ending in enumerate(endings)]
        )
        for key, *won in zip(keys, *ended, strict=True):
            assert sorted(won) == [False, True]
            winner = won.index(True)
            record = fetch(store, key).record
            assert (record.status, record.message) == (endings[winner], f"by {winner}")

    def test_cancel_and_progress_are_both_kept(
        self, store: TaskStore, exact_spec: StoreSpec, crew: Crew, make: RecordMaker
    ) -> None:
        """One process notes progress, one cancels, both having read first: one of them tries again. [D125]"""
        records = make.many(10, status=TaskStatus.RUNNING)
        for record in records:
            store.create(record)
        keys = [record.key for record in records]
        crew.run(exact_spec, jobs.change_each, [(keys, "progress"), (keys, "cancel")])
        for key in keys:
            record = fetch(store, key).record
            assert (record.status, record.progress) == (TaskStatus.CANCELLING, 50.0)
            assert record.cancel_requested_at is not None

    def test_no_step_is_lost_between_processes(
        self, store: TaskStore, exact_spec: StoreSpec, crew: Crew, make: RecordMaker
    ) -> None:
        """Four processes count in one record: every step counts. [D125]"""
        record = make(revision=0)
        store.create(record)
        crew.run(exact_spec, jobs.count_up, [(record.key, 15)] * 4)
        assert fetch(store, record.key).record.revision == 60

    def test_writer_that_is_killed_leaves_the_old_record_or_the_new(
        self,
        harness: StoreHarness,
        opened: TaskStore,
        store: TaskStore,
        shared_spec: StoreSpec,
        make: RecordMaker,
    ) -> None:
        """A crash at any instant: what is there is a record that was written, and others can go on."""
        record = make(message="0" * 5000)
        store.create(record)
        victims = Crew()
        for _ in range(3):
            (pipe,) = victims.order(shared_spec, jobs.write_for_ever, [(record.key,)])
            assert pipe.recv() == ("sync", None)
            pipe.send("go")
            seen, version = 0, fetch(store, record.key).version
            while seen < 10:  # so that the writer is in the middle of something
                assert not pipe.poll(), pipe.recv()
                answer = store.get(record.key, known=version)
                version = answer.version
                if isinstance(answer, Stored):
                    jobs.assert_whole(answer.record)
                    seen += 1
            victims.kill(0)
            jobs.assert_whole(fetch(store, record.key).record)
            settle(harness, opened)
            store.update(make.changed(record), expected=None)
            assert listed(store) == [fetch(store, record.key).record]


def settle(harness: StoreHarness, store: TaskStore) -> None:
    """Give back what a killed process may have held in the middle of an update, where there are leases."""
    if not isinstance(store, LeaseStore):
        return
    harness.lapse(store, store.lease_seconds + 1)
    for expired in expired_now(harness, store):
        taken = store.take_over(expired, holder="the test", count_attempt=False)
        if taken is not None:
            store.release(taken[0], taken[1].record)
    store.recover()
