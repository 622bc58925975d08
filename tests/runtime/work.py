"""Handlers for the tests of workers, and how a test sees and steers them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from task_tracker import HandlerRegistry, TaskRecord
from task_tracker.store import Lease
from tests.core.support import PATIENCE

__all__ = ["WORK", "Work", "registry", "until", "wait_for"]


class Work:
    """What handlers did, and what they wait for. One for all tests; each begins with :meth:`begin`."""

    def begin(self) -> None:
        self.runs: list[tuple[str, int]] = []
        """Task id and attempt, in the order in which handlers began."""
        self.failures: list[tuple[str, str | None, tuple[int, int]]] = []
        """What ``on_failure`` was told: task id, error code, fence."""
        self.ended: list[str] = []
        self.stopped: list[tuple[str, str]] = []
        """Handlers that were told to stop, with the name of what they were told."""
        self.most_at_once = 0
        self.at_once = 0
        self.fences: list[tuple[int, int]] = []
        self.changed = threading.Condition()
        self._open: set[str] = set()

    def enter(self, ctx: Any) -> str:
        with self.changed:
            self.runs.append((ctx.key.task_id, ctx.attempt_count))
            self.fences.append(ctx.fence)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.changed.notify_all()
        return str(ctx.key.task_id)

    def leave(self, ctx: Any) -> None:
        with self.changed:
            self.at_once -= 1
            self.ended.append(ctx.key.task_id)
            self.changed.notify_all()

    def is_open(self, task_id: str) -> bool:
        return task_id in self._open or "*" in self._open

    def open(self, task_id: str = "*") -> None:
        """Let the handler of a task, or all, go on."""
        with self.changed:
            self._open.add(task_id)
            self.changed.notify_all()

    def wait_open(self, task_id: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.is_open(task_id), PATIENCE), "nobody let it go on"

    def wait_begun(self, number: int = 1) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.runs) >= number, PATIENCE), "no handler began"

    @property
    def begun(self) -> list[str]:
        return [task_id for task_id, _ in self.runs]


WORK = Work()


async def until(condition: Callable[[], object], what: str = "it never came to that") -> None:
    """Wait on the loop for a condition, not for a time."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0.001)


def wait_for(condition: Callable[[], object], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Wait for a condition in a thread, doing ``meanwhile`` again and again."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        meanwhile()
        time.sleep(0.001)


async def hold_then_block(ctx: Any, payload: Any) -> Any:
    """Wait to be let go on, then keep the loop from running until the test says so."""
    task_id = WORK.enter(ctx)
    await until(lambda: WORK.is_open(task_id), "nobody let it go on")
    WORK.open("it blocks")
    WORK.wait_open("the loop")
    WORK.leave(ctx)
    return payload


async def note(ctx: Any, payload: Any) -> Any:
    """Do nothing, and be seen doing it."""
    WORK.enter(ctx)
    WORK.leave(ctx)
    return payload


async def hold(ctx: Any, payload: Any) -> Any:
    """Wait until the test lets it go on, or it is told to stop."""
    task_id = WORK.enter(ctx)
    try:
        await until(lambda: WORK.is_open(task_id), "nobody let it go on")
    except BaseException as stop:
        WORK.stopped.append((task_id, type(stop).__name__))
        raise
    finally:
        WORK.leave(ctx)
    return payload


async def block(ctx: Any, payload: Any) -> Any:
    """Keep the loop from running, as ``time.sleep`` in a coroutine does."""
    WORK.wait_open(WORK.enter(ctx))
    WORK.leave(ctx)
    return payload


def hold_thread(ctx: Any, payload: Any) -> Any:
    """Wait in a thread, deaf to everything."""
    WORK.wait_open(WORK.enter(ctx))
    WORK.leave(ctx)
    return payload


async def boom(ctx: Any, payload: Any) -> Any:
    WORK.enter(ctx)
    WORK.leave(ctx)
    raise ValueError("it broke")


async def tell_failure(ctx: Any, record: TaskRecord) -> None:
    WORK.failures.append((record.task_id, record.error_code, ctx.fence))


def registry(**changes: Any) -> HandlerRegistry:
    """All of them, under their names; ``changes`` holds what is different for all."""
    made = HandlerRegistry()
    for name in ("note", "hold", "block", "hold_thread", "boom"):
        options = {"on_failure": f"{__name__}:tell_failure", "cleanup_seconds": 0.2, **changes}
        made.register(name, handler=f"{__name__}:{name}", **options)
    return made


def stale(lease: Lease) -> Lease:
    """The same lease in the hands of a process that has not heard of its loss."""
    return Lease(lease.key, lease.created_at, lease.epoch, lease.token, lease.holder, lease.attempt_count)
