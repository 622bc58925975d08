"""What an attempt writes on its way while the store comes and goes, and on files."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.files.lease.store import LeaseTaskStore
from task_tracker import LeaseLost, transitions
from task_tracker.testing import FakeClock, expired_now
from task_tracker.worker import BlockingTaskContext, TaskContext
from task_tracker.worker.outcomes import CancelledOutcome, Done, Failed, Lost
from tests.contract.lease_harnesses import LeaseDirectoryHarness
from tests.runtime.attempting import OWNER, Bench, Gate, for_ever, run, until, until_told

both = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# ---- while the store is away -----------------------------------------------------------------------


@both
def test_a_checkpoint_waits_for_the_store(clock: FakeClock, sync: bool) -> None:
    """[D129] A store that is away for a moment does not fail hours of work."""

    async def on_loop(ctx: TaskContext) -> str:
        await ctx.checkpoint({"n": 1})
        return "done"

    def in_thread(ctx: BlockingTaskContext) -> str:
        ctx.checkpoint({"n": 1})
        return "done"

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync)
        bench.store.fail(on="commit")
        claimed = bench.claim(in_thread if sync else on_loop)
        attempt = await bench.begin(claimed)
        await until(lambda: bench.store.calls["commit"] == 1)
        if sync:
            await until(lambda: clock.waiting)
        await bench.advance(0.1)
        assert isinstance((await attempt).outcome, Done)
        assert bench.stored(claimed[0]).meta == {"_checkpoint": {"n": 1}}
        await bench.close()

    run(clock, main())


@both
def test_a_checkpoint_that_waits_hears_of_a_cancel(clock: FakeClock, sync: bool) -> None:
    async def on_loop(ctx: TaskContext) -> None:
        await ctx.checkpoint(1)

    def in_thread(ctx: BlockingTaskContext) -> None:
        ctx.checkpoint(1)

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync)
        bench.store.fail(on="commit", forever=True)
        claimed = bench.claim(in_thread if sync else on_loop)
        attempt = await bench.begin(claimed)
        await until(lambda: bench.store.calls["commit"] == 1)
        bench.tracker.cancel(claimed[0].key.task_id, **OWNER)
        await until(attempt.done)
        assert (await attempt).outcome == CancelledOutcome()
        await bench.close()

    run(clock, main())


@both
def test_progress_does_not_fail_for_a_store_that_is_away(clock: FakeClock, sync: bool) -> None:
    """[D152] What could not be written goes along with the end, and the store is not asked in vain all the time."""

    async def on_loop(ctx: TaskContext) -> str:
        for number in range(50):
            await ctx.progress(number, f"item {number}")
        raise OSError("broken off")

    def in_thread(ctx: BlockingTaskContext) -> str:
        for number in range(50):
            ctx.progress(number, f"item {number}")
        raise OSError("broken off")

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync)
        bench.store.fail(on="commit", forever=True)
        ended = await bench.attempt(in_thread if sync else on_loop)
        assert isinstance(ended.outcome, Failed)
        assert bench.store.calls["commit"] == 1
        assert ended.record is not None
        assert (ended.record.progress, ended.record.message) == (49, "item 49")
        await bench.close()

    run(clock, main())


# ---- on files ----------------------------------------------------------------------------------------


@both
def test_an_attempt_on_files(clock: FakeClock, tmp_path: Path, sync: bool) -> None:
    """The same on a store whose calls block: in threads, one after the other."""

    async def on_loop(ctx: TaskContext) -> list[object]:
        assert ctx.last_checkpoint is None
        await ctx.progress(10, "began")
        await ctx.checkpoint({"n": 1})
        await ctx.progress(11)
        return [ctx.last_checkpoint, ctx.record.message]

    def in_thread(ctx: BlockingTaskContext) -> list[object]:
        assert ctx.last_checkpoint is None
        ctx.progress(10, "began")
        ctx.checkpoint({"n": 1})
        ctx.progress(11)
        return [ctx.last_checkpoint, ctx.record.message]

    async def main() -> None:
        store = LeaseTaskStore(tmp_path, shards=1, durability="none", clock=clock)
        bench = Bench(clock, store)
        bench.handler(sync=sync)
        ended = await bench.attempt(in_thread if sync else on_loop)
        assert isinstance(ended.outcome, Done)
        assert ended.record is not None
        assert ended.record.result == [{"n": 1}, "began"]
        record = bench.stored(ended.record.key)
        assert (record.status, record.progress) == ("completed", 100)
        assert [entry["status"] for entry in record.history or ()] == ["pending", "running", "completed"]
        assert bench.store.calls["commit"] == 2
        await bench.close()

    run(clock, main())


@both
def test_a_cancel_on_files(clock: FakeClock, tmp_path: Path, sync: bool) -> None:
    """[D039] [D047]"""

    async def main() -> None:
        store = LeaseTaskStore(tmp_path, shards=1, durability="none", clock=clock)
        bench = Bench(clock, store)
        bench.handler(sync=sync)
        claimed = bench.claim(until_told if sync else for_ever)
        attempt = await bench.begin(claimed)
        bench.tracker.cancel(claimed[0].key.task_id, **OWNER)
        await until(attempt.done)
        assert (await attempt).outcome == CancelledOutcome()
        assert bench.stored(claimed[0]).status == "cancelled"
        await bench.close()

    run(clock, main())


@both
def test_a_fenced_attempt_on_files(clock: FakeClock, tmp_path: Path, sync: bool) -> None:
    """[D024] [D057] Another process took over; this one has not heard of it, and the file system refuses it."""
    gate = Gate()
    refused: list[str] = []

    async def on_loop(ctx: TaskContext) -> str:
        await gate.pass_on_loop()
        with pytest.raises(LeaseLost):
            await ctx.checkpoint("late")
        refused.append("checkpoint")
        return "late"

    def in_thread(ctx: BlockingTaskContext) -> str:
        gate.pass_in_thread()
        with pytest.raises(LeaseLost):
            ctx.checkpoint("late")
        refused.append("checkpoint")
        return "late"

    async def main() -> None:
        harness = LeaseDirectoryHarness(tmp_path, durability="none")
        bench, other = Bench(clock, harness.open()), harness.open()
        bench.handler(sync=sync)
        claimed = bench.claim(in_thread if sync else on_loop)
        attempt = await bench.begin(claimed)
        harness.lapse(other, 31.0)
        (expired,) = expired_now(harness, other)
        taken = other.take_over(expired, holder="other")
        assert taken is not None
        gate.opened.set()
        await until(attempt.done)
        assert isinstance((await attempt).outcome, Lost)
        assert refused == ["checkpoint"]
        assert bench.outcomes() == ["lost"]
        other.end(taken[0], transitions.completed(taken[1].record, clock.now(), b'"second"'))
        assert bench.stored(claimed[0]).result == "second"
        other.close()
        await bench.close()

    run(clock, main())
