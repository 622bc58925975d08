"""All schedules of some processes on one disk, those that switch seldom first.

Most races need two or three switches at the right moments, deep in a run: those are reached early that way, also
where there are too many schedules for all of them. Breadth first (``by_steps``) gives the shortest counterexample.

Owns the search: states, what can happen next, what is checked where, the printed counterexample. Refuses to know
what is right: that is said by :class:`Rules`.

A path walk is a step of its own, but not a state of its own: names are looked up as soon as a call is wanted, and
looked up again, as a step, whenever that would find something else. So every pair of moments for walk and operation
is covered. Clients that cache what they looked up (``cached``) never look the same up again. Every state is also a
crash of all processes: what comes after it is for :class:`Recovery` to find out.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tests.lease.simulation.calls import Request, Terrain
from tests.lease.simulation.clients import AGAIN, Half, Handles, remembered, walk_cached
from tests.lease.simulation.disk import Disk, Result, succeeded
from tests.lease.simulation.processes import Actor, Moment
from tests.lease.simulation.recovering import Recovery
from tests.lease.simulation.rules import Ghost, Rules, Violation

__all__ = ["Exploration", "Outcome", "explore"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a search found. ``exhausted``: there are no more states than ``states``."""

    title: str
    states: int
    exhausted: bool
    recoveries: int
    depth: int
    violation: Violation | None = None
    schedule: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = f"{self.title}: {self.states} states, {'all' if self.exhausted else 'not all'} of them, "
        said += f"{self.recoveries} recoveries, {self.depth} steps"
        if self.violation is not None:
            said = "\n".join([f"{self.title}: {self.violation}", *(f"    {step}" for step in self.schedule)])
        return said


# A process in a state: its moment, what the walks of its threads' requests found, what it caches.
Place = tuple[Moment, tuple[Any, ...], Handles]
State = tuple[Disk, tuple[Place, ...], Ghost, bool]
Trace = tuple[Any, int, int, Request, Result, bool]
"""The trace before, actor, thread, request, result, whether it is only a new path walk."""

_Item = tuple[State, Trace | None, int | None, int]
"""A state, how it was reached, who made the last step, and how many there were."""

_WALKED: Final = "walked"


@dataclasses.dataclass
class Exploration:
    """What to explore and how.

    ``cached``: directories are looked up once by each process and never again. ``lost_replies``: once per run a
    call takes effect and is answered as a repeated one would be. ``torn_lists``: a listing reads half of the
    directory now and the other half later. ``by_steps``: short schedules first.
    """

    title: str
    terrain: Terrain
    disk: Disk
    actors: Sequence[Actor]
    rules: Rules
    recovery: Recovery | None = None
    ghost: Ghost = frozenset()
    cached: bool = False
    lost_replies: frozenset[str] = frozenset()
    torn_lists: bool = False
    by_steps: bool = False
    max_states: int = 1_000_000
    readable: Callable[[str], str] = str
    """Shortens what is told of a schedule."""


def explore(exploration: Exploration) -> Outcome:
    """Search. Deterministic; bounded by ``max_states``."""
    assert not (exploration.cached and exploration.torn_lists), "one kind of client at a time"
    search = _Search(exploration)
    with _bare():
        try:
            return search.run()
        finally:
            for actor in exploration.actors:
                actor.close()
            if exploration.recovery is not None:
                exploration.recovery.actor.close()


@contextmanager
def _bare() -> Iterator[None]:
    """Run without a tracer and without logging: both are bought dearly for what runs a million times."""
    tracer, log = sys.gettrace(), logging.getLogger("task_tracker")
    sys.settrace(None)
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False
        sys.settrace(tracer)


