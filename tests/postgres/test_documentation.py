"""docs/postgres.md names every table, column, option and command that there is, and its questions can be asked."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from stores.postgres.options import PostgresSettings
from task_tracker import StorageConfig
from task_tracker.store import StoreOptions
from tests.postgres.grounds import Ground

PAGE = (Path(__file__).parents[2] / "docs" / "postgres.md").read_text()
PREFIX = "task_tracker_"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_table_and_column_is_described(ground: Ground) -> None:
    columns = ground.control.execute(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = %s",
        [ground.names.schema],
    ).fetchall()
    assert columns
    described = PAGE[PAGE.index("## The tables") :]
    for table, column in columns:
        name = table.removeprefix(ground.names.prefix)
        assert f"{PREFIX}{name}" in described
        assert f"`{column}`" in described, (table, column)


def test_columns_are_described_in_the_database_too(ground: Ground) -> None:
    """For whoever meets them there first; those whose name says it all apart."""
    found = ground.control.execute(
        "SELECT a.attname, col_description(a.attrelid, a.attnum) FROM pg_attribute a "
        "WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped",
        [f'"{ground.names.schema}"."{ground.names.prefix}tasks"'],
    ).fetchall()
    bare = {name for name, said in found if not said}
    assert bare == {
        *("account_id", "user_id", "task_id", "status", "resource_id", "created_at"),
        *("handler_version", "priority", "not_before"),
    }


@pytest.mark.parametrize(
    "name",
    [
        "connect_seconds",
        "listen",
        "listen_dsn",
        "pool_size",
        "schema",
        "statement_seconds",
        "table_prefix",
    ],
)
def test_every_option_is_described(name: str) -> None:
    assert f"`options.{name}`" in PAGE
    settings = PostgresSettings.of(StoreOptions(dsn="host=h"))
    shown = {"listen": "true", "listen_dsn": "dsn"}
    default = (
        shown.get(name)
        or getattr(settings, name, None)
        or getattr(settings.names, name.removeprefix("table_"))
    )
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `options.{name}`"))
    assert re.search(
        rf"\| `?\"?{default:g}\b" if isinstance(default, float) else rf"\| `?\"?{default}\b", row
    )


def test_document_is_one_that_configuration_takes() -> None:
    for block in blocks("json"):
        assert StorageConfig.from_document(orjson.loads(block)).task_tracker.backend == "postgres"


@pytest.mark.parametrize(
    "question", [part for block in blocks("sql") for part in block.split(";\n") if part.strip()]
)
def test_questions_can_be_asked(ground: Ground, question: str) -> None:
    with ground.control.transaction():
        ground.control.execute(ground.names.fill("SET LOCAL search_path TO {schema}"))
        asked = re.sub(rf"\b{PREFIX}(\w+)", rf'"{ground.names.prefix}\1"', question)
        ground.control.execute(asked.encode())
