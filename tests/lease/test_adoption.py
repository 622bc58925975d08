"""Directories that somebody else wrote, and records that lost their entry."""

import shutil

import pytest

from stores.files.persistent import PersistentTaskStore
from task_tracker import transitions
from task_tracker.errors import CapabilityMissing, LeaseHeld, TaskExists
from task_tracker.records import TaskStatus
from task_tracker.testing.answers import claimed_by, fetch, said
from tests.lease.support import age, control, entries, expired_after, leftovers, open_store


@pytest.fixture
def written(tmp_path, make):
    """Return a pending, a running and a completed record that the persistent store wrote."""
    old = PersistentTaskStore(tmp_path, durability="none")
    records = [
        make("waits", resource_id="a"),
        make("runs", resource_id="b", status=TaskStatus.RUNNING),
        make("ended", resource_id="c", status=TaskStatus.COMPLETED),
    ]
    for record in records:
        old.create(record)
    return records


class TestDirectoryOfThePersistentStore:
    def test_records_are_there_at_once(self, tmp_path, written):
        store = open_store(tmp_path)
        for record in written:
            assert fetch(store, record.key).record == record

    def test_waiting_task_can_be_claimed(self, tmp_path, written):
        store = open_store(tmp_path)
        lease, stored = claimed_by(store, written[0].key)
        assert (lease.epoch, stored.record.status) == (1, TaskStatus.RUNNING)
        assert entries(tmp_path) == ["leases@1"]
        store.end(lease, transitions.completed(stored.record, 1.0, b"1"))
        assert [name for name in leftovers(tmp_path) if not name.startswith("adopt/")] == []

    def test_first_pass_adopts_all_that_have_not_ended(self, tmp_path, written):
        store = open_store(tmp_path)
        assert store.recover() == 2
        assert entries(tmp_path) == ["idle@0", "leases@0"]
        assert store.recover() == 0
        assert open_store(tmp_path).recover() == 0

    def test_running_task_of_a_dead_server_expires(self, tmp_path, written):
        """Nobody holds it: no lease counts as orphaned. [D010] [D001]"""
        store = open_store(tmp_path)
        store.recover()
        with pytest.raises(LeaseHeld):
            store.claim(written[1].key, holder="me")
        (expired,) = expired_after(store, tmp_path)
        assert expired.record.task_id == "runs"
        taken = store.take_over(expired, holder="me", count_attempt=False)
        assert taken is not None
        lease, stored = taken
        ended = store.end(lease, transitions.abandoned(stored.record, 5.0))
        assert (ended.record.status, ended.record.error_code) == (TaskStatus.FAILED, "holder_lost")
        assert store.expired() == []

    def test_running_task_may_be_ended_by_anybody_before_that(self, tmp_path, written):
        store = open_store(tmp_path)
        ended = store.update(transitions.completed(written[1], 5.0, b"1"), expected=None)
        assert ended.record.status is TaskStatus.COMPLETED
        assert entries(tmp_path) == []

    def test_keys_of_adopted_tasks_are_taken(self, tmp_path, written, make):
        """Before they are adopted and afterwards. [D059]"""
        store = open_store(tmp_path)
        for _ in range(2):
            assert store.create_if_no_active(make(resource_id="a")) is None
            assert store.create_if_no_active(make(resource_id="b")) is None
            store.recover()
        assert store.create_if_no_active(make(resource_id="c")) is not None

    def test_many_adopters_leave_one_entry(self, tmp_path, written):
        stores = [open_store(tmp_path) for _ in range(3)]
        record = fetch(stores[0], written[0].key).record
        assert sorted(bool(store._births.adopt(record)) for store in stores) == [False, False, True]
        assert entries(tmp_path) == ["idle@0"]

    def test_id_of_an_old_record_stays_taken(self, tmp_path, written, make):
        store = open_store(tmp_path)
        with pytest.raises(TaskExists):
            store.create(make("waits"))

    def test_persistent_store_reads_on_and_writes_no_more(self, tmp_path, written, make):
        old = PersistentTaskStore(tmp_path)
        store = open_store(tmp_path)
        assert fetch(old, written[0].key).record == written[0]
        for write in (
            lambda: old.create(make()),
            lambda: old.update(written[0], expected=None),
            lambda: old.delete(written[2].key),
        ):
            with pytest.raises(CapabilityMissing, match="lease"):
                write()
        claimed_by(store, written[0].key)
        assert said(fetch(old, written[0].key).record).status is TaskStatus.RUNNING


