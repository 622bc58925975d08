"""Handlers of the chaos, and the place of their own that they write to: one ledger per task, fenced by itself.

Owns what handlers do when they take the fence seriously: under a lock they look who wrote last, and refuse
themselves if that was a later attempt. What they write down is what :mod:`tests.runtime.processes.judging` reads.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from task_tracker import HandlerRegistry, TaskRecord
from task_tracker.worker.hooks import Event
from task_tracker.worker.outcomes import Fail
from tests.runtime.processes.journal import tell
from tests.runtime.processes.tasks import DIRECTORY

__all__ = ["effects", "hear", "registry"]

STEPS = 3
TOLD = ("attempt_started", "attempt_ended", "rescued")


def _effect(ctx: Any, step: int) -> bool:
    """Write an effect unless a later attempt has written one; False if so."""
    path = Path(os.environ[DIRECTORY]) / f"ledger-{ctx.key.task_id}"
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = _parsed(os.pread(file, 1 << 20, 0))
        fence = list(ctx.fence)
        if before and before[-1][0] > fence:
            return False
        os.write(file, json.dumps([fence, step]).encode() + b"\n")
    finally:
        os.close(file)
    return True


def _parsed(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines(keepends=True) if line.endswith(b"\n")]


def effects(directory: Path, task_id: str) -> list[Any]:
    """What was written for a task: fence and step, in order."""
    path = directory / f"ledger-{task_id}"
    return _parsed(path.read_bytes()) if path.exists() else []


def write(ctx: Any, what: str, **more: Any) -> None:
    tell(what, task=ctx.key.task_id, fence=list(ctx.fence), **more)


def _begin(ctx: Any) -> int:
    """Write it down, and return the step to go on with."""
    first: int = (ctx.last_checkpoint or {"steps": 0})["steps"]
    write(ctx, "begin", first=first)
    return first


def _step(ctx: Any, step: int) -> None:
    if not _effect(ctx, step):
        write(ctx, "refused")
        raise Fail("a later attempt has written here")


def _end(ctx: Any, payload: Any) -> Any:
    if payload["fails"]:
        raise ValueError("as ordered")
    write(ctx, "worked")
    return {"fence": list(ctx.fence)}


async def work(ctx: Any, payload: Any) -> Any:
    """Some steps, each with an effect and a checkpoint, and an end of the kind that was ordered."""
    time.sleep(payload["block_seconds"])  # noqa: ASYNC251  # as careless handlers do
    for step in range(_begin(ctx), STEPS):
        _step(ctx, step)
        await ctx.checkpoint({"steps": step + 1})
        write(ctx, "checkpoint", steps=step + 1)
        await asyncio.sleep(payload["pause_seconds"])
    return _end(ctx, payload)


def work_in_thread(ctx: Any, payload: Any) -> Any:
    """The same, in a thread."""
    for step in range(_begin(ctx), STEPS):
        _step(ctx, step)
        ctx.checkpoint({"steps": step + 1})
        write(ctx, "checkpoint", steps=step + 1)
    return _end(ctx, payload)


def mark_failed(ctx: Any, record: TaskRecord) -> None:
    """An effect like others: one that comes late is refused."""
    write(ctx, "on_failure", code=record.error_code)
    if not _effect(ctx, STEPS):
        write(ctx, "refused")


def hear(event: Event) -> None:
    """Write down what a worker tells of its tasks."""
    if event.name in TOLD and event.record is not None:
        record = event.record
        epoch = record.attempt.epoch if record.attempt is not None else 0
        tell(event.name, task=record.task_id, epoch=epoch, outcome=event.facts.get("outcome"))


def registry() -> HandlerRegistry:
    made = HandlerRegistry()
    for name, handler in (("once", "work"), ("single", "work"), ("thread", "work_in_thread")):
        made.register(
            name, handler=f"{__name__}:{handler}", on_failure=f"{__name__}:mark_failed", cleanup_seconds=1
        )
    made.register(
        "often",
        handler=f"{__name__}:work",
        on_failure=f"{__name__}:mark_failed",
        idempotent=True,
        max_attempts=4,
        retry_seconds=0.01,
        max_running=6,
    )
    return made
