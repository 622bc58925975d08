"""The thread around a background duty."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.duty import Duty
from tests.core.support import PATIENCE, FakeClock, Gate, background, own_threads

AGES = 1e6
ROOT = Path(__file__).parents[2]


class Rounds(Duty):
    """Counts its rounds; what a round does and returns is told from outside."""

    def __init__(self, work: Callable[[], float | None], clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__("test duty", clock)
        self.work = work
        self.threads: list[threading.Thread] = []
        self.stopped_when_asked: list[bool] = []

    def run_once(self) -> float | None:
        self.threads.append(threading.current_thread())
        return self.work()


def thread_of(duty: Duty) -> threading.Thread:
    thread = duty._thread
    assert thread is not None
    return thread


def test_rounds_go_on_with_the_pauses_they_ask_for_until_one_ends_them() -> None:
    clock = FakeClock()
    pauses: list[float | None] = [5.0, 7.0, None]
    duty = Rounds(lambda: pauses.pop(0), clock)
    done = Gate()
    duty.work = lambda: pauses.pop(0) if len(pauses) > 1 else done.pass_through() or pauses.pop(0)  # type: ignore[func-returns-value]
    duty.start(3.0)
    done.wait_entered()
    thread = thread_of(duty)
    done.open()
    thread.join(PATIENCE)
    assert clock.waited == [3.0, 5.0, 7.0]
    assert len(duty.threads) == 3
    assert not duty.running


def test_it_runs_on_a_named_daemon_thread() -> None:
    before = own_threads()  # of another file's last test one may still be on its way out
    duty = Rounds(lambda: AGES)
    duty.start(AGES)
    assert duty.running
    assert thread_of(duty).daemon
    assert [thread.name for thread in own_threads() - before] == ["task_tracker test duty"]
    duty.stop()
    assert not duty.running


def test_starting_twice_is_one_thread_and_stopping_twice_is_safe() -> None:
    duty = Rounds(lambda: AGES)
    duty.start(AGES)
    first = thread_of(duty)
    duty.start(AGES)
    assert thread_of(duty) is first
    assert duty.stop()
    assert duty.stop()
    assert not first.is_alive()
    assert duty.threads == [], "stopped before the first round was due"


def test_it_can_be_started_again() -> None:
    gate = Gate()
    duty = Rounds(lambda: gate.pass_through() or AGES)  # type: ignore[func-returns-value]
    gate.open()
    for _ in range(3):
        gate.entered.clear()
        duty.start()
        gate.wait_entered()
        duty.stop()
    assert len(duty.threads) == 3
    assert duty._ending == set(), "threads that have ended are forgotten"


def test_a_round_that_raises_is_logged_and_the_duty_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    done = Gate()
    done.open()

    def work() -> float | None:
        if len(duty.threads) == 1:
            raise RuntimeError("the first round fails")
        done.pass_through()
        return None

    duty = Rounds(work, clock)
    duty.start()
    done.wait_entered()
    duty.stop()
    assert clock.waited == [60.0]
    assert "test duty failed; it goes on" in caplog.text
    assert "the first round fails" in caplog.text


def test_stop_waits_for_the_round_under_way() -> None:
    gate = Gate()
    duty = Rounds(lambda: gate.pass_through() or AGES)  # type: ignore[func-returns-value]
    duty.start()
    gate.wait_entered()
    thread = thread_of(duty)
    with background(duty.stop) as answers:
        gate.open()
    assert answers == [True]
    assert not thread.is_alive()


def test_stop_gives_up_on_a_round_that_hangs_and_the_thread_ends_later() -> None:
    gate = Gate()
    duty = Rounds(lambda: gate.pass_through() or AGES)  # type: ignore[func-returns-value]
    duty.start()
    gate.wait_entered()
    thread = thread_of(duty)
    assert not duty.stop(timeout_seconds=0.0), "it says that the thread has not ended"
    assert thread.is_alive()
    gate.open()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert len(duty.threads) == 1


def test_started_again_while_a_told_thread_still_hangs_only_the_new_one_goes_on() -> None:
    first_round = Gate()
    later = Gate()
    later.open()

    def work() -> float:
        (first_round if len(duty.threads) == 1 else later).pass_through()
        return AGES if len(duty.threads) > 1 else 0.0

    duty = Rounds(work)
    duty.start()
    first_round.wait_entered()
    old = thread_of(duty)
    duty.stop(timeout_seconds=0.0)
    duty.start()
    new = thread_of(duty)
    assert new is not old
    later.wait_entered()
    first_round.open()
    old.join(PATIENCE)
    assert not old.is_alive(), "the thread that was told to stop went on"
    duty.stop()
    assert duty.threads == [old, new]


def test_stop_from_within_a_round_does_not_wait_for_itself() -> None:
    done = threading.Event()

    def work() -> float:
        assert not duty.stop()
        done.set()
        return 0.0

    duty = Rounds(work)
    duty.start()
    assert done.wait(PATIENCE)
    for thread in duty.threads:
        thread.join(PATIENCE)
    assert len(duty.threads) == 1
    assert not duty.running


def test_error_pause_is_a_minute_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    assert Rounds(lambda: None).on_error() == 60.0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("call", ["start(AGES)", "stop()"])
def test_a_fork_while_a_thread_holds_the_lock_leaves_a_child_that_can_start_and_stop(call: str) -> None:
    """The thread is not in the child, the lock that it holds is: as when a server builds its tracker and forks."""
    program = f"""
import os, signal, threading
from tests.core.support import Gate
from tests.core.test_duty import AGES, Rounds

duty, gate = Rounds(lambda: AGES), Gate()

def hold():
    with duty._wake:
        gate.pass_through()

duty.start(AGES)
holder = threading.Thread(target=hold, daemon=True)
holder.start()
gate.wait_entered()
child = os.fork()
if child == 0:
    signal.alarm(30)
    assert not duty.running
    duty.{call}
    assert duty.running is {"start" in call}
    duty.stop()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
gate.open()
duty.stop()
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_a_round_can_be_had_at_once() -> None:
    """Also by who asks while one is under way; where no thread runs there is nothing to hurry."""
    gate, rounds = Gate(), threading.Semaphore(0)

    def work() -> float:
        rounds.release()
        gate.pass_through()
        return AGES

    duty = Rounds(work)
    duty.soon()
    assert not duty.running
    duty.start(AGES)
    duty.soon()
    assert rounds.acquire(timeout=PATIENCE)
    duty.soon()
    gate.open()
    assert rounds.acquire(timeout=PATIENCE)
    assert duty.stop(PATIENCE)
    assert len(duty.threads) == 2


def test_a_duty_that_is_to_end_by_itself_is_waited_for() -> None:
    """It has one more round for that; one that hangs is waited for no longer than was said."""
    gate = Gate()

    def work() -> None:
        gate.pass_through()

    duty = Rounds(work)
    assert duty.end_soon(0.01), "it does not run"
    duty.start(AGES)
    assert not duty.end_soon(0.01)
    gate.wait_entered()
    gate.open()
    assert duty.end_soon(PATIENCE)
    assert len(duty.threads) == 1
