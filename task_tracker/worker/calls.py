"""Blocking calls from a worker's event loop: to the store, and of code that is not async.

Owns the threads, and that a task of the loop is not dropped in the middle. Refuses to know what is called.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from task_tracker.call_threads import CallThreads, Share

__all__ = ["After", "Answer", "Calls", "Kept", "Tell", "cancel", "look_at"]

_log = logging.getLogger("task_tracker")

_T = TypeVar("_T")

_PATIENCE_SECONDS: Final = 0.005
"""What calls wait for those that are under way before they get threads of their own."""
_FEWEST_MADE: Final = 2
"""If fewer are made meanwhile, they take long."""
_CALLS_IN_A_HURRY: Final = 30

After = Callable[[], Callable[[], None]]
"""What a thread does once it has made a call: something that may take long. What that returns is called on the loop."""


class Answer(NamedTuple):
    """What came of a call."""

    value: Any
    error: BaseException | None

    @classmethod
    def of(cls, call: Callable[..., Any], *arguments: Any) -> Answer:
        """Make the call."""
        try:
            return cls(call(*arguments), None)
        except StopIteration as error:  # no future takes that one
            return cls(None, RuntimeError(f"a call raised {error!r}"))
        except BaseException as error:  # noqa: BLE001  # handed to whoever waits for the call
            return cls(None, error)


Tell = Callable[[Iterable[tuple[asyncio.Future[Any], Answer]], bool], None]
"""Takes what came of calls, for those who wait for them, and whether more is to come of the same thread in a moment."""


class Calls:
    """At most ``most`` threads. With ``blocking=False``, :meth:`make` makes calls at once, without any.

    ``short``: calls usually take less than a thread to wake, so that one thread makes them one after the other and the
    loop hears of several at once; those that take longer are not waited for for long. ``prompt`` is that of
    :class:`CallThreads`.
    """

    def __init__(
        self, most: int, *, blocking: bool = True, prompt: bool = False, short: bool = False
    ) -> None:
        self._threads = CallThreads(most, prompt=prompt)
        self._blocking = blocking
        self._are_short = short
        self._answers: deque[Callable[[], None]] = deque()
        """What the loop is to call: each answer is handed over by one."""
        self._is_loop_told = False
        self._is_looking = False
        """It looks by itself soon."""
        self._in_a_hurry = 0
        """How many of the next calls wait for nobody: those before them took long."""
        self._made = 0

    @property
    def idle(self) -> int:
        """How many threads wait for a call."""
        return self._threads.idle

    @property
    def has_more(self) -> bool:
        """Whether a call waits for nothing but a thread. From any thread."""
        return self._threads.has_more

    def expand(self) -> bool:
        """Have one thread more, unless there are as many as there may be; False if the system has none."""
        return self._threads.expand()

    def submit(self, call: Callable[[], _T], context: contextvars.Context | None = None) -> Future[_T]:
        """Have ``call`` made on a thread, in ``context`` (by itself a copy of this one). Raises NoThread."""
        return self._submit(call, context, None)

    def withdraw(self, future: Future[Any]) -> bool:
        """Take a call back; False if it has begun, and then it goes on."""
        return self._threads.withdraw(future)

    async def make(
        self,
        call: Callable[[], _T],
        share: Share | None = None,
        then: Callable[[], After | None] | None = None,
    ) -> _T:
        """Return what ``call`` returns. Cancelled, it is taken back, or goes on if it has begun. Raises NoThread.

        ``then`` is called on the same thread once ``call`` has returned and before anybody knows, and what it returns
        once its answer can be known; what that returns is called on the loop. Neither raises. It is left out where
        calls are made without threads.
        """
        if not self._blocking:
            return call()
        loop = asyncio.get_running_loop()
        waited: asyncio.Future[_T] = loop.create_future()
        self._threads.post(
            waited,
            partial(self._carry_out, waited, contextvars.copy_context(), call, then),
            share,
            patient=self._is_patient(loop),
        )
        try:
            return await waited
        except asyncio.CancelledError:
            self._threads.retract(waited)
            if waited.done():
                look_at(waited)
            raise

    def _carry_out(
        self,
        waited: asyncio.Future[Any],
        context: contextvars.Context,
        call: Callable[[], Any],
        then: Callable[[], After | None] | None,
    ) -> None:
        answer = Answer.of(context.run, call)
        after = None if then is None or answer.error is not None else then()
        self._answers.append(partial(_hand_over, waited, answer))
        self._made += 1
        self._follow_up(waited.get_loop(), after)

    def send(self, call: Callable[[Tell], Iterable[After]]) -> None:
        """Have ``call`` made, which tells what came of what several wait for; it raises nothing. Raises NoThread.

        What it gives meanwhile is done at once, in the same thread.
        """
        loop = asyncio.get_running_loop()
        self._threads.post(object(), lambda: self._carry_out_for_several(loop, call))
        if not self._is_looking:
            self._is_looking = True
            loop.call_later(_PATIENCE_SECONDS, self._look, loop, self._made)

    def _carry_out_for_several(
        self, loop: asyncio.AbstractEventLoop, call: Callable[[Tell], Iterable[After]]
    ) -> None:
        def tell(answers: Iterable[tuple[asyncio.Future[Any], Answer]], is_more_to_come: bool) -> None:
            self._answers.extend(partial(_hand_over, waited, answer) for waited, answer in answers)
            self._made += 1
            self._tell(loop, is_more_to_come=is_more_to_come)

        for after in call(tell):
            self._follow_up(loop, after)
        self._follow_up(loop, None)

    def _follow_up(self, loop: asyncio.AbstractEventLoop, after: After | None) -> None:
        if after is not None:
            self._tell(loop, is_more_to_come=True)
            self._answers.append(after())
            self._made += 1
        self._tell(loop, is_more_to_come=len(self._threads) > 0)

    def _tell(self, loop: asyncio.AbstractEventLoop, *, is_more_to_come: bool) -> None:
        """Have the loop hand out answers. Waking it is dear, and done once for all that it has not seen yet.

        While more is to come in this thread, nobody is told as long as the loop is going to look by itself.
        """
        if self._is_loop_told or (is_more_to_come and self._is_looking):
            return
        self._is_loop_told = True
        try:
            loop.call_soon_threadsafe(self._hand_out)
        except RuntimeError:  # the loop has closed, nobody waits
            self._is_loop_told = False
            self._answers.clear()

    def _hand_out(self) -> None:
        self._is_loop_told = False  # first: an answer that comes from now on may not be among these
        while self._answers:
            self._answers.popleft()()

    def _is_patient(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Tell whether a call may wait for others: where those are short, that is cheaper than more threads."""
        if not self._are_short:
            return False
        if self._in_a_hurry:
            self._in_a_hurry -= 1
            return False
        if not self._is_looking:
            self._is_looking = True
            loop.call_later(_PATIENCE_SECONDS, self._look, loop, self._made)
        return True

    def _look(self, loop: asyncio.AbstractEventLoop, made: int) -> None:
        """See what the calls that were made patiently have come to, a moment ago."""
        self._is_looking = False  # first, as above
        self._hand_out()
        if self._made - made < _FEWEST_MADE and self._threads.hurry():
            self._in_a_hurry = _CALLS_IN_A_HURRY
        elif len(self._threads):
            self._is_looking = True
            loop.call_later(_PATIENCE_SECONDS, self._look, loop, self._made)

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

    def add(self, task: asyncio.Task[Any]) -> None:
        """Keep a task until it is discarded."""
        self._tasks.add(task)

    def discard(self, task: asyncio.Task[Any]) -> None:
        """Keep it no more."""
        self._tasks.discard(task)

    def _let_go(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        look_at(task)

    def cancel(self) -> list[asyncio.Task[Any]]:
        """Cancel all of them and return them."""
        tasks = list(self._tasks)
        for task in tasks:
            cancel(task)
        return tasks


def _hand_over(waited: asyncio.Future[Any], answer: Answer) -> None:
    if waited.done():
        return  # cancelled
    if answer.error is None:
        waited.set_result(answer.value)
    else:
        waited.set_exception(answer.error)


def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task in which users' code runs. Raises nothing: one that cannot be cancelled goes on."""
    try:
        task.cancel()
    except Exception:  # noqa: BLE001  # what it waits for is asked first, and may be users' code
        # Others that are to stop with it must not wait.
        _log.exception("%s cannot be cancelled", task.get_name(), extra={"event": "cancel_failed"})


def look_at(future: asyncio.Future[Any]) -> None:
    """Take note of an error that nobody waits for any more, so that asyncio does not complain."""
    if not future.cancelled():
        future.exception()
