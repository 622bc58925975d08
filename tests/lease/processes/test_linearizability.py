"""Histories of real processes on one task, explained call by call, or else the store is wrong."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from stores.memory import InMemoryTaskStore
from tests.lease.processes.contract import ABSENT, apply, prepared
from tests.lease.processes.histories import History, record_histories, record_threads
from tests.lease.processes.linear import linearize

QUICK, LONG = 120, 2000
SHORT_LEASE_SECONDS = 0.12
LEASE = {"durability": "none", "lock_timeout_seconds": 0.01}
"""A task that was left half-way by the dead is waited for in vain: briefly."""

each_number = pytest.mark.parametrize("number", [QUICK, pytest.param(LONG, marks=pytest.mark.slow)])


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads that take turns all the time, and not every five milliseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def check(histories: list[History], lease_seconds: float) -> Counter[tuple[str, str]]:
    """Check all; return how often which call was answered how."""
    for history in histories:
        linearize(prepared(history, lease_seconds), ABSENT, apply)
    return Counter(
        (event.call, "unknown" if event.answer is None else event.answer[0])
        for history in histories
        for event in history
    )


@each_number
def test_processes_on_the_lease_store(fast_path: Path, number: int) -> None:
    histories, killed = record_histories("lease", LEASE, fast_path, number=number, seed=2)
    answers = check(histories, 30.0)
    assert len(histories) == number
    assert killed > number // 50, "kills come in time to hit something"
    assert answers["claim", "ok"] > number // 4
    assert answers["commit", "ok"] > number // 4
    assert answers["take_over", "ok"] == 0


@each_number
def test_processes_that_take_over_on_the_lease_store(fast_path: Path, number: int) -> None:
    """A quarter as many: who takes over has to wait for it."""
    options = LEASE | {"lease_seconds": SHORT_LEASE_SECONDS}
    histories, _ = record_histories("lease", options, fast_path, number=number // 4, seed=3, robbing=True)
    answers = check(histories, SHORT_LEASE_SECONDS)
    assert answers["take_over", "ok"] > number // 20


@each_number
def test_processes_on_the_persistent_store(fast_path: Path, number: int) -> None:
    histories, killed = record_histories(
        "persistent", {"durability": "none"}, fast_path, number=number, seed=1
    )
    answers = check(histories, 30.0)
    assert len(histories) == number
    assert killed > number // 50, "kills come in time to hit something"
    assert answers["update", "ok"] > number
    assert answers["update", "conflict"] > number // 8


@each_number
@pytest.mark.usefixtures("eager_threads")
def test_threads_on_the_store_in_memory(number: int) -> None:
    store = InMemoryTaskStore()
    answers = check([record_threads(store, seed=seed) for seed in range(number)], math.inf)
    assert answers["claim", "ok"] > number // 4


@each_number
@pytest.mark.usefixtures("eager_threads")
def test_threads_that_take_over_in_memory(number: int) -> None:
    lease_seconds = SHORT_LEASE_SECONDS / 2
    store = InMemoryTaskStore(lease_seconds=lease_seconds)
    histories = [record_threads(store, seed=seed, robbing=True) for seed in range(number // 4)]
    assert check(histories, lease_seconds)["take_over", "ok"] > number // 20
