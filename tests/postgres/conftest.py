"""Fixtures of the tests of the store on PostgreSQL."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from task_tracker.testing import RecordMaker
from tests.postgres.fixtures import bare, ground, grounds, one, sync

__all__ = ["bare", "ground", "grounds", "one", "sync"]

if find_spec("psycopg") is None:  # the extra `postgres` has it
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def make() -> RecordMaker:
    return RecordMaker(own_fields=False)
