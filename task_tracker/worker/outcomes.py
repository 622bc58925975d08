"""How an attempt can end, as values, and what handlers raise or return to say so.

Owns the judgement: what a handler did, and why it was told to stop, give one outcome. Refuses to write records.
"""

from __future__ import annotations

import asyncio
import dataclasses
from enum import Enum
from typing import ClassVar, Final

from task_tracker.codec import check_text, encode_result
from task_tracker.records import JSON_NULL
from task_tracker.redaction import clean_text, redact_error
from task_tracker.sizes import Sizes, TooLarge, check_resource_id
from task_tracker.worker.excerpts import shortened

__all__ = [
    "Cancelled",
    "CancelledOutcome",
    "Done",
    "Fail",
    "Failed",
    "Interrupted",
    "LeftBehind",
    "Lost",
    "OutOfTime",
    "Outcome",
    "Raised",
    "Result",
    "Retry",
    "RetryAt",
    "Returned",
    "ShuttingDown",
    "Stop",
    "StopReason",
    "TimedOut",
    "as_done",
    "error_text",
    "judged",
]

LONGEST_CODE: Final = 100
LONGEST_WAIT_SECONDS: Final = 100 * 365 * 86400
"""Of ``Retry``: a longer one was given in another unit, and stores know no such time."""
_NO_MESSAGE: Final = "failed without a message"


# ---- what handlers say -----------------------------------------------------------------------------


class Retry(Exception):
    """Raised or returned: try again, no sooner than ``after`` seconds from now (None: as after any failure).

    Counts as an attempt like any other; handlers that are not idempotent are not tried again.
    """

    # Classes of a handler's own may forget to call __init__.
    after: float | None = None
    reason: object = "the handler asked to be tried again"

    def __init__(self, after: float | None = None, reason: object = reason) -> None:
        if after is not None and not 0 <= after <= LONGEST_WAIT_SECONDS:
            raise ValueError(f"after is {after!r:.80}; give seconds, {LONGEST_WAIT_SECONDS} at most, or None")
        super().__init__(reason)
        self.after = after
        self.reason = reason


