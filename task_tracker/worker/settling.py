"""What an outcome means for the record: the step that is written under the lease.

Owns the table of endings. Pure functions; refuses to read clocks or to write.
"""

from __future__ import annotations

from typing import NamedTuple

from task_tracker import transitions
from task_tracker.access import Step
from task_tracker.handlers import Handler
from task_tracker.ownership import giving_back
from task_tracker.records import TaskRecord
from task_tracker.worker.outcomes import (
    CancelledOutcome,
    Done,
    Failed,
    Interrupted,
    Outcome,
    RetryAt,
    TimedOut,
)

__all__ = ["Ending", "ending_of", "under_wish"]


class Ending(NamedTuple):
    """A step, and what goes with it."""

    step: Step
    is_failure: bool = False
    """``on_failure`` is to be called first."""
    error: str | None = None
    """Of an attempt that another one follows: for the history."""
    error_code: str | None = None


def under_wish(outcome: Outcome, *, cancel_requested: bool) -> Outcome:
    """Return ``outcome``; of a task that somebody wants cancelled, no other attempt follows."""
    if cancel_requested and isinstance(outcome, RetryAt | Interrupted):
        return CancelledOutcome()
    return outcome


def ending_of(
    outcome: Outcome, handler: Handler | None, now: float, effects_dir: str | None = None
) -> Ending | None:
    """Return how a record ends, or is given back, after ``outcome``; None if nothing is to be written."""
    if isinstance(outcome, Done):
        return Ending(_completion(outcome, now, effects_dir))
    if isinstance(outcome, Failed):
        return _failure(now, outcome.error, outcome.error_code)
    if isinstance(outcome, TimedOut):
        return _failure(now, f"it did not end within {outcome.seconds:g} seconds", "timeout")
    if isinstance(outcome, CancelledOutcome):
        return Ending(lambda record: transitions.cancelled(record, now))
    if isinstance(outcome, RetryAt):
        return Ending(_waiting(now, outcome.at), error=outcome.error, error_code=outcome.error_code)
    if isinstance(outcome, Interrupted):
        if outcome.began and handler is not None and not handler.idempotent:
            return _failure(now, "its worker was shut down before it had ended", "interrupted")
        return Ending(giving_back(now), error_code="interrupted")
    return None


def _completion(done: Done, now: float, effects_dir: str | None) -> Step:
    def step(record: TaskRecord) -> TaskRecord:
        completed = transitions.completed(record, now, done.result_json, resource_id=done.resource_id)
        return completed if effects_dir is None else completed.changed(effects_dir=effects_dir)

    return step


def _failure(now: float, error: str, error_code: str | None) -> Ending:
    return Ending(
        lambda record: transitions.failed(record, now, error, error_code=error_code), is_failure=True
    )


def _waiting(now: float, at: float) -> Step:
    give_back = giving_back(now)

    def step(record: TaskRecord) -> TaskRecord:
        back = give_back(record)
        return back if back.status.is_terminal else back.changed(not_before=at)

    return step
