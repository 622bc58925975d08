"""Cancels, and the three ways to be stopped, told apart, for coroutines and for threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from stores import InMemoryTaskStore
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.testing import FakeClock
from task_tracker.worker import (
    BlockingTaskContext,
    Cancelled,
    Fail,
    Retry,
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
        assert bench.claim_again(claimed[0].key)[0].attempt_count == 2  # which is the first one that counts
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


@both
@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("how", ["shutdown", "deaf", "error", "unasked"])
def test_work_that_cannot_be_cancelled_does_not_end_so(
    clock: FakeClock, sync: bool, idempotent: bool, how: str
) -> None:
    """[D043] Whatever ends it. It cannot be given back either: stores cancel what is given back under such a wish."""
    gate = Gate()

    def in_thread(ctx: BlockingTaskContext) -> None:
        gate.pass_in_thread()
        end(ctx)

    async def on_loop(ctx: TaskContext) -> None:
        while not gate.opened.is_set():
            try:
                await gate.pass_on_loop()
            except asyncio.CancelledError:
                if how == "shutdown":
                    raise
        end(ctx)

    def end(ctx: Any) -> None:
        if how == "error":
            raise OSError("broken")
        if how == "unasked":
            raise Cancelled("it looked at ctx.cancelled by itself")
        if how == "shutdown":
            ctx.check()

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync, cancellable=False, idempotent=idempotent, cleanup_seconds=5.0)
        claimed = bench.claim(in_thread if sync else on_loop)
        attempt = await bench.begin(claimed)
        await until(gate.entered.is_set)
        bench.tracker.cancel(claimed[0].key.task_id, **OWNER)
        await bench.rest()
        if how in {"shutdown", "deaf"}:
            bench.executor.interrupt()
        if how == "deaf":
            await bench.advance(5.0)
        else:
            gate.opened.set()
        ended = await attempt
        codes = {"error": None, "unasked": "unasked_stop"}
        record = bench.stored(claimed[0])
        assert (record.status, record.error_code) == ("failed", codes.get(how, "interrupted"))
        assert isinstance(ended.outcome, Failed | Interrupted)
        gate.opened.set()
        await until(lambda: not bench.executor.left_behind)
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


# ---- with real time --------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("how", list(REASONS))
def test_the_same_on_a_loop_with_real_time(sync: bool, how: str) -> None:
    """[D047] The handler ends only when it is told to, so that it does not matter how long that takes."""

    async def main() -> None:
        store = InMemoryTaskStore()
        bench = Bench(SYSTEM_CLOCK, store)
        bench.handler(sync=sync, timeout_seconds=0.5 if how == "timeout" else DAY)
        claimed = bench.claim(until_told if sync else for_ever)
        if how == "timeout":
            attempt = bench.start(claimed)  # a slow machine may not begin it within its time
        else:
            attempt = await bench.begin(claimed)
            await stop(bench, how, claimed)
        async with asyncio.timeout(PATIENCE):
            ended = await attempt
        assert ended.outcome.name == REASONS[how][2].name
        assert bench.stored(claimed[0]).error_code == REASONS[how][1]
        await until(lambda: not bench.executor.left_behind)
        await bench.close()

    asyncio.run(main())
