"""``GET /ready``: whether a server can do its work now, and what is wrong if it cannot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends, FastAPI, HTTPException

from stores import InMemoryTaskStore, PersistentTaskStore
from task_tracker import HandlerRegistry, StoreUnavailable, TaskTracker, get_task_tracker, set_task_tracker
from task_tracker.http import readiness_route
from task_tracker.store import WorkerFact
from task_tracker.testing import FakeClock, FaultyStore
from task_tracker.worker import Fact, Facts, Worker, WorkerStatus
from tests.core.support import Gate
from tests.http_api.asking import Client, app_with

SECRET = "postgres://admin:hunter2@10.1.2.3/srv/private/records"
READY: dict[str, Any] = {
    "name": "host-1:7:abc",
    "host": "host-1",
    "pid": 4711,
    "state": "working",
    "ready": True,
    "slots": 4,
    "running": 1,
    "kinds": [["reindex", 1]],
    "oldest_running_seconds": 7.5,
    "last_heartbeat_seconds": 3.0,
    "backlog": 12,
    "oldest_waiting_seconds": 60.0,
}


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(InMemoryTaskStore())


@pytest.fixture
def tracker(store: FaultyStore) -> Iterator[TaskTracker]:
    with TaskTracker(store) as tracker:
        yield tracker


def client(tracker: Any, **options: Any) -> Client:
    app = FastAPI()
    app.include_router(readiness_route(tracker, **options))
    return Client(app, account=None, base="")


def said(tracker: TaskTracker, name: str = "w", **changes: Any) -> None:
    leases = tracker.access.leases
    assert leases is not None
    leases.publish(WorkerFact(name, {**READY, **changes}, 20.0))


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.event for record in caplog.records if hasattr(record, "event")]


def wrong(asking: Client) -> dict[str, Any]:
    """What is not ready, by name, with what is said of it."""
    answer = asking.get("/ready")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert answer.headers["cache-control"] == "no-store"
    error = answer.json()["error"]
    assert error["code"] == "UNAVAILABLE"
    found = {
        name: check["detail"]
        for group in ("checks", "facts")
        for name, check in error["details"][group].items()
        if not check["ready"]
    }
    assert error["message"] == f"Not ready: {', '.join(found)}"
    assert error["details"]["ready"] is False
    return found


# ---- the store and its workers -----------------------------------------------------------------------------


def test_a_server_whose_store_answers_is_ready(tracker: TaskTracker) -> None:
    """[D160] With what is known of the work; nobody has to be known to ask."""
    asking = client(tracker)
    assert asking.ok("GET", "/ready") == {
        "ready": True,
        "checks": {"store": {"ready": True, "detail": ""}},
        "facts": {},
        "work": {
            "workers": 0,
            "ready_workers": 0,
            "slots": 0,
            "running": 0,
            "oldest_running_seconds": None,
            "last_heartbeat_seconds": None,
            "backlog": None,
            "oldest_waiting_seconds": None,
        },
        "paused": [],
    }
    said(tracker)
    said(tracker, "w2", ready=False, running=2, oldest_running_seconds=300.0, last_heartbeat_seconds=None)
    said(tracker, "strange", slots="many", running=True, backlog=None, oldest_running_seconds=None)
    tracker.pause_type("reindex")
    result = asking.ok("GET", "/ready")
    assert result["work"] == {
        "workers": 3,
        "ready_workers": 2,
        "slots": 8,
        "running": 3,
        "oldest_running_seconds": 300.0,
        "last_heartbeat_seconds": 3.0,
        "backlog": 12,
        "oldest_waiting_seconds": 60.0,
    }
    assert result["paused"] == ["reindex"]


def test_a_store_that_is_away_makes_it_not_ready(
    store: FaultyStore, tracker: TaskTracker, caplog: pytest.LogCaptureFixture
) -> None:
    """[D160] Its own words are for the log, which has them once, however often somebody asks."""
    asking = client(tracker, require_worker=True)
    store.fail(StoreUnavailable(f"{SECRET}: connection refused; try again"), forever=True)
    with caplog.at_level(logging.INFO, "task_tracker"):
        for _ in range(3):
            assert wrong(asking) == {"store": "cannot be reached", "workers": "not known"}
    assert SECRET not in asking.get("/ready").text
    assert events(caplog) == ["store_unavailable", "not_ready"]
    store.heal()
    said(tracker)
    with caplog.at_level(logging.INFO, "task_tracker"):
        assert asking.get("/ready").status_code == 200
    assert events(caplog)[-1] == "ready"


def test_a_store_that_hangs_makes_it_not_ready_in_time() -> None:
    """[D160] The probe is answered, and probes do not take all threads of the tracker."""
    store, gate = FaultyStore(InMemoryTaskStore()), Gate()
    store.blocking = True  # type: ignore[misc]  # as one on a disk, whose calls go to threads
    store.interrupt(gate.pass_through, on="facts", forever=True)
    with TaskTracker(store) as tracker:
        app = app_with(tracker)
        app.include_router(readiness_route(tracker, answer_seconds=0.02))
        for _ in range(20):
            found = wrong(Client(app, account=None, base=""))
            assert found == {"store": "has not answered within 0.02 s"}
        assert Client(app).listed() == []
        gate.open()


def test_a_worker_can_be_required(tracker: TaskTracker) -> None:
    """Any that is ready, of any process; one that says it is not ready is none."""
    asking = client(tracker, require_worker=True)
    assert wrong(asking) == {"workers": "0 of 0 ready"}
    said(tracker, ready=False)
    assert wrong(asking) == {"workers": "0 of 1 ready"}
    said(tracker, "other")
    assert asking.ok("GET", "/ready")["checks"]["workers"] == {"ready": True, "detail": "1 of 2 ready"}


def test_a_worker_can_be_required_for_each_type(tracker: TaskTracker) -> None:
    """A server that submits two types needs somebody for each."""
    asking = client(tracker, require_worker=["ingest", "reindex", "embed"])
    assert wrong(asking) == {"workers": "none is ready for embed, ingest, reindex"}
    said(tracker)
    said(tracker, "other", kinds=[["ingest", 1], ["embed", 2]], ready=False)
    said(tracker, "strange", kinds="all")
    assert wrong(asking) == {"workers": "none is ready for embed, ingest"}
    said(tracker, "other", kinds=[["ingest", 1], ["embed", 2]])
    assert asking.ok("GET", "/ready")["checks"]["workers"] == {"ready": True, "detail": ""}


def test_a_store_without_leases_is_asked_as_well(tmp_path: Path) -> None:
    """It has no workers: whoever requires one is told, and never that all is well."""
    with TaskTracker(FaultyStore(PersistentTaskStore(tmp_path))) as tracker:
        assert client(tracker).ok("GET", "/ready")["work"] is None
        assert client(tracker, require_worker=True).get("/ready").status_code == 501
        assert isinstance(tracker.store, FaultyStore)
        tracker.store.fail(forever=True)
        assert wrong(client(tracker)) == {"store": "cannot be reached"}


def test_before_there_is_a_tracker_it_is_not_ready() -> None:
    """The function that returns it is asked each time."""
    asking = client(get_task_tracker)
    set_task_tracker(None)
    assert wrong(asking) == {"store": "there is no tracker yet"}
    with TaskTracker() as tracker:
        set_task_tracker(tracker)
        try:
            assert asking.get("/ready").status_code == 200
        finally:
            set_task_tracker(None)


# ---- what else has to be well ------------------------------------------------------------------------------


def test_a_server_adds_facts_of_its_own_without_any_worker(tracker: TaskTracker) -> None:
    """[D160] What stops reporting counts as not ready."""
    clock = FakeClock()
    facts = Facts(clock)
    asking = client(tracker, facts=facts)
    facts.report("index", True, "mounted", life_seconds=60)
    assert asking.ok("GET", "/ready")["facts"] == {
        "index": {"ready": True, "detail": "mounted", "age_seconds": 0}
    }
    clock.advance(61)
    assert wrong(asking) == {"index": "not heard of for more than 60 s; last: mounted"}
    facts.withdraw("index")
    assert asking.get("/ready").status_code == 200


def test_facts_may_be_functions(tracker: TaskTracker, caplog: pytest.LogCaptureFixture) -> None:
    """One that breaks is not ready, and what it broke with is logged."""
    well = {"index": True}

    def reconciler() -> Fact:
        return Fact(well["index"], "3 behind", 2.0)

    def broken() -> bool:
        raise OSError(SECRET)

    asking = client(tracker, facts={"index": lambda: well["index"], "reconciler": reconciler})
    assert asking.ok("GET", "/ready")["facts"]["reconciler"] == {
        "ready": True,
        "detail": "3 behind",
        "age_seconds": 2.0,
    }
    well["index"] = False
    assert wrong(asking) == {"index": "", "reconciler": "3 behind"}
    with caplog.at_level(logging.ERROR):
        assert wrong(client(tracker, facts={"disk": broken})) == {"disk": "its check failed"}
    assert SECRET in caplog.text


def test_an_embedded_worker_has_to_be_ready_with_all_that_is_reported_to_it(tracker: TaskTracker) -> None:
    """[D160] In every state but that of working well."""
    worker = Worker(tracker, HandlerRegistry())
    asking = client(tracker, worker=worker)
    assert wrong(asking) == {"worker": "new"}

    async def scenario() -> None:
        async with worker:
            answer = await asking.asking("GET", "/ready")
            assert answer.json()["result"]["checks"]["worker"] == {"ready": True, "detail": "working"}
            worker.report("index", False, "rebuilding")
            answer = await asking.asking("GET", "/ready")
            details = answer.json()["error"]["details"]
            assert details["facts"]["index"]["detail"] == "rebuilding"
            assert details["checks"]["worker"] == {
                "ready": False,
                "detail": "what was reported to it is not ready",
            }

    asyncio.run(scenario())
    worker.withdraw("index")
    assert wrong(asking) == {"worker": "stopped"}


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"blocked_loop_seconds": 3.0}, "its event loop is blocked"),
        (
            {"blocked_loop_seconds": 3.0, "store_away_seconds": 9.0},
            "its event loop is blocked, the store does not answer it",
        ),
        ({"lingering": 1}, "handlers that were told to stop and go on take all its slots"),
        ({"without_lease": 1}, "work goes on here whose lease is lost"),
        ({"claiming_seconds": 61.0}, "a claim hangs"),
        ({"rescuing_seconds": 61.0}, "settling what stopped workers have left hangs"),
        ({"no_thread": True}, "there is no thread for another handler"),
        ({"claiming_seconds": 59.0}, "its heartbeats are late, or a part of it has ended"),
    ],
)
def test_why_a_worker_is_not_ready(tracker: TaskTracker, changes: dict[str, Any], detail: str) -> None:
    class Unwell:
        def status(self) -> WorkerStatus:
            return WorkerStatus(name="w", state="working", ready=False, slots=1, facts={}, **changes)

    assert wrong(client(tracker, worker=Unwell())) == {"worker": detail}


# ---- the route ---------------------------------------------------------------------------------------------


def test_nobody_learns_where_workers_live(tracker: TaskTracker) -> None:
    """A probe has no identity: no hosts, processes or names of instances."""
    said(tracker, "host-1:4711:abc")
    for asking in (client(tracker), client(tracker, require_worker=["nothing"])):
        text = asking.get("/ready").text
        for word in ("host-1", "4711", "abc"):
            assert word not in text


def test_where_it_is_and_who_may_ask_is_the_servers_choice(tracker: TaskTracker) -> None:
    def nobody() -> None:
        raise HTTPException(401, "who are you?")

    assert client(tracker, path="/health/ready").get("/health/ready").status_code == 200
    assert client(tracker, dependencies=[Depends(nobody)]).get("/ready").status_code == 401


def test_it_speaks_in_the_servers_own_envelope(tracker: TaskTracker) -> None:
    class House:
        def ok(self, result: Any) -> Any:
            return {"fine": result["ready"]}

        def error(self, code: str, message: str, details: Any) -> Any:
            return {"problem": message}

    assert client(tracker, renderer=House()).get("/ready").json() == {"fine": True}
    asking = client(tracker, renderer=House(), facts={"index": lambda: False})
    assert asking.get("/ready").json() == {"problem": "Not ready: index"}


def test_it_is_documented(tracker: TaskTracker) -> None:
    operation = client(tracker).get("/openapi.json").json()["paths"]["/ready"]["get"]
    assert operation["responses"].keys() == {"200", "503", "default"}
    assert operation["tags"] == ["health"]
    example = operation["responses"]["503"]["content"]["application/json"]["example"]
    assert example["error"]["details"]["checks"]["store"]["ready"] is False


@pytest.mark.parametrize(
    ("source", "options", "error"),
    [
        (3, {}, TypeError),
        (None, {"require_worker": "reindex"}, TypeError),
        (None, {"answer_seconds": 0}, ValueError),
        (None, {"answer_seconds": float("inf")}, ValueError),
        (None, {"answer_seconds": True}, ValueError),
    ],
)
def test_what_cannot_work_is_refused(
    tracker: TaskTracker, source: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        readiness_route(tracker if source is None else source, **options)
