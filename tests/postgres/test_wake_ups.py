"""Workers and waits that the database itself wakes, across processes and whatever becomes of the connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from stores.postgres import listening
from stores.postgres.store import PostgresTaskStore
from task_tracker import AsyncTaskTracker, StorageConfig, TaskTracker
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.wakeups import NoWakeUp, StoreWakeUp
from task_tracker.worker.worker import Worker
from tests.core.support import OWNER, PATIENCE, background
from tests.http_api.asking import Client, app_with
from tests.postgres.ears import Gate, impatient, through_a_pooler, until_gone
from tests.postgres.grounds import Ground
from tests.postgres.test_connections import end_sessions
from tests.postgres.test_settings import section
from tests.runtime.processes.program import Program
from tests.runtime.processes.tasks import DIRECTORY
from tests.runtime.processes.tasks import registry as process_registry
from tests.runtime.work import WORK, registry, until
from tests.runtime.workers import InThread, no_thread_is_left

HOURS = (3600.0, 7200.0)
"""Pauses between two looks that no test survives: whatever is found in time was announced."""
HOUR = 3600.0


@pytest.fixture(autouse=True)
def _nothing_is_left(ground: Ground) -> Iterator[None]:
    WORK.begin()
    with no_thread_is_left():
        yield
    until_gone(ground)


def tracker_on(ground: Ground, **options: Any) -> TaskTracker:
    """One more process."""
    return TaskTracker(ground.store(**options), handlers=registry())


def store_of(tracker: TaskTracker) -> PostgresTaskStore:
    assert isinstance(tracker.store, PostgresTaskStore)
    return tracker.store


def hears(tracker: TaskTracker) -> bool:
    return store_of(tracker)._listener.hearing.is_set()


@contextmanager
def two(ground: Ground) -> Iterator[tuple[TaskTracker, TaskTracker]]:
    with tracker_on(ground) as here, tracker_on(ground) as there:
        yield here, there


def ended(tracker: TaskTracker, task: TaskRecord) -> TaskRecord:
    return tracker.wait(task.task_id, **OWNER, timeout=PATIENCE)


# ---- workers -----------------------------------------------------------------------------------------------


def test_a_worker_elsewhere_is_woken(ground: Ground) -> None:
    """By a submit, by a task that is given back, and when a type is resumed."""
    with two(ground) as (here, there), InThread(Worker(there, poll_seconds=HOURS)):
        while not hears(there):
            pass
        task = here.submit("note", **OWNER).record
        assert ended(here, task).status is TaskStatus.COMPLETED
        here.pause_type("note")
        waiting = here.submit("note", **OWNER).record
        here.resume_type("note")
        assert ended(here, waiting).status is TaskStatus.COMPLETED
        claimed = here.submit("note", **OWNER, not_before=4e9).record
        here.start(claimed.task_id, **OWNER)
        ground.run(
            "UPDATE {tasks} SET not_before = NULL, record = (record::jsonb - 'not_before')::json "
            "WHERE token IS NOT NULL"
        )
        here.release(claimed.task_id, **OWNER)
        assert here.wake_up_failures == 0


def test_what_is_for_later_is_found_when_its_time_has_come(ground: Ground) -> None:
    """By a worker that slept when it was submitted, or given back for later."""
    handlers = registry(idempotent=True, retry_seconds=0.01)
    with (
        tracker_on(ground) as here,
        TaskTracker(ground.store(), handlers=handlers) as there,
        InThread(Worker(there, poll_seconds=HOURS)),
    ):
        while not hears(there):
            pass
        task = here.submit("note", **OWNER, not_before=here.clock.now() + 0.2).record
        assert ended(here, task).status is TaskStatus.COMPLETED
        task = here.submit("boom", **OWNER).record
        assert ended(here, task).status is TaskStatus.FAILED
    assert len(WORK.runs) == 4


def test_what_a_limit_kept_waiting_is_announced(ground: Ground) -> None:
    """To a worker that has nothing to do: the end of another one's task has made room."""
    limits = {"hold": 1, "note": 1}
    with two(ground) as (here, there):
        first = here.submit("hold", **OWNER).record
        with InThread(Worker(there, poll_seconds=HOURS, max_running=limits)):
            WORK.wait_begun()
            with InThread(Worker(here, poll_seconds=HOURS, max_running=limits)):
                while not hears(here):
                    pass
                second = here.submit("hold", **OWNER).record
                WORK.open()
                assert {ended(here, task).status for task in (first, second)} == {TaskStatus.COMPLETED}


