"""Workers that sleep for long: nothing that waits for its start time waits for the next look.

Pauses between two looks are longer than any test. The clock of the store stands still until a test moves it, so that a
worker looks again and again shortly before a start time, and finds nothing until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from stores import InMemoryTaskStore
from task_tracker.records import TaskKey
from task_tracker.store import LeaseStore
from task_tracker.testing import FakeClock
from task_tracker.wakeups import InProcessWakeUp
from task_tracker.worker.loop import ClaimLoop
from tests.core.support import OWNER
from tests.runtime.work import WORK, registry, until
from tests.runtime.workers import LEASE, Crew, network

RARELY: Any = {"poll_seconds": (600.0, 600.0)}
SOON = 0.01


class Recording(InProcessWakeUp):
    """Remembers whom it announced."""

    def __init__(self) -> None:
        super().__init__()
        self.announced: list[str] = []

    def wake(self, keys: Sequence[TaskKey]) -> None:
        self.announced += [key.task_id for key in keys]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """For how long the claim loop meant to sleep, each time."""
    asked: list[float | None] = []
    news_within = ClaimLoop._news_within

    async def noted(loop: ClaimLoop, seconds: float | None) -> None:
        asked.append(seconds)
        await news_within(loop, seconds)

    monkeypatch.setattr(ClaimLoop, "_news_within", noted)
    return asked


@pytest.fixture(autouse=True)
def _begin() -> None:
    WORK.begin()


# ---- how long it sleeps --------------------------------------------------------------------------------


def test_a_task_is_found_when_its_time_has_come() -> None:
    """Nobody told the worker of it."""
    crew = Crew()
    task = crew.submit("note", not_before=crew.clock.now() + SOON)
    tracker = crew.tracker()

    async def scenario() -> None:
        async with crew.worker(tracker, **RARELY):
            await until(lambda: network(tracker).calls["next_due_seconds"] > 1)
            assert WORK.runs == []
            crew.clock.advance(1)
            await until(lambda: WORK.ended == [task.task_id])

    asyncio.run(scenario())


def test_start_times_of_which_nothing_comes_are_looked_for_ever_more_rarely(
    pauses: list[float | None],
) -> None:
    """Each of them wakes the worker, whose tasks of this type are paused in the store."""
    crew = Crew()
    tracker = crew.tracker()
    for number in range(400):
        crew.submit("note", not_before=crew.clock.now() + (number + 1) * SOON)
    tracker.pause_type("note")

    async def scenario() -> None:
        async with crew.worker(tracker, **RARELY):
            await until(lambda: len(pauses) > 6)

    asyncio.run(scenario())
    slept = [pause for pause in pauses if pause is not None][:7]
    assert slept[1] < slept[2] < slept[3] < slept[4]
    assert max(slept) > 0.5


def test_it_sleeps_until_the_first_start_time_of_what_it_may_claim(pauses: list[float | None]) -> None:
    """A moment longer, so that not all who wait for it come at once."""
    crew = Crew()
    now = crew.clock.now()
    for seconds in (300, 100, 200):
        crew.submit("note", not_before=now + seconds)
    crew.tracker(registry(version=7)).submit("note", **OWNER, not_before=now + 50)

    async def scenario() -> None:
        async with crew.worker(**RARELY):
            await until(lambda: pauses)

    asyncio.run(scenario())
    assert pauses == [pytest.approx(100.05)]


def test_a_start_time_that_is_far_is_no_reason_to_sleep_longer(pauses: list[float | None]) -> None:
    crew = Crew()
    crew.submit("note", not_before=crew.clock.now() + 10_000)

    async def scenario() -> None:
        async with crew.worker(**RARELY):
            await until(lambda: pauses)

    asyncio.run(scenario())
    assert pauses == [600.0]


@pytest.mark.parametrize("why", ["paused", "no handler", "limit", "gate"])
def test_what_is_due_and_cannot_be_claimed_keeps_nobody_awake(why: str, pauses: list[float | None]) -> None:
    crew = Crew()
    kinds = {"no handler": "hold", "limit": "hold"}
    crew.submit(kinds.get(why, "note"), not_before=crew.clock.now() + 5)
    handlers = registry()
    options: dict[str, Any] = {}
    if why == "paused":
        crew.store.pause("note")
    if why == "no handler":
        handlers = registry(version=7)
    if why == "limit":
        crew.crashed("hold")
        options["max_running"] = {"hold": 1}
    if why == "gate":
        options["gates"] = {"note": lambda: False}
    crew.clock.advance(5)

    async def scenario() -> None:
        async with crew.worker(crew.tracker(handlers), **RARELY, **options):
            await until(lambda: pauses)

    asyncio.run(scenario())
    assert pauses == [600.0]


def test_what_becomes_due_just_before_the_question_is_found(pauses: list[float | None]) -> None:
    """After the claim that found nothing: it is no start time to come any more, and was not there yet."""
    crew = Crew()
    task = crew.submit("note", not_before=crew.clock.now() + 5)
    tracker = crew.tracker()
    network(tracker).interrupt(lambda: crew.clock.advance(5), on="next_due_seconds")

    async def scenario() -> None:
        async with crew.worker(tracker, **RARELY):
            await until(lambda: WORK.ended == [task.task_id])

    asyncio.run(scenario())
    assert pauses[0] == 600.0


def test_a_store_that_does_not_know_is_asked_as_often_as_before(pauses: list[float | None]) -> None:
    class Ignorant(InMemoryTaskStore):
        next_due_seconds = LeaseStore.next_due_seconds

    crew = Crew(store=Ignorant(lease_seconds=LEASE))
    crew.submit("note", not_before=4e9)

    async def scenario() -> None:
        async with crew.worker(**RARELY):
            await until(lambda: pauses)

    asyncio.run(scenario())
    assert pauses == [600.0]


def test_who_looks_often_asks_for_no_start_times(pauses: list[float | None]) -> None:
    """The default costs nothing more."""
    crew = Crew()
    crew.submit("note", not_before=crew.clock.now() + 100)
    tracker = crew.tracker()

    async def scenario() -> None:
        async with crew.worker(tracker):
            await until(lambda: len(pauses) > 1)

    asyncio.run(scenario())
    assert network(tracker).calls["next_due_seconds"] == 0


# ---- what is given back --------------------------------------------------------------------------------


def test_a_retry_is_not_late_and_needs_no_wake_up() -> None:
    crew = Crew()
    handlers = registry(idempotent=True, retry_seconds=SOON)
    task = crew.submit("boom")
    tracker = crew.tracker(handlers)

    async def scenario() -> None:
        async with crew.worker(tracker, **RARELY):
            for attempt in (1, 2, 3):
                await until(lambda attempt=attempt: WORK.runs[-1:] == [(task.task_id, attempt)])  # type: ignore[misc]
                await until(lambda: crew.seen(task).status in ("pending", "failed"))
                crew.clock.advance(1)

    asyncio.run(scenario())


def test_what_was_rescued_is_not_late_either() -> None:
    clock = FakeClock()
    crew = Crew(clock, InMemoryTaskStore(lease_seconds=LEASE, heartbeat_seconds=0.02, clock=clock))
    handlers = registry(idempotent=True, retry_seconds=SOON)
    task = crew.crashed("note")
    tracker = crew.tracker(handlers)

    async def scenario() -> None:
        async with crew.worker(tracker, **RARELY):
            await until(lambda: network(tracker).calls["next_due_seconds"])
            crew.clock.advance(LEASE + 1)
            await until(lambda: crew.seen(task).status == "pending", "nobody rescued it")
            crew.clock.advance(1)
            await until(lambda: WORK.ended == [task.task_id])

    asyncio.run(scenario())


# ---- who is told ---------------------------------------------------------------------------------------


def test_who_sleeps_learns_of_a_task_for_later() -> None:
    """Submitted after it has looked."""
    crew = Crew()
    tracker = crew.tracker(wake_up=InProcessWakeUp())

    async def scenario() -> None:
        async with crew.worker(tracker, **RARELY):
            await until(lambda: network(tracker).calls["next_due_seconds"])
            task = tracker.submit("note", **OWNER, not_before=crew.clock.now() + SOON).record
            await until(lambda: network(tracker).calls["next_due_seconds"] > 2)
            assert WORK.runs == []
            crew.clock.advance(1)
            await until(lambda: WORK.ended == [task.task_id])

    asyncio.run(scenario())


def test_others_are_told_of_a_retry() -> None:
    """The worker that gave it back may have no room for it when its time comes."""
    crew = Crew()
    way = Recording()
    task = crew.submit("boom")
    tracker = crew.tracker(registry(idempotent=True, retry_seconds=100.0), wake_up=way)

    async def scenario() -> None:
        async with crew.worker(tracker, **RARELY):
            await until(lambda: way.announced == [task.task_id])

    asyncio.run(scenario())


def test_others_are_told_of_what_was_rescued() -> None:
    crew = Crew()
    way = Recording()
    task = crew.crashed("note")
    crew.clock.advance(LEASE + 1)
    tracker = crew.tracker(registry(idempotent=True, retry_seconds=100.0), wake_up=way)

    async def scenario() -> None:
        async with crew.worker(tracker, **RARELY):
            await until(lambda: way.announced == [task.task_id])

    asyncio.run(scenario())


def test_others_are_told_of_what_a_stop_has_given_back() -> None:
    crew = Crew()
    way = Recording()
    task = crew.submit("hold")
    tracker = crew.tracker(registry(idempotent=True), wake_up=way)

    async def scenario() -> None:
        worker = crew.worker(tracker, **RARELY)
        await worker.start()
        await until(lambda: WORK.runs)
        assert await worker.stop(0) == 0

    asyncio.run(scenario())
    assert crew.seen(task).status == "pending"
    assert way.announced == [task.task_id]


def test_nobody_is_told_of_what_has_ended() -> None:
    crew = Crew()
    way = Recording()
    tasks = [crew.submit("note"), crew.submit("boom"), crew.crashed("note")]
    crew.clock.advance(LEASE + 1)
    tracker = crew.tracker(wake_up=way)

    async def scenario() -> None:
        async with crew.worker(tracker, **RARELY):
            await until(lambda: all(crew.seen(task).status.is_terminal for task in tasks))

    asyncio.run(scenario())
    assert way.announced == []


def test_others_are_told_of_what_a_tracker_has_released() -> None:
    """Of a submitted task: a plain one waits for nobody, and one that was to be cancelled has ended."""
    way = Recording()
    tracker = Crew().tracker(wake_up=way)
    submitted, cancelled = (tracker.submit("note", **OWNER).task_id for _ in range(2))
    plain = tracker.create("index", **OWNER).task_id
    way.announced.clear()
    for task_id in (submitted, cancelled, plain):
        tracker.start(task_id, **OWNER)
    tracker.cancel(cancelled, **OWNER)
    for task_id in (cancelled, plain, submitted):
        tracker.release(task_id, **OWNER)
    assert way.announced == [submitted]
