"""A small server that starts long work, hands out task ids and answers for them.

::

    pip install '.[http]' uvicorn        # in a checkout of this project
    uvicorn examples.fastapi_server:app --timeout-graceful-shutdown 25
    curl -X POST -H 'X-Account: acme' -H 'X-User: alice' 'localhost:8000/api/v1/sessions/sess-1/commit'
    curl -H 'X-Account: acme' -H 'X-User: alice' 'localhost:8000/api/v1/tasks/<task_id>?wait=20'

Clients wait for less time than a server that shuts down gives open requests. Tasks are kept in memory. To keep
them on a disk that several of these servers share::

    TASK_TRACKER__BACKEND=persistent TASK_TRACKER__ROOT=/srv/tasks uvicorn examples.fastapi_server:app
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Header, HTTPException, Path, Request, Response
from fastapi.responses import JSONResponse

from task_tracker import (
    AsyncTaskTracker,
    InvalidTransition,
    StorageConfig,
    StoreUnavailable,
    TaskNotFound,
    TaskRecord,
    TaskTrackerError,
)
from task_tracker.http import Identity, create_router

SECONDS_PER_STEP: Final = 0.5

_log = logging.getLogger("sessions")

PLAIN: Final = r"^[\w.@-]+$"
Name = Annotated[str, Header(max_length=64, pattern=PLAIN)]


def who_is_asking(x_account: Name, x_user: Name) -> Identity:
    """Believe what the headers say. A real server checks a token here, and raises HTTPException(401)."""
    return Identity(x_account, None if x_user == "root" else x_user)


def who_has_tasks(who: Annotated[Identity, Depends(who_is_asking)]) -> tuple[str, str]:
    """Return account and user for whom work can be started. An administrator is no user."""
    if who.user_id is None:
        raise HTTPException(403, "an administrator of the account has no sessions")
    return who.account_id, who.user_id


class BackgroundWork:
    """Runs what requests start, on the server's event loop, and reports how it goes."""

    def __init__(self, tracker: AsyncTaskTracker) -> None:
        self.tracker = tracker
        # Also keeps them alive: asyncio itself would let them be collected.
        self._running: dict[asyncio.Task[None], TaskRecord] = {}

    def start(self, task: TaskRecord) -> None:
        """Begin the work of ``task`` and return at once."""
        running = asyncio.create_task(self._report(task))
        self._running[running] = task
        running.add_done_callback(self._running.pop)

    async def stop(self) -> None:
        """Stop all work; its tasks end as failed, so that nobody waits for them."""
        stopped = dict(self._running)
        for running in stopped:
            running.cancel()
        await asyncio.gather(*stopped, return_exceptions=True)
        # Here and not where the work was cancelled: work that had not begun would never come to that place.
        await asyncio.gather(*(self._interrupted(task) for task in stopped.values()))

    async def _interrupted(self, task: TaskRecord) -> None:
        name, owner = task.task_id, (task.account_id, task.user_id)
        await _end(self.tracker.fail(name, "the server was stopped", *owner, error_code="interrupted"))

    async def _report(self, task: TaskRecord) -> None:
        """Do the work, and end its task in every case but one: :meth:`stop` ends what it has cancelled."""
        tracker, name, owner = self.tracker, task.task_id, (task.account_id, task.user_id)
        try:
            await tracker.start(name, *owner)
        except (InvalidTransition, TaskNotFound):
            return  # cancelled before it began
        except TaskTrackerError as error:
            _log.warning("not begun: %s", error)  # the text names files; clients read the one of the task
            await _end(tracker.fail(name, "the task store could not be reached, nothing was done", *owner))
            return
        try:
            result = await self._commit(task)
        except Exception as error:  # noqa: BLE001  # whatever it was, the task must not stay "running"
            await _end(tracker.fail(name, error, *owner))
        else:
            if result is None:
                await _end(tracker.mark_cancelled(name, *owner))
            else:
                await _end(tracker.complete(name, result, *owner))

    async def _commit(self, task: TaskRecord) -> dict[str, Any] | None:
        """Do the work; None if it was cancelled."""
        for number, step in enumerate(("read", "summarise", "archive")):
            if not await self._goes_on(task, stage=step, progress=number * 100 / 3):
                return None
            await asyncio.sleep(SECONDS_PER_STEP)
        return {"archived": True}

    async def _goes_on(self, task: TaskRecord, *, stage: str, progress: float) -> bool:
        """Note how far the work is; False if it is to stop. A store that is away for a while stops nothing."""
        name, owner = task.task_id, (task.account_id, task.user_id)
        try:
            if await self.tracker.is_cancellation_requested(name, *owner):
                return False
            await self.tracker.update(name, *owner, stage=stage, progress=progress)
        except (InvalidTransition, TaskNotFound):
            return False  # somebody else has ended it: there is nobody to work for
        except TaskTrackerError as error:
            _log.warning("progress was not noted: %s", error)
        return True


async def _end(ending: Awaitable[object]) -> None:
    """Await a task's end; what it raises is the log's business, not the task's."""
    try:
        await ending
    except (InvalidTransition, TaskNotFound) as error:
        _log.info("somebody else has ended it, their word stands: %s", error)
    except TaskTrackerError as error:  # StoreUnavailable: the tracker keeps the outcome and tries again
        _log.warning("an outcome is not stored yet: %s", error)


def create_app(config: StorageConfig | None = None) -> FastAPI:
    """Return the server. ``config`` is read from the environment by default."""
    storage = config if config is not None else StorageConfig()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with storage.build_async_task_tracker() as tracker:
            app.state.work = BackgroundWork(tracker)
            try:
                yield
            finally:
                await app.state.work.stop()

    app = FastAPI(title="Sessions", lifespan=lifespan)
    # The tracker comes with the lifespan, so the router is told where to find it.
    app.include_router(create_router(lambda: app.state.work.tracker, identity=who_is_asking))

    @app.exception_handler(StoreUnavailable)  # for the routes below; those of the router answer by themselves
    async def not_now(_: Request, error: StoreUnavailable) -> JSONResponse:
        _log.warning("answered with 503: %s", error)
        failure = {"code": "UNAVAILABLE", "message": "The task store cannot be reached, try again"}
        return JSONResponse({"status": "error", "error": failure}, 503, {"Retry-After": "5"})

    @app.post("/api/v1/sessions/{session_id}/commit", status_code=202)
    async def commit_session(
        session_id: Annotated[str, Path(max_length=64, pattern=PLAIN)],
        owner: Annotated[tuple[str, str], Depends(who_has_tasks)],
        response: Response,
    ) -> dict[str, Any]:
        work: BackgroundWork = app.state.work
        task = await work.tracker.create_if_no_running(
            "session_commit", session_id, account_id=owner[0], user_id=owner[1]
        )
        if task is None:
            raise HTTPException(409, "this session is being committed already")
        work.start(task)
        response.headers["Location"] = f"/api/v1/tasks/{task.task_id}"
        return {"status": "ok", "result": {"task_id": task.task_id}}

    return app


app = create_app()
