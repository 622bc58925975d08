"""An event loop of a worker's own, for processes and threads that have none: run to its end, within bounds.

``asyncio.run`` waits for threads of the loop's executor and for coroutines that refuse to be cancelled, however long
they take; a process that was told to stop must not. Owns the loop, its executor, and what becomes of what goes on.
Refuses to know what runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from task_tracker.call_threads import CallThreads
from task_tracker.worker.calls import cancel

__all__ = ["Alone", "run_alone"]

_log = logging.getLogger("task_tracker")

_P = ParamSpec("_P")
_T = TypeVar("_T")

UNWIND_SECONDS: Final = 1.0
"""What each kind of those that go on at the end is waited for."""
_THREADS: Final = 32


class Alone(NamedTuple):
    """How it ended. What goes on is a daemon thread, or a coroutine that never gets another turn."""

    value: Any
    coroutines: int
    threads: int


def run_alone(main: Coroutine[Any, Any, Any]) -> Alone:
    """Run ``main`` on a new event loop and close that. Raises what it raises, RuntimeError if a loop runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        main.close()
        raise RuntimeError("an event loop runs in this thread; await start() and stop() there")
    loop = asyncio.new_event_loop()
    threads = _DaemonExecutor(_THREADS)
    loop.set_default_executor(threads)
    coroutines = left = 0
    try:
        value = loop.run_until_complete(main)
    finally:
        try:
            coroutines, left = _wind_up(loop, threads)
        finally:
            loop.close()
    return Alone(value, coroutines, left)


def _wind_up(loop: asyncio.AbstractEventLoop, threads: _DaemonExecutor) -> tuple[int, int]:
    """Have everything end; return how many coroutines and threads go on."""
    coroutines = loop.run_until_complete(_cancel_all())
    loop.run_until_complete(_for_a_while(loop.create_task(loop.shutdown_asyncgens())))
    left = threads.wind_up(UNWIND_SECONDS)
    if coroutines or left:
        _log.warning(
            "%d coroutines and %d threads go on although they were told to stop; they are not waited for",
            coroutines,
            left,
            extra={"event": "not_waited_for", "coroutines": coroutines, "threads": left},
        )
        loop.set_exception_handler(lambda *_: None)  # that they are thrown away has been said
    return coroutines, left


async def _cancel_all() -> int:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        cancel(task)
    await _for_a_while(*tasks)
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            _log.error(
                "a task that was left at the end failed", exc_info=error, extra={"event": "left_failed"}
            )
    return sum(not task.done() for task in tasks)


async def _for_a_while(*tasks: asyncio.Task[Any]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=UNWIND_SECONDS)


class _DaemonExecutor(ThreadPoolExecutor):
    """What ``asyncio.to_thread`` uses, with threads that nobody waits for: the interpreter's exit neither."""

    def __init__(self, most: int) -> None:
        super().__init__(most)  # it starts threads when it is given calls, which it never is
        self._calls = CallThreads(most)
        self._under_way: set[Future[Any]] = set()

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Have ``fn`` called on a thread. Raises RuntimeError if there is none, or after the end."""
        future = self._calls.submit(partial(fn, *args, **kwargs))
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. Never waits."""
        self._calls.end()
        super().shutdown(wait=False, cancel_futures=cancel_futures)

    def wind_up(self, seconds: float) -> int:
        """Take back what has not begun; return how many calls still run after ``seconds``."""
        for future in list(self._under_way):
            self._calls.withdraw(future)
        left = wait(list(self._under_way), timeout=seconds).not_done
        self.shutdown()
        return len(left)
