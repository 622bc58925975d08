"""How a handler is told to stop: threads that wait are woken, however late they began to."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from task_tracker.clock import SystemClock
from task_tracker.records import TaskKey
from task_tracker.store import Lease
from task_tracker.worker.outcomes import StopReason
from task_tracker.worker.stops import StopSignal
from tests.core.support import PATIENCE

FOR_EVER = 1e6


class Waited(SystemClock):
    """Says that somebody waits, while he still has the lock: whoever needs that comes after he waits."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        self.begun.set()
        condition.wait(FOR_EVER)


@pytest.fixture
def clock() -> Waited:
    return Waited()


@pytest.fixture
def signal(clock: Waited) -> StopSignal:
    return StopSignal(Lease(TaskKey("acme", "alice", "t"), 1.0, 1, "token", "holder"), clock)


def woken(clock: Waited, wait: Callable[[], None], wake: Callable[[], None]) -> bool:
    """Tell whether a thread that waits goes on after ``wake``."""
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert clock.begun.wait(PATIENCE)
    wake()
    thread.join(PATIENCE)
    return not thread.is_alive()


class TestPause:
    def test_a_reason_ends_it(self, signal: StopSignal, clock: Waited) -> None:
        assert woken(clock, lambda: signal.pause(FOR_EVER), lambda: signal.set(StopReason.TIMEOUT))

    def test_the_end_of_the_attempt_ends_it(self, signal: StopSignal, clock: Waited) -> None:
        assert woken(clock, lambda: signal.pause(FOR_EVER), signal.end)

    def test_the_second_is_ended_as_well(self, signal: StopSignal, clock: Waited) -> None:
        assert woken(clock, lambda: signal.pause(FOR_EVER), signal.wake)
        clock.begun.clear()
        assert woken(clock, lambda: signal.pause(FOR_EVER), signal.end)

    @pytest.mark.parametrize("how", ["told", "over"])
    def test_nobody_waits_once_it_is_known(self, signal: StopSignal, clock: Waited, how: str) -> None:
        if how == "told":
            signal.set(StopReason.SHUTDOWN)
        else:
            signal.end()
        signal.pause(FOR_EVER)
        assert not clock.begun.is_set()


class TestWaitFor:
    def test_it_looks_when_it_is_woken(self, signal: StopSignal, clock: Waited) -> None:
        done = threading.Event()

        def wake() -> None:
            done.set()
            signal.wake()

        assert woken(clock, lambda: signal.wait_for(done.is_set, signal.check), wake)

    def test_it_looks_at_the_reason_as_well(self, signal: StopSignal, clock: Waited) -> None:
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                signal.wait_for(lambda: False, signal.check)
            except BaseException as error:  # noqa: BLE001  # looked at below
                raised.append(error)

        assert woken(clock, wait, lambda: signal.set(StopReason.TIMEOUT))
        assert [type(error).__name__ for error in raised] == ["OutOfTime"]
