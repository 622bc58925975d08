"""Who does what at the same time: the situations whose schedules are explored.

Owns the list. Each is a few processes with one short program each; what a program has done before the race
begins is its ``before``. Refuses to know what is right.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Final

from stores.files.lease.store import LeaseTaskStore
from tests.lease.simulation import programs as do
from tests.lease.simulation import workers as crew
from tests.lease.simulation.coordination import CoordinationRules
from tests.lease.simulation.exploring import Exploration
from tests.lease.simulation.invariants import LeaseRules, view
from tests.lease.simulation.processes import Actor, Process, Program
from tests.lease.simulation.recovering import Recovery
from tests.lease.simulation.world import CONTROL, RECORDS, legacy, prepared

__all__ = ["SCENARIOS", "By", "Scenario"]


class By:
    """A process: what its threads do, and what it has done before."""

    def __init__(self, *threads: Program, before: Program | None = None) -> None:
        self.threads = threads
        self.before = before


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Processes that race, and how the world is."""

    name: str
    by: Sequence[By | Program]
    alone: bool = False
    files: dict[str, bytes] | None = None
    doctor: bool = False
    """Recovery may need a look at everything as well."""
    most: int | None = None
    """How many tasks may run at once."""
    servers: int = 0
    """How many workers claim at once, if one of them is to get a task."""
    pausing: bool = False

    def exploration(
        self,
        *,
        kind: type[LeaseTaskStore] = LeaseTaskStore,
        recovers: bool = True,
        cached: bool = False,
        lost_replies: frozenset[str] = frozenset(),
        torn_lists: bool = False,
        slow_writes: bool = False,
        by_steps: bool = False,
        max_states: int = 1_000_000,
    ) -> Exploration:
        """Return what to explore. ``kind`` is the store's class."""
        disk, terrain = prepared(self.files, pausing=self.pausing)
        workers = self.most is not None or self.pausing

        def of(program: Program) -> Program:
            def begun(process: Process) -> None:
                process.shared["kind"] = kind
                process.shared["doctor"] = self.doctor
                # What is repeated when a reply got lost is a rename, never a swap.
                process.shared["durability"] = "edges" if lost_replies else "none"
                program(process)

            return begun

        actors = []
        for number, each in enumerate(self.by, start=1):
            by = each if isinstance(each, By) else By(each)
            actors.append(
                Actor(
                    number,
                    "_ABCDEF"[number],
                    [of(thread) for thread in by.threads],
                    terrain,
                    prepare=None if by.before is None else of(by.before),
                    slow_writes=slow_writes,
                )
            )
        return Exploration(
            self.name,
            terrain,
            disk,
            actors,
            CoordinationRules(most=self.most, servers=self.servers)
            if workers
            else LeaseRules(alone=self.alone),
            Recovery(of(do.recovery), terrain) if recovers else None,
            cached=cached,
            lost_replies=lost_replies,
            torn_lists=torn_lists,
            by_steps=by_steps,
            max_states=max_states,
            readable=readable,
        )


def readable(text: str) -> str:
    """Shorten paths, names and tokens; records to what matters of them."""
    text = re.sub(r"= (\{.*)", lambda found: f"= {tuple(view(found[1].encode()))}", text)
    text = text.replace(f"{CONTROL}/", "").replace(f"{RECORDS}/", "").replace(RECORDS, "tasks")
    return re.sub(r"[0-9]{16}\.acme\+alice\+|0{16,}", "", text)


WAITING: Final = By(do.idle, before=do.create())
HOLDER: Final = By(do.hold(), before=do.taken())
RETRYING: Final = By(do.hold(retry=True), before=do.taken())
ENDED: Final = By(do.idle, before=do.ended())
LEFT: Final = By(do.idle, before=do.ended(leaving=True))
THIEF: Final = By(do.settle, before=do.watch)
"""Has looked at all leases long ago, and thinks them all expired."""
LATE_THIEF: Final = do.reconcile
"""Begins to look now."""

