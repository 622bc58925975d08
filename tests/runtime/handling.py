"""The handlers of the tests: registered by name, as real ones are, and chosen by the payload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from task_tracker import TaskRecord
from task_tracker.worker import BlockingTaskContext, TaskContext

BODIES: dict[str, Callable[..., Any]] = {}
"""What handlers and hooks do, by name; a test puts its own functions here."""
BEGUN: set[str] = set()
"""The names of those that have been called."""


async def on_loop(ctx: TaskContext, payload: str) -> Any:
    BEGUN.add(payload)
    return await BODIES[payload](ctx)


def in_thread(ctx: BlockingTaskContext, payload: str) -> Any:
    BEGUN.add(payload)
    return BODIES[payload](ctx)


async def hook_on_loop(ctx: TaskContext, record: TaskRecord) -> Any:
    return await BODIES["hook"](ctx, record)


def hook_in_thread(ctx: BlockingTaskContext, record: TaskRecord) -> Any:
    return BODIES["hook"](ctx, record)
