"""``ctx.transaction()``: rows of the handler's and the task's record are committed together, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from task_tracker import LeaseLost, StoreUnavailable
from task_tracker.records import TaskStatus
from task_tracker.worker.outcomes import Done, Failed, Lost
from tests.postgres.grounds import Ground
from tests.postgres.transacting import CAUGHT, Bench, Block, bench, body, complete

# ---- what is committed --------------------------------------------------------------------------------


def test_rows_and_the_end_of_the_task_are_one(one: Bench) -> None:
    """Nobody sees the one without the other, and what the handler returns afterwards does not count."""
    seen: list[Any] = []

    def look(tx: Any) -> None:
        tx.complete({"rows": 1}, resource_id="kb-1")
        seen.append((one.numbers(), one.stored(task).status))

    task = one.submit(body(Block((1,), look), sync=one.sync))
    ended, record = one.run_claimed(one.claim(task))
    assert seen == [([], TaskStatus.RUNNING)]
    assert one.numbers() == [1]
    assert (record.status, record.result, record.resource_id) == (TaskStatus.COMPLETED, {"rows": 1}, "kb-1")
    assert isinstance(ended.outcome, Done)
    assert ended.record == record
    assert [event.facts["outcome"] for event in one.events if event.name == "attempt_ended"] == ["done"]
    assert one.tracker.get(task.task_id, task.account_id, task.user_id) == record


def test_rows_and_a_checkpoint_are_one(one: Bench) -> None:
    seen: list[Any] = []

    def block(n: int) -> Block:
        return Block((n,), lambda tx: tx.checkpoint({"n": n}), lambda ctx: seen.append(ctx.last_checkpoint))

    _, record = one.run(body(block(1), block(2), sync=one.sync))
    assert one.numbers() == [1, 2]
    assert seen == [{"n": 1}, {"n": 2}]
    assert record.meta["_checkpoint"] == {"n": 2}
    assert (record.status, record.result) == (TaskStatus.COMPLETED, "returned")


def test_rows_alone_are_committed_under_the_lease(one: Bench) -> None:
    ended, record = one.run(body(Block((1,)), Block((2,)), sync=one.sync))
    assert one.numbers() == [1, 2]
    assert isinstance(ended.outcome, Done)
    assert record.result == "returned"


def test_what_is_noted_goes_along(one: Bench) -> None:
    task = one.submit(body(Block((1,), lambda tx: tx.complete()), sync=one.sync))
    _, record = one.run_claimed(one.claim(task))
    assert record.attempt is not None
    assert record.attempt.count == 1
    assert record.history is not None


def test_a_handler_that_goes_on_after_the_end_is_counted_here(one: Bench) -> None:
    """The store counts its task as running no more, and limits are over both: never in neither."""
    seen: list[bool] = []

    def count(_: Any) -> None:
        assert one.executor is not None
        seen.append(one.executor.may_leave(next(iter(one.executor._running))))

    def say(tx: Any) -> None:
        count(tx)
        tx.complete()
        count(tx)

    one.run(body(Block((1,), say, count), sync=one.sync))
    assert seen == [False, True, True]


def test_connections_are_used_again(one: Bench) -> None:
    pids: set[int] = set()
    blocks = [Block((n,), lambda tx: pids.add(tx.connection.info.backend_pid)) for n in range(5)]
    one.run(body(*blocks, sync=one.sync))
    assert len(pids) == 1


def test_nothing_is_prepared_on_them(one: Bench) -> None:
    """What one block prepares would be there, under the same name, when the next one does."""

    async def on_loop(ctx: Any) -> None:
        for number in range(3):
            async with ctx.transaction() as tx:
                tx.connection.prepare_threshold = 0
                await tx.connection.execute("INSERT INTO numbers (n) VALUES (%s)", [number], prepare=True)

    def in_thread(ctx: Any) -> None:
        for number in range(3):
            with ctx.transaction() as tx:
                tx.connection.prepare_threshold = 0
                tx.connection.execute("INSERT INTO numbers (n) VALUES (%s)", [number], prepare=True)

    _, record = one.run(in_thread if one.sync else on_loop)
    assert record.error is None
    assert one.numbers() == [0, 1, 2]


# ---- what is undone ----------------------------------------------------------------------------------


def test_an_error_undoes_everything(one: Bench) -> None:
    """[D023] Nothing of a block that raised is left, neither rows nor an end."""

    def raises(tx: Any) -> None:
        tx.complete("never")
        raise ValueError("no")

    ended, record = one.run(
        body(Block((1,), lambda tx: tx.checkpoint(1)), Block((2,), raises), sync=one.sync)
    )
    assert one.numbers() == [1]
    assert isinstance(ended.outcome, Failed)
    assert (record.status, record.error) == (TaskStatus.FAILED, "ValueError: no")


def test_a_lost_lease_undoes_everything(one: Bench) -> None:
    """[D007] [D008] [D023] Taken over in the middle of the block: the last word meets another epoch."""

    def lose(tx: Any) -> None:
        tx.complete("never")
        one.take_over()

    ended, record = one.run(body(Block((1,), lose), sync=one.sync, catch=LeaseLost))
    assert one.numbers() == []
    assert isinstance(CAUGHT[0], LeaseLost)
    assert isinstance(ended.outcome, Lost)
    assert record.status is TaskStatus.RUNNING
    assert one.ground.run("SELECT holder FROM {tasks}") == [("somebody else",)]


@pytest.mark.parametrize("say", [lambda tx: None, lambda tx: tx.checkpoint(1)], ids=["look", "checkpoint"])
def test_so_does_an_expired_one_that_nobody_has_taken(one: Bench, say: Callable[[Any], None]) -> None:
    """[D026] The database's clock says so, whatever this host's says. [D010] No lease counts as none."""

    def lapse(tx: Any) -> None:
        say(tx)
        one.ground.lapse(1000)

    ended, _ = one.run(body(Block((1,), lapse), sync=one.sync, catch=LeaseLost))
    assert one.numbers() == []
    assert isinstance(CAUGHT[0], LeaseLost)
    assert isinstance(ended.outcome, Lost)


def test_a_lease_that_was_renewed_meanwhile_is_held(one: Bench) -> None:
    """[D030] A block may take longer than a lease: what counts is whether it was heard of."""

    def live(tx: Any) -> None:
        tx.complete()
        holding = one.executor.holdings.all()[0] if one.executor is not None else None
        assert holding is not None
        for _ in range(3):
            one.ground.lapse(25)
            one.store.renew(holding.lease)

    _, record = one.run(body(Block((1,), live), sync=one.sync))
    assert (one.numbers(), record.status) == ([1], TaskStatus.COMPLETED)


def test_a_cancel_undoes_everything(one: Bench) -> None:
    """Also one that this process has not heard of: the last word meets it in the row."""

    def cancel(tx: Any) -> None:
        tx.checkpoint(1)
        one.other.request_cancel(task.key)

    task = one.submit(body(Block((1,), cancel), sync=one.sync))
    _, record = one.run_claimed(one.claim(task))
    assert one.numbers() == []
    assert record.status is TaskStatus.CANCELLED
    assert record.meta is None or "_checkpoint" not in record.meta


@pytest.mark.parametrize("cancellable", [True, False])
def test_a_cancel_that_was_heard_of_undoes_an_end_too(ground: Ground, sync: bool, cancellable: bool) -> None:
    """As what a handler returns does not count once it is to stop and looks. One that cannot be cancelled completes."""

    def cancel(tx: Any) -> None:
        made.other.request_cancel(task.key)
        assert made.executor is not None
        next(iter(made.executor._running)).cancel_requested.set()
        tx.complete("fine")

    with bench(ground, sync=sync, cancellable=cancellable) as made:
        task = made.submit(body(Block((1,), cancel), sync=sync))
        _, record = made.run_claimed(made.claim(task))
        assert record.status is (TaskStatus.CANCELLED if cancellable else TaskStatus.COMPLETED)
        assert made.numbers() == ([] if cancellable else [1])


def test_an_end_is_before_a_cancel_that_nobody_here_has_heard_of(one: Bench) -> None:
    """The first end wins, as for a handler that returns."""

    def cancel(tx: Any) -> None:
        one.other.request_cancel(task.key)
        tx.complete("fine")

    task = one.submit(body(Block((1,), cancel), sync=one.sync))
    _, record = one.run_claimed(one.claim(task))
    assert (one.numbers(), record.status, record.result) == ([1], TaskStatus.COMPLETED, "fine")


LOCK = "SELECT pg_advisory_xact_lock(4711)"


def test_a_timeout_undoes_what_goes_on(ground: Ground, sync: bool) -> None:
    """A handler that is deaf keeps no lock from its ``on_failure``."""
    told = threading.Event()

    def deaf(ctx: Any) -> None:
        with ctx.transaction() as tx:
            tx.connection.execute(LOCK)
            tx.complete("never")
            assert told.wait(30)

    async def deaf_on_loop(ctx: Any) -> None:
        async with ctx.transaction() as tx:
            await tx.connection.execute(LOCK)
            tx.complete("never")
            while not told.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)

    def mark(ctx: Any, record: Any) -> None:
        try:
            with ctx.transaction() as tx:
                tx.connection.execute(LOCK)
                tx.connection.execute("INSERT INTO numbers (n) VALUES (1)")
        finally:
            told.set()

    async def mark_on_loop(ctx: Any, record: Any) -> None:
        try:
            async with ctx.transaction() as tx:
                await tx.connection.execute(LOCK)
                await tx.connection.execute("INSERT INTO numbers (n) VALUES (1)")
        finally:
            told.set()

    with bench(
        ground, sync=sync, hook=mark if sync else mark_on_loop, timeout_seconds=0.2, cleanup_seconds=0.1
    ) as made:
        _, record = made.run(deaf if sync else deaf_on_loop)
        assert made.numbers() == [1]
        assert (record.status, record.error_code, record.hook_error) == (TaskStatus.FAILED, "timeout", None)


def test_a_deferred_constraint_undoes_everything(one: Bench) -> None:
    """It fails at COMMIT, after the record was written."""
    ended, record = one.run(body(Block((7,)), Block((7,), complete), sync=one.sync))
    assert one.numbers() == [7]
    assert isinstance(ended.outcome, Failed)
    assert record.status is TaskStatus.FAILED
    assert record.error is not None
    assert "duplicate key" in record.error


def test_a_session_that_is_terminated_undoes_everything(one: Bench) -> None:
    """[D006] In the middle of the block. The handler is told, and may do the block again."""

    def end_session(tx: Any) -> None:
        tx.complete("never")
        one.terminate(tx)

    script = body(Block((1,), end_session), Block((2,), complete), sync=one.sync, catch=StoreUnavailable)
    ended, record = one.run(script)
    assert [type(error) for error in CAUGHT] == [StoreUnavailable]
    assert one.numbers() == [2]
    assert isinstance(ended.outcome, Done)
    assert record.result == {"rows": 1}
