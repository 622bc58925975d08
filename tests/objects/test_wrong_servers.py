"""Servers that call themselves compatible: what they do not do is found out, said, and done without."""

import logging
from functools import partial

import pytest

from stores.files.objects import TOMBSTONE
from stores.files.objects_probe import Found
from task_tracker.errors import CapabilityMissing, StoreUnavailable, TaskExists, TaskNotFound
from task_tracker.records import TaskStatus
from task_tracker.store import Query, Stored
from task_tracker.testing import RecordMaker
from task_tracker.testing.answers import fetch, is_stored, listed
from task_tracker.testing.contract.creating import CreatingContract
from task_tracker.testing.contract.deleting import DeletingContract
from task_tracker.testing.contract.owners import OwnerContract
from task_tracker.testing.contract.updating import UpdatingContract
from task_tracker.testing.racing import race
from tests.contract.objects_harness import ObjectsHarness
from tests.objects.server import UNAVAILABLE
from tests.objects.support import files_of, key_at, open_on

PUT_IF_MATCH = ("PUT", "If-Match")
PUT_IF_NONE_MATCH = ("PUT", "If-None-Match")
DELETE_IF_MATCH = ("DELETE", "If-Match")


@pytest.fixture
def root(s3_server):
    return s3_server.new_root()


@pytest.fixture
def make():
    return RecordMaker()


class TestProbe:
    """It is asked once per instance, and leaves nothing behind."""

    @pytest.mark.parametrize(
        ("ignored", "found"),
        [
            (set(), Found(True, True, True)),
            ({DELETE_IF_MATCH}, Found(True, False, True)),
            ({PUT_IF_MATCH}, Found(False, False, True)),
            ({PUT_IF_NONE_MATCH}, Found(False, False, True)),
            ({PUT_IF_MATCH, PUT_IF_NONE_MATCH, DELETE_IF_MATCH}, Found(False, False, True)),
        ],
        ids=lambda value: "-".join(" ".join(each) for each in sorted(value)) if type(value) is set else None,
    )
    def test_conditions_that_are_ignored_are_found_out(self, s3_server, root, make, ignored, found):
        """Claimed is what was found, and no more. [D090]"""
        s3_server.ignored |= ignored
        store = open_on(s3_server, root)
        capabilities = store.capabilities
        assert capabilities.compare_and_set is capabilities.exclusive_create is found.conditional_put
        assert (capabilities.durable, capabilities.shared) == (True, True)
        assert files_of(store)._probed() == found
        objects, _ = files_of(store)._requests.list(files_of(store)._probes)
        assert objects == []

    def test_conditions_that_are_refused_as_unknown(self, s3_server, root, make):
        """A server that says so is as good as one that ignores them."""
        seen = set()

        def refuse(method, key):
            if method == "PUT" and "/probes/" in key and key not in seen:
                seen.add(key)
                return "501 Not Implemented"
            return None

        s3_server.disturbances.append(refuse)
        assert not open_on(s3_server, root).capabilities.compare_and_set

    def test_listing_that_is_late_is_not_shared(self, s3_server, root, make, monkeypatch):
        """Whoever looks afterwards would not find what was created."""
        store = open_on(s3_server, root)
        monkeypatch.setattr(files_of(store)._requests, "list", lambda directory: ([], []))
        assert not store.capabilities.shared

    def test_server_that_does_not_answer_yet_is_tried_by_the_first_write(self, s3_server, root, make):
        """A server may start while its store is down; nothing is written until it is known what holds."""
        s3_server.ignored.add(PUT_IF_MATCH)
        store = open_on(s3_server, root)
        with s3_server.disturbed(lambda method, key: UNAVAILABLE):
            assert store.capabilities.compare_and_set
            with pytest.raises(StoreUnavailable):
                store.create(make())
        created = store.create(make())
        with pytest.raises(CapabilityMissing):
            store.update(make.changed(created.record), expected=created.version)

    def test_probes_that_crashed_are_removed_a_day_later(self, s3_server, root, make, monkeypatch):
        """By the server's clock."""
        from stores.files import objects_probe

        control = key_at(root, make.key()).partition("/local/")[0] + "/local/.task_tracker/probes/"
        s3_server.put(control + "old", b"old")
        assert open_on(s3_server, root).capabilities.compare_and_set
        assert s3_server.get(control + "old") == b"old"
        monkeypatch.setattr(objects_probe, "_OLD", -objects_probe._OLD)
        assert open_on(s3_server, root).capabilities.compare_and_set
        assert s3_server.get(control + "old") is None


class TestExclusiveCreate:
    @pytest.mark.parametrize("body", [b"", b"x"])
    def test_one_of_twenty_wins(self, s3_server, root, body):
        """Empty bodies and small ones. [D090]"""
        files = files_of(open_on(s3_server, root))
        files.capabilities  # noqa: B018  # probed before the race
        outcomes = race(*[partial(files.create, "/local/x", "lease", body)] * 20)
        assert [type(outcome) for outcome in outcomes].count(FileExistsError) == 19


