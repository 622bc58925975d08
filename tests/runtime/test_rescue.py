"""What becomes of tasks whose worker has stopped: rescued by other workers, or left to those who know them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from task_tracker import HandlerRegistry, LeaseLost, StoreUnavailable, TaskStatus
from task_tracker.reconciler import Reconciled
from task_tracker.worker.loop import Claimer
from task_tracker.worker.rescuing import BATCH, Rescued
from task_tracker.worker.shift import Shift
from task_tracker.worker.worker import Worker
from tests.core.support import OWNER
from tests.runtime.work import WORK, registry, until
from tests.runtime.workers import BEAT, LEASE, Crew, InThread, network

DAY = 86_400.0


pytestmark = pytest.mark.usefixtures("fresh_work")


def rescue(worker: Worker) -> Rescued:
    return asyncio.run(worker.rescue())


# ---- what happens to it ----------------------------------------------------------------------------------


def test_a_task_that_may_not_run_twice_fails_through_its_hook(crew: Crew) -> None:
    task = crew.crashed("note")
    worker = crew.worker()
    crew.clock.advance(LEASE)
    assert rescue(worker) == Rescued()
    crew.clock.advance(1)
    assert rescue(worker) == Rescued(failed=1)
    ended = crew.seen(task)
    assert (ended.status, ended.error_code) == (TaskStatus.FAILED, "holder_lost")
    assert "killed" not in str(ended.error), "names of hosts are for the log"
    assert ended.attempt is not None
    assert (ended.attempt.count, ended.attempt.epoch) == (1, 2), "settling is no attempt"
    assert WORK.failures == [(task.task_id, "holder_lost", (round(task.created_at * 1e6), 2))]
    assert WORK.runs == []
    assert [event.facts for event in crew.told("rescued")] == [{"outcome": "failed"}]
    assert worker.run_once() == 0


def test_an_idempotent_task_is_tried_again_after_a_pause(crew: Crew) -> None:
    """[D120] The work's own limit is an hour; it is back after the lease and a sweep, and blocks nobody that long."""
    handlers = registry(idempotent=True, retry_seconds=4.0)
    tracker = crew.tracker(handlers)
    task = tracker.submit("note", dedupe=True, timeout_seconds=3600, **OWNER).record
    crew.crash(task.key)
    crew.clock.advance(LEASE + 1)
    worker = crew.worker(crew.tracker(handlers))
    assert rescue(worker) == Rescued(retried=1)
    waiting = crew.seen(task)
    assert (waiting.status, waiting.not_before) == (TaskStatus.PENDING, crew.clock.now() + 4.0)
    assert worker.run_once() == 0, "not before its time"
    crew.clock.advance(4)
    assert worker.run_once() == 1
    assert WORK.runs == [(task.task_id, 2)]
    assert crew.seen(task).status is TaskStatus.COMPLETED
    assert WORK.failures == []
    assert tracker.submit("note", dedupe=True, **OWNER).created, "its key is free again"


def test_a_task_that_kills_its_workers_is_not_tried_for_ever(crew: Crew) -> None:
    """[D012] Each claim counts, so the third crash is the last one."""
    task = crew.submit("note")
    handlers = registry(idempotent=True, max_attempts=3, retry_seconds=0.001)
    worker = crew.worker(crew.tracker(handlers))
    for outcome in (Rescued(retried=1), Rescued(retried=1), Rescued(failed=1)):
        crew.crash(task.key)
        crew.clock.advance(LEASE + 1)
        assert rescue(worker) == outcome
        crew.clock.advance(1)
    ended = crew.seen(task)
    assert (ended.status, ended.error_code) == (TaskStatus.FAILED, "crash_loop")
    assert ended.attempt is not None
    assert ended.attempt.count == 3
    assert [code for _, code, _ in WORK.failures] == ["crash_loop"]
    assert WORK.runs == []


def test_it_can_be_cancelled_between_two_crashes(crew: Crew) -> None:
    """[D012] While it waits for the next attempt it is a pending task like any other."""
    task = crew.crashed("note")
    worker = crew.worker(crew.tracker(registry(idempotent=True)))
    crew.clock.advance(LEASE + 1)
    assert rescue(worker) == Rescued(retried=1)
    cancelled = crew.tracker().cancel(task.task_id, **OWNER)
    assert cancelled is not None
    assert cancelled.status is TaskStatus.CANCELLED
    crew.clock.advance(LEASE)
    assert worker.run_once() == 0
    assert WORK.runs == []


def test_a_task_that_was_to_be_cancelled_ends_so(crew: Crew) -> None:
    task = crew.crashed("note")
    crew.store.request_cancel(task.key)
    crew.clock.advance(LEASE + 1)
    assert rescue(crew.worker(crew.tracker(registry(idempotent=True)))) == Rescued(cancelled=1)
    assert crew.seen(task).status is TaskStatus.CANCELLED
    assert WORK.failures == []


# ---- what is not touched -----------------------------------------------------------------------------------