class Fail(Exception):
    """Raised or returned: failed for good, whatever attempts are left.

    ``code`` is what programs look at: 100 characters at most, what is longer is cut, and credentials are masked.
    """

    # Classes of a handler's own may forget to call __init__.
    error: object = None
    code: str | None = None

    def __init__(self, error: object, code: str | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.code = None if code is None else shortened(clean_text(str(code)), LONGEST_CODE)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """Returned: a result, and the resource that the work has made."""

    value: object = None
    resource_id: str | None = None


class StopReason(Enum):
    """Why a handler was told to stop."""

    CANCEL = "cancel"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    LOST = "lost"


class Stop(BaseException):
    """Raised in a handler that is to stop. Like ``CancelledError`` it passes by ``except Exception``.

    Believed only of a handler that was told so: raised by itself it is a failure like others.
    """

    reason: ClassVar[StopReason | None] = None


class Cancelled(Stop):
    """Somebody wants the task cancelled."""

    reason = StopReason.CANCEL


class OutOfTime(Stop):
    """The attempt has taken longer than it may."""

    reason = StopReason.TIMEOUT


class ShuttingDown(Stop):
    """The worker ends."""

    reason = StopReason.SHUTDOWN


# ---- how attempts end --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """The handler returned a result."""

    name: ClassVar[str] = "done"
    result_json: bytes = JSON_NULL
    resource_id: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """It failed; ``error`` is redacted. ``may_retry``: another attempt may go better, after ``after`` seconds."""

    name: ClassVar[str] = "failed"
    error: str
    error_code: str | None = None
    may_retry: bool = False
    after: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RetryAt:
    """It failed and is tried again, not before Unix time ``at``."""

    name: ClassVar[str] = "retry"
    at: float
    error: str
    error_code: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class CancelledOutcome:
    """Somebody wanted it cancelled, and the handler has ended."""

    name: ClassVar[str] = "cancelled"


@dataclasses.dataclass(frozen=True, slots=True)
class TimedOut:
    """It took longer than ``seconds``. Never tried again by itself."""

    name: ClassVar[str] = "timed_out"
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Interrupted:
    """The worker was shut down, or could not begin. It does not use up an attempt.

    ``began``: handler code has run. ``ended``: none runs any more. ``after``: not to be tried again for so many
    seconds.
    """

    name: ClassVar[str] = "interrupted"
    began: bool = True
    ended: bool = True
    after: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Lost:
    """Somebody else may have the task: nothing was written."""

    name: ClassVar[str] = "lost"
    why: str


Outcome = Done | Failed | RetryAt | CancelledOutcome | TimedOut | Interrupted | Lost


# ---- what a handler did --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Returned:
    """It returned."""

    value: object


@dataclasses.dataclass(frozen=True, slots=True)
class Raised:
    """It raised. ``began`` is False if no line of it was run."""

    error: BaseException
    began: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class LeftBehind:
    """It was told to stop and goes on; nobody waits for it any more."""


def judged(
    did: Returned | Raised | LeftBehind,
    reason: StopReason | None,
    timeout_seconds: float,
    *,
    seen: StopReason | None = None,
    sizes: Sizes = Sizes(),  # noqa: B008  # frozen
) -> Outcome:
    """Return the outcome of an attempt whose handler ``did`` this and was told to stop for ``reason``, or was not.

    A handler that returns has done its work, unless it is out of time or has lost its lease. ``Fail`` is believed
    whenever it comes. Whatever else is raised by one that was told to stop is how it stopped. ``seen`` is what its
    signal says: a thread may have looked there before the loop told it, and raised accordingly. A result beyond
    ``sizes`` is a failure.
    """
    error = _leaf(did.error) if isinstance(did, Raised) else None
    if reason is None and isinstance(error, Stop) and error.reason is seen:
        reason = seen
    if reason is StopReason.LOST:
        return Lost("the lease was lost while the handler ran")
    if reason is StopReason.TIMEOUT:
        return TimedOut(timeout_seconds)
    if isinstance(did, Returned):
        said = did.value
        # Not isinstance: that asks what an object says of its class, which may be users' code.
        if issubclass(type(said), (Retry, Fail)):
            assert isinstance(said, (Retry, Fail)), "its class says so"
            return _judged_error(said, reason)
        return _done(said, sizes)
    if isinstance(did, LeftBehind):
        return Interrupted(ended=False)
    if not did.began:
        return CancelledOutcome() if reason is StopReason.CANCEL else Interrupted(began=False)
    return _judged_error(_leaf(did.error), reason)


def _judged_error(error: BaseException, reason: StopReason | None) -> Outcome:
    if isinstance(error, Fail):
        return Failed(error_text(error.error), error.code)
    if reason is StopReason.CANCEL:
        return CancelledOutcome()
    if reason is StopReason.SHUTDOWN:
        return Interrupted()
    if isinstance(error, Retry):
        return Failed(error_text(error.reason), may_retry=True, after=error.after)
    if isinstance(error, Stop):
        said = f"the handler raised {type(error).__name__} although nobody had told it to stop; raise Retry or Fail"
        return Failed(said, "unasked_stop", may_retry=True)
    if isinstance(error, asyncio.CancelledError):
        return Failed(
            "something that the handler waited for was cancelled", "cancelled_within", may_retry=True
        )
    return Failed(error_text(error), may_retry=True)


def _done(value: object, sizes: Sizes) -> Outcome:
    try:
        resource = None
        if isinstance(value, Result):
            resource, value = value.resource_id, value.value
        if resource is not None:
            resource = check_resource_id(check_text(resource, "resource_id"))
        return Done(sizes.check_result(encode_result(value, "result")), resource)
    except TooLarge as error:
        return Failed(error_text(str(error)), "result_too_large")
    except BaseException as error:  # noqa: BLE001  # whatever a value does when it is looked at
        return Failed(error_text(error), "unserializable_result")


def as_done(value: object, sizes: Sizes) -> Done:
    """Return what is stored of a result. Raises Fail for one that cannot be."""
    outcome = _done(value, sizes)
    if isinstance(outcome, Failed):
        raise Fail(outcome.error, outcome.error_code)
    assert isinstance(outcome, Done), "a result is stored or it is not"
    return outcome


def _leaf(error: BaseException) -> BaseException:
    """Return what a group of errors is about: what says most about how the handler ended."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_leaf(inner) for inner in error.exceptions]
    for kinds in (Fail, Exception):
        for leaf in leaves:
            if isinstance(leaf, kinds) and not isinstance(leaf, Retry):
                return leaf
    return leaves[0]


def error_text(error: object) -> str:
    """Return what may be kept of an error of users' code, whatever looking at it does."""
    try:
        return (redact_error(error) if error is not None else "") or _NO_MESSAGE
    except BaseException as problem:  # noqa: BLE001  # a __str__ that calls sys.exit() must not end the worker
        return f"{type(error).__name__} (no text: its __str__ raised {type(problem).__name__})"
