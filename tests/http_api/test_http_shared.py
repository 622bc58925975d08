"""Several servers on one directory, or one database, asked over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from task_tracker import StorageConfig, TaskTracker
from tests.http_api.asking import Client, app_with, create, is_waited_for, meanwhile, run


def place(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    if backend != "postgres":
        return {"root": str(tmp_path)}
    ground = request.getfixturevalue("ground")
    return {
        "dsn": ground.dsn,
        "options": {"schema": ground.names.schema, "table_prefix": ground.names.prefix},
    }


@pytest.fixture(params=["persistent", "lease", "postgres"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Makes servers: a tracker with an empty cache, and a client of its routes."""
    settings = {"backend": request.param, **place(request.param, tmp_path, request)}

    @contextmanager
    def make() -> Iterator[tuple[TaskTracker, Client]]:
        config = StorageConfig(task_tracker=settings)
        with config.build_task_tracker(cleanup=False) as tracker:
            yield tracker, Client(app_with(tracker))

    return make


def test_a_task_created_elsewhere_is_found_at_once(server: Any) -> None:
    """[D104] Also by a server that had looked before, and also when it is asked to wait."""
    with server() as (one, _), server() as (_, other):
        other.error("GET", "/tasks/t1", 404)
        assert other.listed() == []
        create(one, task_id="t1")
        assert other.ok("GET", "/tasks/t1")["status"] == "pending"
        assert other.ok("GET", "/tasks/t1?wait=0.01")["status"] == "pending"
        assert [task["task_id"] for task in other.listed()] == ["t1"]
        assert other.ok("GET", "/tasks/stats") == {"session_commit": {"pending": 1}}


def test_no_server_shows_running_after_another_has_ended_the_task(server: Any) -> None:
    with server() as (one, first), server() as (_, other):
        task_id = create(one)
        one.start(task_id)
        etag = other.get(f"/tasks/{task_id}").headers["etag"]
        one.complete(task_id, {"n": 1})
        answers = [
            client.get(f"/tasks/{task_id}", headers={"If-None-Match": etag}) for client in (first, other)
        ]
        assert [answer.json()["result"]["status"] for answer in answers] == ["completed", "completed"]
        assert answers[0].content == answers[1].content
        assert answers[0].headers["etag"] == answers[1].headers["etag"]


def test_waiting_ends_when_another_server_ends_the_task(server: Any) -> None:
    with server() as (one, _), server() as (waiting, other):
        task_id = create(one)
        asked = other.asking("GET", f"/tasks/{task_id}?wait=30")
        answer = run(meanwhile(asked, lambda: is_waited_for(waiting), lambda: one.complete(task_id)))
        assert answer.json()["result"]["status"] == "completed"


def test_a_cancel_reaches_the_server_that_works(server: Any) -> None:
    with server() as (working, _), server() as (_, other):
        task_id = create(working)
        working.start(task_id)
        assert other.ok("POST", f"/tasks/{task_id}/cancel")["status"] == "cancelling"
        assert working.is_cancellation_requested(task_id)
        working.mark_cancelled(task_id)
        other.error("POST", f"/tasks/{task_id}/cancel", 412)
        assert other.ok("DELETE", f"/tasks/{task_id}") == {"deleted": True}
        # An ended task is final in a cache: `get` of the other server may go on showing it, lists do not.
        assert working.list_tasks(account_id="acme") == []


def test_answers_are_the_same_after_a_restart(server: Any) -> None:
    with server() as (tracker, client):
        ids = [create(tracker) for _ in range(5)]
        tracker.complete(ids[0], {"n": 1})
        tracker.fail(ids[1], "no")
        if not tracker.store.capabilities.leases:  # what is held is given back when its holder goes
            tracker.start(ids[2])
        tracker.cancel(ids[3])
        paths = ["/tasks", "/tasks/stats", "/tasks?limit=2", *(f"/tasks/{task_id}" for task_id in ids)]
        before = [client.get(path) for path in paths]
    with server() as (_, client):
        after = [client.get(path) for path in paths]
    for old, new in zip(before, after, strict=True):
        assert (old.status_code, old.content, old.headers) == (new.status_code, new.content, new.headers)
