"""The search finds what is wrong with a protocol, and nothing where it is right."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.lease.simulation.calls import Request, Terrain
from tests.lease.simulation.core_protocol import DIRECTORIES, dedupe, lease, made
from tests.lease.simulation.disk import Disk, Result
from tests.lease.simulation.exploring import Exploration, Outcome, explore
from tests.lease.simulation.processes import Actor, Fact, Process, Program
from tests.lease.simulation.recovering import Recovery
from tests.lease.simulation.rules import Ghost, Violation

RIGHT: dict[str, tuple[Callable[[], Exploration], int]] = {
    "one thief": (lambda: lease(1), 397),
    "two thieves": (lambda: lease(2), 50_852),
    "one thief, cached names": (lambda: lease(1, cached=True), 1_028),
    "two creators": (lambda: dedupe(2), 238),
}
WRONG: dict[str, tuple[Callable[[], Exploration], str]] = {
    "no purge": (lambda: lease(1, without="purge"), "late commit"),
    "no rmdir": (lambda: lease(1, cached=True, without="rmdir"), "late commit"),
    "no provisional name": (lambda: lease(2, cached=True, without="confirm"), "late commit"),
    "no withdrawal": (lambda: dedupe(2, without="withdraw"), "one active"),
    "no fence": (lambda: dedupe(2, without="fence"), "one active"),
}
orders = pytest.mark.parametrize("by_steps", [True, False], ids=["by steps", "by switches"])


@orders
@pytest.mark.parametrize("name", RIGHT)
def test_the_core_of_the_protocol_holds(name: str, by_steps: bool) -> None:
    make, states = RIGHT[name]
    exploration = make()
    exploration.by_steps = by_steps
    outcome = explore(exploration)
    assert outcome.violation is None, outcome
    assert (outcome.exhausted, outcome.states) == (True, states)


@orders
@pytest.mark.parametrize("name", WRONG)
def test_without_one_of_its_rules_it_does_not(name: str, by_steps: bool) -> None:
    make, check = WRONG[name]
    exploration = make()
    exploration.by_steps = by_steps
    outcome = explore(exploration)
    assert outcome.violation is not None
    assert outcome.violation.check == check
    assert outcome.schedule[-1].endswith("<- here")


def test_the_shortest_schedule_is_the_one_that_is_known() -> None:
    exploration = lease(1, without="purge")
    exploration.by_steps = True
    assert explore(exploration).schedule == (
        "A create /leases/t@1-a/stage-a/running = (1000000,)",
        "B listdir /leases = ('t@1-a',)",
        "B rename /leases/t@1-a -> /leases/t@2-b~ = ok",
        "B mkdir /leases/t@2-b~/stage-b = ok",
        "B rename /leases/t@2-b~ -> /leases/t@2-b = ok",
        "A replace /leases/t@1-a/stage-a/running -> /tasks/t   <- here",
    )


def test_a_search_that_is_cut_short_says_so() -> None:
    exploration = lease(2)
    exploration.max_states = 1000
    outcome = explore(exploration)
    assert (outcome.states, outcome.exhausted, outcome.violation) == (1000, False, None)
    assert "1000 states, not all of them" in str(outcome)


# ---- small worlds -----------------------------------------------------------------------------------------


class Facts:
    """Remembers what programs say; ``forbidden`` is what must not be said."""

    def __init__(self, *forbidden: Fact) -> None:
        self.forbidden = forbidden
        self.heard: set[Fact] = set()
        self.ends: set[object] = set()

    def concerns(self, request: Request) -> bool:
        return False

    def called(self, request: Request, result: Result, before: Disk, after: Disk, ghost: Ghost) -> Ghost:
        raise AssertionError("it does not concern these rules")

    def said(self, actor: str, fact: Fact, disk: Disk, ghost: Ghost) -> Ghost:
        self.heard.add((actor, *fact))
        if fact in self.forbidden:
            raise Violation("forbidden", f"{actor} said {fact}")
        return ghost

    def recovered(self, before: Disk, after: Disk, facts: Sequence[Fact], ghost: Ghost) -> None:
        self.ends.add(after.tree())


def race(
    *programs: Program | tuple[Program, ...], rules: Facts | None = None, disk: Disk | None = None, **how: Any
) -> tuple[Outcome, Facts]:
    disk = made(*DIRECTORIES) if disk is None else disk
    terrain = Terrain(disk, DIRECTORIES)
    actors = [
        Actor(number, "AB"[number], program if isinstance(program, tuple) else (program,), terrain)
        for number, program in enumerate(programs)
    ]
    rules = Facts() if rules is None else rules
    recovery = how.pop("recovery", None)
    alone = None if recovery is None else Recovery(recovery, terrain)
    return explore(Exploration("a race", terrain, disk, actors, rules, alone, **how)), rules


def make(path: str) -> Program:
    return lambda process: process.ops.mkdir(path)


def lists(process: Process) -> None:
    process.note("saw", tuple(process.ops.listdir("/new")))


def test_both_orders_of_two_calls_are_explored() -> None:
    outcome, rules = race(make("/new/a"), lists)
    assert outcome.exhausted
    assert rules.heard == {("B", "saw", ()), ("B", "saw", ("a",))}


def test_what_a_program_meets_is_reported_with_the_schedule() -> None:
    outcome, _ = race(make("/new/a"), make("/new/a"))
    assert outcome.violation is not None
    assert outcome.violation.check == "no surprises"
    assert "FileExistsError" in str(outcome)
    assert isinstance(outcome.violation.__cause__, FileExistsError)


def test_a_suspended_walk_goes_on_in_what_it_found() -> None:
    """The directory moves between path walk and operation: the write lands in it under its new name."""

    class Places(Facts):
        def said(self, actor: str, fact: Fact, disk: Disk, ghost: Ghost) -> Ghost:
            return super().said(
                actor, (*fact, *disk.names_at("/new"), *disk.names_at("/keys/d")), disk, ghost
            )

    def write(process: Process) -> None:
        try:
            process.ops.close(process.ops.open("/new/d/x", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        except FileNotFoundError:
            process.note("found nothing")
        else:
            process.note("wrote")

    def move(process: Process) -> None:
        process.ops.rename("/new/d", "/keys/d")

    _, rules = race(move, write, rules=Places(), disk=made(*DIRECTORIES, "/new/d"))
    assert rules.heard == {("B", "wrote", "d"), ("B", "wrote", "x"), ("B", "found nothing")}


def test_recovery_is_asked_in_every_state() -> None:
    def tidy(process: Process) -> None:
        for name in process.ops.listdir("/new"):
            process.ops.rmdir(f"/new/{name}")

    outcome, rules = race(make("/new/a"), make("/new/b"), recovery=tidy)
    assert outcome.violation is None
    assert outcome.recoveries == 4
    assert rules.ends == {made(*DIRECTORIES).tree()}


def test_recovery_that_does_not_end_is_found() -> None:
    def busy(process: Process) -> None:
        while True:
            process.ops.listdir("/new")

    outcome, _ = race(make("/new/a"), recovery=busy)
    assert outcome.violation is not None
    assert outcome.violation.check == "recovery ends"


def test_a_lost_reply_is_that_of_the_repeated_request() -> None:
    def again(process: Process) -> None:
        try:
            process.ops.mkdir("/new/a")
        except FileExistsError:
            process.note("told that it was there", tuple(process.ops.listdir("/new")))

    assert not race(again)[1].heard
    outcome, rules = race(again, lost_replies=frozenset({"mkdir"}))
    assert outcome.exhausted
    assert rules.heard == {("A", "told that it was there", ("a",))}


def test_a_torn_listing_misses_what_moves_meanwhile() -> None:
    def move(process: Process) -> None:
        process.ops.rename("/new/a", "/new/d")

    disk = made(*DIRECTORIES, "/new/a")
    assert race(move, lists, disk=disk)[1].heard == {("B", "saw", ("a",)), ("B", "saw", ("d",))}
    heard = race(move, lists, disk=disk, torn_lists=True)[1].heard
    assert {("B", "saw", ()), ("B", "saw", ("a", "d"))} & heard


# ---- threads of one process -------------------------------------------------------------------------------


def locked(name: str) -> Program:
    def program(process: Process) -> None:
        with process.locks.hold("k"):
            process.ops.mkdir(f"/new/{name}")
            process.note("inside", tuple(process.ops.listdir("/keys")))
            process.ops.rmdir(f"/new/{name}")

    return program


def test_threads_of_one_process_take_turns_and_locks_hold() -> None:
    def seen(process: Process) -> None:
        process.note("saw", tuple(process.ops.listdir("/new")))

    outcome, rules = race((locked("a"), locked("b")), seen)
    assert outcome.violation is None
    assert outcome.exhausted
    assert {fact[2] for fact in rules.heard if fact[1] == "saw"} == {(), ("a",), ("b",)}


def test_threads_that_wait_for_each_other_are_found() -> None:
    def crossed(one: str, other: str) -> Program:
        def program(process: Process) -> None:
            with process.locks.hold(one):
                process.ops.turn()
                with process.locks.hold(other):
                    process.ops.turn()

        return program

    outcome, _ = race((crossed("k", "l"), crossed("l", "k")))
    assert outcome.violation is not None
    assert "wait for each other" in str(outcome.violation)


def test_what_is_left_open_is_found() -> None:
    def forget(process: Process) -> None:
        process.ops.open("/new", os.O_RDONLY)

    outcome, _ = race(forget)
    assert outcome.violation is not None
    assert "left open" in str(outcome.violation)
