"""Attempts as tasks of an event loop: none disappears, none waits for what it merely started."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from typing import Any

import pytest

from task_tracker import LeaseLost
from task_tracker.testing import FakeClock
from task_tracker.worker import BlockingTaskContext, TaskContext, current_context
from task_tracker.worker.outcomes import Done
from tests.runtime.attempting import Bench, Gate, run, until


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_two_hundred_attempts_survive_the_garbage_collector(clock: FakeClock) -> None:
    """[D052] Each waits for a future that nobody else knows; all end, and nothing of them is kept."""
    waiting: list[Any] = []

    async def body(_: TaskContext) -> str:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(1.0, future.set_result, "done")
        waiting.append(None)
        value: str = await future
        return value

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        attempts = [bench.start(bench.claim(body)) for _ in range(200)]
        while len(waiting) < 200:
            gc.collect(0)
            await asyncio.sleep(0)
        gc.collect()
        await bench.advance(1.0)
        ended = await asyncio.gather(*attempts)
        assert {type(one.outcome) for one in ended} == {Done}
        await bench.rest()
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
