"""A small server that starts long work, hands out task ids and answers for them.

::

    uvicorn examples.fastapi_server:app
    curl -X POST -H 'X-Account: acme' -H 'X-User: alice' localhost:8000/api/v1/sessions/sess-1/commit
    curl -H 'X-Account: acme' -H 'X-User: alice' localhost:8000/api/v1/tasks/<task_id>?wait=30

Tasks are kept in memory. To keep them on a disk that several of these servers share::

    TASK_TRACKER__BACKEND=persistent TASK_TRACKER__ROOT=/srv/tasks uvicorn examples.fastapi_server:app
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Header, HTTPException, Response

from task_tracker import AsyncTaskTracker, InvalidTransition, StorageConfig, TaskNotFound, TaskRecord
from task_tracker.http import Identity, create_router

SECONDS_PER_STEP: Final = 0.5


def who_is_asking(x_account: Annotated[str, Header()], x_user: Annotated[str, Header()]) -> Identity:
    """Believe what the headers say. A real server checks a token here, and raises HTTPException(401)."""
    return Identity(x_account, x_user)


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
        for task in stopped.values():
            with contextlib.suppress(InvalidTransition, TaskNotFound):  # it had ended after all
                await self.tracker.fail(
                    task.task_id,
                    "the server was stopped",
                    task.account_id,
                    task.user_id,
                    error_code="interrupted",
                )

    async def _report(self, task: TaskRecord) -> None:
        tracker, owner = self.tracker, (task.account_id, task.user_id)
        try:
            await tracker.start(task.task_id, *owner)
            result = await self._commit(task)
            if result is None:
                await tracker.mark_cancelled(task.task_id, *owner)
            else:
                await tracker.complete(task.task_id, result, *owner)
        except (InvalidTransition, TaskNotFound):
            pass  # cancelled before it began, or ended by somebody else: their word stands
        except Exception as error:  # noqa: BLE001  # whatever it was, the task must not stay "running"
            await tracker.fail(task.task_id, error, *owner)

    async def _commit(self, task: TaskRecord) -> dict[str, Any] | None:
        """Do the work; None if it was cancelled."""
        for number, step in enumerate(("read", "summarise", "archive")):
            if await self.tracker.is_cancellation_requested(task.task_id, task.account_id, task.user_id):
                return None
            await self.tracker.update(
                task.task_id, task.account_id, task.user_id, stage=step, progress=number * 100 / 3
            )
            await asyncio.sleep(SECONDS_PER_STEP)
        return {"archived": True}


def create_app(config: StorageConfig | None = None) -> FastAPI:
    """Return the server. ``config`` is read from the environment by default."""
    storage = config if config is not None else StorageConfig()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with storage.build_async_task_tracker() as tracker:
            app.state.work = BackgroundWork(tracker)
            yield
            await app.state.work.stop()

    app = FastAPI(title="Sessions", lifespan=lifespan)
    # The tracker comes with the lifespan, so the router is told where to find it.
    app.include_router(create_router(lambda: app.state.work.tracker, identity=who_is_asking))

    @app.post("/api/v1/sessions/{session_id}/commit", status_code=202)
    async def commit_session(
        session_id: str, who: Annotated[Identity, Depends(who_is_asking)], response: Response
    ) -> dict[str, Any]:
        work: BackgroundWork = app.state.work
        task = await work.tracker.create_if_no_running(
            "session_commit", session_id, account_id=who.account_id, user_id=str(who.user_id)
        )
        if task is None:
            raise HTTPException(409, "this session is being committed already")
        work.start(task)
        response.headers["Location"] = f"/api/v1/tasks/{task.task_id}"
        return {"status": "ok", "result": {"task_id": task.task_id}}

    return app


app = create_app()
