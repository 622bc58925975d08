"""The judge of the chaos finds each kind of fault, and nothing wrong where nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runtime.processes.judging import Told, evidence, figures, violations

Lines = list[dict[str, Any]]

PID, OTHER = 11, 12
LEASE_SECONDS = 1.0


def line(what: str, at: float, pid: int = PID, **more: Any) -> dict[str, Any]:
    return {"what": what, "at": at, "pid": pid, "task": "t", **more}


def lease(what: str, at: float, epoch: int = 1, pid: int = PID, since: float | None = None) -> dict[str, Any]:
    return line(what, at, pid, epoch=epoch, since=at if since is None else since)


def handler(what: str, at: float, epoch: int = 1, pid: int = PID, **more: Any) -> dict[str, Any]:
    return line(what, at, pid, fence=[7, epoch], **more)


ONE_LIFE: Lines = [
    line("submitted", 0.0, type="often"),
    lease("claim", 1.0),
    handler("begin", 1.1, first=0),
    handler("checkpoint", 1.2, steps=1),
    lease("renew", 1.3),
    # Killed. Another one takes over, later than a lease after that.
    lease("take_over", 2.4, 2, OTHER),
    lease("release", 2.5, 2, OTHER),
    lease("claim", 2.6, 3, OTHER),
    handler("begin", 2.7, 3, OTHER, first=1),
    handler("worked", 2.8, 3, OTHER),
    lease("end", 2.9, 3, OTHER),
    line("seen_end", 3.0, end=["completed", None, 3]),
]
LAST: dict[str, Any] = {
    "type": "often",
    "status": "completed",
    "code": None,
    "epoch": 3,
    "end": ["completed", None, 3],
    "result": {"fence": [7, 3]},
    "history": [{"status": "pending"}, {"status": "running"}, {"status": "completed"}],
}


def told(directory: Path, more: Lines | None = None, left: Any = (), **last: Any) -> Told:
    lines = sorted([*ONE_LIFE, *(more or [])], key=lambda one: float(one["at"]))
    return Told(directory, LEASE_SECONDS, lines, {"t": {**LAST, **last}}, left)


def test_a_life_as_it_should_be_breaks_nothing(tmp_path: Path) -> None:
    assert violations(told(tmp_path)) == []
    assert figures(told(tmp_path))["tasks"] == 1


FAULTS: dict[str, tuple[Lines, dict[str, Any]]] = {
    "is left running": ([], {"status": "running", "end": ["completed", None, 3]}),
    "it ended 2 times": ([], {"history": [{"status": "failed"}, {"status": "completed"}]}),
    "and then as": ([line("seen_end", 2.0, end=["failed", None, 1])], {}),
    "began 5 times": ([handler("begin", 5.0, epoch, first=3) for epoch in (4, 5, 6)], {}),
    "began 2 times": ([], {"type": "once"}),
    "two attempts had one fence": ([handler("begin", 5.0, 3, first=1)], {}),
    "holds the result of epoch 2": ([handler("worked", 2.45, 2)], {"result": {"fence": [7, 2]}}),
    "never came to its end": ([], {"result": {"fence": [8, 3]}}),
    "on_failure was not called": ([], {"status": "failed"}),
    "although 2 was acknowledged": ([handler("checkpoint", 1.25, steps=2)], {}),
    "could not be found": ([line("gone", 2.0)], {}),
    "two of a kind": ([{**line("double", 2.0), "tasks": ["t", "u"]}], {}),
    "u was acknowledged and is lost": ([{**line("submitted", 0.0, type="once"), "task": "u"}], {}),
    "was cancelled and began 0.500 s later": ([line("cancel", 2.2, status="cancelled", epoch=2)], {}),
    "was cancelled and began 0.100 s later": (
        [
            lease("release", 2.95, 4),
            line("cancel", 3.0, status="cancelled", epoch=5),
            handler("begin", 3.1, 4, first=3),
        ],
        {},
    ),
    "taken over 0.900 s after its lease was renewed": ([lease("renew", 1.5)], {}),
    "given up 0.400 s after it was renewed": (
        [line("lease_lost", 1.4, why="it was not renewed in time")],
        {},
    ),
}


@pytest.mark.parametrize("said", FAULTS)
def test_each_fault_is_found(said: str, tmp_path: Path) -> None:
    lines, last = FAULTS[said]
    found = told(tmp_path, lines, **last)
    wrong = violations(found)
    assert any(said in one for one in wrong), wrong
    assert evidence(found, wrong) or "t" not in wrong[0].split()


def test_an_effect_that_comes_late_is_found(tmp_path: Path) -> None:
    (tmp_path / "ledger-t").write_text("[[7, 3], 0]\n[[7, 1], 1]\n")
    (wrong,) = violations(told(tmp_path))
    assert "follows one of a later attempt" in wrong


def test_what_the_store_was_left_with_is_found(tmp_path: Path) -> None:
    assert violations(told(tmp_path, left=["half_made"])) == ["the store was left with half_made"]
