"""What must hold of a lease store, whatever the schedule: checked at every step, and after every crash.

Owns the names of the checks. Looks at the disk and at what programs were promised, never into the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import orjson

from stores.files.lease.control import STAGE
from stores.files.lease.names import EntryName
from tests.lease.simulation.calls import Request
from tests.lease.simulation.disk import Directory, Disk, Result, succeeded
from tests.lease.simulation.processes import Fact
from tests.lease.simulation.rules import Ghost, Violation
from tests.lease.simulation.world import CONTROL, RECORDS

__all__ = ["CHECKS", "LeaseRules", "View", "view"]

CHECKS: Final = (
    "one entry of a life",
    "what nobody has claimed has no stage",
    "one grant of an epoch",
    "no commit after a later take-over",
    "epochs grow",
    "an epoch has one token",
    "terminal is final",
    "no live record is deleted",
    "another life is not overwritten",
    "the deleted stay deleted",
    "one active of a kind",
    "a requested cancel is seen",
    "a requested cancel is shown",
    "a cancel that is too late says so",
    "a loss is a loss",
    "records are whole",
    "listings are whole",
    "active tasks are known",
    "no surprises",
    "recovery works",
    "recovery ends",
    "everything ends",
    "a requested cancel is kept",
    "nothing acknowledged is lost",
    "nothing is left over",
    "no key is blocked",
    "never more than the limit",
    "somebody gets the place",
    "what is paused is not taken",
)

_HELD_OR_IDLE: Final = (f"{CONTROL}/leases/", f"{CONTROL}/idle/")
_TERMINAL: Final = ("completed", "failed", "cancelled")
_EMPTY_AT_THE_END: Final = ("new", "later", "idle", "leases", "keys", "deletes", "ready")


class View(NamedTuple):
    """A record, as far as it matters here."""

    task: str
    life: str
    status: str
    epoch: int
    token: str
    kind: str

    @property
    def ended(self) -> bool:
        """Whether it is final."""
        return self.status in _TERMINAL


@lru_cache(maxsize=100_000)
def view(content: bytes) -> View:
    """Return what is in a record's file. Raises Violation if it is no record."""
    try:
        fields = orjson.loads(content)
        attempt = fields.get("attempt") or {"epoch": 0, "token": ""}
        return View(
            fields["task_id"],
            fields.get("creation") or "legacy",
            fields["status"],
            attempt["epoch"],
            attempt["token"],
            f"{fields['task_type']} {fields['resource_id']}",
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Violation("records are whole", repr(content)) from error


def records(disk: Disk) -> list[View]:
    """Return all records on a disk."""
    return [
        view(content)
        for name in disk.names_at(RECORDS)
        if name.endswith(".json") and (content := disk.content_at(f"{RECORDS}/{name}")) is not None
    ]


class LeaseRules:
    """The promises of a lease store. ``alone``: all who create say that only one of a kind is to be active."""

    def __init__(self, *, alone: bool = False) -> None:
        self._alone = alone

    # ---- calls ---------------------------------------------------------------------------------------

    def concerns(self, request: Request) -> bool:
        """Look at claims, at wishes and at whatever changes a record."""
        return request.changes and any(
            _is_record(path) or path.startswith(_HELD_OR_IDLE) for path in request.paths
        )

    def called(self, request: Request, result: Result, before: Disk, after: Disk, ghost: Ghost) -> Ghost:
        """Look at a call that may have granted a lease or changed a record."""
        if not succeeded(result):
            return ghost
        if request.name == "rename" and request.paths[0] == f"{request.paths[1]}~":
            ghost = _granted(request.paths[1], ghost)
        if request.name == "rename" and request.paths[1].endswith("~"):
            _check_new(request.paths[0], request.paths[1], after)
        if request.name == "rename" and request.paths[1].startswith(_HELD_OR_IDLE):
            _check_entries(after)
        if request.name == "create" and request.paths[0].endswith("/cancel"):
            ghost = _wished(request.paths[0], after, ghost)
        for path in request.paths:
            if _is_record(path):
                ghost = self._changed(request, before.content_at(path), after.content_at(path), ghost)
        if self._alone and request.name == "link":
            kinds = [found.kind for found in records(after) if not found.ended]
            if len(kinds) > len(set(kinds)):
                raise Violation("one active of a kind", f"{records(after)}")
        return ghost

    def _changed(self, request: Request, old: bytes | None, new: bytes | None, ghost: Ghost) -> Ghost:
        if old == new:
            return ghost
        before = None if old is None else view(old)
        after = None if new is None else view(new)
        if before is None:
            assert after is not None
            if request.name != "link":
                raise Violation("the deleted stay deleted", f"{after} came by {request.name}")
            return ghost
        if after is None:
            if not before.ended:
                raise Violation("no live record is deleted", f"{before}")
            return ghost | {("deleted", before.life)}
        if before.life not in (after.life, "legacy"):
            raise Violation("another life is not overwritten", f"{after} over {before}")
        if before.ended:
            raise Violation("terminal is final", f"{after} over {before}")
        later = [fact for fact in ghost if fact[0] == "granted" and fact[1] == _life(after)]
        if any(fact[2] > after.epoch for fact in later):  # type: ignore[operator]
            raise Violation(
                "no commit after a later take-over", f"{after}; granted: {sorted(map(str, later))}"
            )
        if after.epoch < before.epoch:
            raise Violation("epochs grow", f"{after} over {before}")
        if after.epoch == before.epoch and after.token != before.token:
            raise Violation("an epoch has one token", f"{after} over {before}")
        return ghost

    # ---- what programs say -----------------------------------------------------------------------------

    def said(self, actor: str, fact: Fact, disk: Disk, ghost: Ghost) -> Ghost:
        """Hear what was promised to a program, and what it sees of what was promised to others."""
        what = fact[0]
        if what == "created":
            return ghost | {fact}
        if what == "granted":
            return _grant(fact, ghost)
        if what == "requested":
            ended = [found for found in records(disk) if found.life == fact[2] and found.ended]
            if ended and ended[0].status != "cancelled" and ("wished", fact[2]) not in ghost:
                raise Violation("a cancel that is too late says so", f"{actor} was told 'requested': {ended}")
            return ghost | {fact}
        if what == "told that it is lost":
            own = [found for found in records(disk) if found.task == fact[1] and found.token == fact[2]]
            if own and disk.at(str(fact[3])) is not None:
                raise Violation("a loss is a loss", f"{actor} still holds {own}")
            return ghost
        if what == "looks for a cancel":
            return _begins(ghost, actor, ("requested", *fact[1:]) in ghost)
        if what == "looked for a cancel":
            # Whoever has lost the entry meanwhile need not see what is in it: nothing that he writes can land.
            if ("obliged", actor) in ghost and fact[3] is not True and disk.at(str(fact[4])) is not None:
                raise Violation(
                    "a requested cancel is seen", f"{actor} looked after it was requested: {fact}"
                )
            return ghost - {("obliged", actor)}
        if what == "looks at":
            return _begins(ghost, actor, any(known[:2] == ("requested", fact[1]) for known in ghost))
        if what == "looked at":
            if ("obliged", actor) in ghost and fact[3] in ("pending", "running"):
                requested = ("requested", fact[1], fact[2]) in ghost
                if requested:
                    raise Violation(
                        "a requested cancel is shown", f"{actor} got {fact[3]} after it was requested"
                    )
            return ghost - {("obliged", actor)}
        if what in ("lists", "asks"):
            return self._question(actor, fact, disk, ghost)
        if what in ("listed", "answered"):
            return self._answer(actor, fact, disk, ghost)
        if what in ("took", "came back empty", "lost patience"):
            return ghost  # judged where there is a limit
        raise AssertionError(fact)

    @staticmethod
    def _question(actor: str, fact: Fact, disk: Disk, ghost: Ghost) -> Ghost:
        """Remember what is there when a question begins."""
        if fact[0] == "lists":
            return ghost | {("to list", actor, *((found.task, found.life) for found in records(disk)))}
        active = any(not found.ended and found.kind == f"work {fact[1]}" for found in records(disk))
        return ghost | {("to answer", actor, active)}

    @staticmethod
    def _answer(actor: str, fact: Fact, disk: Disk, ghost: Ghost) -> Ghost:
        """Compare an answer with what was there when it was asked for and still is."""
        question = next(
            known for known in ghost if known[0] in ("to list", "to answer") and known[1] == actor
        )
        if fact[0] == "listed":
            listed = fact[1]
            assert isinstance(listed, tuple)
            tasks = [task for task, _ in listed]
            if len(tasks) > len(set(tasks)):
                raise Violation("listings are whole", f"{actor} was given one task twice: {listed}")
            still = {(found.task, found.life) for found in records(disk)}
            missing = [known for known in question[2:] if known in still and known not in listed]
            if missing:
                raise Violation("listings are whole", f"{actor} was given {listed}, not {missing}")
        else:
            active = any(not found.ended and found.kind == f"work {fact[1]}" for found in records(disk))
            deleted = any(known[0] == "deleted" for known in ghost)
            if question[2] is True and active and fact[2] is not True and not deleted:
                raise Violation("active tasks are known", f"{actor} was told that none is active")
        return ghost - {question}

    # ---- after a crash ---------------------------------------------------------------------------------

    def recovered(self, before: Disk, after: Disk, facts: Sequence[Fact], ghost: Ghost) -> None:
        """Everything has come to a good end."""
        was = {(found.task, found.life): found for found in records(before)}
        now = {(found.task, found.life): found for found in records(after)}
        for found in now.values():
            if not found.ended:
                raise Violation("everything ends", f"{found} stays; {_left(after)}")
        for fact in ghost:
            if fact[0] not in ("created", "requested"):
                continue
            place = (str(fact[1]), str(fact[2]))
            old, new = was.get(place), now.get(place)
            if fact[0] == "created" and new is None and ("deleted", fact[2]) not in ghost:
                raise Violation("nothing acknowledged is lost", f"{fact}")
            unfinished = fact[0] == "requested" and old is not None and not old.ended
            if unfinished and new is not None and new.status != "cancelled":
                raise Violation("a requested cancel is kept", f"{new}")
        for fact in facts:
            if fact[0] == "key is free" and fact[2] is not True:
                raise Violation("no key is blocked", f"nobody may create a task of {fact[1]} any more")
        left = _left(after)
        if left:
            raise Violation("nothing is left over", f"{left}")


def _begins(ghost: Ghost, actor: str, obliged: bool) -> Ghost:
    return ghost | {("obliged", actor)} if obliged else ghost - {("obliged", actor)}


def _is_record(path: str) -> bool:
    return path.startswith(RECORDS) and path.endswith(".json")


def _life(found: View) -> str:
    return f"{found.task} {found.life}"


def _granted(path: str, ghost: Ghost) -> Ghost:
    name = EntryName.parse(path.rpartition("/")[2])
    assert name is not None
    assert name.task is not None
    return _grant(("granted", f"{name.task.task_id} {name.life}", name.epoch, name.token), ghost)


def _check_new(source: str, target: str, disk: Disk) -> None:
    """A claim of an entry that carries no epoch looks for no older holder's stage in it."""
    name = EntryName.parse(source.rpartition("/")[2])
    if name is not None and name.epoch == 0:
        stages = [child for child in disk.names_at(target) if child.startswith(STAGE)]
        if stages:
            raise Violation("what nobody has claimed has no stage", f"{source}: {stages}")


def _check_entries(disk: Disk) -> None:
    """Two entries of one life would be two leases on one task."""
    lives: set[tuple[str, str]] = set()
    for place in ("leases/00", "idle/00"):
        for text in disk.names_at(f"{CONTROL}/{place}"):
            name = EntryName.parse(text)
            assert name is not None
            life = (name.key, name.life)
            if life in lives:
                raise Violation("one entry of a life", f"{text} is not the only one")
            lives.add(life)


def _wished(path: str, disk: Disk, ghost: Ghost) -> Ghost:
    """Remember that a wish was left for a task that had not ended."""
    name = EntryName.parse(path.split("/")[-2])
    assert name is not None
    if any(found.life == name.life and not found.ended for found in records(disk)):
        return ghost | {("wished", name.life)}
    return ghost


def _grant(fact: Fact, ghost: Ghost) -> Ghost:
    for known in ghost:
        if known[:3] == fact[:3] and known != fact:
            raise Violation("one grant of an epoch", f"{fact[1:]} after {known[1:]}")
    return ghost | {fact}


def _left(disk: Disk) -> list[str]:
    """Return what is left in the control directory; empty directories are nothing."""
    left: list[str] = []

    def visit(path: str) -> None:
        for name in disk.names_at(path):
            below = f"{path}/{name}"
            if not isinstance(disk.at(below), Directory) or "@" in name:
                left.append(below[len(CONTROL) + 1 :])
            visit(below)

    for name in _EMPTY_AT_THE_END:
        visit(f"{CONTROL}/{name}")
    return left
