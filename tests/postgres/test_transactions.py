"""``ctx.transaction()``: rows of the handler's and the task's record are committed together, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from stores import InMemoryTaskStore
from task_tracker import LeaseLost, StoreUnavailable, TaskRecord, TaskTracker
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import InvalidTransition
from task_tracker.records import TaskStatus
from task_tracker.store import Lease
from task_tracker.worker.outcomes import Done, Failed, Lost, ShuttingDown, StopReason
from tests.postgres.grounds import Ground
from tests.postgres.transacting import CAUGHT, Bench, Block, bench, body
from tests.runtime.work import until

Make = Callable[..., Bench]


@pytest.fixture(params=[False, True], ids=["async", "sync"])
def sync(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def one(ground: Ground, sync: bool) -> Iterator[Bench]:
    with bench(ground, sync=sync) as made:
        yield made


def complete(tx: Any) -> None:
    tx.complete({"rows": 1}, resource_id="kb-1")


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


# ---- a commit that is not answered ------------------------------------------------------------------


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
    from stores.postgres.transactions import PostgresTransaction

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
    from stores.postgres.transactions import PostgresTransaction

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
    from stores.postgres.transactions import PostgresTransaction

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


# ---- what the block refuses ---------------------------------------------------------------------------


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
    from task_tracker.worker import Worker
    from tests.runtime.handling import BODIES

    BODIES["it"] = body(Block(), sync=sync)
    from task_tracker import HandlerRegistry

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
