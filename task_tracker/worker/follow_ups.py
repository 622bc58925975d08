"""Follow-up tasks: what a handler submits while it works.

Owns what such a task takes from the one whose handler submits it: its owner, and where it says whence it comes. Refuses
to bind the two together: either ends as it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from task_tracker.records import TaskKey
from task_tracker.submitting import Order

__all__ = ["FollowUp", "follow_up"]


class FollowUp(TypedDict, total=False):
    """The options of ``ctx.submit``. They mean what they mean to :meth:`task_tracker.TaskTracker.submit`."""

    account_id: str
    user_id: str
    resource_id: str | None
    version: int | None
    dedupe: bool
    not_before: float | None
    priority: int | None
    timeout_seconds: float | None
    max_attempts: int | None
    task_id: str | None
    meta: Mapping[str, Any] | None
    private: object
    unregistered: bool


def follow_up(by: TaskKey, task_type: str, payload: object, options: FollowUp) -> Order:
    """Return the order of a task that the handler of ``by`` submits. Raises TypeError for an unknown option."""
    owner: dict[str, Any] = {"account_id": by.account_id, "user_id": by.user_id}
    order = Order(task_type=task_type, payload=payload, **(owner | dict(options)))
    if (order.account_id, order.user_id) != (by.account_id, by.user_id):
        return order  # another owner could not look the id up, and it may say more than he is to know
    return order._replace(submitted_by=by.task_id)
