"""Results and errors: what is kept of them, and that a task always ends."""

from __future__ import annotations

import datetime
import decimal
import enum
import logging
import pickle
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from task_tracker import StorageConfig, TaskTracker
from task_tracker.codec import encode_record
from tests.core.support import OWNER, WatchedStore

SECRET = "hunter2-and-more"


def ended(tracker: TaskTracker, result: object) -> Any:
    task = tracker.create("t", **OWNER)
    tracker.start(task.task_id)
    tracker.complete(task.task_id, result)
    found = tracker.get(task.task_id, **OWNER)
    assert found is not None
    return found


class Indexed(BaseModel):
    at: datetime.date
    chunks: int = Field(serialization_alias="chunkCount")
    token: SecretStr = SecretStr(SECRET)


def test_a_model_is_the_json_that_it_gives(tracker: TaskTracker) -> None:
    task = ended(tracker, Indexed(at=datetime.date(2026, 12, 1), chunks=3))
    assert task.status == "completed"
    assert task.result == {"at": "2026-12-01", "chunkCount": 3, "token": "[REDACTED]"}


def test_models_within_lists_and_dicts_are_too(tracker: TaskTracker) -> None:
    """Whatever is wrong beside them is named by its place."""
    model = Indexed(at=datetime.date(2026, 12, 1), chunks=3)
    given = {"all": [model, (model, 1)], "one": model}
    dumped = {"at": "2026-12-01", "chunkCount": 3, "token": "[REDACTED]"}
    assert ended(tracker, given).result == {"all": [dumped, [dumped, 1]], "one": dumped}
    assert given == {"all": [model, (model, 1)], "one": model}
    beside = ended(tracker, {"all": [model, {"when": datetime.date(2026, 12, 1)}]})
    assert beside.error_code == "unserializable_result"
    assert "result.all[1].when is a datetime.date" in beside.error


def test_a_list_with_a_model_that_contains_itself_is_refused(tracker: TaskTracker) -> None:
    endless: list[object] = [Indexed(at=datetime.date(2026, 12, 1), chunks=3)]
    endless += [endless, endless]
    task = ended(tracker, endless)
    assert task.error_code == "unserializable_result"
    assert "contains itself" in task.error


@pytest.mark.parametrize(
    "result", [None, {}, [], False, 0, "", 0.0, [None], {"a": None}, "é😀", 2**53, -1.5e300]
)
def test_every_json_value_is_a_result_like_any_other(tracker: TaskTracker, result: object) -> None:
    """[D053]"""
    task = ended(tracker, result)
    assert task.status == "completed"
    assert task.result == result
    assert type(task.result) is type(result)
    assert task.to_dict()["result"] == result


def test_no_result_is_null(tracker: TaskTracker) -> None:
    """[D053]"""
    task = tracker.create("t", **OWNER)
    assert tracker.complete(task.task_id).status == "completed"  # type: ignore[union-attr]
    assert tracker.complete(task.task_id, None).result is None  # type: ignore[union-attr]


class Colour(enum.Enum):
    RED = 1


class Hostile:
    """Raises whatever is asked of it."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __str__ = __repr__
    __eq__ = None  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class HostileKey:
    """Can be a key, and cannot be named."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


HOSTILE_KEY = {HostileKey(): 1}


