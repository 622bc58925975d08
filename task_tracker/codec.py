"""Records to JSON bytes and back: a strict writer and a tolerant reader.

Owns the file format: the ten keys of its first generation, in their order, and the extensions after them.
Refuses to write anything that is not strict JSON (RFC 8259; no NaN, no NUL, no lone surrogates), and to
guess what a damaged file meant.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final, NoReturn

import orjson

from task_tracker.errors import CorruptRecord, InvalidTaskId
from task_tracker.records import Attempt, TaskKey, TaskRecord, TaskStatus, compact
from task_tracker.redaction import clean_text

__all__ = [
    "check_id",
    "check_key",
    "check_text",
    "decode_record",
    "encode_record",
    "encode_result",
    "encode_value",
]

MAX_DEPTH: Final = 200
"""Levels of nesting that a value may have. orjson itself stops at 254 when writing."""

_PLAIN_EXTENSIONS: Final[dict[str, type | tuple[type, ...]]] = {
    "stage": str,
    "progress": (int, float),
    "message": str,
    "handler_version": int,
    "dedupe_key": str,
    "priority": int,
    "not_before": (int, float),
    "timeout_seconds": (int, float),
    "max_attempts": int,
    "started_at": (int, float),
    "completed_at": (int, float),
    "cancel_requested_at": (int, float),
    "error_code": str,
    "hook_error": str,
    "effects_dir": str,
    "creation": str,
    "revision": int,
}
_USUAL_TYPES: Final = {
    name: kind if isinstance(kind, type) else float for name, kind in _PLAIN_EXTENSIONS.items()
}
"""What needs no closer look."""
_ENCODED_EXTENSIONS: Final = {
    "meta": "meta_json",
    "payload": "payload_json",
    "private": "private_json",
    "history": "history_json",
}
_EXTENSIONS: Final = (*_PLAIN_EXTENSIONS, *_ENCODED_EXTENSIONS)
_READ_EXTENSIONS: Final = attrgetter(
    *_PLAIN_EXTENSIONS, *_ENCODED_EXTENSIONS.values(), "attempt", "extra_json"
)
_NO_EXTENSIONS: Final = (None,) * (len(_PLAIN_EXTENSIONS) + len(_ENCODED_EXTENSIONS) + 2)
_TEN: Final = (
    "task_id",
    "task_type",
    "status",
    "created_at",
    "updated_at",
    "resource_id",
    "account_id",
    "user_id",
    "result",
    "error",
)
_THE_TEN: Final = frozenset(_TEN)
_KNOWN: Final = frozenset((*_TEN, *_EXTENSIONS, "attempt"))
_ATTEMPT: Final = ("epoch", "token", "holder", "count")


# ---- writing ---------------------------------------------------------------------------------------


def encode_value(value: object, what: str) -> bytes:
    """Return ``value`` as strict JSON.

    JSON's own types are accepted, with tuples as arrays and subclasses of str, int, float, dict and list
    as what they are (so string enums work). Raises ValueError naming the place and what to do, ``what``
    being the name of the whole.
    """
    _check_json(value, what, 0)
    try:
        return compact(orjson.dumps(value, default=_plain))
    except TypeError:
        pass
    try:
        # Slower, and needed for keys that are a subclass of str; others were refused above.
        return compact(orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS))
    except TypeError as error:  # e.g. integers over 64 bits, surrogates
        raise ValueError(f"{what} is not JSON: {error}; convert it before handing it over") from error


def encode_result(value: object, what: str) -> bytes:
    """Return ``value`` as :func:`encode_value` does; pydantic models are the JSON that their ``model_dump`` gives."""
    pydantic = sys.modules.get("pydantic")  # who has made a model has imported it
    if pydantic is None:
        return encode_value(value, what)
    if not issubclass(type(value), pydantic.BaseModel):
        with contextlib.suppress(ValueError):  # there may be models in it; what else is wrong is told below
            return encode_value(value, what)
    return encode_value(_without_models(value, pydantic.BaseModel, what, 0), what)


def _without_models(value: Any, model: type, place: str, depth: int) -> Any:
    """Return a value with what its models give in their places. Raises ValueError below :data:`MAX_DEPTH`."""
    kind = type(value)  # not isinstance: that asks what an object says of its class, which may be users' code
    if issubclass(kind, model):
        return value.model_dump(mode="json", by_alias=True)
    if not issubclass(kind, (dict, list, tuple)):
        return value
    if depth >= MAX_DEPTH:
        raise _too_deep(place)

    def inner(item: Any, where: object) -> Any:
        return _without_models(item, model, f"{place}{where}" if depth < 8 else place, depth + 1)

    if issubclass(kind, dict):
        return {name: inner(item, f".{name}") for name, item in value.items()}
    return [inner(item, f"[{number}]") for number, item in enumerate(value)]


def _too_deep(place: str) -> ValueError:
    return ValueError(f"{place[:80]}... is nested deeper than {MAX_DEPTH} levels (or contains itself)")


def encode_record(record: TaskRecord) -> bytes:
    """Return the file's content: ten keys, then the extensions that are set."""
    document: dict[str, Any] = {
        "task_id": record.task_id,
        "task_type": record.task_type,
        "status": record.status,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "resource_id": record.resource_id,
        "account_id": record.account_id,
        "user_id": record.user_id,
        "result": orjson.Fragment(record.result_json),
        "error": record.error,
    }
    extensions = _READ_EXTENSIONS(record)
    if extensions != _NO_EXTENSIONS:  # most records have none
        _add_extensions(document, extensions)
    return orjson.dumps(document)


