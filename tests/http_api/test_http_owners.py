"""Whose tasks can be seen: the caller's, and for administrators the account's."""

import time
from typing import Any

import httpx
import pytest

from task_tracker import Retention, TaskTracker
from task_tracker.testing import FakeClock, FaultyStore
from tests.http_api.asking import Client, app_with, create, public_view

SINGLE_TASK_ROUTES = [
    ("GET", "/tasks/{id}"),
    ("GET", "/tasks/{id}?wait=30"),
    ("POST", "/tasks/{id}/cancel"),
    ("DELETE", "/tasks/{id}"),
]
each_route = pytest.mark.parametrize(("method", "path"), SINGLE_TASK_ROUTES)


@pytest.fixture
def tracker():
    with TaskTracker() as tracker:
        yield tracker


@pytest.fixture
def alice(tracker):
    return Client(app_with(tracker))


@pytest.fixture
def admin(alice):
    return Client(alice.app, user="*")


def without_id(answer: httpx.Response, task_id: str) -> Any:
    """All that a client can tell of an answer, except the id it asked for."""
    body = answer.json()
    assert body["error"]["details"].pop("resource") == task_id
    headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
    return answer.status_code, headers, body


# ---- strangers ---------------------------------------------------------------------------------------


@each_route
@pytest.mark.parametrize(
    "stranger", [{"user": "bob"}, {"account": "globex"}, {"user": "acme"}, {"user": "Alice"}]
)
@pytest.mark.parametrize("ended", [False, True])
def test_a_foreign_task_looks_like_no_task(
    tracker: TaskTracker, alice: Client, method: str, path: str, stranger: dict[str, Any], ended: bool
) -> None:
    """[D155] Another user, another account with a user of the same name: the answer for an unknown id."""
    task_id = create(tracker)
    if ended:
        tracker.complete(task_id)
    before = tracker.get(task_id)
    other = Client(alice.app, **stranger)
    foreign = other.ask(method, path.format(id=task_id))
    unknown = other.ask(method, path.format(id="no-such-task"))
    assert foreign.status_code == 404
    assert without_id(foreign, task_id) == without_id(unknown, "no-such-task")
    assert tracker.get(task_id) == before


def test_lists_and_counts_leave_out_what_is_foreign(tracker: TaskTracker, alice: Client) -> None:
    """[D155]"""
    create(tracker)
    create(tracker, user_id="bob")
    create(tracker, account_id="globex")
    for client in (alice, Client(alice.app, user="bob"), Client(alice.app, account="globex")):
        assert len(client.listed()) == 1
        assert client.ok("GET", "/tasks/stats") == {"session_commit": {"pending": 1}}
    assert Client(alice.app, user="carol").listed() == []
    assert Client(alice.app, user="carol").ok("GET", "/tasks/stats") == {}


def test_the_store_is_asked_the_same_for_foreign_and_unknown_tasks(tracker: TaskTracker) -> None:
    """[D155] Same timing class: no shortcut tells the two apart."""
    store = FaultyStore(tracker.store)
    task_id = create(tracker)
    asked = []
    for wanted in (task_id, "no-such-task"):
        bob = Client(app_with(TaskTracker(store)), user="bob")
        store.calls.clear()
        bob.error("GET", f"/tasks/{wanted}", 404)
        asked.append(dict(store.calls))
    assert asked == [{"get": 1}, {"get": 1}]


def test_two_owners_may_use_the_same_id(tracker: TaskTracker, alice: Client) -> None:
    create(tracker, "of-alice", task_id="nightly")
    create(tracker, "of-bob", task_id="nightly", user_id="bob")
    assert alice.ok("GET", "/tasks/nightly")["task_type"] == "of-alice"
    assert Client(alice.app, user="bob").ok("GET", "/tasks/nightly")["task_type"] == "of-bob"


# ---- ids that lead nowhere ---------------------------------------------------------------------------


