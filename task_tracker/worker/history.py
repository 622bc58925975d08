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
    entries = after.history or [{"at": after.created_at, "status": TaskStatus.PENDING.value}]
    claim = _claim(before)
    if claim is not None and not any(_is_same_claim(entry, claim) for entry in entries):
        entries.append(claim)
    entry: dict[str, Any] = {"at": after.updated_at, "status": after.status.value}
    ended = after.status.is_terminal
    details = {
        "attempt": before.attempt.count if before.attempt is not None else None,
        "stage": None if ended else after.stage,
        "error": after.error if ended else error,
        "error_code": after.error_code if ended else error_code,
        "not_before": after.not_before if after.status is TaskStatus.PENDING else None,
    }
    entry |= {name: value for name, value in details.items() if value is not None}
    entries.append(entry)
    if len(entries) > MAX_ENTRIES:
        entries = [entries[0], *entries[1 - MAX_ENTRIES :]]
    return after.changed(history_json=compact(orjson.dumps(entries)))


def _claim(record: TaskRecord) -> dict[str, Any] | None:
    """Return the entry of the claim under which ``record`` is held: stores write no history."""
    if record.started_at is None or record.attempt is None or record.attempt.count == 0:
        return None
    return {"at": record.started_at, "status": TaskStatus.RUNNING.value, "attempt": record.attempt.count}


def _is_same_claim(entry: dict[str, Any], claim: dict[str, Any]) -> bool:
    return all(entry.get(name) == value for name, value in claim.items())
