"""Handlers of the chaos, and the place of their own that they write to: one ledger per task, fenced by itself.

Owns what handlers do when they take the fence seriously: under a lock they look who wrote last, and refuse
themselves if that was a later attempt. What they write down is what :mod:`tests.runtime.processes.judging` reads.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from task_tracker import HandlerRegistry, TaskRecord
from task_tracker.worker.outcomes import Fail
from tests.runtime.processes.tasks import DIRECTORY, write

__all__ = ["effects", "registry"]

STEPS = 3


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


async def work(ctx: Any, payload: Any) -> Any:
    """Some steps, each with an effect and a checkpoint, and an end of the kind that was ordered."""
    write(ctx, "begin")
    for step in range(STEPS):
        if not _effect(ctx, step):
            write(ctx, "refused")
            raise Fail("a later attempt has written here")
        await ctx.checkpoint({"step": step})
        await asyncio.sleep(payload["pause_seconds"])
    return _end(ctx, payload)


def work_in_thread(ctx: Any, payload: Any) -> Any:
    """The same, in a thread."""
    write(ctx, "begin")
    for step in range(STEPS):
        if not _effect(ctx, step):
            write(ctx, "refused")
            raise Fail("a later attempt has written here")
        ctx.checkpoint({"step": step})
    return _end(ctx, payload)


def _end(ctx: Any, payload: Any) -> Any:
    if payload["fails"]:
        raise ValueError("as ordered")
    write(ctx, "end")
    return {"fence": list(ctx.fence)}


def mark_failed(ctx: Any, record: TaskRecord) -> None:
    write(ctx, "on_failure", code=record.error_code)


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
