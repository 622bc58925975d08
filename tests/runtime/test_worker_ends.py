"""Ends of attempts where the store takes several together: they go out together, and each stands for itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from task_tracker.errors import StoreUnavailable
from task_tracker.store import Lease
from tests.core.support import PATIENCE
from tests.runtime.together import Together, crew, ends_of, statuses, store, tracker_of
from tests.runtime.work import WORK, registry, until, wait_for
from tests.runtime.workers import LEASE, Crew, InThread, network

__all__ = ["crew", "store"]

pytestmark = pytest.mark.usefixtures("fresh_work")


def hang_in_first_write(store: Together) -> threading.Event:
    """Have the first write hang until the store is opened; the event says that it does."""
    entered = threading.Event()

    def hang(leases: Sequence[Lease]) -> None:
        if len(store.groups) == 1:
            entered.set()
            WORK.wait_open("the store")

    store.before = hang
    return entered


def test_attempts_that_end_together_are_written_together(
    crew: Crew, store: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("ends", "calls"):  # however slow this machine is just now
        monkeypatch.setattr(f"task_tracker.worker.{module}._PATIENCE_SECONDS", PATIENCE)
    tasks = [crew.submit("note", {"n": number}) for number in range(12)]
    assert crew.worker(tracker_of(crew), concurrency=4).run_once() == 12
    assert [crew.seen(task).result for task in tasks] == [{"n": number} for number in range(12)]
    assert sum(store.groups) == 12
    # Whoever begins a turn later, since its slot was still taken, may end in a group of its own.
    assert len(store.groups) <= 6
    assert max(store.groups) == 4


def test_one_alone_goes_out_alone(crew: Crew, store: Together) -> None:
    task = crew.submit("note")
    assert crew.worker(tracker_of(crew), concurrency=4).run_once() == 1
    assert store.groups == [1]
    assert crew.seen(task).status == "completed"


def test_no_more_is_claimed_for_what_ended_together_than_there_are_slots(crew: Crew, store: Together) -> None:
    tasks = [crew.submit("note") for _ in range(40)]
    tracker = tracker_of(crew)
    running: list[int] = []
    network(tracker).interrupt(
        lambda: running.append(store.workload().running), on="claim", after=True, forever=True
    )
    worker = crew.worker(tracker, concurrency=4)
    with InThread(worker):
        for task in tasks:
            crew.wait_ended(task)
    assert max(running) <= 4
    assert WORK.most_at_once <= 4
    assert sorted(WORK.begun) == sorted(task.task_id for task in tasks)


def test_what_ends_while_one_is_written_goes_out_together(
    crew: Crew, store: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("task_tracker.worker.ends._PATIENCE_SECONDS", PATIENCE)
    entered = hang_in_first_write(store)
    first, *others = [crew.submit("hold") for _ in range(4)]
    worker = crew.worker(tracker_of(crew), concurrency=4)
    try:
        with InThread(worker):
            WORK.wait_begun(4)
            WORK.open(first.task_id)
            assert entered.wait(PATIENCE)
            for task in others:
                WORK.open(task.task_id)
            wait_for(lambda: len(ends_of(worker)._waiting) == 3)
            WORK.open("the store")
            for task in (first, *others):
                assert crew.wait_ended(task).status == "completed"
    finally:
        WORK.open()
    assert store.groups == [1, 3]


def test_write_that_hangs_holds_up_no_other_end_and_no_heartbeat(crew: Crew, store: Together) -> None:
    """Another thread writes what waits."""
    entered = hang_in_first_write(store)
    stuck, going_on, *others = [crew.submit("hold") for _ in range(4)]
    worker = crew.worker(tracker_of(crew), concurrency=4)
    try:
        with InThread(worker):
            WORK.wait_begun(4)
            WORK.open(stuck.task_id)
            assert entered.wait(PATIENCE)
            for task in others:
                WORK.open(task.task_id)
                assert crew.wait_ended(task).status == "completed"
            crew.live(2 * LEASE)
            assert statuses(crew, [stuck, going_on]) == ["running", "running"]
            WORK.open("the store")
            assert crew.wait_ended(stuck).status == "completed"
            WORK.open()
            assert crew.wait_ended(going_on).status == "completed"
    finally:
        WORK.open()
    assert not crew.told("lease_lost")


def test_who_has_lost_its_lease_is_told_and_the_others_end(crew: Crew, store: Together) -> None:
    tasks = [crew.submit("note") for _ in range(4)]
    stolen: list[str] = []

    def steal(leases: Sequence[Lease]) -> None:
        if not stolen:
            stolen.append(leases[1].key.task_id)
            store._holds.drop(leases[1].key)

    store.before = steal
    assert crew.worker(tracker_of(crew), concurrency=4).run_once() == 4
    outcomes = {
        event.record.task_id: event.facts["outcome"]
        for event in crew.told("attempt_ended")
        if event.record is not None
    }
    expected = {task.task_id: "lost" if task.task_id in stolen else "done" for task in tasks}
    assert outcomes == expected


@pytest.mark.parametrize("after", [False, True])
def test_each_of_a_group_that_fails_is_tried_again_by_itself(
    crew: Crew, store: Together, after: bool
) -> None:
    """Also if it was written and the answer was lost: then that is found out. [D016]"""
    tasks = [crew.submit("note", {"n": number}) for number in range(4)]
    tracker = tracker_of(crew)
    for nth in range(1, 5):
        network(tracker).fail(on="end", nth=nth, after=after)
    assert crew.worker(tracker, concurrency=4).run_once() == 4
    assert [crew.seen(task).result for task in tasks] == [{"n": number} for number in range(4)]
    assert store.groups == ([4] if after else [0, 1, 1, 1, 1])


def test_store_that_breaks_its_word_is_told_to_each(crew: Crew, store: Together) -> None:
    """One that raises, or loses an answer: nobody waits for ever, and what can be written is."""
    tasks = [crew.submit("note") for _ in range(3)]

    def broken(leases: Sequence[Lease]) -> None:
        if len(leases) > 1:
            raise StoreUnavailable("it is away")

    store.before = broken
    assert crew.worker(tracker_of(crew), concurrency=3).run_once() == 3
    assert statuses(crew, tasks) == ["completed"] * 3
    assert store.groups == [3, 1, 1, 1]


def test_attempt_that_just_writes_something_ends_by_itself(crew: Crew, store: Together) -> None:
    """Whoever waits for that write does not hold up those that end with it."""
    busy, *others = [crew.submit("hold") for _ in range(3)]
    worker = crew.worker(tracker_of(crew), concurrency=3)
    try:
        with InThread(worker):
            WORK.wait_begun(3)
            assert worker._shift is not None
            locks = worker._shift._heartbeats.locks
            with locks.hold(busy.key):
                WORK.open()
                for task in others:
                    assert crew.wait_ended(task).status == "completed"
                assert crew.seen(busy).status == "running"
            assert crew.wait_ended(busy).status == "completed"
    finally:
        WORK.open()


def test_what_the_store_leaves_is_ended_by_itself(crew: Crew, store: Together) -> None:
    tasks = [crew.submit("note") for _ in range(3)]
    store.leaves = {tasks[1].task_id}
    assert crew.worker(tracker_of(crew), concurrency=3).run_once() == 3
    assert statuses(crew, tasks) == ["completed"] * 3
    assert store.groups == [3, 1]


def test_what_is_tried_again_is_given_back_by_itself(crew: Crew, store: Together) -> None:
    handlers = registry(idempotent=True, max_attempts=2, retry_seconds=100)
    handlers.check()
    tasks = [crew.submit("boom"), crew.submit("note"), crew.submit("note")]
    assert crew.worker(crew.tracker(handlers), concurrency=3).run_once() == 3
    assert statuses(crew, tasks) == ["pending", "completed", "completed"]
    assert store.groups == [2]


def test_attempts_that_fail_end_together_after_their_hooks(crew: Crew, store: Together) -> None:
    tasks = [crew.submit("boom") for _ in range(3)]
    assert crew.worker(tracker_of(crew), concurrency=3).run_once() == 3
    assert [crew.seen(task).error for task in tasks] == ["ValueError: it broke"] * 3
    assert len(WORK.failures) == 3
    assert sum(store.groups) == 3


def test_worker_that_stops_writes_what_waits(crew: Crew, store: Together) -> None:
    tasks = [crew.submit("hold") for _ in range(3)]

    async def scenario() -> None:
        worker = crew.worker(tracker_of(crew), concurrency=3)
        await worker.start()
        await until(lambda: len(WORK.runs) == 3)
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: worker.status().state == "draining")
        WORK.open()
        assert await stopping == 0

    asyncio.run(scenario())
    assert statuses(crew, tasks) == ["completed"] * 3
