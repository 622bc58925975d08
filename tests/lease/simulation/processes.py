"""Simulated processes: plain synchronous programs that stop at each call that takes its turn.

Owns running, stopping and re-running them. A process's state is the history of the results that it was given:
it is a function of that, so states are compared by history, and a process that has to go on from an earlier
state is run again from its start. Refuses to know what a schedule is.

The threads of one process are greenlets that share whatever the process holds; locks among them are
:class:`SimulatedLocks`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from greenlet import GreenletExit, getcurrent, greenlet

from task_tracker.clock import uuid7_text
from task_tracker.keyed_locks import KeyedLocks
from tests.lease.simulation.calls import Request, Terrain
from tests.lease.simulation.disk import Result
from tests.lease.simulation.simulated_ops import SimulatedOps

__all__ = ["Actor", "Fact", "Moment", "Process", "SimulatedClock", "SimulatedLocks"]

Fact = tuple[Hashable, ...]
"""Something that a program says of itself: what it was promised, say."""

START_SECONDS: Final = 1_700_000_000.0
_MAX_PARKED: Final = 600


class SimulatedClock:
    """A clock of one process's own: it stands still but for the pauses that the process makes."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._given = 0
        self._passed = 0.0

    def now(self) -> float:
        """Return made-up Unix time."""
        return START_SECONDS + self._passed

    def monotonic(self) -> float:
        """Return the seconds that passed."""
        return self._passed

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self._passed += seconds

    def new_id(self, at: float) -> str:
        """Return an id that no other process gives."""
        return uuid7_text(int(at * 1000), self._number, self._next())

    def new_token(self) -> str:
        """Return a token that no other process gives."""
        return f"{self._number:02x}{self._next():02x}".ljust(32, "0")

    def jitter(self, seconds: float) -> float:
        """Return ``seconds``."""
        return seconds

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Refuse: a wait for another thread would stop everything."""
        raise AssertionError("a simulated process waits for a condition")

    def _next(self) -> int:
        self._given += 1
        return self._given


class SimulatedLocks(KeyedLocks):
    """Locks by key among the threads of a simulated process: whoever has to wait lets the others run."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._waiting: dict[Hashable, list[int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def hold(self, key: Hashable, timeout_seconds: float | None = None) -> Iterator[bool]:
        """Hold a lock in a ``with`` block."""
        self.acquire(key, timeout_seconds)
        try:
            yield True
        finally:
            self.release(key)

    def acquire(self, key: Hashable, timeout_seconds: float | None = None) -> bool:
        """Take a lock, however long that takes."""
        if key in self._waiting:
            self._waiting[key].append(self._process.running)
            self._process.block()
        else:
            self._waiting[key] = []
        return True

    def release(self, key: Hashable) -> None:
        """Give a lock to who waits longest."""
        if self._waiting[key]:
            self._process.wake(self._waiting[key].pop(0))
        else:
            del self._waiting[key]


Program = Callable[["Process"], None]


class Process:
    """One run of an actor's programs, stopped at the requests of its threads."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.clock = SimulatedClock(actor.number)
        self.ops = SimulatedOps(actor.terrain, self)
        self.ops.slow_writes = actor.slow_writes
        self.locks = SimulatedLocks(self)
        self.shared: dict[str, Any] = {}
        """What the process's threads have in common."""
        self.requests: list[Request | None] = [None] * len(actor.programs)
        self.failure: BaseException | None = None
        self.running = 0
        self._writes: list[tuple[int, bytes]] = []
        self._facts: list[Fact] = []
        self._woken: list[int] = []
        self._ended = False
        self.blocked: set[int] = set()
        self.begun = actor.prepare is None
        self._threads = [self._thread(program) for program in actor.programs]
        if actor.prepare is not None:
            self._threads[0] = self._thread(actor.prepare)

    # ---- what programs call --------------------------------------------------------------------------

    def note(self, *fact: Hashable) -> None:
        """Say something; it is heard together with the step that led here."""
        self._facts.append(fact)

    def perform(self, request: Request) -> Result:
        """Stop until the scheduler gives a result."""
        if self._ended:
            raise GreenletExit
        result = getcurrent().parent.switch(request)
        if self._ended:
            raise GreenletExit
        return result

    def write(self, inode: int, data: bytes) -> None:
        """Note an effect on a file of the process's own."""
        self._writes.append((inode, data))

    def paused(self, seconds: float) -> None:
        """Let the process's time pass."""
        self.clock.pass_time(seconds)

    def block(self) -> None:
        """Stop the running thread until it is woken."""
        self.blocked.add(self.running)
        self.perform(_BLOCKED)

    def wake(self, thread: int) -> None:
        """Let a blocked thread go on as soon as the running one stops."""
        self._woken.append(thread)

    # ---- what actors call ----------------------------------------------------------------------------

    def start(self) -> None:
        """Run all threads to their first requests; what prepares them runs before all of them."""
        for thread in range(len(self._threads) if self.begun else 1):
            self._switch(thread)

    def go_on(self, thread: int, result: Result) -> None:
        """Give a thread the result that it waits for and run to the next requests."""
        self._switch(thread, result)

    def said(self) -> tuple[tuple[tuple[int, bytes], ...], tuple[Fact, ...]]:
        """Return writes and facts since the last time."""
        said = tuple(self._writes), tuple(self._facts)
        self._writes.clear()
        self._facts.clear()
        return said

    def end(self) -> None:
        """Unwind what is stopped."""
        self._ended = True
        for thread in self._threads:
            if thread and not thread.dead:
                thread.throw(GreenletExit)

    def _thread(self, program: Program) -> greenlet:
        return greenlet(lambda: self._run(program))

    def _switch(self, thread: int, *result: Result) -> None:
        self.running = thread
        self.blocked.discard(thread)
        request = self._threads[thread].switch(*result)
        self.requests[thread] = None if request is _BLOCKED else request
        while self._woken:
            self._switch(self._woken.pop(0), None)
        if not self.begun and self._threads[0].dead and self.failure is None:
            self.begun = True
            self._threads[0] = self._thread(self.actor.programs[0])
            self.start()

    def _run(self, program: Program) -> None:
        try:
            program(self)
        except GreenletExit:
            raise
        except BaseException as error:  # noqa: BLE001  # whatever it is, the schedule that led to it is reported
            self.failure = error


