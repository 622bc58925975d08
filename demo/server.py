"""One of the demo's servers: takes on tasks over HTTP, answers for them, and works on them with ``--work``.

Run by the demo as a process of its own. It takes any free port and prints ``ready <port>``. It ends when its
standard input does, so that it never outlives the demo.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException

from task_tracker import (
    AsyncTaskTracker,
    InvalidTransition,
    LeaseHeld,
    LeaseLost,
    StorageConfig,
    TaskRecord,
)
from task_tracker.http import Identity, create_router

ACCOUNT: Final = "acme"
USER: Final = "alice"

SLOTS: Final = 2
STEPS: Final = ("reading", "summarising", "embedding", "archiving")
UPDATES_PER_STEP: Final = 6
LOOK_SECONDS: Final = 0.1

log = logging.getLogger("demo")


def who_is_asking(x_account: Annotated[str, Header()], x_user: Annotated[str, Header()]) -> Identity:
    """A real server checks a token here."""
    return Identity(x_account, x_user)


def create_app(root: str, *, works: bool, lease_seconds: float | None) -> FastAPI:
    # All that the servers share is this directory.
    settings: dict[str, Any] = {"backend": "persistent", "root": root}
    if lease_seconds is not None:
        settings |= {"backend": "lease", "lease_seconds": lease_seconds}
    config = StorageConfig(task_tracker=settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with config.build_async_task_tracker() as tracker:
            app.state.tracker = tracker
            worker = asyncio.create_task(work_for_ever(tracker)) if works else None
            yield
            if worker is not None:
                worker.cancel()
                await asyncio.gather(worker, return_exceptions=True)

    app = FastAPI(lifespan=lifespan)
    app.include_router(create_router(lambda: app.state.tracker, identity=who_is_asking))

    @app.post("/api/v1/sessions/{session_id}/commit", status_code=202)
    async def commit_session(
        session_id: str, seconds: float, who: Annotated[Identity, Depends(who_is_asking)]
    ) -> dict[str, Any]:
        tracker: AsyncTaskTracker = app.state.tracker
        if await tracker.has_running("session_commit", session_id, who.account_id, who.user_id):
            raise HTTPException(409, "this session is being committed already")
        task = await tracker.create(
            "session_commit",
            session_id,
            account_id=who.account_id,
            user_id=str(who.user_id),
            payload={"seconds": seconds},
        )
        return {"status": "ok", "result": {"task_id": task.task_id}}

    return app


async def work_for_ever(tracker: AsyncTaskTracker) -> None:
    """Look for pending tasks, whoever took them on, and work on two at a time."""
    running: set[asyncio.Task[None]] = set()
    try:
        while True:
            if len(running) < SLOTS:
                pending = await tracker.list_tasks(status="pending", account_id=ACCOUNT, user_id=USER)
                for task in reversed(pending[len(running) - SLOTS :]):  # the oldest first
                    await begin(tracker, task, running)
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        for work in running:
            work.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def begin(tracker: AsyncTaskTracker, task: TaskRecord, running: set[asyncio.Task[None]]) -> None:
    try:
        await tracker.start(task.task_id, task.account_id, task.user_id)
    except (InvalidTransition, LeaseHeld):
        return  # cancelled since it was listed, or another server was quicker
    work = asyncio.create_task(do(tracker, task))
    running.add(work)
    work.add_done_callback(running.discard)


async def do(tracker: AsyncTaskTracker, task: TaskRecord) -> None:
    """Work until the end, or until the task is somebody else's."""
    try:
        await take_the_steps(tracker, task)
    except LeaseLost as error:
        log.warning("LeaseLost: %s", error)


async def take_the_steps(tracker: AsyncTaskTracker, task: TaskRecord) -> None:
    """The work: it sleeps, and tells how far it has got."""
    name = (task.task_id, task.account_id, task.user_id)
    updates = len(STEPS) * UPDATES_PER_STEP
    for number in range(updates):
        if await tracker.is_cancellation_requested(*name):
            await tracker.mark_cancelled(*name)
            return
        await tracker.update(
            *name, stage=STEPS[number // UPDATES_PER_STEP], progress=round(100 * number / updates)
        )
        await asyncio.sleep(task.payload["seconds"] / updates)
    result = {"archived": task.resource_id, "by_process": os.getpid()}
    await tracker.complete(task.task_id, result, task.account_id, task.user_id)


class Server(uvicorn.Server):
    """Says when it is ready, and on which port."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets and not self.should_exit:
            print("ready", sockets[0].getsockname()[1], flush=True)


def end_with_input(server: Server) -> None:
    sys.stdin.buffer.read()  # nothing is ever written; it ends with the demo
    server.should_exit = True


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.server")
    parser.add_argument("--root", required=True)
    parser.add_argument("--work", action="store_true")
    parser.add_argument("--lease-seconds", type=float)
    arguments = parser.parse_args()
    app = create_app(arguments.root, works=arguments.work, lease_seconds=arguments.lease_seconds)
    server = Server(
        uvicorn.Config(app, http="h11", ws="none", log_level="warning", timeout_graceful_shutdown=2)
    )
    threading.Thread(target=end_with_input, args=(server,), daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server.run(sockets=[listening])


if __name__ == "__main__":
    main()
