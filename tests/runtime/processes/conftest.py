"""Fixtures of the tests with worker processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.processes.program import Place

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Real processes that wait for leases of a second and a half to run out.
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A directory in memory where there is one, and leases of a second and a half."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as path:
        made = Place(Path(path), lease_seconds=1.5)
        with made.tracker:
            yield made
