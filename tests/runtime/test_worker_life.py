"""A worker from start to stop: its settings, what it claims, and how it drains."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from stores import InMemoryTaskStore, PersistentTaskStore
from task_tracker import (
    CapabilityMissing,
    SettingsError,
    TaskRecord,
    TaskTracker,
)
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.records import TaskKey
from task_tracker.wakeups import InProcessWakeUp
from task_tracker.worker import crew as crew_module
from task_tracker.worker import shift
from task_tracker.worker.rescuing import Rescued
from task_tracker.worker.worker import Worker
from tests.core.support import OWNER
from tests.runtime.work import WORK, registry, until, wait_for
from tests.runtime.workers import BEAT, LEASE, THREADS_OF_ONE, Crew, InThread, network

pytestmark = pytest.mark.usefixtures("fresh_work")


def status_of(crew: Crew, task: TaskRecord) -> str:
    return crew.seen(task).status.value


# ---- settings ----------------------------------------------------------------------------------------------


def test_a_store_without_leases_is_refused(tmp_path: Any) -> None:
    with pytest.raises(CapabilityMissing, match="no leases"):
        Worker(TaskTracker(PersistentTaskStore(tmp_path)), registry())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"default_timeout_seconds": 0}, "default_timeout_seconds is 0"),
        ({"default_timeout_seconds": float("inf")}, "finite"),
        ({"drain_seconds": -1}, "drain_seconds is -1"),
        ({"poll_seconds": (0.0, 1.0)}, "poll_seconds"),
        ({"poll_seconds": (2.0, 1.0)}, "poll_seconds"),
        ({"max_running": {"note": 0}}, "max_running of 'note' is 0"),
        ({"max_running": {"nope": 1}}, "no handler; known are block, boom"),
        ({"gates": {"nope": lambda: True}}, "gates names"),
    ],
)
def test_settings_that_cannot_work_are_refused(crew: Crew, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        crew.worker(**options)


def test_fewer_than_three_heartbeats_per_lease_are_refused(crew: Crew) -> None:
    """[D019] By whatever store: one that comes late must not cost a healthy task."""
    with pytest.raises(SettingsError, match="at least 3 heartbeats"):
        InMemoryTaskStore(lease_seconds=6.0, heartbeat_seconds=3.0)
    crew.store.heartbeat_seconds = LEASE / 2
    with pytest.raises(SettingsError, match="3 heartbeats per lease"):
        crew.worker()


# ---- claiming ----------------------------------------------------------------------------------------------


def test_only_kinds_with_a_handler_are_claimed(crew: Crew) -> None:
    """[D148] And never what a plain tracker has created."""
    plain = crew.tracker().create("note", **OWNER)
    mine = crew.submit("note", {"n": 1})
    assert crew.worker().run_once() == 1
    assert WORK.begun == [mine.task_id]
    assert crew.seen(mine).result == {"n": 1}
    assert status_of(crew, plain) == "pending"


def test_no_more_is_claimed_than_there_are_slots(crew: Crew) -> None:
    tasks = [crew.submit("hold") for _ in range(5)]

    async def scenario() -> None:
        async with crew.worker(concurrency=2) as worker:
            await until(lambda: len(WORK.runs) == 2)
            assert worker.status().running == 2
            assert [status_of(crew, task) for task in tasks].count("pending") == 3
            WORK.open(WORK.begun[0])
            await until(lambda: len(WORK.runs) == 3)
            assert [status_of(crew, task) for task in tasks].count("pending") == 2
            WORK.open()
            await until(lambda: len(WORK.ended) == 5)

    asyncio.run(scenario())
    assert WORK.most_at_once == 2
    assert {status_of(crew, task) for task in tasks} == {"completed"}


def test_a_wake_up_is_heard_at_once(crew: Crew) -> None:
    """With polling every 1,000 seconds only the wake-up can have brought it."""
    clock = SYSTEM_CLOCK
    crew = Crew(clock, InMemoryTaskStore(clock=clock))
    tracker = crew.tracker(wake_up=InProcessWakeUp(clock))

    async def scenario() -> None:
        async with crew.worker(tracker, poll_seconds=(1000.0, 1000.0)):
            for number in range(5):
                tracker.submit("note", number, **OWNER)
                await until(lambda number=number: len(WORK.ended) == number + 1)  # type: ignore[misc]

    asyncio.run(scenario())


class BrokenWakeUp:
    """A queue that is down."""

    def wake(self, keys: Sequence[TaskKey]) -> None:
        raise ConnectionError("the queue is down")

    def wait(self, seconds: float) -> bool:
        raise ConnectionError("the queue is down")

    def interrupt(self) -> None:
        raise ConnectionError("the queue is down")


def test_without_any_wake_up_each_task_is_found_and_run_once() -> None:
    """[D118] The queue is down at submit and at the worker: a submit says so truthfully, and polling finds the task."""
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore())
    tracker = crew.tracker(wake_up=BrokenWakeUp())

    async def scenario() -> None:
        async with crew.worker(tracker, poll_seconds=(0.001, 0.001)), crew.worker(tracker):
            submissions = [
                tracker.submit("note", dedupe=True, resource_id=f"r{n}", **OWNER) for n in range(3)
            ]
            assert all(submission.created for submission in submissions)
            await until(lambda: len(WORK.ended) == 3)

    asyncio.run(scenario())
    assert tracker.wake_up_failures == 3
    assert len(set(WORK.begun)) == 3


# ---- draining ----------------------------------------------------------------------------------------------


def test_heartbeats_go_on_while_it_drains_and_nothing_new_is_claimed(crew: Crew) -> None:
    """[D028] Work of three leases in flight at the stop; another worker sweeps; one outcome."""
    task = crew.submit("hold")
    worker, other = crew.worker(), crew.worker()
    with InThread(worker) as running:
        WORK.wait_begun()
        queued = crew.submit("hold")
        WORK.wait_begun(2)
        assert running._told is not None
        running.call(running._told.set)
        while worker.status().state != "draining":
            threading.Event().wait(0.001)
        late = crew.submit("note")
        for _ in range(3):
            crew.live(LEASE)
            assert asyncio.run(other.rescue()) == Rescued()
        assert worker.status().running == 2
        WORK.open()
    assert running.left == 0
    assert [status_of(crew, one) for one in (task, queued, late)] == ["completed", "completed", "pending"]
    assert len(WORK.runs) == 2
    assert worker.status().state == "stopped"


def test_a_cancel_is_heard_while_it_drains_which_ends_early(crew: Crew) -> None:
    """[D029] The drain had all the time in the world; the cancel ends it."""
    task = crew.submit("hold")
    worker = crew.worker(drain_seconds=3600)

    async def scenario() -> None:
        await worker.start()
        await until(lambda: WORK.runs)
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: worker.status().state == "draining")
        crew.tracker().cancel(task.task_id, **OWNER)
        crew.clock.until_waiting(THREADS_OF_ONE)
        crew.clock.advance(BEAT)
        assert await stopping == 0

    asyncio.run(scenario())
    assert status_of(crew, task) == "cancelled"


@pytest.mark.parametrize(("idempotent", "status"), [(False, "failed"), (True, "pending")])
def test_what_runs_past_the_deadline_is_interrupted(crew: Crew, idempotent: bool, status: str) -> None:
    """[D049] The running one has its reason recorded; the queued one is not started."""
    running, queued = crew.submit("hold"), crew.submit("hold")

    async def scenario() -> None:
        worker = crew.worker(crew.tracker(registry(idempotent=idempotent)), concurrency=1)
        await worker.start()
        await until(lambda: WORK.runs)
        assert await worker.stop(0.0) == 0

    asyncio.run(scenario())
    assert WORK.begun == [running.task_id]
    assert status_of(crew, running) == status
    assert crew.seen(running).error_code == (None if idempotent else "interrupted")
    assert status_of(crew, queued) == "pending"


def test_a_stop_ends_although_the_store_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """[D049] The outcome cannot be written: it is tried for a while (5 s in life), and then left."""
    monkeypatch.setattr(crew_module, "_WRITE_SECONDS", 0.1)
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore(lease_seconds=0.3, heartbeat_seconds=0.1))
    task = crew.submit("hold")
    tracker = crew.tracker()

    async def scenario() -> None:
        worker = crew.worker(tracker)
        await worker.start()
        await until(lambda: WORK.runs)
        network(tracker).fail(forever=True)
        assert await worker.stop(0.0) == 1

    asyncio.run(scenario())
    assert status_of(crew, task) == "running", "for the rescuers"


def test_a_claim_that_comes_back_after_the_stop_is_not_kept_alive(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D049] The store hung in it; renewed for ever by a worker that has gone, nobody else would ever get the task."""
    monkeypatch.setattr(shift, "_PARTS_END_SECONDS", 0.05)
    task = crew.submit("note")
    tracker = crew.tracker()
    tracker.store.blocking = True  # type: ignore[misc]  # as a disk is
    network(tracker).interrupt(lambda: WORK.wait_open("the store"), on="claim", after=True)

    async def scenario() -> None:
        worker = crew.worker(tracker)
        await worker.start()
        await until(lambda: status_of(crew, task) == "running")
        assert await worker.stop() == 0

    asyncio.run(scenario())
    WORK.open("the store")
    wait_for(lambda: status_of(crew, task) == "pending")  # given back by the thread that was in it
    assert WORK.runs == []
    assert crew.worker().run_once() == 1


