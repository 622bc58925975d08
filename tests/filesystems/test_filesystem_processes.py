"""The persistent store on file systems of fsspec: processes, forks, event loops and threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from stores.files.filesystem import FilesystemFiles
from stores.files.probing import Findings
from task_tracker import AsyncTaskTracker, TaskTracker
from task_tracker.codec import encode_record
from task_tracker.errors import VersionConflict
from task_tracker.records import TaskStatus
from task_tracker.testing import RecordMaker
from task_tracker.testing.racing import race
from tests.files.support import DIRECTORY, PATIENCE, fetch, ids, path_of, swap
from tests.files.test_breakage_forks import fork
from tests.filesystems.odd import OneLoop
from tests.filesystems.support import files_on, opened

# ---- processes and event loops -------------------------------------------------------------------------


def one_loop(root: Path) -> OneLoop:
    return OneLoop(base=str(root), skip_instance_cache=True)


def test_a_file_system_of_coroutines(root: Path, make: RecordMaker) -> None:
    files = files_on(one_loop(root))
    assert files.found == Findings(moves=True, puts=False, exclusive="put", exclusive_whole=True)
    store = opened(one_loop(root))
    record = make()
    store.create(record)
    assert path_of(root, record.key).read_bytes() == encode_record(record)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_event_loops_come_and_go(root: Path, asynchronous: bool) -> None:
    """[D092] asyncio.run three times, plain calls in between, ten first calls at once."""
    fs = OneLoop(base=str(root), asynchronous=asynchronous, skip_instance_cache=True)
    store = opened(fs)
    plain = TaskTracker(store)
    tracker = AsyncTaskTracker(plain)
    for turn in range(3):

        async def work(turn: int = turn) -> None:
            tasks = await asyncio.gather(
                *(
                    tracker.create("ingest", f"{turn}-{n}", account_id="acme", user_id="alice")
                    for n in range(10)
                )
            )
            for task in tasks:
                await tracker.complete(task.task_id, {"turn": turn})

        asyncio.run(work())
        plain.create("ingest", f"plain-{turn}", account_id="acme", user_id="alice")
        # Also where a loop runs: a blocking call in a coroutine is bad manners, not an error.
        assert len(asyncio.run(_listed(plain))) == (turn + 1) * 11
    tracker.close()


async def _listed(tracker: TaskTracker) -> Any:
    return tracker.list_tasks(account_id="acme", limit=None)


def test_ten_first_calls_after_a_fork_or_a_start(root: Path, make: RecordMaker) -> None:
    """[D092] The instance is built once, by whoever comes first."""
    store = opened(one_loop(root))
    files = store._files
    assert isinstance(files, FilesystemFiles)
    built: list[int] = []
    make_instance = files._connection._make

    def make_and_count() -> Any:
        built.append(1)
        return make_instance()

    files._connection._make = make_and_count
    files._connection.renew()
    records = make.many(10)
    outcomes = race(*(lambda r=record: store.create(r) for record in records))
    assert [error for error in outcomes if isinstance(error, Exception)] == []
    assert len(built) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_child_builds_its_own(root: Path, make: RecordMaker, wrapped: bool) -> None:
    """[D091] Built in the parent, used in children that it forks, and in the parent afterwards. Nothing hangs."""
    fs: Any = one_loop(root)
    store = opened(DirFileSystem(path="inner", fs=fs) if wrapped else fs)
    ours, theirs = make(), make()
    store.create(ours)

    def work() -> None:
        assert fetch(store, ours.key) == ours
        store.create(theirs)

    child = fork(work)
    assert os.waitpid(child, 0)[1] == 0
    assert ids(store) == [theirs.task_id, ours.task_id]
    store.update(make.changed(ours, status=TaskStatus.COMPLETED), expected=None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_was_forked_while_threads_were_at_it(root: Path, make: RecordMaker) -> None:
    """[D091] Locks that they held are nobody's in the child."""
    store = opened(one_loop(root))
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with store._files.exclusively(DIRECTORY, make=True):
            held.set()
            done.wait(PATIENCE)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    held.wait(PATIENCE)
    child = fork(lambda: store.create(make("by-child")))
    assert os.waitpid(child, 0)[1] == 0
    done.set()
    thread.join(PATIENCE)
    assert ids(store) == ["by-child"]


# ---- memory --------------------------------------------------------------------------------------------


def test_memory_promises_what_threads_can_rely_upon(make: RecordMaker) -> None:
    fs = MemoryFileSystem()
    try:
        store, other = opened("memory://threads"), opened(DirFileSystem(path="/threads", fs=fs))
        assert store.capabilities == other.capabilities
        assert store.capabilities.compare_and_set
        assert not store.capabilities.shared
        assert not store.capabilities.durable
        record = make(revision=0)
        store.create(record)

        def count(mine: Any) -> None:
            for _ in range(20):
                while True:
                    stored = mine.get(record.key)
                    changed = make.changed(stored.record, revision=(stored.record.revision or 0) + 1)
                    with contextlib.suppress(VersionConflict):
                        mine.update(changed, expected=stored.version)
                        break

        outcomes = race(*(lambda mine=mine: count(mine) for mine in (store, other, store, other)))
        assert outcomes == [None] * 4
        assert fetch(store, record.key).revision == 80
    finally:
        fs.rm("/threads", recursive=True)


def test_memory_that_is_nobody_elses(make: RecordMaker) -> None:
    """An instance with a dict of its own is used as it is: one that is built like it would be empty."""

    def own() -> MemoryFileSystem:
        fs = MemoryFileSystem(skip_instance_cache=True)
        swap(fs, store={}, pseudo_dirs=[""])
        return fs

    fs = own()
    store = opened(fs)
    record = make()
    store.create(record)
    assert ids(opened(fs)) == [record.task_id]
    assert ids(opened(own())) == []
