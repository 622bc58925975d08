"""Workers on this store: they take, beat, commit and end over real connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.records import TaskStatus
from tests.core.support import OWNER
from tests.postgres.grounds import Ground
from tests.runtime.work import WORK, registry
from tests.runtime.workers import Crew, InThread, no_thread_is_left


@pytest.fixture
def crew(ground: Ground) -> Iterator[Crew]:
    WORK.begin()
    with no_thread_is_left(), closing(ground.store(lease_seconds=30, heartbeat_seconds=0.1)) as store:
        yield Crew(SYSTEM_CLOCK, store)


def test_two_workers_share_the_work(crew: Crew) -> None:
    """Each task once, and its result is there for everybody. [D095]"""
    tasks = [crew.submit("note", {"n": number}) for number in range(30)]
    with InThread(crew.worker(concurrency=3)), InThread(crew.worker(concurrency=3)):
        ended = [crew.wait_ended(task) for task in tasks]
    assert [task.result for task in ended] == [{"n": number} for number in range(30)]
    assert sorted(WORK.begun) == sorted(task.task_id for task in tasks)


def test_limit_over_all_workers(crew: Crew) -> None:
    for _ in range(12):
        crew.submit("note")
    limits = {"note": 1}
    one, other = (crew.worker(concurrency=3, max_running=limits) for _ in range(2))
    with InThread(one), InThread(other):
        WORK.wait_begun(12)
    assert WORK.most_at_once == 1


def test_running_handler_is_told_of_a_cancel_at_a_heartbeat(crew: Crew) -> None:
    task = crew.submit("hold")
    with InThread(crew.worker()):
        WORK.wait_begun()
        assert crew.store.request_cancel(task.key).record.status is TaskStatus.CANCELLING
        assert crew.wait_ended(task).status is TaskStatus.CANCELLED
    assert WORK.stopped == [(task.task_id, "CancelledError")]


def test_handler_that_runs_longer_than_a_lease_keeps_it(crew: Crew, ground: Ground) -> None:
    """Heartbeats come while it works; between them most of a term may pass. [D019] [D030]"""
    task = crew.submit("hold")
    with InThread(crew.worker()):
        WORK.wait_begun()
        for _ in range(5):
            before = ground.run("SELECT heartbeat_at FROM {tasks}")
            ground.lapse(20)
            while ground.run("SELECT heartbeat_at FROM {tasks}") <= before:
                assert crew.store.expired() == []
        WORK.open()
        assert crew.wait_ended(task).status is TaskStatus.COMPLETED


def test_task_of_a_worker_that_died_is_tried_again_by_another(crew: Crew, ground: Ground) -> None:
    """[D003] [D006] [D030] One lease after it was heard of last, and a pass."""
    handlers = registry(idempotent=True, retry_seconds=0.01)
    task = crew.tracker(handlers).submit("note", **OWNER).record
    crew.crash(task.key)
    ground.lapse(31)
    with InThread(crew.worker(crew.tracker(handlers))):
        ended = crew.wait_ended(task)
    assert ended.status is TaskStatus.COMPLETED
    assert WORK.runs == [(task.task_id, 2)]


def test_crash_blocks_no_resource_for_longer_than_a_lease(crew: Crew, ground: Ground) -> None:
    """However long the task was allowed to run. [D120]"""
    tracker = crew.tracker(registry(timeout_seconds=3600))
    task = tracker.submit("note", resource_id="r", dedupe=True, **OWNER).record
    crew.crash(task.key)
    assert not tracker.submit("note", resource_id="r", dedupe=True, **OWNER).created
    ground.lapse(31)
    assert crew.worker(tracker).run_once() == 0
    assert crew.seen(task).error_code == "holder_lost"
    assert tracker.submit("note", resource_id="r", dedupe=True, **OWNER).created


def test_task_for_later_is_run_once_at_its_time(crew: Crew, ground: Ground) -> None:
    """[D030] Scheduled three leases ahead: it is not taken for lost meanwhile, and not delivered twice."""
    now = float(ground.run("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0])
    task = crew.submit("note", not_before=now + 90)
    worker = crew.worker()
    for _ in range(3):
        ground.lapse(29)
        worker.run_once()
        assert WORK.runs == []
        assert crew.seen(task).status is TaskStatus.PENDING
        ground.bring_forward(29)
    ground.bring_forward(4)
    assert worker.run_once() == 1
    assert worker.run_once() == 0
    assert WORK.runs == [(task.task_id, 1)]
    assert crew.seen(task).status is TaskStatus.COMPLETED
