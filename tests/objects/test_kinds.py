"""``create_if_no_active`` on an object store: the kind is taken first, and creators that are lost are fenced."""

import threading
from functools import partial

import orjson
import pytest

from stores.files.kinds import NEVER_CREATED, Kind, Kinds, _name
from stores.files.persistent import PersistentTaskStore
from task_tracker.errors import InvalidTransition, StoreUnavailable, TaskExists
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.store import Query, Stored
from task_tracker.testing import FakeClock, RecordMaker
from task_tracker.testing.answers import fetch, is_stored, listed
from task_tracker.testing.racing import race
from tests.objects.server import UNAVAILABLE, S3Server
from tests.objects.support import key_at, open_on

PATIENCE_SECONDS = 60.0


@pytest.fixture
def root(s3_server):
    return s3_server.new_root()


@pytest.fixture
def store(s3_server, root):
    return open_on(s3_server, root)


@pytest.fixture
def make():
    return RecordMaker()


def kinds_of(store: PersistentTaskStore) -> Kinds:
    return store._conditional._kinds


def kind_object(server: S3Server, root: str, record: TaskRecord) -> str:
    prefix = key_at(root, record.key).partition("/local/")[0]
    return f"{prefix}/local/.task_tracker/kinds/{_name(Kind.of(record))}"


class Waiting:
    """A creator in another thread, on a clock of its own that this thread moves."""

    def __init__(self, store: PersistentTaskStore, record: TaskRecord, clock: FakeClock) -> None:
        self._clock = clock
        self.outcome: Stored | Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(store, record), daemon=True)
        self._thread.start()
        clock.until_waiting()

    def _run(self, store: PersistentTaskStore, record: TaskRecord) -> None:
        (self.outcome,) = race(partial(store.create_if_no_active, record))

    def let_pass(self, seconds: float) -> None:
        """Let it look again as often as it wants in that time."""
        end = self._clock.monotonic() + seconds
        while self._clock.monotonic() < end:
            self._clock.until_waiting()
            self._clock.advance(0.5)

    def join(self) -> Stored | Exception | None:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        return self.outcome


class TestCreatorUnderWay:
    """It has taken the kind, and its record is not there yet."""

    def test_who_comes_meanwhile_waits_and_is_refused(self, s3_server, root, store, make):
        first, clock = make(), FakeClock()
        other = open_on(s3_server, root, clock=clock)
        taken = kinds_of(store).take(first)
        waiting = Waiting(other, make(), clock)
        waiting.let_pass(5)
        clock.until_waiting()
        store.create(first)
        assert taken is not None
        kinds_of(store).settle(taken)
        clock.advance(1)
        assert waiting.join() is None
        assert listed(store) == [first]

    def test_one_that_never_comes_is_fenced(self, s3_server, root, store, make):
        """What stands in its place says so, and the next one is created."""
        lost, record, clock = make(), make(), FakeClock()
        other = open_on(s3_server, root, clock=clock)
        kinds_of(store).take(lost)
        waiting = Waiting(other, record, clock)
        waiting.let_pass(10)
        created = waiting.join()
        assert isinstance(created, Stored)
        assert created.record == record
        fence = fetch(store, lost.key).record
        assert (fence.status, fence.error_code) == (TaskStatus.FAILED, NEVER_CREATED)
        assert fence.created_at == lost.created_at
        assert listed(store, Query("acme", status="pending")) == [record]
        assert store.create_if_no_active(make()) is None

    @pytest.mark.parametrize("ended", [False, True])
    def test_one_that_comes_too_late_is_told(self, s3_server, root, make, ended):
        """None while the other one is active; else that nothing was created, and to try again."""
        late_record, record, clock = make(), make(), FakeClock()
        reached, go = threading.Event(), threading.Event()

        class Suspended(PersistentTaskStore):
            def create(self, record):
                reached.set()
                assert go.wait(PATIENCE_SECONDS)
                return super().create(record)

        late = Suspended(root, options=s3_server.options())
        outcomes: list[object] = []
        thread = threading.Thread(
            target=lambda: outcomes.extend(race(partial(late.create_if_no_active, late_record))), daemon=True
        )
        thread.start()
        assert reached.wait(PATIENCE_SECONDS)
        other = open_on(s3_server, root, clock=clock)
        waiting = Waiting(other, record, clock)
        waiting.let_pass(10)
        created = waiting.join()
        assert isinstance(created, Stored)
        if ended:
            other.update(make.changed(record, status=TaskStatus.COMPLETED), expected=created.version)
        go.set()
        thread.join(PATIENCE_SECONDS)
        assert [type(outcome) for outcome in outcomes] == [StoreUnavailable if ended else type(None)]
        assert fetch(other, late_record.key).record.error_code == NEVER_CREATED
        assert other.has_active("acme", "alice", "reindex", "docs") is not ended

    def test_one_that_comes_just_before_it_is_fenced_is_believed(self, s3_server, root, store, make):
        """The fence is a creation like any other: one of the two is first."""
        slow, clock = make(), FakeClock()
        other = open_on(s3_server, root, clock=clock)
        kinds_of(store).take(slow)
        waiting = Waiting(other, make(), clock)
        waiting.let_pass(9.5)
        clock.until_waiting()
        path = key_at(root, slow.key)

        def first(method, key):
            if (method, key) == ("PUT", path) and not is_stored(store, slow.key):
                s3_server.disturbances.clear()
                store.create(slow)

        s3_server.disturbances.append(first)
        clock.advance(1)
        assert waiting.join() is None
        assert listed(store) == [slow]

    def test_another_attempt_with_the_same_id_waits_for_nobody(self, s3_server, root, store, make):
        """Only one of them can create it, whoever has the kind."""
        record = make("own")
        kinds_of(store).take(record)
        created = open_on(s3_server, root, clock=FakeClock()).create_if_no_active(record)
        assert created is not None
        with pytest.raises(TaskExists):
            store.create(record)


