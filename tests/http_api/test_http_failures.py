"""When something is wrong behind the routes: what strangers may read of it, and what not."""

import logging
from collections.abc import Callable

import pytest

from stores import InMemoryTaskStore
from task_tracker import (
    CapabilityMissing,
    CorruptRecord,
    InvalidTaskId,
    InvalidTransition,
    LeaseHeld,
    LeaseLost,
    SettingsError,
    StorageConfig,
    StoreUnavailable,
    TaskTracker,
    TaskTrackerError,
    VersionConflict,
)
from task_tracker.testing import FaultyStore
from tests.http_api.asking import Client, app_with, create, is_waited_for, look, meanwhile, run

ALL_ROUTES = [
    ("GET", "/tasks"),
    ("GET", "/tasks?status=failed"),
    ("GET", "/tasks/stats"),
    ("GET", "/tasks/{id}"),
    ("GET", "/tasks/{id}?wait=30"),
    ("POST", "/tasks/{id}/cancel"),
    ("DELETE", "/tasks/{id}"),
]
SECRET = "postgres://admin:hunter2@10.1.2.3/srv/private/records"


@pytest.fixture
def store():
    return FaultyStore(InMemoryTaskStore())


@pytest.fixture
def tracker(store):
    with TaskTracker(store) as tracker:
        yield tracker


@pytest.fixture
def alice(tracker):
    return Client(app_with(tracker))


@pytest.mark.parametrize(("method", "path"), ALL_ROUTES)
@pytest.mark.parametrize("known", [True, False])
def test_a_store_that_does_not_answer_is_503(
    store: FaultyStore, tracker: TaskTracker, alice: Client, method: str, path: str, known: bool
) -> None:
    """[D071] Never 404 and never an empty list, for tasks that exist and for those that do not."""
    task_id = create(tracker) if known else "no-such-task"
    store.fail(StoreUnavailable(f"{SECRET} did not answer"), forever=True)
    error = alice.error(method, path.format(id=task_id), 503)
    assert error == {
        "code": "UNAVAILABLE",
        "message": "The task store cannot be reached; nothing is known, try again",
        "details": {},
    }
    assert int(alice.ask(method, path.format(id=task_id)).headers["retry-after"]) > 0
    store.heal()
    if known:
        assert look(tracker, task_id).status == "pending"


def test_disk_errors_are_503(tmp_path) -> None:
    """[D071] From a real directory that cannot be read."""
    config = StorageConfig(task_tracker={"backend": "persistent", "root": str(tmp_path)})
    with config.build_task_tracker(cleanup=False) as tracker:
        task_id = create(tracker)
        directory = next(tmp_path.rglob(f"{task_id}.json")).parent
        # A file in place of the directory: root, too, gets an error (ENOTDIR) that is not "not found".
        directory.rename(tmp_path / "aside")
        directory.write_text("")
        alice = Client(app_with(tracker))
        for path in ("/tasks", "/tasks/stats", f"/tasks/{task_id}"):
            answer = alice.ask("GET", path)
            assert answer.status_code == 503, (path, answer.text)
            assert str(tmp_path) not in answer.text


def test_what_ended_is_answered_from_memory_while_the_store_is_away(
    store: FaultyStore, tracker: TaskTracker, alice: Client
) -> None:
    task_id = create(tracker)
    tracker.complete(task_id, 1)
    store.fail(forever=True)
    assert alice.ok("GET", f"/tasks/{task_id}")["result"] == 1


def test_a_store_that_is_away_for_a_moment_does_not_end_a_wait(
    store: FaultyStore, tracker: TaskTracker, alice: Client
) -> None:
    task_id = create(tracker)
    store.fail(on="get", nth=2)

    def failed_once() -> bool:
        return store.calls["get"] >= 3 and is_waited_for(tracker)

    asked = alice.asking("GET", f"/tasks/{task_id}?wait=30")
    answer = run(meanwhile(asked, failed_once, lambda: tracker.complete(task_id)))
    assert answer.status_code == 200


def test_a_damaged_record_is_neither_missing_nor_shown(tmp_path, caplog) -> None:
    config = StorageConfig(task_tracker={"backend": "persistent", "root": str(tmp_path)})
    with config.build_task_tracker(cleanup=False) as tracker:
        damaged, whole = create(tracker), create(tracker)
        path = next(tmp_path.rglob(f"{damaged}.json"))
        path.write_text(SECRET)
    with config.build_task_tracker(cleanup=False) as tracker:
        alice = Client(app_with(tracker))
        error = alice.error("GET", f"/tasks/{damaged}", 500)
        alice.error("POST", f"/tasks/{damaged}/cancel", 500)
        alice.error("DELETE", f"/tasks/{damaged}", 500)
        listed = alice.get("/tasks")
    assert error["code"] == "DATA_LOSS"
    assert error["details"] == {"resource": damaged, "type": "task"}
    assert "/" not in error["message"]
    assert "hunter2" not in str(error)
    assert str(path) in caplog.text, "operators are told where"
    assert [task["task_id"] for task in listed.json()["result"]] == [whole]
    assert listed.headers["x-skipped-records"] == "1"


