"""A process is killed, stopped or refused at each of its system calls in turn, for real, by strace."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.lease.faults.drivers import run_shares, shown
from tests.lease.faults.figures import Figures

IN_MEMORY_EVERY = 30
ON_DISK_EVERY = 70
SOME = 7


def crash(
    places: list[Path], every: int, where: str, figures: Figures, *, among: int | None = None
) -> Counter[str]:
    """Inject into all scenes (two in ``among``); return how often, by kind."""
    injections: Counter[str] = Counter()
    failures: list[str] = []
    for answer in run_shares("crashing", places, "--every", every, among=among):
        injections.update(answer["injections"])
        figures.add(
            f"of those that were stopped, {where}, lost their lease and were told so", answer["fenced"]
        )
        failures.extend(answer["failures"])
    for kind, number in injections.items():
        figures.add(f"injections with strace, {where}, {kind}", number)
    assert not failures, shown(failures)
    assert injections.pop("missed", 0) <= injections.total() / 20
    return injections


def test_crash_points_in_memory(fast_path: Path, figures: Figures) -> None:
    """Killed, stopped and taken over and continued, refused by a full or a broken disk, also while cleaning up."""
    injections = crash([fast_path / "0", fast_path / "1"], IN_MEMORY_EVERY, "tmpfs", figures)
    assert injections.total() >= 150
    assert injections.keys() == {"kill", "stop", "refuse", "recovery"}


def test_crash_points_on_disk(disk_path: Path, figures: Figures) -> None:
    """Some of them also on a file system that has a disk under it."""
    injections = crash([disk_path / "0", disk_path / "1"], ON_DISK_EVERY, "disk", figures, among=SOME)
    assert injections.total() >= 40


def test_a_writer_that_writes_in_place_is_found_out(fast_path: Path) -> None:
    """Killed, it leaves half a record; stopped and continued, it overwrites what was taken over."""
    (answer,) = run_shares("crashing", [fast_path / "0"], "--scene", "careless", "--kinds", "kill,stop")
    failures = " ".join(answer["failures"])
    assert "is not whole" in failures
    assert "was taken over and changed after that" in failures


@pytest.mark.slow
def test_all_crash_points_in_memory(fast_path: Path, figures: Figures) -> None:
    """Every system call of every operation, and of what cleans up after it."""
    injections = crash([fast_path / "0", fast_path / "1"], 1, "tmpfs", figures)
    assert injections.total() >= 1500


@pytest.mark.slow
def test_many_crash_points_on_disk(disk_path: Path, figures: Figures) -> None:
    injections = crash([disk_path / "0", disk_path / "1"], 4, "disk", figures)
    assert injections.total() >= 300
