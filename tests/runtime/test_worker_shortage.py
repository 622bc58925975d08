"""Systems that have no thread for another handler: what a worker claims then, and what it says of itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from stores import InMemoryTaskStore
from task_tracker import HandlerRegistry
from task_tracker.clock import SYSTEM_CLOCK
from tests.core.support import PATIENCE
from tests.runtime.work import WORK, registry, until
from tests.runtime.workers import Crew, network

pytestmark = pytest.mark.usefixtures("fresh_work")


@pytest.fixture
def crew() -> Crew:
    return Crew(SYSTEM_CLOCK, InMemoryTaskStore())


@contextmanager
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """The system has none more for calls: those that there are go on. Gives what was refused."""
    start = threading.Thread.start
    refused: list[object] = []

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "task_tracker call":
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        yield refused


def imported() -> HandlerRegistry:
    """The handlers, imported as a worker process does when it starts."""
    handlers = registry(idempotent=True)
    handlers.check()
    return handlers


def looks(claims: Callable[[], int]) -> Callable[[], bool]:
    """Return a condition: the worker has looked for work several times since."""
    before = claims()
    return lambda: claims() >= before + 5


def test_what_needs_a_thread_is_left_to_others_until_there_is_one(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """[D160] One runs in a thread; the second finds none, and no other is claimed. Coroutines go on."""
    tracker = crew.tracker(imported())

    async def scenario() -> None:
        async with crew.worker(tracker, concurrency=4, poll_seconds=(0.001, 0.001)) as worker:
            first = crew.submit("hold_thread")
            await until(lambda: len(WORK.runs) == 1)
            assert worker.status().ready
            with no_threads(monkeypatch):
                second = crew.submit("hold_thread")
                await until(lambda: worker.status().no_thread)
                assert not worker.status().ready
                third = crew.submit("hold_thread")
                note = crew.submit("note")
                await until(lambda: crew.seen(note).status == "completed")
                await until(looks(lambda: network(tracker).calls["claim"]))
                assert crew.seen(third).status == "pending"
                assert crew.seen(third).attempt is None or crew.seen(third).attempt.count == 0  # type: ignore[union-attr]
                assert WORK.begun == [first.task_id, note.task_id]
            # One that has ended has left a thread, and there are new ones.
            await until(lambda: worker.status().ready)
            await until(lambda: crew.seen(third).status == "running")
            WORK.open()
            await until(lambda: crew.seen(third).status == crew.seen(first).status == "completed")
            await until(lambda: crew.seen(second).status in ("completed", "pending"))

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
    assert caplog.text.count("the system has no thread for another handler") == 1


def test_threads_that_there_are_go_on_working(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with one thread where it wanted four works like one with one slot."""
    tracker = crew.tracker(imported())
    WORK.open()

    async def scenario() -> None:
        async with crew.worker(tracker, concurrency=4, poll_seconds=(0.001, 0.001)) as worker:
            first = crew.submit("hold_thread")
            await until(lambda: crew.seen(first).status == "completed")
            with no_threads(monkeypatch):
                worker._shift._executor.shortage.note(RuntimeError("none"))  # type: ignore[union-attr]
                tasks = [crew.submit("hold_thread") for _ in range(5)]
                await until(lambda: all(crew.seen(task).status == "completed" for task in tasks))
                assert worker.status().no_thread
            await until(lambda: worker.status().ready)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
    assert WORK.most_at_once == 1


def test_what_was_never_imported_takes_a_thread_more(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coroutine too: its module is imported in a thread."""
    tracker = crew.tracker(registry())

    async def scenario() -> None:
        async with crew.worker(tracker, concurrency=4, poll_seconds=(0.001, 0.001)) as worker:
            with no_threads(monkeypatch) as refused:
                crew.submit("note")
                await until(lambda: worker.status().no_thread)
                second = crew.submit("note")
                await until(looks(lambda: len(refused)))
                assert crew.seen(second).status == "pending"
                assert WORK.runs == []
            await until(lambda: crew.seen(second).status == "completed")
            assert worker.status().ready

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_a_worker_that_has_no_thread_to_claim_in_is_not_ready(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = crew.tracker(imported())
    tracker.store.blocking = True  # type: ignore[misc]  # as a disk is

    async def scenario() -> None:
        with no_threads(monkeypatch):
            worker = crew.worker(tracker, poll_seconds=(0.001, 0.001))
            await worker.start()
            await until(lambda: worker.status().no_thread)
            assert not worker.status().ready
        task = crew.submit("note")
        await until(lambda: crew.seen(task).status == "completed")
        await until(lambda: worker.status().ready)
        await worker.stop()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
