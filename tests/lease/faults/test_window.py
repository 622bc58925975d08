"""The window in the kernel: commits race take-overs, and none lands late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lease.faults.drivers import run
from tests.lease.faults.figures import Figures

SHORT = 800


def race(place: Path, rounds: int, figures: Figures, *options: str) -> dict[str, Any]:
    """Race; return what was counted."""
    place.mkdir()
    (tally,) = run("window", [place, "--rounds", rounds, *options])
    how = "without the purge" if options else "with it"
    figures.say(
        f"commit against take-over, {how}, {place.parent.name}: {tally['rounds']} rounds, {tally['landed']} commits "
        f"landed, {tally['late']} late: {tally['verdict']}"
    )
    return tally


def check_safe(tally: dict[str, Any], rounds: int) -> None:
    assert tally["rounds"] == rounds
    assert tally["late"] == 0
    assert tally["landed"] > 0, "the commit never won: this was no race"


def test_no_commit_lands_after_a_take_over(fast_path: Path, disk_path: Path, figures: Figures) -> None:
    check_safe(race(fast_path / "memory", SHORT, figures), SHORT)
    check_safe(race(disk_path / "disk", SHORT // 4, figures), SHORT // 4)


@pytest.mark.slow
def test_no_commit_of_many_lands_after_a_take_over(
    fast_path: Path, disk_path: Path, figures: Figures
) -> None:
    check_safe(race(fast_path / "memory", 100_000, figures), 100_000)
    check_safe(race(disk_path / "disk", 10_000, figures), 10_000)


@pytest.mark.slow
def test_without_the_purge_some_do(disk_path: Path, fast_path: Path, figures: Figures) -> None:
    """That the race can be lost at all is what makes the other tests say something."""
    tallies = [
        race(disk_path / "disk", 10_000, figures, "--no-purge"),
        race(fast_path / "memory", 50_000, figures, "--no-purge"),
    ]
    if not any(tally["late"] for tally in tallies):
        pytest.skip(str(tallies[0]["verdict"]))
