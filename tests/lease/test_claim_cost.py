"""What a creation, a claim, an end and an idle look cost, in file operations."""

import pytest

from stores.files.lease import work
from tests.lease.support import clock_of, control
from tests.lease.waiting import (
    KIND,
    MANY,
    CountingOps,
    bucket_of,
    claim,
    end,
    fill,
    of_one_bucket,
    opened,
    run,
    skip_unless_links_count,
    take,
)


@pytest.fixture(autouse=True)
def _links_are_counted(tmp_path):
    skip_unless_links_count(tmp_path)


class TestCosts:
    def test_steady_claims_and_ends(self, tmp_path, make):
        """In a burst: no listing of the bucket, no directory made, one file for each commit."""
        ops = CountingOps()
        store = opened(tmp_path, ops)
        fill(store, make)
        run(store)
        ops.restart()
        claimed = claim(store)
        assert claimed is not None
        assert sum(ops.counts.values()) <= 20, ops.counts
        assert (ops.counts["listdir"], ops.counts["mkdir"]) == (4, 0), ops.listed
        ops.restart()
        end(store, claimed)
        assert sum(ops.counts.values()) <= 7, ops.counts
        assert (ops.counts["rmdir"], ops.counts["listdir"]) == (1, 0)

    def test_creation(self, tmp_path, make):
        """One file and one directory, which is what costs."""
        ops = CountingOps()
        store = opened(tmp_path, ops)
        first, second = of_one_bucket(make, 2)
        store.create(first)
        ops.restart()
        store.create(second)
        made = {"open": 1, "write": 1, "mkdir": 1, "link": 2, "rename": 1, "unlink": 1}
        assert dict(ops.counts) == made | {"stat": 1}

    def test_bucket_is_listed_once_for_all_claims(self, tmp_path, make):
        ops = CountingOps()
        store = opened(tmp_path, ops)
        expected = fill(store, make)
        bucket = str(bucket_of(tmp_path))
        ops.restart()
        assert [take(store) for _ in range(MANY)] == expected
        # Once at first, once when all that was remembered is used up.
        assert ops.listed.count(bucket) <= 2
        assert take(store) is None

    def test_idle_look(self, tmp_path, make):
        """When nothing waits, nor did a while ago: what may have come due, and the directory of the kind."""
        ops = CountingOps()
        store = opened(tmp_path, ops)
        fill(store, make, 3)
        while take(store) is not None:
            pass
        for _ in range(3):  # each removes one level of directories that are not needed any more
            assert take(store) is None
        clock_of(store).stepped += 1.0
        ops.restart()
        assert take(store) is None
        assert dict(ops.counts) == {"listdir": 2}, ops.listed

    def test_who_could_be_next_is_read_off_names(self, tmp_path, make):
        """A few short listings, of which that of the bucket is used by the next claim; no record is read."""
        ops = CountingOps()
        store = opened(tmp_path, ops)
        expected = fill(store, make)
        for seconds in range(2, 6):  # others, of which nothing is to be listed
            at = make.clock.now() // 1 + 1000 + seconds
            store.create(make(handler_version=1, created_at=at, updated_at=at))
            store.create(make(handler_version=1, created_at=at, updated_at=at, not_before=9e9))
        ops.restart()
        named = [key.task_id for key in store.claimable(task_types=KIND, limit=2)]
        assert named == expected[:2]
        assert set(ops.counts) == {"listdir", "lstat"}, ops.counts
        assert (ops.counts["listdir"], ops.counts["lstat"]) == (6, 1), ops.listed
        bucket = ops.listed[-1]
        ops.restart()
        assert take(store) == expected[0]
        assert bucket not in ops.listed

    def test_who_asks_in_between_costs_claims_nothing(self, tmp_path, make):
        """Nor changes whose turn it is: what is remembered of a bucket serves both."""
        ops = CountingOps()
        store = opened(tmp_path, ops)
        expected = fill(store, make)
        bucket = str(bucket_of(tmp_path))
        ops.restart()
        for number, task_id in enumerate(expected):
            named = [key.task_id for key in store.claimable(task_types=KIND, limit=2)]
            assert named == expected[number : number + 2]
            assert take(store) == task_id
        assert ops.listed.count(bucket) <= 4
        assert store.claimable(task_types=KIND, limit=2) == []

    def test_kinds_that_are_left_out_are_not_read(self, tmp_path, make):
        """Nor are their buckets listed: a worker that starts asks for what it has no handler for."""
        ops = CountingOps()
        store = opened(tmp_path, ops)
        fill(store, make)
        ops.restart()
        assert store.unclaimed(except_types=KIND, handled=True, limit=MANY) == []
        assert set(ops.counts) == {"listdir"}
        assert [path for path in ops.listed if "reindex" in path] == []
        other = make(task_type="other", handler_version=1)
        store.create(other)
        ops.restart()
        (found,) = store.unclaimed(except_types=KIND, handled=True, limit=MANY)
        assert found.record.task_id == other.task_id
        assert (ops.counts["open"], ops.counts["read"]) == (1, 1)

    def test_few_for_later_are_read_in_vain(self, tmp_path, make, monkeypatch):
        """Where start times are waited for, only a record tells the kind."""
        monkeypatch.setattr(work, "_MOST_READ_IN_VAIN", 3)
        ops = CountingOps()
        store = opened(tmp_path, ops)
        fill(store, make, not_before=9e9)
        fields = {"handler_version": 2, "created_at": make.clock.now() + 2000}
        store.create(make(not_before=9e9, **fields))
        seen = make(**fields)
        store.create(seen)
        ops.restart()
        asked = store.unclaimed(except_types=KIND, handled=True, limit=MANY)
        assert [found.record.task_id for found in asked] == [seen.task_id]
        assert ops.counts["open"] == 4

    def test_tasks_of_another_day_are_not_walked_through(self, tmp_path, make):
        ops = CountingOps()
        store = opened(tmp_path, ops)
        now = clock_of(store).now()
        for days in range(1, 4):
            store.create(make(handler_version=1, not_before=now + days * 86_400.0))
        clock_of(store).stepped += 1.0
        ops.restart()
        assert take(store) is None
        assert [path for path in ops.listed if "/later" in path] == [str(control(tmp_path) / "later")]

    def test_next_start_time_is_asked_in_a_few_listings(self, tmp_path, make):
        """However many wait for theirs, and however many have another one."""
        ops = CountingOps()
        store = opened(tmp_path, ops)
        now = clock_of(store).now()
        for days in range(1, 4):
            for number in range(20):
                store.create(make(handler_version=1, not_before=now + days * 86_400.0 + number % 2))
        ops.restart()
        assert store.next_due_seconds(task_types=KIND) == pytest.approx(86_400, abs=60)
        assert dict(ops.counts) == {"listdir": 3}, ops.listed

    def test_start_times_are_not_looked_at_twice_in_an_instant(self, tmp_path, make):
        ops = CountingOps()
        store = opened(tmp_path, ops)
        fill(store, make, 3)
        later = str(control(tmp_path) / "later")
        assert take(store) is not None
        ops.restart()
        assert take(store) is not None
        assert later not in ops.listed
        clock_of(store).stepped += 0.5
        assert take(store) is not None
        assert later in ops.listed
