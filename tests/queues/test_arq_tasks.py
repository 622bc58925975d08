"""ArqTasks within this process: an ARQ worker runs durable tasks beside its other functions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from arq.jobs import Job
from arq.worker import Worker, func

from stores import InMemoryTaskStore, LeaseTaskStore
from task_tracker import HandlerRegistry, TaskRecord, TaskTracker
from task_tracker.errors import CapabilityMissing, SettingsError
from task_tracker.queues.arq import ArqTasks, ArqWakeUp, longest_seconds
from task_tracker.records import TaskKey
from task_tracker.store import LeaseStore
from task_tracker.testing import FaultyStore
from task_tracker.worker.executor import IMPORT_SECONDS
from task_tracker.worker.outcomes import Retry
from tests.core.support import OWNER, WatchedStore
from tests.queues.redis_server import RedisServer
from tests.runtime import work
from tests.runtime.work import WORK, until
from tests.runtime.workers import network, no_thread_is_left

# ARQ's own: it closes its connections with a call that redis-py has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated close:DeprecationWarning")


class Polite(Worker):
    """ARQ's worker, told to stop at a moment at which it can: it breaks if that comes in the middle of a call."""

    polling = False

    async def _poll_iteration(self) -> None:
        self.polling = True
        await super()._poll_iteration()
        self.polling = False

    def _is_calm(self) -> bool:
        noting = [name for name, task in self.tasks.items() if not task.done() and name not in self.job_tasks]
        return not self.polling and not noting

    async def calm(self) -> None:
        self.allow_pick_jobs = False
        await until(self._is_calm)


class Site:
    """A store, a Redis, and processes on both, each with a tracker of its own."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.path = path
        self.queue_name = f"queue of {path}"
        self.store: LeaseStore = InMemoryTaskStore(lease_seconds=30)
        self._ways: list[ArqWakeUp] = []

    def way(self) -> ArqWakeUp:
        made = ArqWakeUp(self.url, queue_name=self.queue_name)
        self._ways.append(made)
        return made

    def tracker(self, handlers: HandlerRegistry | None = None, **options: Any) -> TaskTracker:
        options = {"wake_up": self.way(), **options}
        return TaskTracker(self.store, handlers=handlers or registry(), **options)

    def tasks(self, tracker: TaskTracker | None = None, **options: Any) -> ArqTasks:
        return ArqTasks(tracker or self.tracker(), **{"send_seconds": 60.0, **options})

    def submit(self, task_type: str, *, told: bool = True, **options: Any) -> TaskRecord:
        """By a process that sends a message, or does not come to that."""
        tracker = self.tracker() if told else self.tracker(wake_up=None)
        return tracker.submit(task_type, **options, **OWNER).record

    def seen(self, task: TaskRecord) -> TaskRecord:
        record = self.store.get(task.key)[0]
        assert isinstance(record, TaskRecord)
        return record

    def worker(self, durable: ArqTasks, *functions: Any, **options: Any) -> Polite:
        return Polite(
            [durable.function, *functions],
            redis_settings=durable.redis_settings,
            on_shutdown=durable.on_shutdown,
            **{
                "queue_name": self.queue_name,
                "handle_signals": False,
                "poll_delay": 0.01,
                "on_startup": durable.on_startup,
                **options,
            },
        )

    async def burst(self, durable: ArqTasks, *functions: Any, **options: Any) -> Polite:
        """Have an ARQ worker take what is in the queue, and end."""
        worker = self.worker(durable, *functions, burst=True, **options)
        try:
            await worker.async_run()
        finally:
            await worker.close()
        return worker

    @contextlib.asynccontextmanager
    async def working(self, durable: ArqTasks, *functions: Any, **options: Any) -> AsyncIterator[Polite]:
        """Have an ARQ worker work during the block; then it is told to stop."""
        worker = self.worker(durable, *functions, **options)
        running = asyncio.create_task(worker.async_run())
        try:
            yield worker
        finally:
            await worker.calm()
            await worker.close()
            await asyncio.wait({running})

    def waiting(self) -> int:
        """How many messages there are."""
        with redis.Redis.from_url(self.url) as client:
            return int(client.zcard(self.queue_name))

    def lose(self) -> None:
        """Have Redis forget everything."""
        with redis.Redis.from_url(self.url) as client:
            client.flushdb()

    def close(self) -> None:
        for way in self._ways:
            way.close()
        self.store.close()


def registry(**changes: Any) -> HandlerRegistry:
    made = HandlerRegistry()
    for name in ("note", "hold", "boom"):
        made.register(name, handler=f"{work.__name__}:{name}", cleanup_seconds=0.5)
    made.register("again", handler=f"{work.__name__}:hold", idempotent=True)
    made.register("brief", handler=f"{work.__name__}:hold", timeout_seconds=0.05, cleanup_seconds=0.5)
    made.register("fickle", handler=f"{__name__}:fickle", idempotent=True, retry_seconds=0.01)
    made.register("single", handler=f"{work.__name__}:note", max_running=1)
    return made


async def fickle(ctx: Any, payload: Any) -> Any:
    """Fail once."""
    WORK.enter(ctx)
    WORK.leave(ctx)
    if ctx.attempt_count == 1:
        raise Retry


@pytest.fixture
def site(redis_url: str, tmp_path: Path) -> Iterator[Site]:
    WORK.begin()
    made = Site(redis_url, tmp_path)
    with no_thread_is_left():
        yield made
        WORK.open()
        made.close()


def run(main: Coroutine[Any, Any, object]) -> None:
    asyncio.run(main)


# ---- running -----------------------------------------------------------------------------------------


def test_what_is_submitted_is_run_once_and_leaves_nothing_in_redis(site: Site) -> None:
    tasks = [site.submit("note", payload=number) for number in range(5)]

    async def main() -> None:
        worker = await site.burst(site.tasks())
        assert (worker.jobs_complete, worker.jobs_failed, worker.jobs_retried) == (5, 0, 0)

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


async def worker_ready(worker: Worker) -> None:
    await until(lambda: worker._pool is not None)


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
            await Job(name, worker.pool, _queue_name=site.queue_name).abort(poll_delay=0.01, timeout=None)
            await until(lambda: "pending" in {site.seen(one).status, site.seen(other).status})
            assert "running" in {site.seen(one).status, site.seen(other).status}
            assert WORK.stopped

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
