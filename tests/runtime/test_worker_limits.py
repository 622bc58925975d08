"""What a worker holds back: limits over all workers, paused types, gates, the relay; and what it says of itself."""

from __future__ import annotations

import asyncio
import logging
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from stores import InMemoryTaskStore
from stores.files.lease.store import LeaseTaskStore
from task_tracker import SettingsError, TaskStatus
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.store import LeaseStore
from task_tracker.testing import FakeClock
from task_tracker.wakeups import InProcessWakeUp
from task_tracker.worker import watching
from task_tracker.worker.hooks import EVENTS, Hooks
from task_tracker.worker.listening import Listener
from task_tracker.worker.pauses import Pauses
from task_tracker.worker.readiness import Facts, LoopWatch
from task_tracker.worker.retrying import attempts_allowed, may_retry, retry_pause
from task_tracker.worker.slots import Slots
from tests.core.support import OWNER, record_of
from tests.runtime.work import WORK, registry, until
from tests.runtime.workers import THREADS_OF_ONE, Crew, Recording, network

pytestmark = pytest.mark.usefixtures("fresh_work")


def lease_store(kind: str, root: Path) -> LeaseStore:
    return InMemoryTaskStore() if kind == "memory" else LeaseTaskStore(root, durability="none")


# ---- limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "lease"])
@pytest.mark.parametrize("most", [1, 2])
def test_a_limit_over_all_workers_is_never_exceeded(kind: str, most: int, tmp_path: Path) -> None:
    """Three workers with four slots each; the store counts, the handlers are the witnesses."""
    crew = Crew(SYSTEM_CLOCK, lease_store(kind, tmp_path))
    wake_up = InProcessWakeUp()
    workers = [
        crew.worker(crew.tracker(wake_up=wake_up), max_running={"hold": most}, poll_seconds=(0.001, 0.01))
        for _ in range(3)
    ]
    for _ in range(12):
        crew.submit("hold")

    async def scenario() -> None:
        for worker in workers:
            await worker.start()
        for done in range(12):
            await until(lambda: WORK.at_once == min(most, 12 - done))  # noqa: B023  # at once
            WORK.open(next(task for task in WORK.begun if not WORK.is_open(task)))
            await until(lambda: len(WORK.ended) == done + 1)  # noqa: B023
        for worker in workers:
            await worker.stop()

    asyncio.run(scenario())
    assert WORK.most_at_once == most
    assert len(set(WORK.begun)) == 12


def test_the_smallest_limit_of_a_types_handlers_counts_unless_the_worker_says_otherwise(crew: Crew) -> None:
    handlers = registry(max_running=3)
    handlers.register("note", version=2, handler="tests.runtime.work:note", max_running=2)
    assert crew.worker(crew.tracker(handlers))._terms.limits.max_running["note"] == 2
    told = crew.worker(crew.tracker(handlers), max_running={"note": 7})
    assert told._terms.limits.max_running["note"] == 7


def test_the_end_of_a_task_makes_another_worker_take_what_the_limit_kept_waiting() -> None:
    """The relay: with polling every 1,000 seconds each end announces who comes next, and none waits for a sweep."""
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore())
    wake_up = InProcessWakeUp()
    tracker = crew.tracker(wake_up=wake_up)
    workers = [
        crew.worker(
            tracker, max_running={"note": 1}, concurrency=1, poll_seconds=(1000.0, 1000.0), wake_up=wake_up
        )
        for _ in range(2)
    ]

    async def scenario() -> None:
        for worker in workers:
            await worker.start()
        for number in range(20):
            tracker.submit("note", number, **OWNER)
        await until(lambda: len(WORK.ended) == 20)
        for worker in workers:
            await worker.stop()

    asyncio.run(scenario())
    assert WORK.most_at_once == 1


def test_the_relay_names_only_what_may_run_now() -> None:
    """Older ones for later are in nobody's way, and what else waits is not read."""
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore())
    way = Recording()
    tracker = crew.tracker(wake_up=way)
    for _ in range(3):
        tracker.submit("hold", **OWNER, not_before=SYSTEM_CLOCK.now() + 86_400, priority=9)
    tasks = [tracker.submit("hold", **OWNER).record.task_id for _ in range(4)]

    async def scenario() -> None:
        async with crew.worker(tracker, max_running={"hold": 1}, rescue=False):
            await until(lambda: WORK.begun == tasks[:1])
            way.announced.clear()
            WORK.open(tasks[0])
            await until(lambda: WORK.begun == tasks[:2])
            await until(lambda: tasks[2] in way.announced)
            WORK.open()
            await until(lambda: len(WORK.ended) == 4)

    asyncio.run(scenario())
    assert set(way.announced) <= set(tasks)
    assert network(tracker).calls["unclaimed"] == 0


