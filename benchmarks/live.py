"""Live: one process submits no-op tasks one by one while one worker works them off, each side by its own worker.

What is compared is what somebody has who follows the documentation of either: huey's consumer, procrastinate's and
pgqueuer's workers, and the worker of this library, in a process of its own that looks for work, renews and tidies up as
it does by itself. Two settings are made the same on both sides, since they would decide the rest: how long huey's
consumer pauses between two looks, and how many attempts there are at once on PostgreSQL. The clock starts with the
first submit and stops when all tasks have begun and the last of them have ended. Submitter and worker are processes of
their own (:func:`main`), since the other queues need what this project does not.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

OWNER: dict[str, Any] = {"account_id": "acme", "user_id": "alice"}
TASKS = 1000
WARM_UP = 20
CONCURRENCY = 40
"""Attempts at once on PostgreSQL, of each side; pgqueuer has no limit by itself, and takes ten in one step."""
SECONDS = 300.0
HUEY_SECONDS = 0.05, 0.1
"""Between two looks of huey's consumer: what the worker here does. By itself it pauses for 0.1 to 10 s."""
_LOOK_SECONDS = 0.0005
_SETTLED_SECONDS = 1.0
"""In which a worker has done what it does when it begins."""

_MAIN = "import sys; from benchmarks.live import main; main(*sys.argv[1:])"


def _uncounted() -> None:
    """Outside of a worker's process nobody counts."""


_begun: Callable[[], None] = _uncounted
"""What each handler calls. Of the module, since this library finds a handler by its name and gives it nothing else."""


class Life(NamedTuple):
    """Seconds for all tasks of a round: until they were created, then until they had ended."""

    submitted: float
    worked: float

    @property
    def all(self) -> float:
        return self.submitted + self.worked


class Submitter(NamedTuple):
    """``submit`` returns what ``has_ended`` is asked about; ``ended`` says how many have, of all."""

    submit: Callable[[int], Awaitable[Any]]
    has_ended: Callable[[Any], Awaitable[bool]]
    ended: Callable[[], Awaitable[int]]


class Side(NamedTuple):
    """A worker that runs until SIGTERM, what submits, what makes tables first; all are given where the tasks are."""

    work: Callable[[str], None]
    submitter: Callable[[str], AbstractAsyncContextManager[Submitter]]
    prepare: Callable[[str], Coroutine[Any, Any, None]] | None = None


def live(side: str, where: str, path: str = "", *, tasks: int = TASKS) -> Life:
    """Have ``side`` do it once; ``path`` is where its packages are. ``worked`` is what came after the last submit."""
    mine, its = os.pipe()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, os.getcwd()]))}

    def command(role: str, pipe: int) -> list[str]:
        return [sys.executable, "-c", _MAIN, role, side, where, str(tasks), str(pipe)]

    if SIDES[side].prepare is not None:
        subprocess.run(command("prepare", its), env=environment, check=True, timeout=SECONDS)
    worker = subprocess.Popen(command("work", its), pass_fds=[its], env=environment)
    os.close(its)
    try:
        told = subprocess.run(
            command("submit", mine),
            pass_fds=[mine],
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=SECONDS,
        )
    finally:
        worker.terminate()
        worker.wait(SECONDS)
        os.close(mine)
    return Life(*json.loads(told.stdout))


# ---- in the processes of a side --------------------------------------------------------------------------


def main(role: str, name: str, where: str, number: str, pipe: str) -> None:
    """Work, or submit that many tasks and print the times."""
    logging.disable(logging.CRITICAL)
    side, tasks = SIDES[name], int(number)
    if role == "prepare":
        assert side.prepare is not None
        asyncio.run(side.prepare(where))
        return
    if role == "submit":
        print(json.dumps(asyncio.run(_submit(side, where, tasks, int(pipe)))))  # the answer
        return
    count = 0

    def begun() -> None:
        nonlocal count
        count += 1
        if count in (WARM_UP, WARM_UP + tasks):
            os.write(int(pipe), b"!")

    global _begun  # noqa: PLW0603  # of this process, which does nothing else
    _begun = begun
    side.work(where)


