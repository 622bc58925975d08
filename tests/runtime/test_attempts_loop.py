"""Attempts as tasks of an event loop: none disappears, none waits for what it merely started."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from typing import Any

import pytest

from task_tracker import LeaseLost
from task_tracker.store import Lease, Stored
from task_tracker.testing import FakeClock
from task_tracker.worker import BlockingTaskContext, TaskContext, current_context
from task_tracker.worker.outcomes import Done
from tests.runtime.attempting import Bench, Gate, run, until


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_two_hundred_attempts_survive_the_garbage_collector(clock: FakeClock) -> None:
    """[D052] Each waits for a future that nobody else keeps, and so does what it detached; nothing stays of them.

    The test has but weak references, to the futures: whatever the library loses hold of, they go with it.
    """
    waiting: weakref.WeakSet[asyncio.Future[str]] = weakref.WeakSet()
    made: list[None] = []
    said: list[str] = []

    async def wait() -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiting.add(future)
        made.append(None)
        return await future

    async def detached() -> None:
        said.append(await wait())

    async def body(ctx: TaskContext) -> str:
        ctx.detach(detached())
        return await wait()

    async def attempt(bench: Bench, claimed: tuple[Lease, Stored]) -> None:
        ended = await bench.executor.execute(*claimed)
        assert isinstance(ended.outcome, Done)
        said.append("attempt")

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        started: weakref.WeakSet[asyncio.Task[None]] = weakref.WeakSet()
        for _ in range(200):
            started.add(asyncio.create_task(attempt(bench, bench.claim(body))))
        while len(made) < 400:
            gc.collect(0)
            await asyncio.sleep(0)
        gc.collect()
        assert len(waiting) == 400
        for future in list(waiting):
            future.set_result("done")
            del future
        await until(lambda: len(said) == 400)
        await bench.rest()
        gc.collect()
        assert (len(waiting), len(started)) == (0, 0)
        assert bench.executor.running == 0
        assert len(bench.executor._kept) == 0
        await bench.close()

    run(clock, main())


def test_follow_up_work_does_not_keep_a_task_from_ending(clock: FakeClock) -> None:
    """[D044] What a handler starts and does not await is no part of it, and is refused when it thinks it is."""
    gate = Gate()
    seen: dict[str, Any] = {}

    async def follow_up() -> None:
        context = current_context()
        assert isinstance(context, TaskContext)
        await gate.pass_on_loop()
        with pytest.raises(LeaseLost, match="is over"):
            await context.progress(50)
        with pytest.raises(LeaseLost, match="is over"):
            await context.checkpoint(1)
        seen["refused"] = True

    async def body(ctx: TaskContext) -> str:
        seen["task"] = asyncio.create_task(follow_up())
        await until(gate.entered.is_set)
        return "done"

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        ended = await bench.attempt(body)
        assert isinstance(ended.outcome, Done)
        assert ended.record is not None
        assert bench.stored(ended.record.key).status == "completed"
        gate.opened.set()
        await seen["task"]
        assert seen["refused"]
        assert bench.stored(ended.record.key) == ended.record
        assert current_context() is None
        await bench.close()

    run(clock, main())


def test_detached_work_knows_nothing_of_the_task(clock: FakeClock) -> None:
    """[D044] [D052] It outlives the attempt, is kept while it runs, and has no context to write through."""
    gate = Gate()
    seen: list[object] = []

    async def independent() -> str:
        seen.append(current_context())
        await gate.pass_on_loop()
        return "later"

    async def body(ctx: TaskContext) -> str:
        seen.append(ctx.detach(independent()))
        assert current_context() is ctx
        return "done"

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        ended = await bench.attempt(body)
        assert isinstance(ended.outcome, Done)
        await until(gate.entered.is_set)
        task, context = seen
        assert context is None
        assert isinstance(task, asyncio.Task)
        gate.opened.set()
        assert await task == "later"
        await bench.close()

    run(clock, main())


def test_detached_work_that_fails_is_logged(clock: FakeClock, caplog: Any) -> None:
    """[D055]"""

    async def breaks() -> None:
        raise ValueError("nobody awaits this")

    async def body(ctx: TaskContext) -> None:
        ctx.detach(breaks())

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        assert isinstance((await bench.attempt(body)).outcome, Done)
        await bench.rest()
        await bench.close()

    caplog.set_level(logging.ERROR)
    run(clock, main())
    assert "nobody awaits this" in caplog.text


def test_detached_work_ends_with_the_worker(clock: FakeClock) -> None:
    """[D044] It was lost anyway; nothing is left on the loop."""
    ended: list[bool] = []

    async def endless() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(True)

    async def body(ctx: TaskContext) -> None:
        ctx.detach(endless())

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        await bench.attempt(body)
        await bench.rest()
        await bench.close()
        assert ended == [True]

    run(clock, main())


def test_a_thread_knows_its_task(clock: FakeClock) -> None:
    """[D044]"""

    def body(ctx: BlockingTaskContext) -> bool:
        return current_context() is ctx

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=True)
        ended = await bench.attempt(body)
        assert ended.record is not None
        assert ended.record.result is True
        await bench.close()

    run(clock, main())


def test_attempts_of_an_executor_that_was_closed_leave_no_threads(clock: FakeClock) -> None:
    """[D050]"""
    before = set(threading.enumerate())

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=True)
        await asyncio.gather(*(bench.attempt(lambda _: 1) for _ in range(20)))
        started = set(threading.enumerate()) - before
        named = [thread for thread in started if "task_tracker call" in thread.name]
        assert 0 < len(named) <= 8  # four for handlers, four for imports and hooks
        await bench.close()

    run(clock, main())
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive()
