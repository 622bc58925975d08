"""Work grows with the page, not with the history: the plans of the statements, on tables with many rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from stores.postgres.rows import kind_of
from stores.postgres.statements import Statements
from stores.postgres.store import PostgresTaskStore
from task_tracker.records import TaskStatus
from task_tracker.store import Query
from task_tracker.testing import RecordMaker
from tests.postgres.grounds import Ground, Grounds

ROWS = 20_000
MOST_READ = 400
"""Rows and entries that a question may touch; the history is 50 times as long."""


@pytest.fixture(scope="module")
def history(grounds: Grounds) -> Iterator[Ground]:
    """20,000 ended tasks, a few failed ones long ago, a backlog of 5,000 of other kinds, and 2,000 for later."""
    ground = grounds.take()
    make = RecordMaker(own_fields=False)
    with closing(ground.store()) as store:
        store.create(make(status=TaskStatus.FAILED))
        store.create(make(status=TaskStatus.COMPLETED))
        store.create(make(task_type="other", handler_version=1))
        store.create(make(task_type="later", handler_version=1, not_before=9e9, priority=9))
        same = (
            "account_id, user_id, creation, task_type, status, resource_id, kind, blocks, handler_version, priority, "
            "not_before, deferred"
        )
        record = (
            "jsonb_set(jsonb_set(record::jsonb, '{{{{task_id}}}}', to_jsonb(task_id || n)), '{{{{created_at}}}}', "
            "to_jsonb(created_at + n))::json"
        )
        copied = (
            f"INSERT INTO {{{{tasks}}}} ({same}, task_id, created_at, ended_at, record) "
            f"SELECT {same}, task_id || n, created_at + n, ended_at + n, {record} "
            "FROM {{tasks}}, generate_series(1, {number}) n WHERE {what}"
        )
        for number, what in (
            (ROWS, "status = 'completed'"),
            (5000, "task_type = 'other'"),
            (2000, "task_type = 'later'"),
        ):
            ground.run(copied.format(number=number, what=what))
        store.create(make(handler_version=1))
    ground.run("ANALYZE {tasks}")
    yield ground
    grounds.give_back(ground)


def touched(ground: Ground, name: str, **params: Any) -> int:
    """Return how many rows and entries of indexes a statement looks at."""
    statement = b"EXPLAIN (ANALYZE, FORMAT JSON) " + Statements(ground.names)[name]
    with closing(psycopg.connect(ground.dsn)) as connection:
        (plan,) = connection.execute(statement, params).fetchone() or ([],)
    return sum(rows for rows in _rows(plan[0]["Plan"]))


def _rows(node: dict[str, Any]) -> Iterator[int]:
    loops = node["Actual Loops"]
    yield round(node["Actual Rows"] * loops)
    for name, number in node.items():
        if re.match("Rows Removed", name):
            yield round(number * loops)
    for child in node.get("Plans", []):
        yield from _rows(child)


def page(**asked: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(
        ("user_id", "status", "task_type", "resource_id", "before_time", "before_task", "before_user")
    )
    return {**nothing, "account_id": "acme", "limit": 51, "most_unreadable": 100, **asked}


QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "a user's newest": ("page+user", page(user_id="alice")),
    "a user's failed ones": ("page+user+status", page(user_id="alice", status="failed")),
    "a user's later page": (
        "page+user+before",
        page(user_id="alice", before_time=4.0e9 + 9000, before_task="x", before_user="alice"),
    ),
    "an account's newest": ("page", page()),
    "an account's failed ones": ("page+status", page(status="failed")),
    "is one active": (
        "has_active",
        {"account_id": "acme", "user_id": "alice", "kind": kind_of("nothing", "docs")},
    ),
    "is one active in the account": (
        "has_active",
        {"account_id": "acme", "user_id": None, "kind": kind_of("nothing", "docs")},
    ),
    "one task": (
        "get",
        {"account_id": "acme", "user_id": "alice", "task_id": "nothing", "known": -1},
    ),
    "does one wait": ("waiting", {"types": ["reindex", "nothing"], "versions": [1, 1]}),
    "the next": ("next", {"types": ["reindex", "other"], "versions": [1, 1], "depth": 16, "most": 1}),
    "what could be next": ("claimable", {"types": ["reindex", "other"], "versions": [1, 1], "depth": 2}),
    "when the next one is due": (
        "next_due",
        {"types": ["reindex", "later"], "versions": [1, 1], "most_deferred": 100},
    ),
    "what runs": ("running", {"types": ["reindex"]}),
    "what expired": ("expired", {"limit": 1000}),
    "whose tokens these are": ("of_tokens", {"tokens": ["nothing"]}),
    "the oldest that wait": (
        "unclaimed",
        {
            "types": None,
            "versions": None,
            "except_types": None,
            "except_versions": None,
            "handled": None,
            "older_than_seconds": 0.0,
            "limit": 50,
        },
    ),
    "which kinds wait": ("waiting_kinds", {"most_deferred": 50}),
    "what waits of few kinds": (
        "unclaimed_by_kind",
        {
            "types": ["reindex", "nothing"],
            "versions": [1, 1],
            "older_than_seconds": 0.0,
            "limit": 50,
            "most_deferred": 50,
        },
    ),
    "whose term is missing": ("stamp", {"limit": 10, "lease_seconds": 30.0}),
    "what is old": ("purgeable", {"states": ["completed", "failed"], "cutoffs": [1e9, 1e9], "limit": 100}),
    "whose start time has come": ("promote", {"limit": 100}),
}


@pytest.mark.parametrize(("name", "params"), QUESTIONS.values(), ids=QUESTIONS.keys())
def test_question_about_a_long_history_touches_few_rows(
    history: Ground, name: str, params: dict[str, Any]
) -> None:
    """[D136]"""
    assert touched(history, name, **params) <= MOST_READ


def test_pages_and_questions_are_answered_right(history: Ground) -> None:
    """What the plans above answer. [D136] [D137]"""
    with closing(history.store()) as store:
        assert isinstance(store, PostgresTaskStore)
        assert len(store.list(Query("acme", "alice", status="failed")).items) == 1
        assert len(store.list(Query("acme", "alice")).items) == 50
        assert store.has_active("acme", "alice", "reindex", "docs")
        counts = store.count("acme", "alice")
        assert counts["reindex"] == {"failed": 1, "completed": ROWS + 1, "pending": 1}
        purged = store.purge({TaskStatus.COMPLETED: 4.0e9 + 100}, limit=50)
        assert (len(purged.deleted), purged.more) == (50, True)


def test_records_are_not_parsed_by_the_database(history: Ground) -> None:
    """But where retention makes sure of one that it is about to delete."""
    parsing = [
        name
        for name, statement in Statements(history.names).items()
        if b"->" in statement.replace(b"->>", b"->")
    ]
    assert sorted(parsing) == ["purge", "purgeable"]
