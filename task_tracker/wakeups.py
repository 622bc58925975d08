"""Wake-ups: hints that a task waits, so that nobody has to look for it so often.

Owns what a wake-up promises, which is nothing: one may be lost, or come twice, or for a task that somebody else
took. Workers look at the store in any case. Refuses to carry anything that a task needs: that is in its record,
which is stored before anybody is woken.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final, Protocol

from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.errors import SettingsError
from task_tracker.forks import renew_after_fork
from task_tracker.records import TaskKey
from task_tracker.redaction import redact_text

__all__ = ["InProcessWakeUp", "NoWakeUp", "WakeUp", "Waking", "open_wake_up"]

_log = logging.getLogger("task_tracker")

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
        """Tell workers that these tasks wait; one or two are enough. May raise; whoever calls counts that."""

    def wait(self, seconds: float) -> bool:
        """Block this thread until it is woken or interrupted, ``seconds`` at most; False if nobody was woken."""

    def interrupt(self) -> None:
        """Have the waits of this process return now, and one that is about to begin: a worker is to stop."""


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


class Waking:
    """Wakes others, whatever that meets: what is counted and logged does not fail whoever stored a task."""

    def __init__(self, wake_up: WakeUp, clock: Clock) -> None:
        self.wake_up = wake_up
        self.failures = 0
        """How many wake-ups failed in this process. Their tasks wait, and are found by looking."""
        self._clock = clock
        self._said_at: float | None = None
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock: the parent's may have been held."""
        self._lock = threading.Lock()

    def wake(self, keys: Sequence[TaskKey]) -> bool:
        """Wake others for these tasks; False if that failed."""
        try:
            self.wake_up.wake(keys)
        except Exception as error:  # noqa: BLE001  # counted: the tasks are stored, and looking finds them
            self._failed(error)
            return False
        return True

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