def test_submit_costs_no_round_trip_more(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word goes out with the creation itself; a duplicate's is said again, since it may have been lost."""
    with tracker_on(ground) as tracker:
        told: list[object] = []
        monkeypatch.setattr(PostgresTaskStore, "announce", lambda store, keys: told.append(keys))
        task = tracker.submit("note", **OWNER, dedupe=True).record
        assert told == []
        tracker.submit("note", **OWNER, dedupe=True)
        assert told == [(task.key,)]


def test_a_wake_up_of_ones_own_is_used_instead(ground: Ground) -> None:
    with tracker_on(ground) as tracker:
        assert type(tracker.waking.wake_up) is StoreWakeUp
    with tracker_on(ground, listen=False) as tracker:
        assert type(tracker.waking.wake_up) is NoWakeUp
    with TaskTracker(ground.store(), wake_up=NoWakeUp()) as tracker:
        assert type(tracker.waking.wake_up) is NoWakeUp


def test_a_worker_whose_connection_is_lost_finds_what_it_missed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It connects again, looks once, and is woken as before. [D108] [D118]"""
    with impatient(monkeypatch), two(ground) as (here, there), InThread(Worker(there, poll_seconds=HOURS)):
        while not hears(there):
            pass
        for number in range(1, 4):
            end_sessions(ground)
            missed = here.submit("note", **OWNER).record
            assert ended(here, missed).status is TaskStatus.COMPLETED
            while store_of(there).listen_failures < number or not hears(there):
                pass
            heard = here.submit("note", **OWNER).record
            assert ended(here, heard).status is TaskStatus.COMPLETED
    assert len(WORK.runs) == 6


def test_a_worker_that_cannot_listen_finds_tasks_by_looking(ground: Ground) -> None:
    """A pooler is in between, and nothing leads around it. [D115] [D118]"""
    with tracker_on(ground, open_connection=through_a_pooler(ground)) as there, tracker_on(ground) as here:
        with InThread(Worker(there)):
            while not store_of(there).listen_failures:
                pass
            task = here.submit("note", **OWNER).record
            assert ended(here, task).status is TaskStatus.COMPLETED
            assert ended(there, task).status is TaskStatus.COMPLETED
        assert store_of(there).listen_failures == 1


def test_a_worker_that_stops_listens_no_more(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tracker goes on, without a connection for that."""
    monkeypatch.setattr(listening, "_LINGER_SECONDS", 0.0)
    with tracker_on(ground) as tracker:
        for _ in range(2):
            with InThread(Worker(tracker, poll_seconds=HOURS)):
                while not hears(tracker):
                    pass
            store_of(tracker)._listener._ring()
            assert store_of(tracker)._listener.end_soon(PATIENCE)
            assert ground.run("SELECT count(*) FROM {listeners}") == [(0,)]


def test_a_worker_process_of_the_command_line_is_woken(ground: Ground, tmp_path: Path) -> None:
    """Nothing is configured for it but the database."""
    settings = section(ground)
    (tmp_path / "server.json").write_bytes(orjson.dumps({"storage": {"task_tracker": settings}}))
    worker = Program(
        [
            "--handlers=tests.runtime.processes.tasks:registry",
            f"--config={tmp_path / 'server.json'}",
            "--log-format=json",
            "--shortest-poll-seconds=3600",
            "--longest-poll-seconds=3600",
        ],
        {"PATH": "", DIRECTORY: str(tmp_path)},
        tmp_path / "said",
    )
    config = StorageConfig(task_tracker=settings)
    with worker, config.build_task_tracker(handlers=process_registry()) as tracker:
        while ground.run("SELECT count(*) FROM {listeners}") != [(1,)]:
            pass
        for _ in range(5):
            task = tracker.submit("quick", **OWNER)
            assert tracker.wait(task.task_id, **OWNER, timeout=PATIENCE).status == "completed"
        assert worker.terminate() == 0


def test_a_worker_whose_server_is_gone_stops(ground: Ground) -> None:
    """By its deadline, with a task under way: its lease is left to expire, nothing is waited for. [D109]"""
    gate = Gate(ground)

    async def main() -> None:
        with tracker_on(ground, open_connection=gate.open_one) as tracker:
            worker = Worker(tracker, poll_seconds=HOURS)
            await worker.start()
            await until(lambda: hears(tracker))
            tracker.submit("hold", **OWNER)
            await until(lambda: WORK.runs)
            gate.is_shut = True
            await asyncio.to_thread(end_sessions, ground)
            await until(lambda: store_of(tracker).listen_failures)
            await worker.stop(0)

    asyncio.run(main())
    assert ground.run("SELECT status FROM {tasks}") == [("running",)]
    ground.run("DELETE FROM {listeners}")  # it is believed for a minute that it listens


# ---- waiting -----------------------------------------------------------------------------------------------


def wait_by_hour(tracker: TaskTracker, task: TaskRecord) -> TaskRecord:
    return tracker.wait(task.task_id, **OWNER, timeout=HOUR, poll_interval=HOUR)


def ended_as(answers: list[object]) -> tuple[TaskStatus, Any]:
    (record,) = answers
    assert isinstance(record, TaskRecord), record
    return record.status, record.result


def test_wait_hears_of_an_end_elsewhere(ground: Ground) -> None:
    """[D121]"""
    with two(ground) as (here, there):
        task = here.create("t", **OWNER)
        with background(lambda: wait_by_hour(there, task)) as answers:
            while not hears(there):
                pass
            here.start(task.task_id)
            here.complete(task.task_id, {"n": 1})
        assert ended_as(answers) == (TaskStatus.COMPLETED, {"n": 1})


@pytest.mark.parametrize("ending", ["fail", "cancel", "mark_cancelled"])
def test_wait_hears_of_any_end(ground: Ground, ending: str) -> None:
    with two(ground) as (here, there):
        task = here.create("t", **OWNER)
        with background(lambda: wait_by_hour(there, task)) as answers:
            while not hears(there):
                pass
            if ending == "fail":
                here.fail(task.task_id, "no", **OWNER)
            else:
                getattr(here, ending)(task.task_id, **OWNER)
        assert ended_as(answers)[0].is_terminal


def test_wait_looks_again_after_the_connection_was_lost(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end came while nobody heard anything. [D108]"""
    with impatient(monkeypatch), two(ground) as (here, there):
        task = here.create("t", **OWNER)
        opened = threading.Event()
        inner = store_of(there)._listener._connections._open

        def wait_and_open() -> Any:
            assert opened.wait(PATIENCE)
            return inner()

        with background(lambda: wait_by_hour(there, task)) as answers:
            while not hears(there):
                pass
            monkeypatch.setattr(store_of(there)._listener._connections, "_open", wait_and_open)
            end_sessions(ground)
            while not store_of(there).listen_failures:
                pass
            here.complete(task.task_id, None, **OWNER)
            assert not answers
            opened.set()
        assert ended_as(answers)[0] is TaskStatus.COMPLETED


def test_awaited_wait_hears_of_an_end_elsewhere(ground: Ground) -> None:
    """And so do a hundred at once, on one connection."""

    async def main() -> None:
        with tracker_on(ground) as here:
            async with AsyncTaskTracker(tracker_on(ground)) as there:
                task = here.create("t", **OWNER)
                waits = [
                    asyncio.create_task(there.wait(task.task_id, **OWNER, timeout=HOUR, poll_interval=HOUR))
                    for _ in range(100)
                ]
                await until(lambda: hears(there._tracker))
                await asyncio.to_thread(here.complete, task.task_id, 5, **OWNER)
                assert {record.result for record in await asyncio.gather(*waits)} == {5}

    asyncio.run(main())


def test_long_poll_of_another_server_is_answered(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """[D121]"""
    monkeypatch.setattr("task_tracker.waiting.FIRST_POLL_SECONDS", HOUR)
    monkeypatch.setattr("task_tracker.waiting.LONGEST_POLL_SECONDS", HOUR)
    with two(ground) as (here, there):
        task = here.create("t", **OWNER)
        server = AsyncTaskTracker(there)
        client = Client(app_with(server))
        with (
            closing(server),
            background(lambda: client.get(f"/tasks/{task.task_id}?wait=30").json()) as answers,
        ):
            while not hears(there):
                pass
            here.complete(task.task_id, 7, **OWNER)
        (answer,) = answers
        assert isinstance(answer, dict)
        assert answer["result"]["result"] == 7


def test_without_waits_nothing_listens(ground: Ground) -> None:
    """A server that only creates and asks needs no connection for that."""
    with closing(ground.store()) as store, TaskTracker(store) as tracker:
        task = tracker.create("t", **OWNER)
        tracker.complete(task.task_id, 1, **OWNER)
        tracker.get(task.task_id, **OWNER)
        assert not store._listener.running
