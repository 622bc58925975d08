"""The lifecycle as pure functions: record and event in, record out, or an error.

Owns every rule about states; stores, tracker, worker and reconciler call these and nobody has rules of
his own. Refuses to read clocks or files. A function that finds nothing to change returns the very record
it was given, so that callers can skip the write.

::

    pending ────> running ──> cancelling
      │  ^           │            │
      │  └─(release)─┤            │
      └──────────────┴────────────┴──> completed | failed | cancelled   (final; the first one wins)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import orjson

from task_tracker.errors import InvalidTransition
from task_tracker.records import FREE_TEXTS, FREE_VALUES, Attempt, TaskKey, TaskRecord, TaskStatus, compact
from task_tracker.redaction import redact_text, redact_value

__all__ = [
    "abandoned",
    "blocks_duplicates",
    "cancellation_requested",
    "cancelled",
    "carried_on",
    "check_claimable",
    "check_commit",
    "check_deletable",
    "check_end",
    "check_not_final",
    "check_owner_deletable",
    "check_release",
    "claim_order",
    "claimed",
    "completed",
    "expired",
    "failed",
    "first_attempt",
    "given_back",
    "never_started",
    "next_attempt",
    "progressed",
    "released",
    "request_cancel",
    "started",
    "under_intent",
]

LAST_EPOCH: Final = 10**15
"""No store counts further: claims of thirty thousand years, one each millisecond."""
_FULL_PROGRESS: Final = 100.0
_FREE: Final = (*(f"{name}_json" for name in FREE_VALUES), "extra_json", *FREE_TEXTS)
_READ_FREE: Final = attrgetter(*_FREE)


def started(record: TaskRecord, now: float, *, stage: str | None = None) -> TaskRecord:
    """Pending becomes running; running stays (and takes the stage). Raises InvalidTransition."""
    if record.status not in (TaskStatus.PENDING, TaskStatus.RUNNING):
        raise _illegal(record, "start")
    if record.status is TaskStatus.RUNNING and stage in (None, record.stage):
        return record
    stage = stage if stage is not None else record.stage
    return _at(record, now, {"status": TaskStatus.RUNNING, "stage": stage})


def progressed(
    record: TaskRecord,
    now: float,
    *,
    stage: str | None = None,
    progress: float | None = None,
    message: str | None = None,
) -> TaskRecord:
    """Take over what is given; the state stays. Any active state will do. Raises InvalidTransition."""
    if not record.status.is_active:
        raise _illegal(record, "update")
    changes: dict[str, Any] = {"stage": stage, "progress": progress, "message": message}
    changes = {name: value for name, value in changes.items() if value not in (None, getattr(record, name))}
    return _at(record, now, changes) if changes else record


def completed(
    record: TaskRecord, now: float, result_json: bytes, *, resource_id: str | None = None
) -> TaskRecord:
    """Any active state becomes completed; the same completion again changes nothing.

    ``resource_id`` replaces the record's if given. Raises InvalidTransition.
    """
    result_json = _masked(result_json)
    resource_id = record.resource_id if resource_id is None else resource_id
    if record.status is TaskStatus.COMPLETED:
        if resource_id == record.resource_id and _same_json(result_json, record.result_json):
            return record
        raise _illegal(record, "complete (with another outcome)")
    if not record.status.is_active:
        raise _illegal(record, "complete")
    return _ended(
        record,
        now,
        TaskStatus.COMPLETED,
        {
            "result_json": result_json,
            "resource_id": resource_id,
            "progress": _FULL_PROGRESS if record.progress is not None else None,
            "error": None,
        },
    )


def failed(record: TaskRecord, now: float, error: str, *, error_code: str | None = None) -> TaskRecord:
    """Any active state becomes failed; the same failure again changes nothing.

    ``error`` is redacted already (:func:`task_tracker.redaction.redact_error`). Raises InvalidTransition.
    """
    if record.status is TaskStatus.FAILED and (record.error, record.error_code) == (error, error_code):
        return record
    if not record.status.is_active:
        raise _illegal(record, "fail")
    return _ended(record, now, TaskStatus.FAILED, {"error": error, "error_code": error_code})


def request_cancel(record: TaskRecord, now: float, *, held: bool = False) -> TaskRecord:
    """Pending becomes cancelled, running becomes cancelling; cancelling and cancelled stay.

    While somebody holds it, a pending one becomes cancelling as well: its holder may be writing just now.
    Raises InvalidTransition when the task has ended otherwise.
    """
    if record.status is TaskStatus.PENDING and not held:
        return cancelled(record, now)
    if record.status in (TaskStatus.PENDING, TaskStatus.RUNNING):
        return _at(record, now, {"status": TaskStatus.CANCELLING, "cancel_requested_at": now})
    if cancellation_requested(record):
        return record
    raise _illegal(record, "cancel")


def cancellation_requested(record: TaskRecord) -> bool:
    """Tell whether the work on a task is to stop, or has stopped, because somebody asked for it."""
    return record.status in (TaskStatus.CANCELLING, TaskStatus.CANCELLED)


def cancelled(record: TaskRecord, now: float) -> TaskRecord:
    """Any active state becomes cancelled: the work has really ended. Raises InvalidTransition."""
    if record.status is TaskStatus.CANCELLED:
        return record
    if not record.status.is_active:
        raise _illegal(record, "mark as cancelled")
    return _ended(record, now, TaskStatus.CANCELLED, {})


def released(record: TaskRecord, now: float) -> TaskRecord:
    """Running goes back to pending, for another holder; pending stays. Raises InvalidTransition."""
    if record.status is TaskStatus.PENDING:
        return record
    if record.status is not TaskStatus.RUNNING:
        raise _illegal(record, "release")
    return _at(record, now, {"status": TaskStatus.PENDING})


def claimed(record: TaskRecord, now: float, attempt: Attempt) -> TaskRecord:
    """Pending becomes running, under ``attempt``. Raises InvalidTransition."""
    if record.status is not TaskStatus.PENDING:
        raise _illegal(record, "claim")
    started_at = now if record.handler_version is not None else record.started_at
    return _at(record, now, {"status": TaskStatus.RUNNING, "attempt": attempt, "started_at": started_at})


def abandoned(record: TaskRecord, now: float, *, cancel_requested: bool = False) -> TaskRecord:
    """A task whose holder has stopped: failed as ``holder_lost``, or cancelled if that was wanted anyway.

    Raises InvalidTransition for one that has ended.
    """
    if record.status is TaskStatus.CANCELLING or (cancel_requested and record.status.is_active):
        return cancelled(record, now)
    # Who that was is in the attempt; the error is shown to everybody.
    return failed(record, now, "the process that worked on it stopped", error_code="holder_lost")


def never_started(record: TaskRecord, now: float) -> TaskRecord:
    """A pending task that nobody came for: failed as ``never_started``. Raises InvalidTransition."""
    if record.status is not TaskStatus.PENDING:
        raise _illegal(record, "give up")
    return failed(record, now, "nobody started it in time", error_code="never_started")


# ---- writing under a lease -----------------------------------------------------------------------------


def next_attempt(
    last: Attempt | None, token: str, *, above: int = 0, holder: str | None = None, counted: bool = False
) -> Attempt:
    """Return the attempt that follows ``last``: an epoch that nobody had, and one more if it is counted.

    ``above`` is the highest epoch that was used up without being written. Without ``holder`` the last one's
    name stays: somebody writes who holds nothing.
    """
    if last is None:
        last = Attempt(0, "", "", 0)
    return Attempt(
        max(last.epoch, above) + 1,
        token,
        last.holder if holder is None else holder,
        last.count + 1 if counted else last.count,
    )


def first_attempt(token: str, said: Attempt | None = None) -> Attempt:
    """Return the attempt of a record that is created: nobody has claimed it but in the store that ``said`` is from."""
    last = carried_on(None, said)
    if last is None:
        return Attempt(0, token, "", 0)
    return Attempt(last.epoch, token, last.holder, last.count)


def carried_on(stored: Attempt | None, said: Attempt | None) -> Attempt | None:
    """Return what a record that is taken in goes on from: what was ``said``, unless the ``stored`` one is beyond it."""
    if said is None or not (0 <= said.epoch <= LAST_EPOCH and 0 <= said.count <= LAST_EPOCH):
        return stored
    return said if stored is None or said.epoch > stored.epoch else stored


def claim_order(record: TaskRecord) -> tuple[int, float, str]:
    """Return what waiting tasks are sorted by: highest priority first (none is 0), then oldest."""
    return -(record.priority or 0), record.created_at, record.task_id


def check_claimable(record: TaskRecord) -> None:
    """Raise InvalidTransition for what can never be claimed: it has ended, or nobody here knows its state."""
    if not record.status.is_active:
        raise _illegal(record, "claim")


def check_commit(record: TaskRecord, key: TaskKey) -> None:
    """Raise InvalidTransition unless ``record`` may be committed under a lease of ``key``: it is active."""
    _check_key(record, key)
    if record.status.is_terminal:
        raise InvalidTransition(
            f"task {record.task_id} is {record.status.value} in this commit; end() writes that and gives up the lease",
            task_ids=[record.task_id],
        )
    if not record.status.is_active:
        raise _illegal(record, "commit")


def check_release(record: TaskRecord, key: TaskKey) -> None:
    """Raise InvalidTransition unless ``record`` may be released under a lease of ``key``: it is pending."""
    _check_key(record, key)
    if record.status is not TaskStatus.PENDING:
        raise InvalidTransition(
            f"task {record.task_id} is {record.status.value} in this release; only a pending record is given back "
            "(transitions.released), an ended one goes to end()",
            task_ids=[record.task_id],
        )


def check_end(record: TaskRecord, key: TaskKey) -> None:
    """Raise InvalidTransition unless ``record`` may end a lease of ``key``: it is terminal."""
    _check_key(record, key)
    if not record.status.is_terminal:
        raise InvalidTransition(
            f"task {record.task_id} is {record.status.value} in this end; commit() writes that, or release()",
            task_ids=[record.task_id],
        )


def check_not_final(record: TaskRecord) -> None:
    """Raise InvalidTransition if the stored ``record`` has ended: nothing changes it any more."""
    if record.status.is_terminal:
        raise _illegal(record, "update")


def under_intent(record: TaskRecord, cancel_requested_at: float | None) -> TaskRecord:
    """What a commit writes when a cancel was requested at that time (None: it was not).

    An active record is cancelling, whatever its holder had read before; an ended one stays as it is.
    """
    if cancel_requested_at is None or not record.status.is_active:
        return record
    if record.status is TaskStatus.CANCELLING and record.cancel_requested_at is not None:
        return record
    changes = {"status": TaskStatus.CANCELLING, "cancel_requested_at": cancel_requested_at}
    return _at(record, cancel_requested_at, changes)


def given_back(record: TaskRecord, cancel_requested_at: float | None) -> TaskRecord:
    """What a release of a pending ``record`` writes: it ends cancelled if a cancel was requested (None: it was not)."""
    if cancel_requested_at is None:
        return record
    if record.cancel_requested_at is None:
        record = record.changed(cancel_requested_at=cancel_requested_at)
    return cancelled(record, max(record.updated_at, cancel_requested_at))


def _check_key(record: TaskRecord, key: TaskKey) -> None:
    if record.key != key:
        raise InvalidTransition(
            f"the lease is for task {key.task_id}, the record is that of task {record.task_id}; "
            "write each task under its own lease",
            task_ids=[record.task_id],
        )


def blocks_duplicates(status: TaskStatus, completed_at: float | None = None) -> bool:
    """Tell whether a task in this state keeps another one of its kind from being created.

    Active ones do. So does a state of a newer version unless ``completed_at`` says that it has ended: what
    cannot be understood is not "no running task".
    """
    return status.is_active or (not status.is_known and completed_at is None)


def check_deletable(record: TaskRecord) -> None:
    """Raise InvalidTransition unless the task has ended: active tasks are never deleted."""
    if not record.status.is_terminal:
        raise InvalidTransition(
            f"task {record.task_id} is {record.status.value}; cancel it or let it end before deleting it",
            task_ids=[record.task_id],
        )


def check_owner_deletable(account_id: str, user_id: str, active_ids: Sequence[str]) -> None:
    """Raise InvalidTransition naming the tasks of an owner that have not ended, if there are any."""
    if active_ids:
        named = ", ".join(active_ids[:10]) + (", ..." if len(active_ids) > 10 else "")
        raise InvalidTransition(
            f"{account_id}/{user_id} has {len(active_ids)} tasks that have not ended ({named}); "
            "cancel them or let them end, then delete the user's tasks",
            task_ids=active_ids,
        )


def expired(status: TaskStatus, updated_at: float, cutoffs: Mapping[TaskStatus, float]) -> bool:
    """Tell whether retention may delete a task: terminal, and not touched after its state's cut-off.

    ``cutoffs`` maps terminal states to Unix seconds; a state that is not in it is kept for ever.
    """
    return status.is_terminal and status in cutoffs and updated_at <= cutoffs[status]


def _at(record: TaskRecord, now: float, changes: dict[str, Any]) -> TaskRecord:
    """Return the record with ``changes``, which are added to here: the caller has made them for this."""
    # A clock that stepped back must not make a record look older than it was.
    before = record.updated_at
    changes["updated_at"] = now if now > before else before
    return record.changed(**changes)


def _ended(record: TaskRecord, now: float, status: TaskStatus, changes: dict[str, Any]) -> TaskRecord:
    """The one way into a terminal state, with ``changes``: credentials go, a stage takes the state's name."""
    if record.stage is not None:
        changes["stage"] = status.value
    if record.started_at is not None:
        changes["completed_at"] = now
    # Files of other writers were redacted by other rules, or by none.
    for name, value in zip(_FREE, _READ_FREE(record), strict=True):
        if value and name not in changes:
            changes[name] = _masked(value) if isinstance(value, bytes) else redact_text(value)
    changes["status"], changes["private_json"] = status, None
    return _at(record, now, changes)


def _masked(encoded: bytes) -> bytes:
    """Mask the values of sensitive keys in encoded JSON; the same bytes when there are none."""
    if b'":' not in encoded:
        return encoded  # no object in it, so no key
    value = orjson.loads(encoded)
    masked = redact_value(value)
    return encoded if masked is value else compact(orjson.dumps(masked))


def _same_json(one: bytes, other: bytes) -> bool:
    """Tell whether two encoded values are the same, whatever the order of their keys."""
    return one == other or _sorted(one) == _sorted(other)


def _sorted(encoded: bytes) -> bytes:
    return orjson.dumps(orjson.loads(encoded), option=orjson.OPT_SORT_KEYS)


def _illegal(record: TaskRecord, verb: str) -> InvalidTransition:
    if record.status.is_terminal:
        advice = "its first end is final; leave it so, or create a new task"
    elif record.status.is_active:
        advice = "it is to stop; end it with mark_cancelled, complete or fail"
    else:
        advice = "this version does not know that state; upgrade before acting on it"
    return InvalidTransition(
        f"cannot {verb} task {record.task_id}, which is {record.status.value}: {advice}",
        task_ids=[record.task_id],
    )
