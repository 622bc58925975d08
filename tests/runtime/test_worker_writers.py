"""The thread that writes ends has slots to claim for: it does so soon, and not at all once the worker has stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from task_tracker.store import Lease
from task_tracker.worker.calls import After
from task_tracker.worker.loop import ClaimLoop
from task_tracker.worker.slots import Slots
from task_tracker.worker.worker import Worker
from tests.core.support import PATIENCE
from tests.runtime.test_worker_ahead import Asked, claims_of
from tests.runtime.together import Together, crew, ends_of, statuses, store, tracker_of
from tests.runtime.work import WORK, until, wait_for
from tests.runtime.workers import Crew, InThread

__all__ = ["crew", "store"]

pytestmark = pytest.mark.usefixtures("fresh_work")


def hang_in_second_write(store: Together, worker: Worker, second: str) -> threading.Event:
    """Have ``second`` end while the write before it is under way, and its own write hang in the same thread."""
    entered = threading.Event()

    def before(leases: Sequence[Lease]) -> None:
        if len(store.groups) == 1:
            WORK.open(second)
            wait_for(lambda: len(ends_of(worker)._waiting) == 1)
        elif len(store.groups) == 2:
            entered.set()
            WORK.wait_open("the store")

    store.before = before
    return entered


def test_slot_whose_end_is_written_does_not_wait_for_another_write_that_hangs(
    crew: Crew, store: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was ended before is known, its slot is free: whatever the store does with the next end, work goes on."""
    monkeypatch.setattr("task_tracker.worker.ends._PATIENCE_SECONDS", PATIENCE)
    first, second = crew.submit("hold"), crew.submit("hold")
    worker = crew.worker(tracker_of(crew), concurrency=2)
    entered = hang_in_second_write(store, worker, second.task_id)
    try:
        with InThread(worker):
            WORK.wait_begun(2)
            late = crew.submit("note")
            WORK.open(first.task_id)
            assert entered.wait(PATIENCE)
            assert crew.wait_ended(first).status == "completed"
            wait_for(lambda: len(crew.told("attempt_ended")) == 1)
            WORK.wait_begun(3)
            assert statuses(crew, [late]) != ["pending"]
            WORK.open("the store")
    finally:
        WORK.open()


def test_nothing_is_claimed_by_a_write_that_comes_back_after_the_worker_has_stopped(
    crew: Crew, store: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("task_tracker.worker.ends._PATIENCE_SECONDS", PATIENCE)
    monkeypatch.setattr("task_tracker.worker.shift._PARTS_END_SECONDS", 0.2)
    monkeypatch.setattr("task_tracker.worker.crew._WRITE_SECONDS", 0.2)
    first, second = crew.submit("hold"), crew.submit("hold")
    tracker = tracker_of(crew)
    worker = crew.worker(tracker, concurrency=2)
    entered = hang_in_second_write(store, worker, second.task_id)

    async def scenario() -> None:
        await worker.start()
        await until(lambda: len(WORK.runs) == 2)
        WORK.open(first.task_id)
        await until(entered.is_set)
        ends = ends_of(worker)
        await worker.stop(0.0)
        late = crew.submit("note")
        WORK.open("the store")
        await until(lambda: not ends._writers)
        assert crew.seen(late).status == "pending", "nobody is there to work on it"

    try:
        asyncio.run(scenario())
    finally:
        WORK.open()


def test_who_always_has_one_more_end_to_write_claims_all_the_same(
    crew: Crew, store: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots do not stay empty for all the ends that there are: for eight of them at most."""
    monkeypatch.setattr("task_tracker.worker.ends._PATIENCE_SECONDS", PATIENCE)
    tasks = [crew.submit("hold") for _ in range(24)]
    worker = crew.worker(tracker_of(crew), concurrency=24)
    running: list[int] = []

    def before(leases: Sequence[Lease]) -> None:
        number = len(store.groups)
        running.append(store.workload().running)
        if number < len(tasks):
            WORK.open(tasks[number].task_id)
            wait_for(lambda: ends_of(worker)._waiting or len(store.groups) > number)

    store.before = before
    try:
        with InThread(worker):
            WORK.wait_begun(24)
            others = [crew.submit("hold") for _ in range(24)]
            WORK.open(tasks[0].task_id)
            for task in tasks:
                crew.wait_ended(task)
            store.before = lambda _: None
            WORK.open()
            for task in others:
                crew.wait_ended(task)
    finally:
        WORK.open()
    assert min(running[:24]) >= 24 - 9, running


class Preempted(Slots):
    """Lets another thread run just when it is asked how many are free, if nothing keeps that one from it."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.meanwhile: Callable[[], None] = lambda: None

    @property
    def free(self) -> int:
        self.meanwhile()
        return super().free


def test_loop_and_thread_do_not_both_claim_for_a_slot_that_was_owed() -> None:
    asked, slots = Asked(), Preempted(2)
    claims: ClaimLoop = claims_of(asked, slots)
    slots.take()
    assert claims.ahead(1, others_wait=True) is None, "one has ended; its slot is free by now"
    begun: list[After] = []
    asked_for: list[None] = []

    def meanwhile() -> None:
        asked_for.append(None)
        # The first time it is whether what is claimed can be started, the second time for how many to claim.
        if len(asked_for) == 2 and claims._freed._changing.acquire(blocking=False):
            claims._freed._changing.release()
            claim = claims.ahead(1, others_wait=False)  # the other has ended as well
            assert claim is not None
            begun.append(claim)

    slots.meanwhile = meanwhile
    asyncio.run(claims.fill_free())
    for claim in begun:
        claim()
    assert sum(asked.most) <= 2, "there are two slots"
