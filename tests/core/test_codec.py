"""The strict writer and the tolerant reader, case by case. What holds for all records: test_codec_property."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import json
import os
import time
import uuid
from typing import Any

import orjson
import pytest

from task_tracker import Attempt, CorruptRecord, InvalidTaskId, TaskKey, TaskRecord
from task_tracker.codec import MAX_DEPTH, check_id, check_text, decode_record, encode_record, encode_value
from tests.core.support import START, record_of

KEY = TaskKey("acme", "alice", "task-1")
PATH = "/somewhere/task-1.json"
FIRST_GENERATION: dict[str, Any] = {
    "task_id": "task-1",
    "task_type": "session_commit",
    "status": "completed",
    "created_at": START,
    "updated_at": START + 1,
    "resource_id": "sess-1",
    "account_id": "acme",
    "user_id": "alice",
    "result": {"archived": True},
    "error": None,
}


def read(document: object, **changes: Any) -> TaskRecord:
    if isinstance(document, dict):
        document = {name: value for name, value in (document | changes).items() if value is not ...}
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return decode_record(data, KEY, PATH)


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Half(float):
    """As numpy.float64 is: a subclass of float that orjson does not know."""


class Text(str):
    __slots__ = ()


Point = collections.namedtuple("Point", "x y")  # noqa: PYI024  # as old code has them


# ---- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, b"null"),
        ({}, b"{}"),
        ([], b"[]"),
        (False, b"false"),
        (0, b"0"),
        ("", b'""'),
        ((1, (2,)), b"[1,[2]]"),
        ({"é": "😀"}, '{"é":"😀"}'.encode()),
        (2**63, b"9223372036854775808"),
        (Colour.RED, b'"red"'),
        (Level.HIGH, b"3"),
        (Half(0.5), b"0.5"),
        (Text("t"), b'"t"'),
        (Point(1, Half(2.5)), b"[1,2.5]"),
        ({Colour.RED: 1, Text("t"): [Half(0.5)], "s": 2}, b'{"red":1,"t":[0.5],"s":2}'),
        (collections.OrderedDict(a=1), b'{"a":1}'),
        (collections.defaultdict(list, a=[1]), b'{"a":[1]}'),
    ],
)
def test_json_and_subclasses_of_its_types_are_encoded_as_what_they_are(value: object, encoded: bytes) -> None:
    """[D053] [D114]"""
    assert encode_value(value, "result") == encoded


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {"a": [1]}
    value["a"].append(value)
    return value


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (float("nan"), r"result is nan, which JSON does not have; use None or text"),
        ({"a": [1, float("-inf")]}, r"result\.a\[1\] is -inf"),
        (Half("inf"), "result is inf"),
        ({"a": "x\0y"}, r"result\.a holds a NUL character; remove it"),
        ({"a\0": 1}, "result has a key with a NUL character; remove it"),
        ({1: "a"}, "result has the key 1; JSON keys are strings"),
        ({"a": {None: 1}}, r"result\.a has the key None; JSON keys are strings"),
        (2**64, "result is not JSON: .*; convert it before handing it over"),
        ({"a": "\ud800"}, "result is not JSON: .*; convert it"),
        ({"\udfff": 1}, "result is not JSON: .*; convert it"),
        (b"x", "result is a builtins.bytes, .*; convert it to text"),
        ({1, 2}, "result is a builtins.set"),
        (decimal.Decimal(1), "result is a decimal.Decimal"),
        (datetime.datetime.fromtimestamp(START, datetime.UTC), "result is a datetime.datetime"),
        (uuid.UUID(int=0), "result is a uuid.UUID"),
        (object(), "result is a builtins.object"),
        (ValueError("x"), "result is a builtins.ValueError"),
        (nested(MAX_DEPTH + 1), "is nested deeper than 200 levels"),
        (cyclic(), r"is nested deeper than 200 levels \(or contains itself\)"),
    ],
)
def test_what_is_not_json_is_refused_with_its_place(value: object, complaint: str) -> None:
    """[D114] [D140]"""
    with pytest.raises(ValueError, match=complaint) as refused:
        encode_value(value, "result")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_the_deepest_value_that_is_accepted_survives_a_round_trip() -> None:
    record = record_of("completed", result_json=encode_value(nested(MAX_DEPTH), "result"))
    assert decode_record(encode_record(record), KEY, PATH) == record


# ---- ids and texts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", " ", "\t\n", "\u3000", None, 5, b"a", ["a"], "a\0b", "a\ud800"])
def test_what_cannot_be_an_id_is_refused(value: object) -> None:
    """[D067]"""
    with pytest.raises(InvalidTaskId, match=r"^task_id .*(must be a non-blank string|use plain text)"):
        check_id(value, "task_id")


@pytest.mark.parametrize("value", ["a", " a", "../x", "a/b", "é" * 300, "line\nbreak"])
def test_any_other_text_can_be_an_id(value: str) -> None:
    """Which of them can be stored is for the store to say."""
    assert check_id(value, "task_id") is value


@pytest.mark.parametrize("value", [None, 5, b"a", "a\0b", "a\udfff"])
def test_what_is_not_text_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^resource_id .*(must be a string|use plain text)"):
        check_text(value, "resource_id")
    assert check_text("", "resource_id") == ""


# ---- writing ---------------------------------------------------------------------------------------


def test_a_plain_record_is_exactly_the_ten_keys_of_the_first_generation() -> None:
    record = record_of(
        "completed", updated_at=START + 1, resource_id="sess-1", result_json=b'{"archived":true}'
    )
    assert list(json.loads(encode_record(record)).items()) == list(FIRST_GENERATION.items())
    assert read(FIRST_GENERATION) == record


def test_extensions_follow_the_ten_keys_and_unknown_fields_come_last() -> None:
    record = record_of(
        stage="read", meta_json=b'{"a":1}', attempt=Attempt(1, "t", "h"), extra_json=b'{"newer":[1]}'
    )
    document = json.loads(encode_record(record))
    assert list(document)[:10] == list(FIRST_GENERATION)
    assert list(document)[10:] == ["stage", "meta", "attempt", "newer"]
    assert document["attempt"] == {"epoch": 1, "token": "t", "holder": "h", "count": 1}


def test_a_state_of_a_newer_version_is_written_as_it_was_read() -> None:
    """[D144]"""
    record = read(FIRST_GENERATION, status="paused", schema_version=99, newer={"a": None})
    assert not record.status.is_known
    assert json.loads(encode_record(record)) == FIRST_GENERATION | {
        "status": "paused",
        "schema_version": 99,
        "newer": {"a": None},
    }


# ---- reading ---------------------------------------------------------------------------------------


def test_missing_optional_fields_get_defaults() -> None:
    """[D144]"""
    record = read({"task_id": "task-1", "task_type": "t", "status": "running", "created_at": START})
    assert record == record_of("running", task_type="t")


@pytest.mark.parametrize("name", ["account_id", "user_id"])
@pytest.mark.parametrize("value", [None, "", ...])
def test_an_owner_that_is_not_in_the_file_is_that_of_its_path(name: str, value: object) -> None:
    assert read(FIRST_GENERATION, **{name: value}).key == KEY


@pytest.mark.parametrize(
    "text",
    [
        "2025-06-15T15:06:40",  # naive means UTC
        "2025-06-15T15:06:40Z",
        "2025-06-15T15:06:40+00:00",
        "2025-06-15T20:36:40.000+05:30",
        "2025-06-15 15:06:40",
        "20250615T150640Z",
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
def test_times_as_text_are_utc_whatever_the_zone_of_the_machine(
    text: str, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D146]"""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        record = read(FIRST_GENERATION, created_at=text, updated_at=text, started_at=text, completed_at=text)
        view = record.to_dict()
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    times = (record.created_at, record.updated_at, record.started_at, record.completed_at)
    assert times == (START,) * 4
    assert view["created_at_iso"] == "2025-06-15T15:06:40+00:00"


