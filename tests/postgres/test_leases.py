"""What only this store promises of leases: by whose clock, of rows that others wrote, and in which order."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import psycopg
import pytest

from stores.postgres import queue
from stores.postgres.store import PostgresTaskStore
from task_tracker import transitions
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import CorruptRecord, LeaseLost, SettingsError
from task_tracker.records import TaskKey, TaskStatus
from task_tracker.store import Lease, Stored
from task_tracker.testing import RecordMaker, jobs
from task_tracker.testing.answers import claimed_by, taken_over
from task_tracker.testing.racing import race
from tests.contract.lease_harnesses import SteppedClock
from tests.postgres.grounds import LEASED, Ground

KIND = ("reindex", 1)


@pytest.fixture
def store(ground: Ground) -> Iterator[PostgresTaskStore]:
    with closing(ground.store(lease_seconds=30)) as store:
        yield store


def anew(lease: Lease) -> Lease:
    """Return the same lease as somebody has it who was asleep."""
    return dataclasses.replace(lease, lost=threading.Event(), cancel_requested=threading.Event())


def next_id(store: PostgresTaskStore, *kinds: tuple[str, int], **limits: int) -> str | None:
    claimed = store.claim(holder="w", task_types=kinds or (KIND,), max_running=limits or None)
    return None if claimed is None else claimed[1].record.task_id


class TestFence:
    def test_write_after_the_term_is_refused_before_anybody_has_taken_over(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """Each of them; a heartbeat that comes late is welcome, and the lease goes on. [D022] [D023]"""
        lease, stored = claimed_by(store, store.create(make()).record.key)
        ground.lapse(31)
        record = stored.record
        for write in (
            partial(store.commit, record=record.changed(message="late")),
            partial(store.release, record=transitions.released(record, record.updated_at)),
            partial(store.end, record=transitions.completed(record, record.updated_at, b"1")),
        ):
            asleep = anew(lease)
            with pytest.raises(LeaseLost, match="has expired; stop working on it"):
                write(asleep)
            assert asleep.lost.is_set()
        assert store.get(lease.key) == stored
        store.renew(lease)
        assert store.commit(lease, record.changed(message="in time")).record.message == "in time"

    def test_token_alone_or_epoch_alone_is_not_enough(
        self, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """[D023]"""
        lease, stored = claimed_by(store, store.create(make()).record.key)
        for forged in (
            dataclasses.replace(anew(lease), token="0" * 32),
            dataclasses.replace(anew(lease), epoch=lease.epoch + 1),
        ):
            for call in (
                partial(store.renew, forged),
                partial(store.commit, anew(forged), stored.record.changed(message="forged")),
            ):
                with pytest.raises(LeaseLost):
                    call()
        assert store.get(lease.key) == stored

    def test_hosts_clocks_decide_nothing(self, ground: Ground, make: RecordMaker) -> None:
        """Half a minute fast and half a minute slow, with leases of twenty seconds. [D026]"""
        fast, slow = SteppedClock(), SteppedClock()
        fast.wrong_by_seconds, slow.wrong_by_seconds = 30.0, -30.0
        with (
            closing(ground.store(lease_seconds=20, clock=fast)) as one,
            closing(ground.store(lease_seconds=20, clock=slow)) as other,
        ):
            for holder, rescuer in ((one, other), (other, one)):
                lease, _ = claimed_by(holder, holder.create(make()).record.key)
                assert [*rescuer.expired()] == []
                ground.lapse(19)
                assert [*rescuer.expired()] == []
                holder.renew(lease)
                ground.lapse(21)
                (expired,) = rescuer.expired()
                assert 21 <= expired.heartbeat_age_seconds < 25
                taken, stored = taken_over(rescuer, expired)
                rescuer.end(taken, transitions.completed(stored.record, stored.record.updated_at, b"1"))

    def test_leases_that_never_end_are_refused(self, ground: Ground) -> None:
        for terms in ({"lease_seconds": float("inf")}, {"lease_seconds": 9, "heartbeat_seconds": 4}):
            with pytest.raises(SettingsError, match="lease_seconds"):
                ground.store(**terms)


class TestForeignRows:
    """What SQL by hand, a restored backup or another program left."""

    def test_task_that_runs_without_a_term_gets_one_and_is_settled(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """No lease counts as orphaned, after the time that a lease has. [D010]"""
        lease, _ = claimed_by(store, store.create(make()).record.key)
        ground.run(
            "UPDATE {tasks} SET token = NULL, holder = NULL, heartbeat_at = NULL, lease_expires_at = NULL"
        )
        assert [*store.expired()] == []
        assert (store.recover(), store.recover()) == (1, 0)
        assert [*store.expired()] == []
        ground.lapse(31)
        (expired,) = store.expired()
        taken, stored = taken_over(store, expired, count_attempt=False)
        assert taken.epoch > lease.epoch
        store.end(taken, transitions.abandoned(stored.record, stored.record.updated_at))
        with pytest.raises(LeaseLost):
            store.renew(lease)

    def test_every_way_to_run_stamps_a_term(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """create, update, both claims, take-over, cancel; and every way to stop takes it away. [D010]"""

        def without() -> int:
            (number,) = ground.run(
                f"SELECT count(*) FROM {{tasks}} WHERE ({LEASED}) <> (lease_expires_at IS NOT NULL)"
            )[0]
            return int(number)

        running = store.create(make(status=TaskStatus.RUNNING)).record
        store.create(make(status=TaskStatus.CANCELLING))
        store.update(store.create(make()).record.changed(status=TaskStatus.RUNNING), expected=None)
        store.request_cancel(running.key)
        lease, stored = claimed_by(store, store.create(make()).record.key)
        claimed_by(store, store.create(make()).record.key, count_attempt=False)
        store.create(make(handler_version=1))
        assert next_id(store) is not None
        assert (without(), ground.run(f"SELECT count(*) FROM {{tasks}} WHERE {LEASED}")) == (0, [(6,)])
        store.release(lease, transitions.released(stored.record, stored.record.updated_at))
        ground.lapse(31)
        for expired in store.expired():
            taken = store.take_over(expired, holder="r")
            assert without() == 0
            if taken is not None:
                store.end(taken[0], transitions.cancelled(taken[1].record, taken[1].record.updated_at))
        assert (without(), ground.run(f"SELECT count(*) FROM {{tasks}} WHERE {LEASED}")) == (0, [(0,)])

    @pytest.mark.parametrize("document", ['{"status": "pending"}', "[]", "null"])
    def test_row_that_is_no_record_is_in_nobodys_way(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker, document: str
    ) -> None:
        """At the head of the queue, among what expires, in the backlog: set aside, named, mended once repaired."""
        first, second = make(handler_version=1, priority=9), make(handler_version=1)
        for record in (first, second):
            store.create(record)
        text = ground.run("SELECT record::text FROM {tasks} WHERE priority = 9")[0][0]
        ground.run("UPDATE {tasks} SET record = %s, revision = DEFAULT WHERE priority = 9", document)
        assert [found.record.key for found in store.unclaimed(limit=1)] == [second.key]
        ground.run("UPDATE {tasks} SET unreadable = false")
        assert [next_id(store), next_id(store)] == [second.task_id, None]
        with pytest.raises(CorruptRecord):
            store.claim(first.key, holder="h")
        (finding,) = store.examine(fix=True)
        assert finding.kind == "corrupt_record"
        assert first.task_id in finding.where
        assert store.has_active("acme", "alice", "reindex", "docs")
        ground.run("UPDATE {tasks} SET record = %s, revision = DEFAULT WHERE priority = 9", text)
        (finding,) = store.examine(fix=True)
        assert (finding.kind, finding.fixed) == ("stale_columns", True)
        assert store.examine() == []
        assert next_id(store) == first.task_id

    def test_lease_of_a_row_that_is_no_record_stops_no_reconciler(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """However many: those behind it are settled. [D006]"""
        keys = [store.create(record).record.key for record in make.many(5)]
        for key in keys:
            claimed_by(store, key)
        ground.lapse(31)
        ground.run(
            "UPDATE {tasks} SET record = %s, revision = DEFAULT WHERE task_id < %s", "{}", keys[3].task_id
        )
        assert [found.record.key for found in store.expired(limit=2)] == keys[3:]

    def test_holder_of_a_row_that_is_no_record_any_more_can_go_on(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """What it writes is whole; a wish to cancel is in the row as well."""
        lease, stored = claimed_by(store, store.create(make()).record.key)
        store.request_cancel(lease.key)
        ground.run("UPDATE {tasks} SET record = %s, revision = DEFAULT", "{}")
        store.renew(lease)
        assert lease.cancel_requested.is_set()
        again = store.commit(lease, stored.record.changed(message="still here"))
        assert again.record.status is TaskStatus.CANCELLING
        assert store.get(lease.key) == again

    def test_everything_is_examined_page_by_page(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also records that this store would not have taken, which are read as they are."""
        monkeypatch.setattr("stores.postgres.examination._PAGE", 2)
        for record in make.many(5):
            store.create(record)
        ground.run(
            "UPDATE {tasks} SET task_type = %s, record = jsonb_set(record::jsonb, '{{task_type}}', %s)::json",
            "t" * 501,
            f'"{"t" * 501}"',
        )
        assert store.examine() == []
        ground.run(
            "UPDATE {tasks} SET record = '[]' WHERE created_at > (SELECT min(created_at) FROM {tasks})"
        )
        assert [found.kind for found in store.examine()] == ["corrupt_record"] * 4

    def test_column_that_was_changed_by_hand_is_found_and_mended(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        record = store.create(make(handler_version=1)).record
        ground.run("UPDATE {tasks} SET status = 'completed', handler_version = 7, ended_at = 1")
        assert next_id(store) is None
        (finding,) = store.examine()
        assert (finding.kind, finding.fixed) == ("stale_columns", False)
        assert store.get(record.key).record == record  # type: ignore[union-attr]
        assert [finding.fixed for finding in store.examine(fix=True)] == [True]
        assert next_id(store) == record.task_id

    def test_state_set_by_hand_is_found(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """In record and column, but without a term."""
        record = store.create(make()).record
        ground.run(
            "UPDATE {tasks} SET status = 'running', "
            "record = jsonb_set(record::jsonb, '{{status}}', '\"running\"')::json"
        )
        assert [(found.kind, found.fixed) for found in store.examine()] == [("half_made", False)]
        assert [(found.kind, found.fixed) for found in store.examine(fix=True)] == [("half_made", True)]
        ground.lapse(31)
        assert [found.record.key for found in store.expired()] == [record.key]


class TestQueue:
    def test_delayed_tasks_are_not_looked_through(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """They enter the queue when their time has come, in their place; also those that many ask for at once."""
        later = [store.create(make(handler_version=1, not_before=4e9 + number)).record for number in range(6)]
        urgent = store.create(make(handler_version=1, not_before=5e9, priority=5)).record
        due = store.create(make(handler_version=1)).record
        assert ground.run("SELECT count(*) FROM {tasks} WHERE deferred") == [(7,)]
        assert [next_id(store), next_id(store)] == [due.task_id, None]
        ground.bring_forward(5e9)
        taken = race(*[lambda: jobs.drain(store, lambda: None, [KIND], "w")] * 4)
        assert sorted(task_id for part in taken if isinstance(part, list) for task_id in part) == sorted(
            record.task_id for record in (*later, urgent)
        )
        assert ground.run("SELECT count(*) FROM {tasks} WHERE deferred") == [(0,)]

    def test_due_tasks_come_in_the_order_of_the_queue(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """Not in the order in which they became due."""
        first, second = make.many(2, handler_version=1, not_before=4e9)
        urgent = make(handler_version=1, not_before=5e9, priority=1)
        for record in (second, urgent, first):
            store.create(record)
        ground.bring_forward(5e9)
        order = [urgent.task_id, first.task_id, second.task_id]
        assert [next_id(store) for _ in range(3)] == order

    def test_due_tasks_are_claimable_in_their_place(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """Also while somebody else moves some of them into the queue."""
        plain = store.create(make(handler_version=1)).record
        urgent = store.create(make(handler_version=1, not_before=4e9, priority=1)).record
        assert store.claimable(task_types=[KIND], limit=2) == [plain.key]
        ground.bring_forward(5e9)
        with closing(psycopg.connect(ground.dsn)) as other:
            other.execute(ground.names.fill("SELECT FROM {tasks} WHERE deferred FOR UPDATE", {}))
            assert store.claimable(task_types=[KIND], limit=2) == [plain.key]
        assert store.claimable(task_types=[KIND], limit=2) == [urgent.key, plain.key]
        assert store.claimable(task_types=[KIND], limit=0) == []
        assert store.claimable(task_types=[], limit=2) == []

    def test_task_that_is_given_back_for_later_waits(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """A retry with a pause."""
        lease, stored = claimed_by(store, store.create(make(handler_version=1)).record.key)
        again = transitions.released(stored.record, stored.record.updated_at).changed(not_before=4e9)
        store.release(lease, again)
        assert next_id(store) is None
        ground.bring_forward(4e9)
        assert next_id(store) == lease.key.task_id

    def test_claimers_do_not_wait_for_each_other(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """However many heads of the queue are locked by others, the next one is found. [D095]"""
        records = [store.create(record).record for record in make.many(30, handler_version=1)]
        with closing(psycopg.connect(ground.dsn)) as others:
            for record in records[:20]:
                others.execute(
                    ground.names.fill("SELECT 1 FROM {tasks} WHERE task_id = %s FOR UPDATE"), [record.task_id]
                )
            assert next_id(store) == records[20].task_id
            assert next_id(store, KIND, ("other", 1)) == records[21].task_id

    def test_limit_holds_for_all_kinds_of_a_type(self, store: PostgresTaskStore, make: RecordMaker) -> None:
        """Whatever the version; two types with limits at once, named in any order by those who claim at once."""
        for task_type in ("a", "b"):
            for version in (1, 2):
                for record in make.many(3, task_type=task_type, handler_version=version):
                    store.create(record)
        kinds = [(task_type, version) for task_type in ("a", "b") for version in (1, 2)]

        def claim(order: int) -> object:
            return store.claim(
                holder="w", task_types=kinds[:: 1 - 2 * (order % 2)], max_running={"b": 2, "a": 1}
            )

        outcomes = race(*[partial(claim, number) for number in range(8)])
        taken = [outcome[1].record.task_type for outcome in outcomes if isinstance(outcome, tuple)]
        assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []
        assert sorted(taken) == ["a", "b", "b"]

    def test_lost_claim_of_a_batch_is_nobody_elses(self, store: PostgresTaskStore, make: RecordMaker) -> None:
        """Two tasks of the same name, of two owners, are two tasks."""
        records = [make("same", user_id=user_id, handler_version=1) for user_id in ("alice", "bob")]
        for record in records:
            store.create(record)
        claimed = [store.claim(holder="w", task_types=[KIND]) for _ in range(3)]
        keys: list[TaskKey] = [found[0].key for found in claimed if found is not None]
        assert sorted(keys) == [record.key for record in records]


class TestStartTimes:
    def test_behind_many_of_other_kinds(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There is no index of their kinds: who asks is to ask again when as many as were looked at have come."""
        monkeypatch.setattr(queue, "_MOST_FOR_LATER", 3)
        now = SYSTEM_CLOCK.now()
        for number in range(1, 4):
            store.create(make(task_type="other", handler_version=1, not_before=now + 1000 * number))
        store.create(make(handler_version=1, not_before=now + 5000))
        assert store.next_due_seconds(task_types=[KIND]) == pytest.approx(3000, abs=60)
        assert store.next_due_seconds(task_types=[KIND, ("other", 1)]) == pytest.approx(1000, abs=60)
        monkeypatch.setattr(queue, "_MOST_FOR_LATER", 4)
        assert store.next_due_seconds(task_types=[KIND]) == pytest.approx(5000, abs=60)
        assert store.next_due_seconds(task_types=[("reindex", 2)]) == pytest.approx(5000, abs=60)
        monkeypatch.undo()
        assert store.next_due_seconds(task_types=[("reindex", 2)]) is None


class TestKinds:
    def test_newer_task_of_the_kind_is_in_no_crashed_ones_way(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """The unique index is for those who are created alone; nothing that is given back ever meets it. [D061]"""
        crashed = store.create_if_no_active(make(handler_version=1))
        assert isinstance(crashed, Stored)
        claimed_by(store, crashed.record.key)
        newer = store.create(make(handler_version=1)).record
        ground.lapse(31)
        (expired,) = store.expired()
        lease, stored = taken_over(store, expired)
        store.release(lease, transitions.released(stored.record, stored.record.updated_at))
        assert {next_id(store), next_id(store)} == {crashed.record.task_id, newer.task_id}

    def test_task_that_changes_its_kind_meets_nobody(
        self, ground: Ground, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """Two that were created alone, of two kinds; one becomes of the other's kind, and back again. [D060]"""
        one, other = (store.create_if_no_active(make(resource_id=name)) for name in ("r", "s"))
        assert one is not None
        assert other is not None
        moved = store.update(one.record.changed(resource_id="s"), expected=None)
        back = store.update(moved.record.changed(resource_id="r"), expected=None)
        assert store.create_if_no_active(make(resource_id="r")) is None
        assert store.create_if_no_active(make(resource_id="s")) is None
        assert ground.run("SELECT count(*) FROM {tasks} WHERE alone") == [(1,)]
        store.update(back.record.changed(status=TaskStatus.COMPLETED), expected=None)
        assert store.create_if_no_active(make(resource_id="r")) is not None

    def test_state_of_a_newer_version_that_came_back_to_life_meets_nobody(
        self, store: PostgresTaskStore, make: RecordMaker
    ) -> None:
        """It had ended, in a word of its own; another one was created; now it goes on."""
        first = store.create_if_no_active(make())
        assert first is not None
        ended = first.record.changed(status=TaskStatus.parse("archived"), completed_at=1.0)
        store.update(ended, expected=None)
        second = store.create_if_no_active(make())
        assert second is not None
        revived = store.update(ended.changed(status=TaskStatus.PENDING), expected=None)
        assert revived.record.status is TaskStatus.PENDING
        assert store.create_if_no_active(make()) is None
