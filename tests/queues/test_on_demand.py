"""OnDemandWorker: one permission, one task, and nobody waits for room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from task_tracker import TaskRecord
from task_tracker.records import TaskKey
from task_tracker.testing import FakeClock
from task_tracker.worker.single import OnDemandWorker, Visit
from tests.core.support import Gate
from tests.runtime.work import WORK, until
from tests.runtime.workers import Crew, Recording, network, no_thread_is_left


class Demand:
    """A worker, the store behind it, and what it announced."""

    def __init__(self) -> None:
        self.crew = Crew()
        self.way = Recording()
        self.tracker = self.crew.tracker(wake_up=self.way)

    def worker(self, **options: Any) -> OnDemandWorker:
        return OnDemandWorker(self.tracker, hooks=[self.crew.events.append], **options)

    def submit(self, task_type: str, **options: Any) -> TaskRecord:
        """By somebody who tells nobody."""
        return self.crew.submit(task_type, **options)

    def status(self, task: TaskRecord) -> str:
        return self.crew.seen(task).status.value


@pytest.fixture
def demand() -> Iterator[Demand]:
    WORK.begin()
    with no_thread_is_left():
        yield Demand()
        WORK.open()


def working(
    demand: Demand, work: Callable[[OnDemandWorker], Coroutine[Any, Any, None]], **options: Any
) -> None:
    async def main() -> None:
        async with demand.worker(**options) as worker:
            await work(worker)

    asyncio.run(main())


def test_nothing_runs_by_itself_and_each_permission_runs_one(demand: Demand) -> None:
    one, other = demand.submit("note"), demand.submit("note")

    async def work(worker: OnDemandWorker) -> None:
        await asyncio.sleep(0.05)
        assert WORK.runs == []
        assert await worker.run_next() == Visit("ran", one.key)
        assert demand.status(one) == "completed"
        assert demand.status(other) == "pending"
        assert await worker.run_next(other.key) == Visit("ran", other.key)
        assert await worker.run_next() == Visit("nothing")

    working(demand, work)
    assert not demand.way.announced


def test_who_does_not_work_runs_nothing(demand: Demand) -> None:
    demand.submit("note")
    assert asyncio.run(demand.worker().run_next()) == Visit("stopping")
    assert not demand.worker().has_room


def test_of_what_waits_the_store_chooses_and_the_one_spoken_of_is_announced_anew(demand: Demand) -> None:
    later, urgent = demand.submit("note"), demand.submit("note", priority=5)

    async def work(worker: OnDemandWorker) -> None:
        assert await worker.run_next(later.key) == Visit("ran", urgent.key)
        await until(lambda: demand.way.announced)
        assert demand.way.announced == [later.task_id]
        assert await worker.run_next(later.key) == Visit("ran", later.key)

    working(demand, work)
    assert demand.way.announced == [later.task_id]


def test_what_may_not_run_yet_and_what_nobody_here_knows_stay(demand: Demand) -> None:
    """[D148]"""
    tomorrow = demand.submit("note", not_before=demand.crew.clock.now() + 86_400)
    stranger = demand.submit("note", version=7, unregistered=True)

    async def work(worker: OnDemandWorker) -> None:
        assert await worker.run_next(tomorrow.key) == Visit("nothing")
        assert await worker.run_next(stranger.key) == Visit("nothing")

    working(demand, work)
    assert demand.status(tomorrow) == demand.status(stranger) == "pending"


def test_messages_of_tasks_that_ended_are_gone_or_run_elsewhere_do_nothing(demand: Demand) -> None:
    """[D118]"""
    done, elsewhere = demand.submit("note"), demand.submit("note")
    gone = TaskKey("acme", "alice", "never-there")

    async def work(worker: OnDemandWorker) -> None:
        assert await worker.run_next(done.key) == Visit("ran", done.key)
        demand.crew.crash(elsewhere.key)
        for key in (done.key, elsewhere.key, gone):
            assert await worker.run_next(key) == Visit("nothing")

    working(demand, work)
    assert WORK.begun == [done.task_id]


def test_who_comes_when_all_slots_are_taken_is_turned_away_and_hears_again(demand: Demand) -> None:
    """Each end announces two of those that wait, until no more wait than that."""
    tasks = [demand.submit("hold") for _ in range(5)]

    async def work(worker: OnDemandWorker) -> None:
        visits = [asyncio.create_task(worker.run_next(task.key)) for task in tasks[:2]]
        await until(lambda: len(WORK.runs) == 2)
        assert not worker.has_room
        for task in tasks[2:]:
            assert await worker.run_next(task.key) == Visit("full")
        WORK.open()
        await asyncio.gather(*visits)
        await until(lambda: len(demand.way.announced) >= 2)
        assert demand.way.announced[:2] == [task.task_id for task in tasks[2:4]]
        assert await worker.run_next(tasks[2].key) == Visit("ran", tasks[2].key)
        await until(lambda: tasks[4].task_id in demand.way.announced)
        said = len(demand.way.announced)
        assert await worker.run_next(tasks[3].key) == Visit("ran", tasks[3].key)
        assert await worker.run_next(tasks[4].key) == Visit("ran", tasks[4].key)
        assert len(demand.way.announced) == said, "nothing is owed any more"

    working(demand, work, concurrency=2)


def test_what_may_not_run_yet_is_not_owed(demand: Demand) -> None:
    """It hides nothing that may, and is no reason to go on announcing."""
    later = [demand.submit("hold", not_before=demand.crew.clock.now() + 86_400) for _ in range(4)]
    tasks = [demand.submit("hold") for _ in range(3)]

    async def work(worker: OnDemandWorker) -> None:
        first = asyncio.create_task(worker.run_next())
        await until(lambda: WORK.runs)
        assert await worker.run_next(tasks[1].key) == Visit("full")
        WORK.open()
        await first
        await until(lambda: demand.way.announced == [task.task_id for task in tasks[1:]])
        for task in tasks[1:]:
            assert await worker.run_next() == Visit("ran", task.key)
        assert await worker.run_next(later[0].key) == Visit("nothing")

    working(demand, work, concurrency=1)
    assert len(demand.way.announced) == 2


def test_what_could_not_be_announced_stays_owed(demand: Demand) -> None:
    tasks = [demand.submit("hold") for _ in range(3)]

    async def work(worker: OnDemandWorker) -> None:
        first = asyncio.create_task(worker.run_next())
        await until(lambda: WORK.runs)
        assert await worker.run_next(tasks[1].key) == Visit("full")
        demand.way.error = ConnectionError("Redis is away")
        WORK.open()
        await first
        await until(lambda: demand.tracker.wake_up_failures == 1)
        demand.way.error = None
        assert await worker.run_next(tasks[1].key) == Visit("ran", tasks[1].key)
        await until(lambda: demand.way.announced == [tasks[2].task_id])

    working(demand, work, concurrency=1)


def test_two_that_come_at_once_do_not_share_the_last_slot(demand: Demand) -> None:
    for _ in range(2):
        demand.submit("hold")

    async def work(worker: OnDemandWorker) -> None:
        visits = [asyncio.create_task(worker.run_next()) for _ in range(2)]
        done, _ = await asyncio.wait(visits, return_when=asyncio.FIRST_COMPLETED)
        assert [visit.result() for visit in done] == [Visit("full")]
        WORK.open()
        await asyncio.gather(*visits)

    working(demand, work, concurrency=1)


def test_a_limit_over_all_workers_holds_and_its_end_makes_room(demand: Demand) -> None:
    one, other = demand.submit("hold"), demand.submit("hold")

    async def work(worker: OnDemandWorker) -> None:
        first = asyncio.create_task(worker.run_next(one.key))
        await until(lambda: WORK.runs)
        assert await worker.run_next(other.key) == Visit("nothing")
        assert worker.has_room
        WORK.open()
        await first
        await until(lambda: demand.way.announced == [other.task_id])
        assert await worker.run_next(other.key) == Visit("ran", other.key)

    working(demand, work, max_running={"hold": 1})


def test_a_store_that_is_away_costs_nothing_but_the_message(demand: Demand) -> None:
    """[D110]"""
    task = demand.submit("note")

    async def work(worker: OnDemandWorker) -> None:
        network(demand.tracker).fail(forever=True)
        assert await worker.run_next(task.key) == Visit("away")
        demand.crew.clock.advance(1)
        assert worker.status().store_away_seconds == 1
        network(demand.tracker).heal()
        assert worker.has_room
        assert await worker.run_next(task.key) == Visit("ran", task.key)
        await until(lambda: worker.status().ready)

    working(demand, work)


def test_who_is_cancelled_has_his_handler_stopped_and_waits_for_its_end(demand: Demand) -> None:
    """[D028] [D047] It was shut down, not cancelled by anybody: only what may run twice goes back."""
    task = demand.submit("hold")

    async def work(worker: OnDemandWorker) -> None:
        visit = asyncio.create_task(worker.run_next())
        await until(lambda: WORK.runs)
        visit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await visit
        assert demand.crew.seen(task).error_code == "interrupted"
        assert worker.has_room
        assert worker.status().state == "working"

    working(demand, work)
    assert WORK.stopped == [(task.task_id, "CancelledError")]


def test_cancelled_again_it_waits_no_longer(demand: Demand) -> None:
    task = demand.submit("hold_thread")

    async def work(worker: OnDemandWorker) -> None:
        visit = asyncio.create_task(worker.run_next())
        await until(lambda: WORK.runs)
        visit.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not visit.done()
        visit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await visit
        assert demand.status(task) == "running"
        WORK.open()

    working(demand, work)
    assert demand.status(task) != "running"


def test_a_claim_that_comes_back_when_nobody_waits_any_more_is_given_back(demand: Demand) -> None:
    task = demand.submit("note")
    gate = Gate()
    store = network(demand.tracker)
    store.blocking = True  # type: ignore[misc]  # a thread, as for a store that is far away
    store.interrupt(gate.pass_through, on="claim", after=True)

    async def work(worker: OnDemandWorker) -> None:
        visit = asyncio.create_task(worker.run_next())
        await until(gate.entered.is_set)
        visit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await visit
        gate.open()
        await until(lambda: demand.status(task) == "pending" and worker.has_room)

    working(demand, work)
    assert WORK.runs == []


def test_it_settles_what_others_left_and_stops_like_any_worker(demand: Demand) -> None:
    """[D003]"""
    lost = demand.crew.crashed("note")
    clock: FakeClock = demand.crew.clock

    async def work(worker: OnDemandWorker) -> None:
        clock.advance(31)
        assert (await worker.rescue()).failed == 1

    working(demand, work)
    assert demand.crew.seen(lost).error_code == "holder_lost"
    waiting = demand.submit("note")
    assert demand.worker().run_once() == 1
    assert demand.status(waiting) == "completed"
