"""DirectoryWatch: the kernel wakes the workers of a host when an entry appears below a directory.

Owns one thread that listens. Like every wake-up it is a hint: a network mount says nothing of what other hosts do,
and a queue of the kernel's that overflows loses some. Needs the package watchfiles.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final

from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.errors import SettingsError
from task_tracker.records import TaskKey
from task_tracker.wakeups import InProcessWakeUp

__all__ = ["DirectoryWatch"]

_log = logging.getLogger("task_tracker")

_GATHER_MS: Final = 10
"""What comes within this time is one wake-up."""
_STEP_MS: Final = 1
_JOIN_SECONDS: Final = 10.0


class DirectoryWatch(InProcessWakeUp):
    """Wakes who waits when something is added below one of ``directories``, which have to exist.

    For the lease store these are ``<root>/local/.task_tracker/ready`` and, for tasks that wait for a start time,
    ``later`` beside it. The thread starts with the first wait and ends with :meth:`close`. Raises SettingsError if
    watchfiles is not installed or there is no such directory.
    """

    def __init__(self, *directories: str | os.PathLike[str], clock: Clock = SYSTEM_CLOCK) -> None:
        self._directories = [os.fspath(directory) for directory in directories]
        for directory in self._directories:
            if not os.path.isdir(directory):
                raise SettingsError(
                    f"{directory} is no directory that could be watched; open the store once, or mend the path"
                )
        self._watch = _watcher()
        self._listening = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        super().__init__(clock)

    def renew(self) -> None:
        """Begin anew: in a forked child there is no thread."""
        super().renew()
        self._thread = None
        self._listening, self._stop = threading.Event(), threading.Event()

    def wake(self, keys: Sequence[TaskKey]) -> None:
        """Do nothing: what was stored has told those who listen already."""

    def wait(self, seconds: float) -> bool:
        """Wait for an addition; see :meth:`WakeUp.wait`."""
        self.listen()
        return super().wait(seconds)

    def listen(self) -> None:
        """Start listening, unless that is so already or this is closed."""
        with self._changed:
            if self._thread is None and not self._stop.is_set():
                thread = threading.Thread(
                    target=self._listen, name="task_tracker directory watch", daemon=True
                )
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """Stop listening; nobody is woken any more. Twice is safe."""
        self._stop.set()
        self.interrupt()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)

    def until_listening(self, seconds: float) -> bool:
        """Return whether changes are heard by now, having waited for that for ``seconds`` at most."""
        return self._listening.wait(seconds)

    def _listen(self) -> None:
        try:
            # The first round returns once the kernel was told what to watch.
            for changes in self._watch(self._directories, self._stop):
                self._listening.set()
                if changes:
                    super().wake(())
        except Exception:  # noqa: BLE001  # logged; polling finds what is not announced
            _log.exception(
                "%s is not watched any more; tasks there are found by polling",
                " and ".join(self._directories),
                extra={"event": "watch_failed"},
            )


def _watcher() -> Callable[[Sequence[str], threading.Event], Any]:
    try:
        watchfiles: Any = import_module("watchfiles")
    except ImportError as error:
        raise SettingsError(
            "watching a directory needs the package watchfiles; pip install 'durable-task-tracker[watch]'"
        ) from error

    def listen(directories: Sequence[str], stop: threading.Event) -> Any:
        return watchfiles.watch(
            *directories,
            watch_filter=lambda change, _: change is watchfiles.Change.added,
            debounce=_GATHER_MS,
            step=_STEP_MS,
            rust_timeout=250,
            yield_on_timeout=True,
            stop_event=stop,
            raise_interrupt=False,
        )

    return listen
