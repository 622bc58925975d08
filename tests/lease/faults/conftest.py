"""Fixtures of the tests of faults, and their numbers at the end of a run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lease.faults.figures import FIGURES, Figures

MEMORY = Path("/dev/shm")
DISK = Path("/var/tmp")


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: for tests that make thousands of files."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else tmp_path) as path:
        yield Path(path)


@pytest.fixture
def disk_path(tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk, as /var/tmp is by custom: ``tmp_path`` may be in memory too."""
    with tempfile.TemporaryDirectory(dir=DISK if os.access(DISK, os.W_OK) else tmp_path) as path:
        yield Path(path)


@pytest.fixture
def figures() -> Figures:
    return FIGURES
