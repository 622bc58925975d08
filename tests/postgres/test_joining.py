"""``submit(connection=)``: a task is created in the caller's own transaction, and is there if that is committed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.rows import dict_row

from stores import InMemoryTaskStore
from task_tracker import (
    AsyncTaskTracker,
    CapabilityMissing,
    HandlerRegistry,
    StoreUnavailable,
    TaskExists,
    TaskTracker,
)
from task_tracker.errors import InvalidTransition
from task_tracker.records import TaskKey, TaskStatus
from task_tracker.wakeups import NoWakeUp
from tests.core.support import OWNER
from tests.postgres.grounds import Ground
from tests.runtime.work import registry, until


class Heard(NoWakeUp):
    """Remembers who was to be woken."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[TaskKey] = []

    def wake(self, keys: Sequence[TaskKey]) -> None:
        self.keys += keys


class Caller:
    """A server with a tracker, and rows of its own."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.store = ground.store()
        self.heard = Heard()
        self.tracker = TaskTracker(self.store, handlers=registry(), wake_up=self.heard, retention=None)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.ground.dsn, **options)

    def submit(self, connection: object, **options: Any) -> Any:
        return self.tracker.submit("note", {"n": 1}, connection=connection, **OWNER, **options)

    def tasks(self) -> list[str]:
        return [task for (task,) in self.ground.run("SELECT task_id FROM {tasks} ORDER BY created_at")]


@pytest.fixture
def caller(ground: Ground) -> Iterator[Caller]:
    made = Caller(ground)
    with closing(made.tracker):
        yield made


def test_it_is_there_once_the_caller_commits_and_wakes_nobody_before(caller: Caller) -> None:
    with caller.connect() as connection:
        task = caller.submit(connection)
        assert caller.tasks() == []
        assert task.created
        assert caller.tracker.get(task.task_id, **OWNER) is None
        assert caller.tracker.get(task.task_id) is None  # not even this process's cache knows it
        connection.commit()
        assert caller.tasks() == [task.task_id]
        assert caller.heard.keys == []
        assert caller.tracker.wake(task)
        assert caller.heard.keys == [task.record.key]
    record = caller.tracker.get(task.task_id, **OWNER)
    assert record is not None
    assert record == task.record
    claimed = caller.store.claim(holder="worker", task_types=[("note", 1)])
    assert claimed is not None
    assert claimed[0].key == task.record.key


def test_a_caller_that_rolls_back_leaves_nothing(caller: Caller) -> None:
    with caller.connect() as connection:
        task = caller.submit(connection, dedupe=True, resource_id="kb")
        connection.rollback()
        assert caller.tasks() == []
        assert caller.tracker.get(task.task_id, **OWNER) is None
        again = caller.submit(connection, dedupe=True, resource_id="kb")
        assert again.created
    assert caller.tasks() == [again.task_id]


def test_a_caller_whose_session_ends_leaves_nothing(caller: Caller) -> None:
    connection = caller.connect()
    caller.submit(connection)
    caller.ground.run("SELECT pg_terminate_backend(%s, 10000)", connection.info.backend_pid)
    with pytest.raises(StoreUnavailable, match="PostgreSQL did not create task"):
        caller.submit(connection)
    assert connection.closed
    assert caller.tasks() == []


def test_a_savepoint_of_the_callers_counts(caller: Caller) -> None:
    with caller.connect() as connection:
        first = caller.submit(connection)
        with connection.transaction(force_rollback=True):
            caller.submit(connection)
    assert caller.tasks() == [first.task_id]


def test_duplicates_are_found_within_the_transaction_and_beyond(caller: Caller) -> None:
    """[D060] [D061] Its own that is not committed yet, too; neither gets into the cache."""
    with caller.connect() as connection:
        first = caller.submit(connection, dedupe=True, resource_id="kb")
        again = caller.submit(connection, dedupe=True, resource_id="kb")
        assert (again.task_id, again.created) == (first.task_id, False)
        assert caller.tracker.count() == 0
        connection.rollback()
        committed = caller.tracker.submit("note", dedupe=True, resource_id="kb", **OWNER)
        found = caller.submit(connection, dedupe=True, resource_id="kb")
        assert (found.task_id, found.created) == (committed.task_id, False)


def test_two_callers_of_one_kind_take_turns(caller: Caller) -> None:
    """[D060] The second waits for the first's end, and then has its task, or creates one."""
    for commits in (True, False):
        answers: list[Any] = []
        with caller.connect() as one, caller.connect() as other:
            first = caller.submit(one, dedupe=True, resource_id=f"kb-{commits}")

            def second(other: Any = other, kind: str = f"kb-{commits}", answers: Any = answers) -> None:
                answers.append(caller.submit(other, dedupe=True, resource_id=kind))

            thread = threading.Thread(target=second)
            thread.start()
            pid = other.info.backend_pid
            while caller.ground.run("SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted", pid) == []:
                assert thread.is_alive()
            if commits:
                one.commit()
            else:
                one.rollback()
            thread.join(30)
            (answer,) = answers
            assert answer.created == (not commits)
            assert (answer.task_id == first.task_id) == commits


