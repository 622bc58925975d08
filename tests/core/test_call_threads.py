"""Threads for calls that may hang: who gets one, and how they end."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from task_tracker.call_threads import CallThreads, NoThread, Share
from tests.core.support import PATIENCE, Gate, in_threads, join, own_threads


@pytest.fixture
def threads() -> Iterator[CallThreads]:
    made = CallThreads(4)
    yield made
    assert made.close(PATIENCE, time.monotonic) == 0


def passing(gate: Gate, answer: object = None) -> Any:
    def call() -> object:
        gate.pass_through()
        return answer

    return call


def test_a_call_gives_its_answer_or_its_error(threads: CallThreads) -> None:
    assert threads.submit(lambda: 5).result(PATIENCE) == 5
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(PATIENCE)
    assert threads.submit(lambda: 6).result(PATIENCE) == 6, "the thread outlives an error"


def test_a_thread_that_is_free_is_used_again(threads: CallThreads) -> None:
    before = own_threads()
    for number in range(20):
        assert threads.submit(partial(int, number)).result(PATIENCE) == number
    assert len(own_threads() - before) <= 2, (
        "the second one is for a call that came before the first was idle"
    )


def test_calls_at_once_never_wait_for_each_other_while_there_are_threads(threads: CallThreads) -> None:
    """Two calls that both count on the one idle thread: the second would wait for a first that hangs."""
    threads.submit(lambda: None).result(PATIENCE)
    gates = [Gate() for _ in range(4)]
    answers = [threads.submit(passing(gate, number)) for number, gate in enumerate(gates)]
    for gate in gates:
        gate.wait_entered()
    for gate in gates:
        gate.open()
    assert [answer.result(PATIENCE) for answer in answers] == [0, 1, 2, 3]


def test_who_has_used_up_his_share_waits_and_others_pass_him(threads: CallThreads) -> None:
    """[D123]"""
    gate, share = Gate(), Share("stuck", 1)
    first = threads.submit(passing(gate, "first"), share)
    second = threads.submit(lambda: "second", share)
    assert threads.submit(lambda: "other", Share("other", 1)).result(PATIENCE) == "other"
    assert not second.done()
    gate.open()
    assert [first.result(PATIENCE), second.result(PATIENCE)] == ["first", "second"]
    assert threads.close(PATIENCE, time.monotonic) == 0
    assert not threads._running
    assert len(threads) == 0


def test_what_waits_for_its_share_waits_for_more_than_a_thread(threads: CallThreads) -> None:
    gate, share = Gate(), Share("stuck", 1)
    threads.submit(passing(gate), share)
    gate.wait_entered()
    waiting = threads.submit(lambda: None, share)
    assert len(threads) == 1
    before = threads.has_more
    threads.post("patient", lambda: None, patient=True)
    assert (before, threads.has_more) == (False, True)
    gate.open()
    waiting.result(PATIENCE)


def test_a_call_can_be_taken_back_until_it_begins(threads: CallThreads) -> None:
    gate, share = Gate(), Share("stuck", 1)
    running = threads.submit(passing(gate), share)
    gate.wait_entered()
    waiting = threads.submit(lambda: pytest.fail("it was taken back"), share)
    assert threads.withdraw(waiting)
    assert not threads.withdraw(running)
    gate.open()
    running.result(PATIENCE)
    assert len(threads) == 0


def test_closing_lets_all_that_wait_run_and_refuses_what_comes_then(threads: CallThreads) -> None:
    gate, share = Gate(), Share("one", 1)
    calls = [threads.submit(passing(gate, number), share) for number in range(3)]
    gate.wait_entered()
    threads.end()
    with pytest.raises(RuntimeError, match="told to end"):
        threads.submit(lambda: None)
    gate.open()
    assert threads.close(PATIENCE, time.monotonic) == 0
    assert [call.result(0) for call in calls] == [0, 1, 2]


def test_closing_says_how_many_calls_it_left_behind() -> None:
    """[D097]"""
    threads, gate = CallThreads(2), Gate()
    threads.submit(lambda: None).result(PATIENCE)
    hanging = threads.submit(passing(gate))
    gate.wait_entered()
    assert threads.close(0.01, time.monotonic) == 1
    gate.open()
    hanging.result(PATIENCE)


def test_a_system_without_threads_to_give_makes_calls_wait(
    threads: CallThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    first = threads.submit(passing(gate))
    gate.wait_entered()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        second = threads.submit(lambda: 2)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            CallThreads(1).submit(lambda: None)
    gate.open()
    first.result(PATIENCE)
    assert second.result(PATIENCE) == 2


def test_prompt_threads_refuse_what_would_have_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """For whom a call that waits behind another is as good as none; one that is free is used."""
    threads, gate = CallThreads(3, prompt=True), Gate()
    first = threads.submit(passing(gate))
    gate.wait_entered()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert threads.expand() is False
        for _ in range(2):
            with pytest.raises(NoThread, match="can't start new thread"):
                threads.submit(lambda: None)
        assert len(threads) == 0, "what is refused does not wait"
    assert threads.expand() is True
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        second = threads.submit(lambda: 2)  # whether the new thread waits yet, or is on its way to that
        assert second.result(PATIENCE) == 2
    gate.open()
    first.result(PATIENCE)
    assert threads.expand() is True
    assert threads.expand() is True, "as many as there may be are enough"
    assert threads.close(PATIENCE, time.monotonic) == 0


def test_an_idle_thread_keeps_no_answer_alive(threads: CallThreads) -> None:
    class Answer:
        pass

    future = threads.submit(Answer)
    kept = weakref.ref(future.result(PATIENCE))
    del future
    threads.submit(lambda: None).result(PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while kept() is not None and time.monotonic() < deadline:
        gc.collect()  # the thread may be between the answer and its next wait
    assert kept() is None


def test_many_callers_with_shares_all_get_their_turn(threads: CallThreads) -> None:
    """No call is forgotten, whoever gives back and whoever asks at the same time."""
    lock = threading.Lock()
    inside: dict[int, int] = {}
    most: dict[int, int] = {}

    def call(subject: int) -> int:
        with lock:
            inside[subject] = inside.get(subject, 0) + 1
            most[subject] = max(most.get(subject, 0), inside[subject])
        with lock:
            inside[subject] -= 1
        return subject

    def ask() -> list[int]:
        futures = [threads.submit(partial(call, number % 5), Share(number % 5, 2)) for number in range(200)]
        return [future.result(PATIENCE) for future in futures]

    for answers in in_threads(*[ask] * 6):
        assert answers == [number % 5 for number in range(200)]
    assert max(most.values()) <= 2
    assert threads.close(PATIENCE, time.monotonic) == 0
    assert not threads._running


def test_threads_that_are_told_to_end_end_by_themselves() -> None:
    before = own_threads()
    threads = CallThreads(1)
    threads.submit(lambda: None).result(PATIENCE)
    (thread,) = own_threads() - before
    threads.end()
    join(thread)


def test_a_patient_call_waits_for_a_thread_at_work_until_somebody_hurries(threads: CallThreads) -> None:
    gate, made = Gate(), threading.Event()
    threads.submit(passing(gate))
    gate.wait_entered()
    before = own_threads()
    threads.post("patient", made.set, patient=True)
    assert own_threads() == before
    assert (len(threads), made.is_set()) == (1, False)
    assert threads.hurry()
    assert made.wait(PATIENCE), "on a thread of its own: the other one is still busy"
    assert not threads.hurry(), "nothing waits"
    gate.open()


def test_a_patient_call_wakes_a_thread_if_none_is_at_work(threads: CallThreads) -> None:
    for made in (threading.Event(), threading.Event()):
        threads.post(made, made.set, patient=True)
        assert made.wait(PATIENCE)
