"""What is logged of an attempt, since a record is too short for it: tracebacks, and that a handler goes on.

Owns these log records. Refuses to judge.
"""

from __future__ import annotations

import logging

from task_tracker.worker.excerpts import traceback_text
from task_tracker.worker.outcomes import Fail, Failed, LeftBehind, Outcome, Raised, Retry
from task_tracker.worker.running import Did

__all__ = ["report", "report_broken"]

_log = logging.getLogger("task_tracker")


def report(task_id: str, did: Did | LeftBehind, outcome: Outcome) -> None:
    """Tell of a handler that failed or goes on."""
    if isinstance(did, LeftBehind):
        _log.warning(
            "the handler of task %s goes on although it was told to stop; its slot stays taken until it ends",
            task_id,
            extra={"event": "handler_left_behind", "task_id": task_id},
        )
    elif isinstance(did, Raised) and isinstance(outcome, Failed):
        if issubclass(type(did.error), (Fail, Retry)):
            _report_said(task_id, did.error, outcome)
            return
        _log.warning(
            "the handler of task %s failed:\n%s",
            task_id,
            traceback_text(did.error),  # messages quote what they were given
            extra={"event": "handler_failed", "task_id": task_id},
        )


def _report_said(task_id: str, error: BaseException, outcome: Failed) -> None:
    """Tell what a handler meant to say; where it came from only if it was said because of another error."""
    is_because = error.__cause__ is not None or (
        error.__context__ is not None and not error.__suppress_context__
    )
    _log.info(
        "the handler of task %s raised %s: %s",
        task_id,
        type(error).__name__,
        traceback_text(error) if is_because else outcome.error,
        extra={"event": "handler_said", "task_id": task_id},
    )


def report_broken(task_id: str, error: BaseException) -> None:
    """Tell of an attempt that broke, not its handler."""
    _log.error(
        "the attempt at task %s broke, and fails:\n%s",
        task_id,
        traceback_text(error),
        extra={"event": "attempt_broken", "task_id": task_id},
    )