def test_an_id_that_is_taken_leaves_the_transaction_as_it_is(caller: Caller) -> None:
    with caller.connect() as connection:
        caller.submit(connection, task_id="mine")
        with pytest.raises(TaskExists):
            caller.submit(connection, task_id="mine")
        caller.submit(connection, task_id="other")
    assert caller.tasks() == ["mine", "other"]


def test_an_owner_that_is_being_deleted_is_refused(caller: Caller) -> None:
    """And one whose task is not committed yet is not deleted before it is."""
    caller.ground.run("INSERT INTO {deletions} (account_id, user_id) VALUES ('acme', 'alice')")
    with caller.connect() as connection, pytest.raises(InvalidTransition, match="being deleted"):
        caller.submit(connection)


def test_created_tasks_can_be_joined_too(caller: Caller) -> None:
    with caller.connect() as connection:
        task = caller.tracker.create("note", connection=connection, **OWNER)
        assert caller.tasks() == []
        connection.commit()
    started = caller.tracker.start(task.task_id, **OWNER)
    assert started is not None
    assert started.status is TaskStatus.RUNNING


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"autocommit": True},
        {"row_factory": dict_row},
        {"cursor_factory": psycopg.ClientCursor},
        {"cursor_factory": psycopg.RawCursor},
        {"prepare_threshold": 0},
    ],
    ids=["plain", "autocommit", "dict rows", "client cursor", "raw cursor", "prepared"],
)
def test_any_connection_of_the_driver_will_do(caller: Caller, options: dict[str, Any]) -> None:
    """What the caller has set on it is for the caller's rows. One in autocommit mode commits at once."""
    with caller.connect(**options) as connection:
        task = caller.submit(connection, dedupe=True)
        assert caller.tasks() == ([task.task_id] if "autocommit" in options else [])
        again = caller.submit(connection, dedupe=True)
        assert (again.task_id, again.record.payload) == (task.task_id, {"n": 1})
    assert caller.tasks() == [task.task_id]


class _Odd(Loader):
    def load(self, data: Buffer) -> object:
        return ("odd", bytes(data))


class _Shouting(Dumper):
    def dump(self, obj: object) -> bytes:
        return str(obj).upper().encode()


def test_what_the_caller_has_values_turned_into_is_for_the_callers_rows(caller: Caller) -> None:
    with caller.connect() as connection:
        for name in ("text", "int8", "float8", "bool", "json"):
            connection.adapters.register_loader(name, _Odd)
        for kind in (str, int, float):
            connection.adapters.register_dumper(kind, _Shouting)
        task = caller.submit(connection, dedupe=True, resource_id="kb")
        again = caller.submit(connection, dedupe=True, resource_id="kb")
        assert (again.task_id, again.created) == (task.task_id, False)
        assert connection.execute("SELECT 'x'::text").fetchone() == (("odd", b"x"),)
    assert caller.tracker.get(task.task_id, **OWNER) == task.record


@pytest.mark.parametrize("encoding", ["latin1", "sql_ascii"])
def test_a_connection_that_does_not_speak_utf8_is_refused(caller: Caller, encoding: str) -> None:
    """Some texts could not be sent, others would be read as something else."""
    with caller.connect(client_encoding=encoding) as connection:
        with pytest.raises(ValueError, match="client_encoding=utf8"):
            caller.submit(connection)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_connection_that_will_not_do_is_refused_with_the_reason(caller: Caller) -> None:
    connection = caller.connect()
    connection.close()
    with pytest.raises(ValueError, match="closed"):
        caller.submit(connection)
    for other in ("postgresql://", object(), caller.store):
        with pytest.raises(TypeError, match=r"psycopg\.Connection"):
            caller.submit(other)
    assert caller.tasks() == []


def test_a_transaction_that_has_failed_says_so(caller: Caller) -> None:
    with caller.connect() as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        with pytest.raises(StoreUnavailable, match="roll the transaction back"):
            caller.submit(connection)
        connection.rollback()
        caller.submit(connection)
    assert len(caller.tasks()) == 1


def test_what_is_refused_is_refused_before_anything_is_sent(caller: Caller) -> None:
    with caller.connect() as connection:
        with pytest.raises(ValueError, match="priority"):
            caller.submit(connection, priority="high")
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_store_without_transactions_says_what_to_do(ground: Ground) -> None:
    with (
        TaskTracker(InMemoryTaskStore(), handlers=registry()) as tracker,
        psycopg.connect(ground.dsn) as connection,
    ):
        for call in (tracker.submit, tracker.create):
            with pytest.raises(CapabilityMissing, match="use the postgres backend"):
                call("note", connection=connection, **OWNER)


