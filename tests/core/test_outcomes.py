"""Outcomes that wait for a store that is away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from task_tracker import CorruptRecord, InvalidTransition, StoreUnavailable, TaskKey, TaskNotFound
from task_tracker import outcomes as module
from task_tracker.outcomes import PendingOutcomes
from tests.core.support import PATIENCE, FakeClock, Gate, in_threads


class Quiet(PendingOutcomes):
    """Without its thread: rounds are run by the test."""

    def start(self, delay_seconds: float = 0.0) -> None:
        self.delay = delay_seconds


def key_of(name: str) -> TaskKey:
    return TaskKey("acme", "alice", name)


class Outcome:
    """Lands when it is let; counts how often that was tried."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.tries = 0
        self.landed = threading.Event()

    def __call__(self) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        self.landed.set()


@pytest.fixture
def away() -> StoreUnavailable:
    return StoreUnavailable("away")


@contextmanager
def stopped(outcomes: PendingOutcomes) -> Iterator[None]:
    try:
        yield
    finally:
        outcomes.stop()


def test_a_round_lands_all_that_wait_and_is_the_last(clock: FakeClock) -> None:
    outcomes = Quiet(clock)
    waiting = [Outcome(), Outcome()]
    for number, outcome in enumerate(waiting):
        assert outcomes.keep(key_of(str(number)), outcome)
    assert len(outcomes) == 2
    assert outcomes.run_once() is None
    assert len(outcomes) == 0
    assert [outcome.tries for outcome in waiting] == [1, 1]


