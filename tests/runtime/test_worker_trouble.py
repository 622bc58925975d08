"""What holds up neither a worker nor others: stores that are away when it ends, handlers that block its loop."""

from __future__ import annotations

import asyncio

import pytest

from stores import InMemoryTaskStore
from task_tracker import HandlerRegistry
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.store import Lease, Query, Stored
from task_tracker.worker import crew as crew_module
from task_tracker.worker import shift
from task_tracker.worker.executor import Executor
from task_tracker.worker.under_way import UnderWay
from tests.core.support import OWNER, PATIENCE
from tests.runtime.work import WORK, registry, until, wait_for
from tests.runtime.workers import BEAT, LEASE, Crew, InThread, network

pytestmark = pytest.mark.usefixtures("fresh_work")


def with_late_block() -> HandlerRegistry:
    made = registry()
    made.register("late_block", handler="tests.runtime.work:hold_then_block", cleanup_seconds=0.2)
    return made


# ---- a store that is away at the end -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_a_stop_does_not_wait_for_a_store_that_is_away(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """[D109] [D049] The outcome is tried for five seconds in life, and then left: the lease expires."""
    monkeypatch.setattr(crew_module, "_WRITE_SECONDS", 0.1)
    monkeypatch.setattr(shift, "_PARTS_END_SECONDS", 0.1)
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore(lease_seconds=600, heartbeat_seconds=0.1))
    task = crew.submit("hold")
    tracker = crew.tracker()
    if how == "hangs":
        tracker.store.blocking = True  # type: ignore[misc]  # as a disk is

    async def scenario() -> int:
        worker = crew.worker(tracker)
        await worker.start()
        await until(lambda: WORK.runs)
        if how == "refuses":
            network(tracker).fail(forever=True)
        else:
            network(tracker).interrupt(lambda: WORK.wait_open("the store"), forever=True)
        # Shorter than the half minute that an on_failure has, and far shorter than the lease.
        return await asyncio.wait_for(worker.stop(0.0), PATIENCE)

    try:
        assert asyncio.run(scenario()) == 1
        assert crew.seen(task).status == "running", "for the rescuers"
    finally:
        WORK.open()


# ---- a loop that is blocked ------------------------------------------------------------------------------------


def test_what_was_claimed_with_a_task_that_blocks_the_loop_goes_to_others(crew: Crew) -> None:
    """[D021] Four are claimed at once; the first one blocks. The others wait for a moment, not for its end."""
    blocking, *others = [crew.submit(kind) for kind in ("block", "note", "note", "note")]
    handlers = registry()
    handlers.check()  # as a worker process does when it starts: importing takes turns of the loop
    worker, other = crew.worker(crew.tracker(handlers), concurrency=4), crew.worker()
    with InThread(worker):
        WORK.wait_begun()
        assert [crew.seen(task).status for task in others] == ["running"] * 3, "claimed"
        wait_for(
            lambda: [crew.seen(task).status for task in others] == ["pending"] * 3, lambda: crew.live(BEAT)
        )
        crew.live(LEASE)
        assert other.run_once() == 3
        assert crew.seen(blocking).status == "running"
        WORK.open()
        assert crew.wait_ended(blocking).status == "completed"
    assert sorted(WORK.begun) == sorted(task.task_id for task in (blocking, *others)), "each of them once"


def test_a_claim_that_comes_back_to_a_blocked_loop_goes_to_others(crew: Crew) -> None:
    """[D017] [D021] The loop was free when the store was asked."""
    blocking = crew.submit("late_block", version=1, unregistered=True)
    tracker = crew.tracker(with_late_block())
    tracker.store.blocking = True  # type: ignore[misc]  # as a disk is
    worker, other = crew.worker(tracker, concurrency=2), crew.worker()

    def hang_if_claimed() -> None:
        if crew.store.list(Query(**OWNER, task_type="note", status="running")).items:
            WORK.wait_open("the store")

    with InThread(worker):
        WORK.wait_begun()
        network(tracker).interrupt(hang_if_claimed, on="claim", after=True, forever=True)
        late = crew.submit("note")
        wait_for(lambda: crew.seen(late).status == "running")
        WORK.open(blocking.task_id)
        WORK.wait_open("it blocks")
        WORK.open("the store")
        assert worker._shift is not None
        claims = worker._shift._claims
        # No time passes before it has come back: one that took longer than a lease is lost.
        wait_for(lambda: bool(claims._unstarted))
        wait_for(lambda: crew.seen(late).status == "pending", lambda: crew.live(BEAT))
        assert other.run_once() == 1
        WORK.open("the loop")
        assert crew.wait_ended(blocking).status == "completed"
    assert sorted(WORK.begun) == sorted([blocking.task_id, late.task_id])


# ---- an attempt that breaks --------------------------------------------------------------------------------------


def test_an_attempt_that_breaks_as_it_begins_costs_neither_its_slot_nor_the_worker(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = crew.submit("note"), crew.submit("note")
    begin = Executor.begin
    broken: list[Lease] = []

    def breaks_once(self: Executor, lease: Lease, stored: Stored) -> UnderWay:
        if not broken:
            broken.append(lease)
            raise AttributeError("a mistake")
        return begin(self, lease, stored)

    monkeypatch.setattr(Executor, "begin", breaks_once)
    worker = crew.worker(concurrency=1)
    assert worker.run_once() == 2
    assert crew.seen(first).status == "running", "for the rescuers"
    assert crew.seen(second).status == "completed"
    assert f"the attempt at task {first.task_id} broke" in caplog.text
