"""Lists and counts over HTTP: filters, pages, parameters."""

import base64
import json
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from stores import InMemoryTaskStore
from task_tracker import CorruptRecord, StorageConfig, TaskTracker
from task_tracker.store import Page, Query
from tests.http_api.asking import Client, app_with, create, look


@pytest.fixture
def tracker():
    with TaskTracker() as tracker:
        yield tracker


@pytest.fixture
def alice(tracker):
    return Client(app_with(tracker))


def test_a_list_is_a_plain_array_newest_first(tracker: TaskTracker, alice: Client) -> None:
    ids = [create(tracker) for _ in range(3)]
    answer = alice.get("/tasks")
    assert [task["task_id"] for task in answer.json()["result"]] == ids[::-1]
    assert answer.json()["result"][0] == look(tracker, ids[2]).to_dict()
    assert answer.headers["cache-control"] == "no-store"
    assert not {"link", "x-next-cursor", "x-skipped-records"} & answer.headers.keys()


def test_an_owner_without_tasks_has_an_empty_list(alice: Client) -> None:
    assert alice.listed() == []
    assert alice.ok("GET", "/tasks/stats") == {}


def test_filters_combine(tracker: TaskTracker, alice: Client) -> None:
    wanted = create(tracker, "ingest", resource_id="res 1&2")
    create(tracker, "ingest", resource_id="other")
    create(tracker, "commit", resource_id="res 1&2")
    tracker.start(wanted)
    listed = alice.listed("?task_type=ingest&status=running&resource_id=res%201%262")
    assert [task["task_id"] for task in listed] == [wanted]
    assert alice.listed("?status=cancelling") == []


def test_the_old_match_behind_many_others_is_found(tracker: TaskTracker, alice: Client) -> None:
    """[D137] Filters apply before the page is cut, and counts are those of the filtered set."""
    old = create(tracker)
    tracker.fail(old, "no")
    for _ in range(200):
        tracker.complete(create(tracker))
    listed = alice.get("/tasks?status=failed&limit=50")
    assert [task["task_id"] for task in listed.json()["result"]] == [old]
    assert "x-next-cursor" not in listed.headers
    assert alice.ok("GET", "/tasks/stats") == {"session_commit": {"failed": 1, "completed": 200}}


# ---- pages -------------------------------------------------------------------------------------------


def test_pages_by_link_give_every_task_once(tracker: TaskTracker, alice: Client) -> None:
    ids = [create(tracker, "a type & more", resource_id="r/1 ü") for _ in range(7)]
    create(tracker)
    path = "/tasks?limit=3&task_type=a+type+%26+more&resource_id=r%2F1%20%C3%BC"
    pages = []
    while path:
        answer = alice.get(path)
        pages.append([task["task_id"] for task in answer.json()["result"]])
        link = answer.links.get("next")
        path = link["url"].removeprefix(alice.base) if link else ""
        if link:
            assert answer.headers["link"].endswith('; rel="next"')
            query = parse_qs(urlsplit(link["url"]).query)
            assert query["before"] == [answer.headers["x-next-cursor"]]
            assert (query["task_type"], query["resource_id"]) == (["a type & more"], ["r/1 ü"])
    assert pages == [ids[6:3:-1], ids[3:0:-1], ids[0:1]]


def test_a_full_last_page_has_no_next_one(tracker: TaskTracker, alice: Client) -> None:
    for _ in range(4):
        create(tracker)
    first = alice.get("/tasks?limit=2")
    last = alice.get(f"/tasks?limit=2&before={first.headers['x-next-cursor']}")
    assert len(last.json()["result"]) == 2
    assert "link" not in last.headers


@pytest.mark.parametrize("server_adds_it", [True, False])
@pytest.mark.parametrize("root_path", ["", "/behind/a proxy"])
def test_links_bear_the_path_that_clients_see(
    tracker: TaskTracker, root_path: str, server_adds_it: bool
) -> None:
    for _ in range(2):
        create(tracker)
    app = app_with(tracker, prefix="/inner/v2")
    if server_adds_it:  # Starlette's mounts need that
        app = FastAPI()
        app.mount("/inner", app_with(tracker, prefix="/v2"))

    async def behind_a_proxy(scope: Scope, receive: Receive, send: Send) -> None:
        path = root_path + scope["path"] if server_adds_it else scope["path"]
        await app({**scope, "root_path": root_path, "path": path}, receive, send)

    answer = Client(behind_a_proxy, base="/inner/v2").get("/tasks?limit=1")
    assert answer.status_code == 200, answer.text
    assert httpx.URL(answer.links["next"]["url"]).path == f"{root_path}/inner/v2/tasks"


def test_fifty_tasks_by_default_and_two_hundred_at_most(tracker: TaskTracker, alice: Client) -> None:
    for _ in range(201):
        create(tracker)
    assert len(alice.listed()) == 50
    assert len(alice.listed("?limit=200")) == 200
    assert len(alice.listed("?limit=1")) == 1


# ---- parameters --------------------------------------------------------------------------------------


def test_stats_is_a_route_and_not_an_id(tracker: TaskTracker, alice: Client) -> None:
    """[D156] Fixed routes win, also over a task that is called like one."""
    create(tracker, task_id="stats")
    assert alice.ok("GET", "/tasks/stats") == {"session_commit": {"pending": 1}}


