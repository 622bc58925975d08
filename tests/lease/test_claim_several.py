"""Several tasks claimed in one call: each as if it were alone, for less than each alone costs."""

import os

import pytest

from task_tracker import transitions
from task_tracker.errors import StoreUnavailable
from task_tracker.records import TaskStatus
from tests.lease.support import clock_of, entries, leftovers, open_store, ops_with
from tests.lease.waiting import (
    KIND,
    MANY,
    CountingOps,
    bucket_of,
    end,
    fill,
    opened,
    skip_unless_links_count,
    take,
)


def several(store, most, kinds=KIND, **options):
    return store.claim_several(most, holder="w", task_types=kinds, **options)


def ids(claimed):
    return [lease.key.task_id for lease, _ in claimed]


def failing(name, when, number=1):
    """Return a system call that fails from the ``number``th time on that ``when`` says so of its paths."""
    met = []

    def call(*arguments, **options):
        if when(*arguments):
            met.append(arguments)
            if len(met) >= number:
                raise OSError(5, os.strerror(5), arguments[0])
        return getattr(os, name)(*arguments, **options)

    return {name: call}


def is_grab(source, target):
    return "/ready/" in source and target.endswith("~")


class TestClaims:
    def test_each_has_a_lease_of_its_own(self, store, make):
        records = [make(handler_version=1, priority=priority) for priority in (1, 3, 2)]
        for record in records:
            store.create(record)
        claimed = several(store, 2)
        assert ids(claimed) == [records[1].task_id, records[2].task_id]
        assert len({lease.token for lease, _ in claimed}) == 2
        for lease, stored in claimed:
            record = stored.record
            assert (lease.epoch, lease.holder, lease.attempt_count) == (1, "w", 1)
            assert record.status is TaskStatus.RUNNING
            assert record.started_at is not None
            assert store.get(lease.key).record == record
            store.renew(lease)
        first, second = claimed
        end(store, first)
        store.release(second[0], transitions.released(second[1].record, make.clock.now()))
        assert ids(several(store, 5)) == [records[2].task_id, records[0].task_id]
        assert several(store, 5) == []

    def test_none_is_asked_for(self, tmp_path, store, make):
        store.create(make(handler_version=1))
        assert several(store, 0) == []
        assert entries(tmp_path) == ["ready@0"]

    def test_limit_is_kept(self, store, make):
        for record in make.many(4, handler_version=1):
            store.create(record)
        assert len(several(store, 4, max_running={"reindex": 2})) == 1
        assert len(several(store, 4, max_running={"reindex": 2})) == 1
        assert several(store, 4, max_running={"reindex": 2}) == []
        assert len(several(store, 4, max_running={"ingest": 2})) == 2

    def test_kinds_are_merged(self, store, make):
        records = [make(handler_version=1, task_type=kind) for kind in ("reindex", "ingest", "reindex")]
        for record in records:
            store.create(record)
        assert ids(several(store, 3, [*KIND, ("ingest", 1)])) == [record.task_id for record in records]

    def test_what_has_come_due_is_among_them(self, store, make):
        late = make(handler_version=1, not_before=clock_of(store).now() + 100)
        store.create(late)
        assert several(store, 2) == []
        clock_of(store).stepped += 102
        assert ids(several(store, 2)) == [late.task_id]

    def test_cancelled_one_is_not(self, tmp_path, store, make):
        """Its holder gave it back while somebody asked for its end."""
        first, second = make.many(2, handler_version=1)
        store.create(first)
        store.create(second)
        (waiting,) = (path for path in tmp_path.rglob(f"*{first.task_id}*") if path.is_dir())
        (waiting / "cancel").touch()
        assert ids(several(store, 2)) == [second.task_id]
        assert store.get(first.key).record.status is TaskStatus.CANCELLED
        assert entries(tmp_path) == ["leases@1"]

    def test_no_more_is_taken_from_others_at_once_than_is_soon_begun(self, store, make):
        for record in make.many(20, handler_version=1):
            store.create(record)
        assert [len(several(store, 100)) for _ in range(4)] == [8, 8, 4, 0]


class TestPauses:
    def test_paused_type_is_left_alone(self, tmp_path, store, make):
        paused, other = make(handler_version=1), make(handler_version=1, task_type="ingest")
        store.create(paused)
        store.create(other)
        store.pause("reindex")
        assert ids(several(store, 2, [*KIND, ("ingest", 1)])) == [other.task_id]
        assert entries(tmp_path) == ["leases@1", "ready@1"]
        store.create(make(handler_version=1))
        assert several(store, 2) == []
        assert entries(tmp_path) == ["leases@1", "ready@0", "ready@1"], "what was paused is asked about first"

    def test_claim_under_way_does_not_get_what_is_paused_meanwhile(self, tmp_path, make):
        """It has looked at everything already, and has taken some. [D154]"""
        other, grabs = open_store(tmp_path), []

        def rename(source, target):
            if is_grab(source, target):
                grabs.append(source)
                if len(grabs) == 2:
                    other.pause("reindex")
            os.rename(source, target)

        store = open_store(tmp_path, ops_with(rename=rename))
        records = [make(handler_version=1, task_type=kind) for kind in ("reindex", "reindex", "ingest")]
        for record in records:
            store.create(record)
        assert ids(several(store, 3, [*KIND, ("ingest", 1)])) == [records[2].task_id]
        assert entries(tmp_path) == ["leases@1", "ready@1", "ready@1"]
        other.unpause("reindex")
        assert ids(several(other, 3)) == [record.task_id for record in records[:2]]

    def test_nothing_but_paused_ones(self, tmp_path, make):
        other = open_store(tmp_path)

        def rename(source, target):
            if is_grab(source, target):
                other.pause("reindex")
            os.rename(source, target)

        store = open_store(tmp_path, ops_with(rename=rename))
        for record in make.many(3, handler_version=1):
            store.create(record)
        assert several(store, 2) == []
        assert entries(tmp_path) == ["ready@0", "ready@1", "ready@1"]


