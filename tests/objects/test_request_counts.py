"""How many requests each operation costs: on an object store they are what takes time and money."""

import pytest

from task_tracker.codec import encode_record
from task_tracker.records import TaskStatus
from task_tracker.store import Query, Unchanged
from task_tracker.testing import RecordMaker
from task_tracker.testing.answers import fetch
from tests.objects.support import key_at, open_on


@pytest.fixture
def root(s3_server):
    return s3_server.new_root()


@pytest.fixture
def store(s3_server, root):
    """A store that has written before."""
    store = open_on(s3_server, root)
    store.create(RecordMaker()(user_id="somebody else"))
    return store


@pytest.fixture
def make():
    return RecordMaker()


def test_first_write_tries_the_server_out(s3_server, root, make):
    """Seven requests of the probe, one look for a lease store's mark, two to note the opening, and the creation."""
    store = open_on(s3_server, root)
    with s3_server.counted() as requests:
        store.create(make())
    assert requests == {"PUT": 3 + 2, "GET": 1 + 3, "LIST": 1, "DELETE": 2}


def test_create(s3_server, store, make):
    """A look for a deletion of the owner under way, and the PUT."""
    record = make()
    with s3_server.counted() as requests:
        store.create(record)
    assert requests == {"GET": 1, "PUT": 1}


def test_get(s3_server, store, make):
    """One, whether the record is there or not, changed or not."""
    created = store.create(make())
    with s3_server.counted() as requests:
        read = fetch(store, created.record.key)
    assert requests == {"GET": 1}
    with s3_server.counted() as requests:
        assert isinstance(store.get(created.record.key, known=read.version), Unchanged)
    assert requests == {"GET": 1}
    assert s3_server.requests[-1][2] == 304, "no body was sent"
    with s3_server.counted() as requests:
        assert isinstance(store.get(created.record.key, known=created.version), Unchanged)
    assert requests == {"GET": 1}
    store.update(make.changed(created.record, stage="changed"), expected=created.version)
    with s3_server.counted() as requests:
        assert not isinstance(store.get(created.record.key, known=read.version), Unchanged)
    assert requests == {"GET": 1}


def test_complete(s3_server, store, make):
    """One: what a write answers names the version that the next one replaces."""
    created = store.create(make())
    with s3_server.counted() as requests:
        running = store.update(
            make.changed(created.record, status=TaskStatus.RUNNING), expected=created.version
        )
        store.update(make.changed(created.record, status=TaskStatus.COMPLETED), expected=running.version)
    assert requests == {"PUT": 2}


def test_last_write_wins(s3_server, store, make):
    """Reads first, so that nothing comes back that was deleted."""
    created = store.create(make())
    with s3_server.counted() as requests:
        store.update(make.changed(created.record), expected=None)
    assert requests == {"GET": 1, "PUT": 1}


def test_delete(s3_server, store, make):
    """A look at the record and at its kind, which goes with it if it names this task."""
    created = store.create(make(status=TaskStatus.COMPLETED))
    with s3_server.counted() as requests:
        store.delete(created.record.key)
    assert requests == {"GET": 2, "DELETE": 1}
    created = store.create_if_no_active(make(status=TaskStatus.COMPLETED))
    with s3_server.counted() as requests:
        store.delete(created.record.key)
    assert requests == {"GET": 2, "DELETE": 2}


def test_create_if_no_active(s3_server, store, make):
    """A listing, the kind, and once the record is there a word in the kind. A refusal costs the listing."""
    with s3_server.counted() as requests:
        first = store.create_if_no_active(make())
    assert first is not None
    assert requests == {"LIST": 1, "PUT": 3, "GET": 1}
    with s3_server.counted() as requests:
        assert store.create_if_no_active(make()) is None
    assert requests == {"LIST": 1, "GET": 1}, "the listing shows a record that was not read yet"
    with s3_server.counted() as requests:
        assert store.create_if_no_active(make()) is None
    assert requests == {"LIST": 1}
    store.update(make.changed(first.record, status=TaskStatus.COMPLETED), expected=first.version)
    with s3_server.counted() as requests:
        assert store.create_if_no_active(make()) is not None
    assert requests == {"LIST": 1, "PUT": 4, "GET": 4}


@pytest.mark.slow
def test_list_50_of_1000(s3_server, store, root, make):
    """First the listing and as many reads as the page holds; then only what has changed."""
    records = make.many(1000, status=TaskStatus.COMPLETED)
    for record in records:
        s3_server.put(key_at(root, record.key), encode_record(record))
    with s3_server.counted() as requests:
        page = store.list(Query("acme", "alice", limit=50))
    assert [record for record, _ in page.items] == records[:-51:-1]
    assert requests == {"LIST": 1, "GET": 52}, "51, and one whose id could be younger than its record"
    with s3_server.counted() as requests:
        again = store.list(Query("acme", "alice", limit=50))
    assert again.items == page.items
    assert requests == {"LIST": 1}
    created = store.create(make())
    with s3_server.counted() as requests:
        page = store.list(Query("acme", "alice", limit=50))
    assert page.items[0].record == created.record
    assert requests == {"LIST": 2, "GET": 1}, "a page of a listing holds 1,000 names"
