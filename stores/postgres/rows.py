"""Records as rows: what is written into the columns, and what is read from them.

Owns how a record and its row belong together. The record itself is kept as the codec writes it; columns repeat what is
asked about, so that no statement looks into it. Refuses what this database cannot keep, before it is sent.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson

from task_tracker import transitions
from task_tracker.codec import check_id, decode_record, encode_record
from task_tracker.errors import InvalidTaskId, TaskNotFound
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.redaction import clean_text
from task_tracker.store import Stored, Version

__all__ = [
    "ANYTHING",
    "Row",
    "RowVersion",
    "Rows",
    "array",
    "check_long",
    "check_storable",
    "is_storable",
    "kind_of",
    "missing",
    "news_of",
    "revision_of",
    "said",
    "said_since",
    "text_of",
]

LONGEST_ID: Final = 500
"""Bytes of an id. Three of them go into one entry of an index, which takes 2,700."""
_SURELY_SHORT: Final = LONGEST_ID // 4
"""Characters, each of which takes four bytes at most."""
NO_REVISION: Final = -1
ANYTHING: Final = "[]"
"""The news of a task whose ids are too long to be told."""
_LONGEST_NEWS: Final = 7000
"""Bytes. A notification takes 7,999 of the database's encoding."""

_RUNS: Final = (TaskStatus.RUNNING, TaskStatus.CANCELLING)


@dataclasses.dataclass(frozen=True, slots=True)
class RowVersion:
    """A version: the number of one write, which no other write has."""

    revision: int


class Row(NamedTuple):
    """A row as it is read, its fields in the order of the fragment ``row``. Ages and times are seconds."""

    account_id: str
    user_id: str
    task_id: str
    record: bytes
    revision: int
    creation: str
    status: str
    epoch: int
    token: str | None
    holder: str | None
    attempts: int
    heartbeat_at: datetime | None
    heartbeat_age: float | None
    valid: bool
    """Its lease has not ended."""
    now: float
    """The database's Unix time."""

    @property
    def key(self) -> TaskKey:
        """Which task it is."""
        return TaskKey(self.account_id, self.user_id, self.task_id)


class Rows:
    """Reads rows. ``table`` is what a person calls it."""

    def __init__(self, table: str) -> None:
        self._table = table

    def where(self, key: TaskKey) -> str:
        """Return where a record is, for messages."""
        return f"{self._table} ({', '.join(map(repr, key))})"

    def decode(self, data: bytes, key: TaskKey) -> TaskRecord:
        """Return the record in ``data``. Raises CorruptRecord."""
        return decode_record(data, key, self.where(key))

    def record(self, row: Row) -> TaskRecord:
        """Return the record of a row. Raises CorruptRecord."""
        return self.decode(row.record, row.key)

    def stored(self, row: Row) -> Stored:
        """Return a row as callers get it. Raises CorruptRecord."""
        return Stored(self.record(row), RowVersion(row.revision))


def said(record: TaskRecord) -> dict[str, Any]:
    """Return the parameters of the fragments ``said``, ``values``, ``told`` and ``of_key``.

    Raises InvalidTaskId, ValueError.
    """
    check_long(record.task_type, "task_type")
    status = record.status
    return {
        "account_id": record.account_id,
        "user_id": record.user_id,
        "task_id": record.task_id,
        "record": text_of(record),
        "task_type": record.task_type,
        "status": status.value,
        "resource_id": record.resource_id,
        "kind": kind_of(record.task_type, record.resource_id),
        "blocks": transitions.blocks_duplicates(status, record.completed_at),
        "created_at": record.created_at,
        "handler_version": record.handler_version,
        "priority": record.priority or 0,
        "not_before": record.not_before,
        "ended_at": record.updated_at if status.is_terminal else None,
        "runs": status in _RUNS,
        "waits": status is TaskStatus.PENDING and record.handler_version is not None,
        "news": news_of(record.key),
    }


def said_since(record: TaskRecord, before: str | None) -> dict[str, Any]:
    """Return the same for a write that is no news if ``before`` is the state that the record has; None: it is."""
    return {**said(record), **({"news": None} if before == record.status.value else {})}


def news_of(key: TaskKey) -> str:
    """Return what is told of a task: ids and nothing else, since whoever may connect to the database can listen."""
    told = orjson.dumps(list(key))
    return told.decode() if len(told) <= _LONGEST_NEWS else ANYTHING


def array(values: Iterable[str | float | None]) -> str:
    """Return an array as PostgreSQL reads it: for long texts the driver takes a multiple of this."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: str | float | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(float(value)) if isinstance(value, float) else str(int(value))


@lru_cache(maxsize=1024)
def kind_of(task_type: str, resource_id: str | None) -> bytes:
    """Return the digest of what tasks have in common of which one may be active; an index takes no long text."""
    return hashlib.sha256(orjson.dumps([task_type, resource_id])).digest()[:16]


def revision_of(version: Version | None) -> int:
    """Return the number of a version; one that no row has if this store never gave it."""
    return version.revision if isinstance(version, RowVersion) else NO_REVISION


# ---- what can be kept ----------------------------------------------------------------------------------


def check_storable(key: TaskKey) -> None:
    """Raise InvalidTaskId for a key that this database cannot keep."""
    check_long(key.account_id, "account_id")
    check_long(key.user_id, "user_id")
    check_long(key.task_id, "task_id")


def check_long(value: str, name: str) -> None:
    """Raise InvalidTaskId for an id that is none, or too long for an index."""
    check_id(value, name)
    if len(value) > _SURELY_SHORT and len(value.encode()) > LONGEST_ID:
        raise InvalidTaskId(f"{name} {value!r:.80} is longer than {LONGEST_ID} bytes; choose a shorter one")


def is_storable(*texts: str | None) -> bool:
    """Tell whether PostgreSQL can be asked for these texts at all; if not, they are nowhere."""
    return all(text is None or (isinstance(text, str) and clean_text(text) == text) for text in texts)


def missing(key: TaskKey) -> TaskNotFound:
    """Return what is raised for a task that is not there."""
    return TaskNotFound(
        f"no task {key.task_id} of {key.account_id}/{key.user_id}; check the id and the owner"
    )


def text_of(record: TaskRecord) -> str:
    """Return a record as it is stored. Raises ValueError for what PostgreSQL does not keep."""
    encoded = encode_record(record)
    # Part of an escaped backslash, or a character that neither text nor jsonb can hold.
    if b"\\u0000" in encoded and _holds_nul(orjson.loads(encoded)):
        raise ValueError(
            f"task {record.task_id} holds a NUL character, which PostgreSQL does not keep; remove it"
        )
    return encoded.decode()


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_holds_nul(part) for pair in value.items() for part in pair)
    return isinstance(value, list) and any(_holds_nul(part) for part in value)
