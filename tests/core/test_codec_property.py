"""What holds for all records and all files."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from task_tracker import Attempt, CorruptRecord, TaskKey, TaskRecord, TaskStatus
from task_tracker.codec import _KNOWN, _TEN, decode_record, encode_record, encode_value
from tests.core.support import PROPERTY

PATH = "/somewhere/task.json"
TEXT = st.text(max_size=8)
ID = TEXT.filter(str.strip)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
INTEGER = st.integers(-(2**63), 2**64 - 1)
SCALAR = st.none() | st.booleans() | INTEGER | NUMBER | TEXT
JSON = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
STATUS = (st.sampled_from(TaskStatus) | TEXT).map(TaskStatus.parse)
PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "task_id": ID,
    "task_type": TEXT,
    "status": STATUS,
    "created_at": NUMBER,
    "updated_at": NUMBER,
    "account_id": ID,
    "user_id": ID,
    "resource_id": st.none() | TEXT,
    "result_json": JSON.map(orjson.dumps),
    "error": st.none() | TEXT,
}
EXTENSIONS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("stage", "message", "dedupe_key", "error_code", "hook_error", "effects_dir"), TEXT),
    **dict.fromkeys(("progress", "not_before", "timeout_seconds", "completed_at", "started_at"), NUMBER),
    **dict.fromkeys(("handler_version", "priority", "max_attempts", "revision"), INTEGER),
    "creation": TEXT,
    "cancel_requested_at": NUMBER,
    "meta_json": OBJECT.map(orjson.dumps),
    "payload_json": JSON.filter(lambda value: value is not None).map(orjson.dumps),
    "private_json": JSON.filter(lambda value: value is not None).map(orjson.dumps),
    "history_json": st.lists(OBJECT, max_size=2).map(orjson.dumps),
    "attempt": st.builds(Attempt, INTEGER, TEXT, TEXT, INTEGER),
    "extra_json": st.dictionaries(
        TEXT.filter(lambda name: name not in _KNOWN), JSON, min_size=1, max_size=3
    ).map(orjson.dumps),
}
PLAIN_RECORDS = st.fixed_dictionaries(PLAIN).map(lambda fields: TaskRecord(**fields))
RECORDS = st.fixed_dictionaries(PLAIN, optional=EXTENSIONS).map(lambda fields: TaskRecord(**fields))


def strict(data: bytes) -> dict[str, Any]:
    """Read by another reader, which is told to accept nothing that RFC 8259 does not have."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    document = json.loads(data.decode("utf-8"), parse_constant=refuse)
    assert isinstance(document, dict)
    return document


@settings(PROPERTY, max_examples=150)
@given(RECORDS)
def test_any_record_survives_a_round_trip(record: TaskRecord) -> None:
    """[D127] all fields, the id among them."""
    data = encode_record(record)
    again = decode_record(data, record.key, PATH)
    assert again == record
    assert encode_record(again) == data, "reading and writing again changes no byte"
    assert strict(data)["task_id"] == record.task_id


@PROPERTY
@given(PLAIN_RECORDS)
def test_a_record_without_extensions_has_the_ten_keys_in_their_order(record: TaskRecord) -> None:
    assert list(strict(encode_record(record))) == list(_TEN)


@PROPERTY
@given(PLAIN_RECORDS, st.dictionaries(TEXT.filter(lambda name: name not in _KNOWN), JSON, max_size=4))
def test_fields_of_other_versions_survive(record: TaskRecord, strangers: dict[str, Any]) -> None:
    """[D144]"""
    document = orjson.loads(encode_record(record)) | strangers
    again = decode_record(orjson.dumps(document), record.key, PATH)
    assert orjson.loads(encode_record(again)) == document


@PROPERTY
@given(JSON.filter(lambda value: b"\\u0000" not in orjson.dumps(value)))
def test_json_values_are_encoded_as_themselves(value: Any) -> None:
    assert orjson.loads(encode_value(value, "result")) == orjson.loads(orjson.dumps(value))


