"""A checker for histories: could what several processes saw have happened one call after the other?

Owns the search: Wing and Gong's, with Lowe's memory of (calls done, state) pairs. Refuses to know what the
calls mean: a function that applies one call to a state says that. It exists because a race that went wrong
often leaves every single answer plausible.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

__all__ = ["Event", "Refuted", "linearize"]

MOST_STEPS = 2_000_000
"""Beyond it a history is too concurrent to decide; none of those that are recorded here comes near."""


@dataclasses.dataclass(frozen=True)
class Event:
    """One call: who made it, what was asked and answered, and when, by a clock that all processes share.

    ``answer`` is None if nobody knows: the caller was killed, or the store said that it did not know. Such a
    call takes effect at any moment after it began, or never.
    """

    process: int
    call: str
    asked: tuple[Any, ...]
    answer: tuple[Any, ...] | None
    began: float
    ended: float
    brief: bool = False
    """Set by :func:`tests.lease.processes.contract.prepared`: somebody may have held the task for a moment."""
    late: bool = False
    """Likewise: the lease may have run out by the holder's own clock."""
    phase: int = 0
    """Likewise: which part of a call this is, of one that others can see half done."""

    def line(self) -> str:
        """Return it as a line to read."""
        answer = "?" if self.answer is None else " ".join(map(str, self.answer))
        ended = "never" if self.ended == math.inf else f"{self.ended * 1e6:.0f}"
        return (
            f"{self.began * 1e6:.0f} .. {ended} process {self.process}: "
            f"{self.call}({', '.join(map(str, self.asked))}) -> {answer}"
        )


class Refuted(AssertionError):
    """No order of the calls explains the answers."""


State = TypeVar("State", bound=Hashable)


def linearize(
    events: Sequence[Event], start: State, apply: Callable[[State, Event], Iterable[State]]
) -> list[Event]:
    """Return an order that explains ``events``; raises Refuted with the longest explanation that there was.

    ``apply`` gives the states after a call that was answered so; none if it could not be in this state.
    A call comes after every other that had ended before it began.
    """
    ordered = sorted(events, key=lambda event: event.began)
    wanted = sum(1 << index for index, event in enumerate(ordered) if event.answer is not None)
    seen: set[tuple[int, State]] = set()
    # Depth first, with a stack of its own: (calls done, state, the calls in order).
    stack: list[tuple[int, State, tuple[int, ...]]] = [(0, start, ())]
    best: tuple[int, ...] = ()
    best_state = start
    while stack:
        done, state, order = stack.pop()
        if done & wanted == wanted:
            return [ordered[index] for index in order]
        if (done, state) in seen:
            continue
        seen.add((done, state))
        assert len(seen) < MOST_STEPS, "this history is too long to decide"
        if len(order) > len(best):
            best, best_state = order, state
        for index in reversed(_next(ordered, done)):
            for after in apply(state, ordered[index]):
                stack.append((done | 1 << index, after, (*order, index)))
    told = "\n".join(ordered[index].line() for index in best)
    rest = "\n".join(event.line() for index, event in enumerate(ordered) if index not in best)
    raise Refuted(
        f"nothing explains these {len(ordered)} calls; the longest that does:\n{told}\n"
        f"leads to {best_state}\nand then there is\n{rest}"
    )


def _next(ordered: Sequence[Event], done: int) -> list[int]:
    """Return the calls that may come next: those that began before any other that is left had ended."""
    first_end = math.inf
    found = []
    for index, event in enumerate(ordered):
        if done >> index & 1:
            continue
        if event.began > first_end:
            break
        found.append(index)
        first_end = min(first_end, event.ended)
    return found
