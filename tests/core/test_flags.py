"""Flags: events that are made when somebody waits for them."""

from __future__ import annotations

import os
import threading

import pytest

from task_tracker.flags import Flag
from tests.core.support import PATIENCE


def test_it_is_an_event() -> None:
    flag = Flag()
    assert isinstance(flag, threading.Event)
    assert not flag.is_set()
    assert repr(flag) == "<Flag: unset>"
    flag.set()
    flag.set()
    assert flag.is_set()
    assert repr(flag) == "<Flag: set>"
    flag.clear()
    assert not flag.is_set()


def test_who_waits_is_woken() -> None:
    flag = Flag()
    seen: list[bool] = []
    waiting = [threading.Thread(target=lambda: seen.append(flag.wait(PATIENCE))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    flag.set()
    for thread in waiting:
        thread.join(PATIENCE)
    assert seen == [True] * 3


def test_who_waits_after_that_does_not_wait() -> None:
    flag = Flag()
    assert not flag.wait(0)
    flag.set()
    assert flag.wait(0)
    assert flag.wait()


def test_taken_back_it_is_waited_for_again() -> None:
    flag = Flag()
    assert not flag.wait(0)
    flag.set()
    flag.clear()
    assert not flag.wait(0)


def test_two_who_begin_to_wait_at_once_wait_for_the_same() -> None:
    for _ in range(50):
        flag, barrier = Flag(), threading.Barrier(3)
        seen: list[bool] = []

        def wait(flag: Flag = flag, barrier: threading.Barrier = barrier, seen: list[bool] = seen) -> None:
            barrier.wait(PATIENCE)
            seen.append(flag.wait(PATIENCE))

        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        barrier.wait(PATIENCE)
        flag.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert seen == [True, True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_can_set_one_though_its_parent_was_just_setting_another() -> None:
    from task_tracker import flags

    with flags._GUARD.lock:
        pid = os.fork()
        if not pid:
            flag = Flag()
            flag.set()
            os._exit(0 if flag.is_set() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
