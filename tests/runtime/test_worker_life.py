"""A worker from start to stop: what it claims, how it drains, what it hears meanwhile, and what it outlives."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from stores import InMemoryTaskStore, PersistentTaskStore
from task_tracker import (
    CapabilityMissing,
    SettingsError,
    StoreUnavailable,
    TaskNotFound,
    TaskRecord,
    TaskStatus,
    TaskTracker,
)
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.records import TaskKey
from task_tracker.wakeups import InProcessWakeUp
from task_tracker.worker import crew as crew_module
from task_tracker.worker import shift
from task_tracker.worker.heartbeat import Heartbeats
from task_tracker.worker.loop import ClaimLoop
from task_tracker.worker.rescuing import Rescued
from task_tracker.worker.worker import Worker
from tests.core.support import OWNER
from tests.runtime.work import WORK, registry, until
from tests.runtime.workers import BEAT, LEASE, Crew, InThread, network, no_thread_is_left


@pytest.fixture(autouse=True)
def _fresh_work() -> Iterator[None]:
    WORK.begin()
    with no_thread_is_left():
        yield


@pytest.fixture
def crew() -> Crew:
    return Crew()


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


# ---- heartbeats --------------------------------------------------------------------------------------------


def test_a_handler_that_blocks_the_loop_costs_no_lease_and_is_reported(
    crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    """[D021] For three leases nothing on the loop runs; another worker sweeps all the time; one completion."""
    task = crew.submit("block")
    worker, other = crew.worker(), crew.worker()
    with caplog.at_level(logging.WARNING, "task_tracker"), InThread(worker):
        WORK.wait_begun()
        for _ in range(3):
            crew.live(LEASE)
            assert asyncio.run(other.rescue()) == Rescued()
        status = worker.status()
        assert (status.ready, status.running) == (False, 1)
        assert status.blocked_loop_seconds > LEASE
        assert status.last_heartbeat_seconds is not None
        assert status.last_heartbeat_seconds <= BEAT
        WORK.open()
        assert crew.wait_ended(task).status is TaskStatus.COMPLETED
    assert WORK.runs == [(task.task_id, 1)]
    (blocked,) = crew.told("loop_blocked")
    assert "work.py" in str(blocked.facts["where"]) or "threading.py" in str(blocked.facts["where"])
    assert caplog.text.count("the event loop has not run") == 1


def test_a_sync_handler_that_computes_costs_no_lease(crew: Crew) -> None:
    """[D021] In a thread, deaf to everything; the loop goes on beside it."""
    task = crew.submit("hold_thread")
    other = crew.worker()
    with InThread(crew.worker()) as running:
        WORK.wait_begun()
        crew.live(3 * LEASE)
        assert asyncio.run(other.rescue()) == Rescued()
        quick = crew.submit("note")
        assert crew.wait_ended(quick).status is TaskStatus.COMPLETED
        assert running.worker.status().blocked_loop_seconds == 0
        WORK.open()
        assert crew.wait_ended(task).status is TaskStatus.COMPLETED


def test_a_worker_that_was_frozen_is_fenced_off(crew: Crew) -> None:
    """[D021] Its heartbeats stood still; the late completion is refused, and its handler told to stop."""
    task = crew.submit("hold")
    tracker = crew.tracker()
    with InThread(crew.worker(tracker)):
        WORK.wait_begun()
        network(tracker).fail(on="renew", forever=True)
        crew.clock.until_waiting(2)
        crew.clock.advance(LEASE + 1)
        assert asyncio.run(crew.worker().rescue()) == Rescued(failed=1)
        with WORK.changed:
            assert WORK.changed.wait_for(lambda: WORK.ended, 30)
    assert crew.seen(task).error_code == "holder_lost"
    assert [event.record.task_id for event in crew.told("lease_lost") if event.record] == [task.task_id]
    assert [event.facts["outcome"] for event in crew.told("attempt_ended")] == ["lost"]


def test_cancelling_is_heard_by_the_next_heartbeat(crew: Crew) -> None:
    """From another process, through the store; the slot is free again and the next task runs."""
    task = crew.submit("hold")
    with InThread(crew.worker(concurrency=1)):
        WORK.wait_begun()
        crew.tracker().cancel(task.task_id, **OWNER)
        crew.clock.until_waiting(2)
        crew.clock.advance(BEAT)
        assert crew.wait_ended(task).status is TaskStatus.CANCELLED
        WORK.open()
        assert crew.wait_ended(crew.submit("note")).status is TaskStatus.COMPLETED
    assert [told for _, told in WORK.stopped] == ["CancelledError"]


def test_cancelling_through_the_workers_own_tracker_needs_no_heartbeat(crew: Crew) -> None:
    task = crew.submit("hold")
    tracker = crew.tracker()

    async def scenario() -> None:
        async with crew.worker(tracker):
            await until(lambda: WORK.runs)
            tracker.cancel(task.task_id, **OWNER)
            await until(lambda: status_of(crew, task) == "cancelled")

    asyncio.run(scenario())


def test_a_hung_task_can_be_cancelled_by_its_owner_alone_and_frees_its_slot(crew: Crew) -> None:
    """[D043] A stranger finds no such task; the one slot serves the next task."""
    hung = crew.submit("hold")
    tracker = crew.tracker()

    async def scenario() -> None:
        async with crew.worker(tracker, concurrency=1):
            await until(lambda: WORK.runs)
            waiting = crew.submit("note")
            with pytest.raises(TaskNotFound):
                tracker.cancel(hung.task_id, account_id="acme", user_id="mallory")
            assert status_of(crew, hung) == "running"
            tracker.cancel(hung.task_id, **OWNER)
            await until(lambda: status_of(crew, waiting) == "completed")

    asyncio.run(scenario())
    assert status_of(crew, hung) == "cancelled"


def test_a_task_that_was_cancelled_while_no_worker_lived_never_runs(crew: Crew) -> None:
    """[D041] The wish is in the store, not in any memory."""
    task = crew.submit("note")
    crew.tracker().cancel(task.task_id, **OWNER)
    assert crew.worker().run_once() == 0
    assert WORK.runs == []
    assert status_of(crew, task) == "cancelled"


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
        crew.clock.until_waiting(2)
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
    """[D049] The outcome cannot be written: it is tried for a while (35 s in life), and then left."""
    monkeypatch.setattr(crew_module, "_SETTLE_SECONDS", 0.1)
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
    assert WORK.runs == []
    crew.clock.advance(LEASE + 1)
    assert asyncio.run(crew.worker().rescue()) == Rescued(failed=1)


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


# ---- trouble -----------------------------------------------------------------------------------------------


def test_an_outage_ends_and_the_worker_goes_on_by_itself() -> None:
    """[D110] Everything fails for a while; the status says so; nobody restarts anything."""
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore())
    tracker = crew.tracker()

    async def scenario() -> None:
        async with crew.worker(tracker, poll_seconds=(0.001, 0.001)) as worker:
            network(tracker).fail(forever=True)
            await until(lambda: worker.status().store_away_seconds > 0)
            assert not worker.status().ready
            task = crew.submit("note")
            tried = network(tracker).calls["claim"]
            await until(lambda: network(tracker).calls["claim"] >= tried + 2)
            network(tracker).heal()
            await until(lambda: status_of(crew, task) == "completed")
            assert worker.status().store_away_seconds == 0

    asyncio.run(scenario())
    assert len(crew.told("store_away")) == len(crew.told("store_back")) == 1


def test_a_claim_that_breaks_in_an_unheard_of_way_ends_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    """[D110] A store of somebody else's that raises what it must not."""
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore())
    tracker = crew.tracker()
    network(tracker).fail(ZeroDivisionError("of all things"), on="claim")
    task = crew.submit("note")

    async def scenario() -> None:
        async with crew.worker(tracker, poll_seconds=(0.001, 0.001)):
            await until(lambda: status_of(crew, task) == "completed")

    asyncio.run(scenario())
    assert "claiming failed; it goes on" in caplog.text