_BLOCKED: Final = Request("blocked", (), ((0, ()),), (), changes=False)


class Moment:
    """A process after a history. ``requests``: what each of its threads wants next, None if it has nothing to do."""

    __slots__ = (
        "above",
        "begun",
        "depth",
        "facts",
        "failure",
        "following",
        "requests",
        "result",
        "thread",
        "writes",
    )

    def __init__(self, process: Process, above: Moment | None, thread: int, result: Result) -> None:
        self.above = above
        self.thread = thread
        self.result = result
        self.depth: int = 0 if above is None else above.depth + 1
        self.requests = tuple(process.requests)
        self.writes, self.facts = process.said()
        self.begun = process.begun
        self.failure = process.failure
        if self.failure is None and not any(self.requests):
            if process.blocked:
                self.failure = AssertionError("all its threads wait for each other")
            elif process.ops.open_handles:
                self.failure = AssertionError(f"left open: {process.ops.open_handles}")
        self.following: dict[tuple[int, Result], Moment] = {}


class Actor:
    """A process that the scheduler runs, in all its possible histories.

    ``prepare`` runs alone, before the schedules begin and before the ``programs``, each of which is a thread.
    """

    def __init__(
        self,
        number: int,
        name: str,
        programs: Sequence[Program],
        terrain: Terrain,
        *,
        prepare: Program | None = None,
        slow_writes: bool = False,
    ) -> None:
        self.prepare = prepare
        self.slow_writes = slow_writes
        self.number = number
        self.name = name
        self.programs = programs
        self.terrain = terrain
        self.runs = 0
        """How often it was run from its start."""
        self._parked: OrderedDict[Moment, Process] = OrderedDict()
        process = self._fresh()
        self.start = Moment(process, None, 0, None)
        self._park(self.start, process)

    def inode(self, moment: Moment) -> int:
        """Return the number for what the next step makes: the same whatever others did before."""
        return (self.number + 1) * 1_000_000 + moment.depth

    def after(self, moment: Moment, thread: int, result: Result) -> Moment:
        """Return the moment after ``thread``'s request was given ``result``."""
        known = moment.following.get((thread, result))
        if known is not None:
            return known
        process = self._parked.pop(moment, None) or self._again(moment)
        process.go_on(thread, result)
        following = moment.following[thread, result] = Moment(process, moment, thread, result)
        if any(following.requests):
            self._park(following, process)
        return following

    def close(self) -> None:
        """Unwind all that is stopped."""
        while self._parked:
            self._parked.popitem()[1].end()

    def _park(self, moment: Moment, process: Process) -> None:
        self._parked[moment] = process
        if len(self._parked) > _MAX_PARKED:
            self._parked.popitem(last=False)[1].end()

    def _fresh(self) -> Process:
        self.runs += 1
        process = Process(self)
        process.start()
        return process

    def _again(self, moment: Moment) -> Process:
        history = []
        at: Moment | None = moment
        while at is not None and at.above is not None:
            history.append((at.thread, at.result))
            at = at.above
        process = self._fresh()
        for thread, result in reversed(history):
            process.go_on(thread, result)
        process.said()
        return process
