"""Judges a chaos of workers by what handlers, clients and workers wrote down. Each violation is said in words.

Owns the promises of the runtime. Knows nothing of how a worker works.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.runtime.processes.journal import Line
from tests.runtime.processes.ledger import effects

__all__ = ["Told", "evidence", "figures", "violations"]

MOST_ATTEMPTS = {"once": 1, "single": 1, "thread": 1, "often": 4}
"""How often a handler may begin."""
ENDS = ("completed", "failed", "cancelled")
KEEPING = ("claim", "take_over", "renew")
"""What lets a lease live for another term."""
TICK_SECONDS = 0.01
"""Of the clock that a file system stamps its files with."""
LEAST_OF_LEASE = 0.75
"""A holder gives up no sooner than a quarter of the lease before its end."""
MOST_EVIDENCE = 3
"""Of how many tasks, at most, all lines are told when something is wrong."""


@dataclasses.dataclass
class Told:
    """What there is to judge."""

    directory: Path
    lease_seconds: float
    lines: Sequence[Line]
    last: Mapping[str, Mapping[str, Any]]
    """Each task as it was at last."""
    left: Sequence[Any]
    """What the store finds wrong with itself afterwards."""

    def of(self, what: str) -> Iterator[Line]:
        """All lines of a kind."""
        return (line for line in self.lines if line["what"] == what)


def violations(told: Told) -> list[str]:
    """Return everything that is wrong."""
    by_task: dict[str, list[Line]] = defaultdict(list)
    for line in told.lines:
        if "task" in line:
            by_task[line["task"]].append(line)
    wrong = [f"two of a kind were active at once: {line['tasks']}" for line in told.of("double")]
    wrong += [f"{line['task']} could not be found by who had submitted it" for line in told.of("gone")]
    wrong += [
        f"{line['task']} was acknowledged and is lost"
        for line in told.of("submitted")
        if line["task"] not in told.last
    ]
    wrong += [f"the store was left with {finding}" for finding in told.left]
    for task, last in told.last.items():
        found = _of_task(last, by_task[task])
        found += _of_effects([fence for fence, _ in effects(told.directory, task)])
        found += _of_cancels(by_task[task]) + _of_leases(by_task[task], told.lease_seconds)
        wrong += [f"{task} ({last['type']}): {what}" for what in found]
    return wrong


def _of_task(last: Mapping[str, Any], written: Sequence[Line]) -> list[str]:
    wrong = []
    begun = [line for line in written if line["what"] == "begin"]
    if last["status"] not in ENDS:
        wrong.append(f"it is left {last['status']}")
    ends = [entry for entry in last["history"] if entry["status"] in ENDS]
    if len(ends) > 1:
        wrong.append(f"it ended {len(ends)} times")
    for line in written:
        if line["what"] == "seen_end" and line["end"] != last["end"]:
            wrong.append(f"it ended as {line['end']} and then as {last['end']}")
    interruptions = sum(entry.get("error_code") == "interrupted" for entry in last["history"])
    if len(begun) > MOST_ATTEMPTS[last["type"]] + (interruptions if last["type"] == "often" else 0):
        wrong.append(f"its handler began {len(begun)} times")
    fences = [tuple(line["fence"]) for line in begun]
    if len(set(fences)) < len(fences):
        wrong.append(f"two attempts had one fence: {fences}")
    if last["status"] == "completed":
        if last["result"]["fence"][1] != last["epoch"]:
            wrong.append(f"epoch {last['epoch']} holds the result of epoch {last['result']['fence'][1]}")
        if not any(line["what"] == "worked" and line["fence"] == last["result"]["fence"] for line in written):
            wrong.append("it is completed and its handler never came to its end")
    if last["status"] == "failed" and not any(line["what"] == "on_failure" for line in written):
        wrong.append(f"it failed ({last['code']}) and on_failure was not called")
    for line in begun:
        kept = [
            other["steps"]
            for other in written
            if other["what"] == "checkpoint" and other["fence"] < line["fence"]
        ]
        if line["first"] < max(kept, default=0):
            wrong.append(f"it went on from checkpoint {line['first']} although {max(kept)} was acknowledged")
    return wrong


def _of_effects(fences: Sequence[Any]) -> list[str]:
    if list(fences) == sorted(fences):
        return []
    return [f"an effect of a fenced attempt follows one of a later attempt: {fences}"]


def _of_cancels(written: Sequence[Line]) -> list[str]:
    """Who has claimed a task before it was cancelled and stood still since then begins it, for all that he knows."""
    wrong = []
    for cancel in written:
        if cancel["what"] != "cancel" or cancel["status"] != "cancelled":
            continue
        for line in written:
            if line["what"] != "begin" or line["at"] <= cancel["at"]:
                continue
            epoch = line["fence"][1]
            let_go = any(
                other["what"] == "release" and other["epoch"] == epoch and other["at"] < line["at"]
                for other in written
            )
            if epoch > cancel["epoch"] or let_go:
                wrong.append(f"it was cancelled and began {line['at'] - cancel['at']:.3f} s later")
    return wrong


def _of_leases(written: Sequence[Line], lease_seconds: float) -> list[str]:
    """A lease that is renewed is lost to nobody: not by clocks that step, not by disks that are full."""
    wrong = []
    for line in written:
        if line["what"] == "take_over":
            before = [
                other["since"]
                for other in written
                if other["what"] in KEEPING and other["epoch"] < line["epoch"]
            ]
            seconds = line["at"] - max(before, default=float("-inf"))
            if seconds < lease_seconds - TICK_SECONDS:
                wrong.append(f"it was taken over {seconds:.3f} s after its lease was renewed")
        elif line["what"] == "lease_lost" and "not renewed in time" in line["why"]:
            own = [other for other in written if other["what"] in KEEPING and other["pid"] == line["pid"]]
            known = _last_but_one([other for other in own if other["at"] <= line["at"]])
            # Who takes over looks at the clock long before it asks.
            if known is not None and known["what"] != "take_over":
                seconds = line["at"] - known["since"]
                if seconds < lease_seconds * LEAST_OF_LEASE:
                    wrong.append(f"its lease was given up {seconds:.3f} s after it was renewed")
    return wrong


def _last_but_one(kept: Sequence[Line]) -> Line | None:
    """Return the renewal that a holder knows of for sure: of the last one the answer may just be on its way to it."""
    epoch = max((line["epoch"] for line in kept), default=None)
    of_last_lease = [line for line in kept if line["epoch"] == epoch]
    return of_last_lease[-2] if len(of_last_lease) > 1 else None


def evidence(told: Told, wrong: Sequence[str]) -> list[Any]:
    """Return what was written of the first tasks of which something is wrong."""
    said = " ".join(wrong)
    tasks = [task for task in told.last if task in said][:MOST_EVIDENCE]
    lines = [line for line in told.lines if line.get("task") in tasks]
    return [*lines, *({task: told.last[task]} for task in tasks)]


def figures(told: Told) -> dict[str, int]:
    """Return how much has happened."""
    written = Counter(line["what"] for line in told.lines)
    ends = Counter(
        f"{last['status']}{':' + last['code'] if last['code'] else ''}" for last in told.last.values()
    )
    return {
        "tasks": written["submitted"],
        "tasks nobody was told of": len(told.last) - written["submitted"],
        "attempts": written["begin"],
        "cancels": written["cancel"],
        "duplicates": written["duplicate"],
        "calls that the store did not answer": written["unanswered"],
        "refused effects": written["refused"],
        "leases lost": written["lease_lost"],
        "late outcomes refused": sum(line["outcome"] == "lost" for line in told.of("attempt_ended")),
        "rescued": written["rescued"],
        "given back by a loop that was blocked": written["given_back"],
        **dict(sorted(ends.items())),
    }
