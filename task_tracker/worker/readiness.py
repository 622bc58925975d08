"""Whether a worker can do its work, and what is known of it at this moment.

Owns the facts: its own, and those that the embedding server reports about itself. A fact lives for a short time, so
that what has stopped reporting counts as not ready. Refuses to ask a store when it is asked: a store that hangs
must not make the question hang.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import sys
import threading
import traceback
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from typing import Final

from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.duty import Duty
from task_tracker.errors import TaskTrackerError
from task_tracker.worker.hooks import Hooks

__all__ = ["Fact", "Facts", "LoopWatch", "StoreHealth", "WorkerStatus"]

_log = logging.getLogger("task_tracker")

BLOCKED_SECONDS: Final = 1.0
"""A loop that did not run for so long is reported."""
SLOW_SECONDS: Final = 60.0
"""A claim, or a pass of the rescuer, that takes longer hangs."""
_LOOKS_PER_LIMIT: Final = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Fact:
    """Something that was reported: is it well, in words, and how long ago."""

    ready: bool
    detail: str
    age_seconds: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker at one moment. Ages are seconds; None is what is not known (yet)."""

    name: str
    state: str
    """``new``, ``working``, ``draining`` or ``stopped``."""
    ready: bool
    """It works, its loop runs, its heartbeats are in time, no attempt has lost its lease, the store answers, not all
    slots are taken by handlers that were told to stop and go on, handlers find threads, and every fact says so."""
    slots: int
    running: int = 0
    lingering: int = 0
    """Handlers that go on although their attempts are over; each takes a slot until it ends."""
    without_lease: int = 0
    """Attempts that have lost their lease, and were told to stop: others may work on the same tasks."""
    oldest_running_seconds: float = 0.0
    """Of this worker's own attempts."""
    last_heartbeat_seconds: float | None = None
    """How long ago all leases were renewed, or the oldest of them was claimed; None while nothing is held."""
    blocked_loop_seconds: float = 0.0
    store_away_seconds: float = 0.0
    """For how long claiming or rescuing has had no answer from the store; 0 while both have."""
    no_thread: bool = False
    """The system has no thread for another handler; what needs one is not claimed until it has."""
    claiming_seconds: float = 0.0
    """How long a claim has been under way; 0 between claims. One that hangs makes it not ready."""
    rescuing_seconds: float = 0.0
    """How long the rescuer's pass has been under way; 0 between passes. One that hangs makes it not ready."""
    backlog: int | None = None
    """Tasks that wait for anybody in the whole store, as they were counted last."""
    oldest_waiting_seconds: float | None = None
    running_everywhere: int | None = None
    oldest_running_everywhere_seconds: float | None = None
    counted_seconds: float | None = None
    """How long ago the four above were counted."""
    paused: tuple[str, ...] = ()
    """Types that this worker was told to leave alone."""
    paused_everywhere: tuple[str, ...] = ()
    """Types that no worker claims, as they were known a few seconds ago."""
    gated: tuple[str, ...] = ()
    unknown_kinds: tuple[tuple[str, int], ...] = ()
    """Kinds of tasks that wait and that this worker has no handler for."""
    facts: Mapping[str, Fact]


