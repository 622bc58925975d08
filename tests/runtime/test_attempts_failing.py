"""on_failure: called before a task ends as failed, and never what keeps it from ending."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from task_tracker import TaskRecord
from task_tracker.testing import FakeClock
from task_tracker.worker import BlockingTaskContext, Fail, TaskContext
from task_tracker.worker.outcomes import Failed, Lost, TimedOut
from tests.runtime.attempting import OWNER, Bench, Gate, for_ever, run, until
from tests.runtime.handling import BODIES

kinds = pytest.mark.parametrize("hook", ["loop", "thread"])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def fails(_: TaskContext) -> None:
    raise Fail("broken", code="broken")


def hook_does(body: Callable[[Any, TaskRecord], Any], kind: str) -> None:
    async def on_loop(ctx: TaskContext, record: TaskRecord) -> Any:
        return body(ctx, record)

    BODIES["hook"] = on_loop if kind == "loop" else body


@kinds
def test_the_hook_sees_how_the_task_will_end_and_by_which_attempt(clock: FakeClock, hook: str) -> None:
    """[D150] It comes before the record, so that it can be called again if this process stops in between."""
    calls: list[tuple[str, str | None, int, str]] = []

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(hook=hook)

        def body(ctx: Any, record: TaskRecord) -> str:
            calls.append((record.status, record.error_code, ctx.fence[1], bench.stored(ctx.key).status))
            return "its result is nobody's"

        hook_does(body, hook)
        ended = await bench.attempt(fails)
        assert calls == [("failed", "broken", 1, "running")]
        assert ended.record is not None
        assert (ended.record.status, ended.record.hook_error) == ("failed", None)
        await bench.close()

    run(clock, main())


@kinds
@pytest.mark.parametrize(
    "error", [RuntimeError("api_key=abcdef1234567890abcdef"), SystemExit(1), asyncio.CancelledError()]
)
def test_a_hook_that_raises_is_recorded(clock: FakeClock, hook: str, error: BaseException) -> None:
    """[D150] The task is failed all the same, and the worker goes on."""

    def body(_: object, __: TaskRecord) -> None:
        raise error

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(hook=hook)
        hook_does(body, hook)
        ended = await bench.attempt(fails)
        assert isinstance(ended.outcome, Failed)
        record = bench.stored(ended.record.key)  # type: ignore[union-attr]
        assert (record.status, record.error_code) == ("failed", "broken")
        assert record.hook_error is not None
        assert type(error).__name__ in record.hook_error
        assert "abcdef" not in record.hook_error
        await bench.close()

    run(clock, main())


@kinds
def test_a_hook_that_hangs_is_left(clock: FakeClock, hook: str) -> None:
    """[D150] After its time the record is written; the hook is counted, and keeps its slot, until it ends."""
    gate = Gate()

    async def hangs(_: TaskContext, __: TaskRecord) -> None:
        while not gate.opened.is_set():
            try:
                await gate.pass_on_loop()
            except asyncio.CancelledError:
                continue

    def hangs_in_thread(_: BlockingTaskContext, __: TaskRecord) -> None:
        gate.pass_in_thread()

    async def main() -> None:
        bench = Bench(clock, hook_seconds=30.0)
        bench.handler(hook=hook)
        BODIES["hook"] = hangs if hook == "loop" else hangs_in_thread
        attempt = bench.start(bench.claim(fails))
        await until(gate.entered.is_set)
        await bench.advance(29.0)
        assert not attempt.done()
        await bench.advance(1.0)
        ended = await attempt
        assert ended.record is not None
        assert (ended.record.status, ended.record.hook_error) == (
            "failed",
            "on_failure did not end within 30 seconds",
        )
        assert ended.handler_ended is not None
        assert not ended.handler_ended.done()
        assert bench.executor.left_behind == 1
        gate.opened.set()
        await until(lambda: not bench.executor.left_behind)
        assert ended.handler_ended.done()
        await bench.close()

    run(clock, main())


def test_one_hook_that_hangs_is_told_from_another_that_found_no_thread(clock: FakeClock) -> None:
    """[D150] Of two that hang the slots are taken; what comes for another worker's task has threads of its own."""
    gate = Gate()

    async def main() -> None:
        bench = Bench(clock, threads=1, hook_seconds=30.0)
        bench.handler(hook="thread")
        BODIES["hook"] = lambda _, __: gate.pass_in_thread()
        first = bench.start(bench.claim(fails))
        await until(gate.entered.is_set)
        second = bench.start(bench.claim(fails))
        await bench.advance(30.0)
        errors = [bench.stored((await one).record.key).hook_error for one in (first, second)]  # type: ignore[union-attr]
        assert errors == [
            "on_failure did not end within 30 seconds",
            "there was no thread free for on_failure within 30 seconds",
        ]
        assert [(await one).handler_ended is None for one in (first, second)] == [False, True]
        BODIES["hook"] = lambda _, __: None
        ended = await bench.executor.settle(*bench.claim(fails), Failed("its holder stopped", "holder_lost"))
        assert ended.record is not None
        assert ended.record.hook_error is None
        gate.opened.set()
        await until(lambda: not bench.executor.left_behind)
        await bench.close()

    run(clock, main())


