"""What a task is: plain frozen values, and the view of them that callers may see.

Owns the names of the fields and the public view. Refuses to know the lifecycle
(:mod:`task_tracker.transitions`) and the bytes on disk (:mod:`task_tracker.codec`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from task_tracker.redaction import redact_text, redact_value

__all__ = ["ACTIVE", "TERMINAL", "Attempt", "TaskKey", "TaskRecord", "TaskStatus", "compact"]

JSON_NULL: Final = b"null"

FREE_TEXTS: Final = ("error", "stage", "message", "hook_error", "error_code")
"""Fields with text that somebody wrote, which may hold credentials: masked when shown and when a task ends."""
FREE_VALUES: Final = ("result", "meta", "payload", "history")
"""Fields with JSON, encoded in ``<name>_json``, for which the same holds."""


def compact(encoded: bytes) -> bytes:
    """Return the same bytes in memory of their size; what orjson gives out sits in 4 KB (3.13, measured)."""
    return bytes(memoryview(encoded))


class TaskStatus(StrEnum):
    """The six states of a task.

    A record written by a newer version may carry another word. :meth:`parse` gives such a word a value
    of this type, so that it can be shown; it is neither active nor terminal and nothing acts on it.
    """

    PENDING = "pending"
    RUNNING = "running"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @classmethod
    def parse(cls, word: str) -> TaskStatus:
        """Return the member called ``word``, or a stand-in that only carries the word."""
        member = cls._value2member_map_.get(word)
        if member is not None:
            return member  # type: ignore[return-value]  # the map is typed as Enum
        stranger = str.__new__(cls, word)
        stranger._name_ = word.upper()
        stranger._value_ = word
        return stranger

    def __reduce_ex__(self, protocol: object) -> tuple[Callable[[str], TaskStatus], tuple[str]]:
        """Pickle by word, so that a stand-in survives as well."""
        return TaskStatus.parse, (self.value,)

    @property
    def is_active(self) -> bool:
        """True for pending, running and cancelling."""
        return self in ACTIVE

    @property
    def is_terminal(self) -> bool:
        """True for completed, failed and cancelled: the record is final."""
        return self in TERMINAL

    @property
    def is_known(self) -> bool:
        """False for a word of a newer version."""
        return self in ACTIVE or self in TERMINAL


ACTIVE: Final = frozenset({TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.CANCELLING})
TERMINAL: Final = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})


class TaskKey(NamedTuple):
    """The triple that names a task everywhere: owner and id."""

    account_id: str
    user_id: str
    task_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """One claim of a task.

    ``epoch`` grows with every claim and never resets; ``token`` is the claim's secret, known to its holder;
    ``holder`` names the process; ``count`` is the number of attempts counted so far, this one included.
    """

    epoch: int
    token: str = dataclasses.field(repr=False)
    holder: str
    count: int = 1


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class TaskRecord:
    """One task, as it stood when it was read. Nothing done to a snapshot changes what is stored.

    Times are Unix seconds (UTC). ``result``, ``meta`` and ``payload`` are kept encoded and decoded anew at
    each access, so that handing out a record copies nothing and changing a decoded value harms nobody.
    """

    task_id: str
    task_type: str
    status: TaskStatus
    created_at: float
    updated_at: float
    account_id: str
    user_id: str
    resource_id: str | None = None
    result_json: bytes = JSON_NULL
    error: str | None = None
    # Extensions: in the file only when they are set.
    stage: str | None = None
    progress: float | None = None
    message: str | None = None
    meta_json: bytes | None = None
    payload_json: bytes | None = None
    private_json: bytes | None = None
    handler_version: int | None = None
    dedupe_key: str | None = None
    priority: int | None = None
    not_before: float | None = None
    timeout_seconds: float | None = None
    max_attempts: int | None = None
    attempt: Attempt | None = None
    started_at: float | None = None
    completed_at: float | None = None
    cancel_requested_at: float | None = None
    error_code: str | None = None
    hook_error: str | None = None
    effects_dir: str | None = None
    history_json: bytes | None = None
    creation: str | None = None
    revision: int | None = None
    extra_json: bytes | None = None
    """Fields that this version does not know (a JSON object), kept so that a round trip loses nothing."""

    @property
    def key(self) -> TaskKey:
        """The triple (account_id, user_id, task_id)."""
        # As the class would, in half the time: it is asked for several times in each step of a task.
        return tuple.__new__(TaskKey, (self.account_id, self.user_id, self.task_id))

    @property
    def result(self) -> Any:
        """The result, decoded anew at each access; None while there is none."""
        return orjson.loads(self.result_json)

    @property
    def meta(self) -> Any:
        """What the creator noted about the task, decoded anew; ``{}`` when there is nothing."""
        return orjson.loads(self.meta_json) if self.meta_json is not None else {}

    @property
    def payload(self) -> Any:
        """What the handler works on, decoded anew; None when there is nothing."""
        return orjson.loads(self.payload_json) if self.payload_json is not None else None

    @property
    def history(self) -> list[dict[str, Any]] | None:
        """Earlier transitions with their own times, decoded anew; None when none were recorded."""
        return orjson.loads(self.history_json) if self.history_json is not None else None

    def get_private(self) -> Any:
        """Return the task's credentials, decoded anew; None when there are none or the task has ended."""
        if self.status.is_terminal:
            return None
        return orjson.loads(self.private_json) if self.private_json is not None else None

    def changed(self, **changes: Any) -> TaskRecord:
        """Return a copy with other values (``dataclasses.replace`` takes ten times as long)."""
        draft = _drafted(self)
        for name, value in changes.items():
            setattr(draft, name, value)
        return _frozen(draft)

    @classmethod
    def of(cls, **known: Any) -> TaskRecord:
        """Return a record of the fields that are known, the others as by default; those without one are to be given.

        For records that are read: a call of the class takes more than twice as long.
        """
        draft = _drafted(_BLANK)
        for name, value in known.items():
            setattr(draft, name, value)
        return _frozen(draft)

    def to_dict(self) -> dict[str, Any]:
        """Return the public view: no owner, no credentials, no lease token, credentials in values masked.

        Adds ``created_at_iso`` and ``updated_at_iso``. Extensions appear only when they are set; fields of
        unknown versions never do (they may hold anything).
        """
        view: dict[str, Any] = {
            "task_id": self.task_id,
            "task_type": self.task_type,
            "status": self.status.value,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "resource_id": self.resource_id,
            "result": None,  # in this place; the value comes below
            "error": self.error,
        }
        for name in _PUBLIC_EXTENSIONS:
            value = getattr(self, name)
            if value is not None:
                view[name] = value
        for name in FREE_TEXTS:
            # Files of other writers were redacted by other rules, or by none.
            if view.get(name):
                view[name] = redact_text(view[name])
        for name in FREE_VALUES:
            encoded = getattr(self, f"{name}_json")
            if encoded is not None:
                view[name] = redact_value(orjson.loads(encoded))
        if self.attempt is not None and self.attempt.epoch > 0:  # 0: nobody has claimed it yet
            view["attempt"] = {
                "epoch": self.attempt.epoch,
                "holder": self.attempt.holder,
                "count": self.attempt.count,
            }
        view["created_at_iso"] = _iso(self.created_at)
        view["updated_at_iso"] = _iso(self.updated_at)
        return view

    def __repr__(self) -> str:
        """Return one line for logs: identity and state, nothing that could be a secret."""
        return (
            f"<TaskRecord {self.task_id!r} {self.task_type!r} {self.status.value} "
            f"of {self.account_id!r}/{self.user_id!r}>"
        )