ONE_HOLDER: Final = By(do.hold(), before=do.taken("t", "one"))
ONE_LEFT: Final = By(do.idle, before=do.ended("t", "one", leaving=True))

WORK, RETRY = do.work(), do.work(retry=True)
CREATE, CANCEL, DELETE, RECOVER = do.create(), do.cancel(), do.delete(), do.recover
ONE_T, ONE_U, ONE_V = (do.create(task, "one", alone=True) for task in "tuv")


def _one(name: str, *by: By | Program) -> Scenario:
    """All who create want to be the only one of their kind."""
    return Scenario(name, by, alone=True)


def _legacy(name: str, *by: By | Program, status: str = "pending") -> Scenario:
    """The task was written by a store without leases."""
    return Scenario(name, by, files=legacy(status), doctor=True)


_CREATING: Final = (
    Scenario("create, recover", [CREATE, RECOVER]),
    Scenario("create, recover twice", [CREATE, RECOVER, RECOVER]),
    Scenario("create twice", [CREATE, CREATE]),
    Scenario("create twice, recover", [CREATE, CREATE, RECOVER]),
    Scenario("create, recover, claim", [CREATE, RECOVER, WORK]),
    Scenario("create, cancel", [CREATE, CANCEL]),
    Scenario("create, cancel, recover", [CREATE, CANCEL, RECOVER]),
    Scenario("create, cancel, claim", [CREATE, CANCEL, WORK]),
    Scenario("create what exists, recover", [WAITING, CREATE, RECOVER]),
)
_CLAIMING: Final = (
    Scenario("claim twice", [WAITING, WORK, WORK]),
    Scenario("claim, thief", [WAITING, WORK, LATE_THIEF]),
    Scenario("claim, two thieves", [WAITING, WORK, LATE_THIEF, LATE_THIEF]),
    Scenario("claim twice, thief", [WAITING, WORK, WORK, LATE_THIEF]),
    Scenario("claim, cancel", [WAITING, WORK, CANCEL]),
    Scenario("claim, cancel twice", [WAITING, WORK, CANCEL, CANCEL]),
    Scenario("claim, cancel, thief", [WAITING, WORK, CANCEL, LATE_THIEF]),
)
_HOLDING: Final = (
    Scenario("hold, thief", [HOLDER, THIEF]),
    Scenario("hold, two thieves", [HOLDER, THIEF, THIEF]),
    Scenario("hold, thief, late thief", [HOLDER, THIEF, LATE_THIEF]),
    Scenario("hold, cancel", [HOLDER, CANCEL]),
    Scenario("hold, cancel twice", [HOLDER, CANCEL, CANCEL]),
    Scenario("hold, cancel, thief", [HOLDER, CANCEL, THIEF]),
    Scenario("retry, claim", [RETRYING, WORK]),
    Scenario("retry, claim twice", [RETRYING, WORK, WORK]),
    Scenario("retry, claim, thief", [RETRYING, WORK, THIEF]),
    Scenario("retry, cancel", [RETRYING, CANCEL]),
    Scenario("retry, cancel, claim", [RETRYING, CANCEL, WORK]),
    Scenario("retry, cancel, thief", [RETRYING, CANCEL, THIEF]),
    Scenario("renew, thief", [By(do.heartbeat, before=do.taken()), THIEF]),
    Scenario("renew, two thieves", [By(do.heartbeat, before=do.taken()), THIEF, THIEF]),
    Scenario("two commits of one holder, thief", [By(do.progress, do.progress, before=do.taken()), THIEF]),
    Scenario(
        "commit and release of one holder, thief", [By(do.progress, do.let_go, before=do.taken()), THIEF]
    ),
    Scenario("commit and end of one holder, thief", [By(do.progress, do.hold(), before=do.taken()), THIEF]),
    Scenario("renew and end of one holder, thief", [By(do.heartbeat, do.hold(), before=do.taken()), THIEF]),
)
_DELETING: Final = (
    Scenario("hold, delete", [HOLDER, DELETE]),
    Scenario("hold, delete, thief", [HOLDER, DELETE, THIEF]),
    Scenario("delete and create again, thief", [LEFT, do.in_turn(DELETE, CREATE), THIEF]),
    Scenario("delete, create again and claim, thief", [LEFT, do.in_turn(DELETE, CREATE, WORK), THIEF]),
    Scenario(
        "delete, create again and claim, two thieves", [LEFT, do.in_turn(DELETE, CREATE, WORK), THIEF, THIEF]
    ),
    Scenario(
        "end, delete, create again and claim, thief",
        [By(do.in_turn(do.hold(), DELETE, CREATE, WORK), before=do.taken()), THIEF],
    ),
    Scenario(
        "end, delete, create again and claim, cancel",
        [By(do.in_turn(do.hold(), DELETE, CREATE, WORK), before=do.taken()), CANCEL],
    ),
    Scenario("end, retention", [HOLDER, do.retain]),
    Scenario("retention, delete and create again", [ENDED, do.retain, do.in_turn(DELETE, CREATE)]),
    Scenario("retention twice, create", [ENDED, do.retain, do.retain, CREATE]),
    Scenario("delete, delete and create again", [ENDED, DELETE, do.in_turn(DELETE, CREATE)]),
    Scenario(
        "delete, delete and create again, recover", [ENDED, DELETE, do.in_turn(DELETE, CREATE), RECOVER]
    ),
    Scenario("delete, delete and create again, create", [ENDED, DELETE, do.in_turn(DELETE, CREATE), CREATE]),
)
_ALONE: Final = (
    _one("only one: create twice", ONE_T, ONE_U),
    _one("only one: create three times", ONE_T, ONE_U, ONE_V),
    _one("only one: create twice, recover", ONE_T, ONE_U, RECOVER),
    _one("only one: end, create", ONE_HOLDER, ONE_U),
    _one("only one: create and end, create", do.in_turn(ONE_T, WORK), ONE_U),
    _one("only one: end, create twice", ONE_HOLDER, ONE_U, ONE_V),
    _one("only one: end, thief, create", ONE_HOLDER, THIEF, ONE_U),
    _one("only one: delete and create again, create", ONE_LEFT, do.in_turn(DELETE, ONE_T), ONE_U),
    _one(
        "only one: delete and create again, create twice", ONE_LEFT, do.in_turn(DELETE, ONE_T), ONE_U, ONE_V
    ),
    _one(
        "only one: delete and create again, create and create",
        ONE_LEFT,
        do.in_turn(DELETE, ONE_T),
        do.in_turn(ONE_U, ONE_V),
    ),
    _one("only one: delete, create, recover", ONE_LEFT, DELETE, ONE_U, RECOVER),
)
_ADOPTING: Final = (
    _legacy("adopt twice, claim", do.adopt(), do.adopt(), WORK),
    _legacy("adopt twice, claim and give back and claim", do.adopt(), do.adopt(), do.in_turn(RETRY, WORK)),
    _legacy("adopt twice, recover", do.adopt(), do.adopt(), RECOVER),
    _legacy(
        "adopt, adopt and claim, delete, create again and claim",
        do.adopt(),
        do.in_turn(do.adopt(), WORK, DELETE, CREATE, WORK),
    ),
    _legacy("adopt, claim twice", do.adopt(), WORK, WORK),
    _legacy("adopt twice, claim twice", do.adopt(), do.adopt(), WORK, WORK),
    _legacy("claim twice what has no entry", WORK, WORK),
    _legacy("claim what has no entry, recover", WORK, RECOVER),
    _legacy("adopt what runs, thief", do.adopt(), LATE_THIEF, status="running"),
)
_LOOKING: Final = (
    Scenario("create and claim and end and delete, list", [do.in_turn(CREATE, WORK, DELETE), do.listing]),
    Scenario("list again, create", [By(do.listing, before=do.listing), do.in_turn(CREATE, do.create("u"))]),
    Scenario(
        "list again, end and delete and create again",
        [WAITING, By(do.listing, before=do.listing), do.in_turn(WORK, DELETE, CREATE)],
    ),
    Scenario("ask again, create", [By(do.asking(), before=do.asking()), CREATE]),
    Scenario("create, claim, list", [WAITING, do.create("u"), WORK, do.listing]),
    Scenario("create and claim and end, ask", [do.in_turn(CREATE, WORK), do.asking()]),
    Scenario("hold, cancel, look", [HOLDER, CANCEL, do.look()]),
    Scenario("retry, cancel, look", [RETRYING, CANCEL, do.look()]),
    Scenario("claim, cancel, look", [WAITING, WORK, CANCEL, do.look()]),
    Scenario("update, cancel, look", [WAITING, do.update(), CANCEL, do.look()]),
)
_UPDATING: Final = (
    Scenario("update, claim", [WAITING, do.update(), WORK]),
    Scenario("update twice", [WAITING, do.update(), do.update()]),
    Scenario("update, cancel", [WAITING, do.update(), CANCEL]),
    Scenario("update, claim, cancel", [WAITING, do.update(), WORK, CANCEL]),
    Scenario("update, thief, claim", [WAITING, do.update(), LATE_THIEF, WORK]),
    Scenario("retry, update", [RETRYING, do.update()]),
    Scenario("end, update, thief", [HOLDER, do.update(), THIEF]),
)
_QUEUED: Final = By(do.idle, before=do.in_turn(do.create("t", **crew.QUEUED), do.create("u", **crew.QUEUED)))
_QUEUED_THREE: Final = By(
    do.idle, before=do.in_turn(*(do.create(task, **crew.QUEUED) for task in ("t", "u", "v")))
)
_ALONE_SERVER: Final = crew.serve(most=1)
_SERVING: Final = (
    Scenario("two workers", [_QUEUED, crew.serve(), crew.serve()]),
    Scenario("two workers, at most one task", [_QUEUED, _ALONE_SERVER, _ALONE_SERVER], most=1, servers=2),
    Scenario(
        "three workers, at most one task",
        [_QUEUED_THREE, _ALONE_SERVER, _ALONE_SERVER, _ALONE_SERVER],
        most=1,
        servers=3,
    ),
    Scenario(
        "three workers, at most two tasks", [_QUEUED_THREE, *[crew.serve(most=2)] * 3], most=2, servers=3
    ),
    Scenario("two workers, at most one task, thief", [_QUEUED, _ALONE_SERVER, _ALONE_SERVER, THIEF], most=1),
    Scenario("worker, pause", [_QUEUED, crew.serve(), crew.pausing()], pausing=True),
    Scenario(
        "two workers, pause and resume",
        [_QUEUED, crew.serve(), crew.serve(), crew.pausing(resume=True)],
        pausing=True,
    ),
    Scenario("worker, create, thief", [do.create("t", **crew.QUEUED), crew.serve(), LATE_THIEF]),
    Scenario("worker of both, worker", [_QUEUED_THREE, crew.serve_both(), crew.serve()]),
    Scenario("two workers of both", [_QUEUED_THREE, crew.serve_both(), crew.serve_both()]),
    Scenario("worker of both, thief", [_QUEUED, crew.serve_both(), LATE_THIEF]),
    Scenario("worker of both, pause", [_QUEUED, crew.serve_both(), crew.pausing()], pausing=True),
    Scenario(
        "worker of both, worker, pause and resume",
        [_QUEUED, crew.serve_both(), crew.serve(), crew.pausing(resume=True)],
        pausing=True,
    ),
    Scenario("worker of both, cancel", [_QUEUED, crew.serve_both(), do.cancel("t"), do.cancel("u")]),
    Scenario("worker of both gives back, cancel", [_QUEUED, crew.serve_both(retry=True), do.cancel("t")]),
    Scenario("worker gives back, cancel", [_QUEUED, crew.serve(retry=True), do.cancel("t")]),
)
SCENARIOS: Final = {
    scenario.name: scenario
    for group in (
        _CREATING,
        _CLAIMING,
        _HOLDING,
        _DELETING,
        _ALONE,
        _ADOPTING,
        _LOOKING,
        _UPDATING,
        _SERVING,
    )
    for scenario in group
}