@each_route
@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("never-existed", "never-existed"),
        ("01980d5e-6c2f-7a30-9d5b-0f4c1f2a3b4c", "01980d5e-6c2f-7a30-9d5b-0f4c1f2a3b4c"),
        ("%00", "\0"),
        ("a%00b", "a\0b"),
        ("%20", " "),
        ("%E2%80%83", "\u2003"),
        ("%2e%2e%2fx", "../x"),
        ("..%2F..%2Fetc%2Fpasswd", "../../etc/passwd"),
        ("%2e%2e", ".."),
        ("%2F", "/"),
        ("%252F", "%2F"),
        ("%ff", "\ufffd"),
        ("%ED%A0%80", "\ufffd\ufffd\ufffd"),
        ("x" * 4000, "x" * 200),
        ("C:%5Cwindows", "C:\\windows"),
    ],
)
@pytest.mark.parametrize("backend", ["memory", "persistent"])
def test_malformed_ids_are_unknown_ids(
    tmp_path, method: str, path: str, sent: str, meant: str, backend: str
) -> None:
    """[D139] At once, also when asked to wait, and with the very same answer."""
    from task_tracker import StorageConfig

    place = {"root": str(tmp_path / "root")} if backend == "persistent" else {}
    config = StorageConfig(task_tracker={"backend": backend, **place})
    (tmp_path / "x.json").write_text("{}")
    with config.build_task_tracker(cleanup=False) as tracker:
        alice = Client(app_with(tracker))
        began = time.monotonic()
        answer = alice.ask(method, path.format(id=sent))
        assert time.monotonic() - began < 10
        unknown = alice.ask(method, path.format(id="no-such-task"))
    assert answer.status_code == 404
    assert without_id(answer, meant) == without_id(unknown, "no-such-task")


@each_route
def test_expired_and_deleted_tasks_are_unknown_tasks(method: str, path: str) -> None:
    """[D139]"""
    clock = FakeClock()
    with TaskTracker(clock=clock, retention=Retention(60, 60, 60)) as tracker:
        alice = Client(app_with(tracker))
        expired, deleted = create(tracker), create(tracker)
        tracker.complete(expired)
        tracker.complete(deleted)
        tracker.delete(deleted)
        clock.advance(61)
        tracker.purge()
        answers = {
            task_id: alice.ask(method, path.format(id=task_id)) for task_id in (expired, deleted, "new")
        }
    seen = [without_id(answer, task_id) for task_id, answer in answers.items()]
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][0] == 404


# ---- administrators ----------------------------------------------------------------------------------


def test_administrators_are_told_the_owner_and_nobody_else_is(
    tracker: TaskTracker, alice: Client, admin: Client
) -> None:
    """[D155] What an administrator needs to name for a single task is on each row."""
    task_id = create(tracker)
    create(tracker, user_id="bob")
    tracker.start(task_id)
    owner = {"owner_account_id": "acme", "owner_user_id": "alice"}
    rows = {row["owner_user_id"]: row for row in admin.listed()}
    assert sorted(rows) == ["alice", "bob"]
    assert {name: rows["alice"][name] for name in owner} == owner
    assert [row["owner_user_id"] for row in admin.listed("?user_id=bob")] == ["bob"]

    one = admin.get(f"/tasks/{task_id}?user_id=alice")
    own = alice.get(f"/tasks/{task_id}")
    assert one.json()["result"] == {**own.json()["result"], **owner}
    assert one.headers["etag"] == own.headers["etag"], "it names the task's state"
    assert own.json()["result"] == public_view(tracker, task_id)
    assert alice.listed() == [public_view(tracker, task_id)]

    for client, query, shown in ((admin, "?user_id=alice", owner), (alice, "", {})):
        cancelled = client.ok("POST", f"/tasks/{task_id}/cancel{query}")
        assert cancelled == {**public_view(tracker, task_id), **shown}


def test_an_administrator_sees_the_account_and_no_other(tracker: TaskTracker, admin: Client) -> None:
    """[D155]"""
    ids = [create(tracker), create(tracker, user_id="bob")]
    create(tracker, account_id="globex")
    assert [task["task_id"] for task in admin.listed()] == ids[::-1]
    assert admin.ok("GET", "/tasks/stats") == {"session_commit": {"pending": 2}}
    assert [task["task_id"] for task in admin.listed("?user_id=bob")] == ids[1:]
    assert admin.ok("GET", "/tasks/stats?user_id=bob") == {"session_commit": {"pending": 1}}
    assert admin.listed("?user_id=nobody") == []


