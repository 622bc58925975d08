"""The contract, kept by the persistent store: on a directory, and on file clients of every kind."""

import pytest

from stores.files.persistent import PersistentTaskStore
from task_tracker.codec import encode_record
from task_tracker.errors import CapabilityMissing, CorruptRecord, StoreUnavailable
from task_tracker.records import TaskStatus
from task_tracker.store import Query
from task_tracker.testing import MovingClient, PlainClient, RecordMaker, RemovingClient, TaskStoreContract
from task_tracker.testing.answers import fetch
from task_tracker.testing.contract.listing import ListingContract
from task_tracker.testing.contract.reading import ReadingContract
from task_tracker.testing.contract.updating import UpdatingContract
from task_tracker.testing.samples import START
from tests.contract.harnesses import ClientHarness, CoarseDirectoryHarness, CountingDirectoryHarness, place


class TestPersistentStoreOnADirectory(TaskStoreContract):
    @pytest.fixture
    def harness(self, tmp_path):
        with CountingDirectoryHarness(tmp_path).counting() as harness:
            yield harness


class TestPersistentStoreWhereTimeStampsAreCoarse(ReadingContract, UpdatingContract, ListingContract):
    """What saves reading by looking at time stamps must not believe the young ones."""

    @pytest.fixture
    def harness(self, tmp_path):
        with CoarseDirectoryHarness(tmp_path).coarse() as harness:
            yield harness


class TestPersistentStoreOnAClientThatMoves(TaskStoreContract):
    """As AGFS is with its local file system."""

    @pytest.fixture
    def harness(self):
        return ClientHarness(MovingClient)


class TestPersistentStoreOnAClientWhoseMoveDoesNotReplace(TaskStoreContract):
    """As AGFS is with its memory file system."""

    @pytest.fixture
    def harness(self):
        return ClientHarness(MovingClient, mv_refuses_existing=True)


class TestPersistentStoreOnAClientWithoutMove(TaskStoreContract):
    """As object stores are, with typed errors and no real directories."""

    @pytest.fixture
    def harness(self):
        return ClientHarness(
            RemovingClient,
            typed_errors=True,
            mkdir_refuses_existing=False,
            write_makes_parents=True,
            missing_ls_is_empty=True,
        )


class TestClientThatCannotRemove:
    """``rm`` is optional: everything but deleting works, and deleting says what is missing."""

    @pytest.fixture
    def store(self):
        return PersistentTaskStore(PlainClient())

    def test_records_are_kept(self, store):
        make = RecordMaker()
        record = make()
        store.create(record)
        ended = make.changed(record, status=TaskStatus.COMPLETED)
        store.update(ended, expected=None)
        assert store.get(record.key).record == ended
        assert [task for task, _ in store.list(Query("acme")).items] == [ended]
        assert not store.has_active("acme", "alice", "reindex", "docs")
        assert store.create_if_no_active(make()) is not None

    def test_deleting_is_refused(self, store):
        record = RecordMaker()(status=TaskStatus.COMPLETED)
        store.create(record)
        with pytest.raises(CapabilityMissing, match="rm"):
            store.delete(record.key)
        with pytest.raises(CapabilityMissing, match="rm"):
            store.delete_owner("acme", "alice")
        with pytest.raises(CapabilityMissing, match="rm"):
            store.purge({TaskStatus.COMPLETED: START + 1e6}, limit=10)
        assert store.get(record.key).record == record


class TestReadersWhileAClientWrites:
    """A server that truncates in place shows half a file to whoever reads it just then."""

    @pytest.mark.parametrize("kind", [MovingClient, RemovingClient])
    def test_half_written_record_is_never_taken_for_something_else(self, kind):
        client, make = kind(), RecordMaker()
        store, reader = PersistentTaskStore(client), PersistentTaskStore(client)
        record = make()
        changed = make.changed(record, status=TaskStatus.RUNNING)
        store.create(record)
        seen: list[object] = []

        def read(path: str) -> None:
            client.half_written = None
            try:
                seen.append(fetch(reader, record.key).record)
            except CorruptRecord as error:
                seen.append(error)

        client.half_written = read
        store.update(changed, expected=None)
        assert fetch(reader, record.key).record == changed
        if kind is MovingClient:
            assert seen == [record], "renamed into place: the old one or the new one"
        else:
            assert [type(answer) for answer in seen] == [CorruptRecord]

    def test_failed_write_leaves_the_old_record(self):
        client, make = MovingClient(), RecordMaker()
        store = PersistentTaskStore(client)
        record = make()
        store.create(record)

        def fail(path: str) -> None:
            raise RuntimeError("write: no space left on device")

        client.half_written = fail
        with pytest.raises(StoreUnavailable):
            store.update(make.changed(record, stage="lost"), expected=None)
        client.half_written = None
        assert client.read(place(record.key)) == encode_record(record)
        assert [entry["name"] for entry in client.ls("/local/acme/tasks/alice")] == [f"{record.task_id}.json"]
