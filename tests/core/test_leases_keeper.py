"""Heartbeats: what is held is renewed in time, whatever else goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from stores import InMemoryTaskStore
from task_tracker import StoreUnavailable, TaskTracker
from task_tracker.holdings import Holdings
from task_tracker.keeper import LeaseKeeper
from task_tracker.store import Lease
from task_tracker.testing import FakeClock as StandingClock
from tests.core.leasing import (
    HEARTBEAT,
    LEASE,
    LOCAL_END,
    Processes,
    beat,
    is_lost,
    lease,
    live,
    network,
    running,
)
from tests.core.support import OWNER, PATIENCE, FakeClock, Gate, background, join, own_threads


def keeper_of(tracker: TaskTracker) -> LeaseKeeper:
    assert tracker.access.ownership is not None
    return tracker.access.ownership.keeper


def test_a_long_job_keeps_its_lease(processes: Processes, clock: FakeClock) -> None:
    """[D019] At least three renewals per lease; nobody else gets it for as long as it is renewed."""
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    for _ in range(60):
        pause = keeper_of(ours).run_once()
        assert pause is not None
        assert pause * 3 <= LEASE
        clock.advance(pause)
        assert theirs.reconcile() == (0, 0, 0, 0, 0)
    assert ours.complete(task.task_id) is not None
    assert network(ours).calls["renew"] >= 60


def test_a_lease_is_renewed_in_time_also_if_a_heartbeat_fails(processes: Processes, clock: FakeClock) -> None:
    """It is tried again sooner than at the next heartbeat, and the first success makes up for all."""
    ours = processes.start("ours")
    running(ours)
    assert keeper_of(ours).run_once() == HEARTBEAT
    clock.advance(HEARTBEAT)
    network(ours).fail(on="renew")
    pause = keeper_of(ours).run_once()
    assert pause == HEARTBEAT / 4
    clock.advance(pause)
    assert keeper_of(ours).run_once() == HEARTBEAT
    live(clock, LOCAL_END - 1)
    assert not lease(ours, running(ours, "x")).lost.is_set()


def test_all_that_is_held_is_renewed_the_oldest_first(processes: Processes, clock: FakeClock) -> None:
    ours = processes.start("ours")
    tasks = [running(ours, str(number)) for number in range(5)]
    clock.advance(1)
    ours.complete("2")
    renewed: list[str] = []
    real = processes.store.renew

    def renew(lease: Lease) -> None:
        renewed.append(lease.key.task_id)
        real(lease)

    processes.store.renew = renew  # type: ignore[method-assign]
    beat(ours)
    assert renewed == ["0", "1", "3", "4"]
    assert len(tasks) == 5


def test_leases_that_cannot_be_renewed_do_not_hold_up_the_others(
    processes: Processes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As when one user's directory is stuck. Twelve of those, and twenty that are well."""
    ours = processes.start("ours")
    stuck = [running(ours, f"stuck-{number}") for number in range(12)]
    well = [running(ours, f"well-{number}") for number in range(20)]
    real = processes.store.renew

    def renew(lease: Lease) -> None:
        if lease.key.task_id.startswith("stuck"):
            raise OSError("an error that no store should raise")
        real(lease)

    processes.store.renew = renew  # type: ignore[method-assign]
    for _ in range(int(2 * LEASE)):
        clock.advance(1)
        beat(ours)
    assert [is_lost(ours, task.key) for task in stuck] == [True] * 12, "their time was over"
    assert [is_lost(ours, task.key) for task in well] == [False] * 20
    told = [record for record in caplog.records if getattr(record, "event", "") == "renewal_failed"]
    assert len(told) == 1
    assert "an error that no store should raise" in caplog.text


def test_a_store_that_is_down_is_not_asked_ten_thousand_times(processes: Processes, clock: FakeClock) -> None:
    ours = processes.start("ours")
    tasks = [running(ours, str(number)) for number in range(50)]
    network(ours).fail(forever=True)
    network(ours).calls.clear()
    beat(ours)
    assert network(ours).calls["renew"] == 10
    clock.advance(LOCAL_END)
    beat(ours)
    assert [is_lost(ours, task.key) for task in tasks] == [True] * 50, "also those that were not asked for"
    assert keeper_of(ours).run_once() is None


