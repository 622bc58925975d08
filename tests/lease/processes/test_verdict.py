"""The judge of the chaos: each promise that is broken in a trace is found, and nothing else is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.lease.processes.observer import Seen, observe, read_seen
from tests.lease.processes.trace import UNKNOWN, Call, Sight, Trace, read_traces, sight_of
from tests.lease.processes.verdict import figures, violations

TASK = "acme/alice/task-1"


def see(epoch: int, sequence: int, status: str, life: str = "a", token: str | None = None) -> Sight:
    return Sight(life, epoch, sequence, status, f"{epoch}.{sequence}", token or f"token-{life}-{epoch}")


def call(
    name: str,
    began: float,
    sight: Sight | None = None,
    *,
    outcome: str = "ok",
    ended: float | None = None,
    told: dict[str, Any] | None = None,
    task: str = TASK,
    **asked: Any,
) -> Call:
    if sight is not None:
        asked = {
            "life": sight.life,
            "epoch": sight.epoch,
            "sequence": sight.sequence,
            "status": sight.status,
        } | asked
        told = {"sight": list(sight), "epoch": sight.epoch, "token": sight.token} | (told or {})
    asked.setdefault("life", "a")
    return Call("p1", name, task, asked, began, began + 1 if ended is None else ended, outcome, told or {})


def seen(sight: Sight, first: float, last: float | None = None, task: str = TASK) -> Seen:
    return Seen(task, sight, first, first + 0.5, first if last is None else last)


CREATED = call("create", 0, see(0, 0, "pending"))
CLAIMED = call("claim", 10, see(1, 0, "running"))
COMMITTED = call("commit", 20, see(1, 1, "running"))
ENDED = call("end", 30, see(1, 2, "completed"))
FINAL = {TASK: see(1, 2, "completed")}
STORY = [CREATED, CLAIMED, COMMITTED, ENDED]

ONE = [
    call("create_one", 0, see(0, 0, "pending", "a"), task="acme/alice/one", kind="alice/docs"),
    call("claim", 10, see(1, 0, "running", "a"), task="acme/alice/one"),
    call("end", 40, see(1, 1, "completed", "a"), task="acme/alice/one"),
]


def other_one(began: float) -> list[Call]:
    task = "acme/alice/other"
    return [
        call("create_one", began, see(0, 0, "pending", "b"), task=task, kind="alice/docs"),
        call("cancel", 90, see(1, 0, "cancelled", "b"), task=task),
    ]


ONES_FINAL = {
    "acme/alice/one": see(1, 1, "completed", "a"),
    "acme/alice/other": see(1, 0, "cancelled", "b"),
}

RIGHT: dict[str, tuple[list[Call], list[Seen], dict[str, Sight]]] = {
    "a life": (STORY, [seen(see(0, 0, "pending"), 1, 9), seen(see(1, 2, "completed"), 30.2, 99)], FINAL),
    "a deleted one": ([*STORY, call("delete", 50)], [seen(see(1, 2, "completed"), 31, 49)], {}),
    "deleted by one that was killed": (
        [*STORY, call("delete", 50, outcome=UNKNOWN, ended=math.inf)],
        [seen(see(1, 2, "completed"), 31, 49)],
        {},
    ),
    "a stale holder is refused": (
        [CREATED, CLAIMED, call("take_over", 15, see(2, 0, "running")), call("commit", 20, outcome="lost")],
        [],
        {TASK: see(3, 1, "failed")},
    ),
    "an id that comes again": (
        [*STORY, call("delete", 50), call("create", 60, see(0, 0, "pending", "b"))],
        [seen(see(1, 2, "completed"), 31, 49), seen(see(0, 0, "pending", "b"), 61)],
        {TASK: see(1, 0, "cancelled", "b")},
    ),
    "one after the other": (ONE + other_one(41.5), [], ONES_FINAL),
    "one when the other may have ended": (ONE + other_one(39.5), [], ONES_FINAL),
}

WRONG: dict[str, tuple[str, list[Call], list[Seen], dict[str, Sight]]] = {
    "two ends": ("more than once", STORY, [seen(see(1, 2, "failed"), 50)], FINAL),
    "active again": ("seen again", STORY, [seen(see(2, 0, "running"), 50)], FINAL),
    "the file goes back": (
        "went back",
        STORY,
        [seen(see(1, 1, "running"), 21), seen(see(1, 0, "running"), 23)],
        FINAL,
    ),
    "an old file after an acknowledged write": (
        "went back",
        STORY,
        [seen(see(1, 0, "running"), 11, 22)],
        FINAL,
    ),
    "a late commit is accepted": (
        "",
        [CREATED, CLAIMED, call("take_over", 15, see(2, 0, "running")), COMMITTED],
        [],
        {TASK: see(2, 1, "completed")},
    ),
    "a late commit lands before the new holder has written": (
        "its record changed",
        [CREATED, CLAIMED, call("take_over", 15, see(1, 0, "running"), told={"epoch": 2, "token": "t2"})],
        [seen(see(1, 0, "running"), 11, 17), seen(see(1, 1, "running"), 18)],
        {TASK: see(2, 1, "failed")},
    ),
    "a late heartbeat is accepted": (
        "this was accepted",
        [
            CREATED,
            CLAIMED,
            call("take_over", 15, see(1, 0, "running"), told={"epoch": 2, "token": "t2"}),
            call("renew", 20, epoch=1),
        ],
        [],
        {TASK: see(2, 1, "failed")},
    ),
    "two tokens of one epoch": (
        "has the tokens",
        [*STORY, call("claim", 10, see(1, 0, "running", token="another"))],
        [],
        FINAL,
    ),
    "one token of two epochs": (
        "one token for",
        [CREATED, CLAIMED, call("take_over", 15, see(2, 0, "running", token="token-a-1"))],
        [],
        {TASK: see(2, 1, "failed")},
    ),
    "a record with another token than the lease": (
        "has the tokens",
        [CREATED, call("claim", 10, see(1, 0, "running"), told={"token": "another"})],
        [],
        FINAL,
    ),
    "lost": ("is lost", [CREATED], [], {}),
    "lost after the last delete": ("is lost", [call("delete", -5, ended=-4), CREATED], [], {}),
    "deleted while active": ("while it was active", [CREATED, call("delete", 5)], [], {}),
    "two at a time": ("while a was active", ONE + other_one(20), [], ONES_FINAL),
    "active for ever": ("is left running", [CREATED, CLAIMED], [], {TASK: see(1, 0, "running")}),
    "torn": ("torn record", STORY, [seen(Sight("?", 0, 0, "torn", "{", None), 5)], FINAL),
    "unavailable": ("no answer", [*STORY, call("look", 5, outcome=UNKNOWN)], [], FINAL),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right(name: str) -> None:
    assert violations(*RIGHT[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong(name: str) -> None:
    words, *trace = WRONG[name]
    found = violations(*trace)  # type: ignore[arg-type]
    assert found, "nothing was found"
    assert all(words in text for text in found), found


def test_figures() -> None:
    told = figures([*STORY, call("commit", 50, outcome="lost")])
    assert (told["claims"], told["commits"], told["ends"], told["lease_lost"]) == (1, 1, 1, 1)


def test_a_trace_survives_its_process(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "p1")
    trace.intend("create", TASK, life="a")
    trace.outcome("ok", sight=see(0, 0, "pending"))
    trace.intend("delete", TASK)
    with (tmp_path / "trace-p1").open("a") as file:
        file.write('[1.5, "o')  # killed half-way
    first, second = read_traces(tmp_path)
    assert (first.name, first.outcome, first.sight) == ("create", "ok", see(0, 0, "pending"))
    assert (second.name, second.outcome, second.ended) == ("delete", UNKNOWN, math.inf)
    assert first.began <= first.ended <= second.began


def test_the_observer_notes_what_changes(tmp_path: Path) -> None:
    folder = tmp_path / "acme" / "tasks" / "alice"
    folder.mkdir(parents=True)
    record = {"status": "running", "meta": {"life": "a"}, "attempt": {"epoch": 2, "token": "t"}}
    files = iter(
        [
            json.dumps(record | {"message": "1.4"}),
            json.dumps(record | {"message": "2.1"}),
            json.dumps(record | {"message": "2.1"}),
            '{"status": "ru',
            None,
        ]
    )

    def change() -> bool:
        text = next(files)
        if text is None:
            (folder / "task-1.json").unlink()
            return True
        (folder / "task-1.json").write_text(text)
        return False

    observe(tmp_path, tmp_path / "seen", change)
    found = read_seen(tmp_path / "seen")
    assert [(one.task, one.sight.sequence, one.sight.status) for one in found] == [
        (TASK, 0, "running"),
        (TASK, 1, "running"),
        (TASK, 0, "torn"),
    ]
    assert found[1].last_began > found[1].first_ended
    assert sight_of(record).epoch == 2
