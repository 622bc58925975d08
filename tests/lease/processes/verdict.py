"""Judges a chaos by its traces: each function returns the violations of one promise, in words.

Owns the promises, as things that must hold between what was written down. Knows nothing of how a store works
or what the processes meant to do.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.lease.processes.observer import Seen
from tests.lease.processes.trace import UNKNOWN, Call, Sight

__all__ = ["figures", "violations"]

ENDING = ("end", "cancel", "release", "update")
"""Calls that may end a task (a release does if it is to be cancelled)."""


class Look(NamedTuple):
    """Somebody saw, or wrote, this at some moment between ``began`` and ``ended``."""

    began: float
    ended: float
    sight: Sight
    by: str


Lives = Mapping[str, Sequence[Look]]


def violations(calls: Sequence[Call], seen: Sequence[Seen], final: Mapping[str, Sight]) -> list[str]:
    """Return everything that is wrong."""
    lives = _lives(calls, seen)
    return [
        *_torn(seen),
        *_unavailable(calls),
        *_one_end(lives),
        *_no_way_back(lives),
        *_fenced(lives, calls),
        *_one_token(lives, calls),
        *_nothing_lost(lives, calls, final),
        *_one_at_a_time(lives, calls),
        *_nothing_active(final),
    ]


def figures(calls: Sequence[Call]) -> dict[str, int]:
    """Return how often what happened."""
    counts = Counter((call.name, call.outcome) for call in calls)
    return {
        "calls": len(calls),
        "claims": counts["claim", "ok"],
        "take_overs": counts["take_over", "ok"],
        "commits": counts["commit", "ok"],
        "ends": counts["end", "ok"],
        "releases": counts["release", "ok"],
        "deletes": counts["delete", "ok"],
        "created": counts["create", "ok"] + counts["create_one", "ok"],
        "lease_lost": sum(number for (_, outcome), number in counts.items() if outcome == "lost"),
        "refused_to_create": counts["create_one", "none"],
        "unanswered": sum(number for (_, outcome), number in counts.items() if outcome == UNKNOWN),
    }


def _lives(calls: Sequence[Call], seen: Sequence[Seen]) -> Lives:
    lives: dict[str, list[Look]] = defaultdict(list)
    for call in calls:
        if call.sight is not None:
            lives[call.sight.life].append(
                Look(call.began, call.ended, call.sight, f"{call.name} of {call.process}")
            )
    for task, sight, first_began, first_ended, last_began in seen:
        if sight.status == "torn":
            continue
        lives[sight.life].append(Look(first_began, first_ended, sight, f"file of {task}"))
        # Later looks ended later than they began, which is all that is known of the last of them.
        lives[sight.life].append(Look(last_began, math.inf, sight, f"file of {task}"))
    return lives


def _torn(seen: Sequence[Seen]) -> list[str]:
    return [f"torn record of {task}: {sight.message!r}" for task, sight, *_ in seen if sight.status == "torn"]


def _unavailable(calls: Sequence[Call]) -> list[str]:
    """A store that nothing failed has no reason to say that it did not know."""
    return [f"no answer: {call}" for call in calls if call.outcome == UNKNOWN and call.ended < math.inf]


def _one_end(lives: Lives) -> list[str]:
    """Each life has one terminal state, and after it was seen nothing else is."""
    wrong = []
    for life, looks in lives.items():
        ends = {
            (look.sight.status, look.sight.message, look.sight.epoch) for look in looks if look.sight.ended
        }
        if len(ends) > 1:
            wrong.append(f"{life} ended more than once: {sorted(ends)}")
        ended = min((look.ended for look in looks if look.sight.ended), default=math.inf)
        wrong += [
            f"{life} had ended and is seen again as {look}"
            for look in looks
            if not look.sight.ended and look.began > ended
        ]
    return wrong


def _no_way_back(lives: Lives) -> list[str]:
    """What was written under one epoch never comes after what was written under a later one, or later under it.

    That holds for writers, too: a write that began after others had seen more must not have been accepted.
    """
    wrong = []
    for life, looks in lives.items():
        done = sorted((look for look in looks if look.ended < math.inf), key=lambda look: look.ended)
        ends = [look.ended for look in done]
        most: list[Look] = []
        for look in done:
            most.append(max(look, most[-1], key=_progress) if most else look)
        for look in looks:
            before = bisect.bisect_left(ends, look.began)
            if before and _progress(most[before - 1]) > _progress(look):
                wrong.append(f"{life} went back: {most[before - 1]} was seen before {look}")
    return wrong


def _progress(look: Look) -> tuple[int, int, bool]:
    return look.sight.progress


def _fenced(lives: Lives, calls: Sequence[Call]) -> list[str]:
    """Nothing that was written under an earlier epoch is accepted, or appears, after somebody else has claimed."""
    wrong = []
    writes: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.name in ("commit", "release", "end", "renew") and call.outcome == "ok":
            writes[call.asked["life"]].append(call)
    for claim in calls:
        if claim.name not in ("claim", "take_over") or claim.outcome != "ok" or claim.sight is None:
            continue
        life, epoch = claim.sight.life, claim.told["epoch"]
        wrong += [
            f"{life} was claimed with epoch {epoch} at {claim.ended}, and then this was accepted: {call}"
            for call in writes[life]
            if call.began > claim.ended and call.asked["epoch"] < epoch
        ]
        # It may take the new holder a while to write; until then the record stays as the claim found it.
        old = {
            look.sight.progress
            for look in lives[life]
            if look.began > claim.ended and look.sight.epoch < epoch
        }
        if len(old) > 1:
            wrong.append(f"{life} was claimed with epoch {epoch}, and then its record changed: {sorted(old)}")
    return wrong


def _one_token(lives: Lives, calls: Sequence[Call]) -> list[str]:
    """Every epoch of a life has one token, and every token one epoch."""
    tokens: dict[tuple[str, int], set[str]] = defaultdict(set)
    epochs: dict[str, set[tuple[str, int]]] = defaultdict(set)

    def note(life: str, epoch: int, token: str | None) -> None:
        if token:
            tokens[life, epoch].add(token)
            epochs[token].add((life, epoch))

    for call in calls:
        if call.name in ("claim", "take_over") and call.outcome == "ok" and call.sight is not None:
            note(call.sight.life, call.told["epoch"], call.told["token"])
            # Whoever only settles a task writes nothing until its end: the record is still the one before.
            if call.sight.epoch >= call.told["epoch"] and call.sight.token != call.told["token"]:
                note(call.sight.life, call.told["epoch"], f"none, but {call.sight.token} in the record")
    for life, looks in lives.items():
        for look in looks:
            if look.sight.epoch:
                note(life, look.sight.epoch, look.sight.token)
    return [f"{key} has the tokens {sorted(found)}" for key, found in tokens.items() if len(found) > 1] + [
        f"one token for {sorted(found)}" for found in epochs.values() if len(found) > 1
    ]


def _nothing_lost(lives: Lives, calls: Sequence[Call], final: Mapping[str, Sight]) -> list[str]:
    """What was created and acknowledged is there, or was ended and then deleted by somebody."""
    deletes: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.name == "delete" and call.outcome in ("ok", UNKNOWN):
            deletes[call.task].append(call)
    wrong = []
    for call in calls:
        if call.name not in ("create", "create_one") or call.outcome != "ok":
            continue
        life = call.asked["life"]
        if call.task in final and final[call.task].life == life:
            continue
        gone_after = max(look.began for look in lives[life])
        if not any(delete.ended >= gone_after for delete in deletes[call.task]):
            wrong.append(f"{life} ({call.task}) is lost, nobody deleted it")
        elif not any(look.sight.ended for look in lives[life]) and not _may_end(call, calls):
            wrong.append(f"{life} ({call.task}) was deleted while it was active")
    return wrong


def _may_end(created: Call, calls: Iterable[Call]) -> list[Call]:
    """Return the calls that may have ended the task."""
    return [
        call
        for call in calls
        if call.task == created.task
        and call.name in ENDING
        and call.outcome in ("ok", UNKNOWN)
        and call.ended >= created.began
        and call.asked.get("life", created.asked["life"]) == created.asked["life"]
        and (call.name in ("cancel", "release") or call.asked["status"] != "pending")
    ]


def _one_at_a_time(lives: Lives, calls: Sequence[Call]) -> list[str]:
    """Of one kind only one is active: none was created while another was active all the time of the call."""
    kinds: dict[str, list[tuple[Call, float]]] = defaultdict(list)
    by_task: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_task[call.task].append(call)
    for call in calls:
        if call.name == "create_one" and call.outcome == "ok":
            kinds[call.asked["kind"]].append((call, _active_until(call, by_task[call.task], lives)))
    wrong = []
    for kind, created in kinds.items():
        created.sort(key=lambda one: one[0].ended)
        longest: tuple[Call, float] | None = None
        ends = [call.ended for call, _ in created]
        longest_until: list[tuple[Call, float]] = []
        for one in created:
            longest = one if longest is None or one[1] > longest[1] else longest
            longest_until.append(longest)
        for call, _ in created:
            before = bisect.bisect_left(ends, call.began)
            if before and longest_until[before - 1][1] > call.ended:
                other = longest_until[before - 1][0]
                wrong.append(
                    f"{kind}: {call.asked['life']} was created while {other.asked['life']} was active"
                )
    return wrong


def _active_until(created: Call, calls: Sequence[Call], lives: Lives) -> float:
    """Return the earliest moment at which the task may have ended: no call that can have done it began before."""
    ended = [look.sight for look in lives[created.asked["life"]] if look.sight.ended]
    candidates = _may_end(created, calls)
    if ended:
        exact = [
            call
            for call in candidates
            if call.name == "end"
            and ended[0].status != "cancelled"
            and f"{call.asked['epoch']}.{call.asked['sequence']}" == ended[0].message
        ]
        candidates = exact or candidates
    return min((call.began for call in candidates), default=math.inf)


def _nothing_active(final: Mapping[str, Sight]) -> list[str]:
    return [f"{task} is left {sight.status}" for task, sight in final.items() if not sight.ended]
