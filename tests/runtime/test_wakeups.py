"""Wake-ups: hints that reach who waits, are remembered for who is about to, and fail nobody."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence

import pytest

from task_tracker.records import TaskKey
from task_tracker.testing import FakeClock
from task_tracker.wakeups import WAKE_SECONDS, InProcessWakeUp, NoWakeUp, WakeUp, Waking
from task_tracker.worker.listening import Listener
from tests.core.support import PATIENCE, background, in_threads, join, own_threads

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


# ---- ways that hang ----------------------------------------------------------------------------------


class Hanging(Broken):
    """A way on which calls wait until the test opens it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Semaphore(0)
        self.opened = threading.Event()

    def wake(self, keys: Sequence[TaskKey]) -> None:
        self.calls += 1
        self.begun.release()
        assert self.opened.wait(PATIENCE), "nobody opened it"


def hang(waking: Waking, way: Hanging, clock: FakeClock) -> None:
    """Have one that hangs, until it is given up."""
    with background(lambda: waking.wake(KEYS)) as answers:
        assert way.begun.acquire(timeout=PATIENCE)
        clock.until_waiting()
        clock.advance(WAKE_SECONDS)
    assert answers == [False]


@pytest.fixture
def threads() -> Iterator[Callable[[], list[threading.Thread]]]:
    """The threads that wake others just now; none is left at the end."""

    def now() -> list[threading.Thread]:
        return [thread for thread in own_threads() if thread.name == "task_tracker wake-up"]

    yield now
    for thread in now():
        join(thread)


Threads = Callable[[], list[threading.Thread]]


def open_again(way: Hanging, threads: Threads) -> None:
    way.opened.set()
    for thread in threads():
        join(thread)


def test_one_that_hangs_is_waited_for_five_seconds_and_counts_as_failed(
    clock: FakeClock, threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    way = Hanging()
    waking = Waking(way, clock)
    hang(waking, way, clock)
    assert waking.failures == 1
    assert "within 5 s" in str(caplog.records[0].exc_info)
    open_again(way, threads)
    assert waking.failures == 1, "one that comes to its end after all fails nobody twice"
    assert waking.wake(KEYS) is True
    assert waking.close() is True


def test_while_many_hang_the_next_ones_fail_at_once(clock: FakeClock, threads: Threads) -> None:
    """Whoever submits a thousand tasks does not wait a thousand times; one that ends makes room for another."""
    way = Hanging()
    waking = Waking(way, clock)
    for _ in range(4):
        hang(waking, way, clock)
    assert [waking.wake(KEYS) for _ in range(100)] == [False] * 100
    assert (way.calls, waking.failures, len(threads())) == (4, 104, 4)
    open_again(way, threads)
    assert waking.wake(KEYS) is True


def test_the_end_leaves_no_thread_but_that_which_hangs(
    clock: FakeClock, threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    way = Hanging()
    waking = Waking(way, clock)
    hang(waking, way, clock)
    caplog.clear()
    with background(waking.close) as answers:
        clock.until_waiting()
        clock.advance(1)
    assert answers == [False]
    assert [record.__dict__["event"] for record in caplog.records] == ["wake_ups_left_behind"]
    (thread,) = threads()
    assert thread.daemon, "an exit does not wait for it"
    assert waking.wake(KEYS) is False, "nobody is woken after the end"
    assert way.calls == 1
    open_again(way, threads)
    assert waking.close() is True


def test_the_end_waits_for_one_that_is_on_its_way(clock: FakeClock, threads: Threads) -> None:
    way = Hanging()
    waking = Waking(way, clock)
    hang(waking, way, clock)
    with background(waking.close) as answers:
        clock.until_waiting()
        way.opened.set()
    assert answers == [True]


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_ways_within_the_process_need_no_thread(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    for way in (InProcessWakeUp(clock), NoWakeUp(clock)):
        assert Waking(way, clock).wake(KEYS) is True


def test_without_a_thread_nobody_is_woken(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    waking = Waking(Hanging(), clock)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert waking.wake(KEYS) is False
    assert waking.failures == 1


def test_a_way_sees_the_context_variables_of_who_submits(clock: FakeClock) -> None:
    trace = contextvars.ContextVar("trace", default="")
    seen = []

    class Traced(Broken):
        def wake(self, keys: Sequence[TaskKey]) -> None:
            seen.append(trace.get())

    trace.set("request-1")
    assert Waking(Traced(), clock).wake(KEYS) is True
    assert seen == ["request-1"]


# ---- a worker that listens -----------------------------------------------------------------------------


class Stuck(Broken):
    """A way on which neither waiting nor the end of it comes to an end."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()
        self.waiting = threading.Event()
        self.interrupts = 0

    def wait(self, seconds: float) -> bool:
        self.waiting.set()
        assert self.opened.wait(PATIENCE)
        return False

    def interrupt(self) -> None:
        self.interrupts += 1
        assert self.opened.wait(PATIENCE)


def test_an_interrupt_that_hangs_is_not_waited_for(clock: FakeClock, threads: Threads) -> None:
    way = Stuck()
    listener = Listener(way, clock, lambda: None)
    listener.start()
    assert way.waiting.wait(PATIENCE)
    assert listener.finish(0.0) is False
    assert listener.finish(0.0) is False
    assert way.interrupts == 1
    way.opened.set()
    for thread in threads():
        join(thread)


def test_an_interrupt_that_ends_the_program_does_not(clock: FakeClock, threads: Threads) -> None:
    class Exits(InProcessWakeUp):
        def interrupt(self) -> None:
            super().interrupt()
            raise SystemExit(2)

    listener = Listener(Exits(clock), clock, lambda: None)
    listener.start()
    clock.until_waiting()
    assert listener.finish(5.0) is True


def test_a_way_that_does_not_wait_takes_no_core(clock: FakeClock) -> None:
    heard: list[int] = []
    assert Listener(Broken(), clock, lambda: heard.append(1)).run_once() == pytest.approx(0.02)
    assert heard == []
    way = InProcessWakeUp(clock)
    way.wake(KEYS)
    assert Listener(way, clock, lambda: heard.append(1)).run_once() == 0.0
    assert heard == [1]
