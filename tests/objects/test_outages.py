"""Requests that fail: said as what they are, within the time that was given, and never taken for an answer. [D071]"""

import socket
import time
from functools import partial

import pytest

from stores.files.backing import Changed, Signature
from task_tracker.codec import encode_record
from task_tracker.errors import StoreUnavailable, TaskExists, TaskNotFound
from task_tracker.records import TaskStatus
from task_tracker.store import Query
from task_tracker.testing import RecordMaker
from task_tracker.testing.answers import fetch, is_stored, listed
from tests.objects.server import UNAVAILABLE
from tests.objects.support import files_of, key_at, open_on


@pytest.fixture
def root(s3_server):
    return s3_server.new_root()


@pytest.fixture
def store(s3_server, root):
    """A store that repeats what failed, and has written before."""
    store = open_on(s3_server, root, max_retries=2)
    store.create(RecordMaker()(user_id="somebody else"))
    return store


@pytest.fixture
def make():
    return RecordMaker()


def once(*wanted):
    """Return a disturbance for the first request of a method on a key."""
    left = [1]

    def disturb(method, key):
        if (method, key) == wanted and left[0]:
            left[0] -= 1
            return UNAVAILABLE
        return None

    return disturb


class TestWhatIsSaid:
    @pytest.mark.parametrize("call", ["get", "create", "list", "has_active", "delete"])
    def test_bucket_that_is_not_there(self, s3_server, make, call):
        """Not "no such task", and not an empty list."""
        store = open_on(s3_server, "s3://no-such-bucket/prefix")
        record = make()
        calls = {
            "get": lambda: store.get(record.key),
            "create": lambda: store.create(record),
            "list": lambda: store.list(Query("acme", "alice")),
            "has_active": lambda: store.has_active("acme", None, "reindex", "docs"),
            "delete": lambda: store.delete(record.key),
        }
        with pytest.raises(StoreUnavailable, match="no such bucket; create it"):
            calls[call]()

    @pytest.mark.parametrize("status", ["403 Forbidden", "401 Unauthorized"])
    def test_credentials_that_are_refused(self, s3_server, store, make, status):
        created = store.create(make())
        with s3_server.disturbed(lambda method, key: status):
            for call in (
                partial(store.get, created.record.key),
                partial(store.update, created.record, expected=created.version),
            ):
                with pytest.raises(StoreUnavailable, match="mend key, secret, token and region"):
                    call()

    def test_messages_are_one_line(self, s3_server, store, make):
        with (
            s3_server.disturbed(lambda method, key: "400 Bad Request"),
            pytest.raises(StoreUnavailable) as raised,
        ):
            store.create(make())
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 600
        assert raised.value.__cause__ is not None


class TestTimeLimits:
    def test_nobody_listens(self, s3_server, make):
        """Refused connections are tried again, for as long as was given."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        store = open_on(s3_server, "s3://bucket", endpoint_url=f"http://127.0.0.1:{port}", timeout_seconds=1)
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            store.get(make.key())
        assert time.monotonic() - started < 5

    @pytest.mark.parametrize("call", ["get", "list", "create"])
    def test_server_that_never_answers(self, s3_server, make, call):
        """It takes the connection and keeps silent; ``timeout_seconds`` ends that."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
            store = open_on(
                s3_server, "s3://bucket", endpoint_url=endpoint, timeout_seconds=0.6, max_retries=3
            )
            calls = {
                "get": lambda: store.get(make.key()),
                "list": lambda: store.list(Query("acme", "alice")),
                "create": lambda: store.create(make()),
            }
            started = time.monotonic()
            with pytest.raises(StoreUnavailable):
                calls[call]()
            assert time.monotonic() - started < 5

    def test_outage_in_the_middle_of_a_listing_is_waited_for_once(self, s3_server, root, store, make):
        """Not once for each of the records that are still to be read."""
        for record in make.many(100):
            s3_server.put(key_at(root, record.key), encode_record(record))
        with (
            s3_server.disturbed(lambda method, key: UNAVAILABLE if method == "GET" else None),
            s3_server.counted() as requests,
            pytest.raises(StoreUnavailable),
        ):
            store.list(Query("acme", "alice", limit=None))
        assert requests["GET"] <= 3 * (16 + 1), (
            "three tries of those that were under way, and of the one that says so"
        )

    def test_hiccup_is_not_noticed(self, s3_server, root, store, make):
        """One failed request in each operation."""
        record = make()
        path = key_at(root, record.key)
        with s3_server.disturbed(once("PUT", path)):
            created = store.create(record)
        with s3_server.disturbed(once("GET", path)):
            assert fetch(store, record.key).record == record
        ended = make.changed(record, status=TaskStatus.COMPLETED)
        with s3_server.disturbed(once("PUT", path)):
            store.update(ended, expected=created.version)
        with s3_server.disturbed(once("DELETE", path)):
            store.delete(record.key)
        assert not is_stored(store, record.key)


