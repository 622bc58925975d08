"""Fixtures of the tests with worker processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.processes.program import Place

TERMS = (6.0, 0.2)
"""Leases and heartbeats, in seconds."""


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A directory in memory where there is one."""
    lease_seconds, heartbeat_seconds = getattr(request, "param", TERMS)
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as path:
        made = Place(Path(path), lease_seconds=lease_seconds, heartbeat_seconds=heartbeat_seconds)
        with made.tracker:
            yield made
