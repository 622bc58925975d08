"""Fixtures of the tests of file systems."""

from __future__ import annotations

from pathlib import Path

import pytest

from task_tracker.testing import RecordMaker
from tests.objects.server import s3_server, shared_server

__all__ = ["s3_server", "shared_server"]


@pytest.fixture
def make() -> RecordMaker:
    return RecordMaker()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root
