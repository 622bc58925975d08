"""How a task is to end: what is checked, cleaned and encoded before its record changes.

Owns that the end of a task is never lost because of what came with it. An ending is a value, so that it can
be kept and carried out later, as of the moment of the call.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from task_tracker import transitions
from task_tracker.access import Step
from task_tracker.codec import check_text, encode_result
from task_tracker.redaction import clean_text, redact_error
from task_tracker.sizes import check_resource_id

__all__ = ["Ending", "cancellation", "completion", "failure"]

_log = logging.getLogger("task_tracker")

_NO_MESSAGE: Final = "failed without a message"


class Ending(NamedTuple):
    """A step that ends a task, and the name of the call that asked for it."""

    call: str
    step: Step


def completion(task_id: str, result: object, now: float, *, resource_id: str | None) -> Ending:
    """Return the completion with ``result``; a failure if that is not JSON. Raises ValueError for resource_id."""
    resource = None if resource_id is None else check_resource_id(check_text(resource_id, "resource_id"))
    try:
        encoded = encode_result(result, "result")
    except Exception as error:  # noqa: BLE001  # whatever a value does when it is looked at
        _log.error(  # the message says it all
            "the result of task %s cannot be stored: %s",
            task_id,
            redact_error(error),
            extra={"event": "unserializable_result", "task_id": task_id},
        )
        return failure(error, now, error_code="unserializable_result")
    return Ending(
        "complete", lambda record: transitions.completed(record, now, encoded, resource_id=resource)
    )


def failure(error: object, now: float, *, error_code: str | None) -> Ending:
    """Return the failure with ``error``, which may be missing. Raises TypeError for error_code."""
    if error_code is not None and not isinstance(error_code, str):
        raise TypeError(f"error_code must be a string, not {type(error_code).__name__}")
    text = (redact_error(error) if error is not None else "") or _NO_MESSAGE
    code = None if error_code is None else clean_text(error_code)
    return Ending("fail", lambda record: transitions.failed(record, now, text, error_code=code))


def cancellation(now: float) -> Ending:
    """Return the end of a task whose work has stopped because it was asked to."""
    return Ending("mark_cancelled", lambda record: transitions.cancelled(record, now))