class _Draft:
    """A record before it is frozen: it has the same slots, so that it becomes one in a single step."""

    __slots__ = tuple(field.name for field in dataclasses.fields(TaskRecord))


def _frozen(draft: Any) -> TaskRecord:
    draft.__class__ = TaskRecord
    record: TaskRecord = draft
    return record


def _drafted(record: TaskRecord) -> Any:
    """Return a draft of a copy. Written out: a loop over the fields takes several times as long."""
    draft: Any = _Draft()
    draft.task_id = record.task_id
    draft.task_type = record.task_type
    draft.status = record.status
    draft.created_at = record.created_at
    draft.updated_at = record.updated_at
    draft.account_id = record.account_id
    draft.user_id = record.user_id
    draft.resource_id = record.resource_id
    draft.result_json = record.result_json
    draft.error = record.error
    draft.stage = record.stage
    draft.progress = record.progress
    draft.message = record.message
    draft.meta_json = record.meta_json
    draft.payload_json = record.payload_json
    draft.private_json = record.private_json
    draft.handler_version = record.handler_version
    draft.dedupe_key = record.dedupe_key
    draft.priority = record.priority
    draft.not_before = record.not_before
    draft.timeout_seconds = record.timeout_seconds
    draft.max_attempts = record.max_attempts
    draft.attempt = record.attempt
    draft.started_at = record.started_at
    draft.completed_at = record.completed_at
    draft.cancel_requested_at = record.cancel_requested_at
    draft.error_code = record.error_code
    draft.hook_error = record.hook_error
    draft.effects_dir = record.effects_dir
    draft.history_json = record.history_json
    draft.creation = record.creation
    draft.revision = record.revision
    draft.extra_json = record.extra_json
    return draft


_BLANK: Final = TaskRecord("", "", TaskStatus.PENDING, 0.0, 0.0, "", "")

_PUBLIC_EXTENSIONS: Final = (
    "stage",
    "progress",
    "message",
    "handler_version",
    "dedupe_key",
    "priority",
    "not_before",
    "timeout_seconds",
    "max_attempts",
    "started_at",
    "completed_at",
    "cancel_requested_at",
    "error_code",
    "hook_error",
    "effects_dir",
    "revision",
)


def _iso(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (OverflowError, ValueError, OSError):  # a year that datetime cannot hold, written by somebody else
        return None
