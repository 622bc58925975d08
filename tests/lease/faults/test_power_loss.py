"""The power goes out: what was not synced is gone, and what was promised is there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.lease.faults.drivers import run_shares, shown
from tests.lease.faults.figures import Figures

SOME = 200
SOME_FSYNCS = 5


def cut(place: Path, every: int, figures: Figures) -> Counter[str]:
    """Cut the power in every story at every level; return how many states there were."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    for answer in run_shares("power_loss", [place / "0", place / "1"], "--every", every):
        counts.update(answer["counts"])
        failures.extend(answer["failures"])
    for name, number in counts.items():
        figures.add(f"states after a power cut, {name}", number)
    assert not failures, shown(failures)
    return counts


def test_some_of_all_power_cuts(fast_path: Path, figures: Figures) -> None:
    """[D072] Whole records, no older than the level promises, and a good end for everything."""
    counts = cut(fast_path, SOME, figures)
    assert counts.total() >= 1000


@pytest.mark.slow
def test_all_power_cuts(fast_path: Path, figures: Figures) -> None:
    """[D072]"""
    counts = cut(fast_path, 1, figures)
    assert counts.total() >= 10_000


def leave_out(place: Path, every: int, figures: Figures) -> int:
    """Leave out every Nth fsync, each alone; return how many that were."""
    left_out = 0
    unnoticed: list[str] = []
    for answer in run_shares("power_loss", [place / "0", place / "1"], "--mutants", "--every", every):
        left_out += answer["counts"].get("fsyncs left out", 0)
        unnoticed.extend(answer["unnoticed"])
    figures.add("fsyncs left out", left_out)
    assert not unnoticed, shown(unnoticed)
    return left_out


def test_some_of_all_fsyncs_are_needed(fast_path: Path, figures: Figures) -> None:
    """[D072] Leave one out, and there is a power cut after which something promised is gone."""
    assert leave_out(fast_path, SOME_FSYNCS, figures) >= 30


@pytest.mark.slow
def test_each_fsync_is_needed(fast_path: Path, figures: Figures) -> None:
    """[D072]"""
    assert leave_out(fast_path, 1, figures) >= 200