def test_too_large_a_page_is_refused_naming_the_maximum(tracker: TaskTracker, alice: Client) -> None:
    """[D156] Never shown as an empty list."""
    create(tracker)
    error = alice.error("GET", "/tasks?limit=300", 400)
    assert error["code"] == "INVALID_ARGUMENT"
    assert "limit" in error["message"]
    assert "200" in error["message"]
    assert error["details"]["problems"][0]["name"] == "limit"


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=201", "limit=many", "limit=", "limit=1.5"])
def test_bad_limits_are_refused(alice: Client, query: str) -> None:
    assert alice.error("GET", f"/tasks?{query}", 400)["details"]["problems"][0]["in"] == "query"


@pytest.mark.parametrize("query", ["status=done", "status=", "task_type=", "status=COMPLETED"])
def test_filters_that_nothing_can_match_are_refused(alice: Client, query: str) -> None:
    error = alice.error("GET", f"/tasks?{query}", 400)
    if query == "status=done":
        assert "'cancelling'" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("GET", "/tasks?state=failed", ["before", "limit", "resource_id", "status", "task_type"]),
        ("GET", "/tasks/stats?state=failed", []),
        ("GET", "/tasks/{id}?state=failed", ["wait"]),
        ("POST", "/tasks/{id}/cancel?state=failed", []),
        ("DELETE", "/tasks/{id}?state=failed", []),
    ],
)
def test_unknown_parameters_are_refused_naming_them_and_the_known_ones(
    tracker: TaskTracker, alice: Client, method: str, path: str, known: list[str]
) -> None:
    """[D156] A misspelt filter must not quietly give the unfiltered list."""
    task_id = create(tracker)
    error = alice.error(method, path.format(id=task_id), 400)
    assert error["details"] == {"parameters": ["state"], "known": known}
    assert "state" in error["message"]
    assert all(name in error["message"] for name in known)
    assert look(tracker, task_id).status == "pending"


def test_a_parameter_given_twice_is_refused(alice: Client) -> None:
    error = alice.error("GET", "/tasks?status=failed&status=running&limit=2", 400)
    assert error["details"]["parameters"] == ["status"]


def test_long_unknown_names_come_back_short(alice: Client) -> None:
    query = "&".join(f"{number}{'x' * 1000}=1" for number in range(30))
    error = alice.error("GET", f"/tasks?{query}", 400)
    assert len(error["message"]) < 3000


@pytest.mark.parametrize("before", ["", "x", "%00", "bm9uc2Vuc2U", "W10", "WzEsMiwzXQ", "e30", "ä"])
def test_what_no_page_gave_out_is_no_cursor(tracker: TaskTracker, alice: Client, before: str) -> None:
    create(tracker)
    error = alice.error("GET", f"/tasks?before={before}", 400)
    assert error["details"]["parameters"] == ["before"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=2),
        max_leaves=6,
    )
)
def test_made_up_cursors_never_break_the_server(alice: Client, made_up: object) -> None:
    text = json.dumps(made_up).encode("utf-8", "replace")
    before = base64.urlsafe_b64encode(text).decode().rstrip("=")
    assert alice.get("/tasks", params={"before": before}).status_code in (200, 400)


# ---- records that are not as they should be ----------------------------------------------------------


def test_skipped_records_are_counted_in_a_header() -> None:
    class Damaged(InMemoryTaskStore):
        def list(self, query: Query) -> Page:
            return super().list(query)._replace(corrupt=[CorruptRecord("bad", path="/srv/x.json")] * 2)

    with TaskTracker(Damaged()) as tracker:
        task_id = create(tracker)
        answer = Client(app_with(tracker)).get("/tasks")
    assert answer.headers["x-skipped-records"] == "2"
    assert [task["task_id"] for task in answer.json()["result"]] == [task_id]
    assert "/srv" not in answer.text


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_has_not_never_break_a_list(tmp_path, number: str) -> None:
    """[D114] Written by a careless other writer, they come out as null; written here, the task fails."""
    config = StorageConfig(task_tracker={"backend": "persistent", "root": str(tmp_path)})
    with config.build_task_tracker(cleanup=False) as tracker:
        refused = create(tracker)
        tracker.complete(refused, {"score": [float(number)]})
        directory = next(tmp_path.rglob(f"{refused}.json")).parent
        (directory / "careless.json").write_text(
            '{"task_id": "careless", "task_type": "t", "status": "completed", "created_at": 1.5, '
            f'"updated_at": 2.5, "account_id": "acme", "user_id": "alice", "result": [{{"score": {number}}}]}}'
        )
        alice = Client(app_with(tracker))
        answer = alice.get("/tasks")
        shown = alice.ok("GET", "/tasks/careless")
    assert answer.status_code == 200
    assert [task["task_id"] for task in answer.json()["result"]] == [refused, "careless"]
    assert answer.json()["result"][0]["error_code"] == "unserializable_result"
    assert shown["result"] == [{"score": None}]


def test_deep_results_of_other_writers_never_break_a_list(tmp_path) -> None:
    config = StorageConfig(task_tracker={"backend": "persistent", "root": str(tmp_path)})
    with config.build_task_tracker(cleanup=False) as tracker:
        directory = next(tmp_path.rglob(f"{create(tracker)}.json")).parent
        for depth in (200, 250, 251, 252, 253, 254, 255, 300):
            document = {
                "task_id": f"deep-{depth}",
                "task_type": "t",
                "status": "completed",
                "created_at": 1.0,
            }
            text = json.dumps(document)[:-1] + f', "result": {"[" * depth}{"]" * depth}}}'
            (directory / f"deep-{depth}.json").write_text(text)
        answer = Client(app_with(tracker)).get("/tasks")
    assert answer.status_code == 200, answer.text
    shown = len(answer.json()["result"])
    assert shown + int(answer.headers.get("x-skipped-records", 0)) == 9