@pytest.mark.parametrize("text", ["2025-03-30T02:30:00", "2025-10-26T02:30:00"])
def test_times_that_a_change_of_summer_time_skips_or_repeats(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D146]"""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        record = read(FIRST_GENERATION, created_at=text)
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert record.created_at == datetime.datetime.fromisoformat(text + "+00:00").timestamp()
    assert "TZ" not in os.environ


@pytest.mark.parametrize("number", [1750000000, 1750000000.0, 0, -1.5])
def test_times_as_numbers_become_floats(number: float) -> None:
    record = read(FIRST_GENERATION, created_at=number)
    assert record.created_at == number
    assert isinstance(record.created_at, float)


@pytest.mark.parametrize(
    ("data", "result"),
    [
        (b'{"a":NaN,"b":[Infinity,-Infinity,1.5]}', {"a": None, "b": [None, None, 1.5]}),
        (b'"\\ud83d"', "\ufffd"),
        (b'{"\\ud83d":"\\ud83d\\ude00"}', {"\ufffd": "\U0001f600"}),
        (b'"a\\u0000b"', "a\0b"),
    ],
)
def test_what_careless_writers_write_is_read(data: bytes, result: object) -> None:
    """[D114]"""
    document = json.dumps(FIRST_GENERATION | {"result": "HERE"}).encode().replace(b'"HERE"', data)
    record = read(document)
    assert record.result == result
    assert orjson.loads(encode_record(record))["result"] == result


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"\0" * 100, "it is not JSON"),
        (b'{"task_id": "task-1", "task_ty', "it is not JSON"),
        (b"\xff\xfe\x00binary", "it is not JSON"),
        (b"\xef\xbb\xbf{}", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "it holds a JSON list, not an object"),
        (b"null", "it holds a JSON NoneType, not an object"),
        (b"NaN", "it holds a JSON NoneType, not an object"),
        (b"{}", "created_at is missing"),
        ({"task_type": ...}, "task_type is missing"),
        ({"task_id": ...}, "task_id is missing"),
        ({"status": ...}, "status is missing"),
        ({"status": None}, "status is a JSON NoneType"),
        ({"status": 5}, "status is a JSON int"),
        ({"task_type": ["a"]}, "task_type is a JSON list"),
        ({"created_at": None}, "a time is a JSON NoneType"),
        ({"created_at": True}, "a time is a JSON bool"),
        ({"created_at": float("nan")}, "a time is a JSON NoneType"),
        ({"updated_at": "yesterday"}, "yesterday"),
        ({"error": {"code": 1}}, "error is a JSON dict"),
        ({"resource_id": 5}, "resource_id is a JSON int"),
        ({"progress": True}, "progress is a JSON bool"),
        ({"handler_version": "1"}, "handler_version is a JSON str"),
        ({"started_at": []}, "a time is a JSON list"),
        ({"attempt": {"token": "t"}}, "epoch is missing"),
        ({"attempt": "x"}, "string indices"),
        ({"attempt": {"epoch": "x", "token": "t", "holder": "h"}}, "epoch is a JSON str"),
        ({"task_id": "task-2"}, "it says it is task 'task-2' of 'acme'/'alice'"),
        ({"task_id": 5}, "it says it is task 5"),
        ({"user_id": "bob"}, "it says it is task 'task-1' of 'acme'/'bob'"),
    ],
)
def test_what_is_no_record_is_reported_with_its_path(data: bytes | dict[str, Any], reason: str) -> None:
    with pytest.raises(
        CorruptRecord, match=r"is not a task record: .*left as it is, repair or remove"
    ) as found:
        read(data) if isinstance(data, bytes) else read(FIRST_GENERATION, **data)
    assert reason in str(found.value)
    assert found.value.path == PATH
    assert str(found.value).startswith(PATH)


def test_extensions_that_are_null_are_not_set() -> None:
    record = read(FIRST_GENERATION, stage=None, meta=None, attempt=None, progress=None)
    assert record == read(FIRST_GENERATION)


def test_an_attempt_without_a_count_is_the_first() -> None:
    attempt = read(FIRST_GENERATION, attempt={"epoch": 2, "token": "t", "holder": "h"}).attempt
    assert attempt == Attempt(2, "t", "h", 1)
