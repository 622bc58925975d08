"""Leftovers of crashes and of foreign hands: reported, and mended when asked."""

import os
import shutil

import pytest

from stores.files.lease.names import EntryName
from stores.files.persistent import PersistentTaskStore
from task_tracker import transitions
from task_tracker.records import TaskStatus
from task_tracker.testing.answers import claimed_by
from tests.lease.support import age, claimed, control, entries, expired_after, leftovers, open_store


def kinds(store, **options):
    return [finding.kind for finding in store.examine(**options)]


def mended(store, kind):
    """Examine, mend, and return what the next look finds."""
    assert kinds(store) == [kind]
    assert kinds(store) == [kind], "a look changes nothing"
    (finding,) = store.examine(fix=True)
    assert finding.fixed
    assert finding.message
    return store.examine()


class TestNothingToFind:
    def test_new_root(self, store):
        assert store.examine() == []

    def test_tasks_in_every_state(self, tmp_path, store, make):
        store.create(make())
        store.create(make(handler_version=1))
        store.create(make(handler_version=1, not_before=1e10))
        store.create(make(status=TaskStatus.COMPLETED))
        store.create(make(status=TaskStatus.RUNNING))
        lease, stored = claimed(store, make)
        lease, stored = claimed(store, make)
        store.end(lease, transitions.failed(stored.record, 1.0, "no"))
        age(tmp_path, 1e6)
        assert store.examine() == []

    def test_what_is_young_is_left_alone(self, tmp_path, store, make):
        """A live process may be about to finish it."""
        record = make()
        (control(tmp_path) / "new" / "abc123.rec").write_bytes(b"{}")
        (control(tmp_path) / "deletes" / "abc-123").mkdir()
        (control(tmp_path) / "keys/00" / f"{'0' * 16}.{record.task_id}.abc").touch()
        assert store.examine(fix=True) == []


class TestLeftovers:
    def test_entry_without_record(self, tmp_path, store, make):
        record = make()
        store.create(record)
        (tmp_path / "local/acme/tasks/alice" / f"{record.task_id}.json").unlink()
        age(tmp_path, 100)
        found = kinds(store)
        assert sorted(found) == ["entry_without_record", "stale_key"]
        assert all(finding.fixed for finding in store.examine(fix=True))
        assert store.examine() == []
        assert leftovers(tmp_path) == []

    def test_entry_whose_task_has_ended(self, tmp_path, store, make):
        lease, stored = claimed(store, make)
        name = lease.entry.name
        store.end(lease, transitions.completed(stored.record, 1.0, b"1"))
        (control(tmp_path) / "leases" / "00" / str(name)).mkdir()
        age(tmp_path, 100)
        assert mended(store, "entry_without_record") == []

    def test_entry_of_another_life(self, tmp_path, store, make):
        record = make("own", status=TaskStatus.COMPLETED)
        store.create(record)
        store.delete(record.key)
        store.create(make("own"))
        old = EntryName.of(record.changed(creation="0ld"), 3, "t0")
        (control(tmp_path) / "idle" / "00" / str(old)).mkdir()
        age(tmp_path, 100)
        assert mended(store, "entry_without_record") == []
        assert claimed_by(store, record.key)

    def test_record_without_entry(self, tmp_path, store, make):
        record = make()
        store.create(record)
        for entry in control(tmp_path).glob("idle/*/*"):
            shutil.rmtree(entry)
        assert mended(store, "record_without_entry") == []
        assert entries(tmp_path) == ["idle@0"]

    def test_stale_key(self, tmp_path, store, make):
        lease, stored = claimed(store, make)
        (announced,) = control(tmp_path).glob("keys/*/*")
        store.end(lease, transitions.completed(stored.record, 1.0, b"1"))
        announced.touch()
        age(tmp_path, 100)
        assert mended(store, "stale_key") == []

    def test_stale_key_blocks_nobody(self, tmp_path, store, make):
        """Also before anybody mends it. [D064]"""
        lease, stored = claimed(store, make)
        (announced,) = control(tmp_path).glob("keys/*/*")
        store.end(lease, transitions.completed(stored.record, 1.0, b"1"))
        announced.touch()
        assert store.create_if_no_active(make()) is not None
        assert not announced.exists()

    def test_corrupt_record(self, tmp_path, store, make):
        record = make()
        store.create(record)
        (tmp_path / "local/acme/tasks/alice" / f"{record.task_id}.json").write_bytes(b"{")
        (finding,) = store.examine(fix=True)
        assert (finding.kind, finding.fixed) == ("corrupt_record", False)
        assert record.task_id in finding.where

    def test_temporary_file(self, tmp_path, store, make):
        store.create(make())
        name = store._local._temporaries.new_name()
        host, pid = name.split("-")[1:3]
        dead = name.replace(f"-{host}-{pid}-", f"-{host}-{2**22 + 1}-")
        path = tmp_path / "local/acme/tasks/alice" / dead
        path.write_bytes(b"")
        os.utime(path, (1e9, 1e9))
        assert mended(store, "temporary_file") == []

    @pytest.mark.parametrize("name", ["probe-0123", "format-0123"])
    def test_rests_of_an_opening(self, tmp_path, store, name):
        path = control(tmp_path) / name
        if name.startswith("probe"):
            (path / "leases" / "entry").mkdir(parents=True)
            (path / "one").touch()
        else:
            path.touch()
        assert store.examine() == []
        age(tmp_path, 1e5)
        assert mended(store, "temporary_file") == []
        assert not path.exists()

    def test_marker_of_an_adoption(self, tmp_path, make):
        record = make("own")
        PersistentTaskStore(tmp_path, durability="none").create(record)
        store = open_store(tmp_path)
        store.recover()
        age(tmp_path, 1e6)
        assert store.examine() == []
        lease, stored = claimed_by(store, record.key)
        store.end(lease, transitions.completed(stored.record, 1.0, b"1"))
        assert mended(store, "half_made") == []
        assert leftovers(tmp_path) == []


