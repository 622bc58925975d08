"""One lock per key, and no trace of it afterwards."""

from __future__ import annotations

import pytest

from task_tracker.keyed_locks import KeyedLocks
from tests.core.support import Gate, background, in_threads


def test_the_table_is_empty_again_when_nobody_waits() -> None:
    locks = KeyedLocks()
    with locks.hold("a"), locks.hold("b"):
        assert len(locks) == 2
    assert len(locks) == 0


def test_only_one_thread_at_a_time_holds_a_key() -> None:
    locks = KeyedLocks()
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(200):
            with locks.hold("a") as held:
                assert held
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    assert in_threads(*[work] * 4) == [None] * 4
    assert max(most) == 1
    assert len(locks) == 0


def test_another_key_is_not_held_up() -> None:
    locks = KeyedLocks()
    gate = Gate()

    def hold_a() -> None:
        with locks.hold("a"):
            gate.pass_through()

    with background(hold_a) as answers:
        gate.wait_entered()
        with locks.hold("b") as held:
            assert held
        gate.open()
    assert answers == [None]


def test_a_hold_with_a_limit_says_that_it_was_not_had() -> None:
    locks = KeyedLocks()
    with locks.hold("a"):
        with locks.hold("a", timeout_seconds=0) as held:
            assert held is False
            assert len(locks) == 1
        assert len(locks) == 1, "the waiter that gave up did not take the holder's entry away"
    assert len(locks) == 0
    with locks.hold("a", timeout_seconds=0) as held:
        assert held is True


def test_an_error_inside_lets_go() -> None:
    locks = KeyedLocks()
    with pytest.raises(ZeroDivisionError), locks.hold("a"):
        raise ZeroDivisionError
    assert len(locks) == 0
