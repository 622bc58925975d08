"""Single situations with real worker processes: killed, frozen, told to stop. Nothing here waits for luck."""

from __future__ import annotations

import signal
from typing import Final

import pytest

from task_tracker import TaskStatus
from tests.core.support import OWNER
from tests.runtime.processes.program import Place, wait_for
from tests.runtime.processes.tasks import go

TERMS_TO_OUTLIVE: Final = [(4.0, 0.2), pytest.param((12.0, 2.0), marks=pytest.mark.slow)]
"""Leases and heartbeats for those who wait longer than a lease: a process that a busy machine has let stand still for
that long has lost its tasks, as it should."""


def test_what_a_killed_worker_held_is_settled_by_another(place: Place) -> None:
    """[D120] kill -9 in the middle of two tasks: one may run again and does, the other fails through its hook."""
    once, again = place.submit("hold"), place.submit("again")
    with place.start() as killed:
        place.wait_begun(2)
        killed.kill()
    place.expire()
    go(place.log, again.task_id)
    with place.start():
        assert place.wait_ended(once).error_code == "holder_lost"
        assert place.wait_ended(again).status is TaskStatus.COMPLETED
    assert (place.times_begun(again), place.times_begun(once)) == (2, 1)
    assert [(line["task"], line["code"]) for line in place.lines("on_failure")] == [
        (once.task_id, "holder_lost")
    ]


def test_a_frozen_worker_is_fenced_off_when_it_wakes(place: Place) -> None:
    """SIGSTOP for longer than a lease; its late result is refused, and the other's stands."""
    task = place.submit("again")
    with place.start() as frozen:
        place.wait_begun()
        frozen.freeze()
        place.expire()
        with place.start() as other:
            place.wait_begun(2)
            go(place.log, task.task_id)
            ended = place.wait_ended(task)
            frozen.thaw()
            wait_for(lambda: len(place.lines("end")) + len(place.lines("stopped")) == 2, "both have stopped")
            assert frozen.terminate() == 0
            assert other.terminate() == 0
    assert place.seen(task) == ended
    assert ended.attempt is not None
    fences = {line["pid"]: line["fence"] for line in place.lines("begin")}
    assert ended.attempt.epoch == fences[other.pid][1] > fences[frozen.pid][1]


def test_a_task_that_kills_its_worker_ends_after_three_attempts(place: Place) -> None:
    """[D012] A supervisor starts the worker again each time it dies."""
    task = place.submit("crash")
    for number in (1, 2, 3):
        with place.start() as worker:
            assert worker.wait() == 9
        assert place.times_begun(task) == number
        assert place.seen(task).status is TaskStatus.RUNNING
        place.expire()
    with place.start() as worker:
        ended = place.wait_ended(task)
        assert worker.terminate() == 0
    assert (ended.status, ended.error_code) == (TaskStatus.FAILED, "crash_loop")
    assert place.times_begun(task) == 3
    assert [line["code"] for line in place.lines("on_failure")] == ["crash_loop"]


@pytest.mark.parametrize("place", TERMS_TO_OUTLIVE, indirect=True)
def test_draining_takes_its_time_and_claims_nothing(place: Place) -> None:
    """[D028] SIGTERM with work of more than a lease in flight, while another worker sweeps: one outcome."""
    task = place.submit("hold")
    with place.start("--drain-seconds=60") as draining:
        place.wait_begun()
        draining.signal(signal.SIGTERM)
        draining.wait_said("worker_draining")
        with place.start() as other:
            for late in [place.submit("quick") for _ in range(20)]:
                assert place.wait_ended(late).status is TaskStatus.COMPLETED
            place.wait_heartbeats_of_a_lease()
            assert place.seen(task).status is TaskStatus.RUNNING
            go(place.log, task.task_id)
            assert draining.wait() == 0
            assert place.wait_ended(task).status is TaskStatus.COMPLETED
            assert other.terminate() == 0
    begun = place.lines("begin")
    assert [line["task"] for line in begun if line["pid"] == draining.pid] == [task.task_id]
    assert len([line for line in begun if line["task"] == task.task_id]) == 1


def test_a_cancel_ends_a_drain_early(place: Place) -> None:
    """[D029] The drain may take a minute; the cancel is heard within a heartbeat."""
    task = place.submit("hold")
    with place.start("--drain-seconds=600") as worker:
        place.wait_begun()
        worker.signal(signal.SIGTERM)
        place.tracker.cancel(task.task_id, **OWNER)
        assert worker.wait() == 0
    assert place.seen(task).status is TaskStatus.CANCELLED
    assert [line["task"] for line in place.lines("stopped")] == [task.task_id]


def test_a_second_signal_does_not_wait_for_the_drain(place: Place) -> None:
    """[D049] What may run again is given back; what may not says why it ended."""
    once, again = place.submit("hold"), place.submit("again")
    with place.start("--drain-seconds=600", "--concurrency=2") as worker:
        place.wait_begun(2)
        queued = place.submit("quick")
        worker.signal(signal.SIGTERM)
        worker.wait_said("worker_draining")
        worker.signal(signal.SIGINT)
        assert worker.wait() == 0
    assert place.seen(once).error_code == "interrupted"
    assert place.seen(again).status is TaskStatus.PENDING
    assert place.seen(queued).status is TaskStatus.PENDING
    assert len(place.lines("begin")) == 2


@pytest.mark.parametrize("place", TERMS_TO_OUTLIVE, indirect=True)
def test_a_blocked_loop_loses_no_lease(place: Place) -> None:
    """[D021] A coroutine that blocks for more than a lease, a computing thread beside it, and another worker."""
    tasks = [place.submit("block")]
    with place.start() as one:
        place.wait_begun(1)
        tasks.append(place.submit("hold_thread"))  # which the blocked one does not claim
        with place.start() as two:
            place.wait_begun(2)
            for task in tasks:
                place.wait_heartbeats_of_a_lease()
                go(place.log, task.task_id)
                assert place.wait_ended(task).status is TaskStatus.COMPLETED
            assert (one.terminate(), two.terminate()) == (0, 0)
    assert len({line["pid"] for line in place.lines("begin")}) == 2
    assert len(place.lines("begin")) == len(place.lines("end")) == 2


def test_killed_between_claim_and_start_it_is_offered_again(place: Place) -> None:
    """[D017] Claimed, and its worker gone before a line of the handler ran."""
    task = place.submit("again")
    claimed = place.store.claim(holder="gone", task_types=[("again", 1)])
    assert claimed is not None
    place.expire()
    go(place.log, task.task_id)
    with place.start() as worker:
        assert place.wait_ended(task).status is TaskStatus.COMPLETED
        assert worker.terminate() == 0
    assert place.times_begun(task) == 1
    assert place.lines("begin")[0]["attempt"] > 1, "the claim of the dead one counts"


def test_a_cancel_outlives_everything(place: Place) -> None:
    """[D041] Cancelled while a worker is dead, by a process that knows nothing of it; the next one honours it."""
    pending, running = place.submit("hold"), place.submit("again")
    place.tracker.cancel(pending.task_id, **OWNER)
    with place.start() as worker:
        place.wait_begun()
        worker.kill()
    place.expire()
    place.tracker.cancel(running.task_id, **OWNER)
    with place.start() as worker:
        assert place.wait_ended(running).status is TaskStatus.CANCELLED
        assert worker.terminate() == 0
    assert place.seen(pending).status is TaskStatus.CANCELLED
    assert [line["task"] for line in place.lines("begin")] == [running.task_id]
