"""The same over PostgreSQL: nothing here knows which store it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.postgres.fixtures import ground, grounds
from tests.queues.sites import Site, run
from tests.runtime.work import WORK, until

if TYPE_CHECKING:
    from tests.postgres.grounds import Ground

__all__ = ["ground", "grounds"]

# ARQ's own: it closes its connections with a call that redis-py has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated close:DeprecationWarning")


def test_two_workers_share_what_was_announced_and_what_was_not(
    ground: Ground,
    redis_url: str,
    tmp_path: Path,
) -> None:
    """[D118] Each runs once, and a limit over all workers holds."""
    WORK.begin()
    site = Site(redis_url, tmp_path)
    site.store = ground.store()
    tasks = [site.submit("single") for _ in range(10)]
    tasks += [site.submit("note", told=False) for _ in range(10)]

    async def main() -> None:
        async with site.working(site.tasks(send_seconds=0.5)), site.working(site.tasks(send_seconds=0.5)):
            await until(lambda: all(site.seen(task).status == "completed" for task in tasks))

    run(main())
    assert sorted(WORK.begun) == sorted(task.task_id for task in tasks)
    site.close()
