"""What happened to a task, with the times at which it happened, in its record.

Owns the form of an entry: ``at``, ``status``, and of what else there was ``attempt``, ``stage``, ``error``,
``error_code``, ``not_before``. Refuses to grow: the creation and the last entries stay.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from task_tracker.records import TaskRecord, TaskStatus, compact

__all__ = ["MAX_ENTRIES", "noted"]

MAX_ENTRIES: Final = 64


def noted(
    before: TaskRecord, after: TaskRecord, *, error: str | None = None, error_code: str | None = None
) -> TaskRecord:
    """Return ``after`` with what distinguishes it from ``before`` in its history; itself if that is nothing of note.

    ``error`` and ``error_code`` are those of an attempt that is followed by another one; a record that has ended
    has its own.
    """
    if before.status is after.status and before.stage == after.stage:
        return after
    earlier, claim = after.history, _claim(before)
    entries = earlier or [{"at": after.created_at, "status": TaskStatus.PENDING}]
    if claim is not None and not (earlier and any(claim.items() <= entry.items() for entry in earlier)):
        entries.append(claim)
    entries.append(_entry(before, after, error, error_code))
    if len(entries) > MAX_ENTRIES:
        entries = [entries[0], *entries[1 - MAX_ENTRIES :]]
    return after.changed(history_json=compact(orjson.dumps(entries)))


def _entry(
    before: TaskRecord, after: TaskRecord, error: str | None, error_code: str | None
) -> dict[str, Any]:
    """Return the entry of a change, with what there is to say of it."""
    entry: dict[str, Any] = {"at": after.updated_at, "status": after.status}
    if before.attempt is not None:
        entry["attempt"] = before.attempt.count
    if after.status.is_terminal:
        error, error_code = after.error, after.error_code
    elif after.stage is not None:
        entry["stage"] = after.stage
    if error is not None:
        entry["error"] = error
    if error_code is not None:
        entry["error_code"] = error_code
    if after.not_before is not None and after.status is TaskStatus.PENDING:
        entry["not_before"] = after.not_before
    return entry


def _claim(record: TaskRecord) -> dict[str, Any] | None:
    """Return the entry of the claim under which ``record`` is held: stores write no history."""
    if record.started_at is None or record.attempt is None or record.attempt.count == 0:
        return None
    return {"at": record.started_at, "status": TaskStatus.RUNNING, "attempt": record.attempt.count}