def _add_extensions(document: dict[str, Any], extensions: tuple[Any, ...]) -> None:
    for name, value in zip(_EXTENSIONS, extensions, strict=False):
        if value is not None:
            document[name] = orjson.Fragment(value) if name in _ENCODED_EXTENSIONS else value
    attempt, extra_json = extensions[-2:]
    if attempt is not None:
        # orjson knows dataclasses, and takes three times as long for one.
        document["attempt"] = {
            "epoch": attempt.epoch,
            "token": attempt.token,
            "holder": attempt.holder,
            "count": attempt.count,
        }
    if extra_json is not None:
        document.update(orjson.loads(extra_json))


def check_id(value: object, what: str) -> str:
    """Return ``value`` if it can be an id (non-blank text without NUL), else raise InvalidTaskId."""
    if type(value) is str and value.isascii() and value.isprintable() and not value.isspace() and value:
        return value  # as nearly all are
    if not isinstance(value, str) or not value.strip():
        raise InvalidTaskId(f"{what} must be a non-blank string, not {value!r:.80}")
    if clean_text(value) != value:
        raise InvalidTaskId(f"{what} {value!r:.80} holds a NUL or half a character; use plain text")
    return value


def check_key(key: TaskKey) -> TaskKey:
    """Return ``key`` if its three parts can be ids, else raise InvalidTaskId."""
    check_id(key.account_id, "account_id")
    check_id(key.user_id, "user_id")
    check_id(key.task_id, "task_id")
    return key


def check_text(value: object, what: str) -> str:
    """Return ``value`` if it is text that JSON can hold, else raise ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a string, not {type(value).__name__}")
    if clean_text(value) != value:
        raise ValueError(f"{what} {value!r:.80} holds a NUL or half a character; use plain text")
    return value


def _plain(value: Any) -> Any:
    """Return what orjson knows in place of the subclasses of JSON's types that it does not."""
    return float(value) if isinstance(value, float) else list(value)


def _check_json(value: object, place: str, depth: int) -> None:
    if value is None or value is True or value is False:
        return
    if isinstance(value, str):
        if "\x00" in value:
            raise ValueError(f"{place} holds a NUL character; remove it, not every store can keep it")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{place} is {value}, which JSON does not have; use None or text")
    elif isinstance(value, int):
        return
    elif depth >= MAX_DEPTH:
        raise _too_deep(place)
    elif isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise ValueError(f"{place} has the key {name!r:.80}; JSON keys are strings")
            if "\x00" in name:
                raise ValueError(f"{place} has a key with a NUL character; remove it")
            _check_json(item, f"{place}.{name}" if depth < 8 else place, depth + 1)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _check_json(item, f"{place}[{number}]" if depth < 8 else place, depth + 1)
    else:
        raise ValueError(
            f"{place} is a {type(value).__module__}.{type(value).__qualname__}, which JSON does not have; "
            "convert it to text, a number, a list or a dict first (model_dump(mode='json') of a pydantic model)"
        )


# ---- reading ---------------------------------------------------------------------------------------