def test_those_that_are_not_asked_are_told_when_their_time_is_over(
    processes: Processes, clock: FakeClock
) -> None:
    """The store is taken to be down before one comes up that failed earlier, and is the oldest."""
    ours = processes.start("ours")
    oldest = lease(ours, running(ours, "oldest"))
    network(ours).fail(on="renew")
    clock.advance(1)
    beat(ours)
    clock.advance(10)
    others = [lease(ours, running(ours, str(number))) for number in range(12)]
    clock.advance(LOCAL_END - 12)

    def hang() -> None:
        clock.advance(0.2)
        raise StoreUnavailable("no answer; try again")

    network(ours).interrupt(hang, on="renew", forever=True)
    before = network(ours).calls["renew"]
    beat(ours)
    assert network(ours).calls["renew"] == before + 10
    assert oldest.lost.is_set()
    assert not any(each.lost.is_set() for each in others)


def test_a_few_that_fail_among_many_do_not_look_like_an_outage(processes: Processes) -> None:
    ours = processes.start("ours")
    for number in range(30):
        running(ours, f"{number:02}")
    real = processes.store.renew

    def renew(lease: Lease) -> None:
        if int(lease.key.task_id) % 2:
            raise StoreUnavailable("this one is stuck; try again")
        real(lease)

    processes.store.renew = renew  # type: ignore[method-assign]
    beat(ours)
    assert network(ours).calls["renew"] == 30


def test_who_failed_comes_last_and_all_come_in_turn(processes: Processes, clock: FakeClock) -> None:
    ours = processes.start("ours")
    for number in range(25):
        running(ours, str(number))
    network(ours).fail(forever=True)
    for _ in range(3):
        clock.advance(1)
        beat(ours)
    assert keeper_of(ours)._holdings.all()[-1].failed_at > 0
    assert [holding.failed_at for holding in keeper_of(ours)._holdings.all()].count(0.0) == 0