class TestRecordThatLostItsEntry:
    def lose(self, root):
        for place in ("idle", "ready", "leases"):
            for shard in (control(root) / place).iterdir():
                for entry in shard.iterdir():
                    shutil.rmtree(entry)

    def test_waiting_one_is_claimed_all_the_same(self, tmp_path, store, make):
        """As after a power cut, or from a backup of the records alone."""
        record = make()
        store.create(record)
        self.lose(tmp_path)
        lease, _ = claimed_by(store, record.key)
        assert lease.epoch == 1

    def test_running_one_expires(self, tmp_path, store, make):
        record = make()
        store.create(record)
        lease, _ = claimed_by(store, record.key)
        self.lose(tmp_path)
        assert [finding.kind for finding in store.examine(fix=True)] == ["record_without_entry"]
        (expired,) = expired_after(store, tmp_path)
        taken = store.take_over(expired, holder="me")
        assert taken is not None
        assert taken[0].epoch == lease.epoch + 1

    def test_it_can_be_lost_again_later(self, tmp_path, store, make):
        """The marker that elected the first adopter does not stand in the way of the next one."""
        record = make()
        store.create(record)
        for epoch in (1, 2, 3):
            self.lose(tmp_path)
            lease, stored = claimed_by(store, record.key)
            assert lease.epoch == epoch
            store.release(lease, transitions.released(stored.record, 9.0))

    def test_sweep_finds_it(self, tmp_path, make):
        first = open_store(tmp_path)
        first.create(make())
        first.recover()
        self.lose(tmp_path)
        open_store(tmp_path).purge({}, limit=10)
        assert entries(tmp_path) == ["idle@0"]


class TestBackupThatIsRestoredAgain:
    """The marker that elected an adopter says nothing once that one's entry is gone for certain."""

    def test_record_of_this_store(self, tmp_path, make):
        record = make("own")
        store = open_store(tmp_path)
        store.create(record)
        path = tmp_path / "local/acme/tasks/alice/own.json"
        data = path.read_bytes()
        for _ in range(3):
            assert store.request_cancel(record.key).record.status is TaskStatus.CANCELLED
            path.write_bytes(data)
            age(tmp_path, 1000)
            store = open_store(tmp_path)
            assert fetch(store, record.key).record == record
        lease, stored = claimed_by(store, record.key)
        store.end(lease, transitions.completed(stored.record, 5.0, b"1"))

    def test_record_of_the_persistent_store(self, tmp_path, written):
        path = tmp_path / "local/acme/tasks/alice/waits.json"
        data = path.read_bytes()
        for _ in range(3):
            store = open_store(tmp_path)
            lease, stored = claimed_by(store, written[0].key)
            store.end(lease, transitions.completed(stored.record, 5.0, b"1"))
            path.write_bytes(data)
            age(tmp_path, 1000)

    def test_young_marker_is_respected(self, tmp_path, written):
        """Its adopter may be about to make the entry known."""
        store = open_store(tmp_path, lock_timeout_seconds=0.1)
        record = fetch(store, written[0].key).record
        assert store._births.adopt(record)
        TestRecordThatLostItsEntry().lose(tmp_path)
        assert not store._births.adopt(record)
        age(tmp_path, 1000)
        assert store._births.adopt(record)
