"""Fixtures: a PostgreSQL server for the session, and schemas on it. Without one, tests are skipped in one line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.postgres.grounds import Ground, Grounds
    from tests.postgres.transacting import Bench

__all__ = ["bare", "ground", "grounds", "one", "sync"]


@pytest.fixture(scope="session")
def grounds() -> Iterator[Grounds]:
    pytest.importorskip("psycopg", reason="psycopg is not installed: the extra `postgres` has it")
    from tests.postgres.grounds import Grounds
    from tests.postgres.server import NoServer, found_or_started

    try:
        with found_or_started() as dsn:
            grounds = Grounds(dsn)
            yield grounds
            grounds.close()
    except NoServer as error:
        pytest.skip(str(error))


@pytest.fixture
def ground(grounds: Grounds) -> Iterator[Ground]:
    """An empty schema with the tables in it."""
    ground = grounds.take()
    yield ground
    grounds.give_back(ground)


@pytest.fixture
def bare(grounds: Grounds) -> Ground:
    """A schema that is not there yet."""
    return grounds.take(migrated=False)


@pytest.fixture(params=[False, True], ids=["async", "sync"])
def sync(request: pytest.FixtureRequest) -> bool:
    """Which kind of handlers a test is about."""
    return bool(request.param)


@pytest.fixture
def one(ground: Ground, sync: bool) -> Iterator[Bench]:
    """A bench for attempts that write rows of their own."""
    from tests.postgres.transacting import bench

    with bench(ground, sync=sync) as made:
        yield made
