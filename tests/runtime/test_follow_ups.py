"""What handlers submit while they work: tasks of their own, which live and end by themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from task_tracker import LeaseLost, SettingsError, StoreUnavailable, Submission, TaskExists, TaskStatus
from task_tracker.records import TaskKey
from task_tracker.testing import FakeClock
from task_tracker.wakeups import WAKE_SECONDS
from task_tracker.worker import BlockingTaskContext, Fail, TaskContext, current_context
from task_tracker.worker.outcomes import Done, Failed
from tests.core.support import PATIENCE
from tests.runtime.attempting import OWNER, Bench, Gate, attempted, for_ever, run, until
from tests.runtime.handling import BEGUN, BODIES

both = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])

Body = Callable[[Any], Any]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def submitting(sync: bool, *arguments: Any, **options: Any) -> Body:
    """Return the body of a handler that submits this and returns the id and what there is of it in the record."""

    def told(submission: Submission) -> list[Any]:
        record = submission.record
        assert record.status is TaskStatus.PENDING
        return [submission.task_id, submission.created, [record.account_id, record.user_id], record.meta]

    async def on_loop(ctx: TaskContext) -> list[Any]:
        return told(await ctx.submit(*arguments, **options))

    def in_thread(ctx: BlockingTaskContext) -> list[Any]:
        return told(ctx.submit(*arguments, **options))

    return in_thread if sync else on_loop


# ---- the task that is submitted ------------------------------------------------------------------------


@both
def test_it_is_a_task_of_the_same_owner_that_names_whence_it_comes(clock: FakeClock, sync: bool) -> None:
    outcome, record, bench = attempted(
        clock, submitting(sync, "t", {"n": 1}, resource_id="kb-7", priority=3, meta={"by": "test"}), sync=sync
    )
    assert isinstance(outcome, Done)
    task_id, created, owner, meta = record.result
    assert (created, owner) == (True, list(OWNER.values()))
    assert meta == {"by": "test", "submitted_by": record.task_id}
    child = bench.stored(TaskKey(OWNER["account_id"], OWNER["user_id"], task_id))
    assert (child.payload, child.resource_id, child.priority) == ({"n": 1}, "kb-7", 3)
    assert (child.handler_version, child.status) == (1, TaskStatus.PENDING)


@both
def test_somebody_elses_task_does_not_say_whence_it_comes(clock: FakeClock, sync: bool) -> None:
    """He could not look it up, and is not to learn the id."""
    _, record, _ = attempted(clock, submitting(sync, "t", user_id="bob"), sync=sync)
    assert record.result[2:] == [["acme", "bob"], {}]
    _, record, _ = attempted(clock, submitting(sync, "t", account_id="globex", user_id="carol"), sync=sync)
    assert record.result[2:] == [["globex", "carol"], {}]


@both
def test_a_handler_that_runs_again_finds_what_it_has_submitted(clock: FakeClock, sync: bool) -> None:
    """The call is not fenced: an id of its own, or dedupe, says that it was made before."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync)
        first, second = [
            await bench.attempt(submitting(sync, "t", resource_id="kb-7", dedupe=True)) for _ in range(2)
        ]
        assert first.record is not None
        assert second.record is not None
        assert [first.record.result[1], second.record.result[1]] == [True, False]
        assert first.record.result[0] == second.record.result[0]
        assert second.record.result[3] == {"submitted_by": first.record.task_id}, "whose it was at first"
        named = [await bench.attempt(submitting(sync, "t", task_id="child")) for _ in range(2)]
        assert isinstance(named[0].outcome, Done)
        assert isinstance(named[1].outcome, Failed)
        await bench.close()

    run(clock, main())


