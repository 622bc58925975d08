"""What the calls on one task mean, one after the other: the contract of a store as a small state machine.

Owns the meaning of each answer for :mod:`tests.lease.processes.linear`. Knows nothing of how a store works, but
the freedoms that the contract leaves:

- A task can look held while a call is under way that claims it and gives it back, or was killed half-way.
- A claim and a take-over are first somebody's, then written. A cancel that comes between, or while a release is
  under way, is noted, and fulfilled by whoever meets it.
- A holder whose lease has run out by its own clock may be refused although nobody has taken over.
- Epochs may leave gaps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.lease.processes.linear import Event

__all__ = ["ABSENT", "Task", "apply", "prepared"]

ENDED = ("completed", "failed", "cancelled")
CLAIMING = ("create", "update", "claim", "cancel", "take_over", "release", "end", "delete")
"""Calls during which a task may look held to others, or not be there to be claimed yet."""


class Task(NamedTuple):
    """A task as it stands. ``status`` is None while there is none."""

    status: str | None
    tag: str = ""
    epoch: int = 0
    """The highest that a record was seen with; counts on from the one before where it was never seen."""
    open: bool = False
    """The epoch is at least that: a call that nobody has an answer of may have raised it."""
    holder: str | None = None
    cancel: bool = False

    @property
    def shown(self) -> str | None:
        """The status that readers see."""
        return "cancelling" if self.cancel and self.status in ("running", "pending") else self.status


ABSENT = Task(None)
States = Iterator[Task]


def prepared(events: Sequence[Event], lease_seconds: float) -> list[Event]:
    """Return the events, some of them in two parts, with what others or the time allow them to answer."""
    found = []
    for event in events:
        brief, late = _meets_a_claim(event, events), _late(event, events, lease_seconds)
        for phase in (1, 2) if _has_two_parts(event) else (0,):
            found.append(dataclasses.replace(event, brief=brief, late=late, phase=phase))
    return found


def _has_two_parts(event: Event) -> bool:
    if event.answer is None:
        return False
    if event.call in ("release", "update"):
        return event.answer[0] == "ok" and "cancelled" in event.answer
    if event.call == "cancel":
        return "cancelling" not in event.answer
    return event.call in ("claim", "take_over") and event.answer[0] == "ok"


def _meets_a_claim(event: Event, events: Sequence[Event]) -> bool:
    return any(
        other is not event
        and other.call in CLAIMING
        and other.began <= event.ended
        and event.began <= other.ended
        for other in events
    )


def _late(event: Event, events: Sequence[Event], lease_seconds: float) -> bool:
    """Tell whether a holder may have lost its lease by time alone: half a term since it was last renewed."""
    token = event.asked[0] if event.asked else None
    beats = [
        other.began
        for other in events
        if other.ended <= event.began
        and other.answer is not None
        and (
            (other.call in ("claim", "take_over") and other.answer[:2] == ("ok", token))
            or (other.call == "renew" and other.asked[0] == token and other.answer[0] == "ok")
        )
    ]
    return bool(beats) and event.ended - max(beats) >= lease_seconds / 2


def apply(state: Task, event: Event) -> States:
    """Yield the states that ``event`` may lead to."""
    yield from _CALLS[event.call](state, event)
    if state.status == "pending" and state.cancel:
        cancelled = state._replace(status="cancelled", open=True, holder=None, cancel=False)
        yield from _CALLS[event.call](cancelled, event)


def _create(state: Task, event: Event) -> States:
    (tag,) = event.asked
    if state.status is None and event.answer in (("ok",), None):
        yield Task("pending", tag)
    elif state.status is not None and event.answer == ("exists",):
        yield state


def _get(state: Task, event: Event) -> States:
    if event.answer is None:
        return
    kind, *seen = event.answer
    if kind == "absent":
        if state.status is None:
            yield state
        return
    status, tag, epoch = seen
    if (state.shown, state.tag) == (status, tag) and _fits(state, epoch):
        yield state._replace(epoch=epoch, open=False)


def _fits(state: Task, epoch: int) -> bool:
    return epoch >= state.epoch if state.open else epoch == state.epoch


def _update(state: Task, event: Event) -> States:
    status, tag, expected = event.asked
    free = state.status is not None and state.holder is None
    matches = expected is None or _same_version(state, expected)
    # Whoever is past its last look at the wish may still end the task otherwise.
    changed = state._replace(status=status, tag=tag, cancel=state.cancel and status not in ENDED)
    match event.answer:
        case None:
            if free and matches and not _is_final(state):
                yield changed._replace(open=True, epoch=state.epoch)
        case ("ok", _, "cancelled") if event.phase == 2:
            if state.status == "cancelled":
                yield state
        case ("ok", epoch, told):
            if free and matches and epoch >= state.epoch and not _is_final(state):
                # Cancelled while it was given back, it was written before with an epoch that nobody told.
                yield (
                    changed._replace(open=True)
                    if told != status
                    else changed._replace(epoch=epoch, open=False)
                )
        case ("conflict",):
            if state.status is not None and not matches:
                yield state
        case ("held",):
            if state.holder is not None or event.brief:
                yield state
        case ("absent",):
            if state.status is None:
                yield state
        case ("ended",):
            if _is_final(state):
                yield state


def _same_version(state: Task, expected: tuple[str, str, int]) -> bool:
    status, tag, epoch = expected
    # A wish to cancel is shown and changes no version.
    return status in (state.shown, state.status) and state.tag == tag and _fits(state, epoch)


def _is_final(state: Task) -> bool:
    return state.status in ENDED


def _claim(state: Task, event: Event) -> States:
    match event.answer:
        case None:
            if state.status == "pending" and state.holder is None:
                yield state._replace(
                    status="running", epoch=state.epoch + 1, open=True, holder=f"? {event.began}"
                )
        case ("ok", token, epoch, status):
            assert status == "running", event.line()
            if event.phase == 1 and state.status == "pending" and state.holder is None:
                yield state._replace(holder=token)
            elif event.phase == 2 and state.holder == token and epoch > state.epoch:
                yield state._replace(status="running", epoch=epoch, open=False)
        case ("held",) | ("none",):
            if state.holder is not None or event.brief:
                yield state
        case ("absent",):
            if state.status is None:
                yield state
        case ("ended",):
            if _is_final(state):
                yield state


def _take_over(state: Task, event: Event) -> States:
    match event.answer:
        case None:
            if state.status == "running":
                yield state._replace(holder=f"? {event.began}")
                yield state._replace(epoch=state.epoch + 1, open=True, holder=f"? {event.began}")
        case ("ok", token, epoch, status, cancel):
            assert status in ("running", "cancelling"), event.line()
            # A cancel that was requested is handed to whoever takes over; one may come while it does.
            if event.phase == 1 and state.status == "running" and (cancel or not state.cancel):
                yield state._replace(holder=token)
            elif (
                event.phase == 2 and state.holder == token and epoch > state.epoch and cancel <= state.cancel
            ):
                yield state._replace(epoch=epoch, open=False)
        case ("none",):
            yield state


def _under_lease(state: Task, event: Event, after: Task) -> States:
    """A write under a lease: it has an effect while the lease is held, and never again afterwards."""
    holds = state.holder is not None and state.holder == event.asked[0]
    match event.answer:
        case ("lost",):
            if not holds or event.late:
                yield state
        case _:
            if holds:
                yield after


def _commit(state: Task, event: Event) -> States:
    return _under_lease(state, event, state._replace(tag=event.asked[1]))


def _renew(state: Task, event: Event) -> States:
    if event.answer is not None and event.answer[0] == "ok" and event.answer[1] != state.cancel:
        return iter(())  # it must tell the holder of a cancel, and of none that is not
    return _under_lease(state, event, state)


def _release(state: Task, event: Event) -> States:
    freed = state._replace(status="pending", tag=event.asked[1], holder=None)
    ended = freed._replace(status="cancelled", cancel=False, open=True)
    if event.phase == 2:
        if state.status == "cancelled":
            yield state
        return
    # A wish is fulfilled at once, or by a second write, of the holder or of whoever finds the task free.
    for after in {freed, ended if state.cancel or event.answer is None else freed}:
        yield from _under_lease(state, event, after)


def _end(state: Task, event: Event) -> States:
    _, tag, status = event.asked
    return _under_lease(state, event, state._replace(status=status, tag=tag, holder=None, cancel=False))


def _cancel(state: Task, event: Event) -> States:
    noted = state._replace(cancel=True)
    match event.answer:
        case None:
            if state.status == "pending":
                yield state._replace(status="cancelled", open=True)
            if state.status in ("pending", "running"):
                yield noted
        case ("ok", "cancelling", _):
            if state.status == "running" or (state.status == "pending" and (state.holder or event.brief)):
                yield noted
        case _ if event.phase == 1:
            # The wish is noted, and then its fate is looked at: others may see it and fulfil it before that.
            yield state
            if state.status in ("pending", "running"):
                yield noted
        case ("ok", "cancelled", epoch):
            if state.status == "pending" and state.holder is None and epoch >= state.epoch:
                yield state._replace(status="cancelled", epoch=epoch, open=False, cancel=False)
            elif state.status == "cancelled":
                yield state
        case ("ended",):
            if state.status in ("completed", "failed"):
                yield state
        case ("absent",):
            if state.status is None:
                yield state


def _delete(state: Task, event: Event) -> States:
    match event.answer:
        case ("absent",):
            if state.status is None:
                yield state
        case ("active",):
            if state.status is not None and not _is_final(state):
                yield state
        case ("conflict",):
            if event.brief:  # it withdrew, since another one was deleting too
                yield state
        case _:
            if _is_final(state):
                yield ABSENT


_CALLS = {
    "create": _create,
    "get": _get,
    "update": _update,
    "claim": _claim,
    "take_over": _take_over,
    "commit": _commit,
    "renew": _renew,
    "release": _release,
    "end": _end,
    "cancel": _cancel,
    "delete": _delete,
}
