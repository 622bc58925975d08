"""ArqTasks within this process: an ARQ worker runs durable tasks beside its other functions."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import redis
from arq.worker import func

from stores import LeaseTaskStore
from task_tracker import HandlerRegistry
from task_tracker.queues.arq import longest_seconds
from task_tracker.records import TaskKey
from task_tracker.worker.executor import IMPORT_SECONDS
from tests.queues.sites import Site, run, worker_ready
from tests.runtime.work import WORK, until

# ARQ's own: it closes its connections with a call that redis-py has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated close:DeprecationWarning")


# ---- running -----------------------------------------------------------------------------------------


def test_what_is_submitted_is_run_once_and_leaves_nothing_in_redis(site: Site) -> None:
    tasks = [site.submit("note", payload=number) for number in range(5)]

    async def main() -> None:
        worker = await site.burst(site.tasks())
        assert (worker.jobs_failed, worker.jobs_retried) == (0, 0)
        assert worker.jobs_complete >= 5  # a task may be announced again that just begins

    run(main())
    assert sorted(WORK.begun) == sorted(task.task_id for task in tasks)
    assert [site.seen(task).result for task in tasks] == list(range(5))
    with redis.Redis.from_url(site.url) as client:
        assert client.keys("arq:*") == []


def test_what_fails_fails_in_the_store_and_not_in_arq(site: Site) -> None:
    """[D056] ARQ would try again, or keep the error with whatever it quotes."""
    task = site.submit("boom")

    async def main() -> None:
        worker = await site.burst(site.tasks())
        assert (worker.jobs_complete, worker.jobs_failed, worker.jobs_retried) == (1, 0, 0)

    run(main())
    assert site.seen(task).status == "failed"
    assert len(WORK.runs) == 1


def test_stale_and_double_messages_do_nothing(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """[D118] Of a task that ended, is gone, or runs elsewhere; and one that is none of this library's."""
    done, gone, elsewhere = (site.submit("note") for _ in range(3))
    way = site.way()

    async def main() -> None:
        await site.burst(site.tasks())
        assert len(WORK.runs) == 3
        site.store.delete(gone.key)
        taken = site.submit("note")
        assert site.store.claim(taken.key, holder="elsewhere") is not None
        way.wake([done.key, gone.key, elsewhere.key, taken.key, TaskKey("nobody", "nobody", "nothing")])
        durable = site.tasks()
        async with site.working(durable) as worker:
            await worker_ready(worker)
            await worker.pool.enqueue_job("task_tracker", "one argument", _queue_name=site.queue_name)
            await until(lambda: worker.jobs_complete >= 6)
        assert (worker.jobs_failed, worker.jobs_retried) == (0, 0)
        assert site.seen(taken).status == "running"

    with caplog.at_level(logging.DEBUG, "task_tracker"):
        run(main())
    assert len(WORK.runs) == 3
    words = [r.__dict__["word"] for r in caplog.records if r.__dict__.get("event") == "arq_message"]
    assert words == ["ran"] * 3 + ["nothing"] * 6
    assert site.waiting() == 0


def test_a_message_runs_whatever_is_next(site: Site) -> None:
    """Ids are hints: what the store puts first goes first, and the one spoken of gets another message."""
    low = site.submit("note")
    urgent = site.submit("note", told=False, priority=9)
    run(site.burst(site.tasks(concurrency=1)))
    assert WORK.begun[0] == urgent.task_id
    run(site.burst(site.tasks()))
    assert WORK.begun == [urgent.task_id, low.task_id]


def test_what_another_runs_under_its_name_is_announced_under_the_next_one(site: Site) -> None:
    """ARQ holds the name of a message while it is worked on, here by a task that others submitted."""
    spoken_of = site.submit("note")
    long = site.submit("hold", told=False, priority=9)

    async def main() -> None:
        async with site.working(site.tasks()):
            await until(lambda: site.seen(spoken_of).status == "completed")
            assert site.seen(long).status == "running"
            WORK.open()
            await until(lambda: site.seen(long).status == "completed")

    run(main())


def test_a_version_that_nobody_here_knows_waits_for_others(site: Site) -> None:
    """[D148]"""
    task = site.submit("note", version=9, unregistered=True)
    run(site.burst(site.tasks()))
    assert site.seen(task).status == "pending"


# ---- limits ------------------------------------------------------------------------------------------


def test_long_tasks_do_not_fill_a_worker_that_has_other_work(site: Site) -> None:
    """[D154] They take two of three slots at most; whoever comes beyond that does not wait in one."""
    tasks = [site.submit("hold") for _ in range(6)]
    others: list[int] = []

    async def other(ctx: dict[Any, Any], number: int) -> None:
        others.append(number)

    async def main() -> None:
        async with site.working(site.tasks(concurrency=2), func(other, name="other"), max_jobs=3) as worker:
            await until(lambda: len(WORK.runs) == 2 and worker.jobs_complete == 4)
            for number in range(5):
                await worker.pool.enqueue_job("other", number, _queue_name=site.queue_name)
            await until(lambda: len(others) == 5)
            assert len(WORK.runs) == 2
            WORK.open()
            await until(lambda: all(site.seen(task).status == "completed" for task in tasks))

    run(main())
    assert WORK.most_at_once == 2
    assert len(WORK.runs) == 6


def test_a_limit_over_all_workers_holds_beside_the_slots(site: Site, tmp_path: Path) -> None:
    site.store = LeaseTaskStore(tmp_path / "root", durability="none")
    tasks = [site.submit("single") for _ in range(12)]

    async def main() -> None:
        async with site.working(site.tasks()), site.working(site.tasks()):
            await until(lambda: all(site.seen(task).status == "completed" for task in tasks))

    run(main())
    assert WORK.most_at_once == 1
    assert sorted(WORK.begun) == sorted(task.task_id for task in tasks)


# ---- times -------------------------------------------------------------------------------------------


def test_arqs_own_limit_is_later_than_any_tasks() -> None:
    handlers = HandlerRegistry()
    assert longest_seconds(handlers, 100) > 100
    handlers.register("short", handler="app:run", timeout_seconds=5)
    assert longest_seconds(handlers, 100) > 5
    handlers.register("long", handler="app:run", timeout_seconds=7200, cleanup_seconds=600)
    assert longest_seconds(handlers, 100) > IMPORT_SECONDS + 7200 + 600 + 30 + 35
    handlers.register("default", handler="app:run")
    assert longest_seconds(handlers, 10_000) > IMPORT_SECONDS + 10_000


def test_a_task_out_of_time_is_ended_by_the_library_and_arqs_default_does_not_count(site: Site) -> None:
    """[D047] [D048] ARQ's job_timeout is shorter than the work here, and cuts nothing off."""
    short, long = site.submit("brief"), site.submit("hold")

    async def main() -> None:
        durable = site.tasks()
        assert durable.function.timeout_s == durable.timeout_seconds
        async with site.working(durable, job_timeout=0.01) as worker:
            await until(lambda: site.seen(short).status == "failed")
            assert site.seen(long).status == "running"
            WORK.open()
            await until(lambda: site.seen(long).status == "completed")
            await until(lambda: worker.jobs_complete == 2)
            assert worker.jobs_failed == 0

    run(main())
    assert site.seen(short).error_code == "timeout"
