"""What is remembered between claims changes no order and hides no task."""

import os
import shutil
from types import SimpleNamespace

import pytest

from stores.files.lease import queue
from task_tracker import transitions
from tests.lease.support import clock_of, control, ops_with
from tests.lease.waiting import (
    MANY,
    bucket_of,
    claim,
    fill,
    opened,
    skip_unless_links_count,
    take,
)


@pytest.fixture(autouse=True)
def _links_are_counted(tmp_path):
    skip_unless_links_count(tmp_path)


class TestOrder:
    @pytest.fixture
    def store(self, tmp_path, make):
        """A store that remembers a bucket of which it has claimed one task."""
        made = opened(tmp_path)
        made.expected = fill(made, make)
        assert take(made) == made.expected.pop(0)
        return made

    def test_higher_priority_of_another_instance_comes_first(self, tmp_path, make, store):
        urgent = make(handler_version=1, priority=1)
        opened(tmp_path).create(urgent)
        assert [take(store), take(store)] == [urgent.task_id, store.expected[0]]

    def test_older_one_in_another_bucket_comes_first(self, tmp_path, make, store):
        at = make.clock.now() // 1 + 500
        older = make(handler_version=1, created_at=at, updated_at=at)
        opened(tmp_path).create(older)
        assert [take(store), take(store)] == [older.task_id, store.expected[0]]

    def test_older_one_in_the_same_bucket_comes_first(self, tmp_path, make, store):
        """Somebody gives back what he had claimed: it belongs before what is remembered."""
        other = opened(tmp_path)
        claimed = claim(other)
        assert claimed is not None
        assert claimed[1].record.task_id == store.expected[0]
        assert take(store) == store.expected[1]
        other.release(claimed[0], transitions.released(claimed[1].record, make.clock.now()))
        assert [take(store), take(store)] == [store.expected[0], store.expected[2]]

    def test_younger_one_in_the_same_bucket_is_found_in_its_turn(self, tmp_path, make, store):
        at = make.clock.now() // 1 + 1000.01
        younger = make(handler_version=1, created_at=at, updated_at=at)
        bucket = bucket_of(tmp_path)
        opened(tmp_path).create(younger)
        moved = next((control(tmp_path) / "ready").rglob(f"*{younger.task_id}*"))
        moved.rename(bucket / moved.name)  # wherever the clock of its test puts it
        assert [take(store) for _ in range(MANY + 1)] == [*store.expected, younger.task_id, None]

    def test_what_others_take_is_passed_over(self, tmp_path, make, store):
        """Each is given out once, whoever remembers it. [D095]"""
        other = opened(tmp_path)
        taken = []
        for _ in range(MANY):
            taken += [take(store), take(other), take(other)]
        assert [task_id for task_id in taken if task_id is not None] == store.expected

    def test_what_cannot_be_noticed_waits_for_a_tenth_of_a_second(self, tmp_path, make, store):
        """One in, one out, within one tick of the file server's clock: the directory looks as before."""
        other, bucket = opened(tmp_path), bucket_of(tmp_path)
        first = claim(other)
        assert first is not None
        assert take(store) == store.expected[1]
        before = bucket.stat().st_mtime_ns
        other.release(first[0], transitions.released(first[1].record, make.clock.now()))
        (youngest,) = bucket.glob(f"*{store.expected[-1]}*")
        youngest.rename(tmp_path / youngest.name)
        os.utime(bucket, ns=(before, before))
        assert take(store) == store.expected[2], "it was not noticed"
        clock_of(store).ahead += 0.11  # more than it takes, however that is rounded
        assert take(store) == store.expected[0]

    def test_bucket_counts_as_empty_only_once_it_was_listed(self, tmp_path, make, store):
        """All that is remembered was taken by others, who look like nobody; one that is not remembered waits."""
        other, bucket = opened(tmp_path), bucket_of(tmp_path)
        before = bucket.stat()
        first = claim(other)
        assert first is not None
        for path in sorted(bucket.iterdir()):
            path.rename(tmp_path / path.name)
        other.release(first[0], transitions.released(first[1].record, make.clock.now()))
        for number in range(before.st_nlink - 3):
            (bucket / f"foreign-{number}").mkdir()
        os.utime(bucket, ns=(before.st_mtime_ns, before.st_mtime_ns))
        assert take(store) == store.expected[0]

    def test_removed_bucket_is_no_trouble(self, tmp_path, make, store):
        other = opened(tmp_path)
        while take(other) is not None:
            pass
        shutil.rmtree(control(tmp_path) / "ready" / "reindex+v1")
        assert take(store) is None
        at = make.clock.now() // 1 + 2000
        record = make(handler_version=1, created_at=at, updated_at=at)
        other.create(record)
        assert take(store) == record.task_id

    def test_long_bucket_is_remembered_in_part(self, tmp_path, make, monkeypatch):
        monkeypatch.setattr(queue, "_MOST_NAMES", 5)
        store = opened(tmp_path / "long")
        expected = fill(store, make)
        assert [take(store) for _ in range(MANY + 1)] == [*expected, None]

    def test_few_buckets_are_remembered(self, tmp_path, make, monkeypatch):
        monkeypatch.setattr(queue, "_MOST_BUCKETS", 2)
        store = opened(tmp_path / "wide")
        types = [f"type-{number}" for number in range(4)]
        for task_type in types:
            fill(store, make, 9, task_type=task_type)
        kinds = [(task_type, 1) for task_type in types]
        taken = [take(store, task_types=kinds) for _ in range(37)]
        assert len({task_id for task_id in taken if task_id is not None}) == 36
        assert taken[-1] is None
        assert len(store._work._queue._buckets) <= 2

    def test_links_that_count_nothing_are_not_believed(self, tmp_path, make):
        """As on btrfs: each claim lists."""

        def lstat(path):
            found = os.lstat(path)
            return SimpleNamespace(
                st_mtime_ns=found.st_mtime_ns, st_ino=found.st_ino, st_mode=found.st_mode, st_nlink=1
            )

        store = opened(tmp_path / "btrfs", ops_with(lstat=lstat))
        expected = fill(store, make)
        assert [take(store) for _ in range(MANY + 1)] == [*expected, None]
        assert not store._work._queue._buckets