class TestHalfMade:
    def test_creation_that_stopped_before_the_record(self, tmp_path, store, make):
        record = make(attempt=None, creation="abc123")
        name = EntryName.of(record, 0, "abc123")
        (control(tmp_path) / "new" / str(name)).mkdir()
        (control(tmp_path) / "new" / "abc123.rec").write_bytes(b'{"half')
        age(tmp_path, 100)
        assert set(kinds(store)) == {"half_made"}
        assert all(finding.fixed for finding in store.examine(fix=True))
        assert leftovers(tmp_path) == []
        store.create(record)

    def test_deletion_that_stopped_before_the_end(self, tmp_path, store, make):
        record = make(status=TaskStatus.COMPLETED)
        store.create(record)
        place = control(tmp_path) / "deletes" / "abc-123"
        place.mkdir()
        path = tmp_path / "local/acme/tasks/alice" / f"{record.task_id}.json"
        path.rename(place / "dead")
        age(tmp_path, 100)
        assert mended(store, "half_made") == []
        assert leftovers(tmp_path) == []
        assert (tmp_path / "local/acme/tasks/alice/.deleted").exists()


class TestPassOfTheReconciler:
    def test_end_that_stopped_before_the_entry_was_removed(self, tmp_path, store, make):
        lease, stored = claimed(store, make)
        record = transitions.completed(stored.record, 1.0, b"1")
        published = store._records.publish(
            lease.entry, record.changed(attempt=stored.record.attempt, creation=stored.record.creation)
        )
        assert published is not None
        assert entries(tmp_path) == ["leases@1"]
        assert expired_after(store, tmp_path) == []
        assert leftovers(tmp_path) == []

    def test_release_that_stopped_before_the_entry_was_moved(self, tmp_path, store, make):
        lease, stored = claimed(store, make)
        record = transitions.released(stored.record, 1.0)
        store._records.publish(lease.entry, record)
        assert expired_after(store, tmp_path) == []
        assert entries(tmp_path) == ["idle@2"]
        assert claimed_by(store, record.key)[0].epoch == 3

    def test_claim_that_stopped_before_the_record(self, tmp_path, store, make):
        record = make()
        store.create(record)
        (entry,) = control(tmp_path).glob("idle/*/*")
        name = EntryName.parse(entry.name)
        assert name is not None
        assert store._entries.grab(str(entry), name) is not None
        assert expired_after(store, tmp_path) == []
        assert entries(tmp_path) == ["idle@2"]

    def test_wish_to_cancel_is_fulfilled_by_it(self, tmp_path, store, make):
        record = make()
        store.create(record)
        (entry,) = control(tmp_path).glob("idle/*/*")
        name = EntryName.parse(entry.name)
        assert name is not None
        grabbed = store._entries.grab(str(entry), name)
        assert grabbed is not None
        assert store.request_cancel(record.key).record.status is TaskStatus.CANCELLING
        assert store.get(record.key).record.status is TaskStatus.CANCELLING
        assert expired_after(store, tmp_path) == []
        assert store.get(record.key).record.status is TaskStatus.CANCELLED
        assert leftovers(tmp_path) == []

    def test_one_item_does_not_stop_the_rest(self, tmp_path, store, make, caplog):
        for user_id in ("a", "b", "c"):
            store.create(make("own", user_id=user_id))
            claimed_by(store, make.key("own")._replace(user_id=user_id))
        (tmp_path / "local/acme/tasks/b/own.json").write_bytes(b"{")
        found = expired_after(store, tmp_path)
        assert sorted(expired.record.user_id for expired in found) == ["a", "c"]
        assert "could not be settled" in caplog.text
