"""What a handler may say while it works: progress and checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from task_tracker import LeaseLost
from task_tracker.testing import FakeClock
from task_tracker.worker import BlockingTaskContext, Fail, TaskContext
from task_tracker.worker.outcomes import CancelledOutcome, Done, Failed, RetryAt
from tests.runtime.attempting import OWNER, Bench, Gate, attempted, run, until

both = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# ---- progress ----------------------------------------------------------------------------------------


@both
def test_a_thousand_ticks_are_few_writes_and_the_last_one_counts(clock: FakeClock, sync: bool) -> None:
    """[D152] One write for every two points; the end takes the rest along."""

    def in_thread(ctx: BlockingTaskContext) -> None:
        for number in range(1000):
            clock.advance(0.001)
            ctx.progress(number / 10)
        raise Fail("enough")

    async def on_loop(ctx: TaskContext) -> None:
        for number in range(1000):
            clock.advance(0.001)
            await ctx.progress(number / 10)
        raise Fail("enough")

    _, record, bench = attempted(clock, in_thread if sync else on_loop, sync=sync)
    assert record.progress == 99.9
    assert 45 <= bench.store.calls["commit"] <= 51


def test_slow_progress_is_written_every_second(clock: FakeClock) -> None:
    """[D152]"""

    async def body(ctx: TaskContext) -> list[int]:
        await ctx.progress(1)
        counts = []
        for percent, seconds in ((1.1, 0.4), (1.2, 0.4), (1.3, 0.4), (1.4, 0.0), (1.4, 5.0)):
            clock.advance(seconds)
            await ctx.progress(percent)
            counts.append(bench_of[0].store.calls["commit"])
        return counts

    bench_of: list[Bench] = []

    async def main() -> None:
        bench = Bench(clock)
        bench_of.append(bench)
        bench.handler()
        ended = await bench.attempt(body)
        assert ended.record is not None
        assert ended.record.result == [1, 1, 2, 2, 3]
        await bench.close()

    run(clock, main())


def test_new_words_are_always_written(clock: FakeClock) -> None:
    """[D152] [D153] And can be read while the handler runs."""
    seen: list[tuple[object, ...]] = []

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()

        async def body(ctx: TaskContext) -> None:
            for percent, message, stage in (
                (1, "one", None),
                (1, "two", None),
                (None, "two", None),
                (1.5, None, "parsing"),
                (None, "three, token=abcdef1234567890abcdef12", None),
            ):
                await ctx.progress(percent, message, stage)
                record = bench.tracker.get(ctx.key.task_id, **OWNER)
                assert record is not None
                seen.append((bench.store.calls["commit"], record.progress, record.message, record.stage))

        await bench.attempt(body)
        assert [one[0] for one in seen] == [1, 2, 2, 3, 4]
        assert seen[3][1:] == (1.5, "two", "parsing")
        assert "abcdef" not in str(seen[4])
        await bench.close()

    run(clock, main())


@both
def test_progress_that_is_none_is_refused(clock: FakeClock, sync: bool) -> None:
    wrong: list[tuple[Any, ...]] = [(-1,), (101,), (float("nan"),), ("5",), (True,), (5, 6), (5, "m", 7)]

    async def on_loop(ctx: TaskContext) -> None:
        for args in wrong:
            with pytest.raises((ValueError, TypeError), match="must be"):
                await ctx.progress(*args)

    def in_thread(ctx: BlockingTaskContext) -> None:
        for args in wrong:
            with pytest.raises((ValueError, TypeError), match="must be"):
                ctx.progress(*args)

    outcome, record, _ = attempted(clock, in_thread if sync else on_loop, sync=sync)
    assert isinstance(outcome, Done)
    assert record.progress is None


def test_steps_that_report_at_once_lose_nothing(clock: FakeClock) -> None:
    """[D152]"""

    async def body(ctx: TaskContext) -> None:
        async def step(number: int) -> None:
            await ctx.progress(message=f"step {number}")
            await ctx.progress(number)

        await asyncio.gather(*(step(number) for number in range(20)))
        await ctx.progress(90)

    _, record, _ = attempted(clock, body)
    assert (record.progress, record.message) == (100, "step 19")


# ---- checkpoints ---------------------------------------------------------------------------------------


@both
def test_the_next_attempt_goes_on_from_the_last_checkpoint(clock: FakeClock, sync: bool) -> None:
    """[D149] What at_least_once work needs."""
    read: list[Any] = []

    async def on_loop(ctx: TaskContext) -> str:
        read.append((ctx.attempt_count, ctx.last_checkpoint))
        await ctx.checkpoint({"chunks": ctx.attempt_count})
        read.append(ctx.last_checkpoint)
        if ctx.attempt_count == 1:
            raise OSError("again")
        return "done"

    def in_thread(ctx: BlockingTaskContext) -> str:
        read.append((ctx.attempt_count, ctx.last_checkpoint))
        ctx.checkpoint({"chunks": ctx.attempt_count})
        read.append(ctx.last_checkpoint)
        if ctx.attempt_count == 1:
            raise OSError("again")
        return "done"

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync, idempotent=True)
        claimed = bench.claim(in_thread if sync else on_loop, meta_json=b'{"note":"kept"}')
        assert isinstance((await bench.start(claimed)).outcome, RetryAt)
        assert isinstance((await bench.start(bench.claim_again(claimed[0].key))).outcome, Done)
        assert read == [(1, None), {"chunks": 1}, (2, {"chunks": 1}), {"chunks": 2}]
        assert bench.stored(claimed[0]).meta == {"note": "kept", "_checkpoint": {"chunks": 2}}
        await bench.close()

    run(clock, main())


@both
@pytest.mark.parametrize(
    "value", [object(), float("inf"), {"page": {"access_token": "x"}}, {"password": "p"}]
)
def test_a_checkpoint_that_could_not_be_read_back_is_refused(
    clock: FakeClock, sync: bool, value: object
) -> None:
    """Values of such names are masked when the task ends: whoever resumes it would read stars."""

    async def on_loop(ctx: TaskContext) -> None:
        await ctx.checkpoint(value)

    outcome, record, bench = attempted(
        clock, (lambda ctx: ctx.checkpoint(value)) if sync else on_loop, sync=sync
    )
    assert isinstance(outcome, Failed)
    assert record.error is not None
    assert "checkpoint" in record.error
    assert bench.store.calls["commit"] == 0


@both
def test_a_checkpoint_tells_of_a_cancel_and_is_kept(clock: FakeClock, sync: bool) -> None:
    """[D039] Whoever asked elsewhere wrote the wish into the store; this write meets it."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync)
        passed: list[str] = []

        def in_thread(ctx: BlockingTaskContext) -> None:
            bench.inner.request_cancel(ctx.key)
            ctx.checkpoint(7)
            passed.append("went on")

        async def on_loop(ctx: TaskContext) -> None:
            bench.inner.request_cancel(ctx.key)
            await ctx.checkpoint(7)
            passed.append("went on")

        claimed = bench.claim(in_thread if sync else on_loop)
        ended = await bench.start(claimed)
        assert ended.outcome == CancelledOutcome()
        assert passed == []
        await bench.close()

    run(clock, main())