async def _submit(side: Side, where: str, number: int, pipe: int) -> Life:
    async with side.submitter(where) as submitter:
        await _until_ended(submitter, [await submitter.submit(one) for one in range(WARM_UP)], pipe)
        await asyncio.sleep(_SETTLED_SECONDS)
        started = time.perf_counter()
        tasks = [await submitter.submit(one) for one in range(number)]
        submitted = time.perf_counter()
        await _until_ended(submitter, tasks[-CONCURRENCY:], pipe)
        ended = time.perf_counter()

        async def all_have() -> bool:
            return await submitter.ended() >= WARM_UP + number

        await _until(all_have)
    return Life(submitted - started, ended - submitted)


async def _until_ended(submitter: Submitter, tasks: list[Any], pipe: int) -> None:
    """Return once all have begun, of which the worker tells, and the last of them, ``tasks``, have ended.

    No more than :data:`CONCURRENCY` run at once, so that these are the ones that may not have.
    """
    assert os.read(pipe, 1), "the worker has ended"
    for task in tasks:
        await _until(partial(submitter.has_ended, task))


async def _until(is_so: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await is_so():
            return
        await asyncio.sleep(_LOOK_SECONDS)


# ---- this library ----------------------------------------------------------------------------------------


async def noop(ctx: object, payload: Any) -> Any:
    """The handler."""
    _begun()
    return payload


def _tracker(store: Any) -> Any:
    from task_tracker import HandlerRegistry, TaskTracker

    registry = HandlerRegistry()
    registry.register("noop", handler="benchmarks.live:noop")
    return TaskTracker(store, handlers=registry)


def _here(store_at: Callable[[str], Any], **options: Any) -> Side:
    def work(where: str) -> None:
        from task_tracker.worker import Worker

        with _tracker(store_at(where)) as tracker:
            Worker(tracker, **options).run()

    @asynccontextmanager
    async def submitter(where: str) -> AsyncIterator[Submitter]:
        with _tracker(store_at(where)) as tracker:

            async def submit(number: int) -> str:
                task_id: str = tracker.submit("noop", number, **OWNER).task_id
                return task_id

            async def has_ended(task_id: str) -> bool:
                return bool(tracker.get(task_id, **OWNER).status.is_terminal)

            async def ended() -> int:
                return int(tracker.store.count(*OWNER.values())["noop"].get("completed", 0))

            yield Submitter(submit, has_ended, ended)

    return Side(work, submitter)


def _lease_store(where: str) -> Any:
    from stores.files.lease.store import LeaseTaskStore

    return LeaseTaskStore(where, durability="none")


def _postgres_store(where: str) -> Any:
    from stores.postgres.store import PostgresTaskStore

    dsn, _, schema = where.rpartition("|")
    return PostgresTaskStore(dsn, schema=schema)


# ---- huey ------------------------------------------------------------------------------------------------


def _huey(where: str) -> tuple[Any, Any]:
    queue = importlib.import_module("huey").FileHuey("benchmark", path=where)

    @queue.task(name="noop")  # type: ignore[untyped-decorator,unused-ignore]
    def noop(number: int) -> int:
        _begun()
        return number

    return queue, noop


def _work_huey(where: str) -> None:
    queue, _ = _huey(where)
    first, longest = HUEY_SECONDS
    queue.create_consumer(initial_delay=first, max_delay=longest, graceful_signal="TERM").run()


@asynccontextmanager
async def _submit_to_huey(where: str) -> AsyncIterator[Submitter]:
    queue, noop = _huey(where)

    async def submit(number: int) -> Any:
        return noop(number)

    async def has_ended(result: Any) -> bool:
        return result.get(preserve=True) is not None

    async def ended() -> int:
        return int(queue.storage.result_store_size())

    yield Submitter(submit, has_ended, ended)


# ---- procrastinate ---------------------------------------------------------------------------------------


def _procrastinate(where: str) -> tuple[Any, Any]:
    queue = importlib.import_module("procrastinate")
    app = queue.App(connector=queue.PsycopgConnector(conninfo=where))

    @app.task(name="noop")  # type: ignore[untyped-decorator,unused-ignore]
    async def noop(number: int) -> int:
        _begun()
        return number

    return app, noop


async def _prepare_procrastinate(where: str) -> None:
    app, _ = _procrastinate(where)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


def _work_procrastinate(where: str) -> None:
    app, _ = _procrastinate(where)

    async def work() -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=CONCURRENCY)

    asyncio.run(work())


