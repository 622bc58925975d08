"""The thread that has written the end of an attempt claims the next task: what holds for other claims holds for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from task_tracker import HandlerRegistry, TaskRecord, TaskTracker
from task_tracker.errors import StoreUnavailable
from task_tracker.testing import FakeClock
from task_tracker.worker import loop, pauses
from task_tracker.worker.calls import Calls
from task_tracker.worker.hooks import Hooks
from task_tracker.worker.pauses import Pauses
from task_tracker.worker.readiness import StoreHealth
from task_tracker.worker.slots import Slots
from tests.core.support import PATIENCE
from tests.runtime.work import WORK, registry, until, wait_for
from tests.runtime.workers import BEAT, THREADS_OF_ONE, Crew, InThread, network

pytestmark = pytest.mark.usefixtures("fresh_work")


def tracker_of(crew: Crew, handlers: HandlerRegistry | None = None) -> TaskTracker:
    handlers = registry() if handlers is None else handlers
    handlers.check()  # as a worker process does when it starts: importing takes turns of the loop
    tracker = crew.tracker(handlers)
    tracker.store.blocking = True  # type: ignore[misc]  # as a disk is
    return tracker


def statuses(crew: Crew, tasks: list[TaskRecord]) -> list[str]:
    return [crew.seen(task).status.value for task in tasks]


class Watch:
    """Which thread claimed, and which wrote an end; a claim can be held up."""

    def __init__(self, crew: Crew, tracker: TaskTracker) -> None:
        self.ended_by: set[int] = set()
        self.claimed_by: list[int] = []
        network(tracker).interrupt(
            lambda: self.ended_by.add(threading.get_ident()), on="end", after=True, forever=True
        )

    def claims(self, tracker: TaskTracker, then: Callable[[], None]) -> None:
        """Call ``then`` in each claim that is made by a thread that has written an end."""

        def claimed() -> None:
            self.claimed_by.append(threading.get_ident())
            if threading.get_ident() in self.ended_by:
                then()

        network(tracker).interrupt(claimed, on="claim", after=True, forever=True)


def test_all_is_worked_off_and_most_is_claimed_ahead(crew: Crew) -> None:
    tracker = tracker_of(crew)
    tasks = [crew.submit("note") for _ in range(20)]
    ahead: list[None] = []
    watch = Watch(crew, tracker)
    watch.claims(tracker, lambda: ahead.append(None))
    worker = crew.worker(tracker, concurrency=1)
    assert worker.run_once() == 20
    assert statuses(crew, tasks) == ["completed"] * 20
    assert WORK.begun == [task.task_id for task in tasks], "in their order, each once"
    assert WORK.most_at_once == 1
    assert len(ahead) >= 19


def test_no_more_is_claimed_ahead_than_there_will_be_slots(crew: Crew) -> None:
    tracker = tracker_of(crew)
    first, *others = [crew.submit("hold") for _ in range(5)]
    worker = crew.worker(tracker, concurrency=2)
    with InThread(worker):
        WORK.wait_begun(2)
        WORK.open(first.task_id)
        WORK.wait_begun(3)
        assert statuses(crew, [first, *others]) == ["completed", *["running"] * 2, *["pending"] * 2]
        WORK.open()
        for task in others:
            crew.wait_ended(task)
    assert WORK.most_at_once == 2


def test_what_is_being_claimed_ahead_when_it_is_told_to_stop_is_given_back(crew: Crew) -> None:
    tracker = tracker_of(crew)
    first, second = crew.submit("note"), crew.submit("note")
    watch, entered = Watch(crew, tracker), threading.Event()

    def hang() -> None:
        entered.set()
        WORK.wait_open("the store")

    watch.claims(tracker, hang)

    async def scenario() -> None:
        worker = crew.worker(tracker, concurrency=1)
        await worker.start()
        await until(entered.is_set)
        assert crew.seen(second).status == "running", "claimed, and not known yet"
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: worker.status().state == "draining")
        WORK.open("the store")
        assert await stopping == 0

    asyncio.run(scenario())
    assert statuses(crew, [first, second]) == ["completed", "pending"]
    attempt = crew.seen(second).attempt
    assert attempt is not None
    assert WORK.begun == [first.task_id]


def test_nothing_is_claimed_ahead_while_it_drains(crew: Crew) -> None:
    tracker = tracker_of(crew)
    first, second = crew.submit("hold"), crew.submit("note")
    worker = crew.worker(tracker, concurrency=1)
    with InThread(worker) as running:
        WORK.wait_begun()
        assert running._told is not None
        running.call(running._told.set)
        wait_for(lambda: worker.status().state == "draining")
        WORK.open()
    assert statuses(crew, [first, second]) == ["completed", "pending"]


def test_one_that_hangs_shows_and_holds_up_no_end(crew: Crew) -> None:
    """[D160] The end that was written before it is known, and other ends are written, though it does not come back."""
    tracker = tracker_of(crew)
    first, other = crew.submit("note"), crew.submit("hold")
    watch, entered = Watch(crew, tracker), threading.Event()

    def hang() -> None:
        entered.set()
        WORK.wait_open("the store")

    watch.claims(tracker, hang)
    worker = crew.worker(tracker, concurrency=2)
    try:
        with InThread(worker):
            assert entered.wait(PATIENCE)
            wait_for(lambda: len(crew.told("attempt_ended")) == 1)
            WORK.open(other.task_id)
            assert crew.wait_ended(other).status == "completed"
            crew.clock.until_waiting(THREADS_OF_ONE - 1)
            crew.clock.advance(61)
            wait_for(lambda: worker.status().claiming_seconds >= 61)
            assert not worker.status().ready
            WORK.open()
            wait_for(lambda: worker.status().claiming_seconds == 0)
    finally:
        WORK.open()
    assert crew.seen(first).status == "completed"


def test_one_that_fails_is_an_outage_like_others(crew: Crew) -> None:
    tracker = tracker_of(crew)
    first = crew.submit("note")
    watch, seconds = Watch(crew, tracker), [crew.submit("note") for _ in range(3)]

    def fail() -> None:
        raise StoreUnavailable("it is away")

    network(tracker).interrupt(
        lambda: fail() if threading.get_ident() in watch.ended_by else None, on="claim", forever=True
    )
    worker = crew.worker(tracker, concurrency=1)
    with InThread(worker):
        assert crew.wait_ended(first).status == "completed"
        for task in seconds:
            assert crew.wait_ended(task).status == "completed", "the loop goes on asking"
    assert crew.told("store_away")
    assert crew.told("store_back")


def test_what_was_claimed_ahead_for_a_blocked_loop_goes_to_others(crew: Crew) -> None:
    """[D021] The loop was free when the end was written."""
    handlers = registry()
    handlers.register("late_block", handler="tests.runtime.work:hold_then_block", cleanup_seconds=0.2)
    tracker = tracker_of(crew, handlers)
    held, blocking = crew.submit("hold"), crew.submit("late_block", version=1, unregistered=True)
    watch, entered = Watch(crew, tracker), threading.Event()

    def hang() -> None:
        entered.set()
        WORK.wait_open("the store")

    watch.claims(tracker, hang)
    worker, other = crew.worker(tracker, concurrency=2), crew.worker()
    try:
        with InThread(worker):
            WORK.wait_begun(2)
            late = crew.submit("note")
            WORK.open(held.task_id)
            assert entered.wait(PATIENCE)
            assert crew.seen(late).status == "running", "claimed, and not known yet"
            WORK.open(blocking.task_id)
            WORK.wait_open("it blocks")
            WORK.open("the store")
            assert worker._shift is not None
            claims = worker._shift._claims
            wait_for(lambda: bool(claims._unstarted))
            wait_for(lambda: crew.seen(late).status == "pending", lambda: crew.live(BEAT))
            assert other.run_once() == 1
            WORK.open("the loop")
            assert crew.wait_ended(blocking).status == "completed"
    finally:
        WORK.open()
    assert sorted(WORK.begun) == sorted(task.task_id for task in (held, blocking, late))


def test_a_paused_type_is_not_claimed_ahead(crew: Crew) -> None:
    tracker = tracker_of(crew)
    first, second = crew.submit("hold"), crew.submit("note")
    worker = crew.worker(tracker, concurrency=1)
    with InThread(worker):
        WORK.wait_begun()
        worker.pause("note")
        WORK.open()
        crew.wait_ended(first)
        crew.clock.until_waiting(THREADS_OF_ONE - 1)
        assert crew.seen(second).status == "pending"


def test_what_is_claimed_ahead_begins_though_the_loop_waits_out_an_outage(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claims of the loop fail, those beside the ends do not; no pause keeps what was claimed from its handler."""
    monkeypatch.setattr(pauses, "_FIRST_OUTAGE_SECONDS", 10 * PATIENCE)
    monkeypatch.setattr(pauses, "_LONGEST_OUTAGE_SECONDS", 10 * PATIENCE)
    tracker = tracker_of(crew)
    watch = Watch(crew, tracker)
    first, second = crew.submit("hold"), crew.submit("hold")
    worker = crew.worker(tracker, concurrency=2)
    with InThread(worker):
        WORK.wait_begun(2)

        def fail() -> None:
            if threading.get_ident() not in watch.ended_by:
                raise StoreUnavailable("it is away")

        network(tracker).interrupt(fail, on="claim", forever=True)
        late = [crew.submit("note") for _ in range(5)]
        WORK.open(first.task_id)
        for task in late:
            assert crew.wait_ended(task).status == "completed"
        WORK.open(second.task_id)
        assert crew.wait_ended(second).status == "completed"


