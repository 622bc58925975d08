"""What is asked of a submit, and what comes of it, as values.

Owns the names of the arguments. Refuses to check or to store anything: :mod:`task_tracker.submitting` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from task_tracker.records import TaskRecord

__all__ = ["Again", "Order", "Submission"]


class Submission(NamedTuple):
    """What became of a submit: the task that is to do the work, and whether this call created it."""

    record: TaskRecord
    created: bool

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self.record.task_id


class Order(NamedTuple):
    """The arguments of :meth:`task_tracker.TaskTracker.submit`, which says what they mean."""

    task_type: str
    payload: object
    account_id: str
    user_id: str
    resource_id: str | None = None
    version: int | None = None
    dedupe: bool = False
    not_before: float | None = None
    priority: int | None = None
    timeout_seconds: float | None = None
    max_attempts: int | None = None
    task_id: str | None = None
    meta: Mapping[str, Any] | None = None
    private: object = None
    unregistered: bool = False
    submitted_by: str | None = None
    """The id of the task whose handler submits this one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Again:
    """What is different when the work of an ended task is submitted once more."""

    payload: object = None
    private: object = None
    version: int | None = None
    not_before: float | None = None
    unregistered: bool = False
