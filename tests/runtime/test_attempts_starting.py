"""From a claimed task to a handler that runs: imports, which are no part of its time, and what breaks on the way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stores.files.lease.store import LeaseTaskStore
from task_tracker.handlers import Handler
from task_tracker.testing import FakeClock
from task_tracker.worker import Fail, TaskContext, launching
from task_tracker.worker.outcomes import CancelledOutcome, Done, Failed, Interrupted, RetryAt, TimedOut
from task_tracker.worker.retrying import attempts_used
from tests.runtime.attempting import HANDLING, OWNER, Bench, Gate, for_ever, run, until
from tests.runtime.handling import BEGUN, BODIES

LOAD = Handler.load
LOAD_ON_FAILURE = Handler.load_on_failure


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The import of the handler of type "t" waits here."""
    gate = Gate()

    def load(handler: Handler) -> Any:
        if handler.task_type == "t" and threading.current_thread() is not threading.main_thread():
            gate.pass_in_thread()
        return LOAD(handler)

    monkeypatch.setattr(Handler, "load", load)
    yield gate
    gate.opened.set()


async def done(_: TaskContext) -> str:
    return "done"


def test_an_import_takes_nothing_of_the_tasks_time(clock: FakeClock, slow: Gate) -> None:
    """[D048] The time begins with the handler, and then holds."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(imported=False, timeout_seconds=1.0)
        attempt = bench.start(bench.claim(for_ever))
        await until(slow.entered.is_set)
        await bench.advance(500.0)
        assert not attempt.done()
        slow.opened.set()
        await until(lambda: bench.registry.handlers()[0].is_loaded)
        await until(lambda: bench.executor.running and bench.executor._running[claimed_of(bench)].supervision)
        await bench.advance(0.5)
        assert not attempt.done()
        await bench.advance(0.5)
        assert (await attempt).outcome == TimedOut(1.0)
        await bench.close()

    run(clock, main())


def claimed_of(bench: Bench) -> Any:
    return next(iter(bench.executor._running))


def test_an_import_that_hangs_delays_its_own_kind_and_fails_nothing(clock: FakeClock, slow: Gate) -> None:
    """[D048] After its limit nobody waits for it; once it has come to its end, its tasks run."""

    async def main() -> None:
        bench = Bench(clock, import_seconds=60.0)
        bench.handler("t", imported=False, timeout_seconds=1.0)
        bench.handler("other", imported=False)
        first = bench.start(bench.claim(done))
        await until(slow.entered.is_set)
        assert isinstance((await bench.attempt(done, task_type="other")).outcome, Done)
        await bench.advance(60.0)
        second = bench.start(bench.claim(done))
        for ended in (await first, await second):
            assert ended.outcome == Interrupted(began=False, after=30.0)
            assert ended.record is not None
            assert (ended.record.status, ended.record.not_before) == ("pending", clock.now() + 30.0)
            assert attempts_used(ended.record, 1) == 0
            assert ended.handler_ended is None
        slow.opened.set()
        await until(lambda: bench.registry.handlers()[1].is_loaded)
        await bench.rest()
        assert isinstance((await bench.attempt(done)).outcome, Done)
        await bench.close()

    run(clock, main())


def test_all_tasks_of_a_kind_wait_for_one_import(clock: FakeClock, slow: Gate) -> None:
    async def main() -> None:
        bench = Bench(clock)
        bench.handler(imported=False)
        before = set(threading.enumerate())
        attempts = [bench.start(bench.claim(done)) for _ in range(20)]
        await until(slow.entered.is_set)
        await bench.rest()
        threads = [thread for thread in set(threading.enumerate()) - before if "call" in thread.name]
        assert len(threads) == 1
        slow.opened.set()
        assert {type((await attempt).outcome) for attempt in attempts} == {Done}
        await until(lambda: not threads[0].is_alive())
        await bench.close()

    run(clock, main())


@pytest.mark.parametrize("how", ["cancel", "shutdown"])
def test_who_is_told_to_stop_does_not_wait_for_an_import(clock: FakeClock, slow: Gate, how: str) -> None:
    """[D047] [D049] No line of the handler has run."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(imported=False)
        claimed = bench.claim(lambda _: pytest.fail("it must not run"))
        attempt = bench.start(claimed)
        await until(slow.entered.is_set)
        if how == "cancel":
            bench.tracker.cancel(claimed[0].key.task_id, **OWNER)
        else:
            bench.executor.interrupt()
        outcome = (await attempt).outcome
        assert outcome == (CancelledOutcome() if how == "cancel" else Interrupted(began=False))
        slow.opened.set()
        await bench.close()

    run(clock, main())


