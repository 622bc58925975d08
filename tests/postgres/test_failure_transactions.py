"""``on_failure`` in the transaction in which the task ends: its rows and the end are one; and it ends in any case."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from task_tracker import StoreUnavailable
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.records import TaskStatus
from task_tracker.worker import Worker
from task_tracker.worker.outcomes import Failed, Lost
from tests.postgres.grounds import Ground
from tests.postgres.transacting import Bench, Block, bench, body


def fails(sync: bool) -> Callable[..., Any]:
    async def on_loop(ctx: Any) -> None:
        raise ValueError("it broke")

    def in_thread(ctx: Any) -> None:
        raise ValueError("it broke")

    return in_thread if sync else on_loop


@contextmanager
def failing(ground: Ground, sync: bool, *blocks: Block, **options: Any) -> Iterator[Bench]:
    """Give a bench whose ``on_failure`` is made of these blocks."""
    catch = options.pop("catch", ())
    with bench(ground, sync=sync, hook=body(*blocks, sync=sync, catch=catch), **options) as made:
        yield made


def test_rows_of_the_hook_and_the_end_are_one(ground: Ground, sync: bool) -> None:
    """Until the task has ended nobody sees them."""
    seen: list[Any] = []

    def look(tx: Any) -> None:
        seen.append((made.numbers(), made.stored(task).status))

    with failing(ground, sync, Block((1,)), Block((2,), look)) as made:
        task = made.submit(fails(sync))
        ended, record = made.run_claimed(made.claim(task))
        assert seen == [([], TaskStatus.RUNNING)]
        assert made.numbers() == [1, 2]
        assert isinstance(ended.outcome, Failed)
        assert (record.status, record.error, record.hook_error) == (
            TaskStatus.FAILED,
            "ValueError: it broke",
            None,
        )


def test_a_hook_without_a_transaction_is_as_ever(ground: Ground, sync: bool) -> None:
    with failing(ground, sync) as made:
        made.store.begin = None  # type: ignore[method-assign, assignment]  # it is not asked for
        _, record = made.run(fails(sync))
        assert (record.status, record.hook_error) == (TaskStatus.FAILED, None)


def test_a_hook_that_raises_leaves_no_rows_and_the_task_ends(ground: Ground, sync: bool) -> None:
    def raises(_: Any) -> None:
        raise RuntimeError("the hook broke")

    with failing(ground, sync, Block((1,)), Block((2,), raises)) as made:
        _, record = made.run(fails(sync))
        assert made.numbers() == []
        assert record.status is TaskStatus.FAILED
        assert record.error == "ValueError: it broke"
        assert record.hook_error == "RuntimeError: the hook broke"


def test_so_does_one_that_survives_its_own_error(ground: Ground, sync: bool) -> None:
    """What a block that failed has written cannot be told from the rest."""

    def raises(_: Any) -> None:
        raise RuntimeError("a part broke")

    with failing(ground, sync, Block((1,)), Block((2,), raises), catch=RuntimeError) as made:
        _, record = made.run(fails(sync))
        assert made.numbers() == []
        assert record.hook_error == "its rows were rolled back: RuntimeError: a part broke"


def test_a_hook_that_overruns_its_time_leaves_no_rows(ground: Ground, sync: bool) -> None:
    """In the middle of a statement, too: the server is told to stop it."""

    async def on_loop(ctx: Any, record: Any) -> None:
        async with ctx.transaction() as tx:
            await tx.connection.execute("INSERT INTO numbers (n) VALUES (1)")
            await tx.connection.execute("SELECT pg_sleep(60)")

    def in_thread(ctx: Any, record: Any) -> None:
        with ctx.transaction() as tx:
            tx.connection.execute("INSERT INTO numbers (n) VALUES (1)")
            tx.connection.execute("SELECT pg_sleep(60)")

    with bench(ground, sync=sync, hook=in_thread if sync else on_loop, hook_seconds=0.2) as made:
        _, record = made.run(fails(sync))
        assert made.numbers() == []
        assert record.status is TaskStatus.FAILED
        assert record.hook_error == "on_failure did not end within 0.2 seconds"


def test_one_that_begins_after_its_time_is_refused(ground: Ground) -> None:
    late: list[BaseException] = []
    go_on = threading.Event()

    def hook(ctx: Any, record: Any) -> None:
        assert go_on.wait(30)
        try:
            with ctx.transaction() as tx:
                tx.connection.execute("INSERT INTO numbers (n) VALUES (1)")
        except Exception as error:
            late.append(error)
            raise

    with bench(ground, sync=True, hook=hook, hook_seconds=0.1) as made:
        claimed = made.claim(made.submit(fails(sync=True)))

        def let_go_on() -> None:
            wait_ended(made, claimed[0])
            go_on.set()

        watch = threading.Thread(target=let_go_on)
        watch.start()
        _, record = made.run_claimed(claimed)
        watch.join(30)
        assert made.numbers() == []
        assert len(late) == 1
        assert record.status is TaskStatus.FAILED


def test_one_that_has_just_begun_when_its_time_is_over_leaves_no_session(
    ground: Ground, sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing(ground, sync, Block((1,)), hook_seconds=0.1) as made:
        claimed = made.claim(made.submit(fails(sync)))
        really = made.store.begin
        began: list[Any] = []

        def begin(lease: Any, *, for_loop: bool) -> Any:
            began.append(really(lease, for_loop=for_loop))
            if sync:  # a coroutine that is cancelled waits for this
                wait_ended(made, lease)
            else:
                wait_cancelled(made)
            return began[0]

        monkeypatch.setattr(made.store, "begin", begin)
        _, record = made.run_claimed(claimed)
        assert began
        assert made.numbers() == []
        assert record.hook_error == "on_failure did not end within 0.1 seconds"


def wait_cancelled(made: Bench) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + 30
    assert made.executor is not None
    while not made.executor.left_behind:
        assert SYSTEM_CLOCK.monotonic() < deadline


def wait_ended(made: Bench, lease: Any) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + 30
    while made.stored(lease).status.is_active:
        assert SYSTEM_CLOCK.monotonic() < deadline


def test_a_lost_lease_undoes_the_rows_and_ends_nothing(ground: Ground, sync: bool) -> None:
    """[D023] Taken over while the hook ran: its rows and its end are refused together."""
    with failing(ground, sync, Block((1,), lambda _: made.take_over())) as made:
        ended, record = made.run(fails(sync))
        assert made.numbers() == []
        assert isinstance(ended.outcome, Lost)
        assert record.status is TaskStatus.RUNNING


def test_a_session_that_is_terminated_costs_the_rows_and_the_task_ends(ground: Ground, sync: bool) -> None:
    def end(tx: Any) -> None:
        made.terminate(tx)

    with failing(ground, sync, Block((1,), end)) as made:
        _, record = made.run(fails(sync))
        assert made.numbers() == []
        assert record.status is TaskStatus.FAILED
        assert record.hook_error is not None
        assert "its rows were rolled back" in record.hook_error


@pytest.mark.parametrize("happened", [False, True])
def test_a_commit_that_was_not_answered_is_looked_up(ground: Ground, sync: bool, happened: bool) -> None:
    with failing(ground, sync, Block((1,), lambda _: made.scissors.cut_at(3, after=happened))) as made:
        ended, record = made.run(fails(sync))
        assert made.scissors.cuts == 1
        assert made.numbers() == ([1] if happened else [])
        assert isinstance(ended.outcome, Failed)
        assert record.status is TaskStatus.FAILED
        assert (record.hook_error is None) == happened


def test_a_constraint_that_fails_at_the_commit_costs_the_rows(ground: Ground, sync: bool) -> None:
    with failing(ground, sync, Block((1, 1))) as made:
        _, record = made.run(fails(sync))
        assert made.numbers() == []
        assert record.status is TaskStatus.FAILED
        assert record.hook_error is not None
        assert "duplicate key" in record.hook_error


def test_a_hook_has_nothing_to_note(ground: Ground, sync: bool) -> None:
    with failing(ground, sync, Block((1,), lambda tx: tx.complete())) as made:
        _, record = made.run(fails(sync))
        assert made.numbers() == []
        assert record.status is TaskStatus.FAILED
        assert record.hook_error is not None
        assert "nothing to note" in record.hook_error


def test_a_store_that_is_away_costs_the_rows_of_the_hook(
    ground: Ground, sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any hook of which something else is away: the end waits for nobody."""
    with failing(ground, sync, Block((1,))) as made:

        def away(*_: Any, **__: Any) -> None:
            raise StoreUnavailable("away")

        monkeypatch.setattr(made.store, "begin", away)
        _, record = made.run(fails(sync))
        assert record.status is TaskStatus.FAILED
        assert record.hook_error == "StoreUnavailable: away"


def test_timeouts_call_the_hook_in_the_same_way(ground: Ground, sync: bool) -> None:
    async def endless(ctx: Any) -> None:
        await asyncio.get_running_loop().create_future()

    def until_told(ctx: Any) -> None:
        while True:
            ctx.check()

    with failing(ground, sync, Block((1,)), timeout_seconds=0.1) as made:
        _, record = made.run(until_told if sync else endless)
        assert made.numbers() == [1]
        assert (record.error_code, record.hook_error) == ("timeout", None)


def test_the_rescuer_does_so_for_a_worker_that_died(ground: Ground, sync: bool) -> None:
    """[D003] [D008] The rows and the end of a task that another worker has left."""
    with failing(ground, sync, Block((1,))) as made:
        task = made.submit(fails(sync))
        made.claim(task)
        made.ground.lapse(1000)
        Worker(made.tracker, made.registry).run_once()
        record = made.stored(task)
        assert made.numbers() == [1]
        assert (record.status, record.error_code, record.hook_error) == (
            TaskStatus.FAILED,
            "holder_lost",
            None,
        )