def decode_record(data: bytes, key: TaskKey, path: str) -> TaskRecord:
    """Return the record in ``data``, read from ``path`` where ``key`` belongs.

    Missing optional fields get defaults, unknown ones are kept, times may be ISO 8601 text (naive means
    UTC), NaN and infinities of careless writers become null. Raises CorruptRecord, naming the path, for
    anything that is not the record of ``key``.
    """
    document = _load(data, path)
    try:
        return _build(document, key)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        _corrupt(path, reason, error)


def _load(data: bytes, path: str) -> dict[str, Any]:
    try:
        document = orjson.loads(data)
    except ValueError as error:
        document = _load_careless(data, path, error)
    if not isinstance(document, dict):
        _corrupt(path, f"it holds a JSON {type(document).__name__}, not an object", None)
    return document


def _load_careless(data: bytes, path: str, first: ValueError) -> Any:
    """Read what Python's own json module writes and strict JSON does not allow."""
    if not data:
        _corrupt(path, "it is empty", first)
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=lambda _: None)
        return orjson.loads(clean_text(json.dumps(document, ensure_ascii=False)))
    except (ValueError, RecursionError):
        _corrupt(path, f"it is not JSON ({first})", first)


def _build(document: dict[str, Any], key: TaskKey) -> TaskRecord:
    created_at = _time(document["created_at"])
    known: dict[str, Any] = {
        "task_id": document["task_id"],
        "task_type": _typed(document, "task_type", str),
        "status": TaskStatus.parse(_typed(document, "status", str)),
        "created_at": created_at,
        "updated_at": _time(document["updated_at"]) if "updated_at" in document else created_at,
        "account_id": document.get("account_id") or key.account_id,
        "user_id": document.get("user_id") or key.user_id,
        "resource_id": _typed(document, "resource_id", str, optional=True),
        "error": _typed(document, "error", str, optional=True),
    }
    result = document.get("result")
    if result is not None:
        known["result_json"] = compact(orjson.dumps(result))
    if len(document) > len(_TEN) or not document.keys() <= _KNOWN:
        _add_known(document, known)
    record = TaskRecord.of(**known)
    if record.task_id != key.task_id or (record.account_id, record.user_id) != key[:2]:
        raise ValueError(f"it says it is task {record.task_id!r} of {record.account_id!r}/{record.user_id!r}")
    return record


def _add_known(document: dict[str, Any], known: dict[str, Any]) -> None:
    """Add the extensions in ``document`` to what is ``known`` of a record."""
    strangers: dict[str, Any] = {}
    for name, value in document.items():
        if name in _THE_TEN:
            continue
        if name not in _KNOWN:
            strangers[name] = value
        elif value is None:
            continue
        elif name == "attempt":
            known[name] = _attempt(value)
        elif name in _ENCODED_EXTENSIONS:
            known[_ENCODED_EXTENSIONS[name]] = compact(orjson.dumps(value))
        elif type(value) is _USUAL_TYPES[name]:
            known[name] = value
        elif name.endswith("_at"):
            known[name] = _time(value)
        else:
            known[name] = _typed(document, name, _PLAIN_EXTENSIONS[name])
    if strangers:
        known["extra_json"] = compact(orjson.dumps(strangers))


def _attempt(value: dict[str, Any]) -> Attempt:
    if type(value) is dict and len(value) == len(_ATTEMPT):
        epoch, token, holder, count = map(value.get, _ATTEMPT)
        if type(epoch) is type(count) is int and type(token) is type(holder) is str:
            return Attempt(epoch, token, holder, count)
    return Attempt(
        _typed(value, "epoch", int),
        _typed(value, "token", str),
        _typed(value, "holder", str),
        _typed(value, "count", int) if "count" in value else 1,
    )


def _typed(
    document: dict[str, Any], name: str, kind: type | tuple[type, ...], *, optional: bool = False
) -> Any:
    value = document.get(name) if optional else document[name]
    if type(value) is kind or (value is None and optional):
        return value
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name} is a JSON {type(value).__name__}")
    return value


def _time(value: object) -> float:
    if type(value) is float:
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    raise TypeError(f"a time is a JSON {type(value).__name__}")


def _corrupt(path: str, reason: str, cause: BaseException | None) -> NoReturn:
    raise CorruptRecord(
        f"{path} is not a task record: {reason}; it is left as it is, repair or remove it by hand", path=path
    ) from cause
