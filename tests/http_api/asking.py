"""Clients of a router under test: each is somebody, and asks without a network."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import httpx
from fastapi import FastAPI, Header, HTTPException

from task_tracker import AsyncTaskTracker, TaskRecord, TaskTracker
from task_tracker.http import Identity, create_router

PATIENCE_SECONDS: Final = 10.0

_T = TypeVar("_T")


def who_is_asking(x_account: str | None = Header(None), x_user: str | None = Header(None)) -> Identity:
    """The identity dependency of an imaginary server; `X-User: *` is an administrator."""
    if x_account is None or x_user is None:
        raise HTTPException(401, "who are you?")
    return Identity(x_account, None if x_user == "*" else x_user)


def app_with(tracker: Any, **options: Any) -> FastAPI:
    app = FastAPI()
    app.include_router(create_router(tracker, **{"identity": who_is_asking, **options}))
    return app


@dataclass
class Client:
    """Somebody who asks ``app``. Paths are relative to ``base``."""

    app: Any
    account: str | None = "acme"
    user: str | None = "alice"
    base: str = "/api/v1"
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self.asking(method, path, **options))

    async def asking(self, method: str, path: str, **options: Any) -> httpx.Response:
        names = {"X-Account": self.account, "X-User": self.user}
        headers = {**self.headers, **{name: value for name, value in names.items() if value is not None}}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://server", headers=headers
        ) as client:
            return await client.request(method, self.base + path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.ask("GET", path, **options)

    def listed(self, query: str = "") -> list[dict[str, Any]]:
        result = self.ok("GET", "/tasks" + query)
        assert isinstance(result, list)
        return result

    def ok(self, method: str, path: str) -> Any:
        answer = self.ask(method, path)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["status"] == "ok"
        return body["result"]

    def error(self, method: str, path: str, status: int) -> dict[str, Any]:
        answer = self.ask(method, path)
        assert answer.status_code == status, answer.text
        body = answer.json()
        assert body.keys() == {"status", "error"}
        assert body["status"] == "error"
        assert body["error"].keys() == {"code", "message", "details"}
        assert answer.headers["cache-control"] == "no-store"
        error = body["error"]
        assert isinstance(error, dict)
        return error


def create(tracker: TaskTracker, task_type: str = "session_commit", **options: Any) -> str:
    owner = {"account_id": "acme", "user_id": "alice"}
    return tracker.create(task_type, **{**owner, **options}).task_id


def look(tracker: TaskTracker, task_id: str) -> TaskRecord:
    record = tracker.get(task_id)
    assert record is not None
    return record


def public_view(tracker: TaskTracker, task_id: str) -> dict[str, Any]:
    """What callers see of a task: its public view without who works on it."""
    view = look(tracker, task_id).to_dict()
    if "attempt" in view:
        del view["attempt"]["holder"]
    return view


def is_waited_for(tracker: TaskTracker | AsyncTaskTracker) -> bool:
    """Whether any call waits for a change of any task."""
    inner = tracker.tracker if isinstance(tracker, AsyncTaskTracker) else tracker
    return bool(inner.access.changes._callbacks)


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            holds = condition()
            if holds if isinstance(holds, bool) else await holds:
                return
            await asyncio.sleep(0.001)


def run(story: Callable[[], Coroutine[Any, Any, _T]] | Coroutine[Any, Any, _T]) -> _T:
    return asyncio.run(story() if callable(story) else story)


async def meanwhile(asked: Awaitable[_T], condition: Callable[[], bool], event: Callable[[], object]) -> _T:
    """Return what was asked for, ``event`` having happened as soon as ``condition`` held."""
    answer = asyncio.ensure_future(asked)
    await until(condition)
    event()
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await answer


def run_raising(app: FastAPI, path: str = "/tasks", **headers: str) -> None:
    async def story() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            await client.get("/api/v1" + path, headers={"X-Account": "acme", "X-User": "alice", **headers})

    run(story)
