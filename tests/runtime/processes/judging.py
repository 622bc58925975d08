"""Judges a chaos of workers by what handlers, submitters and onlookers wrote down. Each violation is said in words.

Owns the promises of the runtime. Knows nothing of how a worker works.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.runtime.processes.ledger import effects
from tests.runtime.processes.tasks import Line, lines

__all__ = ["Told", "figures", "violations"]

MOST_ATTEMPTS = {"once": 1, "single": 1, "thread": 1, "often": 4}
"""How often a handler may begin."""
LIMIT_OF_OFTEN = 6


@dataclasses.dataclass
class Told:
    """What the conductor knows: of each task its type, the first end that anybody saw, and what it was at last."""

    types: Mapping[str, str]
    first_ends: Mapping[str, Sequence[Any]]
    last: Mapping[str, Mapping[str, Any]]
    cancelled_before_start: Mapping[str, float]
    """Tasks whose cancellation was answered with "cancelled", and when."""
    doubles: Sequence[str]
    """What was submitted once although another one of its kind was active."""
    left: Sequence[Any]
    """What the store finds wrong with itself afterwards."""


def violations(directory: Path, told: Told) -> list[str]:
    """Return everything that is wrong."""
    written = lines(directory)
    by_task: dict[str, list[Line]] = defaultdict(list)
    for line in written:
        by_task[line["task"]].append(line)
    wrong = [f"two active of {kind}" for kind in told.doubles]
    wrong += [f"the store was left with {finding}" for finding in told.left]
    for task, task_type in told.types.items():
        last = told.last.get(task)
        if last is None:
            wrong.append(f"{task} is lost")
            continue
        wrong += [f"{task} ({task_type}): {what}" for what in _of_task(task_type, last, by_task[task])]
        first = told.first_ends.get(task)
        if first is not None and list(first) != _end_of(last):
            wrong.append(f"{task} ended as {first} and then as {_end_of(last)}")
        fences = [fence for fence, _ in effects(directory, task)]
        if fences != sorted(fences):
            wrong.append(f"{task}: an effect of a fenced attempt follows one of a later attempt: {fences}")
        at = told.cancelled_before_start.get(task)
        if at is not None and any(line["at"] > at for line in by_task[task] if line["what"] == "begin"):
            wrong.append(f"{task} was cancelled and began afterwards")
    return wrong


def _of_task(task_type: str, last: Mapping[str, Any], written: Sequence[Line]) -> list[str]:
    wrong = []
    begun = [line for line in written if line["what"] == "begin"]
    if last["status"] not in ("completed", "failed", "cancelled"):
        wrong.append(f"it is left {last['status']}")
    if len(begun) > MOST_ATTEMPTS[task_type]:
        wrong.append(f"its handler began {len(begun)} times")
    fences = [tuple(line["fence"]) for line in begun]
    if len(set(fences)) < len(fences):
        wrong.append(f"two attempts had one fence: {fences}")
    if last["status"] == "completed":
        if last["result"]["fence"][1] != last["epoch"]:
            wrong.append(f"epoch {last['epoch']} holds the result of epoch {last['result']['fence'][1]}")
        if not any(line["what"] == "end" and line["fence"] == last["result"]["fence"] for line in written):
            wrong.append("it is completed and its handler never came to its end")
    if last["status"] == "failed" and not any(line["what"] == "on_failure" for line in written):
        wrong.append(f"it failed ({last['code']}) and on_failure was not called")
    return wrong


def _end_of(last: Mapping[str, Any]) -> list[Any]:
    return [last["status"], last["code"], last["epoch"]]


def figures(directory: Path, told: Told) -> dict[str, int]:
    """Return how much has happened."""
    written = Counter(line["what"] for line in lines(directory))
    ends = Counter(
        f"{last['status']}{':' + last['code'] if last['code'] else ''}" for last in told.last.values()
    )
    return {
        "tasks": len(told.types),
        "attempts": written["begin"],
        "refused_effects": written["refused"],
        **ends,
    }
