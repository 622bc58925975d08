"""Workers that are killed and frozen in the middle of their tasks: each task ends once, and nothing late counts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.runtime.processes.chaos import Plan, conduct


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    """In memory where there is such a disk: this makes thousands of files."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as path:
        yield path


def tell(told: list[str], figures: Mapping[str, int]) -> None:
    told.extend(f"chaos of workers, {name}: {number}" for name, number in sorted(figures.items()))


def test_a_short_chaos_leaves_no_trace(directory: str, told: list[str]) -> None:
    """Every task ends exactly once, what may not run twice does not begin twice, a cancelled one does not begin."""
    chaos = conduct(Plan(directory, seed=1, workers=3, tasks=200, kills=6, freezes=6, cancels=15))
    tell(told, chaos["figures"])
    assert chaos["violations"] == []
    assert chaos["figures"]["completed"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_a_long_chaos_leaves_no_trace(directory: str, seed: int, told: list[str]) -> None:
    """The same with thousands of tasks."""
    chaos = conduct(Plan(directory, seed=seed, workers=4, tasks=2500, kills=80, freezes=80, cancels=200))
    tell(told, chaos["figures"])
    assert chaos["violations"] == []
    figures = chaos["figures"]
    assert figures["completed"] > 1000
    assert figures["failed:holder_lost"] > 10
    assert figures["cancelled"] > 50
