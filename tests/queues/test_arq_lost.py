"""ArqTasks: what nobody sent, workers that stop, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from arq.jobs import Job

from stores import InMemoryTaskStore
from task_tracker import TaskTracker
from task_tracker.errors import CapabilityMissing, SettingsError
from task_tracker.queues.arq import ArqTasks
from task_tracker.testing import FaultyStore
from tests.core.support import WatchedStore
from tests.queues.redis_server import RedisServer
from tests.queues.sites import Site, run, worker_ready
from tests.runtime.work import WORK, until
from tests.runtime.workers import network

# ARQ's own: it closes its connections with a call that redis-py has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated close:DeprecationWarning")


# ---- what was lost -----------------------------------------------------------------------------------


def test_what_nobody_sent_is_sent_at_the_start(site: Site) -> None:
    """[D118] The submitter was killed between its commit and the message, or Redis was away."""
    tasks = [site.submit("note", told=False) for _ in range(3)]

    async def main() -> None:
        async with site.working(site.tasks()):
            await until(lambda: all(site.seen(task).status == "completed" for task in tasks))

    run(main())
    assert len(WORK.runs) == 3


def test_and_now_and_then(site: Site) -> None:
    """[D118] Messages that Redis forgot, and tasks whose time comes."""

    async def main() -> None:
        async with site.working(site.tasks(send_seconds=0.1)):
            soon = site.store  # the worker is there before the tasks are
            late = site.submit("note", not_before=TaskTracker(soon).clock.now() + 0.3)
            fickle = site.submit("fickle")
            lost = site.submit("note", told=False)
            tasks = (late, fickle, lost)
            await until(lambda: all(site.seen(task).status == "completed" for task in tasks))

    run(main())
    assert len(WORK.runs) == 4


def test_what_is_for_later_waits_for_no_look(site: Site) -> None:
    """ARQ holds its message back: of a submit, of a retry, and of what a worker that died had."""
    crashed = site.submit("fickle", told=False)
    assert site.store.claim(crashed.key, holder="killed") is not None
    assert isinstance(site.store, InMemoryTaskStore)
    hold = site.store._holds.find(crashed.key)
    assert hold is not None
    hold.beat -= 60

    async def main() -> None:
        async with site.working(site.tasks(send_seconds=600.0)):
            late = site.submit("note", not_before=site.tracker().clock.now() + 0.2)
            fickle = site.submit("fickle")
            tasks = (late, fickle, crashed)
            await until(lambda: all(site.seen(task).status == "completed" for task in tasks))

    run(main())
    assert len(WORK.runs) == 4


def test_how_much_is_sent_is_bounded_and_the_store_still_chooses(site: Site) -> None:
    for _ in range(5):
        site.submit("hold", told=False)

    async def main() -> None:
        durable = site.tasks(send_most=3)
        await durable._worker.start()
        assert durable._sender.send() == 3
        assert site.waiting() == 3
        await durable._worker.stop()
        assert durable._sender.send() == 0, "nothing runs here any more"

    run(main())


def test_many_that_were_lost_are_worked_off_without_waiting_for_the_next_look(site: Site) -> None:
    """Each end announces two of those that wait, as long as there are more than were announced."""
    tasks = [site.submit("note", told=False) for _ in range(30)]

    async def main() -> None:
        async with site.working(site.tasks(send_most=2, send_seconds=600.0, concurrency=2)):
            await until(lambda: all(site.seen(task).status == "completed" for task in tasks))

    run(main())
    assert len(WORK.runs) == 30


def test_who_begins_it_from_a_task_of_his_own_does_not_end_it_with_that(site: Site) -> None:
    task = site.submit("hold")

    async def main() -> None:
        durable = site.tasks()

        async def startup(ctx: dict[Any, Any]) -> None:
            await asyncio.create_task(durable.on_startup(ctx))

        async with site.working(durable, on_startup=startup):
            await until(lambda: WORK.runs)
            assert durable.status().state == "working"
            WORK.open()
            await until(lambda: site.seen(task).status == "completed")

    run(main())


def test_behind_many_that_may_not_run_yet_the_one_that_may_is_found(site: Site) -> None:
    now = site.tracker().clock.now()
    for _ in range(4):
        site.submit("note", told=False, not_before=now + 86_400)
    task = site.submit("note", told=False)

    async def main() -> None:
        async with site.working(site.tasks(send_most=3, send_seconds=0.1)):
            await until(lambda: site.seen(task).status == "completed")

    run(main())


def test_a_few_that_may_not_run_yet_send_nothing(site: Site) -> None:
    site.submit("note", told=False, not_before=site.tracker().clock.now() + 86_400)

    async def main() -> None:
        durable = site.tasks()
        await durable._worker.start()
        assert durable._sender.send() == 0
        await durable._worker.stop()

    run(main())
    assert site.waiting() == 0


def test_while_all_slots_are_taken_nothing_is_sent(site: Site) -> None:
    site.submit("hold")
    site.submit("hold", told=False)

    async def main() -> None:
        durable = site.tasks(concurrency=1)
        async with site.working(durable):
            await until(lambda: WORK.runs)
            assert durable._sender.send() == 0
            WORK.open()

    run(main())


def test_a_store_that_is_away_is_asked_again(site: Site) -> None:
    site.store = FaultyStore(site.store)  # type: ignore[assignment]
    tracker = site.tracker()
    durable = site.tasks(tracker)

    async def main() -> None:
        await durable._worker.start()
        network(tracker).fail(on="unclaimed", forever=True)
        assert durable._sender.run_once() is not None
        assert durable._sender.on_error() > 0
        network(tracker).heal()
        await durable._worker.stop()

    run(main())


# ---- stopping ----------------------------------------------------------------------------------------


def test_a_worker_that_is_told_to_stop_gives_back_what_it_may_and_says_what_it_may_not(site: Site) -> None:
    """[D028] [D047] ARQ cancels its functions: that is a shutdown, and neither a timeout nor a user's wish."""
    once, often = site.submit("hold"), site.submit("again")

    async def main() -> None:
        async with site.working(site.tasks()):
            await until(lambda: len(WORK.runs) == 2)
        assert site.seen(often).status == "pending"
        assert (site.seen(once).status, site.seen(once).error_code) == ("failed", "interrupted")
        WORK.open()
        async with site.working(site.tasks()) as worker:  # ARQ delivers the message again by itself
            await until(lambda: site.seen(often).status == "completed")
        assert worker.jobs_failed == 0

    run(main())
    assert len(WORK.runs) == 3


