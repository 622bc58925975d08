"""Cancelling and deleting over HTTP."""

import pytest

from task_tracker import TaskTracker
from task_tracker.testing import FaultyStore
from tests.http_api.asking import Client, app_with, create, look, public_view


@pytest.fixture
def tracker():
    with TaskTracker() as tracker:
        yield tracker


@pytest.fixture
def alice(tracker):
    return Client(app_with(tracker))


def end(tracker: TaskTracker, how: str) -> str:
    task_id = create(tracker)
    if how == "completed":
        tracker.complete(task_id)
    elif how == "failed":
        tracker.fail(task_id, "no")
    else:
        tracker.cancel(task_id)
    return task_id


def test_a_pending_task_is_cancelled_at_once(tracker: TaskTracker, alice: Client) -> None:
    task_id = create(tracker)
    answer = alice.ok("POST", f"/tasks/{task_id}/cancel")
    assert answer["status"] == "cancelled"
    assert answer == public_view(tracker, task_id)


def test_a_running_task_is_asked_to_stop_as_often_as_one_likes(tracker: TaskTracker, alice: Client) -> None:
    task_id = create(tracker)
    tracker.start(task_id)
    first = alice.ok("POST", f"/tasks/{task_id}/cancel")
    assert first["status"] == "cancelling"
    assert tracker.is_cancellation_requested(task_id)
    assert alice.ok("POST", f"/tasks/{task_id}/cancel") == first
    tracker.mark_cancelled(task_id)
    assert alice.error("POST", f"/tasks/{task_id}/cancel", 412)["code"] == "FAILED_PRECONDITION"


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
@pytest.mark.parametrize("strict", [True, False])
def test_a_task_that_has_ended_cannot_be_cancelled(how: str, strict: bool) -> None:
    with TaskTracker(strict=strict) as tracker:
        task_id = end(tracker, how)
        before = tracker.get(task_id)
        error = Client(app_with(tracker)).error("POST", f"/tasks/{task_id}/cancel", 412)
        assert tracker.get(task_id) == before
    assert error["code"] == "FAILED_PRECONDITION"
    assert error["message"] == f"The task has ended already: it is {how}"
    assert error["details"] == {"resource": task_id, "type": "task", "status": how}


@pytest.mark.parametrize("strict", [True, False])
def test_a_cancel_that_loses_to_the_end_is_told_so(strict: bool) -> None:
    store = FaultyStore(TaskTracker().store)
    with TaskTracker(store, strict=strict) as tracker:
        task_id = create(tracker)

        def ended() -> None:
            TaskTracker(store).complete(task_id, None, "acme", "alice")

        store.interrupt(ended, on="request_cancel")
        error = Client(app_with(tracker)).error("POST", f"/tasks/{task_id}/cancel", 412)
    assert error["details"]["status"] == "completed"


@pytest.mark.parametrize("strict", [True, False])
def test_a_cancel_that_loses_to_a_deletion_finds_nothing(strict: bool) -> None:
    store = FaultyStore(TaskTracker().store)
    with TaskTracker(store, strict=strict) as tracker:
        task_id = create(tracker)

        def gone() -> None:
            other = TaskTracker(store)
            other.complete(task_id, None, "acme", "alice")
            other.delete(task_id, "acme", "alice")

        store.interrupt(gone, on="request_cancel")
        Client(app_with(tracker)).error("POST", f"/tasks/{task_id}/cancel", 404)


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
def test_a_task_that_has_ended_is_deleted(tracker: TaskTracker, alice: Client, how: str) -> None:
    task_id = end(tracker, how)
    assert alice.ok("DELETE", f"/tasks/{task_id}") == {"deleted": True}
    assert tracker.get(task_id) is None
    assert alice.listed() == []


@pytest.mark.parametrize("status", ["pending", "running", "cancelling"])
def test_an_active_task_is_not_deleted(tracker: TaskTracker, alice: Client, status: str) -> None:
    task_id = create(tracker)
    if status != "pending":
        tracker.start(task_id)
    if status == "cancelling":
        tracker.cancel(task_id)
    error = alice.error("DELETE", f"/tasks/{task_id}", 412)
    assert error["code"] == "FAILED_PRECONDITION"
    assert error["details"] == {"resource": task_id, "type": "task", "status": status}
    assert look(tracker, task_id).status == status


def test_delete_says_faithfully_whether_there_was_anything(tracker: TaskTracker, alice: Client) -> None:
    """[D083] Unknown, deleted already, somebody else's: not found, and nothing happens to the latter."""
    task_id = end(tracker, "completed")
    bob = Client(alice.app, user="bob")
    bob.error("DELETE", f"/tasks/{task_id}", 404)
    alice.ok("DELETE", f"/tasks/{task_id}")
    for client in (alice, bob):
        client.error("DELETE", f"/tasks/{task_id}", 404)
        client.error("DELETE", "/tasks/never-existed", 404)


@pytest.mark.parametrize("strict", [True, False])
def test_a_state_of_a_newer_version_is_shown_and_left_alone(tmp_path, strict: bool) -> None:
    """[D144] also by a tracker that does not raise: "ok" would say that it is being cancelled."""
    from task_tracker import StorageConfig

    config = StorageConfig(task_tracker={"backend": "persistent", "root": str(tmp_path), "strict": strict})
    with config.build_task_tracker(cleanup=False) as tracker:
        task_id = create(tracker)
        path = next(tmp_path.rglob(f"{task_id}.json"))
        path.write_text(path.read_text().replace('"pending"', '"paused"'))
        alice = Client(app_with(tracker))
        assert alice.ok("GET", f"/tasks/{task_id}")["status"] == "paused"
        error = alice.error("POST", f"/tasks/{task_id}/cancel", 412)
        assert error["details"]["status"] == "paused"
        alice.error("DELETE", f"/tasks/{task_id}", 412)
        assert '"paused"' in path.read_text()