class _Search:
    def __init__(self, exploration: Exploration) -> None:
        self._about = exploration
        self._actors = exploration.actors
        self._rules = exploration.rules
        self._levels: list[deque[_Item]] = [deque()]
        self._current: int | None = None
        self._runnable = False
        self._level = 0
        self._seen: set[int] = set()
        self._crashed: set[int] = set()
        self._concerned: dict[Request, bool] = {}
        self._schedule: tuple[Trace | None, tuple[int, int, Request]] | None = None

    def run(self) -> Outcome:
        about = self._about
        states = depth = 0
        trace: Trace | None = None
        try:
            self._add(self._first(), None, None)
            while (item := self._next()) is not None and states < about.max_states:
                state, trace, self._current, at = item
                depth = max(depth, at)
                states += 1
                self._check_crash(state)
                self._expand(state, trace, at + 1)
        except Violation as violation:
            return Outcome(
                about.title, states, False, self._recoveries(), depth, violation, tuple(self._told(trace))
            )
        return Outcome(about.title, states, item is None, self._recoveries(), depth)

    def _next(self) -> _Item | None:
        """Return what to look at next: what takes the fewest switches, or the fewest steps."""
        while self._level < len(self._levels):
            level = self._levels[self._level]
            if level:
                return level.popleft() if self._about.by_steps else level.pop()
            self._level += 1
        return None

    def _recoveries(self) -> int:
        return 0 if self._about.recovery is None else self._about.recovery.ran

    # ---- states --------------------------------------------------------------------------------------

    def _first(self) -> State:
        """Return the state after the parts of the programs that run alone."""
        places: tuple[Place, ...] = tuple(
            (actor.start, (None,) * len(actor.programs), ()) for actor in self._actors
        )
        state: State = (self._about.disk, places, self._about.ghost, False)
        for index in range(len(self._actors)):
            state = self._entered(state, index)
            while not state[1][index][0].begun:
                state = self._step(state, index, 0, None)[0]
        return state

    def _entered(self, state: State, index: int) -> State:
        disk, places, ghost, lost = state
        moment, _, handles = places[index]
        place, disk, ghost = self._arrived(
            index, moment, handles, disk, ghost, (None,) * len(moment.requests), None
        )
        return disk, (*places[:index], place, *places[index + 1 :]), ghost, lost

    def _arrived(
        self,
        index: int,
        moment: Moment,
        handles: Handles,
        disk: Disk,
        ghost: Ghost,
        found: tuple[Any, ...],
        before: Moment | None,
    ) -> tuple[Place, Disk, Ghost]:
        """Apply what a process did by itself on the way to ``moment``, and walk the paths of what it wants next."""
        actor = self._actors[index]
        for inode, data in moment.writes:
            disk = disk.append(inode, data)
        for fact in moment.facts:
            ghost = self._rules.said(actor.name, fact, disk, ghost)
        if moment.failure is not None:
            raise Violation("no surprises", f"{actor.name} met {moment.failure!r}") from moment.failure
        walked: list[Any] = []
        for thread, request in enumerate(moment.requests):
            if before is not None and before.requests[thread] is request and moment.thread != thread:
                walked.append(found[thread])
            elif request is None or not request.walks:
                walked.append(None)
            else:
                walked.append(self._walk(request, disk, handles))
        return (moment, tuple(walked), handles), disk, ghost

    def _walk(self, request: Request, disk: Disk, handles: Handles) -> Any:
        """Return what a walk finds now; of a caching client also what it knows from then on."""
        return walk_cached(request, disk, handles) if self._about.cached else request.resolve(disk)

    def _add(self, state: State, trace: Trace | None, index: int | None, depth: int = 0) -> None:
        disk, places, ghost, lost = state
        mark = hash((disk.key, places, ghost, lost))
        if mark in self._seen:
            return
        self._seen.add(mark)
        level = self._level
        # Going on after another process that could have gone on is a switch.
        if not self._about.by_steps and self._current not in (None, index) and self._runnable:
            level += 1
            if level == len(self._levels):
                self._levels.append(deque())
        self._levels[level].append((state, trace, index, depth))

    def _check_crash(self, state: State) -> None:
        recovery = self._about.recovery
        if recovery is None:
            return
        disk, _, ghost, _ = state
        mark = hash((disk.key, ghost))
        if mark in self._crashed:
            return
        self._crashed.add(mark)
        after, facts, failure = recovery.after(disk)
        if failure is not None:
            raise Violation("recovery works", f"after all crash here, it met {failure!r}") from failure
        try:
            self._rules.recovered(disk, after, facts, ghost)
        except Violation as violation:
            raise Violation(violation.check, f"after all crash here: {violation.message}") from violation

    # ---- steps ---------------------------------------------------------------------------------------

    def _expand(self, state: State, trace: Trace | None, depth: int) -> None:
        disk, places, ghost, lost = state
        about = self._about
        self._runnable = self._current is not None and any(places[self._current][0].requests)
        for index, (moment, found, handles) in enumerate(places):
            for thread, request in enumerate(moment.requests):
                if request is None:
                    continue
                at = found[thread]
                if request.walks and type(at) is not Half:
                    now = self._walk(request, disk, handles)
                    if now != at:
                        place = (moment, (*found[:thread], now, *found[thread + 1 :]), handles)
                        self._add(
                            (disk, (*places[:index], place, *places[index + 1 :]), ghost, lost),
                            (trace, index, thread, request, _WALKED, True),
                            index,
                            depth,
                        )
                if about.torn_lists and request.name in ("listdir", "scandir") and type(at) is not Half:
                    half = Half(request, disk, request.resolve(disk) if at is None else at)
                    place = (moment, (*found[:thread], half, *found[thread + 1 :]), handles)
                    self._add(
                        (disk, (*places[:index], place, *places[index + 1 :]), ghost, lost),
                        (trace, index, thread, request, "half of it", True),
                        index,
                        depth,
                    )
                    continue
                self._schedule = (trace, (index, thread, request))
                following, result = self._step(state, index, thread, None)
                self._add(following, (trace, index, thread, request, result, False), index, depth)
                if not lost and request.name in about.lost_replies and succeeded(result):
                    again = AGAIN[request.name]
                    following = self._step(state, index, thread, again)[0]
                    self._add(
                        following, (trace, index, thread, request, ("lost", again), False), index, depth
                    )
        self._schedule = None

    def _step(self, state: State, index: int, thread: int, told: Result) -> tuple[State, Result]:
        """Apply a process's request. ``told``: what it is told instead of the result."""
        disk, places, ghost, lost = state
        moment, found, handles = places[index]
        actor = self._actors[index]
        request = moment.requests[thread]
        assert request is not None
        at = found[thread]
        if self._about.cached and request.walks:
            at, handles = at
        if type(at) is Half:
            after, result = at.finish(disk)
        else:
            after, result = request.apply(
                disk, request.resolve(disk) if at is None else at, actor.inode(moment)
            )
        concerned = self._concerned.get(request)
        if concerned is None:
            concerned = self._concerned[request] = self._rules.concerns(request)
        if concerned:
            ghost = self._rules.called(request, result, disk, after, ghost)
        if self._about.cached and request.changes and succeeded(result):
            handles = remembered(request, handles, actor.inode(moment))
        following = actor.after(moment, thread, result if told is None else told)
        place, after, ghost = self._arrived(index, following, handles, after, ghost, found, moment)
        return (
            after,
            (*places[:index], place, *places[index + 1 :]),
            ghost,
            lost or told is not None,
        ), result

    # ---- telling -------------------------------------------------------------------------------------

    def _told(self, trace: Trace | None) -> Iterator[str]:
        steps: list[Trace] = []
        last: tuple[int, int, Request] | None = None
        if self._schedule is not None:
            trace, last = self._schedule
        while trace is not None:
            steps.append(trace)
            trace = trace[0]
        for _, index, thread, request, result, _ in reversed(steps):
            yield self._about.readable(f"{self._name(index, thread)} {request} {_readable(result)}")
        if last is not None:
            yield self._about.readable(f"{self._name(last[0], last[1])} {last[2]}   <- here")

    def _name(self, index: int, thread: int) -> str:
        actor = self._actors[index]
        return actor.name if len(actor.programs) == 1 else f"{actor.name}.{thread}"


def _readable(result: Result) -> str:
    if result is None or result == ():
        return "= ok" if result is None else "= ()"
    if result is _WALKED:
        return "(its names are looked up again)"
    if isinstance(result, int):
        return f"= {errno.errorcode[result]}"
    if isinstance(result, tuple) and result[0] == "lost":
        return f"= ok, but its reply is lost; asked again: {errno.errorcode[result[1]]}"
    if isinstance(result, tuple) and len(result) == 3 and isinstance(result[2], bytes):
        return f"= {result[2].decode(errors='replace')}"
    return f"= {result}"