class Asked:
    """Claims nothing, and says how much it was asked for."""

    is_short = False

    def __init__(self) -> None:
        self.most: list[int] = []

    def claim(self, most: int, *, ask_due: bool = False) -> loop.Batch:
        self.most.append(most)
        return loop.Batch([])


def claims_of(asked: Asked, slots: Slots) -> loop.ClaimLoop:
    nothing: Any = lambda *_: None  # noqa: E731
    clock, calls = FakeClock(), Calls(1, blocking=False)
    made = loop.ClaimLoop(
        cast("loop.Claimer", asked),
        slots,
        calls,
        StoreHealth(clock, Hooks()),
        Pauses(clock, 0.1, 1.0),
        clock,
        start=nothing,
        refuse=nothing,
        no_thread=nothing,
        give_back=nothing,
    )
    made.go_ahead()
    return made


def test_who_has_more_ends_to_write_leaves_the_claims_for_all_to_the_last() -> None:
    asked, slots = Asked(), Slots(4)
    claims = claims_of(asked, slots)
    for _ in range(4):
        slots.take()
    assert claims.ahead(1, others_wait=True) is None
    assert claims.ahead(1, others_wait=True) is None
    assert [claims.is_owing] == [False], "the loop need not wait for what nobody has begun"
    claim = claims.ahead(1, others_wait=False)
    assert claim is not None
    assert [claims.is_owing] == [True]
    assert claims.ahead(1, others_wait=False) is None, "that claim is for this slot as well"
    for _ in range(4):
        slots.give_back()
    asyncio.run(claims.fill_free())
    assert asked.most == [], "the loop claims for none of them"
    claim()
    assert asked.most == [4]
    assert [claims.is_owing] == [False]
    asyncio.run(claims.fill_free())
    assert asked.most == [4, 4]


def test_nothing_is_claimed_ahead_once_it_was_told_to_stop() -> None:
    asked = Asked()
    claims = claims_of(asked, Slots(4))
    claim = claims.ahead(1, others_wait=False)
    assert claim is not None
    claims.stop()
    claim()
    assert asked.most == []
    assert [claims.is_owing] == [False]
    assert claims.ahead(1, others_wait=False) is None


def test_what_the_loop_claims_for_is_owed_no_more() -> None:
    asked = Asked()
    claims = claims_of(asked, Slots(4))
    assert claims.ahead(1, others_wait=True) is None
    asyncio.run(claims.fill_free())
    claim = claims.ahead(1, others_wait=False)
    assert claim is not None
    claim()
    assert asked.most == [4, 1]


def test_slots_do_not_stay_empty_for_all_ends_that_there_are() -> None:
    asked = Asked()
    claims = claims_of(asked, Slots(100))
    found = [claims.ahead(1, others_wait=True) for _ in range(8)]
    assert found[:7] == [None] * 7
    claim = found[7]
    assert claim is not None
    claim()
    assert asked.most == [8]
