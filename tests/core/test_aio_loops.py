"""One AsyncTaskTracker, many loops and threads, before and after a fork."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stores import InMemoryTaskStore
from task_tracker import AsyncTaskTracker, TaskRecord, TaskTracker
from task_tracker.store import TaskStore
from tests.core.support import OWNER, WatchedStore, in_threads, join

ROOT = Path(__file__).parents[2]


def store_of(kind: str) -> TaskStore:
    return WatchedStore() if kind == "blocking" else InMemoryTaskStore()


each_kind = pytest.mark.parametrize("kind", ["blocking", "memory"])


@each_kind
def test_one_run_after_another(kind: str) -> None:
    """[D126]"""
    tracker = AsyncTaskTracker(TaskTracker(store_of(kind)))

    async def begin() -> TaskRecord:
        task = await tracker.create("t", **OWNER)
        await tracker.start(task.task_id)
        return task

    async def end(task: TaskRecord) -> TaskRecord:
        waiting = asyncio.create_task(tracker.wait(task.task_id, poll_interval=3600.0))
        await asyncio.sleep(0)
        await tracker.complete(task.task_id, 1)
        return await waiting

    task = asyncio.run(begin())
    assert asyncio.run(end(task)).result == 1
    asyncio.run(tracker.aclose())


@each_kind
def test_four_threads_with_loops_of_their_own(kind: str) -> None:
    """[D126] contended: all write the same task, and wait for one another's."""
    tracker = AsyncTaskTracker(TaskTracker(store_of(kind)), max_threads=3)
    shared = tracker.tracker.create("shared", **OWNER)

    async def work(number: int) -> str:
        own = await tracker.create("t", str(number), **OWNER)
        await asyncio.gather(*[tracker.update(shared.task_id, message=f"{number} {n}") for n in range(10)])
        await tracker.complete(own.task_id, number)
        waiting = asyncio.create_task(tracker.wait(shared.task_id, poll_interval=0.01))
        if number == 3:
            await tracker.complete(shared.task_id, "done")
        return str((await waiting).result)

    answers = in_threads(*[lambda n=n: asyncio.run(work(n)) for n in range(4)])
    refused = [answer for answer in answers if isinstance(answer, ValueError)]
    assert len(refused) < 4
    assert all(answer == "done" for answer in answers if answer not in refused)
    assert all("which is completed" in str(answer) for answer in refused), "came after the end, and was told"
    tracker.close()


def test_a_loop_that_is_closed_during_a_call_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """[D126] the call goes to its end, the tracker serves the next loop."""
    store = WatchedStore()
    tracker = AsyncTaskTracker(TaskTracker(store))
    task = tracker.tracker.create("t", **OWNER)
    gate = store.gate("update", task.task_id)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    writing = loop.create_task(tracker.start(task.task_id))
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(loop.run_in_executor(None, gate.wait_entered))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    gate.open()
    tracker.tracker.access._locks  # noqa: B018  # the write is under way in its thread
    found = asyncio.run(tracker.get(task.task_id))
    assert found is not None
    tracker.close()
    assert tracker.tracker.get(task.task_id).status == "running"  # type: ignore[union-attr]
    assert not writing.done()
    writing._log_destroy_pending = False  # type: ignore[attr-defined]  # that is what this test does on purpose
    writing.get_coro().close()


def test_a_tracker_made_in_one_thread_is_closed_in_another() -> None:
    """[D126]"""
    tracker = AsyncTaskTracker(TaskTracker(WatchedStore()))
    asyncio.run(tracker.create("t", **OWNER))
    thread = threading.Thread(target=lambda: asyncio.run(tracker.aclose()), daemon=True)
    thread.start()
    join(thread)


PROGRAM = """
import asyncio, sys

class NoLoop(asyncio.AbstractEventLoopPolicy):
    "Whatever belongs to a loop asks for it here."
    def get_event_loop(self):
        raise AssertionError("a loop was asked for")
    new_event_loop = set_event_loop = get_event_loop

asyncio.set_event_loop_policy(NoLoop())
import task_tracker, stores.memory, task_tracker.aio, task_tracker.config
tracker = task_tracker.AsyncTaskTracker()
blocking = task_tracker.StorageConfig(task_tracker={"backend": "persistent", "root": sys.argv[1]})
blocking.build_async_task_tracker().close()
tracker.close()
print("fine")
"""


def test_import_and_construction_ask_for_no_loop(tmp_path: Path) -> None:
    """[D126]"""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_gets_threads_of_its_own() -> None:
    """As a server that forks its workers after loading; checked in a process without other threads."""
    program = """
import asyncio, os, sys
from task_tracker import AsyncTaskTracker, TaskTracker
from tests.core.support import OWNER, WatchedStore

tracker = AsyncTaskTracker(TaskTracker(WatchedStore()))
task = asyncio.run(tracker.create("t", **OWNER))
tracker.start_cleanup_loop()
child = os.fork()
if child == 0:
    tracker.start_cleanup_loop()
    asyncio.run(tracker.start(task.task_id))
    found = asyncio.run(tracker.get(task.task_id))
    tracker.close()
    os._exit(7 if found.status == "running" else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert asyncio.run(tracker.get(task.task_id)).status == "pending"
tracker.close()
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
