"""Pausing a task type for all workers of a store, from any process that has a tracker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stores import InMemoryTaskStore, PersistentTaskStore
from stores.files.lease.store import LeaseTaskStore
from task_tracker import AsyncTaskTracker, CapabilityMissing, InvalidTaskId, StoreUnavailable, TaskTracker
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.store import LeaseStore, WorkerFact
from task_tracker.wakeups import InProcessWakeUp
from tests.core.support import OWNER
from tests.runtime.work import WORK, registry, until
from tests.runtime.workers import Crew, Recording, network

QUICK: Any = {"poll_seconds": (0.001, 0.01)}


pytestmark = pytest.mark.usefixtures("fresh_work")


@pytest.fixture(params=["memory", "lease"])
def crew(request: pytest.FixtureRequest, tmp_path: Path) -> Crew:
    store: LeaseStore = (
        InMemoryTaskStore() if request.param == "memory" else LeaseTaskStore(tmp_path, durability="none")
    )
    return Crew(SYSTEM_CLOCK, store)


def test_no_worker_claims_a_paused_type_until_it_is_resumed(crew: Crew) -> None:
    """[D154] Two workers, and trackers of others that pause and resume; what runs goes on, other types as well."""
    running = crew.submit("hold")
    operator = crew.tracker()

    async def scenario() -> None:
        async with crew.worker(**QUICK), crew.worker(**QUICK):
            await until(lambda: WORK.runs)
            operator.pause_type("hold")
            operator.pause_type("note")
            assert crew.tracker().paused_types() == ["hold", "note"]
            waiting = [crew.submit("note").task_id for _ in range(3)]
            other = crew.submit("boom")
            await until(lambda: crew.seen(other).status.is_terminal)
            assert WORK.begun == [running.task_id, other.task_id]
            WORK.open()
            await until(lambda: crew.seen(running).status.is_terminal)
            crew.tracker().resume_type("note")
            await until(lambda: len(WORK.ended) == 5)
            assert sorted(WORK.begun[2:]) == sorted(waiting)
            assert operator.paused_types() == ["hold"]

    asyncio.run(scenario())


def test_a_worker_that_is_started_later_heeds_it(crew: Crew) -> None:
    """[D154] It is in the store, not in any worker."""
    task = crew.submit("note")
    tracker = crew.tracker()
    tracker.pause_type("note")
    assert crew.worker().run_once() == 0
    tracker.resume_type("note")
    assert crew.worker().run_once() == 1
    assert WORK.begun == [task.task_id]


def test_resuming_wakes_those_that_wait(crew: Crew) -> None:
    """With polling every 1,000 seconds, nobody waits for the next look."""
    wake_up = InProcessWakeUp()
    tracker = crew.tracker(wake_up=wake_up)
    tracker.pause_type("note")
    for _ in range(5):
        tracker.submit("note", **OWNER)

    async def scenario() -> None:
        async with crew.worker(tracker, poll_seconds=(1000.0, 1000.0)) as worker:
            await until(lambda: worker.status().paused_everywhere == ("note",))
            tracker.resume_type("note")
            await until(lambda: len(WORK.ended) == 5)

    asyncio.run(scenario())


def test_resuming_names_two_that_are_next_for_a_worker_that_lives(crew: Crew) -> None:
    """Of the versions that workers say they know; what they say that makes no sense is passed over."""
    way = Recording()
    tracker = crew.tracker(wake_up=way)
    tracker.pause_type("note")
    crew.submit("hold", priority=9)
    crew.submit("note", priority=9, version=7, unregistered=True)
    crew.submit("note", priority=9, not_before=9e9)
    tasks = [crew.submit("note", priority=priority).task_id for priority in (0, 1, 2)]
    kind_like = [["note"], ["note", "1"], ["note", True], ["note", 1, 1], [1, 1], ["note", -1]]
    odd: tuple[Any, ...] = (None, "all", 7, [], ["note", 1], kind_like)
    for number, kinds in enumerate(odd):
        crew.store.publish(WorkerFact(f"odd {number}", {"kinds": kinds}, 60.0))
    crew.store.publish(WorkerFact("silent", {}, 60.0))
    tracker.resume_type("note")
    assert way.announced == [], "nobody lives who could be woken"
    for name in "ab":
        crew.store.publish(WorkerFact(name, {"kinds": [["hold", 1], ["note", 1], ["note", 2]]}, 60.0))
    tracker.resume_type("note")
    assert way.announced == tasks[:0:-1]


@pytest.mark.parametrize("call", ["facts", "claimable"])
def test_a_wake_up_that_fails_fails_no_resume(crew: Crew, call: str) -> None:
    """The type is resumed; that nobody could be told costs a look."""
    tracker = crew.tracker(wake_up=InProcessWakeUp())
    tracker.pause_type("note")
    crew.store.publish(WorkerFact("lives", {"kinds": [["note", 1]]}, 60.0))
    network(tracker).fail(on=call, forever=True)
    tracker.resume_type("note")
    assert network(tracker).calls[call] == 1
    assert crew.tracker().paused_types() == []


def test_a_worker_pauses_for_itself_as_before_and_its_status_shows_both(crew: Crew) -> None:
    """[D154] The other worker takes what this one was told to leave alone."""
    tracker = crew.tracker()
    tracker.pause_type("boom")

    async def scenario() -> None:
        one, other = crew.worker(**QUICK), crew.worker(**QUICK)
        one.pause("note")
        async with one:
            task = crew.submit("note")
            await until(lambda: one.status().paused_everywhere == ("boom",))
            assert one.status().paused == ("note",)
            assert WORK.runs == []
            async with other:
                await until(lambda: crew.seen(task).status.is_terminal)
                assert other.status().paused == ()

    asyncio.run(scenario())
    assert tracker.paused_types() == ["boom"]


def test_doctor_names_what_is_paused_and_leaves_it_so(crew: Crew) -> None:
    """Forgotten, it looks like work that hangs; whether it may go on is for a person to say."""
    tracker = crew.tracker()
    assert tracker.doctor() == []
    tracker.pause_type("note")
    for fix in (True, False):
        (finding,) = tracker.doctor(fix=fix)
        assert (finding.kind, finding.where, finding.fixed) == ("paused_type", "note", False)
        assert "resume_type" in finding.message
    assert tracker.paused_types() == ["note"]


def test_what_cannot_be_done_is_said(crew: Crew) -> None:
    tracker = crew.tracker()
    with pytest.raises(InvalidTaskId, match="task_type"):
        tracker.pause_type(" ")
    network(tracker).fail(forever=True)
    calls: list[Callable[[], object]] = [
        lambda: tracker.pause_type("note"),
        lambda: tracker.resume_type("note"),
        tracker.paused_types,
        tracker.workers,
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable):
            call()


def test_a_store_without_leases_has_no_workers_to_tell(tmp_path: Path) -> None:
    """Nothing passes for paused that is not."""
    tracker = TaskTracker(PersistentTaskStore(tmp_path))
    calls: list[Callable[[], object]] = [
        lambda: tracker.pause_type("note"),
        lambda: tracker.resume_type("note"),
        tracker.paused_types,
        tracker.workers,
    ]
    for call in calls:
        with pytest.raises(CapabilityMissing, match="has no leases, so there are no workers to"):
            call()
    assert tracker.doctor() == []
    tracker.close()


def test_it_can_be_awaited(crew: Crew) -> None:
    async def scenario() -> None:
        async with AsyncTaskTracker(TaskTracker(crew.store, handlers=registry())) as tracker:
            await tracker.pause_type("note")
            assert await tracker.paused_types() == ["note"]
            assert [finding.kind for finding in await tracker.doctor()] == ["paused_type"]
            await tracker.resume_type("note")
            assert await tracker.paused_types() == []
            assert await tracker.workers() == []

    asyncio.run(scenario())