class TestTrouble:
    def test_what_was_grabbed_before_it_is_claimed(self, tmp_path, make):
        store = open_store(tmp_path, ops_with(**failing("rename", is_grab, 3)))
        for record in make.many(4, handler_version=1):
            store.create(record)
        assert len(several(store, 4)) == 2
        assert entries(tmp_path) == ["leases@1", "leases@1", "ready@0", "ready@0"]

    def test_what_was_begun_before_it_counts_and_the_rest_waits(self, tmp_path, make):
        store = open_store(tmp_path, ops_with(**failing("open", lambda path, *_: "/stage-" in path, 2)))
        records = make.many(4, handler_version=1)
        for record in records:
            store.create(record)
        ((lease, _),) = several(store, 4)
        assert lease.key == records[0].key
        assert entries(tmp_path) == ["leases@1", "ready@1", "ready@1", "ready@1"]
        assert ids(several(open_store(tmp_path), 4)) == [record.task_id for record in records[1:]]

    def test_nothing_is_held_after_an_error(self, tmp_path, make):
        store = open_store(tmp_path, ops_with(**failing("listdir", lambda path: path.endswith("/paused"))))
        for record in make.many(3, handler_version=1):
            store.create(record)
        with pytest.raises(StoreUnavailable, match="paused"):
            several(store, 3)
        assert entries(tmp_path) == ["ready@1", "ready@1", "ready@1"]

    def test_first_grab_that_fails_is_told(self, tmp_path, make):
        store = open_store(tmp_path, ops_with(**failing("rename", is_grab)))
        store.create(make(handler_version=1))
        with pytest.raises(StoreUnavailable):
            several(store, 3)

    def test_interruption_leaves_nothing_held(self, tmp_path, make):
        """What is no error ends the call, whatever was begun."""

        def interrupt(path, *_, **__):
            if path.endswith("/paused"):
                raise KeyboardInterrupt
            return os.listdir(path)

        store = open_store(tmp_path, ops_with(listdir=interrupt))
        for record in make.many(2, handler_version=1):
            store.create(record)
        with pytest.raises(KeyboardInterrupt):
            several(store, 2)
        assert entries(tmp_path) == ["ready@1", "ready@1"]


class TestCosts:
    @pytest.fixture(autouse=True)
    def _links_are_counted(self, tmp_path):
        skip_unless_links_count(tmp_path)

    def test_queue_and_pauses_are_asked_once(self, tmp_path, make):
        ops = CountingOps()
        store = opened(tmp_path, ops)
        fill(store, make)
        bucket = str(bucket_of(tmp_path))
        for claimed in several(store, 4):
            end(store, claimed)
        ops.restart()
        claimed = several(store, 4)
        assert len(claimed) == 4
        assert ops.counts["listdir"] == 3 + 1, "to the bucket, what is paused"
        assert ops.listed.count(bucket) == 0
        assert (ops.counts["mkdir"], ops.counts["lstat"]) == (0, 1)
        for one in claimed:
            end(store, one)
        assert leftovers(tmp_path)

    def test_bucket_is_listed_once_for_all(self, tmp_path, make):
        ops = CountingOps()
        store = opened(tmp_path, ops)
        expected = fill(store, make)
        bucket = str(bucket_of(tmp_path))
        ops.restart()
        found = []
        while claimed := several(store, 3):
            found += ids(claimed)
        assert found == expected
        assert ops.listed.count(bucket) <= 3

    def test_older_one_is_seen_between_two_calls(self, tmp_path, make):
        store = opened(tmp_path)
        expected = fill(store, make)
        assert ids(several(store, 3)) == expected[:3]
        urgent = make(handler_version=1, priority=1)
        opened(tmp_path).create(urgent)
        assert ids(several(store, 3)) == [urgent.task_id, *expected[3:5]]

    def test_what_others_take_is_passed_over(self, tmp_path, make):
        """Each is given out once, whoever remembers it. [D095]"""
        store, other = opened(tmp_path), opened(tmp_path)
        expected = fill(store, make)
        taken = []
        for _ in range(MANY):
            taken += [*ids(several(store, 3)), take(other), *ids(several(other, 2))]
        assert [task_id for task_id in taken if task_id is not None] == expected
