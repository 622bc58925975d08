"""Fixtures of the tests of the lease store."""

from pathlib import Path

import pytest

from stores.files.lease.store import LeaseTaskStore
from task_tracker.testing import RecordMaker
from tests.lease.support import open_store


@pytest.fixture
def make() -> RecordMaker:
    return RecordMaker()


@pytest.fixture
def store(tmp_path: Path) -> LeaseTaskStore:
    return open_store(tmp_path)
