"""Upkeep on this store: retention, users that are deleted, reconcilers in trouble, what workers say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from stores.postgres.store import PostgresTaskStore
from task_tracker import Retention, TaskTracker
from task_tracker.errors import InvalidTransition, StoreUnavailable
from task_tracker.records import TaskKey, TaskStatus
from task_tracker.store import FORGOTTEN_SECONDS, Query, WorkerFact
from task_tracker.testing import FaultyStore, RecordMaker
from task_tracker.testing.answers import claimed_by
from tests.core.support import OWNER, FakeClock
from tests.postgres.cutting import Scissors, cut_opener
from tests.postgres.grounds import Ground

DAY = 86_400.0


@pytest.fixture
def store(ground: Ground) -> Iterator[PostgresTaskStore]:
    with closing(ground.store(lease_seconds=30)) as store:
        yield store


class TestReconciler:
    def test_outage_in_the_middle_of_a_pass_loses_no_orphan(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """250 orphans; the database is away for the 37th to 60th: a later pass has the rest. [D006]"""
        keys = [store.create(record).record.key for record in make.many(250)]
        for key in keys:
            claimed_by(store, key)
        ground.lapse(31)
        scissors = Scissors()
        broken = FaultyStore(ground.store(lease_seconds=30, open_connection=cut_opener(ground, scissors)))
        seen = 0

        def break_and_mend() -> None:
            nonlocal seen
            seen += 1
            if seen == 37:
                scissors.cut_at(1, after=False, forever=True)
            elif seen == 61:
                scissors.put_away()

        broken.interrupt(break_and_mend, on="take_over", forever=True)
        with TaskTracker(broken) as tracker:
            first = tracker.reconcile()
            assert first.holder_lost == 226
            assert len(store.expired()) == 24
            assert tracker.reconcile().holder_lost == 24
        assert store.count("acme", "alice") == {"reindex": {"failed": 250}}

    def test_two_reconcilers_at_once_settle_each_task_once(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """[D007] [D008]"""
        keys = [store.create(record).record.key for record in make.many(40)]
        for key in keys:
            claimed_by(store, key)
        ground.lapse(31)
        with closing(ground.store(lease_seconds=30)) as second:
            seen = [*second.expired()]
            with TaskTracker(store) as tracker:
                assert tracker.reconcile().holder_lost == 40
            assert [second.take_over(expired, holder="late") for expired in seen] == [None] * 40
        assert [store.get(key).record.attempt.epoch for key in keys] == [2] * 40  # type: ignore[union-attr]


class TestRetention:
    def test_default_terms_bound_the_table(self, ground: Ground) -> None:
        """Ten days of tasks that nobody polls, swept once a day by default terms. [D135] [D130]"""
        clock = FakeClock(4_000_000_000.0)
        store = ground.store(clock=clock)
        with TaskTracker(store, clock=clock) as tracker:
            for _ in range(10):
                for number in range(24):
                    task = tracker.create("t", **OWNER)
                    tracker.complete(task.task_id) if number % 12 else tracker.fail(task.task_id, "x")
                clock.advance(DAY)
                tracker.purge()
                (rows,) = ground.run("SELECT count(*) FROM {tasks}")[0]
                assert rows <= 22 + 7 * 2
            # Of the completed ones none is younger than a day, of the failed ones those of six days are a week.
            assert tracker.stats("acme") == {"t": {"failed": 6 * 2}}

    def test_purge_reaches_what_no_cache_has_and_goes_on_after_a_failure(
        self, ground: Ground, store: PostgresTaskStore
    ) -> None:
        """Rows of earlier processes; one that somebody's table refers to stays, and stops no other. [D130]"""
        clock = FakeClock(4_000_000_000.0)
        with TaskTracker(ground.store(clock=clock), clock=clock) as earlier:
            ids = [earlier.create("t", **OWNER).task_id for _ in range(5)]
            for task_id in ids:
                earlier.complete(task_id)
        ground.run(
            "CREATE TABLE {schema}.referring (account_id text, user_id text, task_id text, "
            "FOREIGN KEY (account_id, user_id, task_id) REFERENCES {tasks})"
        )
        ground.run("INSERT INTO {schema}.referring VALUES ('acme', 'alice', %s)", ids[2])
        clock.advance(10 * DAY)
        with TaskTracker(ground.store(clock=clock), clock=clock, retention=Retention()) as later:
            later.purge()
            assert [task.task_id for task in later.list_tasks(**OWNER)] == [ids[2]]
            ground.run("DROP TABLE {schema}.referring")
            later.purge()
            assert later.list_tasks(**OWNER) == []

    def test_record_that_does_not_say_what_its_row_says_is_kept(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """It may be active; a person has to look."""
        for record in make.many(2, status=TaskStatus.COMPLETED):
            store.create(record)
        ground.run(
            "UPDATE {tasks} SET record = '[1]' WHERE created_at = (SELECT max(created_at) FROM {tasks})"
        )
        assert len(store.purge({TaskStatus.COMPLETED: 5e9}, limit=10).deleted) == 1
        assert ground.run("SELECT count(*) FROM {tasks}") == [(1,)]

    def test_what_somebody_is_reading_for_a_change_is_left_for_the_next_pass(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """A sweep waits for nobody."""
        for record in make.many(3, status=TaskStatus.COMPLETED):
            store.create(record)
        with closing(psycopg.connect(ground.dsn)) as other:
            other.execute(ground.names.fill("SELECT 1 FROM {tasks} ORDER BY created_at LIMIT 1 FOR UPDATE"))
            assert len(store.purge({TaskStatus.COMPLETED: 5e9}, limit=10).deleted) == 2
            other.rollback()
        assert len(store.purge({TaskStatus.COMPLETED: 5e9}, limit=10).deleted) == 1


class TestOwners:
    def test_deletion_goes_in_batches_behind_a_fence(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A crash between two batches leaves the fence; doctor says so, and the next call ends it. [D159]"""
        monkeypatch.setattr("stores.postgres.upkeep._BATCH", 3)
        scissors = Scissors()
        with closing(ground.store(open_connection=cut_opener(ground, scissors))) as stopped:
            stopped.prepare()
            for record in make.many(8, status=TaskStatus.COMPLETED):
                store.create(record)
            scissors.cut_at(7, after=False, forever=True)  # BEGIN, lock, look, fence, COMMIT, a batch
            with pytest.raises(StoreUnavailable, match="call delete_owner again"):
                stopped.delete_owner("acme", "alice")
        assert len(store.list(Query("acme", "alice")).items) == 5
        for create in (store.create, store.create_if_no_active):
            with pytest.raises(InvalidTransition, match="are being deleted"):
                create(make())
        store.create(make(user_id="bob"))
        (finding,) = store.examine()
        assert (finding.kind, finding.where, finding.fixed) == ("half_made", "acme/alice", False)
        assert store.delete_owner("acme", "alice") == 5
        assert store.examine() == []
        store.create(make())

    def test_creation_in_an_open_transaction_is_waited_for(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """It is committed first, and stands in the way; or the deletion gives up, having deleted nothing."""
        store.create(make("ended", status=TaskStatus.COMPLETED))
        with (
            closing(ground.store(lock_timeout_seconds=0.1)) as hasty,
            closing(psycopg.connect(ground.dsn)) as other,
        ):
            other.execute(ground.names.fill("SELECT {may_create}('acme', 'alice')"))
            with pytest.raises(StoreUnavailable, match="locked it for too long"):
                hasty.delete_owner("acme", "alice")
            assert hasty.delete_owner("acme", "bob") == 0
            other.rollback()
            assert hasty.delete_owner("acme", "alice") == 1

    def test_what_others_own_cannot_be_told_from_nothing(
        self, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """Same answers, same words, whatever is asked. [D155]"""
        store.create(make("theirs", status=TaskStatus.COMPLETED))
        words = set()
        for key in (TaskKey("acme", "bob", "theirs"), TaskKey("acme", "bob", "nothing")):
            for call in (
                lambda key=key: store.get(key),
                lambda key=key: store.delete(key),
                lambda key=key: store.request_cancel(key),
                lambda key=key: store.claim(key, holder="h"),
            ):
                with pytest.raises(KeyError) as raised:
                    call()
                words.add(str(raised.value).replace(key.task_id, "..."))
        assert len(words) == 1
        assert store.list(Query("acme", "bob")).items == []
        assert store.count("acme", "bob") == {}
        assert not store.has_active("acme", "bob", "reindex", "docs")


class TestWorkers:
    def test_facts_that_no_worker_wrote_are_left_out(self, ground: Ground, store: PostgresTaskStore) -> None:
        store.publish(WorkerFact("w1", {"state": "working", "n": 2**53 + 1, "t": "漢"}, 60))
        ground.run(
            "INSERT INTO {workers} VALUES ('w2', '[1]', 60, clock_timestamp()), ('w3', 'null', 60, clock_timestamp())"
        )
        (fact,) = store.facts()
        assert (fact.name, fact.data) == ("w1", {"state": "working", "n": 2**53 + 1, "t": "漢"})

    def test_facts_of_the_long_dead_are_forgotten(self, ground: Ground, store: PostgresTaskStore) -> None:
        for name, life in (("old", 10.0), ("older", 10.0), ("living", 1e6)):
            store.publish(WorkerFact(name, {}, life))
        ground.lapse(FORGOTTEN_SECONDS + 11)
        store.publish(WorkerFact("young", {}, 10.0))
        assert store.recover() == 0
        assert ground.run("SELECT name FROM {workers} ORDER BY name") == [("living",), ("young",)]

    def test_pause_waits_for_claims_that_are_under_way(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """And says so if one takes too long: it may hold or not. [D154]"""
        store.create(make(handler_version=1))
        with (
            closing(ground.store(lock_timeout_seconds=0.1)) as hasty,
            closing(psycopg.connect(ground.dsn)) as other,
        ):
            other.execute("SELECT pg_advisory_xact_lock_shared(%s)", [ground.names.lock_key("claims_lock")])
            with pytest.raises(StoreUnavailable, match="did not pause reindex"):
                hasty.pause("reindex")
            assert [*store.paused()] == []
            other.rollback()
            hasty.pause("reindex")
        assert store.claim(holder="w", task_types=[("reindex", 1)]) is None
