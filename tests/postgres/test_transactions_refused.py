"""What a block of ``ctx.transaction()`` refuses, and what becomes of a connection that its users do not leave alone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from stores import InMemoryTaskStore
from task_tracker import HandlerRegistry, LeaseLost, StoreUnavailable, TaskTracker
from task_tracker.errors import InvalidTransition
from task_tracker.records import TaskStatus
from task_tracker.worker import Worker
from task_tracker.worker.outcomes import Done
from tests.postgres.grounds import Ground
from tests.postgres.transacting import Bench, Block, bench, body, complete
from tests.runtime.handling import BODIES
from tests.runtime.work import until


def test_it_is_said_once_how_a_block_ends(one: Bench) -> None:
    def twice(tx: Any) -> None:
        tx.checkpoint(1)
        tx.complete()

    _, record = one.run(body(Block((1,), twice), sync=one.sync))
    assert one.numbers() == []
    assert record.error is not None
    assert "said before" in record.error


def test_what_is_no_result_fails_as_ever(one: Bench) -> None:
    _, record = one.run(body(Block((1,), lambda tx: tx.complete({1, 2})), sync=one.sync))
    assert one.numbers() == []
    assert (record.status, record.error_code) == (TaskStatus.FAILED, "unserializable_result")


def test_what_is_too_large_fails_as_ever(one: Bench) -> None:
    """The bounds on what a handler returns and notes are those of a block, too."""
    large = "x" * 2_000_000
    _, record = one.run(body(Block((1,), lambda tx: tx.complete(large)), sync=one.sync))
    assert (record.status, record.error_code) == (TaskStatus.FAILED, "result_too_large")
    _, record = one.run(body(Block((2,), lambda tx: tx.checkpoint(large)), sync=one.sync))
    assert record.error is not None
    assert "max_checkpoint_bytes" in record.error
    assert one.numbers() == []


def test_after_the_end_nothing_more_is_noted(one: Bench) -> None:
    caught: list[BaseException] = []

    def late(ctx: Any) -> None:
        try:
            ctx._attempt.commit()
        except LeaseLost as error:
            caught.append(error)

    blocks = [Block((1,), complete, late), Block((2,))]
    ended, record = one.run(body(*blocks, sync=one.sync))
    assert len(caught) == 1
    assert one.numbers() == [1]  # the second block was refused
    assert isinstance(ended.outcome, Done)
    assert record.result == {"rows": 1}
    with pytest.raises(InvalidTransition):
        one.other.request_cancel(record.key)


def test_a_block_within_a_block_is_refused(ground: Ground, sync: bool) -> None:
    """Handlers that have a connection each would wait for a second one, which none of them gives back."""

    async def on_loop(ctx: Any) -> None:
        async with ctx.transaction(), ctx.transaction():
            raise AssertionError("it has begun")

    async def by_others(ctx: Any) -> None:
        async def another() -> None:
            async with ctx.transaction():
                raise AssertionError("it has begun")

        async with ctx.transaction():
            await asyncio.gather(another())

    def in_thread(ctx: Any) -> None:
        with ctx.transaction(), ctx.transaction():
            raise AssertionError("it has begun")

    with bench(ground, sync=sync) as made:
        for does in [in_thread] if sync else [on_loop, by_others]:
            _, record = made.run(does)
            assert record.error is not None
            assert "within a block of it" in record.error


def test_blocks_beside_each_other_are_none_within_another(ground: Ground) -> None:
    async def on_loop(ctx: Any) -> None:
        async def another(number: int) -> None:
            async with ctx.transaction() as tx:
                await tx.connection.execute("INSERT INTO numbers (n) VALUES (%s)", [number])

        await asyncio.gather(*(another(number) for number in range(3)))
        await another(3)

    with bench(ground, sync=False) as made:
        made.run(on_loop)
        assert made.numbers() == [0, 1, 2, 3]


def test_the_connection_is_of_no_use_after_the_block(ground: Ground) -> None:
    kept: list[Any] = []
    with bench(ground, sync=True) as made:
        made.run(body(Block((1,), lambda tx: kept.append(tx.connection)), sync=True))
        with pytest.raises(psycopg.InterfaceError, match="has ended"):
            kept[0].execute("SELECT 1")


@pytest.mark.parametrize("call", ["commit", "rollback", "close"])
def test_the_connection_does_not_end_the_transaction(ground: Ground, call: str) -> None:
    with bench(ground, sync=True) as made:
        _, record = made.run(body(Block((1,), lambda tx: getattr(tx.connection, call)()), sync=True))
        assert made.numbers() == []
        assert record.error is not None
        assert "ctx.transaction()" in record.error


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "COMMIT; BEGIN"])
def test_one_that_was_ended_by_hand_is_noticed(ground: Ground, statement: str) -> None:
    """What it had written may be there. The task does not end with it as if it were bound to it."""

    def end(tx: Any) -> None:
        tx.connection.execute(statement)
        tx.complete("never")

    with bench(ground, sync=True) as made:
        _, record = made.run(body(Block((), end), sync=True))
        assert record.status is TaskStatus.FAILED
        assert record.error is not None
        assert "ended within its block" in record.error


def test_a_failed_statement_that_was_caught_is_not_forgotten(ground: Ground) -> None:
    def fail(tx: Any) -> None:
        with pytest.raises(psycopg.errors.CheckViolation):
            tx.connection.execute("INSERT INTO numbers (n) VALUES (-1)")
        tx.complete("never")

    def fail_within(tx: Any) -> None:
        with pytest.raises(psycopg.errors.CheckViolation), tx.connection.transaction():
            tx.connection.execute("INSERT INTO numbers (n) VALUES (-1)")
        tx.complete("fine")

    with bench(ground, sync=True) as made:
        _, record = made.run(body(Block((1,), fail), sync=True))
        assert record.error is not None
        assert "connection.transaction()" in record.error
        assert made.numbers() == []
        _, record = made.run(body(Block((1,), fail_within), sync=True))
        assert (record.result, made.numbers()) == ("fine", [1])


def test_a_statement_that_goes_on_undoes_everything(ground: Ground) -> None:
    """Another thread uses the connection when the block ends: it is stopped, and the block fails."""
    ended: list[BaseException] = []

    def inside(tx: Any) -> None:
        def sleep() -> None:
            try:
                tx.connection.execute("SELECT pg_sleep(60)")
            except psycopg.Error as error:
                ended.append(error)

        thread = threading.Thread(target=sleep)
        threads.append(thread)
        thread.start()
        pid = tx.connection.info.backend_pid
        while made.ground.run("SELECT state FROM pg_stat_activity WHERE pid = %s", pid) != [("active",)]:
            pass

    threads: list[threading.Thread] = []
    with bench(ground, sync=True) as made:
        _, record = made.run(body(Block((1,), inside), sync=True))
        threads[0].join(30)
        assert isinstance(ended[0], psycopg.errors.QueryCanceled)
        assert made.numbers() == []
        assert record.error is not None
        assert "still under way" in record.error


def test_so_does_one_in_another_task_of_the_loop(ground: Ground) -> None:
    """It is stopped on the server, so that the loop that waits for it goes on."""
    stray: list[asyncio.Task[Any]] = []

    async def script(ctx: Any) -> None:
        async with ctx.transaction() as tx:
            await tx.connection.execute("INSERT INTO numbers (n) VALUES (1)")
            stray.append(asyncio.create_task(tx.connection.execute("SELECT pg_sleep(60)")))
            pid = tx.connection.info.backend_pid
            query = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state = 'active'"
            await until(lambda: made.ground.run(query, pid))

    with bench(ground, sync=False) as made:
        _, record = made.run(script)
        assert isinstance(stray[0].exception(), psycopg.errors.QueryCanceled)
        assert made.numbers() == []
        assert record.error is not None
        assert "still under way" in record.error


def test_a_worker_that_ends_leaves_no_statement_behind(ground: Ground, sync: bool) -> None:
    """A coroutine is cancelled where it waits, a thread's statement is stopped once nobody waits for the thread."""

    def interrupt() -> None:
        assert made.executor is not None
        assert made.executor._loop is not None
        made.executor._loop.call_soon_threadsafe(made.executor.interrupt)

    async def on_loop(ctx: Any) -> None:
        async with ctx.transaction() as tx:
            await tx.connection.execute("INSERT INTO numbers (n) VALUES (1)")
            interrupt()
            await tx.connection.execute("SELECT pg_sleep(60)")

    def in_thread(ctx: Any) -> None:
        with ctx.transaction() as tx:
            tx.connection.execute("INSERT INTO numbers (n) VALUES (1)")
            interrupt()
            tx.connection.execute("SELECT pg_sleep(60)")

    with bench(ground, sync=sync, cleanup_seconds=0.1 if sync else 10) as made:
        _, record = made.run(in_thread if sync else on_loop)
        assert made.numbers() == []
        assert (record.status, record.error_code) == (TaskStatus.FAILED, "interrupted")