def test_hooks_that_fail_cost_nothing(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: object) -> None:
        raise ValueError("no metrics today")

    tasks = [crew.submit("note") for _ in range(3)]
    worker = Worker(crew.tracker(), hooks=[broken, crew.events.append])
    assert worker.run_once() == 3
    assert {status_of(crew, task) for task in tasks} == {"completed"}
    assert [event.facts["outcome"] for event in crew.told("attempt_ended")] == ["done"] * 3
    assert caplog.text.count("a hook failed for attempt_ended") == 1


def test_a_claim_that_comes_back_while_it_drains_is_given_back(crew: Crew) -> None:
    """[D049] [D028] It was under way when the stop came: its handler does not begin, another worker has it at once."""
    task = crew.submit("note")
    tracker = crew.tracker()
    tracker.store.blocking = True  # type: ignore[misc]  # as a disk is
    network(tracker).interrupt(lambda: WORK.wait_open("the store"), on="claim", after=True)

    async def scenario() -> None:
        worker = crew.worker(tracker)
        await worker.start()
        await until(lambda: status_of(crew, task) == "running")
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: worker.status().state == "draining")
        WORK.open("the store")
        assert await stopping == 0

    asyncio.run(scenario())
    assert WORK.runs == []
    assert status_of(crew, task) == "pending"
    assert crew.worker().run_once() == 1


def test_the_background_of_a_worker_survives_what_nobody_thought_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """[D110] The claim loop itself breaks, the rescuer breaks and meets an outage: both begin again."""
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore(lease_seconds=0.3, heartbeat_seconds=0.01))
    tracker = crew.tracker()
    monkeypatch.setattr(shift, "_RESTART_SECONDS", 0.001)
    network(tracker).fail(ZeroDivisionError("of all things"), on="recover")
    network(tracker).fail(on="recover", nth=2)
    fill, broken = ClaimLoop.fill, [ValueError("a mistake of ours")]

    async def breaking(loop: ClaimLoop, free: int) -> Any:
        if broken:
            raise broken.pop()
        return await fill(loop, free)

    monkeypatch.setattr(ClaimLoop, "fill", breaking)
    task, lost = crew.submit("note"), crew.crashed("boom")

    async def scenario() -> None:
        async with crew.worker(tracker, poll_seconds=(0.001, 0.001)):
            await until(lambda: status_of(crew, task) == "completed")
            await until(lambda: crew.seen(lost).error_code == "holder_lost")

    asyncio.run(scenario())
    assert "claiming broke; it begins again" in caplog.text
    assert "a pass of the rescuer failed; it goes on" in caplog.text


def test_without_a_thread_for_heartbeats_a_task_is_not_begun(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease would be lost in the middle of the work."""
    task = crew.submit("note")

    def no_thread(heartbeats: Heartbeats) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(Heartbeats, "begin", no_thread)
        with pytest.raises(StoreUnavailable, match="no thread could be started"):
            crew.worker().run_once()
    assert WORK.runs == []
    crew.clock.advance(LEASE + 1)
    assert crew.worker(crew.tracker(registry(idempotent=True))).run_once() == 0
    assert status_of(crew, task) == "pending"


def test_nothing_is_asked_of_the_store_while_everything_is_paused(crew: Crew) -> None:
    tracker = crew.tracker()
    worker = crew.worker(tracker)
    for task_type, _ in registry().kinds():
        worker.pause(task_type)
    crew.submit("note")
    assert worker.run_once() == 0
    assert network(tracker).calls["claim"] == 0