def test_an_administrator_pages_through_the_account(tracker: TaskTracker, admin: Client) -> None:
    ids = [create(tracker, user_id=f"user-{number % 3}") for number in range(7)]
    path, seen = "/tasks?limit=2", []
    while path:
        answer = admin.get(path)
        seen += [task["task_id"] for task in answer.json()["result"]]
        path = answer.links["next"]["url"].removeprefix(admin.base) if "next" in answer.links else ""
    assert seen == ids[::-1]


def test_an_administrator_names_the_owner_of_a_single_task(tracker: TaskTracker, admin: Client) -> None:
    """[D043] Owner and administrator can cancel, a stranger gets the not-found answer."""
    task_id = create(tracker)
    tracker.start(task_id)
    assert admin.ok("GET", f"/tasks/{task_id}?user_id=alice&wait=0")["status"] == "running"
    Client(admin.app, user="bob").error("POST", f"/tasks/{task_id}/cancel", 404)
    admin.error("POST", f"/tasks/{task_id}/cancel?user_id=bob", 404)
    assert admin.ok("POST", f"/tasks/{task_id}/cancel?user_id=alice")["status"] == "cancelling"
    tracker.mark_cancelled(task_id)
    admin.error("POST", f"/tasks/{task_id}/cancel?user_id=alice", 412)
    assert admin.ok("DELETE", f"/tasks/{task_id}?user_id=alice") == {"deleted": True}


def test_an_administrator_of_another_account_is_a_stranger(tracker: TaskTracker, admin: Client) -> None:
    task_id = create(tracker)
    stranger = Client(admin.app, account="globex", user="*")
    for method, path in SINGLE_TASK_ROUTES:
        stranger.error(method, path.format(id=task_id) + ("&" if "?" in path else "?") + "user_id=alice", 404)
    assert stranger.listed("?user_id=alice") == []


@each_route
def test_an_administrator_who_names_nobody_is_told_to(
    tracker: TaskTracker, admin: Client, method: str, path: str
) -> None:
    for task_id in (create(tracker), "no-such-task"):
        error = admin.error(method, path.format(id=task_id), 400)
        assert error["details"] == {"parameters": ["user_id"]}


@pytest.mark.parametrize("user_id", ["", "%20", "a%00b"])
def test_a_user_id_that_cannot_be_one_is_refused(admin: Client, user_id: str) -> None:
    for path in ("/tasks", "/tasks/stats", "/tasks/x"):
        error = admin.error("GET", f"{path}?user_id={user_id}", 400)
        assert error["details"] == {"parameters": ["user_id"]}


@pytest.mark.parametrize("backend", ["memory", "persistent"])
def test_a_user_id_that_no_store_can_hold_has_no_tasks(tmp_path, backend: str) -> None:
    from task_tracker import StorageConfig

    place = {"root": str(tmp_path)} if backend == "persistent" else {}
    config = StorageConfig(task_tracker={"backend": backend, **place})
    with config.build_task_tracker(cleanup=False) as tracker:
        admin = Client(app_with(tracker), user="*")
        assert admin.listed(f"?user_id={'x' * 500}") == []
        admin.error("GET", f"/tasks/x?user_id={'x' * 500}", 404)


@pytest.mark.parametrize("user_id", ["bob", "alice", "nobody", ""])
@pytest.mark.parametrize("path", ["/tasks", "/tasks/stats", "/tasks/{id}"])
def test_nobody_else_may_name_a_user(tracker: TaskTracker, alice: Client, path: str, user_id: str) -> None:
    """[D155] Refused in the same way whoever is named, and whether there is such a task or not."""
    task_id = create(tracker, user_id="bob")
    errors = [
        alice.error("GET", f"{path.format(id=wanted)}?user_id={user_id}", 400)
        for wanted in (task_id, "no-such-task")
    ]
    assert errors[0] == errors[1]
    assert errors[0]["details"]["parameters"] == ["user_id"]
    assert "user_id" not in errors[0]["details"]["known"]