class TestKindThatSomebodyHad:
    def test_deleted_task_leaves_nothing_to_wait_for(self, s3_server, root, store, make):
        """Its creator said that it was through, so a record that is not there was deleted."""
        first = store.create_if_no_active(make())
        store.update(make.changed(first.record, status=TaskStatus.COMPLETED), expected=first.version)
        s3_server.delete(key_at(root, first.record.key))
        again = open_on(s3_server, root, clock=FakeClock()).create_if_no_active(record := make())
        assert again is not None
        assert listed(store) == [record]

    @pytest.mark.parametrize("how", ["delete", "delete_owner", "purge"])
    def test_kind_goes_with_the_task_that_had_it(self, s3_server, root, store, make, how):
        """Nothing is left that grows with the number of tasks that ever were."""
        record = make(status=TaskStatus.COMPLETED)
        store.create_if_no_active(record)
        assert s3_server.get(kind_object(s3_server, root, record)) is not None
        if how == "delete":
            store.delete(record.key)
        elif how == "delete_owner":
            assert store.delete_owner("acme", "alice") == 1
        else:
            store._marks._opened_at = 0.0
            purged = store.purge({TaskStatus.COMPLETED: record.updated_at + 1}, limit=10)
            assert [*purged.deleted] == [record.key]
        assert s3_server.get(kind_object(s3_server, root, record)) is None
        assert store.create_if_no_active(make()) is not None

    def test_kind_that_another_task_has_stays(self, s3_server, root, store, make):
        first, second = make(status=TaskStatus.COMPLETED), make()
        store.create_if_no_active(first)
        store.create_if_no_active(second)
        store.delete(first.key)
        assert s3_server.get(kind_object(s3_server, root, first)) is not None
        assert store.create_if_no_active(make()) is None

    def test_refused_creation_leaves_nothing_to_wait_for(self, s3_server, root, store, make):
        """An id that is taken, or an owner that is being deleted."""
        other = open_on(s3_server, root, clock=FakeClock())
        store.create(make("own", status=TaskStatus.COMPLETED))
        with pytest.raises(TaskExists):
            store.create_if_no_active(make("own"))
        mark = key_at(root, make.key()).rpartition("/")[0] + "/.deleting"
        s3_server.put(mark, b"{}")
        with pytest.raises(InvalidTransition):
            store.create_if_no_active(make())
        s3_server.delete(mark)
        assert other.create_if_no_active(make()) is not None

    def test_creation_that_may_have_happened_is_waited_for(self, s3_server, root, store, make):
        """Its answer was lost, for ever: the record came, and is found."""
        record = make()
        path = key_at(root, record.key)
        s3_server.lost.append(lambda method, key: UNAVAILABLE if (method, key) == ("PUT", path) else None)
        with pytest.raises(StoreUnavailable):
            store.create_if_no_active(record)
        s3_server.lost.clear()
        other = open_on(s3_server, root, clock=FakeClock())
        assert other.create_if_no_active(make()) is None
        assert listed(other) == [record]

    @pytest.mark.parametrize(
        "damage", [b"", b"{", b"[]", b"{}", orjson.dumps({"task_id": 1, "created_at": 1.0, "token": ""})]
    )
    def test_damaged_word_blocks_nobody(self, s3_server, root, store, make, damage):
        record = make()
        s3_server.put(kind_object(s3_server, root, record), damage)
        assert store.create_if_no_active(record) is not None
        assert store.create_if_no_active(make()) is None

    def test_task_that_became_another_kind_blocks_no_longer(self, store, make):
        """The record says what it is, not the object that names it."""
        first = store.create_if_no_active(make())
        store.update(make.changed(first.record, resource_id="other"), expected=first.version)
        assert store.create_if_no_active(make()) is not None
        assert store.create_if_no_active(make(resource_id="other")) is None

    def test_outage_at_any_request_leaves_the_truth(self, s3_server, root, store, make):
        """Whichever request fails: nothing is created, or it is found; and afterwards one can be."""
        store.create(make(user_id="somebody else"))
        for number in range(1, 6):
            record = make(resource_id=f"r{number}")
            left = [number]

            def fail(method, key, left=left):
                left[0] -= 1
                return UNAVAILABLE if left[0] == 0 else None

            with s3_server.disturbed(fail):
                (outcome,) = race(partial(store.create_if_no_active, record))
            # The last request only settles the kind.
            assert isinstance(outcome, StoreUnavailable if number < 5 else Stored), number
            assert is_stored(store, record.key) == (number == 5)