def test_a_hook_whose_import_hangs_is_said_to_be_so(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D150] It keeps neither the record from its end nor other hooks from being called."""
    gate = Gate()

    def load(handler: Handler) -> Any:
        if handler.task_type == "t" and threading.current_thread() is not threading.main_thread():
            gate.pass_in_thread()
        return LOAD_ON_FAILURE(handler)

    async def fails(_: TaskContext) -> None:
        raise Fail("broken")

    called: list[str] = []
    BODIES["hook"] = lambda _, record: called.append(record.task_type)
    monkeypatch.setattr(Handler, "load_on_failure", load)

    async def main() -> None:
        bench = Bench(clock, threads=1)
        bench.handler(hook="thread")
        bench.handler("other", hook="thread")
        attempt = bench.start(bench.claim(fails))
        await until(gate.entered.is_set)
        other = await bench.attempt(fails, task_type="other")
        assert other.record is not None
        assert (other.record.hook_error, called) == (None, ["other"])
        await bench.advance(30.0)
        ended = await attempt
        assert ended.record is not None
        assert ended.record.status == "failed"
        assert ended.record.hook_error == (
            f"TimeoutError: {HANDLING}:hook_in_thread is being imported for more than 30 seconds"
        )
        gate.opened.set()
        await bench.rest()
        await bench.close()

    run(clock, main())


@pytest.mark.parametrize(
    "error", [SystemExit("usage"), KeyboardInterrupt(), asyncio.CancelledError(), OSError()]
)
def test_whatever_an_import_raises_fails_its_task_and_no_more(
    clock: FakeClock, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_: Handler) -> Any:
        raise error

    monkeypatch.setattr(Handler, "load", load)

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(imported=False)
        ended = await bench.attempt(done)
        assert ended.record is not None
        assert (ended.record.status, ended.record.error_code) == ("failed", "handler_unavailable")
        await bench.close()

    run(clock, main())


def test_a_validator_that_calls_exit_fails_its_task(clock: FakeClock) -> None:
    def check(_: object) -> Any:
        raise SystemExit("usage")

    async def main() -> None:
        from typing import Annotated

        import pydantic

        bench = Bench(clock)
        bench.handler(payload=Annotated[str, pydantic.AfterValidator(check)])
        ended = await bench.attempt(done)
        assert ended.record is not None
        assert (ended.record.status, ended.record.error_code) == ("failed", "invalid_payload")
        await bench.close()

    run(clock, main())


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_what_breaks_in_the_worker_ends_the_attempt_under_its_lease(
    clock: FakeClock, sync: bool, idempotent: bool, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """No task runs on paper only, until its lease is over: a timer that cannot be set, say. The handler is stopped."""
    gate = Gate()

    def broken(*_: object, **__: object) -> Any:
        raise OverflowError("timeout doesn't fit into C timeval")

    monkeypatch.setattr(launching, "Supervision", broken)

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync, imported=False, idempotent=idempotent)
        ended = await bench.attempt((lambda _: gate.pass_in_thread()) if sync else for_ever)
        assert ended.outcome.name == ("retry" if idempotent else "failed")
        assert isinstance(ended.outcome, RetryAt | Failed)
        assert ended.outcome.error_code == "internal_error"
        assert ended.record is not None
        assert ended.record.status == ("pending" if idempotent else "failed")
        gate.opened.set()
        await until(lambda: not bench.executor.left_behind)
        await bench.close()

    run(clock, main())
    assert "doesn't fit" in caplog.text


# ---- what begins at once -----------------------------------------------------------------------------


def test_a_coroutine_that_was_imported_begins_in_the_next_turn_of_the_loop(clock: FakeClock) -> None:
    """Who starts several waits for one turn between them, so that one that blocks the loop has no others behind it."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        claimed = bench.claim(done)
        attempt = bench.start(claimed)
        assert claimed[0].key.task_id not in BEGUN, "nothing of it has run in the code that starts it"
        await asyncio.sleep(0)
        assert claimed[0].key.task_id in BEGUN
        assert isinstance((await attempt).outcome, Done)
        await bench.close()

    run(clock, main())


