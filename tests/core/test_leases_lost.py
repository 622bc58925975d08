"""Losing a lease: the loser learns it, and nothing that it does afterwards has an effect."""

from __future__ import annotations

import logging

import pytest

from task_tracker import InvalidTransition, LeaseHeld, LeaseLost, StoreUnavailable
from tests.core.leasing import (
    HEARTBEAT,
    LEASE,
    LOCAL_END,
    WRITES,
    Processes,
    beat,
    is_lost,
    lease,
    live,
    network,
    pass_on,
    running,
    seen,
    take_over,
)
from tests.core.support import OWNER, FakeClock


def refused(call: object, *arguments: object) -> None:
    assert callable(call)
    with pytest.raises(LeaseLost, match="stop working on it"):
        call(*arguments)


@pytest.mark.parametrize("name", sorted(WRITES))
def test_a_frozen_process_finds_its_task_taken_over(
    processes: Processes, clock: FakeClock, name: str
) -> None:
    """[D022] Frozen for longer than a lease; its first call after that is refused, whichever it is."""
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    held = lease(ours, task)
    clock.advance(LEASE + 1)
    assert theirs.reconcile().holder_lost == 1
    ended = seen(theirs, task)
    network(ours).calls.clear()
    refused(WRITES[name], ours, task.task_id)
    assert held.lost.is_set()
    assert not network(ours).calls, "it knows by itself"
    assert seen(theirs, task) == ended
    assert (ended.status, ended.error_code) == ("failed", "holder_lost")
    assert seen(ours, task) == ended, "reading is allowed to anybody"


def test_a_store_refuses_what_the_holder_does_not_know_yet(processes: Processes, clock: FakeClock) -> None:
    """[D022] The process thaws with a clock that stood still, as in a machine that was suspended."""
    its_clock = FakeClock()
    ours = processes.start("ours", its_clock)
    for name, call in WRITES.items():
        task = running(ours, name)
        clock.advance(LEASE + 1)
        taken = take_over(processes, task)
        before = seen(processes.start("reader"), task)
        held = lease(ours, task)
        refused(call, ours, task.task_id)
        assert held.lost.is_set()
        assert seen(processes.start("reader"), task) == before, name
        processes.store.renew(taken)


def test_an_old_attempt_touches_nothing_of_the_new_one(processes: Processes, clock: FakeClock) -> None:
    """[D023] Judged by the token: also where both attempts are called the same."""
    ours, theirs = processes.start("same name"), processes.start("same name")
    task = running(ours)
    clock.advance(LEASE + 1)
    pass_on(processes, task)
    begun = theirs.start(task.task_id, **OWNER)
    beat(ours)
    for call in WRITES.values():
        refused(call, ours, task.task_id)
    beat(ours)
    assert seen(theirs, task) == begun
    assert not lease(theirs, task).lost.is_set()
    live(clock, LEASE, theirs)
    ended = theirs.complete(task.task_id, {"by": "the new one"}, **OWNER)
    assert seen(ours, task) == ended


def test_working_code_that_asks_whether_to_stop_is_told(processes: Processes, clock: FakeClock) -> None:
    """Lost is not cancelled: it raises, also with strict=False, so that whoever asks stops working."""
    ours = processes.start("ours", strict=False)
    task = running(ours)
    assert ours.is_cancellation_requested(task.task_id) is False
    clock.advance(LOCAL_END)
    refused(ours.is_cancellation_requested, task.task_id)
    refused(ours.is_cancellation_requested, task.task_id)
    assert lease(ours, task).lost.is_set(), "still to be had, for code that looks at the signal"