def test_a_round_that_takes_longer_than_a_heartbeat_is_told_once(
    processes: Processes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    ours = processes.start("ours")
    for number in range(4):
        running(ours, str(number))
    network(ours).interrupt(lambda: clock.advance(3), on="renew", forever=True)
    assert keeper_of(ours).run_once() == 0, "the next round begins at once"
    assert keeper_of(ours).run_once() == 0
    assert caplog.text.count("longer than a heartbeat (10.0)") == 1
    network(ours).heal()
    assert keeper_of(ours).run_once() == HEARTBEAT
    network(ours).interrupt(lambda: clock.advance(3), on="renew", forever=True)
    keeper_of(ours).run_once()
    assert caplog.text.count("longer than a heartbeat") == 2


def test_ten_thousand_leases_are_renewed_in_much_less_than_a_heartbeat(processes: Processes) -> None:
    """What this library adds to the store's own time."""
    ours = processes.start("ours")
    tasks = [ours.create("t", str(number), **OWNER, task_id=str(number)) for number in range(10_000)]
    for task in tasks:
        ours.start(task.task_id)
    from task_tracker.clock import SYSTEM_CLOCK

    began = SYSTEM_CLOCK.monotonic()
    beat(ours)
    assert SYSTEM_CLOCK.monotonic() - began < HEARTBEAT / 3
    assert network(ours).calls["renew"] == 10_000


@pytest.mark.parametrize("late", [False, True])
def test_a_write_that_ends_a_lease_while_it_is_renewed_wins(
    processes: Processes, clock: FakeClock, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The entry is gone, the renewal finds nobody, or comes too late; but the holder itself has ended it."""
    ours = processes.start("ours")
    task = running(ours)
    gate = Gate()
    real = processes.store.end

    def end(held: Lease, record: object) -> object:
        stored = real(held, record)  # type: ignore[arg-type]
        gate.pass_through()
        return stored

    processes.store.end = end  # type: ignore[method-assign, assignment]
    with background(lambda: ours.complete(task.task_id, {"n": 1})) as answers:
        gate.wait_entered()
        if late:
            clock.advance(LEASE)
        beat(ours)
        gate.open()
    assert answers == [ours.get(task.task_id)]
    assert late or caplog.records == [], "nothing was lost"
    assert not is_lost(ours, task.key)
    assert ours.complete(task.task_id, {"n": 1}) == answers[0], "the same end again"


def test_a_lease_is_claimed_anew_while_the_old_one_is_renewed(clock: FakeClock) -> None:
    """What was found of the old one says nothing about the new one."""
    holdings = Holdings(clock, lease_seconds=30, heartbeat_seconds=10)
    store = InMemoryTaskStore(lease_seconds=30, clock=clock)
    tracker = TaskTracker(store, clock=clock)
    task = tracker.create("t", **OWNER)
    first, second = (Lease(task.key, task.created_at, epoch, str(epoch), "h") for epoch in (1, 2))
    stored = store.get(task.key)
    holdings.put(first, stored, 0)  # type: ignore[arg-type]
    holdings.put(second, stored, clock.monotonic())  # type: ignore[arg-type]
    holdings.lose(first, "late")
    holdings.drop(first)
    held = holdings.current(task.key)
    assert held is not None
    assert held.lease is second
    tracker.close()


def test_leases_that_never_expire_need_no_keeper(clock: FakeClock) -> None:
    tracker = TaskTracker(clock=clock)
    before = own_threads()
    task = tracker.create("t", **OWNER)
    tracker.start(task.task_id)
    assert own_threads() == before
    clock.advance(1e9)
    assert tracker.complete(task.task_id) is not None
    tracker.close()


# ---- its thread ----------------------------------------------------------------------------------------


@pytest.fixture
def standing() -> StandingClock:
    return StandingClock()


@pytest.fixture
def with_threads(standing: StandingClock) -> Iterator[TaskTracker]:
    """A tracker whose keeper really runs, by a clock that stands still."""
    store = InMemoryTaskStore(lease_seconds=LEASE, clock=standing)
    with TaskTracker(store, clock=standing) as tracker:
        yield tracker


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in own_threads() if thread.name == f"task_tracker {name}"]


def test_the_thread_begins_with_the_first_claim_and_ends_when_nothing_is_held(
    with_threads: TaskTracker, standing: StandingClock
) -> None:
    tracker = with_threads
    task = tracker.create("t", **OWNER)
    assert threads_of("lease keeper") == []
    for _ in range(2):
        tracker.start(task.task_id)
        other = running(tracker)
        standing.until_waiting()
        (thread,) = threads_of("lease keeper")
        for _ in range(10):
            standing.advance(HEARTBEAT)
            standing.until_waiting()
        tracker.release(task.task_id)
        tracker.complete(other.task_id)
        standing.advance(HEARTBEAT)
        join(thread)


def test_the_threads_heartbeat_keeps_the_task(with_threads: TaskTracker, standing: StandingClock) -> None:
    tracker = with_threads
    task = running(tracker)
    for _ in range(20):
        standing.until_waiting()
        standing.advance(HEARTBEAT)
    standing.until_waiting()
    assert tracker.reconcile() == (0, 0, 0, 0, 0)
    assert tracker.complete(task.task_id) is not None
    (thread,) = threads_of("lease keeper")
    standing.advance(HEARTBEAT)
    join(thread)


def test_a_claim_during_the_last_round_is_not_left_without_a_thread(
    with_threads: TaskTracker, standing: StandingClock
) -> None:
    """The old thread has found nothing held and has not ended yet."""
    tracker = with_threads
    keeper = keeper_of(tracker)
    gate = Gate()
    real: Callable[[], float | None] = keeper.run_once

    def lingering() -> float | None:
        pause = real()
        if pause is None and not gate.passed.is_set():
            gate.pass_through()
        return pause

    keeper.run_once = lingering  # type: ignore[method-assign]
    task = running(tracker)
    standing.until_waiting()
    tracker.complete(task.task_id)
    standing.advance(HEARTBEAT)
    gate.wait_entered()
    other = running(tracker)
    gate.open()
    assert gate.passed.wait(PATIENCE)
    standing.until_waiting()
    standing.advance(HEARTBEAT)
    standing.until_waiting()
    assert tracker.store.expired() == []  # type: ignore[attr-defined]
    assert tracker.complete(other.task_id) is not None
