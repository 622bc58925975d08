"""Timeout, cancel, shutdown: three ways to be stopped, told apart, for coroutines and for threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from stores import InMemoryTaskStore
from task_tracker import LeaseLost, SettingsError
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.testing import FakeClock
from task_tracker.worker import (
    BlockingTaskContext,
    Cancelled,
    Fail,
    OutOfTime,
    Retry,
    ShuttingDown,
    TaskContext,
)
from task_tracker.worker.outcomes import CancelledOutcome, Done, Failed, Interrupted, Outcome, TimedOut
from tests.runtime.attempting import OWNER, PATIENCE, Bench, Gate, for_ever, run, until, until_told

both = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])

DAY = 86_400.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def stop(bench: Bench, how: str, claimed: Any) -> None:
    if how == "timeout":
        await bench.advance(60.0)
    elif how == "cancel":
        bench.tracker.cancel(claimed[0].key.task_id, **OWNER)
    else:
        bench.executor.interrupt()


REASONS: dict[str, tuple[str, str | None, Outcome]] = {
    "timeout": ("failed", "timeout", TimedOut(60.0)),
    "cancel": ("cancelled", None, CancelledOutcome()),
    "shutdown": ("failed", "interrupted", Interrupted()),
}


@both
@pytest.mark.parametrize("how", list(REASONS))
def test_three_ways_to_be_stopped_have_three_reasons(clock: FakeClock, sync: bool, how: str) -> None:
    """[D047] Neither a timeout nor a shutdown looks like a user's cancel, and none is tried again by itself."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync, timeout_seconds=60.0)
        claimed = bench.claim(until_told if sync else for_ever)
        attempt = await bench.begin(claimed)
        await stop(bench, how, claimed)
        ended = await attempt
        status, code, outcome = REASONS[how]
        assert ended.outcome == outcome
        record = bench.stored(claimed[0])
        assert (record.status, record.error_code) == (status, code)
        assert (record.cancel_requested_at is not None) == (how == "cancel")
        assert bench.outcomes() == [outcome.name]
        await until(lambda: not bench.executor.left_behind)
        await bench.close()

    run(clock, main())


@both
def test_a_shutdown_gives_idempotent_work_back(clock: FakeClock, sync: bool) -> None:
    """[D047] [D149] at_least_once: another worker goes on, also if the attempts were used up by shutdowns."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync, idempotent=True, max_attempts=1)
        claimed = bench.claim(until_told if sync else for_ever)
        attempt = await bench.begin(claimed)
        bench.executor.interrupt()
        ended = await attempt
        assert ended.outcome == Interrupted()
        assert bench.stored(claimed[0]).status == "pending"
        assert bench.claim_again(claimed[0].key)[0].attempt_count == 2
        await bench.close()

    run(clock, main())


@both
def test_what_has_not_begun_is_given_back_at_shutdown(clock: FakeClock, sync: bool) -> None:
    """[D047] No line of it ran, so that it may run elsewhere even if it may not run twice."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync)
        bench.executor.interrupt()
        ended = await bench.attempt(lambda _: pytest.fail("it must not run"))
        assert ended.outcome == Interrupted(began=False)
        assert ended.record is not None
        assert (ended.record.status, ended.record.error) == ("pending", None)
        await bench.close()

    run(clock, main())


@both
def test_what_was_cancelled_before_it_began_never_begins(clock: FakeClock, sync: bool) -> None:
    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync)
        claimed = bench.claim(lambda _: pytest.fail("it must not run"))
        bench.tracker.cancel(claimed[0].key.task_id, **OWNER)
        ended = await bench.start(claimed)
        assert ended.outcome == CancelledOutcome()
        assert bench.stored(claimed[0]).status == "cancelled"
        await bench.close()

    run(clock, main())


# ---- cancel ----------------------------------------------------------------------------------------


@both
def test_cancelled_is_shown_when_the_handler_has_ended(clock: FakeClock, sync: bool) -> None:
    """[D039] While it unwinds it is cancelling, and still counts as running."""
    unwinding = Gate()

    async def unwinds(ctx: TaskContext) -> None:
        try:
            await for_ever(ctx)
        finally:
            await unwinding.pass_on_loop()

    def unwinds_in_thread(ctx: BlockingTaskContext) -> None:
        try:
            until_told(ctx)
        finally:
            unwinding.pass_in_thread()

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync, timeout_seconds=DAY)
        claimed = bench.claim(unwinds_in_thread if sync else unwinds, resource_id="r")
        attempt = await bench.begin(claimed)
        bench.tracker.cancel(claimed[0].key.task_id, **OWNER)
        await until(unwinding.entered.is_set)
        await bench.advance(3600.0)  # far longer than it has to clean up
        assert not attempt.done()
        assert bench.stored(claimed[0]).status == "cancelling"
        assert bench.tracker.has_running("t", "r", **OWNER)
        unwinding.opened.set()
        assert (await attempt).outcome == CancelledOutcome()
        assert bench.stored(claimed[0]).status == "cancelled"
        assert not bench.tracker.has_running("t", "r", **OWNER)
        await bench.close()

    run(clock, main())


