"""What was explored, told at the end of a test run."""

from __future__ import annotations

import pytest

from tests.telling import TOLD


@pytest.fixture
def told() -> list[str]:
    """Lines for the summary."""
    return TOLD.setdefault("schedules of the lease store", [])
