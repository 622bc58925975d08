"""The ``event`` of log records: one meaning each, and all of them in docs/events.md."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from task_tracker.worker.hooks import EVENTS

PROJECT = Path(__file__).parents[2]
SAID_TWICE = {"attempt_broken", "outcome_refused"}
"""The same thing, found out at two places."""
ANSWERS = {"handlers_checked", "worker_settings"}


def logged() -> Iterator[str]:
    """All events in the source, once for each place."""
    for folder in ("task_tracker", "stores"):
        for file in sorted((PROJECT / folder).rglob("*.py")):
            if "testing" in file.relative_to(PROJECT).parts:
                continue
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Dict):
                    for key, value in zip(node.keys, node.values, strict=True):
                        if isinstance(key, ast.Constant) and key.value == "event":
                            assert isinstance(value, ast.Constant), (
                                f"{file}:{node.lineno}: write the word itself"
                            )
                            yield str(value.value)


def documented() -> list[str]:
    """All events in the tables."""
    text = (PROJECT / "docs" / "events.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [word for cell in cells for word in re.findall(r"`(\w+)`", cell)]


def test_each_event_has_one_meaning() -> None:
    assert {event for event, places in Counter(logged()).items() if places > 1} == SAID_TWICE


def test_all_events_are_documented_once_and_no_others() -> None:
    assert sorted(documented()) == sorted(set(logged()) - ANSWERS)


def test_what_hooks_and_logs_call_by_one_name_is_the_same() -> None:
    """So that a name of both may be looked up in either list."""
    assert set(EVENTS) & set(logged()) == {
        *(
            "attempt_ended",
            "kind_unknown",
            "lease_lost",
            "loop_blocked",
            "rescued",
            "store_away",
            "store_back",
        ),
    }