@pytest.mark.parametrize(
    ("make", "status", "code"),
    [
        (VersionConflict, 409, "ABORTED"),
        (LeaseLost, 409, "ABORTED"),
        (lambda text: LeaseHeld(text, holder="host-7:1234"), 409, "ABORTED"),
        (CapabilityMissing, 501, "UNIMPLEMENTED"),
        (SettingsError, 500, "INTERNAL"),
        (TaskTrackerError, 500, "INTERNAL"),
        (lambda text: CorruptRecord(text, path="/srv/private"), 500, "DATA_LOSS"),
        (StoreUnavailable, 503, "UNAVAILABLE"),
    ],
)
def test_errors_of_the_library_come_out_without_their_text(
    store: FaultyStore,
    tracker: TaskTracker,
    alice: Client,
    make: Callable[[str], Exception],
    status: int,
    code: str,
) -> None:
    """[D142] Paths, hosts, holders and credentials stay inside."""
    task_id = create(tracker)
    tracker.complete(task_id)
    store.fail(make(SECRET), on="delete")
    answer = alice.ask("DELETE", f"/tasks/{task_id}")
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    for secret in ("hunter2", "10.1.2.3", "/srv", "host-7", "Traceback"):
        assert secret not in answer.text + str(answer.headers)
    assert ("retry-after" in answer.headers) == (status in (409, 503))


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidTaskId(SECRET), 400, "INVALID_ARGUMENT"),
        (InvalidTransition(SECRET), 412, "FAILED_PRECONDITION"),
    ],
)
def test_what_only_a_strange_store_says_to_a_list_is_answered_too(
    store: FaultyStore, alice: Client, error: Exception, status: int, code: str
) -> None:
    store.fail(error, on="list")
    answer = alice.error("GET", "/tasks", status)
    assert answer["code"] == code
    assert "hunter2" not in answer["message"]


def test_unexpected_errors_are_left_to_the_server(
    store: FaultyStore, tracker: TaskTracker, alice: Client
) -> None:
    store.fail(ZeroDivisionError(SECRET), on="list")
    answer = alice.ask("GET", "/tasks")
    assert answer.status_code == 500
    assert "hunter2" not in answer.text


def test_every_failure_that_operators_must_see_is_logged(
    store: FaultyStore, tracker: TaskTracker, alice: Client, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = create(tracker)
    with caplog.at_level(logging.WARNING, "task_tracker"):
        alice.error("GET", "/tasks/no-such-task", 404)
        alice.error("GET", "/tasks?limit=300", 400)
        assert caplog.records == []
        store.fail(on="list")
        alice.error("GET", "/tasks", 503)
        store.fail(CapabilityMissing("use another store"), on="request_cancel")
        alice.error("POST", f"/tasks/{task_id}/cancel", 501)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "ERROR"]
    assert "use another store" in caplog.text


# ---- what tasks themselves may hold ------------------------------------------------------------------

CREDENTIALS = [
    "https://user:pa55word@host/x",
    "?token=t0psecretvalue123456",
    "Authorization: Bearer abcdef0123456789abcdef",
    "ghp_" + "a1B2" * 9,
    "AKIAIOSFODNN7EXAMPLE",
    "postgres://app:pa55word@db/tasks",
]


@pytest.mark.parametrize("credential", CREDENTIALS)
def test_error_texts_come_out_redacted(tracker: TaskTracker, alice: Client, credential: str) -> None:
    """[D142]"""
    task_id = create(tracker)
    try:
        raise ConnectionError(f"step 3 failed: {credential}")
    except ConnectionError as error:
        tracker.fail(task_id, error)
    for path in (f"/tasks/{task_id}", "/tasks"):
        answer = alice.get(path)
        assert "step 3 failed" in answer.text
        assert credential.rpartition(" ")[2] not in answer.text
        assert "pa55word" not in answer.text
        assert "t0psecret" not in answer.text


def test_credentials_of_a_task_are_never_shown(tracker: TaskTracker, alice: Client) -> None:
    """[D143] Neither what is private nor what is nested in meta, payload and result under such a name."""
    nested = {"auth": {"password": "pa55word", "api_key": "k3yvalue"}, "cookie": "c00kie", "plain": "shown"}
    task = tracker.create(
        "ingest",
        account_id="acme",
        user_id="alice",
        meta=nested,
        payload=nested,
        private={"token": "pr1vate"},
    )
    paths = ["/tasks", f"/tasks/{task.task_id}"]
    texts = [alice.get(path).text for path in paths]
    tracker.start(task.task_id)
    texts += [alice.get(path).text for path in paths]
    texts.append(alice.ask("POST", f"/tasks/{task.task_id}/cancel").text)
    tracker.complete(task.task_id, nested)
    texts += [alice.get(path).text for path in paths]
    for text in texts:
        assert "shown" in text
        for secret in ("pa55word", "k3yvalue", "c00kie", "pr1vate"):
            assert secret not in text
