"""Wake-ups: hints that reach who waits, are remembered for who is about to, and fail nobody."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Sequence

import pytest

from task_tracker.records import TaskKey
from task_tracker.testing import FakeClock
from task_tracker.wakeups import InProcessWakeUp, NoWakeUp, WakeUp, Waking
from tests.core.support import PATIENCE, background, in_threads

KEYS = [TaskKey("acme", "alice", "task-1")]


class Broken:
    """A way that leads nowhere."""

    def __init__(self) -> None:
        self.calls = 0

    def wake(self, keys: Sequence[TaskKey]) -> None:
        self.calls += 1
        raise ConnectionError("the line is cut: password=hunter2")

    def wait(self, seconds: float) -> bool:
        return False

    def interrupt(self) -> None:
        """Nobody waits."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_both_are_what_the_protocol_says(clock: FakeClock) -> None:
    ways: list[WakeUp] = [InProcessWakeUp(clock), NoWakeUp(clock), Broken()]
    for way in ways:
        way.interrupt()


def test_who_waits_is_woken(clock: FakeClock) -> None:
    way = InProcessWakeUp(clock)
    with background(lambda: way.wait(10)) as answers:
        clock.until_waiting()
        way.wake(KEYS)
    assert answers == [True]


def test_who_waits_in_vain_learns_that(clock: FakeClock) -> None:
    way = InProcessWakeUp(clock)
    with background(lambda: way.wait(10)) as answers:
        clock.until_waiting()
        clock.advance(9)
        clock.until_waiting()
        clock.advance(1)
    assert answers == [False]
    assert way.wait(0) is False


def test_all_that_wait_are_woken_and_nothing_is_left_over(clock: FakeClock) -> None:
    way = InProcessWakeUp(clock)
    with background(lambda: way.wait(10)) as one, background(lambda: way.wait(10)) as other:
        clock.until_waiting(2)
        way.wake(KEYS)
    assert one == other == [True]
    assert way.wait(0) is False, "who was woken looks anyway"


def test_a_wake_up_that_comes_before_the_wait_is_not_lost(clock: FakeClock) -> None:
    """A worker looks, finds nothing, and a task comes before it waits."""
    way = InProcessWakeUp(clock)
    way.wake(KEYS)
    way.wake(KEYS)
    assert way.wait(10) is True
    assert way.wait(0) is False, "several are as good as one"


def test_one_that_comes_while_the_woken_are_still_on_their_way_is_not_lost(clock: FakeClock) -> None:
    """They may have looked before the second task was there."""
    way = InProcessWakeUp(clock)
    with background(lambda: way.wait(10)) as answers:
        clock.until_waiting()
        with way._changed:  # the one that waits cannot run before this is let go
            way.wake(KEYS)
            way.wake(KEYS)
    assert answers == [True]
    assert way.wait(10) is True


@pytest.mark.parametrize("kind", [InProcessWakeUp, NoWakeUp])
def test_a_worker_that_is_to_stop_is_not_kept(clock: FakeClock, kind: type[InProcessWakeUp]) -> None:
    way = kind(clock)
    with background(lambda: way.wait(10)) as answers:
        clock.until_waiting()
        way.interrupt()
    assert answers == [False]
    way.interrupt()
    way.wait(10)


def test_without_a_way_nobody_is_woken(clock: FakeClock) -> None:
    way = NoWakeUp(clock)
    way.wake(KEYS)
    with background(lambda: way.wait(10)) as answers:
        clock.until_waiting()
        way.wake(KEYS)
        clock.advance(10)
    assert answers == [False]


def test_with_the_real_clock() -> None:
    way = InProcessWakeUp()
    begun = threading.Event()

    def wait() -> bool:
        begun.set()
        return way.wait(PATIENCE)

    with background(wait) as answers:
        assert begun.wait(PATIENCE)
        way.wake(KEYS)
    assert answers == [True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_one_of_its_own(clock: FakeClock) -> None:
    """[D091] It does not wait for what a thread of its parent held."""
    way = InProcessWakeUp(clock)
    waking = Waking(Broken(), clock)
    way.wake(KEYS)
    with way._changed, waking._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            try:
                fresh = way.wait(0) is False
                waking.wake(KEYS)
                os._exit(0 if fresh and waking.failures == 1 else 1)
            finally:
                os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert way.wait(0) is True


def test_what_fails_is_counted_and_said_once_a_minute(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    waking = Waking(Broken(), clock)
    with caplog.at_level(logging.WARNING, "task_tracker"):
        assert [waking.wake(KEYS) for _ in range(3)] == [False] * 3
        clock.advance(59.9)
        waking.wake(KEYS)
        clock.advance(0.1)
        waking.wake(KEYS)
    assert waking.failures == 5
    assert [record.__dict__["failures"] for record in caplog.records] == [1, 5]
    assert {record.__dict__["event"] for record in caplog.records} == {"wake_up_failed"}


def test_threads_that_fail_at_once_are_all_counted(clock: FakeClock) -> None:
    waking = Waking(Broken(), clock)
    in_threads(*[lambda: waking.wake(KEYS)] * 8)
    assert waking.failures == 8


def test_what_is_no_error_goes_through(clock: FakeClock) -> None:
    class Stopped(Broken):
        def wake(self, keys: Sequence[TaskKey]) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Waking(Stopped(), clock).wake(KEYS)


def test_what_works_is_not_counted(clock: FakeClock) -> None:
    way = InProcessWakeUp(clock)
    waking = Waking(way, clock)
    assert waking.wake(KEYS) is True
    assert waking.failures == 0
    assert way.wait(0) is True
