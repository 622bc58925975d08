"""Forked children and event loops: the library has threads of its own, which neither may upset. [D091] [D092]"""

import asyncio
import multiprocessing
import os
import signal
import sys
import tempfile
import warnings
from functools import partial

import pytest

from stores.files import objects_library
from stores.files.persistent import PersistentTaskStore
from task_tracker import AsyncTaskTracker, TaskTracker
from task_tracker.errors import StoreUnavailable
from task_tracker.testing import RecordMaker
from task_tracker.testing.answers import fetch, listed
from task_tracker.testing.racing import race
from tests.objects.support import open_on

PATIENCE_SECONDS = 60

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@pytest.fixture
def store(s3_server):
    return open_on(s3_server, s3_server.new_root())


@pytest.fixture
def make():
    return RecordMaker()


INHERITED: dict[str, PersistentTaskStore] = {}
"""What a pool's processes have from their parent; a store cannot be sent to them."""


def create_inherited(record):
    INHERITED["store"].create(record)


def in_child(work):
    """Run ``work`` in a forked child and return how it ended: 0, or 1 if it raised. One that hangs is killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 says that forking with threads is risky
        pid = os.fork()
    if pid == 0:
        signal.alarm(PATIENCE_SECONDS)
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # nothing may leave the child
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@needs_fork
class TestForks:
    def test_store_that_was_used_before_the_fork(self, store, make):
        """As servers do that load the application first and fork then: child and parent go on."""
        before, mine, its = make(), make(), make()
        store.create(before)

        def child():
            assert fetch(store, before.key).record == before
            store.create(its)
            assert listed(store) == [its, before]

        assert in_child(child) == 0
        assert fetch(store, its.key).record == its
        store.create(mine)
        assert len(listed(store)) == 3

    def test_store_that_was_not_used_before_the_fork(self, store, make):
        record = make()
        assert in_child(lambda: store.create(record)) == 0
        assert listed(store) == [record]

    def test_children_of_children_and_new_stores_in_them(self, s3_server, store, make):
        records, other_root = make.many(3), s3_server.new_root()
        store.create(records[0])

        def grandchild():
            open_on(s3_server, other_root).create(make())
            store.create(records[2])

        def child():
            store.create(records[1])
            assert in_child(grandchild) == 0

        assert in_child(child) == 0
        assert listed(store) == records[::-1]

    def test_pool_of_forked_processes(self, store, make, monkeypatch):
        """Eight calls in two children, while the parent has threads in the middle of requests."""
        monkeypatch.setitem(INHERITED, "store", store)
        records = make.many(16)
        store.create(make("first"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pool = multiprocessing.get_context("fork").Pool(2)
        with pool:
            theirs = pool.map_async(create_inherited, records[:8])
            race(*(partial(store.create, record) for record in records[8:]))
            assert len(theirs.get(PATIENCE_SECONDS)) == 8
            pool.close()
            pool.join()
        assert len(listed(store)) == 17

    def test_copy_that_cannot_be_loaded_raises_at_once(self, store, make, monkeypatch):
        """Never hangs: it says what to do instead."""

        def refuse(original):
            raise PermissionError(1, "Operation not permitted")

        store.create(make())
        monkeypatch.setattr(objects_library, "_second_file", refuse)

        def child():
            with pytest.raises(StoreUnavailable, match="spawn"):
                store.create(make())

        assert in_child(child) == 0

    def test_copy_on_systems_without_memory_files(self, store, make, monkeypatch):
        monkeypatch.delattr(os, "memfd_create", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")  # nothing that is in /dev/shm may be run, often
        store.create(make())
        record = make()
        assert in_child(lambda: store.create(record)) == 0
        assert fetch(store, record.key).record == record


class TestLoops:
    def test_several_loops_one_after_the_other(self, store):
        """No loop is remembered: each ``asyncio.run`` makes its own. [D092]"""

        async def create():
            tracker = AsyncTaskTracker(TaskTracker(store))
            created = await tracker.create("reindex", account_id="acme", user_id="alice")
            return await tracker.get(created.task_id, account_id="acme", user_id="alice")

        created = [asyncio.run(create()).task_id for _ in range(3)]
        assert [record.task_id for record in listed(store)] == created[::-1]

    def test_first_calls_at_once(self, store):
        """Ten coroutines on a store that nobody has used yet, and plain calls among them. [D092]"""

        async def create():
            tracker = AsyncTaskTracker(TaskTracker(store))
            calls = [
                tracker.create("reindex", f"r{n}", account_id="acme", user_id="alice") for n in range(10)
            ]
            created = await asyncio.gather(*calls)
            assert len(listed(store)) == 10
            return created

        assert len({record.task_id for record in asyncio.run(create())}) == 10
