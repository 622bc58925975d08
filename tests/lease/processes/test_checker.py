"""The checker itself: it accepts what can be explained and refuses what is known to be wrong."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from stores.memory import InMemoryTaskStore
from tests.lease.processes.contract import ABSENT, apply, prepared
from tests.lease.processes.histories import History, record_threads
from tests.lease.processes.linear import Event, Refuted, linearize


def history(text: str) -> History:
    """Read lines such as ``0 3 claim() -> ok t1 1 running``: began, ended (``-``: never), call, answer."""
    events = []
    for number, line in enumerate(filter(None, map(str.strip, text.splitlines()))):
        call, _, answer = line.partition(" -> ")
        began, ended, call = call.split(" ", 2)
        name, _, asked = call.removesuffix(")").partition("(")
        events.append(
            Event(
                number,
                name,
                tuple(word(part) for part in asked.split()),
                None if answer == "?" else tuple(word(part) for part in answer.split()),
                float(began),
                math.inf if ended == "-" else float(ended),
            )
        )
    return events


def word(text: str) -> Any:
    if "/" in text:
        return tuple(word(part) for part in text.split("/"))
    return {"None": None, "True": True, "False": False}.get(text, int(text) if text.isdigit() else text)


def explain(text: str) -> list[str]:
    explained = linearize(prepared(history(text), math.inf), ABSENT, apply)
    return [event.call for event in explained if event.phase != 2]


RIGHT = {
    "one after the other": """
        0 1 create(a) -> ok
        2 3 claim() -> ok t1 1 running
        4 5 get() -> ok running a 1
        6 7 commit(t1 b) -> ok running
        8 9 end(t1 c completed) -> ok completed
        10 11 get() -> ok completed c 1
        12 13 delete() -> ok
        14 15 get() -> absent""",
    "of two that overlap, either may be first": """
        0 1 create(a) -> ok
        2 9 update(pending b None) -> ok 1 pending
        3 4 get() -> ok pending a 0
        5 6 get() -> ok pending b 1""",
    "a call without an answer took effect": """
        0 - create(a) -> ?
        5 6 get() -> absent
        7 8 get() -> ok pending a 0""",
    "a call without an answer took none": """
        0 1 create(a) -> ok
        2 - update(pending b None) -> ?
        5 6 get() -> ok pending a 0""",
    "a claim that nobody lived to hold is taken over": """
        0 1 create(a) -> ok
        2 - claim() -> ?
        5 6 get() -> ok running a 1
        7 8 take_over() -> ok t2 2 running False
        9 10 commit(t2 b) -> ok running""",
    "a cancel reaches the holder": """
        0 1 create(a) -> ok
        2 3 claim() -> ok t1 1 running
        4 5 cancel() -> ok cancelling 1
        6 7 renew(t1) -> ok True
        8 9 get() -> ok cancelling a 1
        10 11 release(t1 b) -> ok cancelled
        12 13 claim() -> ended""",
    "for the moment of an update a task is held": """
        0 1 create(a) -> ok
        2 6 update(pending b None) -> ok 1 pending
        3 4 claim() -> held
        7 8 claim() -> ok t1 2 running""",
    "a cancel during a release is fulfilled by the release": """
        0 1 create(a) -> ok
        2 3 claim() -> ok t1 1 running
        4 9 release(t1 b) -> ok cancelled
        5 6 get() -> ok pending b 1
        6 7 cancel() -> ok cancelling 1
        10 11 get() -> ok cancelled b 1""",
    "a take-over is seen half-way": """
        0 1 create(a) -> ok
        2 3 claim() -> ok t1 1 running
        4 9 take_over() -> ok t2 2 running False
        5 6 commit(t1 b) -> lost
        7 8 get() -> ok running a 1""",
    "an id that comes again begins anew": """
        0 1 create(a) -> ok
        2 3 update(completed b None) -> ok 1 completed
        4 5 delete() -> ok
        6 7 create(c) -> ok
        8 9 get() -> ok pending c 0""",
}

WRONG = {
    "an acknowledged create is lost": "0 1 create(a) -> ok\n2 3 get() -> absent",
    "a read goes back": """
        0 1 create(a) -> ok
        2 9 update(pending b None) -> ok 1 pending
        3 4 get() -> ok pending b 1
        5 6 get() -> ok pending a 0""",
    "two creators win": "0 3 create(a) -> ok\n1 4 create(b) -> ok",
    "two claimers win": """
        0 1 create(a) -> ok
        2 5 claim() -> ok t1 1 running
        3 6 claim() -> ok t2 1 running""",
    "an epoch is used twice": """
        0 1 create(a) -> ok
        2 3 claim() -> ok t1 1 running
        4 5 release(t1 b) -> ok pending
        6 7 claim() -> ok t2 1 running""",
    "a late commit is accepted": """
        0 1 create(a) -> ok
        2 3 claim() -> ok t1 1 running
        4 5 take_over() -> ok t2 2 running False
        6 7 commit(t1 b) -> ok running""",
    "a refused commit has an effect": """
        0 1 create(a) -> ok
        2 3 claim() -> ok t1 1 running
        4 5 take_over() -> ok t2 2 running False
        6 7 commit(t1 b) -> lost
        8 9 get() -> ok running b 2""",
    "a holder is refused for no reason": """
        0 1 create(a) -> ok
        2 3 claim() -> ok t1 1 running
        4 5 commit(t1 b) -> lost""",
    "a task is held by nobody": "0 1 create(a) -> ok\n2 3 claim() -> held",
    "two compare and set with one version": """
        0 1 create(a) -> ok
        2 5 update(pending b pending/a/0) -> ok 0 pending
        3 6 update(pending c pending/a/0) -> ok 0 pending""",
    "a conflict with nothing": "0 1 create(a) -> ok\n2 3 update(pending b pending/a/0) -> conflict",
    "a cancel is forgotten": """
        0 1 create(a) -> ok
        2 3 claim() -> ok t1 1 running
        4 5 cancel() -> ok cancelling 1
        6 7 renew(t1) -> ok False""",
    "a cancel is forgotten at the take-over": """
        0 1 create(a) -> ok
        2 3 claim() -> ok t1 1 running
        4 5 cancel() -> ok cancelling 1
        6 7 take_over() -> ok t2 2 running False""",
    "a cancel is forgotten at the release": """
        0 1 create(a) -> ok
        2 3 claim() -> ok t1 1 running
        4 5 cancel() -> ok cancelling 1
        6 7 release(t1 b) -> ok pending
        8 9 get() -> ok pending b 1""",
    "a cancel that found nobody on the way is not fulfilled at once": """
        0 1 create(a) -> ok
        4 5 cancel() -> ok cancelling 0""",
    "a release that says cancelled and is not": """
        0 1 create(a) -> ok
        2 3 claim() -> ok t1 1 running
        4 5 release(t1 b) -> ok cancelled
        6 7 claim() -> ok t2 2 running""",
    "an active task is deleted": "0 1 create(a) -> ok\n2 3 delete() -> ok",
    "a task ends twice": """
        0 1 create(a) -> ok
        2 3 claim() -> ok t1 1 running
        4 7 end(t1 b completed) -> ok completed
        5 8 end(t1 c failed) -> ok failed""",
    "an update re-creates": """
        0 1 create(a) -> ok
        2 3 update(completed b None) -> ok 1 completed
        4 5 delete() -> ok
        6 7 update(pending c None) -> ok 1 pending""",
    "a call has an effect before it began": "0 1 get() -> ok pending a 0\n2 3 create(a) -> ok",
}


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_what_can_be_explained(text: str) -> None:
    calls = [line.split("(")[0].split()[-1] for line in text.strip().splitlines()]
    assert sorted(explain(text)) == sorted(calls if " ?" not in text else explain(text))


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_what_is_wrong(text: str) -> None:
    with pytest.raises(Refuted, match="nothing explains"):
        explain(text)


def test_a_refusal_shows_how_far_it_came() -> None:
    with pytest.raises(Refuted, match=r"(?s)0 .. 1000000 .*create\(a\) -> ok\nleads to .*pending.*get"):
        explain("0 1 create(a) -> ok\n2 3 get() -> absent")


@pytest.mark.parametrize("seed", range(10))
def test_recorded_histories_with_one_answer_changed(seed: int) -> None:
    """Of a history that happened, the last read is made to tell of something that never was."""
    recorded = record_threads(InMemoryTaskStore(), seed=seed)
    explained = prepared(recorded, math.inf)
    linearize(explained, ABSENT, apply)
    *others, last = explained
    assert last.call == "get"
    assert last.answer is not None
    wrong = ("ok", "pending", "never", 0) if last.answer == ("absent",) else ("absent",)
    with pytest.raises(Refuted):
        linearize([*others, dataclasses.replace(last, answer=wrong)], ABSENT, apply)
