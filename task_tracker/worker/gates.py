"""Gates: functions that say whether the work of a type can be done just now.

Owns the threads in which they are asked, so that one that hangs shuts its own type and keeps nobody else waiting.
Refuses to know what is claimed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Final

from task_tracker.call_threads import CallThreads
from task_tracker.errors import SettingsError
from task_tracker.worker.running import is_async

__all__ = ["Gate", "Gates"]

_log = logging.getLogger("task_tracker")

Gate = Callable[[], bool]

ANSWER_SECONDS: Final = 1.0
"""How long all of them together are waited for before a claim. One that takes longer counts as shut meanwhile."""


class Gates:
    """``gates``: one for each type that has one. Raises SettingsError for what cannot be asked.

    Nothing is asked before :meth:`begin`, and everything counts as shut. Thread-safe.
    """

    def __init__(self, gates: Mapping[str, Gate]) -> None:
        for task_type, gate in gates.items():
            if not callable(gate) or is_async(gate):
                raise SettingsError(
                    f"gates[{task_type!r}] is {gate!r:.80}; give an ordinary function without arguments that returns "
                    "True while the work can be done"
                )
        self._gates = dict(gates)
        self._threads: CallThreads | None = None
        self._lock = threading.Lock()
        """Held by who asks: two that claim at once share the answers."""
        self._asked: dict[str, Future[bool]] = {}
        self._failing: set[str] = set()
        self.closed: frozenset[str] = frozenset()
        """The types whose gate said no when it was asked last, failed, or has not answered."""

    def begin(self) -> None:
        """Have threads in which to ask. Twice is safe."""
        if self._gates and self._threads is None:
            self._threads = CallThreads(len(self._gates))

    def end(self) -> None:
        """Ask no more. A gate that hangs is left."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.end()
        self._asked.clear()

    def ask(self) -> frozenset[str]:
        """Ask all gates and return the types that are shut. One that is being asked is not asked again."""
        if self._gates and self._threads is None:
            return frozenset(self._gates)
        if self._gates:
            with self._lock:
                self._ask_all()
        return self.closed

    def _ask_all(self) -> None:
        new = {task_type: self._ask(task_type) for task_type in self._gates if task_type not in self._asked}
        self._asked |= {task_type: asked for task_type, asked in new.items() if asked is not None}
        # Those that hung before have had their time: the others are not kept waiting for them again.
        wait([asked for asked in new.values() if asked is not None], timeout=ANSWER_SECONDS)
        closed = frozenset(task_type for task_type in self._gates if not self._is_open(task_type))
        if closed != self.closed:
            _log.info(
                "task types that have to wait for what they need: %s",
                ", ".join(sorted(closed)) or "none",
                extra={"event": "gates_changed", "closed": sorted(closed)},
            )
        self.closed = closed

    def _ask(self, task_type: str) -> Future[bool] | None:
        threads, gate = self._threads, self._gates[task_type]
        try:
            return None if threads is None else threads.submit(lambda: bool(gate()))
        except RuntimeError as error:
            self._complain(task_type, "could not be asked, there is no thread", error)
            return None

    def _is_open(self, task_type: str) -> bool:
        asked = self._asked.get(task_type)
        if asked is None:
            return False
        if not asked.done():
            self._complain(task_type, f"has not answered within {ANSWER_SECONDS:g} s", None)
            return False
        self._asked.pop(task_type, None)
        error = asked.exception()
        if error is not None:
            self._complain(task_type, "failed", error)
            return False
        self._failing.discard(task_type)
        return asked.result()

    def _complain(self, task_type: str, what: str, error: BaseException | None) -> None:
        if task_type in self._failing:
            return  # said once, not at every claim
        self._failing.add(task_type)
        _log.error(
            "the gate of %s %s; its tasks wait until it answers",
            task_type,
            what,
            exc_info=error,
            extra={"event": "gate_failed", "task_type": task_type},
        )
