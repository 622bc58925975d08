"""What a worker hears while it works, and what it survives: blocked loops, lost leases, cancels, outages, bad hooks."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from stores import InMemoryTaskStore
from task_tracker import (
    StoreUnavailable,
    TaskNotFound,
    TaskRecord,
    TaskStatus,
)
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.worker import shift
from task_tracker.worker.heartbeat import Heartbeats
from task_tracker.worker.loop import ClaimLoop
from task_tracker.worker.rescuing import Rescued
from task_tracker.worker.worker import Worker
from tests.core.support import OWNER
from tests.runtime.work import WORK, registry, until
from tests.runtime.workers import BEAT, LEASE, THREADS_OF_ONE, Crew, InThread, network

pytestmark = pytest.mark.usefixtures("fresh_work")


def status_of(crew: Crew, task: TaskRecord) -> str:
    return crew.seen(task).status.value


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
        crew.clock.until_waiting(THREADS_OF_ONE)
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
        crew.clock.until_waiting(THREADS_OF_ONE)
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
            await until(lambda: worker.status().ready)
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

    async def breaking(loop: ClaimLoop, free: int, **asked: bool) -> Any:
        if broken:
            raise broken.pop()
        return await fill(loop, free, **asked)

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
    """Its lease would be lost in the middle of the work; it goes back at once, with whatever was claimed beside it."""
    tasks = [crew.submit("note") for _ in range(3)]

    def no_thread(heartbeats: Heartbeats) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(Heartbeats, "begin", no_thread)
        with pytest.raises(StoreUnavailable, match="no thread could be started"):
            crew.worker().run_once()
    assert WORK.runs == []
    assert [status_of(crew, task) for task in tasks] == ["pending"] * 3
    assert crew.worker().run_once() == 3


def test_nothing_is_asked_of_the_store_while_everything_is_paused(crew: Crew) -> None:
    tracker = crew.tracker()
    worker = crew.worker(tracker)
    for task_type, _ in registry().kinds():
        worker.pause(task_type)
    crew.submit("note")
    assert worker.run_once() == 0
    assert network(tracker).calls["claim"] == 0