def test_a_job_that_somebody_aborts_in_arq_is_interrupted_alone(site: Site) -> None:
    one, other = site.submit("again", priority=2), site.submit("again", priority=1)

    async def main() -> None:
        async with site.working(site.tasks(), allow_abort_jobs=True) as worker:
            await until(lambda: len(WORK.runs) == 2)
            name = next(name for name, message in worker.job_tasks.items() if not message.done())
            job = Job(name, worker.pool, _queue_name=site.queue_name)
            # ARQ waits for a result, which may be that of the next attempt.
            aborting = asyncio.ensure_future(job.abort(poll_delay=0.01, timeout=None))
            await until(lambda: len(WORK.runs) == 3)  # it was given back, which was announced
            aborting.cancel()
            await asyncio.gather(aborting, return_exceptions=True)
            assert len(WORK.stopped) == 1
            assert {site.seen(one).status, site.seen(other).status} == {"running"}

    with contextlib.suppress(asyncio.CancelledError):
        run(main())


def test_it_can_begin_again_in_the_same_process(site: Site) -> None:
    """ARQ's --watch ends and starts its worker in one process."""
    durable = site.tasks()
    for _ in range(2):
        task = site.submit("note")
        run(site.burst(durable))
        assert site.seen(task).status == "completed"


def test_a_redis_that_is_away_can_be_read_off(redis_server: RedisServer, tmp_path: Path) -> None:
    """[D110]"""
    WORK.begin()
    site = Site(redis_server.url, tmp_path)

    async def main() -> None:
        durable = site.tasks()
        async with site.working(durable) as worker:
            await worker_ready(worker)
            await until(lambda: durable.status().ready)
            redis_server.stop()
            await until(lambda: not durable.status().ready)
            assert "does not answer" in durable.status().facts["redis"].detail
            redis_server.start()
            await until(lambda: durable.status().ready)

    run(main())
    site.close()


# ---- settings ----------------------------------------------------------------------------------------


def test_a_worker_of_another_queue_does_not_begin(site: Site) -> None:
    async def main() -> None:
        with pytest.raises(SettingsError, match="same queue_name"):
            await site.burst(site.tasks(), queue_name="another one")

    run(main())


def test_what_cannot_work_is_refused(site: Site) -> None:
    with pytest.raises(SettingsError, match="sends no messages to ARQ"):
        site.tasks(site.tracker(wake_up=None))
    with pytest.raises(CapabilityMissing, match="no leases"):
        ArqTasks(TaskTracker(WatchedStore(), wake_up=site.way()))
    for name in ("send_seconds", "send_most", "concurrency"):
        options: dict[str, Any] = {name: 0}
        with pytest.raises(SettingsError, match=name):
            site.tasks(**options)


def test_pausing_and_asking_go_through(site: Site) -> None:
    task = site.submit("note")

    async def main() -> None:
        durable = site.tasks()
        durable.worker.pause("note")
        await site.burst(durable)
        assert site.seen(task).status == "pending"
        assert durable.status().paused == ("note",)
        assert durable.status().state == "stopped"

    run(main())