def test_waking_is_not_for_what_has_nothing_to_wait_for(caller: Caller) -> None:
    with caller.connect() as connection:
        later = caller.submit(connection, not_before=caller.tracker.clock.now() + 1000)
    over = later.record.changed(status=TaskStatus.CANCELLED)
    assert not caller.tracker.wake(later._replace(record=over))
    assert caller.heard.keys == []
    assert caller.tracker.wake(later), "who sleeps is to learn of its start time"
    assert caller.heard.keys == [later.record.key]


# ---- coroutines ----------------------------------------------------------------------------------------


def in_coroutine(caller: Caller, main: Callable[[AsyncTaskTracker, Any], Any]) -> None:
    async def run() -> None:
        tracker = AsyncTaskTracker(caller.tracker)
        async with await psycopg.AsyncConnection.connect(caller.ground.dsn) as connection:
            await main(tracker, connection)

    asyncio.run(run())


def test_coroutines_do_the_same_on_their_own_connection(caller: Caller) -> None:
    async def main(tracker: AsyncTaskTracker, connection: Any) -> None:
        task = await tracker.submit("note", {"n": 1}, dedupe=True, connection=connection, **OWNER)
        again = await tracker.submit("note", {"n": 1}, dedupe=True, connection=connection, **OWNER)
        assert (again.task_id, again.created) == (task.task_id, False)
        assert caller.tasks() == []
        await connection.commit()
        assert caller.tasks() == [task.task_id]
        assert caller.heard.keys == []
        assert await tracker.wake(task)
        assert caller.heard.keys == [task.record.key]
        created = await tracker.create("other", connection=connection, **OWNER)
        await connection.rollback()
        assert await tracker.get(created.task_id, **OWNER) is None

    in_coroutine(caller, main)


def test_each_kind_of_connection_has_its_kind_of_tracker(caller: Caller) -> None:
    async def main(tracker: AsyncTaskTracker, connection: Any) -> None:
        with pytest.raises(TypeError, match="AsyncTaskTracker"):
            caller.submit(connection)
        with caller.connect() as other, pytest.raises(TypeError, match="AsyncTaskTracker"):
            await tracker.submit("note", connection=other, **OWNER)

    in_coroutine(caller, main)


def test_an_await_that_is_cancelled_lets_the_statement_end(caller: Caller) -> None:
    """The connection is the caller's again when the cancellation arrives."""

    async def main(tracker: AsyncTaskTracker, connection: Any) -> None:
        with caller.connect() as other:
            caller.submit(other, dedupe=True, resource_id="kb")
            waiting = asyncio.create_task(
                tracker.submit("note", dedupe=True, resource_id="kb", connection=connection, **OWNER)
            )
            pid = connection.info.backend_pid
            await until(
                lambda: caller.ground.run("SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted", pid)
            )
            waiting.cancel()
            await asyncio.sleep(0)
            other.commit()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await connection.execute("SELECT 1")

    in_coroutine(caller, main)


def test_a_call_that_is_given_up_leaves_the_connection_alone(caller: Caller) -> None:
    """What it would have sent next would be in the caller's next transaction, and committed with that."""

    async def main(_: AsyncTaskTracker, connection: Any) -> None:
        tracker = AsyncTaskTracker(caller.tracker, call_seconds=0.2)
        with caller.connect() as other:
            caller.submit(other, dedupe=True, resource_id="kb")
            with pytest.raises(StoreUnavailable, match="has not answered"):
                await tracker.submit("note", dedupe=True, resource_id="kb", connection=connection, **OWNER)
            undone = asyncio.create_task(connection.rollback())
            other.commit()
        await undone
        await tracker.aclose()  # once its thread has ended
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    in_coroutine(caller, main)


# ---- from within a handler -----------------------------------------------------------------------------


def test_a_handler_submits_what_comes_next_in_its_own_transaction(ground: Ground) -> None:
    """The next task is there if and only if this one has completed."""
    from tests.postgres.transacting import Block, bench, body

    for ends_well in (True, False):
        with bench(ground, sync=True) as made:

            def inside(tx: Any, made: Any = made, ends_well: bool = ends_well) -> None:
                made.tracker.submit(
                    "t", "next", connection=tx.connection, resource_id=str(ends_well), **OWNER
                )
                tx.complete()
                if not ends_well:
                    raise ValueError("no")

            made.run(body(Block((1,), inside), sync=True))
            found = made.other.find_active("acme", "alice", "t", str(ends_well))
            assert (found is not None) == ends_well


def test_unknown_handlers_are_refused_with_a_connection_too(caller: Caller) -> None:
    from task_tracker import SettingsError

    tracker = TaskTracker(caller.store, handlers=HandlerRegistry(), retention=None)
    with caller.connect() as connection:
        with pytest.raises(SettingsError):
            tracker.submit("unknown", connection=connection, **OWNER)
        tracker.submit("unknown", version=1, unregistered=True, connection=connection, **OWNER)
    assert len(caller.tasks()) == 1
