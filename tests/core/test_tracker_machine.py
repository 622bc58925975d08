"""Any sequence of calls on two trackers of one store, against a plain dict.

Two trackers stand for two processes; their caches are small, so that tasks also have to make room. Calls
follow one another here; what happens when they overlap is in the tests beside this one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stores import InMemoryTaskStore, PersistentTaskStore
from task_tracker import (
    InvalidTransition,
    StoreUnavailable,
    TaskExists,
    TaskNotFound,
    TaskStatus,
    TaskTracker,
)
from tests.core.support import OWNER, PROPERTY, TERMINAL, FakeClock, WatchedStore
from tests.core.test_transitions import LEGAL, SAME

DAY = 86_400.0
NAMES = [f"task-{number}" for number in range(6)]
Call = Callable[[TaskTracker, str], object]
STEPS: dict[str, tuple[str, Call]] = {
    "start": ("start", lambda t, i: t.start(i, **OWNER)),
    "complete": ("complete", lambda t, i: t.complete(i, 1, **OWNER)),
    "fail": ("fail", lambda t, i: t.fail(i, "broke", **OWNER)),
    "cancel": ("cancel", lambda t, i: t.cancel(i, **OWNER)),
    "mark_cancelled": ("mark_cancelled", lambda t, i: t.mark_cancelled(i, **OWNER)),
}
ENDS = ("complete", "fail", "mark_cancelled")

names = st.sampled_from(NAMES)
which = st.integers(0, 1)


class TwoTrackers(RuleBasedStateMachine):
    """The model: state per task, states that deleted tasks had, outcomes that wait in each tracker."""

    @initialize()
    def open(self) -> None:
        self.clock = FakeClock()
        self.stores = self.make_stores()
        self.trackers = [TaskTracker(store, clock=self.clock, max_cached=3) for store in self.stores]
        for tracker in self.trackers:
            tracker.access.outcomes.start = lambda delay_seconds=0.0: None  # type: ignore[method-assign]
        self.states: dict[str, str] = {}
        self.gone: dict[str, str] = {}
        self.waiting: list[dict[str, str]] = [{}, {}]

    def make_stores(self) -> list[WatchedStore]:
        shared = InMemoryTaskStore()
        return [WatchedStore(shared), WatchedStore(shared)]

    def teardown(self) -> None:
        for tracker in self.trackers:
            tracker.close()

    # ---- the model ---------------------------------------------------------------------------------

    def after(self, name: str, event: str) -> str | None:
        """The state that an event leads to; None if it is refused."""
        state = self.states[name]
        legal = LEGAL[state].get(event)
        return state if legal == SAME else legal

    def move(self, name: str, event: str) -> bool:
        state = self.after(name, event)
        if state is None:
            return False
        self.states[name] = state
        return True

    def land(self, number: int, name: str) -> None:
        """Whatever a tracker does to a task, an outcome that waits there comes first."""
        event = self.waiting[number].pop(name, None)
        if event is not None and name in self.states:
            self.move(name, event)

    # ---- calls -------------------------------------------------------------------------------------

    @rule(number=which, name=names)
    def create(self, number: int, name: str) -> None:
        self.clock.advance(1)
        if name in self.gone:
            return  # see test_an_id_that_is_used_again_in_another_process
        if name in self.states:
            with pytest.raises(TaskExists):
                self.trackers[number].create("t", name, **OWNER, task_id=name)
        else:
            self.trackers[number].create("t", name, **OWNER, task_id=name)
            self.states[name] = "pending"

    @rule(number=which, name=names)
    def create_if_no_running(self, number: int, name: str) -> None:
        if name in self.states and self.states[name] not in TERMINAL:
            assert self.trackers[number].create_if_no_running("t", name, **OWNER) is None

    @rule(number=which, name=names, step=st.sampled_from(sorted(STEPS)))
    def step(self, number: int, name: str, step: str) -> None:
        self.clock.advance(1)
        event, call = STEPS[step]
        tracker = self.trackers[number]
        self.land(number, name)
        if name in self.gone:
            # A record that has ended is final for those who have it in their cache, also after a deletion.
            with pytest.raises((TaskNotFound, InvalidTransition)):
                self.answer_of_the_dead(call, tracker, name)
        elif name not in self.states:
            with pytest.raises(TaskNotFound):
                call(tracker, name)
        elif self.move(name, event):
            record: Any = call(tracker, name)
            assert record.status == self.states[name]
        else:
            with pytest.raises(InvalidTransition):
                call(tracker, name)

    def answer_of_the_dead(self, call: Call, tracker: TaskTracker, name: str) -> None:
        record: Any = call(tracker, name)
        assert record.status == self.gone[name], "the same end again"
        raise TaskNotFound(name)

    @rule(number=which, name=names)
    def update(self, number: int, name: str) -> None:
        if name not in self.states:
            return
        self.clock.advance(1)
        self.land(number, name)
        call = partial(self.trackers[number].update, name, **OWNER, message=str(self.clock.now()))
        if self.states[name] in TERMINAL:
            with pytest.raises(InvalidTransition):
                call()
        else:
            call()

    @rule(number=which, name=names)
    def delete(self, number: int, name: str) -> None:
        tracker = self.trackers[number]
        state = self.states.get(name)
        if state is not None and state not in TERMINAL:
            with pytest.raises(InvalidTransition):
                tracker.delete(name, **OWNER)
            return
        assert tracker.delete(name, **OWNER) is (state is not None)
        assert tracker.get(name, **OWNER) is None
        if state is not None:
            self.gone[name] = self.states.pop(name)

    def last_change(self, number: int, name: str) -> float:
        """An outcome that waited has the time of its call, or of a later change by somebody else."""
        record: Any = self.trackers[number].get(name, **OWNER)
        return float(record.updated_at)

    @rule(number=which)
    def purge(self, number: int) -> None:
        now = self.clock.now()
        terms = {"completed": DAY, "cancelled": DAY, "failed": 7 * DAY}
        expired = [
            name
            for name, state in self.states.items()
            if state in TERMINAL and self.last_change(number, name) <= now - terms[state]
        ]
        assert self.trackers[number].purge() == len(expired)
        for name in expired:
            self.gone[name] = self.states.pop(name)

    @rule()
    def days_pass(self) -> None:
        self.clock.advance(2 * DAY)

    @rule(number=which, name=names, end=st.sampled_from(ENDS))
    def end_while_the_store_is_away(self, number: int, name: str, end: str) -> None:
        if name not in self.states or self.states[name] in TERMINAL:
            return
        tracker = self.trackers[number]
        self.stores[number].go_down(StoreUnavailable("away"))
        with pytest.raises(StoreUnavailable):
            STEPS[end][1](tracker, name)
        self.stores[number].come_back()
        self.waiting[number].setdefault(name, end)

    @rule(number=which)
    def try_again(self, number: int) -> None:
        assert self.trackers[number].access.outcomes.run_once() is None
        for name in list(self.waiting[number]):
            event = self.waiting[number].pop(name)
            if name in self.states:
                self.move(name, event)

    # ---- what must always be so --------------------------------------------------------------------

    @invariant()
    def every_answer_is_that_of_the_model(self) -> None:
        for tracker in self.trackers:
            for name in NAMES:
                found = tracker.get(name, **OWNER)
                if name in self.states:
                    assert found is not None
                    assert found.status == self.states[name]
                    assert tracker.has_running("t", name, **OWNER) is (self.states[name] not in TERMINAL)
                else:
                    assert found is None or found.status == self.gone[name]
                unnamed = tracker.get(name)
                assert unnamed is None or unnamed == found

    @invariant()
    def lists_and_counts_are_those_of_the_model(self) -> None:
        for tracker in self.trackers:
            listed = {task.task_id: str(task.status) for task in tracker.list_tasks(**OWNER)}
            assert listed == self.states
            for task in tracker.list_tasks():
                assert task.status == (self.states | self.gone)[task.task_id]
            assert tracker.count() <= 3
            counts = tracker.stats("acme").get("t", {})
            assert sum(counts.values()) == len(self.states)
            for status in TaskStatus:
                assert counts.get(status, 0) == list(self.states.values()).count(status)


class TwoTrackersOnFiles(TwoTrackers):
    """The same on one directory, with a store in each process."""

    def make_stores(self) -> list[WatchedStore]:
        self.directory = tempfile.TemporaryDirectory()
        return [
            WatchedStore(PersistentTaskStore(self.directory.name, durability="none", clock=self.clock))
            for _ in range(2)
        ]

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()


TestTwoTrackersOnFiles = TwoTrackersOnFiles.TestCase
TestTwoTrackersOnFiles.settings = settings(PROPERTY, max_examples=15, stateful_step_count=25)
TestTwoTrackers = TwoTrackers.TestCase
TestTwoTrackers.settings = settings(PROPERTY, max_examples=80, stateful_step_count=30)


def test_an_id_that_is_used_again_in_another_process(store: WatchedStore, clock: FakeClock) -> None:
    """An id of the caller's own may be used again after its deletion: its cached end is not the last word."""
    with TaskTracker(store, clock=clock) as ours, TaskTracker(store, clock=clock) as theirs:
        ours.create("t", **OWNER, task_id="mine")
        ours.complete("mine", 1)
        theirs.delete("mine", **OWNER)
        clock.advance(1)
        theirs.create("t", **OWNER, task_id="mine")
        found = ours.get("mine", **OWNER)
        assert found is not None
        assert found.status == "pending"