@asynccontextmanager
async def _submit_to_procrastinate(where: str) -> AsyncIterator[Submitter]:
    app, noop = _procrastinate(where)
    async with app.open_async():

        async def submit(number: int) -> Any:
            return await noop.defer_async(number=number)

        async def has_ended(job_id: int) -> bool:
            asked = "SELECT status::text FROM procrastinate_jobs WHERE id = %(job)s"
            return bool(
                (await app.connector.execute_query_one_async(asked, job=job_id))["status"] == "succeeded"
            )

        async def ended() -> int:
            asked = "SELECT count(*) AS ended FROM procrastinate_jobs WHERE status = 'succeeded'"
            return int((await app.connector.execute_query_one_async(asked))["ended"])

        yield Submitter(submit, has_ended, ended)


# ---- pgqueuer --------------------------------------------------------------------------------------------


async def _pgqueuer(where: str) -> tuple[Any, Any]:
    connection = await importlib.import_module("asyncpg").connect(where)
    return connection, importlib.import_module("pgqueuer.db").AsyncpgDriver(connection)


async def _prepare_pgqueuer(where: str) -> None:
    connection, driver = await _pgqueuer(where)
    await importlib.import_module("pgqueuer").Queries(driver).install()
    await connection.close()


def _work_pgqueuer(where: str) -> None:
    async def work() -> None:
        queue = importlib.import_module("pgqueuer")
        connection, driver = await _pgqueuer(where)
        manager = queue.PgQueuer(driver)

        @manager.entrypoint("noop")  # type: ignore[untyped-decorator,unused-ignore]
        async def noop(job: Any) -> None:
            _begun()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, manager.qm.shutdown.set)
        await manager.qm.run()
        await connection.close()

    asyncio.run(work())


@asynccontextmanager
async def _submit_to_pgqueuer(where: str) -> AsyncIterator[Submitter]:
    queue = importlib.import_module("pgqueuer")
    connection, driver = await _pgqueuer(where)
    queries = queue.Queries(driver)

    async def submit(number: int) -> Any:
        return (await queries.enqueue(["noop"], [str(number).encode()], [0]))[0]

    async def has_ended(job_id: int) -> bool:
        """A job that has ended is deleted."""
        return not await connection.fetchval("SELECT count(*) FROM pgqueuer WHERE id = $1", job_id)

    async def ended() -> int:
        done = "SELECT count(*) FROM pgqueuer_log WHERE status::text = 'successful'"
        left = await connection.fetchval("SELECT count(*) FROM pgqueuer")
        return int(await connection.fetchval(done)) if not left else 0

    yield Submitter(submit, has_ended, ended)
    await connection.close()


SIDES: Mapping[str, Side] = {
    "lease": _here(_lease_store),
    "huey": Side(_work_huey, _submit_to_huey),
    "postgres": _here(_postgres_store, concurrency=CONCURRENCY),
    "procrastinate": Side(_work_procrastinate, _submit_to_procrastinate, _prepare_procrastinate),
    "pgqueuer": Side(_work_pgqueuer, _submit_to_pgqueuer, _prepare_pgqueuer),
}
