"""A handler that runs: a coroutine on the loop, or a function in a thread of its own.

Owns how each is started, told to stop, and noticed when it has really ended. Refuses to judge what it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import types
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from task_tracker.worker.calls import Calls, Kept, cancel
from task_tracker.worker.outcomes import Raised, Returned, StopReason

__all__ = ["CoroutineRun", "Did", "HandlerRun", "ThreadRun", "is_async"]

Did = Returned | Raised


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether a call of ``function`` gives a coroutine."""
    if type(function) is types.FunctionType and function.__code__.co_flags & inspect.CO_COROUTINE:
        return True  # as most are; the rest takes ten times as long
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return True
    # An object may have an async __call__. Of a class that is what its objects do, not what calling it does.
    return inspect.iscoroutinefunction(getattr(type(function), "__call__", None))  # noqa: B004


class HandlerRun(ABC):
    """What a run looks like to the executor. Used on the loop only."""

    def __init__(self) -> None:
        self.did: Did | None = None
        """Set once no line of the handler runs any more."""
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Did] | None = None
        self._on_end: Callable[[], None] | None = None

    @property
    def ended(self) -> asyncio.Future[Did]:
        """Has :attr:`did` as its result once that is set. Never an exception, and nobody cancels it."""
        if self._ended is None:  # most are never asked for it
            self._ended = self._loop.create_future()
            if self.did is not None:
                self._ended.set_result(self.did)
        return self._ended

    def tell(self, on_end: Callable[[], None]) -> None:
        """Have ``on_end`` called as soon as it has ended, which it has not yet: in its last step, not a turn later."""
        self._on_end = on_end

    def _end(self, did: Did) -> None:
        self.did = did
        if self._ended is not None:
            self._ended.set_result(did)
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    @abstractmethod
    def stop(self) -> None:
        """Have the handler notice that its signal is set. Again each time that the reason grew stronger."""

    def patience_seconds(self, reason: StopReason, cleanup_seconds: float) -> float | None:
        """How long it is waited for once it was told to stop for ``reason``; None: until its timeout."""
        return None if reason is StopReason.CANCEL else cleanup_seconds


class CoroutineRun(HandlerRun):
    """An async handler."""

    def __init__(
        self,
        function: Callable[[], Any],
        name: str,
        context: contextvars.Context,
        kept: Kept,
    ) -> None:
        super().__init__()
        self._kept = kept
        self._is_started = False
        self._task = self._loop.create_task(self._run(function), name=name, context=context)
        kept.add(self._task)
        self._task.add_done_callback(self._note_end)

    def stop(self) -> None:
        """Cancel the coroutine where it waits."""
        cancel(self._task)

    async def _run(self, function: Callable[[], Any]) -> None:
        self._is_started = True
        task = asyncio.current_task()  # not that of __init__: a loop may begin a task before it gives it out
        assert task is not None, "a coroutine of a task"
        task.remove_done_callback(self._note_end)  # from here on this tells, a turn of the loop sooner
        did: Did
        try:
            did = Returned(await function())
        except GeneratorExit:
            # It never ended, and is thrown away after its loop; unless a handler has raised it.
            task.add_done_callback(self._note_end)
            raise
        except BaseException as error:  # noqa: BLE001  # an outcome like others, sys.exit() and KeyboardInterrupt too
            did = Raised(error)
        self._kept.discard(task)
        self._end(did)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Take note of what did not come that far: it was cancelled before it began, say."""
        self._kept.discard(task)
        if self.did is None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            assert error is not None, "what returns says what it did"
            self._end(Raised(error, began=self._is_started))


class ThreadRun(HandlerRun):
    """A handler that is an ordinary function. Nothing stops a thread but itself."""

    def __init__(
        self,
        function: Callable[[], Any],
        context: contextvars.Context,
        threads: Calls,
    ) -> None:
        super().__init__()
        self._threads = threads
        self._future = threads.submit(functools.partial(_carry_out, function), context)
        self._future.add_done_callback(lambda _: self._tell())

    def stop(self) -> None:
        """Take the call back if it has not begun; the function has to look at its context otherwise."""
        if self._threads.withdraw(self._future):
            self._note_end()

    def patience_seconds(self, reason: StopReason, cleanup_seconds: float) -> float | None:
        """A thread that is out of time may never look: its record does not wait for it."""
        return 0.0 if reason is StopReason.TIMEOUT else super().patience_seconds(reason, cleanup_seconds)

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed, nobody waits
            self._loop.call_soon_threadsafe(self._note_end)

    def _note_end(self) -> None:
        if self.did is None:
            if self._future.cancelled():
                self._end(Raised(asyncio.CancelledError(), began=False))
            else:
                self._end(self._future.result())


def _carry_out(function: Callable[[], Any]) -> Did:
    try:
        value = function()
    except BaseException as error:  # noqa: BLE001  # an outcome like others, sys.exit() too
        return Raised(error)
    if type(value) is types.CoroutineType:  # isinstance asks the value, which may be users' code
        value.close()
        return Raised(
            TypeError("the handler returned a coroutine that nobody awaits; define it with async def")
        )
    return Returned(value)