def test_a_process_cut_off_from_the_store_stops_before_others_may_take_over(
    processes: Processes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """[D025] By its own monotonic clock, and its keeper sets the signal."""
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    network(ours).fail(forever=True)
    held = lease(ours, task)
    for _ in range(int(LOCAL_END)):
        assert not held.lost.is_set()
        clock.advance(1)
        beat(ours)
    assert held.lost.is_set()
    assert theirs.reconcile() == (0, 0, 0, 0, 0)
    network(ours).heal()
    refused(ours.update, task.task_id)
    live(clock, LEASE - LOCAL_END, ours)
    assert theirs.reconcile() == (0, 0, 0, 0, 0), "a lease lives for 30 seconds, not for less"
    clock.advance(1)
    assert theirs.reconcile().holder_lost == 1
    told = [record for record in caplog.records if getattr(record, "event", "") == "renewal_failed"]
    assert len(told) == 1, "an outage is told once, not at every heartbeat"
    assert [record for record in caplog.records if getattr(record, "event", "") == "lease_lost"]


def test_an_outage_shorter_than_that_costs_nothing(processes: Processes, clock: FakeClock) -> None:
    ours = processes.start("ours")
    task = running(ours)
    for _ in range(5):
        network(ours).fail(forever=True)
        clock.advance(LOCAL_END - 1)
        beat(ours)
        network(ours).heal()
        beat(ours)
    assert ours.update(task.task_id, progress=5) is not None


def test_the_time_of_a_lease_counts_from_before_it_was_asked_for(
    processes: Processes, clock: FakeClock
) -> None:
    """A reply that took its time must not lengthen it; the store counts from when it was asked."""
    ours = processes.start("ours")
    network(ours).interrupt(lambda: clock.advance(3), on="claim", after=True)
    task = running(ours)
    clock.advance(LOCAL_END - 3)
    refused(ours.update, task.task_id)

    task = running(ours, "other")
    network(ours).interrupt(lambda: clock.advance(3), on="renew", after=True)
    clock.advance(HEARTBEAT)
    beat(ours)
    clock.advance(LOCAL_END - 3)
    refused(ours.update, task.task_id)


def test_clocks_of_hosts_that_differ_decide_nothing(processes: Processes, clock: FakeClock) -> None:
    """[D026] Half a minute ahead and behind: nothing is taken early, and nothing late."""
    ahead, behind = FakeClock(clock.now() + 30), FakeClock(clock.now() - 30)
    for holder, other in ((ahead, behind), (behind, ahead)):
        ours, theirs = processes.start("ours", holder), processes.start("theirs", other)
        task = running(ours)
        for each in (clock, ahead, behind):
            each.advance(LEASE)
        assert theirs.reconcile() == (0, 0, 0, 0, 0)
        for each in (clock, ahead, behind):
            each.advance(1)
        assert theirs.reconcile().holder_lost == 1
        assert seen(theirs, task).updated_at >= task.updated_at


def test_a_wall_clock_that_is_set_does_not_end_a_lease(processes: Processes, clock: FakeClock) -> None:
    """[D026]"""
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    clock.step_back(86_400)
    assert theirs.reconcile() == (0, 0, 0, 0, 0)
    clock.step_back(-2 * 86_400)
    assert theirs.reconcile().holder_lost == 0
    assert ours.complete(task.task_id) is not None


def test_a_lost_task_can_be_started_again_and_is_then_held(processes: Processes, clock: FakeClock) -> None:
    ours = processes.start("ours")
    task = running(ours)
    clock.advance(LOCAL_END)
    refused(ours.update, task.task_id)
    with pytest.raises(LeaseHeld):
        ours.start(task.task_id)  # its old lease has not expired yet
    clock.advance(LEASE)
    pass_on(processes, task)
    refused(ours.update, task.task_id)
    old = lease(ours, task)
    assert ours.start(task.task_id) is not None
    new = lease(ours, task)
    assert new is not old
    assert (old.lost.is_set(), new.lost.is_set()) == (True, False)
    assert new.fence > old.fence
    ended = ours.complete(task.task_id, {"n": 1})
    assert ours.complete(task.task_id, {"n": 1}) == ended
    assert ours.lease_of(task.task_id) is None


def test_the_next_life_of_an_id_is_not_lost(processes: Processes, clock: FakeClock) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    for delete in (ours, theirs):
        task = running(ours, "nightly")
        clock.advance(LEASE + 1)
        theirs.reconcile()
        refused(ours.update, "nightly")
        delete.delete("nightly", **OWNER)
        assert ours.create("t", **OWNER, task_id="nightly").task_id == task.task_id
        assert ours.update("nightly", progress=1, **OWNER) is not None
        ours.complete("nightly", **OWNER)
        ours.delete("nightly", **OWNER)


def test_lost_leases_are_remembered_up_to_a_bound(
    processes: Processes, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("task_tracker.holdings.MAX_LOST", 2)
    ours = processes.start("ours")
    tasks = [running(ours, str(number)) for number in range(4)]
    clock.advance(LOCAL_END)
    beat(ours)
    assert [is_lost(ours, task.key) for task in tasks] == [False, False, True, True]


def test_others_tasks_are_not_touched_by_a_loss(
    processes: Processes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    lost, kept = running(ours, "lost"), running(ours, "kept")
    network(ours).fail(LeaseLost("somebody has it; stop working on it"), on="renew")
    with caplog.at_level(logging.WARNING, "task_tracker"):
        live(clock, HEARTBEAT, ours)
    assert [is_lost(ours, task.key) for task in (lost, kept)] == [True, False]
    assert "the lease on task lost was lost: somebody has it" in caplog.text
    live(clock, LEASE, ours)
    assert theirs.reconcile().holder_lost == 1
    assert ours.complete(kept.task_id) is not None


# ---- answers that are lost ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["complete", "fail", "mark_cancelled"])
def test_an_end_whose_answer_was_lost_is_found_to_be_ones_own(processes: Processes, name: str) -> None:
    ours = processes.start("ours")
    task = running(ours)
    network(ours).fail(on="end", after=True)
    with pytest.raises(StoreUnavailable, match="tried again in the background"):
        WRITES[name](ours, task.task_id)
    ended = seen(processes.start("reader"), task)
    assert ours.access.outcomes.run_once() is None
    assert seen(ours, task) == ended == WRITES[name](ours, task.task_id)
    assert ours.lease_of(task.task_id) is None


def test_a_commit_whose_answer_was_lost_is_built_upon(processes: Processes) -> None:
    """The next write starts from what is stored, whether the lost one took effect or not."""
    ours = processes.start("ours")
    task = running(ours)
    for after, expected in ((True, 50), (False, 50)):
        network(ours).fail(on="commit", after=after)
        with pytest.raises(StoreUnavailable):
            ours.update(task.task_id, progress=50 if after else 60)
        changed = ours.update(task.task_id, message=str(after))
        assert changed is not None
        assert (changed.progress, changed.message) == (expected, str(after))


def test_a_release_whose_answer_was_lost_has_given_the_task_back(processes: Processes) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    network(ours).fail(on="release", after=True)
    with pytest.raises(StoreUnavailable):
        ours.release(task.task_id)
    assert theirs.start(task.task_id, **OWNER) is not None
    refused(ours.complete, task.task_id)
    theirs.complete(task.task_id, {"by": "them"}, **OWNER)

    task = running(ours, "other")
    network(ours).fail(on="release", after=True)
    with pytest.raises(StoreUnavailable):
        ours.release(task.task_id)
    again = ours.start(task.task_id)
    assert again is not None
    assert lease(ours, task).epoch == 2


def test_who_lost_an_answer_and_then_the_task_does_not_end_it(processes: Processes, clock: FakeClock) -> None:
    """Taken over and given back: it is pending, and looks as if nobody had it."""
    ours = processes.start("ours", FakeClock())
    task = running(ours)
    network(ours).fail(on="commit", after=True)
    with pytest.raises(StoreUnavailable):
        ours.update(task.task_id, progress=5)
    held = lease(ours, task)
    clock.advance(LEASE + 1)
    pass_on(processes, task)
    held.lost.clear()  # a store of another process could not have set it
    refused(ours.complete, task.task_id)
    assert seen(processes.start("reader"), task).status == "pending"


def test_a_refused_write_is_the_last_one(processes: Processes) -> None:
    """Whether the store marks the lease or only says so."""
    ours = processes.start("ours")
    task = running(ours)
    held = lease(ours, task)
    network(ours).fail(LeaseLost("it is somebody else's; stop working on it"), on="commit")
    for _ in range(2):
        with pytest.raises(LeaseLost):
            ours.update(task.task_id, progress=5)
        assert held.lost.is_set()
    assert network(ours).calls["commit"] == 1


def test_a_task_that_vanished_is_not_held(processes: Processes) -> None:
    """Somebody deleted its file. What is left of it is a clear error."""
    ours = processes.start("ours")
    task = running(ours)
    network(ours).fail(on="end", after=True)
    with pytest.raises(StoreUnavailable):
        ours.complete(task.task_id)
    processes.store.delete(task.key)
    assert ours.access.outcomes.run_once() is None
    assert ours.lease_of(task.task_id) is None
    assert ours.get(task.task_id, **OWNER) is None


# ---- outcomes that wait --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["complete", "fail", "mark_cancelled"])
def test_an_outcome_lands_under_its_lease_after_an_outage(
    processes: Processes, clock: FakeClock, name: str
) -> None:
    ours = processes.start("ours")
    theirs = processes.start("theirs")
    task = running(ours)
    network(ours).fail(on=("end", "get"), forever=True)
    with pytest.raises(StoreUnavailable, match="tried again in the background"):
        WRITES[name](ours, task.task_id)
    for _ in range(10):  # the keeper goes on, so that it can still land
        live(clock, HEARTBEAT, ours)
        ours.access.outcomes.run_once()
        assert theirs.reconcile() == (0, 0, 0, 0, 0)
    assert seen(theirs, task).status == "running"
    network(ours).heal()
    assert ours.access.outcomes.run_once() is None
    assert seen(theirs, task).status.is_terminal
    assert ours.lease_of(task.task_id) is None


def test_an_outcome_lands_after_a_long_outage_if_nobody_took_the_task(
    processes: Processes, clock: FakeClock
) -> None:
    """The work is done and nobody has to stop: only the store's word ends the lease then."""
    ours = processes.start("ours")
    task = running(ours)
    network(ours).fail(forever=True)
    with pytest.raises(StoreUnavailable):
        ours.complete(task.task_id, {"n": 1})
    live(clock, 10 * LEASE, ours)
    assert not lease(ours, task).lost.is_set()
    network(ours).heal()
    assert ours.access.outcomes.run_once() is None
    assert seen(processes.start("reader"), task).result == {"n": 1}


def test_an_outcome_of_a_task_that_was_taken_over_is_given_up(
    processes: Processes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    network(ours).fail(forever=True)
    with pytest.raises(StoreUnavailable):
        ours.complete(task.task_id, {"n": 1})
    live(clock, LEASE + 1, ours)
    theirs.reconcile()
    network(ours).heal()
    assert ours.access.outcomes.run_once() is None
    assert "the outcome of task" in caplog.text
    assert "came too late" in caplog.text
    assert seen(ours, task).error_code == "holder_lost"
    refused(ours.complete, task.task_id, {"n": 1})


def test_an_outcome_is_not_for_another_lease_of_the_same_tracker(
    processes: Processes, clock: FakeClock
) -> None:
    """Lost, given back by whoever took it over, started here again: the old outcome is not the new one's."""
    ours = processes.start("ours")
    task = running(ours)
    network(ours).fail(forever=True)
    with pytest.raises(StoreUnavailable):
        ours.complete(task.task_id, {"n": 1})
    clock.advance(LEASE + 1)
    pass_on(processes, task)
    network(ours).heal()
    assert ours.start(task.task_id) is not None
    assert len(ours.access.outcomes) == 0
    assert ours.access.outcomes.run_once() is None
    assert seen(ours, task).status == "running"


def test_an_outcome_without_a_lease_yields_to_a_holder(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = ours.create("t", **OWNER)
    network(ours).fail(forever=True)
    with pytest.raises(StoreUnavailable):
        ours.complete(task.task_id, {"n": 1})
    theirs.start(task.task_id, **OWNER)
    network(ours).heal()
    assert ours.access.outcomes.run_once() is None
    assert "came too late" in caplog.text
    assert seen(theirs, task).status == "running"


def test_a_commit_that_is_refused_for_the_lifecycle_keeps_the_lease(processes: Processes) -> None:
    ours = processes.start("ours")
    task = running(ours)
    ours.cancel(task.task_id)
    with pytest.raises(InvalidTransition):
        ours.start(task.task_id)
    assert not lease(ours, task).lost.is_set()
    ours.mark_cancelled(task.task_id)
