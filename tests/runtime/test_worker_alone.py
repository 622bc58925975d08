"""A worker on a loop of its own ends within bounds, whatever its handlers do."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from stores import InMemoryTaskStore
from task_tracker import HandlerRegistry
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.worker import alone
from task_tracker.worker.alone import run_alone
from tests.core.support import PATIENCE
from tests.runtime.work import WORK, registry, until
from tests.runtime.workers import Crew, no_thread_is_left


@pytest.fixture(autouse=True)
def _fresh_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(alone, "UNWIND_SECONDS", 0.05)
    WORK.begin()
    with no_thread_is_left():
        yield


async def to_thread(ctx: Any, payload: Any) -> None:
    """Have a thread of the loop's own do the work, deaf to everything."""
    await asyncio.to_thread(lambda: WORK.wait_open(WORK.enter(ctx)))


async def stubborn(ctx: Any, payload: Any) -> None:
    """Refuse to be cancelled."""
    task_id = WORK.enter(ctx)
    while not WORK.is_open(task_id):
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            continue
    WORK.leave(ctx)


class Uncancellable(asyncio.Future[None]):
    def cancel(self, msg: object = None) -> bool:
        raise ValueError("this cannot be cancelled")


async def waiting(ctx: Any, payload: Any) -> None:
    """Wait for what breaks whoever cancels it."""
    WORK.enter(ctx)
    await Uncancellable()


def deaf() -> HandlerRegistry:
    made = registry()
    made.register("waiting", handler=f"{__name__}:waiting", cleanup_seconds=0.05)
    made.register("to_thread", handler=f"{__name__}:to_thread", cleanup_seconds=PATIENCE)
    made.register("stubborn", handler=f"{__name__}:stubborn", cleanup_seconds=0.05)
    return made


# ---- the worker --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["to_thread", "stubborn", "waiting"])
def test_a_run_ends_whatever_its_handlers_refuse(kind: str) -> None:
    """[D049] A thread of ``asyncio.to_thread``, a coroutine that swallows its cancellation, or waits for what breaks
    it: told, left, and counted."""
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore())
    tracker = crew.tracker(deaf())
    task = tracker.submit(kind, account_id="acme", user_id="alice").record
    worker = crew.worker(tracker, drain_seconds=0.0)
    left: list[int] = []
    thread = threading.Thread(target=lambda: left.append(worker.run()))
    thread.start()
    try:
        WORK.wait_begun()
        worker.ask_to_stop()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "it waits for what nobody can stop"
        assert left == [1], "the exit code of a process is 1"
        assert crew.seen(task).error_code == "interrupted"
    finally:
        WORK.open()
        thread.join(PATIENCE)


def test_working_once_ends_as_well() -> None:
    """[D049] The same for scripts: the attempt is out of time, its thread goes on."""
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore())
    tracker = crew.tracker(deaf())
    task = tracker.submit("to_thread", account_id="acme", user_id="alice", timeout_seconds=0.05).record
    try:
        assert crew.worker(tracker).run_once() == 1
        assert crew.seen(task).error_code == "timeout"
    finally:
        WORK.open()


# ---- the loop ----------------------------------------------------------------------------------------------------


def test_it_returns_what_came_of_it_and_leaves_nothing() -> None:
    async def main() -> str:
        return await asyncio.to_thread(lambda: "done")

    assert run_alone(main()) == ("done", 0, 0)


def test_it_raises_what_is_raised() -> None:
    async def main() -> None:
        raise ZeroDivisionError("of all things")

    with pytest.raises(ZeroDivisionError):
        run_alone(main())


def test_it_refuses_to_run_within_a_loop() -> None:
    async def inner() -> None: ...

    async def main() -> None:
        with pytest.raises(RuntimeError, match="an event loop runs in this thread"):
            run_alone(inner())

    asyncio.run(main())


def test_what_is_left_is_cancelled_and_its_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            ended.append("generator")

    async def left() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("task")
            raise ValueError("on its way out")

    async def main() -> Any:
        task = asyncio.create_task(left())
        started = numbers()
        await anext(started)
        return task, started

    with caplog.at_level(logging.ERROR, "task_tracker"):
        assert run_alone(main())[1:] == (0, 0)
    assert sorted(ended) == ["generator", "task"]
    assert "a task that was left at the end failed" in caplog.text


def test_calls_that_wait_for_a_thread_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "_THREADS", 1)
    begun, let_go = threading.Event(), threading.Event()
    made: list[str] = []

    def first() -> None:
        begun.set()
        assert let_go.wait(PATIENCE)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, first)
        loop.run_in_executor(None, made.append, "second")
        await until(begun.is_set)

    try:
        assert run_alone(main()) == (None, 0, 1)
    finally:
        let_go.set()
    assert made == []
