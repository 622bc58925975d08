"""Waiting tasks: found in order without listing the backlog."""

import os

import pytest

from task_tracker import transitions
from task_tracker.records import TaskStatus
from tests.lease.support import clock_of, control, entries, open_store, ops_with

KIND = [("reindex", 1)]


def take(store, kinds=KIND, **options):
    found = store.claim(holder="worker", task_types=kinds, **options)
    return None if found is None else found[1].record.task_id


class TestOrder:
    def test_oldest_first_within_a_priority(self, store, make):
        plain = make.many(3, handler_version=1)
        urgent = make.many(2, handler_version=1, priority=5)
        late = make(handler_version=1, priority=-1)
        for record in (late, *reversed(plain), *reversed(urgent)):
            store.create(record)
        expected = [record.task_id for record in (*urgent, *plain, late)]
        assert [take(store) for _ in range(7)] == [*expected, None]

    def test_types_are_merged_by_priority_and_age(self, store, make):
        records = [
            make(handler_version=1),
            make(handler_version=2, task_type="ingest"),
            make(handler_version=1, priority=1),
            make(handler_version=3),
        ]
        for record in records:
            store.create(record)
        kinds = [("reindex", 1), ("ingest", 2)]
        expected = [records[2].task_id, records[0].task_id, records[1].task_id, None]
        assert [take(store, kinds) for _ in range(4)] == expected

    def test_tracker_tasks_are_not_for_workers(self, store, make):
        store.create(make())
        assert take(store) is None

    def test_long_type_is_found(self, store, make):
        record = make(task_type="t" * 300, handler_version=1)
        store.create(record)
        assert take(store, [("t" * 300, 1)]) == record.task_id

    def test_released_task_is_claimed_again_in_its_old_place(self, store, make):
        first, second = make.many(2, handler_version=1)
        store.create(first)
        store.create(second)
        found = store.claim(holder="w", task_types=KIND)
        assert found is not None
        store.release(found[0], transitions.released(found[1].record, make.clock.now()))
        assert [take(store), take(store)] == [first.task_id, second.task_id]


