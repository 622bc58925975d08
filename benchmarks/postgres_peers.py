"""The same work by two other queues on PostgreSQL: ``python -m benchmarks.postgres_peers <queue> <dsn> <tasks>``.

In a process of its own, since what they need is not what this project needs. Prints seconds as JSON: those in which
all tasks were submitted one by one, and those in which one worker worked them off, with the concurrency that it has
by itself or with the number of attempts at once that is given.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
import time
from typing import Any


async def procrastinate(dsn: str, tasks: int, concurrency: int) -> tuple[float, float]:
    """Submit and work off ``tasks`` by procrastinate."""
    queue = importlib.import_module("procrastinate")
    app = queue.App(connector=queue.PsycopgConnector(conninfo=dsn))
    done = 0

    @app.task(name="noop")  # type: ignore[untyped-decorator,unused-ignore]
    async def noop(number: int) -> int:
        nonlocal done
        done += 1
        return number

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        started = time.perf_counter()
        for number in range(tasks):
            await noop.defer_async(number=number)
        submitted = time.perf_counter()
        await app.run_worker_async(wait=False, concurrency=concurrency, install_signal_handlers=False)
        ended = time.perf_counter()
    assert done == tasks, done
    return submitted - started, ended - submitted


async def pgqueuer(dsn: str, tasks: int, concurrency: int) -> tuple[float, float]:
    """Submit and work off ``tasks`` by pgqueuer."""
    asyncpg = importlib.import_module("asyncpg")
    queue = importlib.import_module("pgqueuer")
    drivers = importlib.import_module("pgqueuer.db")
    types = importlib.import_module("pgqueuer.types")
    connection = await asyncpg.connect(dsn)
    try:
        driver = drivers.AsyncpgDriver(connection)
        queries: Any = queue.Queries(driver)
        await queries.install()
        manager = queue.PgQueuer(driver)
        done = 0

        @manager.entrypoint("noop")  # type: ignore[untyped-decorator,unused-ignore]
        async def noop(job: Any) -> None:
            nonlocal done
            done += 1

        started = time.perf_counter()
        for number in range(tasks):
            await queries.enqueue(["noop"], [str(number).encode()], [0])
        submitted = time.perf_counter()
        await manager.qm.run(
            mode=types.QueueExecutionMode.drain, batch_size=10, max_concurrent_tasks=concurrency or None
        )
        ended = time.perf_counter()
        assert done == tasks, done
    finally:
        await connection.close()
    return submitted - started, ended - submitted


def main(name: str, dsn: str, tasks: str, concurrency: str) -> None:
    """Run one of them."""
    logging.disable(logging.CRITICAL)
    work = {"procrastinate": procrastinate, "pgqueuer": pgqueuer}[name]
    print(json.dumps(asyncio.run(work(dsn, int(tasks), int(concurrency)))))  # the answer


if __name__ == "__main__":
    main(*sys.argv[1:])