def test_pauses_grow_while_the_store_is_away_and_begin_anew_with_a_new_outcome(
    clock: FakeClock, away: StoreUnavailable
) -> None:
    outcomes = Quiet(clock)
    outcomes.keep(key_of("a"), Outcome(away))
    assert outcomes.delay == 0.1
    assert [outcomes.run_once() for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    outcomes.keep(key_of("b"), Outcome(away))
    assert outcomes.run_once() == 0.2


def test_the_first_outcome_of_a_task_is_the_one_that_waits(clock: FakeClock) -> None:
    outcomes = Quiet(clock)
    first, second = Outcome(), Outcome()
    assert outcomes.keep(key_of("a"), first)
    assert not outcomes.keep(key_of("a"), second), "the caller is told that it was not taken"
    assert outcomes.waits(key_of("a"))
    outcomes.run_once()
    assert (first.tries, second.tries) == (1, 0)
    assert not outcomes.waits(key_of("a"))


@pytest.mark.parametrize("refusal", [InvalidTransition("it is cancelled"), TaskNotFound("gone")])
def test_an_outcome_that_came_too_late_is_reported_and_let_go(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, refusal: Exception
) -> None:
    outcomes = Quiet(clock)
    outcomes.keep(key_of("a"), Outcome(refusal))
    assert outcomes.run_once() is None
    assert len(outcomes) == 0
    assert f"the outcome of task a came too late: {refusal}" in caplog.text


def test_an_outcome_whose_record_cannot_be_read_just_now_waits_on(clock: FakeClock) -> None:
    """A client that writes in place shows half a record to whoever reads at that moment."""
    outcomes = Quiet(clock)
    outcome = Outcome(CorruptRecord("half of it", path="/p"))
    outcomes.keep(key_of("a"), outcome)
    assert outcomes.run_once() == 0.2
    assert outcomes.task_ids() == ["a"]
    with pytest.raises(CorruptRecord):
        outcomes.land(key_of("a"))
    outcome.error = None
    assert outcomes.run_once() is None


def test_one_task_that_cannot_be_stored_does_not_hold_up_the_others(
    clock: FakeClock, away: StoreUnavailable
) -> None:
    """As when one user's lock is stuck and the store is well."""
    outcomes = Quiet(clock)
    stuck, others = Outcome(away), [Outcome() for _ in range(3)]
    outcomes.keep(key_of("stuck"), stuck)
    for number, outcome in enumerate(others):
        outcomes.keep(key_of(str(number)), outcome)
    assert outcomes.run_once() == 0.2
    assert all(outcome.landed.is_set() for outcome in others)
    assert len(outcomes) == 1
    stuck.error = None
    assert outcomes.run_once() is None


def test_a_round_against_a_store_that_is_down_is_short_and_the_next_one_begins_elsewhere(
    clock: FakeClock, away: StoreUnavailable
) -> None:
    outcomes = Quiet(clock)
    waiting = [Outcome(away) for _ in range(7)]
    for number, outcome in enumerate(waiting):
        outcomes.keep(key_of(str(number)), outcome)
    for _ in range(7):
        outcomes.run_once()
    assert [outcome.tries for outcome in waiting] == [3] * 7


def test_an_error_that_no_store_should_raise_loses_no_outcome(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = Quiet(clock)
    strange, other = Outcome(OSError("a backend's own error")), Outcome()
    outcomes.keep(key_of("strange"), strange)
    outcomes.keep(key_of("other"), other)
    assert outcomes.run_once() == 0.2
    assert other.landed.is_set()
    assert "a backend's own error" in caplog.text
    strange.error = None
    assert outcomes.run_once() is None


def test_no_more_wait_than_there_is_room_for(
    clock: FakeClock, away: StoreUnavailable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 2)
    outcomes = Quiet(clock)
    assert outcomes.keep(key_of("a"), Outcome(away))
    assert outcomes.keep(key_of("b"), Outcome(away))
    assert not outcomes.keep(key_of("c"), Outcome(away))
    assert not outcomes.waits(key_of("c"))
    assert len(outcomes) == 2


def test_landing_one_by_hand(clock: FakeClock, away: StoreUnavailable) -> None:
    outcomes = Quiet(clock)
    outcome = Outcome(away)
    outcomes.land(key_of("a"))  # nothing waits, nothing happens
    outcomes.keep(key_of("a"), outcome)
    with pytest.raises(StoreUnavailable):
        outcomes.land(key_of("a"))
    assert len(outcomes) == 1
    outcome.error = None
    outcomes.land(key_of("a"))
    assert len(outcomes) == 0


def test_an_outcome_that_lands_elsewhere_while_it_fails_here_is_not_put_back(
    clock: FakeClock, away: StoreUnavailable
) -> None:
    outcomes = Quiet(clock)

    def land() -> None:
        outcomes._pending.pop(key_of("a"))
        raise away

    outcomes.keep(key_of("a"), land)
    assert outcomes.run_once() == 0.2
    assert len(outcomes) == 0


def test_an_outcome_that_another_thread_landed_meanwhile_is_not_missed_or_taken_twice(
    clock: FakeClock,
) -> None:
    outcomes = Quiet(clock)
    later = Outcome()

    def land() -> None:
        outcomes._pending.pop(key_of("a"))  # another thread was quicker, and a new outcome waits already
        outcomes.keep(key_of("a"), later)

    outcomes.keep(key_of("a"), land)
    outcomes.land(key_of("a"))
    assert outcomes.waits(key_of("a"))
    assert outcomes.run_once() is None
    assert later.tries == 1


# ---- its thread ------------------------------------------------------------------------------------


def test_the_thread_ends_when_all_have_landed_and_comes_back_for_the_next(clock: FakeClock) -> None:
    outcomes = PendingOutcomes(clock)
    with stopped(outcomes):
        for number in range(3):
            outcome = Outcome()
            outcomes.keep(key_of(str(number)), outcome)
            assert outcome.landed.wait(PATIENCE)


def test_an_outcome_kept_during_the_last_round_is_not_left_without_a_thread(clock: FakeClock) -> None:
    outcomes = PendingOutcomes(clock)
    gate = Gate()
    first, second = Outcome(), Outcome()

    def slow() -> None:
        gate.pass_through()
        first()

    with stopped(outcomes):
        outcomes.keep(key_of("a"), slow)
        gate.wait_entered()
        outcomes.keep(key_of("b"), second)
        gate.open()
        assert second.landed.wait(PATIENCE)


def test_an_outcome_kept_after_the_last_round_has_decided_gets_a_new_thread(clock: FakeClock) -> None:
    """The old thread has found nothing left and has not ended yet."""
    gate = Gate()
    second = Outcome()

    class Lingering(PendingOutcomes):
        def run_once(self) -> float | None:
            pause = super().run_once()
            if pause is None and not gate.passed.is_set():
                gate.pass_through()
            return pause

    outcomes = Lingering(clock)
    with stopped(outcomes):
        outcomes.keep(key_of("a"), Outcome())
        gate.wait_entered()
        outcomes.keep(key_of("b"), second)
        gate.open()
        assert second.landed.wait(PATIENCE)


def test_no_outcome_is_forgotten_however_threads_interleave(clock: FakeClock) -> None:
    outcomes = PendingOutcomes(clock)
    landed = [Outcome() for _ in range(400)]

    def keep(start: int) -> None:
        for number in range(start, start + 100):
            assert outcomes.keep(key_of(str(number)), landed[number])

    with stopped(outcomes):
        answers = in_threads(*[partial(keep, start) for start in range(0, 400, 100)])
        assert answers == [None] * 4
        assert all(outcome.landed.wait(PATIENCE) for outcome in landed)
        assert all(outcome.tries == 1 for outcome in landed)