def test_one_that_is_told_to_stop_before_that_turn_does_not_begin(clock: FakeClock) -> None:
    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        claimed = bench.claim(done)
        begun = bench.executor.begin(*claimed)
        bench.executor.interrupt_one(claimed[0])
        ended = await bench.executor.see_through(begun)
        assert ended.outcome == Interrupted(began=False)
        assert claimed[0].key.task_id not in BEGUN
        assert bench.stored(claimed[0]).status == "pending"
        await bench.close()

    run(clock, main())


def test_one_that_was_cancelled_before_it_was_begun_does_not_begin(clock: FakeClock) -> None:
    """A heartbeat may have heard of it while the task waited for its turn."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        claimed = bench.claim(done)
        claimed[0].cancel_requested.set()
        attempt = bench.start(claimed)
        assert (await attempt).outcome == CancelledOutcome()
        assert claimed[0].key.task_id not in BEGUN
        await bench.close()

    run(clock, main())


def test_a_cancel_in_its_first_step_is_heard(clock: FakeClock, tmp_path: Path) -> None:
    """That step comes before the task that sees the attempt through, and files tell a holder in heartbeats only."""

    async def main() -> None:
        bench = Bench(clock, LeaseTaskStore(tmp_path, shards=1, durability="none", clock=clock))
        bench.handler()

        async def cancels_itself(ctx: TaskContext) -> None:
            bench.tracker.cancel(ctx.key.task_id, **OWNER)
            await for_ever(ctx)

        claimed = bench.claim(cancels_itself)
        attempt = bench.start(claimed)
        await until(attempt.done)
        assert (await attempt).outcome == CancelledOutcome()
        await bench.close()

    run(clock, main())


def test_what_breaks_there_fails_the_task(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise OverflowError("timeout doesn't fit into C timeval")

    monkeypatch.setattr(launching, "Supervision", broken)

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        ended = await bench.attempt(for_ever)
        assert isinstance(ended.outcome, Failed)
        assert ended.outcome.error_code == "internal_error"
        await until(lambda: not bench.executor.left_behind)
        await bench.close()

    run(clock, main())


def test_a_payload_that_is_refused_there_fails_the_task(clock: FakeClock) -> None:
    async def main() -> None:
        bench = Bench(clock)
        bench.handler(payload=int)
        ended = await bench.attempt(done)
        assert isinstance(ended.outcome, Failed)
        assert ended.outcome.error_code == "invalid_payload"
        assert not bench.executor.running
        await bench.close()

    run(clock, main())


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="since Python 3.12")
def test_a_loop_that_begins_tasks_as_they_are_made_will_do(clock: FakeClock) -> None:
    async def pauses(_: TaskContext) -> str:
        await asyncio.sleep(0)
        return "done"

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        bench = Bench(clock)
        bench.handler()
        for body in (done, pauses):
            assert isinstance((await bench.attempt(body)).outcome, Done)
        await bench.rest()
        assert len(bench.executor._kept) == 0
        await bench.close()

    run(clock, main())


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="since Python 3.12")
def test_one_that_is_told_to_stop_in_a_step_that_such_a_loop_takes_at_once_stops(clock: FakeClock) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        bench = Bench(clock)
        bench.handler()
        bench.registry.check()

        async def ends_the_worker(ctx: TaskContext) -> None:
            bench.executor.interrupt()
            await for_ever(ctx)

        attempt = bench.start(bench.claim(ends_the_worker))
        await bench.rest()
        assert attempt.done()
        assert (await attempt).outcome == Interrupted()
        await bench.close()

    run(clock, main())