class TestLostAnswers:
    """The request took effect, and its answer never came: the second one is refused, and that is no answer."""

    def test_creation(self, s3_server, root, store, make):
        record = make()
        s3_server.lost.append(once("PUT", key_at(root, record.key)))
        assert store.create(record).record == record
        assert listed(store, Query("acme", "alice")) == [record]

    def test_update(self, s3_server, root, store, make):
        created = store.create(make())
        changed = make.changed(created.record, status=TaskStatus.RUNNING)
        s3_server.lost.append(once("PUT", key_at(root, changed.key)))
        updated = store.update(changed, expected=created.version)
        store.update(make.changed(changed, status=TaskStatus.COMPLETED), expected=updated.version)

    def test_deletion(self, s3_server, root, store, make):
        created = store.create(make(status=TaskStatus.COMPLETED))
        s3_server.lost.append(once("DELETE", key_at(root, created.record.key)))
        store.delete(created.record.key)
        assert not is_stored(store, created.record.key)

    def test_another_writer_that_came_in_between_is_not_taken_for_us(self, s3_server, root, store, make):
        """Our creation was lost before it took effect, theirs took it: the id is taken."""
        record, theirs = make("own"), make("own", message="theirs")
        other = open_on(s3_server, root)
        files_of(other)._found = files_of(store)._probed()
        path = key_at(root, record.key)
        seen: list[str] = []

        def overtaken(method, key):
            if (method, key) == ("PUT", path) and not seen:
                seen.append(key)
                other.create(theirs)
                return UNAVAILABLE
            return None

        s3_server.disturbances.append(overtaken)
        with pytest.raises(TaskExists):
            store.create(record)
        assert fetch(store, record.key).record == theirs


class TestWritesThatFail:
    @pytest.mark.parametrize("status", ["507 Insufficient Storage", "403 Forbidden", UNAVAILABLE])
    def test_old_record_stays(self, s3_server, root, store, make, status):
        """A PUT that fails changes nothing, and the next one works. [D073]"""
        created = store.create(make())
        changed = make.changed(created.record, stage="new")
        with (
            s3_server.disturbed(lambda method, key: status if method == "PUT" else None),
            pytest.raises(StoreUnavailable),
        ):
            store.update(changed, expected=created.version)
        assert fetch(store, changed.key).record == created.record
        store.update(changed, expected=created.version)
        assert fetch(store, changed.key).record == changed

    def test_busy_server_is_asked_again(self, s3_server, root, store, make):
        """AWS answers 409 to one of two conditional writes at the same moment; that one took no effect."""
        record = make()
        path = key_at(root, record.key)
        files = files_of(store)
        left = [1]
        send = files._requests._stores()[0].put

        class Busy:
            def put(self, store, name, data, **options):
                if left[0] and name.endswith(record.task_id + ".json"):
                    left[0] -= 1
                    raise RuntimeError("409 Conflict: <Code>ConditionalRequestConflict</Code>")
                return send(store, name, data, **options)

            def __getattr__(self, name):
                return getattr(library, name)

        assert files._requests._built is not None
        pid, library, reading, writing = files._requests._built
        files._requests._built = (pid, Busy(), reading, writing)
        store.create(record)
        assert (left, s3_server.get(path) is not None) == ([0], True)

    def test_condition_of_another_place_never_holds(self, store, make):
        """A signature of a directory's file says nothing of an object."""
        created = store.create(make())
        directory, name = store._layout.place(created.record.key)
        with pytest.raises(Changed):
            files_of(store).replace(directory, name, b"x", final=False, over=Signature(1, 2, 3))
        assert fetch(store, created.record.key).record == created.record


def test_another_instances_changes_are_seen_at_once(s3_server, root, store, make):
    """Nothing keeps listings: what another process did shows in the next one. [D089]"""
    other = open_on(s3_server, root)
    assert listed(other, Query("acme", "alice")) == []
    created = store.create(make())
    assert listed(other, Query("acme", "alice")) == [created.record]
    changed = make.changed(created.record, status=TaskStatus.COMPLETED)
    store.update(changed, expected=created.version)
    assert listed(other, Query("acme", "alice")) == [fetch(other, changed.key).record] == [changed]
    store.delete(changed.key)
    assert listed(other, Query("acme", "alice")) == []
    with pytest.raises(TaskNotFound):
        other.get(changed.key)
