"""Any sequence of calls, freezes, crashes and outages of three processes on one store with leases.

The model is who holds what, and who has lost it. Calls follow one another here; what happens when they overlap is
in the tests beside this one, and in those of the stores.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from task_tracker import InvalidTransition, LeaseHeld, LeaseLost, StoreUnavailable, TaskTracker
from tests.core.leasing import HEARTBEAT, LEASE, Processes, beat, lease, network
from tests.core.support import OWNER, PROPERTY, TERMINAL, FakeClock

NAMES = [f"task-{number}" for number in range(4)]
Call = Callable[[TaskTracker, str], object]
WRITES: dict[str, tuple[dict[str, str], Call]] = {
    "update": (
        {state: state for state in ("pending", "running", "cancelling")},
        lambda t, i: t.update(i, **OWNER, progress=5),
    ),
    "complete": (
        dict.fromkeys(("pending", "running", "cancelling"), "completed"),
        lambda t, i: t.complete(i, {"n": 1}, **OWNER),
    ),
    "fail": (
        dict.fromkeys(("pending", "running", "cancelling"), "failed"),
        lambda t, i: t.fail(i, "broke", **OWNER),
    ),
    "release": (
        {"pending": "pending", "running": "pending", "cancelling": "cancelled"},
        lambda t, i: t.release(i, **OWNER),
    ),
}
SAME_END = {"complete": "completed", "fail": "failed", "release": "cancelled"}
"""The very same end again changes nothing: but only where it came from that call."""

names = st.sampled_from(NAMES)
which = st.integers(0, 2)


class Three(RuleBasedStateMachine):
    """State per task, its holder, what it ended by, and who has lost it."""

    @initialize()
    def open(self) -> None:
        self.clock = FakeClock()
        self.processes = Processes(self.clock)
        self.trackers = [self.processes.start(f"p{number}") for number in range(3)]
        self.states: dict[str, str] = {}
        self.holders: dict[str, int] = {}
        self.ended_by: dict[str, str] = {}
        self.lost: list[set[str]] = [set(), set(), set()]

    def teardown(self) -> None:
        """After a clean end of all nothing is held, and after a last pass nothing runs."""
        if not hasattr(self, "trackers"):
            return
        last = self.processes.start("last")
        for number, tracker in enumerate(self.trackers):
            tracker.close()
            self.give_back(number)
        self.look(last)
        assert not set(self.states.values()) & {"running", "cancelling"}
        assert last.reconcile() == (0, 0, 0, 0, 0)

    def give_back(self, number: int) -> None:
        for name, holder in list(self.holders.items()):
            if holder == number:
                self.enter(name, "pending" if self.states[name] == "running" else "cancelled", "release")

    def enter(self, name: str, state: str, by: str) -> None:
        self.states[name] = state
        if state in TERMINAL:
            self.ended_by[name] = by
        if state in TERMINAL or state == "pending":
            self.holders.pop(name, None)

    # ---- calls -------------------------------------------------------------------------------------

    @rule(number=which, name=names)
    def create(self, number: int, name: str) -> None:
        if name not in self.states:
            self.trackers[number].create("t", name, **OWNER, task_id=name)
            self.states[name] = "pending"
            self.lost[number].discard(name)

    @rule(number=which, name=names)
    def start(self, number: int, name: str) -> None:
        if name not in self.states:
            return
        call, state, holder = self.trackers[number].start, self.states[name], self.holders.get(name)
        if state in TERMINAL or (holder == number and state == "cancelling"):
            with pytest.raises(InvalidTransition):
                call(name, **OWNER)
        elif holder not in (None, number):
            with pytest.raises(LeaseHeld) as held:
                call(name, **OWNER)
            assert held.value.holder == f"p{holder}"
        else:
            begun = call(name, **OWNER)
            assert begun is not None
            assert begun.status == "running"
            self.states[name], self.holders[name] = "running", number
            self.lost[number].discard(name)

    @rule(number=which, name=names, write=st.sampled_from(sorted(WRITES)))
    def write(self, number: int, name: str, write: str) -> None:
        if name not in self.states:
            return
        (legal, call), tracker, state = WRITES[write], self.trackers[number], self.states[name]
        if name in self.lost[number]:
            with pytest.raises(LeaseLost):
                call(tracker, name)
        elif state in TERMINAL:
            if SAME_END.get(write) == state and (write == "release" or self.ended_by[name] == write):
                call(tracker, name)
            else:
                with pytest.raises(InvalidTransition):
                    call(tracker, name)
        elif self.holders.get(name) not in (None, number):
            with pytest.raises(LeaseHeld):
                call(tracker, name)
        else:
            call(tracker, name)
            self.enter(name, legal[state], write)

    @rule(number=which, name=names)
    def cancel(self, number: int, name: str) -> None:
        if name not in self.states:
            return
        tracker, state = self.trackers[number], self.states[name]
        if state in ("completed", "failed"):
            with pytest.raises(InvalidTransition):
                tracker.cancel(name, **OWNER)
            return
        record = tracker.cancel(name, **OWNER)
        if state in ("pending", "running"):
            self.enter(name, "cancelled" if state == "pending" else "cancelling", "cancel")
        assert record is not None
        assert record.status == self.states[name]

    @rule(number=which, name=names)
    def ask(self, number: int, name: str) -> None:
        if name not in self.states:
            return
        tracker = self.trackers[number]
        if name in self.lost[number]:
            with pytest.raises(LeaseLost):
                tracker.is_cancellation_requested(name, **OWNER)
        else:
            wished = self.states[name] in ("cancelling", "cancelled")
            assert tracker.is_cancellation_requested(name, **OWNER) is wished

    # ---- what goes wrong -----------------------------------------------------------------------------

    @rule(number=which)
    def beats(self, number: int) -> None:
        beat(self.trackers[number])

    @rule(number=which, name=names, after=st.booleans())
    def an_answer_is_lost(self, number: int, name: str, after: bool) -> None:
        """A write that the store took, or did not; nobody can tell which until it is asked again."""
        if self.holders.get(name) != number or name in self.lost[number]:
            return
        network(self.trackers[number]).fail(on="commit", after=after)
        self.clock.advance(1)
        with pytest.raises(StoreUnavailable):
            self.trackers[number].update(name, **OWNER, message=str(self.clock.now()))
        network(self.trackers[number]).heal()

    @rule(number=which)
    def an_outage(self, number: int) -> None:
        """Of one process, and not long enough to lose anything."""
        network(self.trackers[number]).fail(forever=True)
        self.clock.advance(HEARTBEAT)
        beat(*self.trackers)
        network(self.trackers[number]).heal()
        beat(*self.trackers)

    @rule(frozen=st.sets(which, min_size=1, max_size=2), reconciler=which)
    def freeze(self, frozen: set[int], reconciler: int) -> None:
        """Some stand still for longer than a lease; somebody who does not settles their tasks."""
        alive = [tracker for number, tracker in enumerate(self.trackers) if number not in frozen]
        if reconciler in frozen:
            reconciler = next(number for number in range(3) if number not in frozen)
        beat(*self.trackers)
        for _ in range(4):
            self.clock.advance(HEARTBEAT)
            beat(*alive)
        done = self.trackers[reconciler].reconcile()
        settled = [name for name, holder in self.holders.items() if holder in frozen]
        assert done.holder_lost == sum(self.states[name] == "running" for name in settled)
        assert done.cancelled == sum(self.states[name] == "cancelling" for name in settled)
        for name in settled:
            self.lost[self.holders[name]].add(name)
            self.enter(name, "failed" if self.states[name] == "running" else "cancelled", "reconciler")

    # ---- what always holds ---------------------------------------------------------------------------

    def look(self, tracker: TaskTracker) -> None:
        for name, state in self.states.items():
            found = tracker.get(name, **OWNER)
            assert found is not None
            assert found.status == state

    @invariant()
    def everybody_sees_the_same(self) -> None:
        for tracker in self.trackers:
            self.look(tracker)

    @invariant()
    def nobody_holds_what_is_not_his(self) -> None:
        for number, tracker in enumerate(self.trackers):
            assert tracker.access.ownership is not None
            held = {holding.lease.key.task_id for holding in tracker.access.ownership.holdings.all()}
            mine = {name for name, holder in self.holders.items() if holder == number}
            # What is lost without knowing it yet is found out by the next call or heartbeat.
            assert held - self.lost[number] == mine
            for name in mine:
                record = tracker.get(name, **OWNER)
                assert record is not None
                assert not lease(tracker, record).lost.is_set()


TestThree = Three.TestCase
TestThree.settings = settings(PROPERTY, max_examples=100, stateful_step_count=30)
assert LEASE < 4 * HEARTBEAT, "four heartbeats are longer than a lease"