@both
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"task_type": "unknown"}, SettingsError, "no handler for 'unknown' is registered here"),
        ({"meta": {"submitted_by": "x"}}, ValueError, "meta has the key 'submitted_by', which this library"),
        ({"meta": 5}, ValueError, "meta must be a mapping"),
        ({"priority": "high"}, ValueError, "priority"),
        ({"colour": "red"}, TypeError, "colour"),
        ({"account_id": ""}, ValueError, "non-empty account_id"),
    ],
)
def test_what_cannot_be_submitted_is_refused_where_it_is_said(
    clock: FakeClock, sync: bool, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {"task_type": "t"} | options

    async def on_loop(ctx: TaskContext) -> None:
        with pytest.raises(error, match=message):
            await ctx.submit(**given)

    def in_thread(ctx: BlockingTaskContext) -> None:
        with pytest.raises(error, match=message):
            ctx.submit(**given)

    outcome, _, _ = attempted(clock, in_thread if sync else on_loop, sync=sync)
    assert isinstance(outcome, Done)


def test_a_task_that_is_retried_by_hand_was_not_submitted_by_a_handler(clock: FakeClock) -> None:
    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        ended = await bench.attempt(submitting(False, "t"))
        assert ended.record is not None
        task_id = ended.record.result[0]
        bench.tracker.cancel(task_id, **OWNER)
        retried = bench.tracker.retry(task_id, OWNER["account_id"], OWNER["user_id"], unregistered=True)
        assert retried.record.meta == {"retry_of": task_id}
        await bench.close()

    run(clock, main())


# ---- apart from the one whose handler submits it ---------------------------------------------------------


@both
def test_neither_waits_for_the_other(clock: FakeClock, sync: bool) -> None:
    """[D044] Submitted through a context variable, deep within a handler that returns: it is terminal at once."""

    def in_thread(_: Any) -> str:
        context = current_context()
        assert isinstance(context, BlockingTaskContext)
        return context.submit("t", "child").task_id

    async def on_loop(_: Any) -> str:
        context = current_context()
        assert isinstance(context, TaskContext)
        return (await context.submit("t", "child")).task_id

    BODIES["child"] = for_ever

    async def main() -> None:
        bench = Bench(clock)
        bench.handler()
        bench.handler("parent", sync=sync)
        ended = await bench.attempt(in_thread if sync else on_loop, task_type="parent")
        assert ended.record is not None
        parent = ended.record
        assert bench.stored(parent.key).status is TaskStatus.COMPLETED
        child = bench.stored(TaskKey(*parent.key[:2], parent.result))
        assert (child.status, child.task_type) == (TaskStatus.PENDING, "t")
        assert child.result is None
        bench.start(bench.claim_again(child.key))
        await until(lambda: "child" in BEGUN)
        assert bench.stored(parent.key) == parent, "it has ended, whatever becomes of the other"
        bench.tracker.cancel(child.task_id, **OWNER)
        assert bench.stored(parent.key) == parent
        await bench.close()

    run(clock, main())


@both
def test_what_goes_on_after_its_attempt_submits_nothing_in_its_name(clock: FakeClock, sync: bool) -> None:
    contexts: list[Any] = []

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync)

        async def on_loop(ctx: TaskContext) -> None:
            contexts.append(ctx)

        await bench.attempt(contexts.append if sync else on_loop)
        with pytest.raises(LeaseLost, match="is over"):
            contexts[0].submit("t") if sync else await contexts[0].submit("t")
        assert bench.tracker.stats(OWNER["account_id"]) == {"t": {"completed": 1}}
        await bench.close()

    run(clock, main())


@both
def test_an_attempt_that_is_to_stop_submits_nothing(clock: FakeClock, sync: bool) -> None:
    gate = Gate()

    async def on_loop(ctx: TaskContext) -> None:
        try:
            await gate.pass_on_loop()
        finally:
            await ctx.submit("t")

    def in_thread(ctx: BlockingTaskContext) -> None:
        gate.pass_in_thread()
        ctx.submit("t")

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync)
        claimed = bench.claim(in_thread if sync else on_loop)
        attempt = await bench.begin(claimed)
        await until(gate.entered.is_set)
        bench.tracker.cancel(claimed[0].key.task_id, **OWNER)
        await bench.rest()
        gate.opened.set()
        ended = await attempt
        assert ended.record is not None
        assert ended.record.status is TaskStatus.CANCELLED
        assert bench.tracker.stats(OWNER["account_id"]) == {"t": {"cancelled": 1}}
        await bench.close()

    run(clock, main())


