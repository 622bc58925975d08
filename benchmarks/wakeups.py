"""Wake-ups: how soon an idle worker has a task that was announced by PostgreSQL or Redis, and what that costs.

A Redis server of this benchmark's own is started; PostgreSQL is the server that :mod:`benchmarks.postgres` finds. Where
there is none a row says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import postgres
from benchmarks.live import OWNER
from benchmarks.measure import Row, directory, microseconds, paired
from benchmarks.workers import PICK_UPS, latency, pick_up, registry
from stores.files.lease.store import LeaseTaskStore
from task_tracker import TaskTracker
from task_tracker.records import TaskKey
from task_tracker.wakeups import InProcessWakeUp, NoWakeUp
from task_tracker.worker import Event

MOST_OF_POLLING = 0.5
MOST_MS_NOTIFIED = 10.0
HOURS = (3600.0, 7200.0)
ARQ_POLL_SECONDS = 0.5
"""ARQ's own default."""


def rows(disk: Path) -> list[Row]:
    """Measure all of it."""
    return [*_notified(), *_through_redis(disk)]


def _through_redis(disk: Path) -> list[Row]:
    binary = shutil.which("redis-server")
    if binary is None:
        return [Row("no figures for Redis: there is no redis-server here", 0.0, "")]
    with directory(disk) as place, _redis(binary, place) as url:
        return [*_woken(disk, url), _arq(disk, url), *_costs(url)]


def _notified() -> Iterator[Row]:
    """The worker and who submits have connections of their own, as two processes have; the worker never polls."""
    dsn = postgres.server()
    if dsn is None:
        yield Row("no figures for NOTIFY: no PostgreSQL answers here", 0.0, "")
        return
    from stores.postgres.store import PostgresTaskStore

    with (
        postgres.schema(dsn, "on") as (schema, inside),
        postgres.tracker(inside, schema) as worker,
        postgres.tracker(inside, schema) as submitter,
        TaskTracker(PostgresTaskStore(inside, schema=schema, listen=False), handlers=registry()) as silent,
    ):
        told = latency(worker, submitter, "NOTIFY", MOST_MS_NOTIFIED, poll_seconds=HOURS)
        yield told
        inner = InProcessWakeUp()
        with TaskTracker(
            PostgresTaskStore(inside, schema=schema), handlers=registry(), wake_up=inner
        ) as alone:
            at_once = latency(alone, alone, "within the process", float("inf"), poll_seconds=HOURS)
        yield Row(
            "idle pick-up, NOTIFY / in-process wake-up on the same database, p50",
            told.value / at_once.value,
            "x",
            None,
            f"{told.value:.1f} / {at_once.value:.1f} ms",
        )
        with worker.store.watch(lambda _: None):
            loud, quiet, ratio = paired(
                partial(_submit, submitter, 0), partial(_submit, silent, 0), rounds=10
            )
        yield Row(
            "submit while somebody listens / without notifications",
            ratio,
            "x",
            None,
            f"{loud:.0f} / {quiet:.0f} us",
        )


def _woken(disk: Path, url: str) -> Iterator[Row]:
    from task_tracker.queues.redis import RedisWakeUp

    polled = pick_up(disk, NoWakeUp(), "polling at its default", float("inf"))
    way = RedisWakeUp(url)
    with contextlib.closing(way):
        woken = pick_up(disk, way, "Redis wake-up", float("inf"))
    yield replace(woken, target=None)
    yield Row(
        "idle pick-up, Redis wake-up / polling at its default, p50",
        woken.value / polled.value,
        "x",
        MOST_OF_POLLING,
        f"{woken.value:.1f} / {polled.value:.1f} ms",
    )


def _arq(disk: Path, url: str) -> Row:
    """ARQ polls Redis twice a second, which is most of it."""
    took = sorted(asyncio.run(_arq_latencies(disk, url)))
    return Row(
        f"idle pick-up, ARQ at its poll_delay of {ARQ_POLL_SECONDS:g} s, p50",
        statistics.median(took),
        "ms",
        None,
        f"p95 {took[round(len(took) * 0.95) - 1]:.1f} ms",
    )


async def _arq_latencies(disk: Path, url: str) -> list[float]:
    from arq.worker import Worker

    from task_tracker.queues.arq import ArqTasks, ArqWakeUp

    begun: asyncio.Queue[float] = asyncio.Queue()

    def listen(event: Event) -> None:
        if event.name == "attempt_started":
            begun.put_nowait(time.perf_counter())

    found = []
    pauses = itertools.cycle([0.31, 0.37, 0.43])
    with (
        directory(disk) as root,
        contextlib.closing(ArqWakeUp(url, queue_name="benchmark")) as way,
        TaskTracker(LeaseTaskStore(root, durability="none"), handlers=registry(), wake_up=way) as tracker,
    ):
        durable = ArqTasks(tracker, hooks=[listen], send_seconds=600.0)
        worker = Worker(
            [durable.function],
            queue_name="benchmark",
            redis_settings=durable.redis_settings,
            on_startup=durable.on_startup,
            on_shutdown=durable.on_shutdown,
            handle_signals=False,
            poll_delay=ARQ_POLL_SECONDS,
        )
        working = asyncio.create_task(worker.async_run())
        for number in range(PICK_UPS // 2):
            await asyncio.sleep(next(pauses))
            before = time.perf_counter()
            await asyncio.to_thread(_submit, tracker, number)
            found.append((await begun.get() - before) * 1000)
        await worker.close()
        await asyncio.wait({working})
    return found


def _submit(tracker: TaskTracker, number: int) -> Any:
    return tracker.submit("noop", number, **OWNER)


def _costs(url: str) -> Iterator[Row]:
    """What a submit waits for beside the store."""
    from task_tracker.queues.messages import ArqWakeUp
    from task_tracker.queues.redis import RedisWakeUp

    with contextlib.closing(RedisWakeUp(url)) as way:
        yield Row("waking through Redis", microseconds(lambda: way.wake([])), "us")
    numbers = itertools.count()
    with contextlib.closing(ArqWakeUp(url, queue_name="costs")) as arq:

        def send() -> None:
            arq.wake([TaskKey("acme", "alice", f"task-{next(numbers)}")])

        yield Row("a message to ARQ", microseconds(send), "us")


@contextlib.contextmanager
def _redis(binary: str, place: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with subprocess.Popen([*command, "--dir", str(place)], stdout=subprocess.DEVNULL) as server:
        try:
            for _ in range(500):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.01)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.kill()
