"""Every refusal is one line that names the task and says what to do next."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from task_tracker import (
    AsyncTaskTracker,
    Retention,
    SettingsError,
    StorageConfig,
    StoreUnavailable,
    TaskTracker,
    TaskTrackerError,
    get_task_tracker,
)
from task_tracker.registry import open_store
from task_tracker.store import StoreOptions
from tests.core.support import OWNER, FakeClock, WatchedStore, drive_to

ADVICE = re.compile(
    r"; (?:\w+ )?(?:ask|call|cancel|check|choose|convert|create|did you mean|end|give|give back|install|it goes on"
    r"|known are|leave|name|pass|read|remove|rename|stop|try|upgrade|use|wait|write)\b|: leave|must be|try again"
    r"|requires|its first end is final; leave"
)


def a_task(tracker: TaskTracker, status: str, task_id: str = "task-1") -> str:
    tracker.create("t", **OWNER, task_id=task_id)
    drive_to(tracker, task_id, status)
    return task_id


def lost(tracker: TaskTracker, task_id: str) -> str:
    held = tracker.lease_of(task_id)
    assert held is not None
    held.lost.set()
    return task_id


TASKS: dict[str, Callable[[TaskTracker], object]] = {
    "start an ended task": lambda t: t.start(a_task(t, "completed")),
    "start a cancelling task": lambda t: t.start(a_task(t, "cancelling")),
    "complete a failed task": lambda t: t.complete(a_task(t, "failed")),
    "complete otherwise": lambda t: t.complete(a_task(t, "completed"), "other"),
    "cancel a completed task": lambda t: t.cancel(a_task(t, "completed")),
    "delete an active task": lambda t: t.delete(a_task(t, "running")),
    "delete an active user": lambda t: (a_task(t, "running"), t.delete_user_tasks(**OWNER)),
    "create a task that exists": lambda t: t.create("t", **OWNER, task_id=a_task(t, "pending")),
    "unknown without an owner": lambda t: t.start("task-1"),
    "unknown with an owner": lambda t: t.start("task-1", **OWNER),
    "unknown to the working code": lambda t: t.is_cancellation_requested("task-1"),
    "wait for an unknown task": lambda t: t.wait("task-1", **OWNER),
    "wait for too long": lambda t: t.wait(a_task(t, "running"), timeout=1),
    "start what somebody holds": lambda t: (
        a_task(t, "running"),
        TaskTracker(t.store).start("task-1", **OWNER),
    ),
    "end what somebody holds": lambda t: (
        a_task(t, "running"),
        TaskTracker(t.store).complete("task-1", None, **OWNER),
    ),
    "work on what was lost": lambda t: t.update(lost(t, a_task(t, "running")), progress=1),
    "release an ended task": lambda t: t.release(a_task(t, "completed")),
    "an id of two owners": lambda t: (
        a_task(t, "pending"),
        t.create("t", account_id="other", user_id="bob", task_id="task-1"),
        t.start("task-1"),
    ),
}
OTHERS: dict[str, Callable[[TaskTracker], object]] = {
    "blank owner": lambda t: t.create("t", account_id=" ", user_id="u"),
    "blank id": lambda t: t.create("t", **OWNER, task_id=" "),
    "id with a NUL": lambda t: t.create("t", **OWNER, task_id="a\0"),
    "resource with a NUL": lambda t: t.create("t", "\0", **OWNER),
    "meta of the wrong kind": lambda t: t.create("t", **OWNER, meta=[1]),  # type: ignore[arg-type]
    "payload that is not JSON": lambda t: t.create("t", **OWNER, payload=object()),
    "progress": lambda t: t.update(a_task(t, "running"), progress=101),
    "status": lambda t: t.list_tasks(status="x"),
    "limit": lambda t: t.list_tasks(limit=0),
    "cursor": lambda t: t.list_tasks(before="x"),
    "timeout": lambda t: t.wait(a_task(t, "completed"), timeout=-1),
    "poll interval": lambda t: t.wait(a_task(t, "completed"), poll_interval=0),
    "terms": lambda _: Retention(-1),
    "sweep": lambda _: TaskTracker(sweep_seconds=0),
    "cache": lambda _: TaskTracker(max_cached=0),
    "patience": lambda t: t.start(a_task(t, "pending"), wait_seconds=-1),
    "unstarted": lambda _: TaskTracker(start_within_seconds=0),
    "heartbeats": lambda _: StorageConfig(task_tracker={"lease_seconds": 9, "heartbeat_seconds": 4}),
    "leases in a file client": lambda _: StorageConfig(task_tracker={"backend": "lease"}).build_task_store(),
    "threads": lambda _: AsyncTaskTracker(max_threads=0),
    "deadline": lambda _: AsyncTaskTracker(call_seconds=0),
    "unknown backend": lambda _: open_store("x"),
    "option": lambda _: open_store("memory", StoreOptions(options={"x": 1})),
    "bad option": lambda _: open_store("memory", StoreOptions(options={"max_records": 0})),
    "unknown key": lambda _: StorageConfig(task_tracker={"x": 1}),
    "no object": lambda _: StorageConfig.from_document([]),  # type: ignore[arg-type]
    "no tracker": lambda _: get_task_tracker(),
}


def message_of(call: Callable[[TaskTracker], object], tracker: TaskTracker) -> tuple[Exception, str]:
    with pytest.raises((TaskTrackerError, ValueError, RuntimeError, TimeoutError)) as raised:
        call(tracker)
    return raised.value, str(raised.value)


@pytest.mark.parametrize("name", TASKS)
def test_a_refusal_about_a_task_names_it_and_says_what_to_do(tracker: TaskTracker, name: str) -> None:
    _, message = message_of(TASKS[name], tracker)
    assert "task-1" in message
    assert ADVICE.search(message), message
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_refusal_says_what_to_do(tracker: TaskTracker, name: str) -> None:
    error, message = message_of(OTHERS[name], tracker)
    assert ADVICE.search(message) or "known are" in message or "knows" in message, message
    assert "\n" not in message
    assert not isinstance(error, SettingsError) or len(message) < 400


def test_an_outcome_that_waits_says_so(store: WatchedStore, clock: FakeClock) -> None:
    with TaskTracker(store, clock=clock) as tracker:
        a_task(tracker, "running")
        store.before("update", lambda: store.go_down(StoreUnavailable("the disk is away; try again")))
        error, message = message_of(lambda t: t.complete("task-1"), tracker)
        store.come_back()
    assert isinstance(error, StoreUnavailable)
    assert "task-1" in message
    assert "the disk is away" in message
