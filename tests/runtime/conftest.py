"""What most tests of the runtime begin with; and a PostgreSQL server, for those on every store with leases."""

from collections.abc import Iterator

import pytest

from tests.postgres.fixtures import ground, grounds
from tests.runtime.work import WORK
from tests.runtime.workers import Crew, no_thread_is_left

__all__ = ["crew", "fresh_work", "ground", "grounds"]


@pytest.fixture
def fresh_work() -> Iterator[None]:
    """Nothing is left of what the handlers of the last test did, and no thread of this one."""
    WORK.begin()
    with no_thread_is_left():
        yield


@pytest.fixture
def crew() -> Crew:
    return Crew()
