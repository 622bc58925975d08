"""What becomes of an attempt when its lease or its store goes away."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from task_tracker import CapabilityMissing, HandlerRegistry, LeaseLost, TaskTracker
from task_tracker.errors import TaskNotFound
from task_tracker.testing import FakeClock
from task_tracker.worker import BlockingTaskContext, Executor, Resources, TaskContext
from task_tracker.worker.outcomes import Done, Interrupted, Lost, RetryAt
from task_tracker.worker.retrying import attempts_used
from tests.core.support import WatchedStore
from tests.runtime.attempting import OWNER, Bench, Gate, for_ever, run, until_told

both = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def lose(bench: Bench, claimed: Any) -> None:
    """Have somebody else take over, and a heartbeat hear of it."""
    clock = bench.clock
    assert isinstance(clock, FakeClock)
    clock.advance(31.0)
    (expired,) = bench.inner.expired()
    taken = bench.inner.take_over(expired, holder="somebody else")
    assert taken is not None
    with pytest.raises(LeaseLost):
        bench.inner.renew(claimed[0])
    bench.executor.holdings.lose(claimed[0], "a heartbeat heard of it")
    bench.executor.notice(claimed[0])


@both
def test_a_lost_lease_stops_the_handler_and_nothing_is_written(clock: FakeClock, sync: bool) -> None:
    """[D024] The outcome is "lost": no success is told, and the record is the other holder's."""

    async def main() -> None:
        bench = Bench(clock, lease_seconds=30.0)
        bench.handler(sync=sync, hook="loop")
        claimed = bench.claim(until_told if sync else for_ever)
        attempt = await bench.begin(claimed)
        lose(bench, claimed)
        before = bench.stored(claimed[0])
        ended = await attempt
        assert isinstance(ended.outcome, Lost)
        assert ended.record is None
        assert bench.stored(claimed[0]) == before
        assert bench.outcomes() == ["lost"]
        await bench.close()

    run(clock, main())


@both
def test_a_lease_that_is_lost_right_before_the_end_is_no_success(clock: FakeClock, sync: bool) -> None:
    """[D024] The handler returned its result; the store refuses it."""
    gate = Gate()

    async def on_loop(_: TaskContext) -> str:
        await gate.pass_on_loop()
        return "done"

    def in_thread(_: BlockingTaskContext) -> str:
        gate.pass_in_thread()
        return "done"

    async def main() -> None:
        bench = Bench(clock, lease_seconds=30.0)
        bench.handler(sync=sync)
        claimed = bench.claim(in_thread if sync else on_loop)
        attempt = await bench.begin(claimed)

        def taken_over() -> None:
            clock.advance(31.0)
            (expired,) = bench.inner.expired()
            assert bench.inner.take_over(expired, holder="somebody else") is not None

        bench.store.interrupt(taken_over, on="end")
        gate.opened.set()
        ended = await attempt
        assert isinstance(ended.outcome, Lost)
        assert claimed[0].lost.is_set()
        assert bench.stored(claimed[0]).status == "running"
        assert bench.outcomes() == ["lost"]
        assert bench.tracker.get(claimed[0].key.task_id, **OWNER).status == "running"  # type: ignore[union-attr]
        await bench.close()

    run(clock, main())


def test_nothing_is_written_after_the_local_end_of_a_lease(clock: FakeClock) -> None:
    """[D024] Nobody took over yet, and nobody renewed: others may at any moment."""
    gate = Gate()

    async def body(_: TaskContext) -> str:
        await gate.pass_on_loop()
        return "done"

    async def main() -> None:
        bench = Bench(clock, lease_seconds=30.0)
        bench.handler()
        claimed = bench.claim(body)
        attempt = await bench.begin(claimed)
        await bench.advance(26.0)
        gate.opened.set()
        assert isinstance((await attempt).outcome, Lost)
        assert bench.store.calls["end"] == 0
        await bench.close()

    run(clock, main())


