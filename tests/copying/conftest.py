"""Pairs of stores, and the servers for those that need them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.copying.places import LEASE_PAIRS, PAIRS, PLACES, Pair
from tests.objects.server import s3_server, shared_server
from tests.postgres.fixtures import grounds

__all__ = ["grounds", "s3_server", "shared_server"]


@pytest.fixture(params=PAIRS, ids="-to-".join)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Return two empty places with a store on each."""
    yield from _opened(request, tmp_path, *request.param)


@pytest.fixture(params=LEASE_PAIRS, ids="-to-".join)
def leases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Return two places with leases."""
    yield from _opened(request, tmp_path, *request.param)


@pytest.fixture
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Return one without leases and one with."""
    yield from _opened(request, tmp_path, "persistent", "lease")


def _opened(request: pytest.FixtureRequest, root: Path, source: str, target: str) -> Iterator[Pair]:
    ways = [(PLACES[kind], root / place) for kind, place in ((source, "old"), (target, "new"))]
    for _, directory in ways:
        directory.mkdir()
    one, other = (make(request, directory) for make, directory in ways)
    with closing(one.open()) as opened, closing(other.open()) as into:
        yield Pair(one, other, opened, into)
    one.close()
    other.close()
