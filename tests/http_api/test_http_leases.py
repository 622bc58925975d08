"""Tasks that another process holds: cancelled through HTTP all the same, and nobody is told where it runs."""

from __future__ import annotations

from stores import InMemoryTaskStore
from task_tracker import LeaseHeld, LeaseLost, TaskTracker
from task_tracker.testing import FaultyStore
from tests.http_api.asking import Client, app_with

OWNER = ("acme", "alice")


def test_a_task_that_another_process_holds_is_cancelled_through_any() -> None:
    shared = InMemoryTaskStore()
    holder, server = TaskTracker(shared, holder="worker-7:4711"), TaskTracker(shared)
    task = holder.create("t", account_id="acme", user_id="alice")
    holder.start(task.task_id)
    alice = Client(app_with(server))
    assert alice.ok("POST", f"/tasks/{task.task_id}/cancel")["status"] == "cancelling"
    assert alice.ok("GET", f"/tasks/{task.task_id}")["status"] == "cancelling"
    assert holder.is_cancellation_requested(task.task_id)
    holder.mark_cancelled(task.task_id)
    assert alice.ok("GET", f"/tasks/{task.task_id}")["status"] == "cancelled"


def test_callers_are_not_told_who_holds_a_task() -> None:
    """Hosts and processes are the operator's business; that it is the second attempt is everybody's."""
    tracker = TaskTracker(holder="worker-7.internal:4711")
    task = tracker.create("t", account_id="acme", user_id="alice")
    tracker.start(task.task_id)
    for user in ("alice", "*"):
        client = Client(app_with(tracker), user=user)
        whose = "?user_id=alice" if user == "*" else ""
        for method, path in (
            ("GET", f"/tasks/{task.task_id}{whose}"),
            ("GET", f"/tasks{whose}"),
            ("POST", f"/tasks/{task.task_id}/cancel{whose}"),
        ):
            answer = client.ask(method, path)
            assert answer.status_code == 200
            assert "worker-7" not in answer.text
            assert '"attempt":{"epoch":1,"count":1}' in answer.text


def test_a_task_in_other_hands_is_a_conflict_that_names_nobody() -> None:
    store = FaultyStore(InMemoryTaskStore())
    tracker = TaskTracker(store)
    task = tracker.create("t", account_id="acme", user_id="alice")
    for error in (
        LeaseHeld("task is held by worker-7:4711; wait", holder="worker-7:4711", heartbeat_age_seconds=3.0),
        LeaseLost("the lease of worker-7:4711 is lost; stop working on it"),
    ):
        store.fail(error, on="request_cancel")
        answer = Client(app_with(tracker)).ask("POST", f"/tasks/{task.task_id}/cancel")
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "ABORTED"
        assert "Retry-After" in answer.headers
        assert "worker-7" not in answer.text
