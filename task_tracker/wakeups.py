"""Wake-ups: hints that a task waits, so that nobody has to look for it so often.

Owns what a wake-up promises, which is nothing: one may be lost, or come twice, or for a task that somebody else
took. Workers look at the store in any case. Refuses to carry anything that a task needs: that is in its record,
which is stored before anybody is woken.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Final, Protocol, runtime_checkable

from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.errors import SettingsError
from task_tracker.forks import renew_after_fork
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.redaction import redact_text
from task_tracker.store import LeaseStore

__all__ = ["InProcessWakeUp", "NoWakeUp", "StoreWakeUp", "WakeUp", "Waking", "open_wake_up", "own_wake_up"]

_log = logging.getLogger("task_tracker")

WAKE_SECONDS: Final = 5.0
"""How long a wake-up may take. What is late goes on, and counts as failed: whoever submits has stored his task by then.
The ways to Redis say within two seconds that they do not get through."""
_MOST_LATE: Final = 4
"""While so many wake-ups hang the next ones fail at once."""
_END_SECONDS: Final = 1.0
_SAID_EVERY_SECONDS: Final = 60.0
_BY_SCHEME: Final = {
    "redis": "task_tracker.queues.redis:RedisWakeUp",
    "rediss": "task_tracker.queues.redis:RedisWakeUp",
    "unix": "task_tracker.queues.redis:RedisWakeUp",
    "arq+redis": "task_tracker.queues.messages:open_arq",
    "arq+rediss": "task_tracker.queues.messages:open_arq",
    "arq+unix": "task_tracker.queues.messages:open_arq",
}
"""What a URL means, as strings: most processes load none of these."""


class WakeUp(Protocol):
    """A way from those who submit to those who wait. Thread-safe."""

    def wake(self, keys: Sequence[TaskKey]) -> None:
        """Tell workers that these tasks wait; one or two are enough. May raise; whoever calls counts that.

        Called in a thread, and waited for five seconds.
        """

    def wait(self, seconds: float) -> bool:
        """Block this thread until it is woken or interrupted, ``seconds`` at most; False if nobody was woken."""

    def interrupt(self) -> None:
        """Have the waits of this process return now, and one that is about to begin: a worker is to stop."""


@runtime_checkable
class WakesLater(Protocol):
    """What a :class:`WakeUp` has as well if it can hold a message back until a task may be claimed.

    Without it workers are told at once, and learn from the store when that is.
    """

    def wake_later(self, keys: Sequence[TaskKey], at: float) -> None:
        """Tell workers at Unix time ``at`` that these tasks wait. As ``wake`` otherwise."""


class InProcessWakeUp:
    """For workers within the process that submits. All that wait are woken.

    If none waits just then, the next one that would wait returns at once: it may have looked too early.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begin anew: who waited is in the parent."""
        self._changed = threading.Condition()
        self._waiting: set[object] = set()
        self._woken: set[object] = set()
        self._missed = False

    def wake(self, keys: Sequence[TaskKey]) -> None:
        """Wake all that wait; see :meth:`WakeUp.wake`."""
        with self._changed:
            # Counted off here and not when it runs: the next wake-up must not rely on it too.
            if self._waiting:
                self._woken |= self._waiting
            else:
                self._missed = True
            self._let_go()

    def interrupt(self) -> None:
        """End all waits; see :meth:`WakeUp.interrupt`."""
        with self._changed:
            self._missed = True  # whoever is to stop may be about to wait
            self._let_go()

    def wait(self, seconds: float) -> bool:
        """Wait to be woken; see :meth:`WakeUp.wait`."""
        deadline = self._clock.monotonic() + seconds
        me = object()
        with self._changed:
            if self._missed:
                self._missed = False
                return True
            self._waiting.add(me)
            try:
                while me in self._waiting:
                    remaining = deadline - self._clock.monotonic()
                    if remaining <= 0:
                        break
                    self._clock.wait(self._changed, remaining)
                return me in self._woken
            finally:
                self._waiting.discard(me)
                self._woken.discard(me)

    def _let_go(self) -> None:
        self._waiting.clear()
        self._changed.notify_all()


class NoWakeUp(InProcessWakeUp):
    """Nobody is told: tasks are found by looking, as often as the worker looks."""

    def wake(self, keys: Sequence[TaskKey]) -> None:
        """Do nothing."""


class StoreWakeUp(InProcessWakeUp):
    """Woken by a store that tells of waiting tasks itself (:meth:`LeaseStore.watch_queue`), whoever stored them.

    The store listens from the first :meth:`wait` until :meth:`interrupt`, or until it is closed.
    """

    def __init__(self, store: LeaseStore, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        super().__init__(clock)

    def renew(self) -> None:
        """Begin anew: what listened is in the parent."""
        super().renew()
        self._watching = threading.Lock()
        self._watch: AbstractContextManager[None] | None = None

    def wake(self, keys: Sequence[TaskKey]) -> None:
        """Have the store tell all workers. Raises StoreUnavailable."""
        self._store.announce(keys)

    def wait(self, seconds: float) -> bool:
        """Wait to be woken; see :meth:`WakeUp.wait`. Who begins to listen is woken once, for what was missed."""
        with self._watching:
            if self._watch is None:
                watch = self._store.watch_queue(self.heard)
                watch.__enter__()
                self._watch = watch
                self.heard()
        return super().wait(seconds)

    def interrupt(self) -> None:
        """End all waits, and listen no more until somebody waits again; see :meth:`WakeUp.interrupt`."""
        with self._watching:
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.__exit__(None, None, None)
        super().interrupt()

    def heard(self) -> None:
        """Wake who waits here; the store calls it."""
        super().wake(())


def own_wake_up(store: LeaseStore | None, clock: Clock) -> WakeUp:
    """Return the way that ``store`` has of its own; :class:`NoWakeUp` if it has none."""
    if store is not None and store.capabilities.watch:
        return StoreWakeUp(store, clock)
    return NoWakeUp(clock)


class Waking:
    """Wakes others, whatever that meets: what is counted and logged does not fail whoever stored a task.

    A way that hangs does not keep him either: it is called in a thread and waited for up to :data:`WAKE_SECONDS`.
    """

    def __init__(self, wake_up: WakeUp, clock: Clock) -> None:
        self.wake_up = wake_up
        self.failures = 0
        """How many wake-ups failed in this process. Their tasks wait, and are found by looking."""
        self._clock = clock
        self._said_at: float | None = None
        # Our own ways within a process cannot hang, and need no thread.
        self.is_quick = type(wake_up).wake in (InProcessWakeUp.wake, NoWakeUp.wake)
        """Whether it waits for nothing."""
        self._closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock: the parent's may have been held. What hangs hangs there."""
        self._lock = threading.Lock()
        self._late: set[_Call] = set()

    def stored(self, record: TaskRecord) -> bool:
        """Wake others for a task that has just been stored, or given back; False if that failed.

        A store that tells of it by itself has done so in the same transaction.
        """
        return isinstance(self.wake_up, StoreWakeUp) or self.waits(record)

    def waits(self, record: TaskRecord) -> bool:
        """Wake others for a task that waits, also for one that is for later: they are to learn of its start time."""
        way, at = self.wake_up, record.not_before
        if at is None or at <= self._clock.now() or not isinstance(way, WakesLater):
            return self.wake((record.key,))
        return self._tried(lambda: way.wake_later((record.key,), at))

    def wake(self, keys: Sequence[TaskKey]) -> bool:
        """Wake others for these tasks; False if that failed, or has not come to an end within the time it has."""
        return self._tried(lambda: self.wake_up.wake(keys))

    def _tried(self, wake: Callable[[], object]) -> bool:
        try:
            if self.is_quick:
                wake()
            else:
                self._in_time(wake)
        except Exception as error:  # noqa: BLE001  # counted: the tasks are stored, and looking finds them
            self._failed(error)
            return False
        return True

    def close(self) -> bool:
        """Wake nobody any more; False if a wake-up hangs, and goes on doing so for a second."""
        self._closed = True
        deadline = self._clock.monotonic() + _END_SECONDS
        for call in list(self._late):
            call.wait(max(0.0, deadline - self._clock.monotonic()))
        left = len(self._late)
        if left:
            _log.warning(
                "%d wake-ups hang and are left behind",
                left,
                extra={"event": "wake_ups_left_behind", "left": left},
            )
        return not left

    def _in_time(self, wake: Callable[[], object]) -> None:
        """Do it in a thread. Raises what it raises, TimeoutError, and RuntimeError if there is no thread."""
        if self._closed:
            raise RuntimeError("the tracker is closed; nobody is woken any more")
        if len(self._late) >= _MOST_LATE:
            raise TimeoutError(f"{_MOST_LATE} wake-ups hang; until one of them ends no other is tried")
        call = _Call(wake, self._clock, self._late.discard)
        call.start()
        if not call.wait(WAKE_SECONDS):
            self._late.add(call)
            if call.is_over:  # just now, before it was put there
                self._late.discard(call)
            raise TimeoutError(f"a wake-up has not come to its end within {WAKE_SECONDS:g} s")
        if call.error is not None:
            raise call.error

    def _failed(self, error: Exception) -> None:
        with self._lock:
            self.failures += 1
            now = self._clock.monotonic()
            if self._said_at is not None and now - self._said_at < _SAID_EVERY_SECONDS:
                return
            self._said_at = now
        _log.warning(
            "workers could not be woken (%d times so far); they find the tasks when they look next",
            self.failures,
            exc_info=error,
            extra={"event": "wake_up_failed", "failures": self.failures},
        )


