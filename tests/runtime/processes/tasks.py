"""Handlers of worker processes: they write down what they do, and wait for files that a test makes.

Each line of the log is written at once, by a process that may be killed at any moment. Imports little: dozens of
processes import it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from task_tracker import HandlerRegistry, TaskRecord

__all__ = ["DIRECTORY", "Line", "go", "lines", "registry", "wait_go"]

DIRECTORY = "TASKS_OF_A_TEST"
"""The environment variable with the directory of the log."""
PAUSE_SECONDS = 0.002
PATIENCE_SECONDS = 60.0

Line = dict[str, Any]


def _directory() -> Path:
    return Path(os.environ[DIRECTORY])


def write(ctx: Any, what: str, **more: Any) -> None:
    line = {
        "what": what,
        "task": ctx.key.task_id,
        "attempt": ctx.attempt_count,
        "fence": list(ctx.fence),
        "pid": os.getpid(),
        "at": time.monotonic(),
        **more,
    }
    file = os.open(_directory() / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def lines(directory: Path, what: str | None = None) -> list[Line]:
    """What all handlers have written; ``what`` chooses."""
    log = directory / "log"
    if not log.exists():
        return []
    found = [json.loads(text) for text in log.read_text().splitlines(keepends=True) if text.endswith("\n")]
    return [line for line in found if what in (None, line["what"])]


def go(directory: Path, task_id: str) -> None:
    """Let a handler go on."""
    (directory / f"go-{task_id}").touch()


def _may_go(task_id: str) -> bool:
    return (_directory() / f"go-{task_id}").exists()


async def wait_go(ctx: Any) -> None:
    """Wait on the loop until the task may go on."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _may_go(ctx.key.task_id):
        assert time.monotonic() < deadline, "nobody let it go on"
        await asyncio.sleep(PAUSE_SECONDS)


async def quick(ctx: Any, payload: Any) -> Any:
    write(ctx, "begin")
    write(ctx, "end")
    return payload


async def hold(ctx: Any, payload: Any) -> Any:
    """Wait to be let go on."""
    write(ctx, "begin")
    try:
        await wait_go(ctx)
    except asyncio.CancelledError:
        write(ctx, "stopped")
        raise
    write(ctx, "end")
    return payload


async def block(ctx: Any, payload: Any) -> Any:
    """Keep the loop from running until it may go on."""
    write(ctx, "begin")
    _wait_deaf(ctx)
    write(ctx, "end")
    return payload


def hold_thread(ctx: Any, payload: Any) -> Any:
    write(ctx, "begin")
    _wait_deaf(ctx)
    write(ctx, "end")
    return payload


def _wait_deaf(ctx: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _may_go(ctx.key.task_id):
        assert time.monotonic() < deadline, "nobody let it go on"
        time.sleep(PAUSE_SECONDS)


async def crash(ctx: Any, payload: Any) -> Any:
    """Take the whole process along."""
    write(ctx, "begin")
    os._exit(9)


def mark_failed(ctx: Any, record: TaskRecord) -> None:
    write(ctx, "on_failure", code=record.error_code)


def registry() -> HandlerRegistry:
    made = HandlerRegistry()
    for name in ("quick", "hold", "block", "hold_thread"):
        made.register(
            name,
            handler=f"{__name__}:{name}",
            on_failure=f"{__name__}:mark_failed",
            cleanup_seconds=1.0,
        )
    made.register("again", handler=f"{__name__}:hold", idempotent=True, max_attempts=5, retry_seconds=0.01)
    made.register(
        "crash",
        handler=f"{__name__}:crash",
        idempotent=True,
        max_attempts=3,
        retry_seconds=0.01,
        on_failure=f"{__name__}:mark_failed",
    )
    return made