def test_a_thread_that_hears_nothing_is_left_behind(crew: Crew) -> None:
    """[D049] Nothing stops a thread; the stop says how many are left, and returns."""
    task = crew.submit("hold_thread")

    async def scenario() -> int:
        worker = crew.worker()
        await worker.start()
        await until(lambda: WORK.runs)
        return await worker.stop(0.0)

    try:
        assert asyncio.run(scenario()) == 1
        assert crew.seen(task).error_code == "interrupted"
    finally:
        WORK.open()


def test_a_worker_is_started_and_stopped_as_often_as_one_likes(crew: Crew) -> None:
    worker = crew.worker()

    async def scenario() -> None:
        assert await worker.stop() == 0, "safe before it was started"
        for _ in range(3):
            async with worker:
                assert worker.status().state == "working"
                with pytest.raises(RuntimeError, match="works already"):
                    await worker.start()
                with pytest.raises(RuntimeError, match="works already"):
                    await worker.run_until_idle()
            assert worker.status().state == "stopped"

    asyncio.run(scenario())
    asyncio.run(scenario())


def test_a_blocking_run_ends_when_it_is_asked_to(crew: Crew) -> None:
    """Not in the main thread, so signals are not heard."""
    worker = crew.worker()
    crew.submit("hold")
    left: list[int] = []
    thread = threading.Thread(target=lambda: left.append(worker.run()))
    thread.start()
    WORK.wait_begun()
    worker.ask_to_stop()
    worker.ask_to_stop()  # in a hurry: it need not wait for the drain
    thread.join(30)
    assert left == [0]
    assert [told for _, told in WORK.stopped] == ["CancelledError"]
    worker.ask_to_stop()  # safe afterwards
