"""What operations on a locked row have in common: find it, see who holds it, write it.

Owns the steps between a row and the rules of :mod:`task_tracker.transitions`. Refuses to begin or end a transaction.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from stores.postgres.database import Session
from stores.postgres.rows import Row, RowVersion, missing, said_since
from task_tracker.errors import LeaseHeld
from task_tracker.records import Attempt, TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Stored

__all__ = ["Evidence", "check_free", "given", "intent_of", "locked", "write_free", "write_kept"]

_HELD_BY_SOMEBODY = (TaskStatus.RUNNING, TaskStatus.CANCELLING)


class Evidence(NamedTuple):
    """What was seen of an expired lease: any sign of life changes it."""

    creation: str
    epoch: int
    token: str | None
    heartbeat_at: datetime | None

    @classmethod
    def of(cls, row: Row) -> Evidence:
        """Return what a row shows."""
        return cls(row.creation, row.epoch, row.token, row.heartbeat_at)


def locked(session: Session, key: TaskKey) -> Row:
    """Lock the row of a task until the transaction ends, and return it. Raises TaskNotFound."""
    return given(session.one("lock", key._asdict()), key)


def given(found: tuple[Any, ...] | None, key: TaskKey) -> Row:
    """Return what was found as a row. Raises TaskNotFound."""
    if found is None:
        raise missing(key)
    return Row(*found)


def check_free(row: Row, record: TaskRecord, *, claim: bool = False) -> None:
    """Raise LeaseHeld if somebody holds the task; to who wants to ``claim`` it, also if it merely runs."""
    if row.token is not None:
        holder = row.holder or ""
    elif claim and record.status in _HELD_BY_SOMEBODY:
        holder = record.attempt.holder if record.attempt is not None else ""
    else:
        return
    age = row.heartbeat_age
    heard = "" if age is None else f", last heard of {age:.0f} s ago"
    raise LeaseHeld(
        f"task {record.task_id} is held by {holder or 'nobody known'}{heard}; wait until it ends, is released "
        "or its lease has expired",
        holder=holder,
        heartbeat_age_seconds=age,
    )


def intent_of(record: TaskRecord) -> float | None:
    """Return when a cancel of the stored ``record`` was requested, None if it was not."""
    if record.status is not TaskStatus.CANCELLING:
        return None
    return record.updated_at if record.cancel_requested_at is None else record.cancel_requested_at


def write_kept(session: Session, record: TaskRecord, *, before: str) -> Stored:
    """Write the record of a locked row, whose lease goes on; ``before`` is the state it had."""
    return _written(record, session.one("keep", said_since(record, before)))


def write_free(
    session: Session,
    record: TaskRecord,
    attempt: Attempt,
    lease_seconds: float,
    *,
    before: str | None = None,
) -> Stored:
    """Write the record of a locked row, which nobody holds afterwards; ``attempt`` is the last one.

    ``before`` is the state it had; None if somebody had it, so that it is news in any case.
    """
    params = {
        **said_since(record, before),
        "epoch": attempt.epoch,
        "attempts": attempt.count,
        "lease_seconds": lease_seconds,
    }
    return _written(record, session.one("free", params))


def _written(record: TaskRecord, found: tuple[Any, ...] | None) -> Stored:
    assert found is not None, "the row is locked"
    return Stored(record, RowVersion(found[0]))
