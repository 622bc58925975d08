"""What a record must not give away or choke on: leases of others, private values, a fork in the middle of a change."""

from __future__ import annotations

import json
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stores import InMemoryTaskStore, PersistentTaskStore
from task_tracker import CorruptRecord, InvalidTransition, TaskTracker
from task_tracker.codec import decode_record
from task_tracker.listing import Listing, Summary
from task_tracker.records import Attempt, TaskKey
from task_tracker.store import TaskStore
from tests.core.support import OWNER, PATIENCE, START, TERMINAL, Gate, record_of

SECRET = "s3cr3t-value"
ATTEMPT: dict[str, Any] = {"epoch": 1, "token": SECRET, "holder": "h", "count": 1}
KEY = TaskKey("acme", "alice", "task-1")


def document(**fields: Any) -> bytes:
    return json.dumps(
        {
            "task_id": "task-1",
            "task_type": "t",
            "status": "running",
            "created_at": START,
            "updated_at": START,
            "account_id": "acme",
            "user_id": "alice",
            "resource_id": None,
            "result": None,
            "error": None,
            **fields,
        }
    ).encode()


# ---- attempts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch": 1e308},
        {"epoch": 1e30},
        {"epoch": 1.5},
        {"epoch": "1"},
        {"epoch": True},
        {"epoch": None},
        {"token": 1},
        {"holder": ["h"]},
        {"count": "x"},
        {"count": 1e308},
    ],
    ids=str,
)
def test_a_planted_attempt_is_told_when_it_is_read_and_not_at_the_next_change(wrong: dict[str, Any]) -> None:
    with pytest.raises(CorruptRecord):
        decode_record(document(attempt=ATTEMPT | wrong), KEY, "task-1.json")


def test_a_planted_attempt_is_a_corrupt_record_to_every_call(tmp_path: Path) -> None:
    directory = tmp_path / "local" / "acme" / "tasks" / "alice"
    directory.mkdir(parents=True)
    (directory / "task-1.json").write_bytes(document(attempt=ATTEMPT | {"epoch": 1e308}))
    with TaskTracker(PersistentTaskStore(tmp_path)) as tracker:
        for call in (
            lambda: tracker.get("task-1", **OWNER),
            lambda: tracker.update("task-1", progress=1, **OWNER),
            lambda: tracker.complete("task-1", **OWNER),
        ):
            with pytest.raises(CorruptRecord):
                call()


def test_an_attempt_without_a_count_is_the_first_one() -> None:
    without = {name: value for name, value in ATTEMPT.items() if name != "count"}
    record = decode_record(document(attempt=without), KEY, "task-1.json")
    assert record.attempt == Attempt(1, SECRET, "h", 1)


def test_what_is_printed_of_an_attempt_has_no_token() -> None:
    record = decode_record(document(attempt=ATTEMPT), KEY, "task-1.json")
    for text in (repr(record.attempt), str(record.attempt), repr(record), str(record.to_dict())):
        assert SECRET not in text
    assert record.attempt is not None
    assert record.attempt.token == SECRET


# ---- private --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", TERMINAL)
def test_a_task_that_has_ended_has_no_credentials_whatever_its_file_says(status: str) -> None:
    """Another writer's, which wipes nothing."""
    record = decode_record(document(status=status, private={"token": SECRET}), KEY, "task-1.json")
    assert record.get_private() is None
    assert record_of(status, private_json=b'{"a":1}').get_private() is None
    assert record_of("running", private_json=b'{"a":1}').get_private() == {"a": 1}


class Opaque:
    def __repr__(self) -> str:
        return SECRET


@pytest.mark.parametrize(
    "private",
    [
        {"k": SECRET, "f": float("nan")},
        {"k": SECRET, "o": object()},
        {("x", SECRET): 1},
        {SECRET: object()},
        {SECRET: {"deeper": {SECRET: [1, {2}]}}},
        {"k": SECRET + "\0"},
        {"k": SECRET + "\ud800"},
        {SECRET + "\ud800": 1},
        {"n": 2**70, "k": SECRET},
        {SECRET: 2**70},
        SECRET + "\0",
        SECRET.encode(),
        {"k": Opaque()},
        Opaque(),
    ],
    ids=range(14),
)
def test_what_is_refused_as_private_is_not_quoted(tracker: TaskTracker, private: object) -> None:
    with pytest.raises(ValueError, match="private is not JSON that can be stored; it takes") as raised:
        tracker.create("t", private=private, **OWNER)
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    assert tracker.count() == 0


# ---- forks ----------------------------------------------------------------------------------------------


def in_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked child and return its exit status: 0 if it came to its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: other threads are the point
        child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE))
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("kind", ["memory", "persistent"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_child_forked_in_the_middle_of_an_addition_has_all_of_it_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, when: str
) -> None:
    """Another thread is between storing the record and listing it, or takes another one's into its index."""
    store: TaskStore = InMemoryTaskStore() if kind == "memory" else PersistentTaskStore(tmp_path)
    gate, put = Gate(), Listing.put
    with TaskTracker(store) as tracker:
        tracker.create("t", "old", **OWNER)
        tracker.list_tasks(**OWNER)

        def slowly(listing: Listing, summary: Summary) -> None:
            slow = threading.current_thread().name == "slow"
            if slow and when == "before":
                gate.pass_through()
            put(listing, summary)
            if slow and when == "after":
                gate.pass_through()

        monkeypatch.setattr(Listing, "put", slowly)
        if kind == "persistent":
            TaskTracker(PersistentTaskStore(tmp_path)).create("t", "new", **OWNER)
        add = (
            (lambda: tracker.create("t", "new", **OWNER))
            if kind == "memory"
            else lambda: tracker.has_running("t", "new", **OWNER)
        )
        thread = threading.Thread(target=add, name="slow", daemon=True)
        thread.start()
        gate.wait_entered()

        def look() -> None:
            listed = [task.resource_id for task in tracker.list_tasks(**OWNER)]
            assert listed == ["new", "old"]
            assert tracker.has_running("t", "new", **OWNER)
            assert tracker.stats(**OWNER) == {"t": {"pending": 2}}
            assert tracker.create_if_no_running("t", "new", **OWNER) is None
            with pytest.raises(InvalidTransition, match="2 tasks"):
                tracker.delete_user_tasks(**OWNER)

        try:
            assert in_child(look) == 0
        finally:
            gate.open()
            thread.join(PATIENCE)
        assert tracker.has_running("t", "new", **OWNER)