def test_what_had_lost_its_lease_before_it_began_never_begins(clock: FakeClock) -> None:
    """[D024]"""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        claimed = bench.claim(lambda _: pytest.fail("it must not run"))
        claimed[0].lost.set()
        assert isinstance((await bench.start(claimed)).outcome, Lost)
        await bench.close()

    run(clock, main())


def test_an_outcome_waits_for_the_store(clock: FakeClock, caplog: Any) -> None:
    """[D129] Tried again with growing pauses; nobody sees it completed before the store has it."""

    async def body(_: TaskContext) -> str:
        return "done"

    async def main() -> None:
        bench = Bench(clock, lease_seconds=30.0)
        bench.handler()
        claimed = bench.claim(body)
        bench.store.fail(on="end", forever=True)
        attempt = await bench.begin(claimed)
        for pause in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0):
            tries = bench.store.calls["end"]
            await bench.advance(pause)
            assert bench.store.calls["end"] == tries + 1
            bench.inner.renew(claimed[0])  # the heartbeats go on
            seen = bench.tracker.get(claimed[0].key.task_id, **OWNER)
            assert seen is not None
            assert seen.status == "running"
        assert not attempt.done()
        assert bench.outcomes() == []
        bench.store.heal()
        await bench.advance(5.0)
        ended = await attempt
        assert isinstance(ended.outcome, Done)
        assert bench.stored(claimed[0]).status == "completed"
        assert [one.getMessage()[:11] for one in caplog.records].count("the outcome") == 1
        await bench.close()

    caplog.set_level(logging.WARNING)
    run(clock, main())


def test_an_outcome_that_waits_is_dropped_when_somebody_else_took_over(clock: FakeClock) -> None:
    """[D129] [D024] The store was away for longer than a lease: what it says then is what holds."""

    async def body(_: TaskContext) -> str:
        return "done"

    async def main() -> None:
        bench = Bench(clock, lease_seconds=30.0)
        bench.handler()
        claimed = bench.claim(body)
        bench.store.fail(on="end", forever=True)
        attempt = await bench.begin(claimed)
        await bench.advance(31.0)
        (expired,) = bench.inner.expired()
        assert bench.inner.take_over(expired, holder="somebody else") is not None
        bench.store.heal()
        await bench.advance(5.0)
        assert isinstance((await attempt).outcome, Lost)
        assert bench.stored(claimed[0]).status == "running"
        await bench.close()

    run(clock, main())


def test_an_outcome_that_waits_dies_with_its_process(clock: FakeClock) -> None:
    """[D129] The worker cannot wait any longer: the lease expires and whoever finds that decides."""

    async def body(_: TaskContext) -> str:
        return "done"

    async def main() -> None:
        bench = Bench(clock, lease_seconds=30.0)
        bench.handler()
        claimed = bench.claim(body)
        bench.store.fail(on="end", forever=True)
        await bench.begin(claimed)
        await bench.close()
        bench.store.heal()
        assert bench.stored(claimed[0]).status == "running"
        clock.advance(31.0)
        assert [one.record.key for one in bench.inner.expired()] == [claimed[0].key]

    run(clock, main())


OUTCOMES: dict[str, Any] = {"done": Done, "retry": RetryAt, "shutdown": Interrupted}


