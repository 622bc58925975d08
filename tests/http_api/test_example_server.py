"""The example server, as a client meets it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from examples.fastapi_server import create_app
from task_tracker import AsyncTaskTracker, StorageConfig, StoreUnavailable
from tests.http_api.asking import run

COMMIT = "/api/v1/sessions/sess-1/commit"


@pytest.fixture(params=["memory", "persistent"])
def config(request: pytest.FixtureRequest, tmp_path):
    root = {"root": str(tmp_path)} if request.param == "persistent" else {}
    return StorageConfig(task_tracker={"backend": request.param, **root})


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


# ---- the store is away ----------------------------------------------------------------------------------


SECRET_PLACE = "/srv/secret/place"


def is_away(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable(f"cannot read {SECRET_PLACE}")

    for name in names:
        monkeypatch.setattr(AsyncTaskTracker, name, away)


@pytest.mark.parametrize("names", [["update"], ["is_cancellation_requested"]])
def test_progress_that_cannot_be_noted_ends_nothing(
    config: StorageConfig, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    is_away(monkeypatch, *names)

    async def story() -> None:
        async with asking(config) as client:
            location = (await client.post(COMMIT)).headers["location"]
            task = (await client.get(location, params={"wait": 30})).json()["result"]
            assert (task["status"], task["error"]) == ("completed", None)

    run(story)


def test_work_that_could_not_be_started_says_so_and_no_more(
    config: StorageConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_away(monkeypatch, "start")

    async def story() -> None:
        async with asking(config) as client:
            location = (await client.post(COMMIT)).headers["location"]
            task = (await client.get(location, params={"wait": 30})).json()["result"]
            assert task["status"] == "failed"
            assert SECRET_PLACE not in str(task)

    run(story)


def test_an_end_that_cannot_be_stored_is_not_followed_by_another(
    config: StorageConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_away(monkeypatch, "complete")

    async def story() -> None:
        async with asking(config) as client:
            location = (await client.post(COMMIT)).headers["location"]
            task = (await client.get(location, params={"wait": 0.3})).json()["result"]
            assert (task["status"], task["error"]) == ("running", None)

    run(story)


def test_its_own_route_answers_with_503(config: StorageConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    is_away(monkeypatch, "create_if_no_running")

    async def story() -> None:
        async with asking(config) as client:
            answer = await client.post(COMMIT)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "UNAVAILABLE")
            assert answer.headers["retry-after"] == "5"
            assert SECRET_PLACE not in answer.text

    run(story)


# ---- who asks for what ----------------------------------------------------------------------------------


def test_administrators_have_no_sessions_but_see_those_of_others(config: StorageConfig) -> None:
    async def story() -> None:
        async with asking(config) as client:
            location = (await client.post(COMMIT)).headers["location"]
            client.headers["X-User"] = "root"
            assert (await client.post(COMMIT)).status_code == 403
            listed = (await client.get("/api/v1/tasks")).json()["result"]
            assert [task["owner_user_id"] for task in listed] == ["alice"]
            assert (await client.get(location, params={"user_id": "alice"})).status_code == 200

    run(story)


def test_names_that_cannot_be_stored_are_refused(config: StorageConfig) -> None:
    async def story() -> None:
        async with asking(config) as client:
            for session in ("a%00b", "%20", "x" * 65):
                assert (await client.post(f"/api/v1/sessions/{session}/commit")).status_code == 422
            for user in ("", " ", "x" * 65, "a b"):
                assert (await client.post(COMMIT, headers={"X-User": user})).status_code == 422

    run(story)


def test_work_that_had_not_begun_when_the_server_stopped_is_ended_too(
    config: StorageConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        app = create_app(config)
        async with app.router.lifespan_context(app):
            work = app.state.work
            task = await work.tracker.create("session_commit", "s", account_id="acme", user_id="alice")
            work.start(task)
            await work.stop()
            ended = await work.tracker.get(task.task_id, "acme", "alice")
            assert (ended.status, ended.error_code) == ("failed", "interrupted")

    run(story)