class TestTombstones:
    """As MinIO was until 2025: conditions are honoured, but not when something is deleted."""

    @pytest.fixture
    def harness(self, s3_server):
        s3_server.ignored.add(DELETE_IF_MATCH)
        return HarnessWithTombstones(s3_server)

    def test_id_of_ones_own_leaves_a_tombstone(self, s3_server, harness, make):
        """It is not there in any way, and the id may come again."""
        store, other = harness.open(), harness.open()
        path = harness.key_of("/local/acme/tasks/alice/own.json")
        store.create(make("own", status=TaskStatus.COMPLETED))
        assert len(listed(other)) == 1
        store.delete(make.key("own"))
        assert s3_server.get(path) == TOMBSTONE
        for instance in (store, other, harness.open()):
            assert listed(instance) == []
            assert not is_stored(instance, make.key("own"))
            assert instance.count("acme", None) == {}
            assert instance.delete_owner("acme", "alice") == 0
            with pytest.raises(TaskNotFound):
                instance.update(make("own"), expected=None)
        created = other.create(make("own"))
        assert fetch(store, created.record.key).record == created.record
        with pytest.raises(TaskExists):
            store.create(make("own"))

    def test_one_of_many_creates_over_a_tombstone(self, harness, make):
        stores = [harness.open() for _ in range(4)]
        stores[0].create(make("own", status=TaskStatus.COMPLETED))
        stores[0].delete(make.key("own"))
        outcomes = race(*(partial(store.create, make("own", message=str(store))) for store in stores))
        (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Stored)]
        assert [type(outcome) for outcome in outcomes if outcome is not winner] == [TaskExists] * 3
        assert fetch(stores[0], make.key("own")).record == winner.record

    def test_generated_id_is_deleted(self, s3_server, harness, make):
        """Such an id does not come again."""
        store = harness.open()
        created = store.create(make(status=TaskStatus.COMPLETED))
        store.delete(created.record.key)
        assert harness.peek(created.record.key) is None
        assert s3_server.get(harness.key_of(f"/local/acme/tasks/alice/{created.record.task_id}.json")) is None

    def test_tombstone_whose_tag_says_nothing_is_read_once(self, s3_server, harness, make, monkeypatch):
        """Encrypted objects have tags that are not made of their contents."""
        from stores.files import objects
        from stores.files.backing import ETag

        monkeypatch.setattr(objects, "_TOMBSTONE_TAG", ETag("something else"))
        store = harness.open()
        store.create(make("own", status=TaskStatus.COMPLETED))
        store.delete(make.key("own"))
        assert listed(store) == []
        with s3_server.counted() as requests:
            assert listed(store, Query("acme", "alice")) == []
        assert requests == {"LIST": 1}


class HarnessWithTombstones(ObjectsHarness):
    """The same; what was found of the server is not that of the undisturbed one."""

    def open(self):
        self.server.found = Found(conditional_put=True, conditional_delete=False, consistent=True)
        try:
            return super().open()
        finally:
            self.server.found = None

    def peek(self, key):
        data = super().peek(key)
        return None if data == TOMBSTONE else data


@pytest.mark.slow
class TestWithoutConditionalDelete(CreatingContract, OwnerContract, UpdatingContract):
    @pytest.fixture
    def harness(self, s3_server):
        s3_server.ignored.add(DELETE_IF_MATCH)
        return HarnessWithTombstones(s3_server)


class TestDeletingWithoutConditionalDelete(DeletingContract):
    @pytest.fixture
    def harness(self, s3_server):
        s3_server.ignored.add(DELETE_IF_MATCH)
        return HarnessWithTombstones(s3_server)


@pytest.mark.slow
class TestWithoutConditions(CreatingContract, DeletingContract, OwnerContract):
    """The last writer wins, and no more is claimed."""

    @pytest.fixture
    def harness(self, s3_server):
        s3_server.ignored |= {PUT_IF_MATCH, PUT_IF_NONE_MATCH, DELETE_IF_MATCH}
        return HarnessWithoutConditions(s3_server)


class TestLastWriterWins:
    def test_it_is_said_once(self, root, s3_server, caplog, make):
        s3_server.ignored |= {PUT_IF_MATCH, PUT_IF_NONE_MATCH, DELETE_IF_MATCH}
        store = open_on(s3_server, root)
        with caplog.at_level(logging.WARNING, "task_tracker"):
            created = store.create(make())
            store.create(make("own", status=TaskStatus.COMPLETED))
        assert [getattr(record, "event", None) for record in caplog.records] == ["conditional_put_missing"]
        with pytest.raises(CapabilityMissing):
            store.update(make.changed(created.record), expected=created.version)
        store.update(make.changed(created.record), expected=None)
        with pytest.raises(TaskExists):
            store.create(make("own"))
        assert store.create_if_no_active(make()) is None
        store.delete(make.key("own"))
        assert len(listed(store)) == 1


class HarnessWithoutConditions(ObjectsHarness):
    def open(self):
        self.server.found = Found(conditional_put=False, conditional_delete=False, consistent=True)
        try:
            return super().open()
        finally:
            self.server.found = None
