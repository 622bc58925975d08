"""Plans for a table that nobody has looked at yet: they are kept while it grows, so they must be good ones at once."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stores.postgres.migrating import Migrations
from stores.postgres.statements import Statements
from tests.postgres.grounds import Ground
from tests.postgres.test_migrations import connect
from tests.postgres.test_upgrades import steps_until

KEY = re.compile(
    r"t\.account_id = %\(account_id\)s AND t\.user_id = %\(user_id\)s AND t\.task_id = %\(task_id\)s"
)
LISTS = {
    "page": "account",
    "page+user": "owner",
    "page+user+before": "owner",
    "page+status": "account_status",
    "page+user+status": "owner_status",
    "has_active": "active",
}


def indexes_of(ground: Ground, name: str) -> set[str]:
    """Return which indexes of the tasks the plan of a statement goes by, whatever it is asked."""
    numbers: dict[str, str] = {}

    def numbered(found: re.Match[str]) -> str:
        return numbers.setdefault(found[1], f"${len(numbers) + 1}")

    text = re.sub(r"%\((\w+)\)s", numbered, Statements(ground.names)[name].decode())
    run = ground.control.execute
    with ground.control.transaction(force_rollback=True):
        run("SET LOCAL plan_cache_mode = force_generic_plan")
        run(f"PREPARE asked AS {text}".encode())
        nothing = f"({', '.join(['NULL'] * len(numbers))})" if numbers else ""
        ((plan,),) = run(f"EXPLAIN (FORMAT JSON) EXECUTE asked{nothing}".encode()).fetchall()
        run("DEALLOCATE asked")
    return set(_used(plan[0]["Plan"], ground))


def _used(node: dict[str, Any], ground: Ground) -> list[str]:
    used = [node["Index Name"].removeprefix(ground.names.prefix)] if "Index Name" in node else []
    for child in node.get("Plans", []):
        used += _used(child, ground)
    return used


@pytest.fixture
def fresh(bare: Ground) -> Ground:
    store = bare.store(pool_size=1)
    store.prepare(migrate=True)
    store.close()
    return bare


def test_who_asks_for_one_task_finds_it_by_its_key(fresh: Ground) -> None:
    asked = [name for name, text in Statements(fresh.names).items() if KEY.search(text.decode())]
    assert len(asked) > 10
    for name in asked:
        used = indexes_of(fresh, name) - ({"active"} if name == "create_alone" else set())
        assert used == {"tasks_pkey"}, name


@pytest.mark.parametrize(("name", "index"), LISTS.items())
def test_lists_go_by_the_index_that_says_most(fresh: Ground, name: str, index: str) -> None:
    assert indexes_of(fresh, name) - {"unreadable"} == {index}


@pytest.mark.parametrize("name", ["waiting_kinds", "unclaimed_by_kind", "claimable"])
def test_what_waits_of_few_kinds_is_found_in_the_queue(fresh: Ground, name: str) -> None:
    """Others are not read, however many there are."""
    assert indexes_of(fresh, name) - {"paused_pkey"} == {"queue", "deferred"}


def test_start_times_are_found_in_their_order(fresh: Ground) -> None:
    assert indexes_of(fresh, "next_due") == {"deferred"}


def test_tasks_that_others_refer_to_keep_their_key(bare: Ground, tmp_path: Path) -> None:
    """A foreign key of somebody's own does not stop the upgrade."""
    steps = Migrations(bare.names, steps_until(2, tmp_path / "steps"))
    with closing(connect(bare)) as connection:
        steps.apply(connection)
        bare.run(
            "CREATE TABLE {schema}.documents (account_id text, user_id text, task_id text, "
            "FOREIGN KEY (account_id, user_id, task_id) REFERENCES {tasks})"
        )
        assert Migrations(bare.names).apply(connection)[0].number == 3
    assert bare.run(
        "SELECT count(*) FROM pg_constraint WHERE conrelid = {tasks_name}::regclass AND contype = 'p'"
    ) == [(1,)]
