"""Threads for calls that may hang: bounded, shared fairly, and none that an exit has to wait for.

Owns which call runs next. ``ThreadPoolExecutor`` will not do: calls on one stuck task would take all of its
threads, and the interpreter waits for them when it exits. Refuses to know event loops: it gives
``concurrent.futures``, so that any loop, or none, can wait for a call.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple

from task_tracker.forks import renew_after_fork

__all__ = ["CallThreads", "NoThread", "Share"]


class NoThread(RuntimeError):
    """The system has no thread for a call, which did not begin."""


class Share(NamedTuple):
    """Whom a call is about, and how many calls about it may have a thread at once."""

    subject: Hashable
    most: int


class _Call(NamedTuple):
    run: Callable[[], Any]
    share: Share | None


class CallThreads:
    """At most ``most`` daemon threads, started when they are needed; calls wait their turn without one.

    When the system has no more threads a call waits for one of those that there are. ``prompt``: it is refused instead,
    unless one of them is free.
    """

    def __init__(self, most: int, *, prompt: bool = False) -> None:
        self._most: Final = most
        self._prompt: Final = prompt
        self._closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begin anew, without threads: those and what they are to do are the parent's."""
        self._changed = threading.Condition()
        self._waiting: dict[Hashable, _Call] = {}
        self._running: Counter[Hashable] = Counter()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._busy = 0

    @property
    def idle(self) -> int:
        """How many threads wait for a call."""
        return self._idle

    def expand(self) -> bool:
        """Start one thread more, unless there are as many as there may be; False if the system has none."""
        with self._changed:
            return len(self._threads) >= self._most or self._start_one() is None

    def __len__(self) -> int:
        """Return how many calls wait for a thread."""
        return len(self._waiting)

    @property
    def has_more(self) -> bool:
        """Whether a call waits for nothing but a thread."""
        if not self._waiting:
            return False
        with self._changed:
            for call in self._waiting.values():
                if self._may_run(call):  # nearly always the first one
                    return True
        return False

    def submit(self, run: Callable[[], Any], share: Share | None = None) -> Future[Any]:
        """Have ``run`` called as soon as a thread is free and its ``share`` is not used up. Raises NoThread."""
        future: Future[Any] = Future()
        self.post(future, partial(_carry_out, future, run), share)
        return future

    def post(
        self,
        ticket: Hashable,
        run: Callable[[], object],
        share: Share | None = None,
        *,
        patient: bool = False,
    ) -> None:
        """Do the same for who learns what came of it in his own way: ``run`` raises nothing. Raises NoThread.

        ``patient``: it may wait for a thread that is at work, so that short calls do not wake a thread each. Who says
        so calls :meth:`hurry` before long: the call under way may be a long one.
        """
        call = _Call(run, share)
        with self._changed:
            if self._closed:
                raise RuntimeError("these threads have been told to end")
            if self._may_run(call) and not (patient and len(self._threads) > self._idle):
                self._wake_one()
            self._waiting[ticket] = call

    def hurry(self) -> bool:
        """Let what waits have threads, as far as there are more; False if nothing waited."""
        with self._changed:
            for call in self._waiting.values():
                if self._may_run(call):
                    self._wake_one()
            return bool(self._waiting)

    def withdraw(self, future: Future[Any]) -> bool:
        """Take a call back; False if it has begun, and then it goes on."""
        if not future.cancel():
            return False
        self.retract(future)
        return True

    def retract(self, ticket: Hashable) -> bool:
        """Take back what was posted; False if it has begun."""
        with self._changed:
            return self._waiting.pop(ticket, None) is not None

    def end(self) -> None:
        """Let all calls come to their end, then the threads; wait for neither."""
        with self._changed:
            self._closed = True
            self._idle = 0
            self._changed.notify_all()

    def close(self, seconds: float, monotonic: Callable[[], float]) -> int:
        """Let all calls come to their end and end the threads; return how many still ran after ``seconds``."""
        self.end()
        with self._changed:
            threads = list(self._threads)
        deadline = monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, deadline - monotonic()))
        return sum(thread.is_alive() for thread in threads)

    def _may_run(self, call: _Call) -> bool:
        return call.share is None or self._running[call.share.subject] < call.share.most

    def _wake_one(self) -> None:
        # An idle thread is counted off here and not when it wakes: the next call must not count on it too.
        if self._idle:
            self._idle -= 1
            self._changed.notify()
        elif len(self._threads) < self._most:
            error = self._start_one()
            if error is None:
                return
            free = (
                len(self._threads) - self._busy - len(self._waiting)
            )  # one that was just started is not idle yet
            if not self._threads or (self._prompt and free <= 0):
                raise NoThread(str(error)) from error

    def _start_one(self) -> RuntimeError | None:
        """Start a thread; return why the system has none."""
        thread = threading.Thread(target=self._work, name="task_tracker call", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            return error
        self._threads.add(thread)
        return None

    def _work(self) -> None:
        while True:
            with self._changed:
                taken = self._take()
                if taken is None:
                    # What waits now waits for its share; whoever gives that back takes it.
                    if self._closed:
                        self._threads.discard(threading.current_thread())
                        return
                    self._idle += 1
                    self._changed.wait()
                    continue
            try:
                taken.run()
            finally:
                with self._changed:
                    self._give_back(taken)
            del taken  # an idle thread must not keep a result alive

    def _take(self) -> _Call | None:
        for ticket, call in self._waiting.items():
            if self._may_run(call):
                del self._waiting[ticket]
                self._busy += 1
                if call.share is not None:
                    self._running[call.share.subject] += 1
                return call
        return None

    def _give_back(self, call: _Call) -> None:
        self._busy = max(self._busy - 1, 0)  # below it, if the call forked
        if call.share is not None:
            self._running[call.share.subject] -= 1
            if self._running[call.share.subject] <= 0:  # below it, if the call forked
                del self._running[call.share.subject]


def _carry_out(future: Future[Any], run: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = run()
    except BaseException as error:  # noqa: BLE001  # handed to whoever waits for the call
        future.set_exception(error)
    else:
        future.set_result(result)