@pytest.mark.parametrize("how", list(OUTCOMES))
@pytest.mark.parametrize("heard", [False, True], ids=["", "and a heartbeat took that for a loss"])
def test_a_lost_answer_is_resolved_by_what_is_stored(clock: FakeClock, how: str, heard: bool) -> None:
    """[D129] The write took effect, its answer was lost, and the lease is gone for that very reason."""

    async def body(ctx: TaskContext) -> str:
        if how == "retry":
            raise OSError("again")
        if how == "shutdown":
            await for_ever(ctx)
        return "done"

    async def main() -> None:
        bench = Bench(clock, lease_seconds=30.0)
        bench.handler(idempotent=True)
        claimed = bench.claim(body)
        bench.store.fail(on=("end", "release"), after=True)
        attempt = await bench.begin(claimed)
        if how == "shutdown":
            bench.executor.interrupt()
            await bench.rest()
        if heard:
            with pytest.raises(LeaseLost):
                bench.inner.renew(claimed[0])
            bench.executor.holdings.lose(claimed[0], "a heartbeat heard of it")
            bench.executor.notice(claimed[0])
        await bench.advance(0.1)
        ended = await attempt
        assert isinstance(ended.outcome, OUTCOMES[how])
        assert ended.record == bench.stored(claimed[0])
        assert ended.record.status == ("completed" if how == "done" else "pending")
        await bench.close()

    run(clock, main())


def test_a_store_that_refuses_an_outcome_costs_one_task_only(clock: FakeClock, caplog: Any) -> None:
    """Whatever it is, the worker goes on and the lease is let go of."""

    async def body(_: TaskContext) -> str:
        return "done"

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        for error in (TaskNotFound("deleted behind our back"), ZeroDivisionError("a bug")):
            bench.store.fail(error, on="end")
            ended = await bench.attempt(body)
            assert isinstance(ended.outcome, Lost)
            assert len(bench.executor.holdings) == 0
        assert isinstance((await bench.attempt(body)).outcome, Done)
        await bench.close()

    run(clock, main())
    assert "cannot be stored" in caplog.text


def test_a_lost_answer_about_a_task_that_is_gone(clock: FakeClock) -> None:
    """[D129] Ended, and deleted by somebody before that could be seen: nobody knows any more."""

    async def body(_: TaskContext) -> str:
        return "done"

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        claimed = bench.claim(body)
        bench.store.fail(on="end", after=True)
        bench.store.interrupt(lambda: bench.inner.delete(claimed[0].key), on="get")
        attempt = await bench.begin(claimed)
        await bench.advance(0.1)
        assert isinstance((await attempt).outcome, Lost)
        await bench.close()

    run(clock, main())


def test_a_lost_answer_to_a_write_that_did_not_land(clock: FakeClock) -> None:
    """[D129] The store is asked, has the old record, and is told again."""

    async def body(_: TaskContext) -> str:
        return "done"

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        claimed = bench.claim(body)
        bench.store.fail(on="end")
        attempt = await bench.begin(claimed)
        await bench.advance(0.1)
        assert isinstance((await attempt).outcome, Done)
        assert (bench.store.calls["get"], bench.store.calls["end"]) == (1, 2)
        await bench.close()

    run(clock, main())


def test_nothing_runs_on_a_store_without_leases(clock: FakeClock) -> None:
    tracker = TaskTracker(WatchedStore(), clock=clock)
    with pytest.raises(CapabilityMissing, match="no leases"):
        Executor(tracker, HandlerRegistry(), Resources(HandlerRegistry()))
    tracker.close()


@pytest.mark.parametrize("where", ["import", "handler"])
def test_without_a_thread_a_task_is_given_back(
    clock: FakeClock, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D050] The system has none left; no line of the handler has run. It is not claimed again at full speed."""

    def no_thread(_: object) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=True)
        if where == "handler":
            bench.handler("other")
            bench.registry.check()
        claimed = bench.claim(lambda _: pytest.fail("it must not run"))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            attempt = bench.start(claimed)
            for pause in (0.1, 0.2, 0.4, 0.8, 1.6):
                await bench.advance(pause / 2)
                assert not attempt.done()  # its slot is taken: nothing more is claimed than could begin
                await bench.advance(pause / 2)
            ended = await attempt
        assert ended.outcome == Interrupted(began=False, after=10.0)
        record = bench.stored(claimed[0])
        assert (record.status, record.not_before) == ("pending", clock.now() + 10.0)
        assert attempts_used(record, 1) == 0
        await bench.close()

    run(clock, main())