@both
def test_one_that_ignores_a_cancel_is_seen_until_its_time_is_over(clock: FakeClock, sync: bool) -> None:
    """[D039] It stays cancelling, then it is out of time; its slot stays taken for as long as it goes on."""
    gate = Gate()

    async def ignores(_: TaskContext) -> None:
        while not gate.opened.is_set():
            try:
                await gate.pass_on_loop()
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync, timeout_seconds=DAY, cleanup_seconds=5.0)
        claimed = bench.claim((lambda _: gate.pass_in_thread()) if sync else ignores)
        attempt = await bench.begin(claimed)
        await until(gate.entered.is_set)
        bench.tracker.cancel(claimed[0].key.task_id, **OWNER)
        await bench.advance(DAY - 1)
        assert bench.stored(claimed[0]).status == "cancelling"
        await bench.advance(1.0)
        assert attempt.done() == sync  # a coroutine was cancelled once more, and may still clean up
        await bench.advance(5.0)
        ended = await attempt
        assert ended.outcome == TimedOut(DAY)
        assert bench.stored(claimed[0]).error_code == "timeout"
        assert ended.handler_ended is not None
        assert bench.executor.left_behind == 1
        gate.opened.set()
        await ended.handler_ended
        await until(lambda: not bench.executor.left_behind)
        await bench.close()

    run(clock, main())


@both
def test_work_that_cannot_be_cancelled_is_let_to_its_end(clock: FakeClock, sync: bool) -> None:
    gate = Gate()

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync, cancellable=False)
        seen: list[bool] = []

        async def on_loop(ctx: TaskContext) -> int:
            await gate.pass_on_loop()
            seen.append(ctx.cancelled)
            ctx.check()
            return 1

        def in_thread(ctx: BlockingTaskContext) -> int:
            gate.pass_in_thread()
            seen.append(ctx.cancelled)
            ctx.check()
            return 1

        claimed = bench.claim(in_thread if sync else on_loop)
        attempt = await bench.begin(claimed)
        await until(gate.entered.is_set)
        bench.tracker.cancel(claimed[0].key.task_id, **OWNER)
        await bench.rest()
        assert bench.stored(claimed[0]).status == "cancelling"
        gate.opened.set()
        assert isinstance((await attempt).outcome, Done)
        assert seen == [True]
        assert bench.stored(claimed[0]).status == "completed"
        await bench.close()

    run(clock, main())


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Fail("cannot be undone", code="half_done"), Failed("cannot be undone", "half_done")),
        (Retry(), CancelledOutcome()),
        (OSError("the clean-up broke"), CancelledOutcome()),
        (None, Done()),
    ],
)
def test_what_a_handler_says_while_it_is_cancelled(
    clock: FakeClock, error: Exception | None, outcome: object
) -> None:
    """Fail is believed, a result as well; another attempt does not follow."""

    async def body(ctx: TaskContext) -> None:
        try:
            await for_ever(ctx)
        except asyncio.CancelledError:
            if error is not None:
                raise error from None

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(idempotent=True)
        claimed = bench.claim(body)
        attempt = await bench.begin(claimed)
        bench.tracker.cancel(claimed[0].key.task_id, **OWNER)
        assert (await attempt).outcome == outcome
        await bench.close()

    run(clock, main())


def test_a_cancel_that_a_heartbeat_hears_reaches_the_handler(clock: FakeClock) -> None:
    """Somebody else's process asked for it: nobody here wrote the record."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        claimed = bench.claim(for_ever)
        attempt = await bench.begin(claimed)
        bench.inner.request_cancel(claimed[0].key)
        await bench.rest()
        assert not attempt.done()
        heard = threading.Thread(target=bench.executor.notice, args=claimed[:1])
        heard.start()
        heard.join()
        assert (await attempt).outcome == CancelledOutcome()
        await bench.close()

    run(clock, main())


def test_a_cancel_during_a_retry_wins(clock: FakeClock) -> None:
    """What is given back while somebody wants it cancelled is cancelled."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(idempotent=True)

        async def body(_: TaskContext) -> None:
            raise OSError("again")

        claimed = bench.claim(body)
        bench.store.interrupt(lambda: void(bench.inner.request_cancel(claimed[0].key)), on="release")
        ended = await bench.start(claimed)
        assert ended.outcome == CancelledOutcome()
        assert bench.stored(claimed[0]).status == "cancelled"
        assert bench.outcomes() == ["cancelled"]
        await bench.close()

    run(clock, main())


def void(_: object) -> None:
    return None


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
        assert ended.outcome == Interrupted()
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
    """[D047] Somebody wanted it cancelled, its handler ignored that, and then the worker ended."""

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
        assert ended.outcome == CancelledOutcome()
        assert ended.handler_ended is not None
        assert bench.stored(claimed[0]).status == "cancelled"
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
            except (LeaseLost, Cancelled):
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


# ---- with real time --------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("how", list(REASONS))
def test_the_same_on_a_loop_with_real_time(sync: bool, how: str) -> None:
    """[D047] The handler ends only when it is told to, so that it does not matter how long that takes."""

    async def main() -> None:
        store = InMemoryTaskStore()
        bench = Bench(SYSTEM_CLOCK, store)
        bench.handler(sync=sync, timeout_seconds=0.01 if how == "timeout" else DAY)
        claimed = bench.claim(until_told if sync else for_ever)
        attempt = await bench.begin(claimed)
        if how != "timeout":
            await stop(bench, how, claimed)
        async with asyncio.timeout(PATIENCE):
            ended = await attempt
        assert ended.outcome.name == REASONS[how][2].name
        assert bench.stored(claimed[0]).error_code == REASONS[how][1]
        await until(lambda: not bench.executor.left_behind)
        await bench.close()

    asyncio.run(main())