@pytest.mark.parametrize("hook", ["loop", "thread"])
def test_a_hook_may_submit_too(clock: FakeClock, hook: str) -> None:
    """A task that failed may lead to another one: a clean-up, a message to somebody."""

    async def on_loop(ctx: TaskContext, record: object) -> None:
        await ctx.submit("t", task_id="clean-up")

    def in_thread(ctx: BlockingTaskContext, record: object) -> None:
        ctx.submit("t", task_id="clean-up")

    async def body(ctx: TaskContext) -> None:
        raise Fail("broken")

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(hook=hook)
        BODIES["hook"] = on_loop if hook == "loop" else in_thread
        ended = await bench.attempt(body)
        assert ended.record is not None
        assert ended.record.hook_error is None
        found = bench.tracker.get("clean-up", **OWNER)
        assert found is not None
        assert found.meta == {"submitted_by": ended.record.task_id}
        await bench.close()

    run(clock, main())


# ---- trouble -------------------------------------------------------------------------------------------


@both
def test_a_store_that_is_away_is_the_handlers_to_judge(clock: FakeClock, sync: bool) -> None:
    """It is said and not waited for: whoever tries again says by an id that it is the same task."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync)
        bench.store.fail(StoreUnavailable("away"), on="create")
        ended = await bench.attempt(submitting(sync, "t"))
        assert isinstance(ended.outcome, Failed)
        assert "away" in ended.outcome.error
        await bench.close()

    run(clock, main())


class Way:
    """Wakes nobody until a test lets it."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.opened = threading.Event()

    def wake(self, keys: Sequence[TaskKey]) -> None:
        self.threads.append(threading.current_thread())
        assert self.opened.wait(PATIENCE)

    def wait(self, seconds: float) -> bool:
        return False

    def interrupt(self) -> None:
        """Nobody waits."""


def test_the_loop_goes_on_while_a_wake_up_hangs(clock: FakeClock) -> None:
    """On a store that needs no thread as well; the task is there, and counts as submitted."""
    way = Way()

    async def main() -> None:
        bench = Bench(clock, wake_up=way)
        bench.handler()
        attempt = bench.start(bench.claim(submitting(False, "t")))
        await until(lambda: way.threads)
        assert bench.tracker.stats(OWNER["account_id"]) == {"t": {"running": 1, "pending": 1}}
        await asyncio.to_thread(clock.until_waiting)
        clock.advance(WAKE_SECONDS)
        ended = await attempt
        assert isinstance(ended.outcome, Done)
        assert bench.tracker.wake_up_failures == 1
        way.opened.set()
        await bench.close()

    run(clock, main())


def test_what_has_found_no_thread_is_tried_again(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[threading.Thread] = []
    start = threading.Thread.start

    def once(thread: threading.Thread) -> None:
        if not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    async def body(ctx: TaskContext) -> bool:
        monkeypatch.setattr(threading.Thread, "start", once)
        waiting = asyncio.ensure_future(ctx.submit("t"))
        while not waiting.done():
            await asyncio.sleep(0)
            clock.advance(0.1)
        return waiting.result().created

    outcome, record, _ = attempted(clock, body)
    assert isinstance(outcome, Done)
    assert (record.result, len(refused)) == (True, 1)


def test_an_id_that_is_taken_is_said(clock: FakeClock) -> None:
    async def body(ctx: TaskContext) -> None:
        await ctx.submit("t", task_id="one")
        with pytest.raises(TaskExists):
            await ctx.submit("t", task_id="one")

    assert isinstance(attempted(clock, body)[0], Done)
