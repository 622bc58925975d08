"""A store, a Redis and an ARQ worker within this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import redis
from arq.worker import Worker

from stores import InMemoryTaskStore
from task_tracker import HandlerRegistry, TaskRecord, TaskTracker
from task_tracker.queues.arq import ArqTasks, ArqWakeUp
from task_tracker.store import LeaseStore
from task_tracker.worker.outcomes import Retry
from tests.core.support import OWNER
from tests.runtime import work
from tests.runtime.work import WORK, until


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


def run(main: Coroutine[Any, Any, object]) -> None:
    asyncio.run(main)


async def worker_ready(worker: Worker) -> None:
    await until(lambda: worker._pool is not None)