def test_a_slot_is_taken_until_handler_and_hook_have_ended(clock: FakeClock) -> None:
    """[D048] [D150]"""
    handler, hook = Gate(), Gate()

    async def main() -> None:
        bench = Bench(clock, hook_seconds=30.0)
        bench.handler(sync=True, hook="thread", timeout_seconds=60.0)
        BODIES["hook"] = lambda _, __: hook.pass_in_thread()
        claimed = bench.claim(lambda _: handler.pass_in_thread())
        attempt = await bench.begin(claimed)
        await bench.advance(60.0)
        await until(hook.entered.is_set)
        await bench.advance(30.0)
        ended = await attempt
        assert ended.handler_ended is not None
        assert bench.executor.left_behind == 2
        handler.opened.set()
        await until(lambda: bench.executor.left_behind == 1)
        assert not ended.handler_ended.done()
        hook.opened.set()
        await ended.handler_ended
        await bench.close()

    run(clock, main())


def test_a_hook_whose_store_is_away_does_not_hold_up_the_end(clock: FakeClock) -> None:
    """[D150] It asks the tracker itself, which cannot answer; the end is written once the store is back."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(hook="loop")
        hook_does(lambda ctx, _: bench.tracker.get(ctx.key.task_id, **OWNER), "loop")
        claimed = bench.claim(fails)
        bench.store.fail(on="get")
        bench.store.fail(on="end")
        attempt = await bench.begin(claimed)
        await until(lambda: bench.store.calls["end"])
        await bench.advance(0.1)
        assert (await attempt).record == bench.stored(claimed[0])
        hook_error = bench.stored(claimed[0]).hook_error
        assert hook_error is not None
        assert hook_error.startswith("StoreUnavailable")
        await bench.close()

    run(clock, main())


def test_a_hook_that_cannot_be_imported_is_recorded(clock: FakeClock) -> None:
    async def main() -> None:
        bench = Bench(clock)
        bench.registry.register(
            "t", handler="tests.runtime.handling:on_loop", on_failure="tests.runtime.handling:gone"
        )
        ended = await bench.attempt(fails)
        assert ended.record is not None
        assert ended.record.status == "failed"
        assert ended.record.hook_error is not None
        assert "gone" in ended.record.hook_error
        await bench.close()

    run(clock, main())


@pytest.mark.parametrize("how", ["done", "retry", "cancel", "timeout", "shutdown", "payload"])
def test_when_it_is_called(clock: FakeClock, how: str) -> None:
    """[D150] For every end as failed, and for no other end."""
    seen: list[str | None] = []
    errors = {"timeout": "timeout", "shutdown": "interrupted", "payload": "invalid_payload"}

    async def body(ctx: TaskContext) -> str:
        if how == "retry":
            raise OSError("again")
        if how != "done":
            await for_ever(ctx)
        return "done"

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(
            hook="loop",
            idempotent=how == "retry",
            timeout_seconds=60.0,
            payload=int if how == "payload" else None,
        )
        hook_does(lambda _, record: seen.append(record.error_code), "loop")
        claimed = bench.claim(body)
        if how == "payload":
            await bench.start(claimed)
        else:
            attempt = await bench.begin(claimed)
            if how == "cancel":
                bench.tracker.cancel(claimed[0].key.task_id, **OWNER)
            elif how == "timeout":
                await bench.advance(60.0)
            elif how == "shutdown":
                bench.executor.interrupt()
            await attempt
        assert seen == ([errors[how]] if how in errors else [])
        await bench.close()

    run(clock, main())


@kinds
def test_a_hook_notes_nothing_of_an_attempt_that_has_ended(clock: FakeClock, hook: str) -> None:
    refused: list[str] = []

    async def on_loop(ctx: TaskContext, _: TaskRecord) -> None:
        ctx.check()  # it is not what was told to stop
        for call in (ctx.progress(5), ctx.checkpoint(1)):
            try:
                await call
            except RuntimeError as error:
                refused.append(str(error))

    def in_thread(ctx: BlockingTaskContext, _: TaskRecord) -> None:
        ctx.check()
        for call in (lambda: ctx.progress(5), lambda: ctx.checkpoint(1)):
            try:
                call()
            except RuntimeError as error:
                refused.append(str(error))

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(hook=hook, timeout_seconds=1.0)
        BODIES["hook"] = on_loop if hook == "loop" else in_thread
        claimed = bench.claim(for_ever)
        attempt = await bench.begin(claimed)
        await bench.advance(1.0)
        ended = await attempt
        assert ended.outcome == TimedOut(1.0)
        assert ended.record is not None
        assert ended.record.hook_error is None
        assert ["on_failure" in text for text in refused] == [True, True]
        await bench.close()

    run(clock, main())


def test_a_lease_that_is_lost_during_the_hook_is_lost(clock: FakeClock) -> None:
    """[D024] The hook was late and compares its fence; the record is the other holder's."""

    async def main() -> None:
        bench = Bench(clock, lease_seconds=30.0)
        bench.handler(hook="loop")

        def body(_: object, __: TaskRecord) -> None:
            clock.advance(31.0)
            (expired,) = bench.inner.expired()
            assert bench.inner.take_over(expired, holder="somebody else") is not None

        hook_does(body, "loop")
        claimed = bench.claim(fails)
        assert isinstance((await bench.start(claimed)).outcome, Lost)
        assert bench.stored(claimed[0]).status == "running"
        await bench.close()

    run(clock, main())


def test_an_outcome_of_somebody_elses_attempt_is_settled_in_the_same_way(clock: FakeClock) -> None:
    """[D150] A rescuer fails a task whose holder has stopped through the hook as well."""
    seen: list[tuple[str | None, int]] = []

    async def main() -> None:
        bench = Bench(clock, lease_seconds=30.0)
        bench.handler(hook="loop")
        hook_does(lambda ctx, record: seen.append((record.error_code, ctx.attempt_count)), "loop")
        claimed = bench.claim(fails)
        clock.advance(31.0)
        (expired,) = bench.inner.expired()
        taken = bench.inner.take_over(expired, holder="rescuer", count_attempt=False)
        assert taken is not None
        ended = await bench.executor.settle(*taken, Failed("its holder stopped", "holder_lost"))
        assert seen == [("holder_lost", 1)]
        assert ended.record == bench.stored(claimed[0])
        assert ended.record.error_code == "holder_lost"
        assert bench.events == []
        await bench.close()

    run(clock, main())
