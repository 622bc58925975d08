"""Connections that break in ``ctx.transaction()``, and handlers that are stopped in it: rows and record agree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stores.postgres.transactions import PostgresTransaction
from task_tracker import LeaseLost, StoreUnavailable, TaskRecord
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.records import TaskStatus
from task_tracker.store import Lease
from task_tracker.worker.outcomes import Done, Failed, ShuttingDown, StopReason
from tests.postgres.grounds import Ground
from tests.postgres.transacting import Bench, Block, bench, body, complete

COMMIT = 3
"""The statement after the limits and the write."""


def cut(one: Bench, say: Callable[[Any], None], *, after: bool) -> Callable[[Any], None]:
    def inside(tx: Any) -> None:
        say(tx)
        one.scissors.cut_at(COMMIT, after=after)

    return inside


@pytest.mark.parametrize(
    "say", [complete, lambda tx: tx.checkpoint(1), lambda tx: None], ids=["complete", "checkpoint", "look"]
)
def test_a_commit_that_was_not_answered_is_looked_up(one: Bench, say: Callable[[Any], None]) -> None:
    """It had happened: so it is taken for what it is, and nothing is done twice."""
    seen: list[Any] = []
    block = Block((1,), cut(one, say, after=True), lambda ctx: seen.append(ctx.last_checkpoint))
    ended, record = one.run(body(block, sync=one.sync))
    assert one.scissors.cuts == 1
    assert one.numbers() == [1]
    assert isinstance(ended.outcome, Done)
    assert record.status is TaskStatus.COMPLETED
    assert record.result == ({"rows": 1} if say is complete else "returned")
    if say is not complete:
        assert seen == [record.meta["_checkpoint"] if record.meta else None]


@pytest.mark.parametrize("say", [complete, lambda tx: tx.checkpoint(1), lambda tx: None])
def test_one_that_had_not_happened_raises(one: Bench, say: Callable[[Any], None]) -> None:
    block = Block((1,), cut(one, say, after=False))
    ended, record = one.run(body(block, sync=one.sync))
    assert one.scissors.cuts == 1
    assert one.numbers() == []
    assert isinstance(ended.outcome, Failed)
    assert record.status is TaskStatus.FAILED
    assert record.meta is None or "_checkpoint" not in record.meta


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("nth", [1, 2, 3], ids=["limits", "write", "commit"])
def test_wherever_the_connection_breaks_rows_and_record_agree(one: Bench, nth: int, after: bool) -> None:
    def inside(tx: Any) -> None:
        tx.complete("done")
        one.scissors.cut_at(nth, after=after)

    _, record = one.run(body(Block((1,), inside), sync=one.sync))
    assert one.scissors.cuts == 1
    assert (one.numbers() == [1]) == (record.status is TaskStatus.COMPLETED) == (nth == COMMIT and after)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_dead_connection_is_no_trouble_at_the_beginning(one: Bench, after: bool) -> None:
    blocks = [Block((1,), after=lambda _: one.scissors.cut_at(1, after=after)), Block((2,))]
    one.run(body(*blocks, sync=one.sync))
    assert one.scissors.cuts == 1
    assert one.numbers() == [1, 2]


def test_the_answer_is_waited_for(one: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may still be at it, or away."""
    asked: list[object] = []
    really = PostgresTransaction.is_committed

    def at_last(self: PostgresTransaction) -> bool:
        asked.append(self)
        assert one.executor is not None
        (holding,) = one.executor.holdings.all()
        assert holding.settling  # no deadline of this host's ends it
        if len(asked) < 3:
            raise StoreUnavailable("not yet")
        return really(self)

    monkeypatch.setattr(PostgresTransaction, "is_committed", at_last)
    ended, record = one.run(body(Block((1,), cut(one, complete, after=True)), sync=one.sync))
    assert len(asked) == 3
    assert isinstance(ended.outcome, Done)
    assert (one.numbers(), record.result) == ([1], {"rows": 1})


def test_a_handler_that_is_stopped_in_doubt_has_completed_all_the_same(
    one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat is refused, since the task has ended; only the store can say that it was this attempt."""
    really = PostgresTransaction.is_committed
    asked: list[object] = []

    def at_last(self: PostgresTransaction) -> bool:
        asked.append(self)
        if len(asked) == 1:
            assert one.executor is not None
            lease = next(iter(one.executor._running))
            with pytest.raises(LeaseLost):
                one.store.renew(lease)
            one.executor.holdings.lose(lease, "a heartbeat heard of it")
            one.executor.notice(lease)
            raise StoreUnavailable("not yet")
        return really(self)

    monkeypatch.setattr(PostgresTransaction, "is_committed", at_last)
    ended, record = one.run(body(Block((1,), cut(one, complete, after=True)), sync=one.sync))
    assert isinstance(ended.outcome, Done)
    assert ended.record == record
    assert (one.numbers(), record.status) == ([1], TaskStatus.COMPLETED)


@pytest.mark.parametrize("writes_on", [False, True], ids=["given back", "written"])
def test_no_later_write_forgets_a_checkpoint_that_was_in_doubt(
    ground: Ground, sync: bool, writes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker ends before the answer is known. What it writes then has to know it: the rows are there."""
    really = PostgresTransaction.is_committed
    asked: list[object] = []
    seen: list[TaskRecord] = []

    def at_last(self: PostgresTransaction) -> bool:
        asked.append(self)
        if len(asked) == 1:
            assert made.executor is not None
            next(iter(made.executor._running.values())).signal.set(StopReason.SHUTDOWN)
            made.executor._loop.call_soon_threadsafe(made.executor.interrupt)  # type: ignore[union-attr]  # it runs
            raise StoreUnavailable("not yet")
        return really(self)

    def write(ctx: Any) -> None:
        if writes_on:
            ctx._attempt.commit(lambda record: record.changed(message="on"))
        seen.append(made.stored(ctx))
        raise ShuttingDown

    monkeypatch.setattr(PostgresTransaction, "is_committed", at_last)
    with bench(ground, sync=sync, idempotent=True) as made:
        block = Block((1,), cut(made, lambda tx: tx.checkpoint({"n": 1}), after=True), write)
        _, record = made.run(body(block, sync=sync, catch=(ShuttingDown, asyncio.CancelledError)))
        assert made.numbers() == [1]
        assert record.status is TaskStatus.PENDING
        assert record.meta["_checkpoint"] == {"n": 1}
        assert seen[0].meta["_checkpoint"] == {"n": 1}
        assert seen[0].message == record.message == ("on" if writes_on else None)


def test_a_handler_that_is_stopped_while_it_begins_leaves_no_session(
    one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a coroutine waited for when it was cancelled is undone by whoever cancelled it."""
    really = one.store.begin

    def begin(lease: Lease, *, for_loop: bool) -> Any:
        begun = really(lease, for_loop=for_loop)
        assert one.executor is not None
        attempt = next(iter(one.executor._running.values()))
        one.executor._loop.call_soon_threadsafe(one.executor.interrupt)  # type: ignore[union-attr]  # it runs
        until_set(attempt.told)
        return begun

    monkeypatch.setattr(one.store, "begin", begin)
    _, record = one.run(body(Block((1,), lambda tx: tx.complete("never")), sync=one.sync))
    assert one.numbers() == []
    assert (record.status, record.error_code) == (TaskStatus.FAILED, "interrupted")


def until_set(told: asyncio.Event) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + 30
    while not told.is_set():
        assert SYSTEM_CLOCK.monotonic() < deadline, "nobody told it"