class Facts:
    """What was reported, by name. Thread-safe. Of a worker's own, or of a server's that has none."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._facts: dict[str, tuple[bool, str, float, float]] = {}

    def report(self, name: str, ready: bool, detail: str = "", *, life_seconds: float = 60.0) -> None:
        """Say how ``name`` is. After ``life_seconds`` without another report it counts as not ready.

        Raises ValueError for what could be neither judged nor published: whoever asks must get an answer.
        """
        if not isinstance(name, str) or not isinstance(detail, str):
            raise ValueError(f"name and detail must be texts, not {name!r:.80} and {detail!r:.80}")
        if not isinstance(ready, bool):
            raise ValueError(f"ready must be True or False, not {ready!r:.80}")
        if (
            isinstance(life_seconds, bool)
            or not isinstance(life_seconds, int | float)
            or not life_seconds > 0
        ):
            raise ValueError(f"life_seconds must be a number above 0, not {life_seconds!r:.80}")
        with self._lock:
            self._facts[name] = ready, detail, self._clock.monotonic(), life_seconds

    def withdraw(self, name: str) -> None:
        """Say that ``name`` is not to be heard of any more. Safe if it never was."""
        with self._lock:
            self._facts.pop(name, None)

    def all(self) -> dict[str, Fact]:
        """Return what holds now."""
        now = self._clock.monotonic()
        with self._lock:
            known = dict(self._facts)
        found = {}
        for name, (ready, detail, at, life_seconds) in known.items():
            alive = now - at <= life_seconds
            said = detail if alive else f"not heard of for more than {life_seconds:g} s; last: {detail}"
            found[name] = Fact(ready and alive, said, now - at)
        return found


class StoreHealth:
    """Whether the store answers, as those who ask it tell, each for himself: claims may fail while all else works.

    Says once when that changes. Thread-safe.
    """

    def __init__(self, clock: Clock, hooks: Hooks) -> None:
        self._clock = clock
        self._hooks = hooks
        self._lock = threading.Lock()
        self._away_since: dict[str, float] = {}

    @property
    def away_seconds(self) -> float:
        """How long somebody has had no answer; 0 while all have."""
        since = min(list(self._away_since.values()), default=None)
        return 0.0 if since is None else max(0.0, self._clock.monotonic() - since)

    def away(self, who: str, error: Exception) -> None:
        """Take note that it did not answer ``who``."""
        with self._lock:
            was_well = not self._away_since
            self._away_since.setdefault(who, self._clock.monotonic())
        if not was_well:
            return
        _log.warning(
            "the store does not answer (%s); the worker goes on asking, and goes on with what it holds: %s",
            who,
            error,
            exc_info=None if isinstance(error, TaskTrackerError) else error,
            extra={"event": "store_away", "who": who},
        )
        self._hooks.tell("store_away", error=str(error))

    def answered(self, who: str) -> None:
        """Take note that it did."""
        if who not in self._away_since:
            return
        with self._lock:
            seconds = self.away_seconds
            is_back = self._away_since.pop(who, None) is not None and not self._away_since
        if is_back:
            _log.info("the store answers again after %.0f s", seconds, extra={"event": "store_back"})
            self._hooks.tell("store_back", seconds=seconds)


class LoopWatch(Duty):
    """Watches from a thread whether ``loop`` runs, and says where it is stuck if it does not.

    ``on_blocked`` is called then, and at every look for as long as that lasts. ``deadlines`` is called at each look:
    it returns in how many seconds there has to be another one.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        clock: Clock,
        hooks: Hooks,
        on_blocked: Callable[[], None] = lambda: None,
        deadlines: Callable[[], float] = lambda: math.inf,
    ) -> None:
        super().__init__("loop watch", clock)
        self._deadlines = deadlines
        self._on_blocked = on_blocked
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._hooks = hooks
        self._asked_at = clock.monotonic()
        self._answered = True
        self._is_suspected = False
        self._is_told = False

    @property
    def blocked_seconds(self) -> float:
        """For how long the loop has not answered by now; 0 if it answered when it was asked last."""
        if self._answered:
            return 0.0
        seconds = self._clock.monotonic() - self._asked_at
        return seconds if seconds >= BLOCKED_SECONDS else 0.0

    def run_once(self) -> float | None:
        """Ask the loop for a sign of life, or see how long it has not given one."""
        if self._answered:
            self._is_suspected = self._is_told = False
            self._answered = False
            self._asked_at = self._clock.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                return None  # it is closed
        else:
            self._look()
        return min(BLOCKED_SECONDS / _LOOKS_PER_LIMIT, self._deadlines())

    def on_error(self) -> float:
        """Go on as if nothing had been."""
        return BLOCKED_SECONDS / _LOOKS_PER_LIMIT

    def _answer(self) -> None:
        self._answered = True

    def _look(self) -> None:
        seconds = self.blocked_seconds
        if self._is_told and not self._answered:
            self._on_blocked()  # again and again: a claim may have been under way
        if not seconds or self._is_told:
            return
        if not self._is_suspected:
            self._is_suspected = True  # a whole process that was frozen finds its loop alive at the next look
            return
        self._is_told = True
        self._on_blocked()
        where = self._where()
        _log.warning(
            "the event loop has not run for %.1f s, something blocks it at %s; heartbeats go on, but no cancel or "
            "timeout is heard until it returns: make that handler sync, or call what blocks in a thread",
            seconds,
            where,
            extra={"event": "loop_blocked", "where": where},
        )
        self._hooks.tell("loop_blocked", seconds=seconds, where=where)

    def _where(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        stack = traceback.extract_stack(frame) if frame is not None else []
        return f"{stack[-1].filename}:{stack[-1].lineno} ({stack[-1].name})" if stack else "a place unknown"
