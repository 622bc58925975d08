"""How a server mounts the router: trackers, identities, renderers, documentation, a missing FastAPI."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.middleware.base import BaseHTTPMiddleware

from task_tracker import (
    AsyncTaskTracker,
    TaskTracker,
    get_task_tracker,
    reset_task_tracker,
    set_task_tracker,
)
from task_tracker.http import Envelope, Identity, Renderer, create_router
from tests.http_api.asking import (
    Client,
    app_with,
    create,
    is_waited_for,
    look,
    meanwhile,
    run,
    run_raising,
    who_is_asking,
)

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def tracker():
    with TaskTracker() as tracker:
        yield tracker


# ---- trackers ----------------------------------------------------------------------------------------


def test_any_kind_of_tracker_will_do(tracker: TaskTracker) -> None:
    task_id = create(tracker)
    awaited = AsyncTaskTracker(tracker)
    for given in (tracker, awaited, lambda: tracker, lambda: awaited):
        assert Client(app_with(given)).ok("GET", f"/tasks/{task_id}")["task_id"] == task_id


def test_the_tracker_of_the_process_is_asked_for_at_each_request(tracker: TaskTracker) -> None:
    alice = Client(app_with(get_task_tracker))
    assert alice.error("GET", "/tasks", 503)["code"] == "UNAVAILABLE"
    set_task_tracker(tracker)
    try:
        create(tracker)
        assert len(alice.listed()) == 1
        set_task_tracker(TaskTracker())
        assert alice.listed() == []
    finally:
        reset_task_tracker()


def test_a_synchronous_tracker_is_wrapped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Counted(AsyncTaskTracker):
        def __init__(self, tracker: TaskTracker) -> None:
            made.append(tracker)
            super().__init__(tracker)

    monkeypatch.setattr("task_tracker.http.sources.AsyncTaskTracker", Counted)
    first, second = TaskTracker(), TaskTracker()
    current = [first]
    alice = Client(app_with(lambda: current[0]))
    for tracker in (first, second):
        current[0] = tracker
        for _ in range(5):
            assert alice.listed() == []
    assert made == [first, second]


def test_what_is_no_tracker_is_refused() -> None:
    with pytest.raises(TypeError, match="tracker is a str; give a TaskTracker"):
        create_router("tracker", identity=who_is_asking)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tracker of this router is a NoneType"):
        run_raising(app_with(lambda: None))


def test_other_arguments_are_checked(tracker: TaskTracker) -> None:
    with pytest.raises(TypeError, match="identity"):
        create_router(tracker)  # type: ignore[call-arg]
    for identity in (None, "alice", Identity("acme", "alice")):
        with pytest.raises(TypeError, match="identity must be the dependency that says who is asking"):
            create_router(tracker, identity=identity)  # type: ignore[arg-type]
    for seconds in (-1, 1.5, True, "2"):
        with pytest.raises(ValueError, match="retry_after_seconds must be a whole number"):
            create_router(tracker, identity=who_is_asking, retry_after_seconds=seconds)  # type: ignore[arg-type]
    for prefix in ("api", "/api/", "/", None):
        with pytest.raises(ValueError, match='prefix must begin with "/" and not end with it, or be empty'):
            create_router(tracker, identity=who_is_asking, prefix=prefix)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="renderer must have the methods ok and error; a object has not"):
        create_router(tracker, identity=who_is_asking, renderer=object())  # type: ignore[arg-type]


# ---- paths -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/api/v2", "/deep/er/x"])
def test_the_prefix_is_free(tracker: TaskTracker, prefix: str) -> None:
    task_id = create(tracker, task_id="a/b")
    client = Client(app_with(tracker, prefix=prefix), base=prefix)
    assert client.listed()[0]["task_id"] == task_id
    assert client.ok("GET", "/tasks/a%2Fb")["task_id"] == task_id


def test_routers_may_be_nested_and_mounted_and_several(tracker: TaskTracker) -> None:
    from fastapi import APIRouter

    other = TaskTracker()
    create(tracker, task_id="a/b")
    create(other, task_id="c/d")
    outer = APIRouter(prefix="/outer")
    outer.include_router(create_router(tracker, identity=who_is_asking, prefix="/one"), prefix="/more")
    app = FastAPI()
    app.include_router(outer)
    app.mount("/inner", app_with(other))
    assert Client(app, base="/outer/more/one").ok("GET", "/tasks/a%2Fb")["task_id"] == "a/b"
    assert Client(app, base="/inner/api/v1").ok("GET", "/tasks/c%2Fd")["task_id"] == "c/d"
    Client(app, base="/inner/api/v1").error("GET", "/tasks/a%2Fb", 404)


def test_routes_of_the_server_beside_these_are_reached(tracker: TaskTracker) -> None:
    app = app_with(tracker)

    @app.get("/api/v1/tasks/{task_id}/log")
    async def log(task_id: str) -> str:
        return task_id

    assert Client(app).get("/tasks/t1/log").json() == "t1"
    assert Client(app).get("/tasks/t1/nothing").json() == {"detail": "Not Found"}
    assert Client(app).ask("PUT", "/tasks/t1").status_code == 405


def test_a_path_that_a_middleware_rewrote_is_believed(tracker: TaskTracker) -> None:
    create(tracker, task_id="t1")
    app = app_with(tracker)

    async def rewrite(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "path": "/api/v1/tasks/t1"}, receive, send)

    assert Client(rewrite, base="").ok("GET", "/short%2Fway")["task_id"] == "t1"


def test_waiting_works_behind_middleware(tracker: TaskTracker) -> None:
    app = app_with(tracker)

    class Passing(BaseHTTPMiddleware):
        async def dispatch(self, request: Request, call_next: Any) -> Any:
            return await call_next(request)

    app.add_middleware(Passing)
    task_id = create(tracker)
    asked = Client(app).asking("GET", f"/tasks/{task_id}?wait=30")
    answer = run(meanwhile(asked, lambda: is_waited_for(tracker), lambda: tracker.complete(task_id)))
    assert answer.json()["result"]["status"] == "completed"


# ---- renderers ---------------------------------------------------------------------------------------


class House(BaseModel):
    ok: bool
    data: Any = None
    problem: str | None = None


class HouseRenderer:
    def ok(self, result: Any) -> House:
        return House(ok=True, data=result)

    def error(self, code: str, message: str, details: Any) -> House:
        return House(ok=False, problem=f"{code}: {message}")


def test_the_server_may_render_its_own_envelopes(tracker: TaskTracker) -> None:
    renderer: Renderer = HouseRenderer()
    alice = Client(app_with(tracker, renderer=renderer))
    task_id = create(tracker)
    answer = alice.get(f"/tasks/{task_id}")
    assert answer.json() == {"ok": True, "data": look(tracker, task_id).to_dict(), "problem": None}
    assert alice.get("/tasks/x").json() == {
        "ok": False,
        "data": None,
        "problem": "NOT_FOUND: Task not found or expired",
    }
    assert alice.get("/tasks?limit=300").json()["problem"].startswith("INVALID_ARGUMENT: limit")
    plain = Client(app_with(tracker)).get(f"/tasks/{task_id}")
    assert plain.headers["etag"] == answer.headers["etag"], "the state's tag, whatever is around it"


def test_a_renderer_that_returns_no_json_is_a_mistake_of_the_server(tracker: TaskTracker) -> None:
    class Careless(Envelope):
        def ok(self, result: Any) -> Any:
            return {"result": result, "at": object()}

    with pytest.raises(TypeError, match="renderer returned a object"):
        app_with(tracker, renderer=Careless())


# ---- documentation -----------------------------------------------------------------------------------


def test_the_openapi_document_tells_what_the_routes_do(tracker: TaskTracker) -> None:
    document = app_with(tracker).openapi()
    operations = {
        f"{method.upper()} {path.removeprefix('/api/v1')}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    codes = {name: set(operation["responses"]) for name, operation in operations.items()}
    common = {"200", "400", "503", "default"}
    assert codes == {
        "GET /tasks/stats": common,
        "GET /tasks": common,
        "GET /tasks/{task_id}": common | {"304", "404"},
        "POST /tasks/{task_id}/cancel": common | {"404", "412"},
        "DELETE /tasks/{task_id}": common | {"404", "412"},
    }
    for name, operation in operations.items():
        assert operation["summary"], name
        assert operation["description"].endswith("."), name
        assert operation["tags"] == ["tasks"]
        assert all(response["description"] for response in operation["responses"].values()), name
    listed = {parameter["name"]: parameter for parameter in operations["GET /tasks"]["parameters"]}
    assert listed["limit"]["schema"]["maximum"] == 200
    assert "cancelling" in str(document["components"]["schemas"]["TaskStatus"])


def test_examples_are_made_by_the_renderer(tracker: TaskTracker) -> None:
    app = app_with(tracker, renderer=HouseRenderer())
    one = app.openapi()["paths"]["/api/v1/tasks/{task_id}"]["get"]["responses"]
    assert one["200"]["content"]["application/json"]["example"]["ok"] is True
    assert one["404"]["content"]["application/json"]["example"]["problem"].startswith("NOT_FOUND")


# ---- imports -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "said"), [("fastapi", True), ("starlette", True), ("task_tracker.http.answers", False)]
)
def test_without_fastapi_the_import_says_what_to_install(missing: str, said: bool) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import task_tracker.http"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert ("ImportError: task_tracker.http needs FastAPI" in done.stderr) == said
    assert ("pip install 'durable-task-tracker[http]'" in done.stderr) == said


def test_public_names() -> None:
    import task_tracker.http

    assert task_tracker.http.__all__ == [
        *("Caller", "Envelope", "Identity", "Renderer", "create_router", "readiness_route")
    ]
