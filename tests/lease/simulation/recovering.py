"""What a fresh process makes of a disk on which everybody has crashed.

Owns one run of it for each disk that differs in names and contents: numbers and time stamps are made the same
first, and what was seen before is not run again. Refuses to judge the result.
"""

from __future__ import annotations

from typing import Final

from tests.lease.simulation.calls import Terrain
from tests.lease.simulation.disk import Disk
from tests.lease.simulation.processes import Actor, Fact, Moment, Program
from tests.lease.simulation.rules import Violation

__all__ = ["Recovery"]

MOST_STEPS: Final = 5000

End = tuple[Disk, tuple[Fact, ...], BaseException | None]
"""The disk afterwards, what the process said, and what it raised."""


class Recovery:
    """A fresh process that runs alone after everybody crashed."""

    def __init__(self, program: Program, terrain: Terrain, *, number: int = 90) -> None:
        self.actor = Actor(number, "recovery", [program], terrain)
        self._terrain = terrain
        self._trees: dict[object, End] = {}
        self._from: dict[tuple[Moment, int], End] = {}
        self.ran = 0

    def after(self, disk: Disk) -> End:
        """Return the disk afterwards, what the program said at its end, and what it raised."""
        tree = disk.tree()
        known = self._trees.get(tree)
        if known is None:
            self.ran += 1
            known = self._trees[tree] = self._run(disk.renumbered(frozenset(self._terrain.inodes.values())))
        return known

    def _run(self, disk: Disk) -> End:
        moment, passed = self.actor.start, []
        while True:
            known = self._from.get((moment, disk.key))
            if known is not None:
                break
            passed.append((moment, disk.key))
            request = moment.requests[0]
            if request is None:
                known = (disk, _all_facts(moment), moment.failure)
                break
            disk, result = request.apply(disk, request.resolve(disk), self.actor.inode(moment))
            moment = self.actor.after(moment, 0, result)
            for inode, data in moment.writes:
                disk = disk.append(inode, data)
            if moment.depth > MOST_STEPS:
                raise Violation("recovery ends", f"still busy after {MOST_STEPS} steps alone")
        for place in passed:
            self._from[place] = known
        return known


def _all_facts(moment: Moment) -> tuple[Fact, ...]:
    facts: list[Fact] = []
    at: Moment | None = moment
    while at is not None:
        facts[:0] = at.facts
        at = at.above
    return tuple(facts)