@both
def test_a_stop_passes_by_code_that_catches_every_error(clock: FakeClock, sync: bool) -> None:
    """[D039]"""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync)
        gate = Gate()

        def in_thread(ctx: BlockingTaskContext) -> str:
            gate.pass_in_thread()
            try:
                ctx.check()
            except Exception:  # noqa: BLE001  # what careless code does
                return "swallowed"
            return "not told"

        async def on_loop(ctx: TaskContext) -> str:
            while not ctx.stopping:
                try:
                    await gate.pass_on_loop()
                    ctx.check()
                except Exception:  # noqa: BLE001  # what careless code does
                    return "swallowed"
            return "not told"

        claimed = bench.claim(in_thread if sync else on_loop)
        attempt = await bench.begin(claimed)
        await until(gate.entered.is_set)
        bench.tracker.cancel(claimed[0].key.task_id, **OWNER)
        gate.opened.set()
        assert (await attempt).outcome == CancelledOutcome()
        await bench.close()

    run(clock, main())


# ---- where it may be used --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda ctx: ctx.progress(50),
        lambda ctx: ctx.checkpoint({}),
        lambda ctx: ctx.submit("t"),
        lambda ctx: ctx.resource("client"),
        lambda ctx: ctx.detach(None),
        lambda ctx: ctx.transaction().__aenter__(),
    ],
    ids=["progress", "checkpoint", "submit", "resource", "detach", "transaction"],
)
def test_on_another_loop_a_context_is_refused(clock: FakeClock, call: Callable[[TaskContext], Any]) -> None:
    """What it waits for is told on the worker's loop; a resource would be bound to a loop that is about to end."""

    async def elsewhere(ctx: TaskContext) -> None:
        await call(ctx)

    async def body(ctx: TaskContext) -> None:
        await asyncio.to_thread(lambda: asyncio.run(elsewhere(ctx)))

    _, record, _ = attempted(clock, body)
    assert record.error is not None
    assert "run_coroutine_threadsafe" in record.error
    assert record.progress is None


def test_in_a_thread_a_resource_is_refused_once_the_loop_has_closed(clock: FakeClock) -> None:
    contexts: list[BlockingTaskContext] = []
    attempted(clock, contexts.append, sync=True)
    with pytest.raises(LeaseLost, match="is over"):
        contexts[0].resource("client")
