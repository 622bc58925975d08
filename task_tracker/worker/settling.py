"""What an outcome means for the record: the step that is written under the lease.

Owns the table of endings. Pure functions; refuses to read clocks or to write.
"""

from __future__ import annotations

from typing import Final, NamedTuple

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
from task_tracker.worker.retrying import uncounted

__all__ = ["Ending", "ending_of", "under_wish"]


_INTERRUPTED: Final = "its worker was shut down before it had ended"


class Ending(NamedTuple):
    """A step, and what goes with it."""

    step: Step
    is_failure: bool = False
    """``on_failure`` is to be called first."""
    error: str | None = None
    """Of an attempt that another one follows: for the history."""
    error_code: str | None = None


def under_wish(outcome: Outcome, handler: Handler | None, *, cancel_requested: bool) -> Outcome:
    """Return ``outcome``; of a task that somebody wants cancelled, no other attempt follows.

    It is cancelled then, if its handler may be and has really ended. A store cancels what is given back under such
    a wish, so that anything else ends as failed here.
    """
    if not cancel_requested or not isinstance(outcome, RetryAt | Interrupted):
        return outcome
    may_be_cancelled = handler is None or handler.cancellable
    if isinstance(outcome, Interrupted):
        if not outcome.began or (may_be_cancelled and outcome.ended):
            return CancelledOutcome()
        return Failed(_INTERRUPTED, "interrupted")
    return CancelledOutcome() if may_be_cancelled else Failed(outcome.error, outcome.error_code)


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
        return Ending(
            _waiting(now, outcome.at, counts=True),
            error=outcome.error,
            error_code=outcome.error_code,
        )
    if isinstance(outcome, Interrupted):
        if outcome.began and handler is not None and not handler.idempotent:
            return _failure(now, _INTERRUPTED, "interrupted")
        at = None if outcome.after is None else now + outcome.after
        return Ending(_waiting(now, at, counts=False), error_code="interrupted")
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


def _waiting(now: float, at: float | None, *, counts: bool) -> Step:
    """Return the step that gives a task back, not to be tried before ``at``; ``counts``: this was one attempt."""
    give_back = giving_back(now)

    def step(record: TaskRecord) -> TaskRecord:
        back = give_back(record)
        if back.status.is_terminal:
            return back
        if at is not None:
            back = back.changed(not_before=at)
        return back if counts else uncounted(back)

    return step