def test_a_store_without_transactions_says_what_to_do(sync: bool) -> None:
    BODIES["it"] = body(Block(), sync=sync)
    registry = HandlerRegistry()
    registry.register("t", handler=f"tests.runtime.handling:{'in_thread' if sync else 'on_loop'}")
    with TaskTracker(InMemoryTaskStore(), handlers=registry) as tracker:
        task = tracker.submit("t", "it", account_id="acme", user_id="alice")
        Worker(tracker, registry).run_once()
        record = tracker.get(task.task_id, "acme", "alice")
    assert record is not None
    assert record.error is not None
    assert "use the postgres backend" in record.error


def test_heartbeats_have_connections_of_their_own(ground: Ground) -> None:
    """Blocks that take all connections there are do not cost any of them its lease."""
    with bench(ground, sync=True) as made:
        task = made.submit(body(sync=True))
        lease, _ = made.claim(task)
        store = made.ground.store(pool_size=1, lease_seconds=30, lock_timeout_seconds=0.2)
        begun = store.begin(lease, for_loop=False)
        store.renew(lease)
        with pytest.raises(StoreUnavailable, match="pool_size"):
            store.begin(lease, for_loop=False)
        begun.roll_back()
        begun.roll_back()  # twice is safe
        with pytest.raises(StoreUnavailable, match="rolled back"):
            begun.look()
        with pytest.raises(StoreUnavailable, match="rolled back"):
            begun.commit()
        store.begin(lease, for_loop=True).roll_back()
        store.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_beginning_is_tried_once_more(ground: Ground, after: bool) -> None:
    with bench(ground, sync=True) as made:
        lease, _ = made.claim(made.submit(body(sync=True)))
        made.store.begin(lease, for_loop=False).roll_back()
        made.scissors.cut_at(1, after=after)
        made.store.begin(lease, for_loop=False).roll_back()
        assert made.scissors.cuts == 1
