"""The example server, as a client meets it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from examples.fastapi_server import create_app
from task_tracker import StorageConfig
from tests.http_api.asking import run

COMMIT = "/api/v1/sessions/sess-1/commit"


@pytest.fixture(params=["memory", "persistent"])
def config(request: pytest.FixtureRequest, tmp_path):
    return StorageConfig(task_tracker={"backend": request.param, "root": str(tmp_path)})


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.fastapi_server.SECONDS_PER_STEP", 0.01)


@asynccontextmanager
async def asking(config: StorageConfig) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(config)
    headers = {"X-Account": "acme", "X-User": "alice"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://server", headers=headers
        ) as client,
    ):
        yield client


def test_work_is_started_polled_and_done(config: StorageConfig) -> None:
    async def story() -> None:
        async with asking(config) as client:
            started = await client.post(COMMIT)
            assert started.status_code == 202
            assert (await client.post(COMMIT)).status_code == 409
            ended = await client.get(started.headers["location"], params={"wait": 30})
            task = ended.json()["result"]
            assert (task["status"], task["stage"], task["progress"]) == ("completed", "completed", 100)
            assert task["result"] == {"archived": True}
            assert (await client.post(COMMIT)).status_code == 202

    run(story)


def test_work_is_cancelled(config: StorageConfig) -> None:
    async def story() -> None:
        async with asking(config) as client:
            location = (await client.post(COMMIT)).headers["location"]
            assert (await client.post(f"{location}/cancel")).status_code == 200
            ended = await client.get(location, params={"wait": 30})
            assert ended.json()["result"]["status"] == "cancelled"

    run(story)


def test_work_that_fails_says_why(config: StorageConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ConnectionError("no route to https://user:pa55word@archive")

    monkeypatch.setattr("examples.fastapi_server.BackgroundWork._commit", broken)

    async def story() -> None:
        async with asking(config) as client:
            location = (await client.post(COMMIT)).headers["location"]
            task = (await client.get(location, params={"wait": 30})).json()["result"]
            assert task["status"] == "failed"
            assert "no route to" in task["error"]
            assert "pa55word" not in task["error"]

    run(story)


def test_a_server_that_stops_leaves_nothing_running(config: StorageConfig, tmp_path) -> None:
    if config.task_tracker.backend == "memory":
        pytest.skip("nobody can look afterwards")

    async def story() -> None:
        async with asking(config) as client:
            location = (await client.post(COMMIT)).headers["location"]
        async with asking(config) as client:
            task = (await client.get(location)).json()["result"]
            assert (task["status"], task["error_code"]) == ("failed", "interrupted")

    run(story)


def test_strangers_are_refused(config: StorageConfig) -> None:
    async def story() -> None:
        async with asking(config) as client:
            location = (await client.post(COMMIT)).headers["location"]
            assert (await client.get(location, headers={"X-User": "bob"})).status_code == 404
            del client.headers["X-User"]
            assert (await client.get(location)).status_code == 400

    run(story)
