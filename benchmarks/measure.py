"""How things are measured: many short samples, medians, the two sides of a ratio in turn."""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

Call = Callable[[], object]

_IMAGE_BYTES = 2 << 30
"""Of a file with holes: it takes what is written into it."""


@dataclass(frozen=True)
class Row:
    """One line of the table. ``target`` is what ``value`` must not exceed; None: a figure that is only given."""

    what: str
    value: float
    unit: str
    target: float | None = None
    detail: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.value <= self.target


def microseconds(call: Call, *, times: int = 2000) -> float:
    """Return the median time of one call, in microseconds."""
    samples = []
    gc.disable()
    try:
        for _ in range(times):
            started = time.perf_counter_ns()
            call()
            samples.append(time.perf_counter_ns() - started)
    finally:
        gc.enable()
    return statistics.median(samples) / 1000


def paired(first: Call, second: Call, *, rounds: int = 30, times: int = 50) -> tuple[float, float, float]:
    """Return median microseconds of both, and the median of the ratios of each round's medians.

    The two take turns call by call, so that a disk or a machine that changes its mood hits both.
    """
    firsts, seconds, ratios = [], [], []
    for _ in range(rounds):
        one, two = _in_turn(first, second, times)
        firsts.append(one)
        seconds.append(two)
        ratios.append(one / two)
    return statistics.median(firsts), statistics.median(seconds), statistics.median(ratios)


def _in_turn(first: Call, second: Call, times: int) -> tuple[float, float]:
    samples: tuple[list[int], list[int]] = ([], [])
    gc.disable()
    try:
        for _ in range(times):
            for call, taken in zip((first, second), samples, strict=True):
                started = time.perf_counter_ns()
                call()
                taken.append(time.perf_counter_ns() - started)
    finally:
        gc.enable()
    return statistics.median(samples[0]) / 1000, statistics.median(samples[1]) / 1000


def file_system(path: Path) -> str:
    """Return the type of the file system that a directory is on, as the kernel calls it; "unknown" elsewhere."""
    mounts = Path("/proc/self/mounts")
    if not path.is_dir() or not mounts.is_file():
        return "unknown"
    found, best = "unknown", -1
    real = path.resolve()
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        _, place, kind, *_ = line.split(" ")
        point = Path(place.replace("\\040", " "))
        if (
            real.is_relative_to(point) and len(point.parts) >= best
        ):  # of two at one place the later one counts
            found, best = kind, len(point.parts)
    return found


@contextmanager
def directory(base: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a fresh directory below ``base`` and remove it afterwards."""
    Path(base).mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def journalled(scratch: Path) -> Iterator[Path | None]:
    """Give a directory on ext4 as mkfs makes it, in a file that is mounted for this; None where that cannot be done.

    That takes root, a loop device and mkfs.ext4. The disk of many a virtual machine has no journal, and ext4 looks
    there at every inode that was removed in the last minutes whenever it makes a new one.
    """
    with directory(scratch) as place:
        image, point = place / "image", place / "mounted"
        point.mkdir()
        with image.open("wb") as file:
            file.truncate(_IMAGE_BYTES)
        try:
            subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, capture_output=True)
            subprocess.run(["mount", "-o", "loop", image, point], check=True, capture_output=True)
        except (OSError, subprocess.SubprocessError):
            yield None
            return
        try:
            yield point
        finally:
            subprocess.run(["umount", point], check=True, capture_output=True)
