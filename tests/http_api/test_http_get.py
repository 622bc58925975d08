"""One task over HTTP: the body, validators for polling, and waiting."""

import asyncio
import time
from typing import Any

import pytest

from task_tracker import TaskTracker
from tests.http_api.asking import Client, app_with, create, is_waited_for, meanwhile, run


@pytest.fixture
def tracker():
    with TaskTracker() as tracker:
        yield tracker


@pytest.fixture
def alice(tracker):
    return Client(app_with(tracker))


def test_a_task_is_its_public_view(tracker: TaskTracker, alice: Client) -> None:
    task = tracker.create(
        "session_commit",
        "sess-1",
        account_id="acme",
        user_id="alice",
        meta={"origin": "cli"},
        private={"token": "hidden"},
    )
    answer = alice.get(f"/tasks/{task.task_id}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"status": "ok", "result": task.to_dict()}
    assert "hidden" not in answer.text
    assert "alice" not in answer.text


@pytest.mark.parametrize("result", [None, {}, [], False, 0, "", {"a": [1.5, "ä"]}])
def test_results_come_as_they_are(tracker: TaskTracker, alice: Client, result: Any) -> None:
    task_id = create(tracker)
    tracker.complete(task_id, result)
    shown = alice.ok("GET", f"/tasks/{task_id}")
    assert (shown["status"], shown["result"]) == ("completed", result)


@pytest.mark.parametrize("task_id", ["a/b", "../x", "stats/x", "a%2Fb", "a?b#c", "täsk 1", ".", "x" * 150])
def test_ids_of_any_form_are_reached(tracker: TaskTracker, alice: Client, task_id: str) -> None:
    from urllib.parse import quote

    create(tracker, task_id=task_id)
    path = f"/tasks/{quote(task_id, safe='').replace('.', '%2E')}"
    assert alice.ok("GET", path)["task_id"] == task_id
    assert alice.ok("POST", path + "/cancel")["status"] == "cancelled"
    assert alice.ok("DELETE", path) == {"deleted": True}
    assert alice.error("GET", path, 404)["details"] == {"resource": task_id, "type": "task"}


# ---- polling -----------------------------------------------------------------------------------------


def test_an_active_task_says_when_to_ask_again(tracker: TaskTracker, alice: Client) -> None:
    task_id = create(tracker)
    for step in (lambda: None, lambda: tracker.start(task_id), lambda: tracker.cancel(task_id)):
        step()
        assert alice.get(f"/tasks/{task_id}").headers["retry-after"] == "2"
    tracker.mark_cancelled(task_id)
    assert "retry-after" not in alice.get(f"/tasks/{task_id}").headers
    impatient = Client(app_with(tracker, retry_after_seconds=1))
    assert impatient.get(f"/tasks/{create(tracker)}").headers["retry-after"] == "1"


def test_answers_may_be_kept_but_must_be_revalidated(tracker: TaskTracker, alice: Client) -> None:
    answer = alice.get(f"/tasks/{create(tracker)}")
    assert answer.headers["cache-control"] == "private, no-cache"


def test_what_is_known_already_is_not_sent_again(tracker: TaskTracker, alice: Client) -> None:
    task_id = create(tracker)
    first = alice.get(f"/tasks/{task_id}")
    etag = first.headers["etag"]
    same = alice.get(f"/tasks/{task_id}", headers={"If-None-Match": etag})
    assert (same.status_code, same.content) == (304, b"")
    for name in ("etag", "cache-control", "retry-after"):
        assert same.headers[name] == first.headers[name]

    tracker.update(task_id, progress=10)
    changed = alice.get(f"/tasks/{task_id}", headers={"If-None-Match": etag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != etag


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (["*"], 304),
        (["{etag}"], 304),
        (["W/{opaque}"], 304),
        (["{opaque}"], 304),
        (['"other", {etag}'], 304),
        (['"with, comma",{etag},"x"'], 304),
        (['"other"', "{etag}"], 304),
        (['"other"'], 200),
        (['"other", W/"another"'], 200),
        (["{bare}"], 200),
        (['"*"'], 200),
        ([""], 200),
    ],
)
def test_if_none_match_takes_lists_stars_and_weak_tags(
    tracker: TaskTracker, alice: Client, sent: list[str], status: int
) -> None:
    task_id = create(tracker)
    etag = alice.get(f"/tasks/{task_id}").headers["etag"]
    opaque = etag.removeprefix("W/")
    lines = [line.format(etag=etag, opaque=opaque, bare=opaque.strip('"')) for line in sent]
    headers = [("X-Account", "acme"), ("X-User", "alice"), *(("If-None-Match", line) for line in lines)]
    nameless = Client(alice.app, account=None, user=None)
    assert nameless.get(f"/tasks/{task_id}", headers=headers).status_code == status


def test_etags_are_the_same_on_every_instance(tracker: TaskTracker, alice: Client) -> None:
    task_id = create(tracker, meta={"b": 1, "a": {"d": 1, "c": 2}})
    other = Client(app_with(TaskTracker(tracker.store)))
    assert alice.get(f"/tasks/{task_id}").headers["etag"] == other.get(f"/tasks/{task_id}").headers["etag"]


# ---- waiting -----------------------------------------------------------------------------------------


def test_waiting_ends_with_the_task(tracker: TaskTracker, alice: Client) -> None:
    task_id = create(tracker)
    asked = alice.asking("GET", f"/tasks/{task_id}?wait=30")
    answer = run(
        meanwhile(asked, lambda: is_waited_for(tracker), lambda: tracker.complete(task_id, {"done": True}))
    )
    assert answer.json()["result"]["result"] == {"done": True}
    assert "retry-after" not in answer.headers
    assert not is_waited_for(tracker)


def test_waiting_ends_with_its_time(tracker: TaskTracker, alice: Client) -> None:
    task_id = create(tracker)
    tracker.start(task_id)
    answer = alice.get(f"/tasks/{task_id}?wait=0.05")
    assert answer.json()["result"]["status"] == "running"
    assert answer.headers["retry-after"] == "2"
    assert not is_waited_for(tracker)


def test_waiting_for_what_has_ended_takes_no_time(tracker: TaskTracker, alice: Client) -> None:
    task_id = create(tracker)
    tracker.fail(task_id, "no")
    began = time.monotonic()
    assert alice.ok("GET", f"/tasks/{task_id}?wait=60")["status"] == "failed"
    assert time.monotonic() - began < 30


def test_waiting_with_a_known_state_answers_304_if_nothing_changed(
    tracker: TaskTracker, alice: Client
) -> None:
    task_id = create(tracker)
    etag = alice.get(f"/tasks/{task_id}").headers["etag"]
    known = {"If-None-Match": etag}
    assert alice.get(f"/tasks/{task_id}?wait=0.01", headers=known).status_code == 304
    asked = alice.asking("GET", f"/tasks/{task_id}?wait=30", headers=known)
    answer = run(meanwhile(asked, lambda: is_waited_for(tracker), lambda: tracker.complete(task_id)))
    assert answer.status_code == 200


def test_a_task_that_is_deleted_while_waited_for_is_not_found(tracker: TaskTracker, alice: Client) -> None:
    task_id = create(tracker)
    asked = alice.asking("GET", f"/tasks/{task_id}?wait=30")

    def end_and_delete() -> None:
        tracker.complete(task_id)
        tracker.delete(task_id)

    answer = run(meanwhile(asked, lambda: is_waited_for(tracker), end_and_delete))
    assert answer.status_code == 404


@pytest.mark.parametrize("wait", ["-1", "61", "60.001", "nan", "inf", "long", ""])
def test_bad_waits_are_refused_and_the_maximum_named(tracker: TaskTracker, alice: Client, wait: str) -> None:
    error = alice.error("GET", f"/tasks/{create(tracker)}?wait={wait}", 400)
    assert error["code"] == "INVALID_ARGUMENT"
    assert "wait" in error["message"]
    if wait in ("61", "60.001"):
        assert "60" in error["message"]


def test_many_wait_at_once_and_one_change_answers_all(tracker: TaskTracker, alice: Client) -> None:
    task_id = create(tracker)

    async def story() -> list[str]:
        asked = [asyncio.ensure_future(alice.asking("GET", f"/tasks/{task_id}?wait=30")) for _ in range(50)]
        everybody = lambda: sum(map(len, tracker.access.changes._callbacks.values())) == 50  # noqa: E731
        answers = await meanwhile(asyncio.gather(*asked), everybody, lambda: tracker.complete(task_id))
        return [answer.json()["result"]["status"] for answer in answers]

    assert run(story) == ["completed"] * 50
