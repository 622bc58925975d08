"""What can go wrong, as HTTP tells it: status code, error code and a message for strangers.

Owns the table from the library's errors to answers. Refuses to pass on an error's own text: it may name
paths, hosts or holders. Those go to the log.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

from task_tracker.errors import (
    CapabilityMissing,
    CorruptRecord,
    InvalidTaskId,
    InvalidTransition,
    LeaseHeld,
    LeaseLost,
    StoreUnavailable,
    TaskNotFound,
    TaskTrackerError,
    VersionConflict,
)

__all__ = ["Failure", "Refused"]

_log = logging.getLogger("task_tracker")

_MOST_ECHOED: Final = 200
"""Characters of a caller's own input that come back in an answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """One answer that is not a success. Codes are those of gRPC, as servers of this kind use them."""

    status: int
    code: str
    message: str
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    retry: bool = False
    """Whether the same request may succeed later; the answer then says when to try."""

    @classmethod
    def not_found(cls, task_id: str) -> Self:
        """Return the one answer for ids that are unknown, malformed, expired, deleted or somebody else's."""
        return cls(404, "NOT_FOUND", "Task not found or expired", _task(task_id))

    @classmethod
    def precondition(cls, task_id: str, status: str, reason: str) -> Self:
        """Return the answer for a step that the task's state does not allow."""
        return cls(412, "FAILED_PRECONDITION", reason, {**_task(task_id), "status": status})

    @classmethod
    def bad_parameter(cls, name: str, reason: str) -> Self:
        """Return the answer for a query parameter that cannot be meant."""
        return cls(400, "INVALID_ARGUMENT", f"{name} {reason}", {"parameters": [name]})

    @classmethod
    def bad_query(cls, problem: str, names: Iterable[str], known: Iterable[str]) -> Self:
        """Return the answer for query parameters that the route does not take."""
        listed = [name[:_MOST_ECHOED] for name in sorted(names)][:10]
        allowed = sorted(known)
        return cls(
            400,
            "INVALID_ARGUMENT",
            f"{problem} {', '.join(listed)}; this route takes {', '.join(allowed) or 'none'}",
            {"parameters": listed, "known": allowed},
        )

    @classmethod
    def invalid(cls, errors: Sequence[Mapping[str, Any]]) -> Self:
        """Return the answer for what FastAPI's validation found. The values themselves are not repeated."""
        problems = [
            {
                "in": str(error["loc"][0]) if error["loc"] else "request",
                "name": ".".join(str(part) for part in error["loc"][1:]),
                "problem": str(error["msg"]),
            }
            for error in errors
        ]
        message = "; ".join(f"{each['name'] or each['in']}: {each['problem']}" for each in problems)
        return cls(400, "INVALID_ARGUMENT", message, {"problems": problems})

    @classmethod
    def of(cls, error: TaskTrackerError, task_id: str | None) -> Self:
        """Return the answer for an error of the library; what only operators may read is logged."""
        details = {} if task_id is None else _task(task_id)
        match error:
            case TaskNotFound() | InvalidTaskId() if task_id is not None:
                return cls.not_found(task_id)
            case InvalidTaskId():
                return cls(400, "INVALID_ARGUMENT", "An id in the request cannot be stored")
            case InvalidTransition():
                return cls(412, "FAILED_PRECONDITION", "The task's state does not allow that", details)
            case VersionConflict() | LeaseHeld() | LeaseLost():
                return cls(
                    409, "ABORTED", "The task is being changed elsewhere; try again", details, retry=True
                )
        if isinstance(error, StoreUnavailable):
            _log.warning("a request was answered with 503: %s", error, extra={"event": "answered_503"})
            return cls.unavailable()
        _log.error(
            "a request failed: %s", error, extra={"event": "http_failure", "task_id": task_id}, exc_info=error
        )
        match error:
            case CorruptRecord():
                message = "The task's record is damaged and cannot be read; an operator has to look at it"
                return cls(500, "DATA_LOSS", message, details)
            case CapabilityMissing():
                return cls(501, "UNIMPLEMENTED", "The store of this server cannot do that", details)
        return cls(500, "INTERNAL", "Internal error", details)

    @classmethod
    def unavailable(cls) -> Self:
        """Return the answer for a store that cannot be asked."""
        return cls(
            503, "UNAVAILABLE", "The task store cannot be reached; nothing is known, try again", retry=True
        )


class Refused(Exception):
    """Ends a request with ``failure``."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def _task(task_id: str) -> dict[str, Any]:
    return {"resource": task_id[:_MOST_ECHOED], "type": "task"}
