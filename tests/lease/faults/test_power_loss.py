"""The power goes out: what was not synced is gone, and what was promised is there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.lease.faults.drivers import run_shares, shown
from tests.lease.faults.figures import Figures

SOME = 30


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


def test_each_fsync_is_needed(fast_path: Path, figures: Figures) -> None:
    """[D072] Leave one out, and there is a power cut after which something promised is gone."""
    unnoticed: list[str] = []
    for answer in run_shares("power_loss", [fast_path / "0", fast_path / "1"], "--mutants"):
        figures.add("fsyncs left out", answer["counts"].get("fsyncs left out", 0))
        unnoticed.extend(answer["unnoticed"])
    assert not unnoticed, shown(unnoticed)