def test_a_version_that_is_not_known_here_is_left_alone_and_reported_once(
    crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    """[D148] The old worker of a rolling deploy; the new one knows what to do."""
    new = HandlerRegistry()
    for version in (1, 2):
        new.register("note", version=version, handler="tests.runtime.work:note")
    crashed = crew.tracker(new).submit("note", version=2, **OWNER).record
    crew.crash(crashed.key)
    waiting = crew.tracker(new).submit("note", version=2, **OWNER).record
    old_one = crew.tracker(new).submit("note", version=1, **OWNER).record
    crew.clock.advance(LEASE + 1)
    old = crew.worker()
    with caplog.at_level(logging.WARNING, "task_tracker"):
        assert rescue(old) == Rescued(left=1)
        assert old.run_once() == 1
    assert WORK.begun == [old_one.task_id]
    assert crew.seen(crashed).status is TaskStatus.RUNNING
    assert crew.seen(waiting).status is TaskStatus.PENDING
    assert crew.told("kind_unknown")[0].facts == {
        "task_type": "note",
        "version": 2,
        "waiting": 2,
    }
    assert "note version 2" in caplog.text
    assert crew.worker(crew.tracker(new)).run_once() == 1
    assert crew.seen(waiting).status is TaskStatus.COMPLETED
    assert crew.seen(crashed).error_code == "holder_lost"


def test_unknown_kinds_are_told_once_for_as_long_as_they_wait(crew: Crew) -> None:
    """[D148] Not at every heartbeat, and again if they come back."""
    strangers = HandlerRegistry()
    strangers.register("other", handler="tests.runtime.work:note")
    task = crew.tracker(strangers).submit("other", **OWNER).record

    async def scenario() -> None:
        async with crew.worker(rescue=False) as worker:
            for _ in range(3):
                crew.clock.advance(60)
                await worker.rescue()
            assert worker.status().unknown_kinds == (("other", 1),)
            await until(lambda: crew.told("kind_unknown"))
            crew.tracker().cancel(task.task_id, **OWNER)
            crew.clock.advance(60)
            await worker.rescue()
            assert worker.status().unknown_kinds == ()
            crew.tracker(strangers).submit("other", **OWNER)
            crew.clock.advance(60)
            await worker.rescue()

    asyncio.run(scenario())
    assert len(crew.told("kind_unknown")) == 2


def test_unknown_kinds_are_told_of_behind_any_number_that_are_known(crew: Crew) -> None:
    """As many wait before it as a pass looks at; these are not looked at."""
    tracker = crew.tracker()
    for number in range(BATCH):
        tracker.submit("note", resource_id=str(number), **OWNER)
    strangers = HandlerRegistry()
    strangers.register("note", version=2, handler="tests.runtime.work:note")
    for _ in range(2):
        crew.tracker(strangers).submit("note", **OWNER)

    async def scenario() -> None:
        async with crew.worker(rescue=False, gates={"note": lambda: False}) as worker:
            await worker.rescue()
            assert worker.status().unknown_kinds == (("note", 2),)

    asyncio.run(scenario())
    assert [event.facts for event in crew.told("kind_unknown")] == [
        {"task_type": "note", "version": 2, "waiting": 2}
    ]


def test_work_that_takes_longer_than_any_limit_is_left_alone(crew: Crew) -> None:
    """[D030] Live for five leases: heard of, so nobody takes it."""
    task = crew.submit("hold")
    other = crew.worker()
    with InThread(crew.worker()):
        WORK.wait_begun()
        for _ in range(5):
            crew.live(LEASE)
            assert rescue(other) == Rescued()
        WORK.open()
        crew.wait_ended(task)
    assert WORK.runs == [(task.task_id, 1)]
    assert crew.seen(task).status is TaskStatus.COMPLETED


def test_a_task_for_later_is_run_once_at_its_time(crew: Crew) -> None:
    """[D030] Scheduled three leases ahead: not taken for lost, not delivered twice."""
    task = crew.submit("note", not_before=crew.clock.now() + 3 * LEASE)
    workers = crew.worker(), crew.worker()
    for _ in range(3):
        assert [worker.run_once() for worker in workers] == [0, 0]
        crew.clock.advance(LEASE)
    assert sum(worker.run_once() for worker in workers) == 1
    assert WORK.runs == [(task.task_id, 1)]


def test_a_claim_that_has_not_begun_is_held_from_the_claim_on(crew: Crew) -> None:
    """[D017] A sweep in the gap between claim and start finds nothing; too late a start finds that it is lost."""
    task = crew.submit("note")
    other = crew.worker()

    async def scenario() -> None:
        shift = Shift(crew.worker()._terms)
        claimer: Claimer = shift._claims._claimer
        ((lease, stored),) = claimer.claim(1).claimed
        crew.clock.until_waiting(1)
        crew.clock.advance(BEAT)  # its heartbeat comes although it has not begun
        crew.clock.until_waiting(1)
        crew.clock.advance(LEASE - BEAT)
        crew.clock.until_waiting(1)
        assert await other.rescue() == Rescued()
        shift._heartbeats.stop()  # frozen, as a whole process is
        crew.clock.advance(LEASE + 1)
        assert await other.rescue() == Rescued(failed=1)
        shift._slots.take()
        shift.crew.start(lease, stored)
        await until(lambda: not shift.running)
        await shift.stop(0.0)

    asyncio.run(scenario())
    assert WORK.runs == [], "no line of the handler has run"
    assert crew.seen(task).error_code == "holder_lost"


def test_what_waits_for_a_worker_needs_no_heartbeat_and_is_handed_over_once(crew: Crew) -> None:
    """[D034] Submitted, left for two leases, adopted; not adopted again, and the old token is dead."""
    task = crew.submit("note")
    crew.clock.advance(2 * LEASE)
    worker = crew.worker(crew.tracker(registry(idempotent=True)))
    assert rescue(worker) == Rescued()
    taken = crew.store.claim(holder="one", task_types=[("note", 1)])
    assert taken is not None
    assert crew.store.claim(holder="two", task_types=[("note", 1)]) is None
    crew.clock.advance(LEASE + 1)
    assert rescue(worker) == Rescued(retried=1)
    lease, stored = taken
    with pytest.raises(LeaseLost):
        crew.store.commit(lease, stored.record)
    crew.clock.advance(1)
    assert worker.run_once() == 1
    assert WORK.runs == [(task.task_id, 2)]


# ---- trouble -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ConnectionError("reset by peer"), StoreUnavailable("away")])
def test_an_error_of_some_costs_the_others_nothing(crew: Crew, error: Exception) -> None:
    """[D006] 250 orphans, and the store fails for the 37th to 60th: the next pass has the rest, none is lost."""
    tasks = [crew.crashed("note") for _ in range(250)]
    crew.clock.advance(LEASE + 1)
    tracker = crew.tracker()
    worker = crew.worker(tracker)
    seen = 0

    def fail() -> None:
        nonlocal seen
        seen += 1
        if 37 <= seen <= 60:
            raise error.with_traceback(None)

    network(tracker).interrupt(fail, on="take_over", forever=True)
    first = rescue(worker)
    assert first == Rescued(failed=226, errors=24)
    network(tracker).heal()
    assert rescue(worker) == Rescued(failed=24)
    assert {crew.seen(task).error_code for task in tasks} == {"holder_lost"}
    assert len(WORK.failures) == 250


def test_a_pass_that_hangs_does_not_keep_the_worker_from_starting_or_working(crew: Crew) -> None:
    """[D015] The store never answers the rescuer; the worker starts, claims, and says in its status what hangs."""
    tracker = crew.tracker()
    tracker.store.blocking = True  # type: ignore[misc]  # as a disk is
    network(tracker).interrupt(lambda: WORK.wait_open("rescuer"), on="recover", forever=True)
    task = crew.submit("note")
    worker = crew.worker(tracker)

    async def scenario() -> None:
        await worker.start()
        await until(lambda: crew.seen(task).status is TaskStatus.COMPLETED)
        await until(lambda: worker.status().ready)
        await until(lambda: network(tracker).calls["recover"])
        crew.clock.advance(61)
        status = worker.status()
        assert (status.ready, status.rescuing_seconds) == (False, 61.0)
        WORK.open("rescuer")
        await worker.stop()

    asyncio.run(scenario())


# ---- the tracker's own reconciler ----------------------------------------------------------------------------


def reconcile(crew: Crew, **options: Any) -> Reconciled:
    return crew.tracker(**options).reconcile()


def test_the_trackers_reconciler_leaves_handlers_tasks_to_workers(crew: Crew) -> None:
    task = crew.crashed("note")
    plain = crew.tracker().create("note", **OWNER)
    tracker = crew.tracker(holder="web")
    tracker.start(plain.task_id, **OWNER)
    assert tracker.access.ownership is not None
    tracker.access.ownership.keeper.stop()
    crew.clock.advance(LEASE + 1)
    assert reconcile(crew) == Reconciled(holder_lost=1), "the plain one"
    assert crew.seen(task).status is TaskStatus.RUNNING
    assert rescue(crew.worker()) == Rescued(failed=1)
    assert crew.seen(task).status is TaskStatus.FAILED


def test_a_task_for_which_no_worker_ever_comes_ends_all_the_same(crew: Crew) -> None:
    """Nothing stays running for ever, also if the handler of its version is gone for good."""
    task = crew.crashed("note")
    crew.clock.advance(DAY)
    assert reconcile(crew) == Reconciled()
    crew.clock.advance(1)
    assert reconcile(crew, start_within_seconds=None) == Reconciled(holder_lost=1)
    assert crew.seen(task).error_code == "holder_lost"


def test_workers_have_at_least_ten_leases_to_come(crew: Crew) -> None:
    crew.crashed("note")
    crew.clock.advance(10 * LEASE)
    assert reconcile(crew, start_within_seconds=1) == Reconciled()
    crew.clock.advance(1)
    assert reconcile(crew, start_within_seconds=1) == Reconciled(holder_lost=1)