class Treacherous(dict[str, Any]):
    """As a dict that another thread changes while it is looked at."""

    def items(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


class Unpicklable(Exception):
    """Its arguments cannot be given back to it."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__("the message")


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@pytest.mark.parametrize(
    "result",
    [
        datetime.datetime.fromtimestamp(0, datetime.UTC),
        b"bytes",
        decimal.Decimal("1.5"),
        {1, 2},
        {1: "a"},
        {"a": {None: 1}},
        object(),
        Hostile(),
        {"a": [Hostile()]},
        cyclic(),
        Colour.RED,
        uuid.UUID(int=0),
        Path("/x"),
        ValueError("x"),
        Unpicklable(1, 2),
        (n for n in "x"),
        float("nan"),
        {"a": [float("inf")]},
        {"a": -float("inf")},
        "a\0b",
        "\ud800",
        2**64,
        {Hostile: 1},
        HOSTILE_KEY,
        Treacherous(a=1),
        [{"a": Treacherous(a=1)}],
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_result_that_is_not_json_ends_the_task_failed_and_says_why(
    tracker: TaskTracker, result: object, caplog: pytest.LogCaptureFixture
) -> None:
    """[D140] [D114] never left running."""
    task = ended(tracker, result)
    assert (task.status, task.error_code, task.result) == ("failed", "unserializable_result", None)
    assert task.error.startswith(("ValueError: result", "RuntimeError: "))
    assert [record.event for record in caplog.records] == ["unserializable_result"]  # type: ignore[attr-defined]
    assert caplog.records[0].levelno == logging.ERROR
    encode_record(task)


def test_the_first_error_is_kept_when_a_result_that_is_not_json_comes_late(tracker: TaskTracker) -> None:
    """[D140] the original error is not masked."""
    task = tracker.create("t", **OWNER)
    tracker.fail(task.task_id, RuntimeError("the real one"), error_code="real")
    with pytest.raises(ValueError, match="its first end is final"):
        tracker.complete(task.task_id, object())
    found = tracker.get(task.task_id)
    assert found is not None
    assert (found.error, found.error_code) == ("RuntimeError: the real one", "real")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("task-1 failed", "task-1 failed"),
        ("", "failed without a message"),
        (ValueError("bad"), "ValueError: bad"),
        (KeyError("a"), "KeyError: 'a'"),
        (TimeoutError(), "TimeoutError"),
        (Unpicklable(1, 2), "Unpicklable: the message"),
        (None, "failed without a message"),
        ({"code": 5}, "{'code': 5}"),
        ("a\0b\ud800", "a\ufffdb\ufffd"),
        (Hostile(), "Hostile (no text: its __str__ raised RuntimeError)"),
        ("line\nline", "line\nline"),
    ],
)
def test_any_error_ends_the_task_with_its_text(tracker: TaskTracker, error: object, text: str) -> None:
    """[D140]"""
    task = tracker.create("t", **OWNER)
    failed = tracker.fail(task.task_id, error)
    assert failed is not None
    assert (failed.status, failed.error, failed.error_code) == ("failed", text, None)
    assert failed.to_dict()["error"] == text


def test_an_error_is_redacted_and_then_cut(tracker: TaskTracker) -> None:
    task = tracker.create("t", **OWNER)
    failed = tracker.fail(task.task_id, "x" * 480 + f" password={SECRET}" + "y" * 1000)
    assert failed is not None
    assert failed.error is not None
    assert len(failed.error) <= 500
    assert SECRET[:4] not in failed.error


# ---- credentials -----------------------------------------------------------------------------------

NESTED = {"deep": [{"password": SECRET, "api_key": SECRET, "cookie": SECRET, "n": 1}]}
ENDS: dict[str, Callable[[TaskTracker, str], object]] = {
    "complete": lambda t, i: t.complete(i, NESTED),
    "fail": lambda t, i: t.fail(i, f"Authorization: Bearer {SECRET}"),
    "cancel": lambda t, i: t.cancel(i),
    "mark_cancelled": lambda t, i: t.mark_cancelled(i),
    "unserializable": lambda t, i: t.complete(i, object()),
}


@pytest.mark.parametrize("end", ENDS)
def test_credentials_are_shown_nowhere_and_gone_at_the_end(
    tracker: TaskTracker, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    """[D143] snapshots, lists, reprs, logs; and what is stored after the end."""
    caplog.set_level(logging.DEBUG)
    task = tracker.create("t", **OWNER, meta=NESTED, payload=NESTED, private={"token": SECRET, "user": "u"})
    for record in (task, tracker.get(task.task_id), *tracker.list_tasks(), *tracker.list_tasks(**OWNER)):
        assert record is not None
        assert SECRET not in str(record.to_dict())
        assert SECRET not in repr(record)
        assert SECRET not in f"{record!s} {record}"
        assert record.get_private() == {"token": SECRET, "user": "u"}, "the code that works on it needs it"
    ENDS[end](tracker, task.task_id)
    found = tracker.get(task.task_id)
    assert found is not None
    assert found.status.is_terminal
    assert found.get_private() is None
    assert SECRET.encode() not in encode_record(found)
    assert SECRET.encode() not in pickle.dumps(found)
    assert SECRET not in caplog.text


def test_credentials_are_not_handed_on_to_a_task_of_the_same_kind(tracker: TaskTracker) -> None:
    """[D143]"""
    task = tracker.create("t", "r", **OWNER, private={"token": SECRET})
    tracker.fail(task.task_id, "x")
    again = tracker.create_if_no_running("t", "r", **OWNER)
    assert again is not None
    assert again.get_private() is None


def test_what_is_stored_after_the_end_holds_no_credential(tmp_path: Path) -> None:
    """[D143] the raw file, with the persistent backend."""
    config = StorageConfig(task_tracker={"backend": "persistent", "root": str(tmp_path)})
    with config.build_task_tracker(cleanup=False) as tracker:
        task = tracker.create("t", **OWNER, meta=NESTED, payload=NESTED, private={"token": SECRET})
        tracker.start(task.task_id)
        tracker.complete(task.task_id, NESTED)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(task.task_id in path.name for path in files)
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_no_secret_is_kept_by_the_store_below_either(watched: TaskTracker, store: WatchedStore) -> None:
    """[D143]"""
    task = watched.create("t", **OWNER, private={"token": SECRET})
    watched.complete(task.task_id, {"password": SECRET})
    stored = store.inner.get(task.key)
    assert SECRET.encode() not in encode_record(stored.record)  # type: ignore[union-attr]