# ---- pausing -----------------------------------------------------------------------------------------------


def test_nothing_of_a_paused_type_is_claimed_until_it_is_resumed(crew: Crew) -> None:
    """[D154] Others go on."""
    worker = crew.worker(poll_seconds=(0.001, 0.001))
    worker.pause("note")
    held, other = crew.submit("note"), crew.submit("boom")

    async def scenario() -> None:
        async with worker:
            await until(lambda: crew.seen(other).status is TaskStatus.FAILED)
            assert worker.status().paused == ("note",)
            worker.resume("note")
            await until(lambda: crew.seen(held).status is TaskStatus.COMPLETED)
            assert worker.status().paused == ()

    asyncio.run(scenario())
    assert WORK.begun == [other.task_id, held.task_id]


@pytest.mark.parametrize("broken", [False, True])
def test_work_waits_for_what_it_needs_and_does_not_fail(
    crew: Crew, broken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """[D154] A dependency says that it is unhealthy, or cannot even say so: deferred, not failed."""
    healthy = False

    def gate() -> bool:
        if broken and not healthy:
            raise ConnectionError("no answer")
        return healthy

    worker = crew.worker(gates={"note": gate})
    task = crew.submit("note")
    with caplog.at_level(logging.INFO, "task_tracker"):
        for _ in range(3):
            assert worker.run_once() == 0
    assert worker.status().gated == ("note",)
    assert crew.seen(task).status is TaskStatus.PENDING
    assert caplog.text.count("the gate of note failed") == (1 if broken else 0)
    assert caplog.text.count("have to wait for what they need: note") == 1
    healthy = True
    assert worker.run_once() == 1
    assert worker.status().gated == ()


# ---- what it says ------------------------------------------------------------------------------------------


def test_one_wedged_task_shows_and_costs_the_others_nothing(crew: Crew) -> None:
    """[D160] Ages and backlog are there to see; every other key goes on."""
    wedged = crew.submit("hold")
    worker = crew.worker(concurrency=2)

    async def scenario() -> None:
        async with worker:
            await until(lambda: WORK.runs)
            crew.clock.until_waiting(THREADS_OF_ONE)
            crew.clock.advance(10)
            crew.clock.until_waiting(THREADS_OF_ONE)
            crew.clock.advance(5)
            await until(lambda: worker.status().blocked_loop_seconds == 0)
            for _ in range(3):
                task = crew.submit("note")
                await until(lambda task=task: crew.seen(task).status is TaskStatus.COMPLETED)  # type: ignore[misc]
            worker.pause("note")
            crew.submit("note")
            await worker.rescue()
            status = worker.status()
            assert status.ready
            assert (status.running, status.slots) == (1, 2)
            assert status.oldest_running_seconds == 15
            assert status.last_heartbeat_seconds == 5
            assert (status.backlog, status.running_everywhere) == (1, 1)
            assert status.oldest_running_everywhere_seconds == 15
            assert status.counted_seconds == 0
            WORK.open()

    asyncio.run(scenario())
    assert crew.seen(wedged).status is TaskStatus.COMPLETED


def test_facts_of_the_server_count_and_do_not_live_for_ever(crew: Crew) -> None:
    """[D160] What has stopped reporting is not well."""
    worker = crew.worker()

    async def scenario() -> None:
        async with worker:
            assert worker.status().ready
            worker.report("index", True, "42 shards", life_seconds=20)
            assert worker.status().ready
            worker.report("mail", False, "no answer")
            status = worker.status()
            assert not status.ready
            assert status.facts["mail"].detail == "no answer"
            worker.withdraw("mail")
            assert worker.status().ready
            crew.clock.advance(21)
            fact = worker.status().facts["index"]
            assert (fact.ready, fact.age_seconds) == (False, 21)
            assert "not heard of for more than 20 s" in fact.detail

    asyncio.run(scenario())
    assert not worker.status().ready


def test_a_worker_that_does_not_work_is_not_ready(crew: Crew) -> None:
    status = crew.worker(name="indexer").status()
    assert (status.name, status.state, status.ready, status.running) == ("indexer", "new", False, 0)


def test_every_event_is_known(crew: Crew) -> None:
    crew.submit("note")
    crew.submit("boom")
    crew.worker().run_once()
    assert {event.name for event in crew.events} <= set(EVENTS)
    assert [event.facts["outcome"] for event in crew.told("attempt_ended")] == ["done", "failed"]


def test_without_hooks_nothing_is_told() -> None:
    Hooks().tell("heartbeat", leases=1)


# ---- small parts -------------------------------------------------------------------------------------------


def test_pauses_double_up_to_the_longest() -> None:
    pauses = Pauses(FakeClock(), 0.5, 3.0)
    assert [pauses.next() for _ in range(4)] == [0.5, 1.0, 2.0, 3.0]
    pauses.restart()
    assert pauses.next() == 0.5


def test_retries_pause_longer_each_time_up_to_a_limit() -> None:
    handler = registry(idempotent=True, retry_seconds=2.0, retry_limit_seconds=10.0).get("note", 1)
    assert handler is not None
    assert [retry_pause(handler, attempts, FakeClock()) for attempts in (1, 2, 3, 4, 5000)] == [
        2,
        4,
        8,
        10,
        10,
    ]


def test_only_idempotent_work_has_more_than_one_attempt() -> None:
    once, often = registry().get("note", 1), registry(idempotent=True).get("note", 1)
    assert once is not None
    assert often is not None
    record = record_of()
    assert attempts_allowed(once, record.changed(max_attempts=5)) == 1
    assert attempts_allowed(often, record) == 3
    assert attempts_allowed(often, record.changed(max_attempts=5)) == 5
    assert [may_retry(often, record, attempts) for attempts in (2, 3)] == [True, False]


def test_slots_are_counted() -> None:
    freed: list[int] = []
    slots = Slots(2, lambda: freed.append(slots.free))
    slots.take()
    slots.take()
    assert (slots.taken, slots.free) == (2, 0)
    slots.give_back()
    assert freed == [1]


def test_facts_are_replaced_by_name() -> None:
    facts = Facts(FakeClock())
    facts.report("a", False)
    facts.report("a", True, "better")
    facts.withdraw("never there")
    assert [(name, fact.ready, fact.detail) for name, fact in facts.all().items()] == [("a", True, "better")]


def test_a_listener_ends_although_it_waits() -> None:
    heard = threading.Event()
    wake_up = InProcessWakeUp()
    listener = Listener(wake_up, SYSTEM_CLOCK, heard.set)
    assert listener.finish(0.0), "safe before it was started"
    listener.start()
    wake_up.wake([])
    assert heard.wait(30)
    assert listener.finish(30)


def test_a_watch_over_a_loop_that_is_gone_ends() -> None:
    clock = FakeClock()

    async def make() -> LoopWatch:
        return LoopWatch(asyncio.get_running_loop(), clock, Hooks())

    assert asyncio.run(make()).run_once() is None


def test_a_directory_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no directory"):
        watching.DirectoryWatch(tmp_path / "none")


def test_new_entries_wake_who_waits(tmp_path: Path) -> None:
    """With the package; without it the error says which extra to install."""
    if find_spec("watchfiles") is None:
        with pytest.raises(SettingsError, match=r"durable-task-tracker\[watch\]"):
            watching.DirectoryWatch(tmp_path)
        return
    store = LeaseTaskStore(tmp_path, durability="none")
    crew = Crew(SYSTEM_CLOCK, store)
    control = tmp_path / "local" / ".task_tracker"
    watch = watching.DirectoryWatch(control / "ready", control / "later")
    watch.listen()
    assert watch.until_listening(30)
    tracker = crew.tracker()

    async def scenario() -> None:
        async with crew.worker(tracker, wake_up=watch, poll_seconds=(1000.0, 1000.0)):
            for number in range(3):
                tracker.submit("note", number, **OWNER)
                await until(lambda number=number: len(WORK.ended) > number)  # type: ignore[misc]
            tracker.submit("note", **OWNER, not_before=crew.clock.now() + 0.2)
            await until(lambda: len(WORK.ended) == 4)

    asyncio.run(scenario())
    watch.close()
    watch.close()
