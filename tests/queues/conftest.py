"""A Redis for these tests: a server of each test's own, or the one that TASK_TRACKER_TEST_REDIS names, or none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.queues.redis_server import RedisServer, redis_binary
from tests.runtime.work import WORK
from tests.runtime.workers import no_thread_is_left

VARIABLE = "TASK_TRACKER_TEST_REDIS"


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that the test may stop and start."""
    if redis_binary() is None:
        pytest.skip("needs the program redis-server, which these tests start and stop")
    directory = tmp_path / "redis"
    directory.mkdir()
    with RedisServer(directory) as server:
        yield server


@pytest.fixture
def redis_url(request: pytest.FixtureRequest) -> str:
    """A Redis that the test leaves as it is; it takes names of its own there."""
    if redis_binary() is not None:
        server: RedisServer = request.getfixturevalue("redis_server")
        return server.url
    url = os.environ.get(VARIABLE)
    if not url:
        pytest.skip(f"needs the program redis-server, or {VARIABLE}=redis://...")
    return url


@pytest.fixture
def site(redis_url: str, tmp_path: Path) -> Iterator[Any]:
    """A store and an ARQ worker within this process."""
    from tests.queues.sites import Site  # needs the extra `arq`

    WORK.begin()
    made = Site(redis_url, tmp_path)
    with no_thread_is_left():
        yield made
        WORK.open()
        made.close()
