"""Resources as handlers ask for them: on the loop and in threads, while they work and when they are to stop."""

from __future__ import annotations

import asyncio

import pytest

from task_tracker.testing import FakeClock
from task_tracker.worker import BlockingTaskContext, ShuttingDown, TaskContext
from task_tracker.worker.outcomes import Done, Failed
from tests.runtime.attempting import OWNER, Bench, Gate, run, until, until_told
from tests.runtime.handling import BODIES

both = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@both
def test_handlers_get_the_same_one(clock: FakeClock, sync: bool) -> None:
    got: list[object] = []

    async def on_loop(ctx: TaskContext) -> None:
        got.append(await ctx.resource("client"))

    def in_thread(ctx: BlockingTaskContext) -> None:
        got.append(ctx.resource("client"))

    async def main() -> None:
        bench = Bench(clock)
        bench.registry.resource("client", object)
        bench.handler(sync=sync)
        ended = await asyncio.gather(*(bench.attempt(in_thread if sync else on_loop) for _ in range(8)))
        assert {type(one.outcome) for one in ended} == {Done}
        assert len({id(one) for one in got}) == 1
        await bench.close()

    run(clock, main())


@both
def test_a_resource_that_cannot_be_built_fails_the_task(clock: FakeClock, sync: bool) -> None:
    async def on_loop(ctx: TaskContext) -> None:
        await ctx.resource("client")

    def broken() -> None:
        raise ConnectionError("no route")

    async def main() -> None:
        bench = Bench(clock)
        bench.registry.resource("client", broken)
        bench.handler(sync=sync)
        ended = await bench.attempt((lambda ctx: ctx.resource("client")) if sync else on_loop)
        assert isinstance(ended.outcome, Failed)
        assert ended.outcome.error == "ConnectionError: no route"
        await bench.close()

    run(clock, main())


@pytest.mark.parametrize("how", ["cancel", "timeout", "shutdown"])
def test_a_thread_that_waits_for_a_resource_hears_that_it_is_to_stop(clock: FakeClock, how: str) -> None:
    """[D039] [D048] It need not wait for a build that hangs; others do who were not told."""
    gate = Gate()
    told: list[str] = []

    async def build() -> str:
        await gate.pass_on_loop()
        return "built"

    def body(ctx: BlockingTaskContext) -> object:
        try:
            return ctx.resource("client")
        except BaseException as error:
            told.append(type(error).__name__)
            raise

    async def main() -> None:
        bench = Bench(clock)
        bench.registry.resource("client", build)
        bench.handler(sync=True, timeout_seconds=60.0, cleanup_seconds=5.0)
        bench.handler("patient", sync=True)
        claimed = bench.claim(body)
        attempt = await bench.begin(claimed)
        patient = await bench.begin(bench.claim(body, "patient")) if how != "shutdown" else None
        await until(gate.entered.is_set)
        if how == "cancel":
            bench.tracker.cancel(claimed[0].key.task_id, **OWNER)
        elif how == "timeout":
            await bench.advance(60.0)
        else:
            bench.executor.interrupt()
        await attempt
        await until(lambda: told)
        names = {"cancel": "Cancelled", "timeout": "OutOfTime", "shutdown": "ShuttingDown"}
        assert told == [names[how]]
        statuses = {"cancel": ("cancelled", None), "timeout": ("failed", "timeout")}
        record = bench.stored(claimed[0])
        assert (record.status, record.error_code) == statuses.get(how, ("failed", "interrupted"))
        gate.opened.set()
        if patient is not None:
            ended = await patient
            assert ended.record is not None
            assert ended.record.result == "built"
        await until(lambda: not bench.executor.left_behind)
        await bench.close()

    run(clock, main())


def test_a_hook_may_use_a_resource_although_its_handler_was_told_to_stop(clock: FakeClock) -> None:
    """[D150]"""

    async def main() -> None:
        bench = Bench(clock)
        bench.registry.resource("client", lambda: "built")
        bench.handler(sync=True, hook="thread", timeout_seconds=60.0)
        got: list[object] = []
        BODIES["hook"] = lambda ctx, _: got.append(ctx.resource("client"))
        attempt = await bench.begin(bench.claim(until_told))
        await bench.advance(60.0)
        ended = await attempt
        assert ended.record is not None
        assert (ended.record.hook_error, got) == (None, ["built"])
        await bench.close()

    run(clock, main())


def test_a_thread_that_waits_for_a_resource_when_the_worker_ends(clock: FakeClock) -> None:
    """[D047] It is told why."""
    gate = Gate()
    told: list[type[BaseException]] = []

    async def build() -> None:
        gate.entered.set()
        await asyncio.get_running_loop().create_future()

    def body(ctx: BlockingTaskContext) -> None:
        try:
            ctx.resource("client")
        except BaseException as error:
            told.append(type(error))
            raise

    async def main() -> None:
        bench = Bench(clock)
        bench.registry.resource("client", build)
        bench.handler(sync=True)
        await bench.begin(bench.claim(body))
        await until(gate.entered.is_set)
        await bench.close()
        await until(lambda: told)
        assert told == [ShuttingDown]

    run(clock, main())