class _Call:
    """One wake-up in a thread of its own: most processes wake seldom, and keep no thread for it."""

    def __init__(self, wake: Callable[[], object], clock: Clock, over: Callable[[_Call], object]) -> None:
        self._wake = wake
        self._clock = clock
        self._over = over
        self._changed = threading.Condition()
        self.is_over = False
        self.error: BaseException | None = None
        """What it raised, once it is over."""

    def start(self) -> None:
        """Begin. Raises RuntimeError if the system has no thread."""
        context = contextvars.copy_context()
        threading.Thread(
            target=lambda: context.run(self._run), name="task_tracker wake-up", daemon=True
        ).start()

    def wait(self, seconds: float) -> bool:
        """Return whether it is over within ``seconds``."""
        deadline = self._clock.monotonic() + seconds
        with self._changed:
            while not self.is_over and (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait(self._changed, left)
            return self.is_over

    def _run(self) -> None:
        try:
            self._wake()
        except BaseException as error:  # noqa: BLE001  # raised where it is waited for
            self.error = error
        with self._changed:
            self.is_over = True
            self._over(self)  # before whoever waits for it can look
            self._changed.notify_all()


def open_wake_up(url: str) -> WakeUp:
    """Return the wake-up that ``url`` means. Raises SettingsError: unknown scheme, missing package, bad URL."""
    module_name, _, name = _BY_SCHEME.get(url.partition("://")[0].lower(), "").partition(":")
    if not module_name:
        raise SettingsError(
            f"wake_up is {redact_text(url.partition('?')[0])!r:.200}; give a URL that begins with "
            f"{', '.join(f'{scheme}://' for scheme in _BY_SCHEME)}"
        )
    try:
        factory: Callable[[str], WakeUp] = getattr(import_module(module_name), name)
    except ImportError as error:
        raise SettingsError(f"wake_up is a {url.partition('://')[0]} URL, and {error}") from error
    return factory(url)
