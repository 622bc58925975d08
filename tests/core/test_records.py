"""Records as values, and the view of them that callers may see."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import tracemalloc
from typing import Any

import orjson
import pytest

from task_tracker import Attempt, TaskKey, TaskRecord, TaskStatus
from task_tracker.codec import decode_record, encode_record
from task_tracker.records import ACTIVE, TERMINAL
from tests.core.support import OWNER, STATUSES, record_of

SECRET = "hunter2-and-more"


def test_every_state_is_either_active_or_terminal() -> None:
    assert set(STATUSES) == ACTIVE | TERMINAL
    assert not ACTIVE & TERMINAL
    for status in STATUSES:
        assert (status.is_active, status.is_terminal) == (status in ACTIVE, status in TERMINAL)
        assert status.is_known
        assert status == status.value
        assert TaskStatus.parse(str(status)) is status


@pytest.mark.parametrize("word", ["paused", "", "COMPLETED", "completed "])
def test_a_state_of_a_newer_version_is_shown_and_nothing_else(word: str) -> None:
    """[D144]"""
    status = TaskStatus.parse(word)
    assert isinstance(status, TaskStatus)
    assert (status.value, str(status), f"{status}") == (word, word, word)
    assert (status.is_active, status.is_terminal, status.is_known) == (False, False, False)
    assert status == TaskStatus.parse(word)
    assert len({status, TaskStatus.parse(word), *STATUSES}) == len(STATUSES) + 1
    assert list(TaskStatus) == list(STATUSES), "the stranger did not become a member"


@pytest.mark.parametrize("word", ["running", "paused"])
def test_states_survive_pickling_and_copying(word: str) -> None:
    status = TaskStatus.parse(word)
    for again in (pickle.loads(pickle.dumps(status)), copy.copy(status), copy.deepcopy(status)):
        assert isinstance(again, TaskStatus)
        assert again.value == word
        assert again.is_known is status.is_known
    assert pickle.loads(pickle.dumps(TaskStatus.RUNNING)) is TaskStatus.RUNNING


def test_the_key_is_owner_and_id() -> None:
    assert record_of().key == TaskKey("acme", "alice", "task-1") == ("acme", "alice", "task-1")


def test_records_cannot_be_changed_and_survive_pickling() -> None:
    record = record_of("paused", result_json=b'{"a":[1]}', attempt=Attempt(3, "t", "h"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.status = TaskStatus.FAILED  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(record)) == record
    assert copy.deepcopy(record) == record
    assert hash(copy.copy(record)) == hash(record)


@pytest.mark.parametrize("name", ["result", "meta", "payload", "history"])
def test_values_are_decoded_anew_so_that_changing_one_harms_nobody(name: str) -> None:
    encoded = b'[{"n":1}]' if name in ("history", "result") else b'{"n":[1]}'
    fields: Any = {f"{name}_json": encoded}
    record = record_of(**fields)
    first = getattr(record, name)
    first.clear()
    assert getattr(record, name) == orjson.loads(encoded)


def test_values_that_are_not_set() -> None:
    record = record_of()
    assert record.result is None
    assert record.meta == {}
    assert record.payload is None
    assert record.history is None
    assert record.get_private() is None


def test_the_public_view_of_a_plain_record() -> None:
    assert record_of(resource_id="sess-1", updated_at=1_750_000_001.5).to_dict() == {
        "task_id": "task-1",
        "task_type": "session_commit",
        "status": "pending",
        "created_at": 1_750_000_000.0,
        "updated_at": 1_750_000_001.5,
        "resource_id": "sess-1",
        "result": None,
        "error": None,
        "created_at_iso": "2025-06-15T15:06:40+00:00",
        "updated_at_iso": "2025-06-15T15:06:41.500000+00:00",
    }


def test_the_public_view_shows_extensions_that_are_set() -> None:
    view = record_of(
        "running",
        stage="read",
        progress=0.0,
        message="",
        meta_json=b"{}",
        payload_json=b"[1]",
        handler_version=0,
        priority=0,
        attempt=Attempt(3, SECRET, "host:1", 2),
        history_json=b'[{"status":"pending"}]',
        revision=7,
    ).to_dict()
    assert (
        view.items() >= {"stage": "read", "progress": 0.0, "message": "", "meta": {}, "revision": 7}.items()
    )
    assert view["payload"] == [1]
    assert (view["handler_version"], view["priority"]) == (0, 0)
    assert view["attempt"] == {"epoch": 3, "holder": "host:1", "count": 2}
    assert view["history"] == [{"status": "pending"}]
    assert "dedupe_key" not in view
    assert SECRET not in str(view)


def test_nothing_secret_is_in_the_view_or_the_line_for_logs() -> None:
    """[D143]"""
    nested = orjson.dumps({"deep": [{"password": SECRET, "api_key": SECRET, "n": 1}], "cookie": SECRET})
    record = record_of(
        "failed",
        result_json=nested,
        meta_json=nested,
        payload_json=nested,
        private_json=orjson.dumps({"token": SECRET}),
        extra_json=orjson.dumps({"unknown": SECRET}),
        history_json=orjson.dumps([{"status": "pending", "token": SECRET}]),
        error=f"could not log in with password={SECRET}",
        stage=f"log in with password={SECRET}",
        message=f"log in with password={SECRET}",
        hook_error=f"could not log in with password={SECRET}",
        error_code=f"password={SECRET}",
        creation=SECRET,
        attempt=Attempt(1, SECRET, "h"),
    )
    view = record.to_dict()
    assert SECRET not in str(view)
    assert SECRET not in repr(record)
    assert SECRET not in f"{record}"
    for name in ("result", "meta", "payload"):
        assert view[name]["deep"][0]["n"] == 1, "what is no secret stays"
    assert view["history"][0]["status"] == "pending"
    assert view["message"] == "log in with password=[REDACTED]"
    assert not view.keys() & {"private", "unknown", "extra_json", "creation", *OWNER}
    assert record.get_private() is None, "it has ended, whoever left it there"
    running = record.changed(status=TaskStatus.RUNNING)
    assert running.get_private() == {"token": SECRET}, "the code that works on it can read it"


def test_the_line_for_logs_names_identity_and_state() -> None:
    assert repr(record_of()) == "<TaskRecord 'task-1' 'session_commit' pending of 'acme'/'alice'>"


@pytest.mark.parametrize("seconds", [1e18, -1e18, 1e300, float("inf"), float("nan")])
def test_a_time_that_no_calendar_has_shows_no_date_and_raises_nothing(seconds: float) -> None:
    """[D146]"""
    view = record_of(created_at=seconds).to_dict()
    assert view["created_at_iso"] is None
    assert view["updated_at_iso"] is not None


def test_a_decoded_record_takes_little_memory() -> None:
    """What is kept of a file is as big as it looks: orjson's own bytes sit in 4 KB each. [D096]"""
    data = encode_record(
        TaskRecord("task-1", "t", TaskStatus.COMPLETED, 1.0, 2.0, **OWNER, result_json=b"{}")
    )
    key = TaskKey(OWNER["account_id"], OWNER["user_id"], "task-1")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        records = [decode_record(data, key, "somewhere") for _ in range(1000)]
        assert (tracemalloc.get_traced_memory()[0] - before) / len(records) < 1500
    finally:
        tracemalloc.stop()