class TestStartTime:
    def test_next_one_is_read_off_names(self, store, make):
        """Whatever kind it is of; tenths of a second are full when they are over."""
        now = clock_of(store).now()
        for seconds in (200, 100.02, 300):
            store.create(make(handler_version=1, not_before=now // 1 + seconds))
        found = store.next_due_seconds(task_types=[("another", 7)])
        assert found == pytest.approx(now // 1 + 100.1 - clock_of(store).now(), abs=0.01)
        clock_of(store).stepped += 102
        found = store.next_due_seconds(task_types=KIND)
        assert found == pytest.approx(now // 1 + 200 - clock_of(store).now(), abs=0.01)

    def test_what_comes_just_before_the_question_is_found_just_after_it(self, store, make):
        """Though a claim has looked at start times an instant ago."""
        now = clock_of(store).now()
        record = make(handler_version=1, not_before=now + 100, created_at=now, updated_at=now)
        store.create(record)
        clock_of(store).stepped += 101
        assert store._work._queue.is_time_to_look()
        assert take(store) is None
        assert store.next_due_seconds(task_types=KIND) is None
        assert take(store) == record.task_id

    def test_what_is_no_bucket_has_no_start_time(self, tmp_path, store, make):
        (control(tmp_path) / "later" / "foreign" / "hand" / "made").mkdir(parents=True)
        assert store.next_due_seconds(task_types=KIND) is None

    def test_task_waits_until_its_time_has_come(self, tmp_path, store, make):
        now = clock_of(store).now()
        record = make(handler_version=1, not_before=now + 100, created_at=now, updated_at=now)
        store.create(record)
        assert entries(tmp_path) == ["later@0"]
        assert take(store) is None
        clock_of(store).stepped += 102
        assert take(store) == record.task_id

    def test_it_is_claimable_then(self, tmp_path, store, make):
        """Whoever asks moves it to where workers look, as whoever claims does."""
        now = clock_of(store).now()
        record = make(handler_version=1, not_before=now + 100, created_at=now, updated_at=now)
        store.create(record)
        assert store.claimable(task_types=KIND, limit=1) == []
        clock_of(store).stepped += 102
        assert store.claimable(task_types=KIND, limit=1) == [record.key]
        assert entries(tmp_path) == ["ready@0"]

    def test_pass_of_the_reconciler_moves_it_on(self, tmp_path, store, make):
        now = clock_of(store).now()
        store.create(make(handler_version=1, not_before=now + 100, created_at=now, updated_at=now))
        store.recover()
        clock_of(store).stepped += 102
        assert store.recover() == 1
        assert entries(tmp_path) == ["ready@0"]

    def test_time_that_is_past_is_no_reason_to_wait(self, tmp_path, store, make):
        store.create(make(handler_version=1, not_before=5.0))
        assert entries(tmp_path) == ["ready@0"]

    def test_key_is_claimed_whatever_the_time(self, store, make):
        record = make(handler_version=1, not_before=clock_of(store).now() + 100)
        store.create(record)
        assert store.claim(record.key, holder="me") is not None


class TestBuckets:
    def test_next_task_is_found_without_listing_the_backlog(self, tmp_path, make):
        """What is listed does not grow with what waits."""
        counted: list[str] = []

        def listdir(path: str) -> list[str]:
            names = os.listdir(path)
            counted.extend(names)
            return names

        store = open_store(tmp_path, ops_with(listdir=listdir))
        costs = []
        for _ in range(2):
            for record in make.many(60, handler_version=1):
                store.create(record)
            counted.clear()
            assert take(store) is not None
            costs.append(len([name for name in counted if "@" in name and name.partition(".")[0].isdigit()]))
        assert costs[0] == costs[1] == 1, "a second has one task here, and no other second is looked into"

    def test_empty_buckets_are_removed(self, tmp_path, store, make):
        store.create(make(handler_version=1))
        assert take(store) is not None
        for _ in range(3):
            assert take(store) is None
        assert list((control(tmp_path) / "ready" / "reindex+v1").iterdir()) == []

    def test_bucket_that_vanishes_is_made_again(self, tmp_path, make):
        """Whoever empties a bucket removes it, and somebody else may just be about to fill it."""
        removed: list[str] = []

        def rename(source: str, target: str) -> None:
            bucket = os.path.dirname(target)
            if "/ready/" in target and len(removed) < 3 and os.path.isdir(bucket):
                os.rmdir(bucket)
                removed.append(bucket)
            os.rename(source, target)

        store = open_store(tmp_path, ops_with(rename=rename))
        record = make(handler_version=1)
        store.create(record)
        assert removed
        assert take(store) == record.task_id

    def test_bucket_that_vanishes_while_it_is_made_is_made_again(self, tmp_path, make):
        """What is above it was empty until now, too."""
        removed: list[str] = []

        def mkdir(path: str, mode: int = 0o777) -> None:
            above = os.path.dirname(path)
            if "/ready/" in above and len(removed) < 3 and not os.listdir(above):
                os.rmdir(above)
                removed.append(above)
            os.mkdir(path, mode)

        store = open_store(tmp_path, ops_with(mkdir=mkdir))
        record = make(handler_version=1)
        store.create(record)
        assert len(removed) == 3
        assert take(store) == record.task_id


def test_task_that_waits_in_the_place_of_another_kind_is_of_its_own(tmp_path, store, make):
    """Its record says what it is; a directory that was renamed by hand, say, does not."""
    store.create(make(handler_version=1))
    ready = control(tmp_path) / "ready"
    (ready / "reindex+v1").rename(ready / "other+v1")
    assert store.unclaimed(except_types=KIND, limit=9) == []
    assert len(store.unclaimed(except_types=[("other", 2)], limit=9)) == 1


class TestLimits:
    @pytest.mark.parametrize("limit", [0, 1, 2])
    def test_never_more_than_max_running(self, store, make, limit):
        for record in make.many(4, handler_version=1):
            store.create(record)
        taken = [take(store, max_running={"reindex": limit}) for _ in range(4)]
        assert len([task_id for task_id in taken if task_id is not None]) == limit

    def test_slot_is_free_again_after_an_end(self, store, make):
        for record in make.many(2, handler_version=1):
            store.create(record)
        first = store.claim(holder="w", task_types=KIND, max_running={"reindex": 1})
        assert first is not None
        assert take(store, max_running={"reindex": 1}) is None
        store.end(first[0], transitions.failed(first[1].record, 1.0, "no"))
        assert take(store, max_running={"reindex": 1}) is not None

    def test_other_types_go_on(self, store, make):
        store.create(make(handler_version=1))
        store.create(make(handler_version=1, task_type="ingest"))
        kinds = [*KIND, ("ingest", 1)]
        assert take(store, kinds, max_running={"reindex": 0}) is not None
        assert take(store, kinds, max_running={"reindex": 0}) is None


def test_waiting_and_running_are_counted(store, make):
    for record in (*make.many(3, handler_version=1), make()):
        store.create(record)
    assert take(store) is not None
    load = store.workload()
    assert (load.waiting, load.running) == (3, 1)
    waiting = store.unclaimed(limit=10)
    assert [stored.record.status for stored in waiting] == [TaskStatus.PENDING] * 3
    assert len(store.unclaimed(task_types=KIND, limit=10)) == 2
    assert len(store.unclaimed(limit=1)) == 1
