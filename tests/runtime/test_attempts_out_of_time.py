"""Timeouts, and the shutdown of a worker: how long a handler may go on, and what becomes of its task."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from task_tracker import LeaseLost, SettingsError
from task_tracker.testing import FakeClock
from task_tracker.worker import (
    BlockingTaskContext,
    Fail,
    OutOfTime,
    Retry,
    ShuttingDown,
    TaskContext,
)
from task_tracker.worker.outcomes import Done, Failed, Interrupted, TimedOut
from tests.runtime.attempting import OWNER, Bench, Gate, for_ever, run, until, until_told

both = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])

DAY = 86_400.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# ---- timeout -----------------------------------------------------------------------------------------


def test_a_handler_that_is_out_of_time_cleans_up_before_its_slot_is_free(clock: FakeClock) -> None:
    """[D048]"""
    log: list[str] = []

    async def body(ctx: TaskContext) -> None:
        try:
            await for_ever(ctx)
        finally:
            await asyncio.sleep(4.0)
            log.append("cleaned up")

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(timeout_seconds=10.0, cleanup_seconds=5.0)
        claimed = bench.claim(body)
        attempt = await bench.begin(claimed)
        await bench.advance(10.0)
        assert not attempt.done()
        await bench.advance(4.0)
        ended = await attempt
        log.append("free")
        assert log == ["cleaned up", "free"]
        assert (ended.outcome, ended.handler_ended) == (TimedOut(10.0), None)
        await bench.close()

    run(clock, main())


@both
def test_each_of_several_is_told_at_its_own_time(clock: FakeClock, sync: bool) -> None:
    """Whichever began first, and whatever has ended meanwhile; one that begins when all are over has its time too."""
    seconds = {"slow": 30.0, "fast": 10.0, "done": 5.0, "also slow": 30.0}
    gate = Gate()

    async def main() -> None:
        bench = Bench(clock)
        for task_type, timeout_seconds in seconds.items():
            bench.handler(task_type, sync=sync, timeout_seconds=timeout_seconds, cleanup_seconds=0.0)
        passes = gate.pass_in_thread if sync else gate.pass_on_loop
        bodies = dict.fromkeys(seconds, until_told if sync else for_ever) | {"done": lambda _: passes()}
        attempts = {
            task_type: await bench.begin(bench.claim(bodies[task_type], task_type)) for task_type in seconds
        }
        gate.opened.set()
        assert isinstance((await attempts["done"]).outcome, Done)
        await bench.advance(9.0)
        assert not any(attempts[task_type].done() for task_type in seconds if task_type != "done")
        await bench.advance(1.0)
        assert (await attempts["fast"]).outcome == TimedOut(10.0)
        await bench.advance(19.0)
        assert not attempts["slow"].done()
        await bench.advance(1.0)
        for task_type in ("slow", "also slow"):
            assert (await attempts[task_type]).outcome == TimedOut(30.0)
        last = await bench.begin(bench.claim(bodies["fast"], "fast"))
        await bench.advance(9.0)
        assert not last.done()
        await bench.advance(1.0)
        assert (await last).outcome == TimedOut(10.0)
        await bench.close()

    run(clock, main())


@both
def test_a_result_that_comes_after_the_time_does_not_count(clock: FakeClock, sync: bool) -> None:
    """[D057] Who is out of time cannot complete the task any more."""

    async def body(ctx: TaskContext) -> str:
        try:
            await for_ever(ctx)
        except asyncio.CancelledError:
            return "late"
        return "never"

    def in_thread(ctx: BlockingTaskContext) -> str:
        with pytest.raises(OutOfTime):
            until_told(ctx)
        with pytest.raises(OutOfTime):
            ctx.checkpoint({"n": 1})
        return "late"

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync, timeout_seconds=10.0)
        claimed = bench.claim(in_thread if sync else body)
        attempt = await bench.begin(claimed)
        await bench.advance(10.0)
        ended = await attempt
        assert ended.outcome == TimedOut(10.0)
        assert bench.stored(claimed[0]).result is None
        await until(lambda: not bench.executor.left_behind)
        assert bench.stored(claimed[0]).error_code == "timeout"
        await bench.close()

    run(clock, main())


def test_a_thread_that_is_out_of_time_keeps_its_slot_until_it_ends(clock: FakeClock) -> None:
    """[D050] [D057] The task has failed at once; the thread is counted, told, and refused when it comes."""
    gate, refused = Gate(), []

    def body(ctx: BlockingTaskContext) -> None:
        gate.pass_in_thread()
        for late in (lambda: ctx.checkpoint({"late": True}), lambda: ctx.progress(99)):
            try:
                late()
            except (OutOfTime, LeaseLost) as error:
                refused.append(type(error).__name__)

    async def main() -> None:
        bench = Bench(clock, threads=2)
        bench.handler(sync=True, timeout_seconds=1.0, cleanup_seconds=60.0)
        claimed = bench.claim(body)
        attempt = await bench.begin(claimed)
        await until(gate.entered.is_set)
        await bench.advance(1.0)
        ended = await attempt
        assert bench.stored(claimed[0]).error_code == "timeout"
        assert ended.handler_ended is not None
        assert not ended.handler_ended.done()
        assert bench.executor.left_behind == 1
        before = bench.stored(claimed[0])
        gate.opened.set()
        await ended.handler_ended
        assert refused == ["OutOfTime", "LeaseLost"]
        assert bench.stored(claimed[0]) == before
        await until(lambda: not bench.executor.left_behind)
        await bench.close()

    run(clock, main())


def test_threads_of_handlers_that_hang_are_bounded(clock: FakeClock) -> None:
    """[D050] Fifty that hang take two threads; the others are out of time before they began."""
    gate = Gate()
    began: list[int] = []

    def hangs(_: BlockingTaskContext) -> None:
        began.append(threading.get_ident())
        gate.pass_in_thread()

    async def main() -> None:
        bench = Bench(clock, threads=2)
        bench.handler(sync=True, timeout_seconds=1.0)
        await bench.attempt(lambda _: "imports the handler, for which the others need not wait then")
        attempts = [bench.start(bench.claim(hangs)) for _ in range(50)]
        await until(lambda: len(began) == 2)
        await bench.advance(1.0)
        ended = await asyncio.gather(*attempts)
        assert [one.outcome for one in ended] == [TimedOut(1.0)] * 50
        assert len(set(began)) == 2
        assert bench.executor.left_behind == 2
        gate.opened.set()
        await until(lambda: not bench.executor.left_behind)
        assert len(began) == 2  # those that were taken back never begin
        done = await bench.attempt(lambda _: "and then it works")
        assert isinstance(done.outcome, Done)
        await bench.close()

    run(clock, main())


def test_an_attempt_of_whom_another_one_took_over_writes_nothing(clock: FakeClock) -> None:
    """[D057] The first attempt goes on; only the second one may commit."""
    gate = Gate()

    def body(ctx: BlockingTaskContext) -> str:
        gate.pass_in_thread()
        for late in (lambda: ctx.checkpoint({"late": True}), lambda: ctx.progress(99)):
            with pytest.raises(LeaseLost):
                late()
        return "first"

    async def main() -> None:
        bench = Bench(clock, lease_seconds=30.0)
        bench.handler(sync=True, idempotent=True)
        claimed = bench.claim(body)
        attempt = await bench.begin(claimed)
        await until(gate.entered.is_set)
        await bench.advance(31.0)
        (expired,) = bench.inner.expired()
        taken = bench.inner.take_over(expired, holder="second")
        assert taken is not None
        lease, stored = taken
        assert lease.fence > claimed[0].fence
        gate.opened.set()
        ended = await attempt
        assert ended.outcome.name == "lost"
        assert ended.record is None
        assert bench.stored(lease) == stored.record
        await bench.close()

    run(clock, main())


@pytest.mark.parametrize(
    ("own", "handlers", "default", "longest"),
    [
        (None, None, 50.0, 50.0),
        (None, 20.0, 50.0, 20.0),
        (None, 3 * DAY, 50.0, 3 * DAY),
        (5.0, 20.0, 50.0, 5.0),
        (5.0, None, 50.0, 5.0),
        (100.0, 20.0, 50.0, 20.0),
        (100.0, None, 50.0, 50.0),
        (-1.0, None, 50.0, 50.0),
    ],
)
def test_a_task_may_shorten_its_time_and_never_exceed_it(
    clock: FakeClock, own: float | None, handlers: float | None, default: float, longest: float
) -> None:
    """[D048] Also beyond a day, which timers of other loops do not reach."""

    async def main() -> None:
        bench = Bench(clock, default_timeout_seconds=default)
        bench.handler(timeout_seconds=handlers)
        attempt = await bench.begin(bench.claim(for_ever, timeout_seconds=own))
        await bench.advance(longest - 0.5)
        assert not attempt.done()
        await bench.advance(0.5)
        assert (await attempt).outcome == TimedOut(longest)
        await bench.close()

    run(clock, main())


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "5"])
@pytest.mark.parametrize("name", ["default_timeout_seconds", "hook_seconds"])
def test_a_time_that_is_none_is_refused(clock: FakeClock, name: str, seconds: Any) -> None:
    """[D048]"""
    bench = Bench(clock, **{name: seconds})
    with pytest.raises(SettingsError, match=name):
        _ = bench.executor
    bench.tracker.close()


# ---- shutdown ----------------------------------------------------------------------------------------


@both
def test_a_shutdown_waits_for_the_clean_up_and_no_longer(clock: FakeClock, sync: bool) -> None:
    gate = Gate()

    async def unwinds(ctx: TaskContext) -> None:
        try:
            await for_ever(ctx)
        finally:
            await gate.pass_on_loop()

    def in_thread(ctx: BlockingTaskContext) -> None:
        with pytest.raises(ShuttingDown):
            until_told(ctx)
        gate.pass_in_thread()

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync, idempotent=True, cleanup_seconds=5.0)
        claimed = bench.claim(in_thread if sync else unwinds)
        attempt = await bench.begin(claimed)
        bench.executor.interrupt()
        await until(gate.entered.is_set)
        await bench.advance(4.5)
        assert not attempt.done()
        await bench.advance(0.5)
        ended = await attempt
        assert ended.outcome == Interrupted(ended=False)
        assert ended.handler_ended is not None
        assert bench.stored(claimed[0]).status == "pending"
        gate.opened.set()
        await until(lambda: not bench.executor.left_behind)
        await bench.close()

    run(clock, main())


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Fail("cannot go on", code="x"), Failed("cannot go on", "x")),
        (Retry(after=5), Interrupted()),
        (ConnectionError("cut off"), Interrupted()),
        (None, Done()),
    ],
)
def test_what_a_handler_says_while_the_worker_ends(
    clock: FakeClock, error: Exception | None, outcome: object
) -> None:
    """[D047] Errors of a clean-up do not make a shutdown look like a failure of the work."""

    async def body(ctx: TaskContext) -> None:
        try:
            await for_ever(ctx)
        except asyncio.CancelledError:
            if error is not None:
                raise error from None

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(idempotent=True)
        attempt = await bench.begin(bench.claim(body))
        bench.executor.interrupt()
        assert (await attempt).outcome == outcome
        await bench.close()

    run(clock, main())


def test_a_cancelled_task_is_not_given_back_at_shutdown(clock: FakeClock) -> None:
    """[D039] [D047] Somebody wanted it cancelled, its handler ignored that, and then the worker ended.

    Cancelled is what has really ended, and this goes on.
    """

    async def ignores(_: TaskContext) -> None:
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                if stopped:
                    raise
                continue

    stopped: list[bool] = []

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(idempotent=True, cleanup_seconds=5.0)
        claimed = bench.claim(ignores)
        attempt = await bench.begin(claimed)
        bench.tracker.cancel(claimed[0].key.task_id, **OWNER)
        await bench.rest()
        bench.executor.interrupt()
        await bench.advance(5.0)
        ended = await attempt
        assert isinstance(ended.outcome, Failed)
        assert ended.handler_ended is not None
        record = bench.stored(claimed[0])
        assert (record.status, record.error_code) == ("failed", "interrupted")
        stopped.append(True)
        await bench.close()

    run(clock, main())


@both
def test_cancelling_the_execution_stops_the_handler_and_writes_nothing(clock: FakeClock, sync: bool) -> None:
    """A worker that cannot wait any longer gives up: the lease expires, others decide."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync)
        ended = threading.Event()

        async def on_loop(ctx: TaskContext) -> None:
            try:
                await for_ever(ctx)
            finally:
                ended.set()

        def in_thread(ctx: BlockingTaskContext) -> None:
            try:
                until_told(ctx)
            except ShuttingDown:
                ended.set()

        claimed = bench.claim(in_thread if sync else on_loop)
        attempt = await bench.begin(claimed)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        await until(ended.is_set)
        assert bench.stored(claimed[0]).status == "running"
        await until(lambda: not bench.executor.left_behind)
        await bench.close()

    run(clock, main())
