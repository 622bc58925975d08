"""Time, ids and randomness."""

from __future__ import annotations

import threading
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from task_tracker.clock import (
    SYSTEM_CLOCK,
    SystemClock,
    is_generated_id,
    time_of_id,
    uuid7_text,
    wall_ns,
)
from tests.core.support import PATIENCE, PROPERTY, START, in_threads, join

MILLISECONDS = st.integers(0, 2**48 - 1)
FRACTIONS = st.integers(0, 4095)
RANDOM = st.integers(0, 2**62 - 1)


def test_now_is_rounded_to_microseconds_and_agrees_with_wall_ns() -> None:
    before = wall_ns()
    now = SYSTEM_CLOCK.now()
    after = wall_ns()
    assert now == round(now, 6)
    assert before / 1e9 - 1e-6 <= now <= after / 1e9 + 1e-6


def test_monotonic_does_not_go_back() -> None:
    times = [SYSTEM_CLOCK.monotonic() for _ in range(100)]
    assert times == sorted(times)


def test_tokens_are_32_hex_digits_and_differ() -> None:
    tokens = {SYSTEM_CLOCK.new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) == 32 and int(token, 16) >= 0 for token in tokens)


def test_jitter_is_between_half_and_whole() -> None:
    assert all(1.0 <= SYSTEM_CLOCK.jitter(2.0) <= 2.0 for _ in range(200))


@pytest.mark.parametrize("seconds", [PATIENCE, 1e12])
def test_wait_ends_when_notified_also_when_it_was_told_to_wait_for_ages(seconds: float) -> None:
    condition = threading.Condition()

    def notify() -> None:
        with condition:
            condition.notify_all()

    with condition:
        thread = threading.Thread(target=notify, daemon=True)
        thread.start()  # it gets the condition when the wait below gives it away
        SYSTEM_CLOCK.wait(condition, seconds)
    join(thread)


def test_wait_ends_when_time_is_up() -> None:
    condition = threading.Condition()
    with condition:
        SYSTEM_CLOCK.wait(condition, 0.0)


# ---- ids -------------------------------------------------------------------------------------------


@PROPERTY
@given(MILLISECONDS, FRACTIONS, RANDOM)
def test_ids_are_uuids_of_version_7_that_carry_their_time(ms: int, fraction: int, randomness: int) -> None:
    text = uuid7_text(ms, fraction, randomness)
    parsed = uuid.UUID(text)
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert str(parsed) == text
    assert is_generated_id(text)
    assert time_of_id(text) == ms / 1000


@PROPERTY
@given(st.lists(st.tuples(MILLISECONDS, FRACTIONS, RANDOM), max_size=10))
def test_ids_sort_by_creation(parts: list[tuple[int, int, int]]) -> None:
    assert sorted(uuid7_text(*part) for part in parts) == [uuid7_text(*part) for part in sorted(parts)]


def test_ids_grow_while_the_clock_stands_still() -> None:
    clock = SystemClock()
    made = [clock.new_id(START) for _ in range(10_000)]  # more than a millisecond has room for
    assert made == sorted(set(made))
    assert time_of_id(made[0]) == START
    assert time_of_id(made[-1]) - START < 0.01


def test_ids_grow_while_the_clock_steps_back_a_little() -> None:
    clock = SystemClock()
    made = [clock.new_id(START - step / 10) for step in range(9)]
    assert made == sorted(made)


def test_ids_follow_a_clock_that_was_set_back() -> None:
    clock = SystemClock()
    clock.new_id(START)
    assert time_of_id(clock.new_id(START - 3600)) == START - 3600


def test_ids_differ_between_threads() -> None:
    clock = SystemClock()
    lists = in_threads(*[lambda: [clock.new_id(START) for _ in range(500)]] * 4)
    assert len({made for some in lists for made in some}) == 2000  # type: ignore[union-attr]
    assert all(some == sorted(some) for some in lists)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "task-1",
        "0197747a-7400-4000-8000-000000000001",  # version 4
        "0197747a-7400-7000-c000-000000000001",  # another variant
        "0197747A-7400-7000-8000-000000000001",  # upper case
        "0197747a-7400-7000-8000-00000000000",
        "0197747a-7400-7000-8000-0000000000011",
        "0197747a_7400-7000-8000-000000000001",
        "0197747a-7400_7000-8000-000000000001",
        "0197747a-7400-7000_8000-000000000001",
        "0197747a-7400-7000-8000_000000000001",
        "0197747a-7400-7000-8000-0000000g0001",
        "0197747a-74-0-7000-8000-000000000001",
        "{197747a-7400-7000-8000-00000000000}",
        "0197747a-7400-7000-8000-00000000000\n",
        "\u0660197747a-7400-7000-8000-000000000001",  # a digit, but not one of ASCII
    ],
)
def test_other_ids_are_not_taken_for_generated_ones(text: str) -> None:
    assert not is_generated_id(text)