@PROPERTY
@given(
    st.recursive(
        SCALAR
        | st.floats()
        | st.binary(max_size=2)
        | st.sampled_from(["\0", "\ud800", 2**64, {1}, object()]),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.tuples(inner)
            | st.dictionaries(TEXT | st.integers() | st.none(), inner, max_size=2)
        ),
        max_leaves=6,
    )
)
def test_a_value_is_encoded_strictly_or_refused(value: Any) -> None:
    """[D114] [D140]"""
    try:
        data = encode_value(value, "result")
    except ValueError as refused:
        assert str(refused).startswith("result")  # noqa: PT017  # both answers are right
    else:
        strict(b'{"value":' + data + b"}")
        assert b"\\u0000" not in data


# ---- files of the first generation -----------------------------------------------------------------

CARELESS = st.recursive(
    st.none() | st.booleans() | INTEGER | st.floats() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1))  # noqa: DTZ001  # naive on purpose
OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def as_seconds(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


TIMES = st.one_of(
    st.floats(0, 4e9).map(lambda seconds: (seconds, seconds)),
    st.integers(0, 4_000_000_000).map(lambda seconds: (seconds, float(seconds))),
    MOMENTS.map(lambda moment: (moment.isoformat(), as_seconds(moment))),
    MOMENTS.map(lambda moment: (moment.isoformat() + "Z", as_seconds(moment))),
    st.builds(lambda moment, zone: moment.replace(tzinfo=zone), MOMENTS, OFFSETS).map(
        lambda moment: (moment.isoformat(), as_seconds(moment))
    ),
)


def as_read(value: Any) -> Any:
    """What strict JSON makes of a careless value."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [as_read(item) for item in value]
    if isinstance(value, dict):
        return {name: as_read(item) for name, item in value.items()}
    return value


@settings(PROPERTY, max_examples=150)
@given(TIMES, TIMES, CARELESS, st.booleans(), st.sampled_from([None, 2]), st.sampled_from(TaskStatus))
def test_what_pythons_json_module_writes_is_read(
    created: tuple[Any, float],
    updated: tuple[Any, float],
    result: Any,
    ascii_only: bool,
    indent: int | None,
    status: TaskStatus,
) -> None:
    """[D114] [D144] [D146]"""
    document = {
        "task_id": "task-1",
        "task_type": "t",
        "status": status.value,
        "created_at": created[0],
        "updated_at": updated[0],
        "resource_id": None,
        "account_id": "acme",
        "user_id": "alice",
        "result": result,
        "error": None,
    }
    text = json.dumps(document, ensure_ascii=ascii_only, indent=indent)
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        return  # a lone surrogate as it is: that writer fails, there is no file
    record = decode_record(data, TaskKey("acme", "alice", "task-1"), PATH)
    assert (record.created_at, record.updated_at) == (created[1], updated[1])
    assert record.status is status
    if "\\ud" not in text:  # half characters: how many marks stand for them is not promised
        assert record.result == as_read(result)
    strict(encode_record(record))


# ---- any bytes at all ------------------------------------------------------------------------------

NAMES = st.sampled_from(sorted(_KNOWN)) | TEXT


@settings(PROPERTY, max_examples=200)
@given(
    st.binary(max_size=40)
    | st.dictionaries(NAMES, CARELESS, max_size=12).map(lambda d: json.dumps(d).encode())
)
def test_any_bytes_are_a_record_or_corrupt_and_nothing_else(data: bytes) -> None:
    base = {"task_id": "t", "task_type": "t", "status": "running", "created_at": 1.0}
    for candidate in (data, json.dumps(base).encode()[:-1] + b"," + data[1:]):
        try:
            record = decode_record(candidate, TaskKey("a", "u", "t"), PATH)
        except CorruptRecord as corrupt:
            assert corrupt.path == PATH  # noqa: PT017  # both answers are right
        else:
            record.to_dict()
            assert decode_record(encode_record(record), record.key, PATH) == record
