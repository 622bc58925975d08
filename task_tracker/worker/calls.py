"""Blocking calls from a worker's event loop: to the store, and of code that is not async.

Owns the threads, and that a task of the loop is not dropped in the middle. Refuses to know what is called.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

from task_tracker.call_threads import CallThreads, Share

__all__ = ["Calls", "Kept", "look_at"]

_T = TypeVar("_T")


class _Answer(NamedTuple):
    """What came of a call."""

    value: Any
    error: BaseException | None

    @classmethod
    def of(cls, call: Callable[[], Any]) -> _Answer:
        """Make the call."""
        try:
            return cls(call(), None)
        except StopIteration as error:  # no future takes that one
            return cls(None, RuntimeError(f"a call raised {error!r}"))
        except BaseException as error:  # noqa: BLE001  # handed to whoever waits for the call
            return cls(None, error)


class Calls:
    """At most ``most`` threads. With ``blocking=False``, :meth:`make` makes calls at once, without any.

    ``prompt`` is that of :class:`CallThreads`.
    """

    def __init__(self, most: int, *, blocking: bool = True, prompt: bool = False) -> None:
        self._threads = CallThreads(most, prompt=prompt)
        self._blocking = blocking
        self._answers: deque[tuple[asyncio.Future[Any], _Answer]] = deque()
        self._is_loop_told = False

    @property
    def idle(self) -> int:
        """How many threads wait for a call."""
        return self._threads.idle

    def expand(self) -> bool:
        """Have one thread more, unless there are as many as there may be; False if the system has none."""
        return self._threads.expand()

    def submit(self, call: Callable[[], _T], context: contextvars.Context | None = None) -> Future[_T]:
        """Have ``call`` made on a thread, in ``context`` (by itself a copy of this one). Raises NoThread."""
        return self._submit(call, context, None)

    def withdraw(self, future: Future[Any]) -> bool:
        """Take a call back; False if it has begun, and then it goes on."""
        return self._threads.withdraw(future)

    async def make(self, call: Callable[[], _T], share: Share | None = None) -> _T:
        """Return what ``call`` returns. Cancelled, it is taken back, or goes on if it has begun. Raises NoThread."""
        if not self._blocking:
            return call()
        loop = asyncio.get_running_loop()
        waited: asyncio.Future[_T] = loop.create_future()
        run = contextvars.copy_context().run
        self._threads.post(waited, lambda: self._answer(loop, waited, _Answer.of(partial(run, call))), share)
        try:
            return await waited
        except asyncio.CancelledError:
            self._threads.retract(waited)
            if waited.done():
                look_at(waited)
            raise

    def _answer(self, loop: asyncio.AbstractEventLoop, waited: asyncio.Future[Any], answer: _Answer) -> None:
        """Hand an answer to the loop. Waking it is dear, and done once for all answers that it has not seen yet."""
        self._answers.append((waited, answer))
        if not self._is_loop_told:
            self._is_loop_told = True
            try:
                loop.call_soon_threadsafe(self._hand_out)
            except RuntimeError:  # the loop has closed, nobody waits
                self._is_loop_told = False
                self._answers.clear()

    def _hand_out(self) -> None:
        self._is_loop_told = False  # first: an answer that comes from now on may not be among these
        while self._answers:
            waited, answer = self._answers.popleft()
            if waited.done():
                continue  # cancelled
            if answer.error is None:
                waited.set_result(answer.value)
            else:
                waited.set_exception(answer.error)

    def end(self) -> None:
        """Let calls come to their end, then the threads; wait for neither."""
        self._threads.end()

    def _submit(
        self, call: Callable[[], _T], context: contextvars.Context | None, share: Share | None
    ) -> Future[_T]:
        context = contextvars.copy_context() if context is None else context
        return self._threads.submit(partial(context.run, call), share)


class Kept:
    """Tasks of a loop that nobody else keeps: the loop itself has but weak references to them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Return how many have not ended."""
        return len(self._tasks)

    def start(
        self, coroutine: Coroutine[Any, Any, _T], name: str, context: contextvars.Context | None = None
    ) -> asyncio.Task[_T]:
        """Start a task and keep it until it has ended."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._let_go)
        return task

    def _let_go(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        look_at(task)

    def cancel(self) -> list[asyncio.Task[Any]]:
        """Cancel all of them and return them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks


def look_at(future: asyncio.Future[Any]) -> None:
    """Take note of an error that nobody waits for any more, so that asyncio does not complain."""
    if not future.cancelled():
        future.exception()
