"""A table of tasks that somebody kept before this library did: taken in by the first migration, as version 0."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from stores.postgres.migrating import Migrations
from stores.postgres.rows import said
from stores.postgres.store import PostgresTaskStore, open_schema
from task_tracker import HandlerRegistry, TaskTracker
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import SettingsError
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Query
from task_tracker.testing import RecordMaker
from tests.core.support import OWNER
from tests.postgres.grounds import Ground, newest_migration
from tests.postgres.test_migrations import applied, connect, migrate_at_once, options, shape
from tests.postgres.test_settings import section
from tests.runtime.work import WORK, registry
from tests.runtime.workers import Crew

TABLE = """
CREATE TABLE {tasks} (
    task_id text PRIMARY KEY,
    account_id text NOT NULL,
    user_id text NOT NULL,
    task_type varchar(80) NOT NULL,
    status text NOT NULL DEFAULT 'pending',
    resource_id text,
    payload jsonb,
    result json,
    error text,
    cancel_requested boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    colour text
)
"""
"""As a server may have made it. What is not told of records stays where it is."""

CREATED, UPDATED = 1_750_000_000.25, 1_750_000_060.5
STATES = ("pending", "running", "cancelling", "completed", "failed", "cancelled", "paused_by_moon")


def key(task_id: str) -> TaskKey:
    return TaskKey("acme", "alice", task_id)


@pytest.fixture
def old(bare: Ground) -> Ground:
    """A schema with such a table, and a task in each state."""
    bare.run("CREATE SCHEMA {schema}")
    bare.run(TABLE)
    bare.run("CREATE INDEX {index_owner} ON {tasks} (account_id, user_id)")
    for status in STATES:
        add(bare, status, status=status)
    return bare


def add(ground: Ground, task_id: str, **columns: Any) -> None:
    row = {
        "task_id": task_id,
        "account_id": "acme",
        "user_id": "alice",
        "task_type": "note",
        "resource_id": 'döcs "1"\n',
        "created_at": datetime.fromtimestamp(CREATED, UTC),
        "updated_at": datetime.fromtimestamp(UPDATED, UTC),
        **columns,
    }
    names, values = ", ".join(row), ", ".join(["%s"] * len(row))
    ground.run(f"INSERT INTO {{tasks}} ({names}) VALUES ({values})", *row.values())


@contextmanager
def migrated(ground: Ground, **more: Any) -> Iterator[PostgresTaskStore]:
    with closing(ground.store(**more)) as store:
        store.prepare(migrate=True)
        yield store


def records_of(store: PostgresTaskStore) -> dict[str, TaskRecord]:
    page = store.list(Query("acme", "alice", limit=None))
    assert page.corrupt == []
    return {stored.record.task_id: stored.record for stored in page.items}


# ---- what becomes of it ------------------------------------------------------------------------------------


def test_states_stay_and_version_is_0(old: Ground) -> None:
    """Those that have not ended too, and one that nobody knows."""
    with migrated(old) as store:
        found = records_of(store)
        assert {task_id: str(record.status) for task_id, record in found.items()} == dict(
            zip(STATES, STATES, strict=True)
        )
        for record in found.values():
            assert record.handler_version == 0
            assert (record.created_at, record.updated_at) == (CREATED, UPDATED)
            assert record.task_type == "note"
            assert record.resource_id == 'döcs "1"\n'
            assert record.creation
            assert record.attempt is not None
            assert record.attempt.epoch == 0
            assert record.attempt.count == (record.status is not TaskStatus.PENDING)
        assert len({record.creation for record in found.values()}) == len(STATES)
    assert applied(old)[:2] == [(0, "unversioned"), (1, "0001_tasks")]
    assert old.run("SELECT count(*) FROM {unversioned}") == [(len(STATES),)], "it stays, put aside"


def test_columns_say_what_records_say(old: Ground) -> None:
    """As if the library had written them: whatever is asked of a row finds it."""
    names = (
        "task_type",
        "status",
        "resource_id",
        "kind",
        "blocks",
        "created_at",
        "handler_version",
        "priority",
        "ended_at",
    )
    with migrated(old) as store:
        for record in records_of(store).values():
            expected = said(record)
            (row,) = old.run(f"SELECT {', '.join(names)} FROM {{tasks}} WHERE task_id = %s", record.task_id)
            assert [bytes(value) if isinstance(value, memoryview) else value for value in row] == [
                expected[name] for name in names
            ], record
        store.recover()
        assert [*store.examine()] == []
        assert store.has_active("acme", "alice", "note", 'döcs "1"\n')


def test_values_are_kept(old: Ground) -> None:
    """JSON as it stands; text is text; null is nothing."""
    add(
        old,
        "rich",
        status="completed",
        result='{"b": 1e18, "a": [null, 0.1]}',
        payload='{"n": 1}',
        error=None,
    )
    add(old, "poor", status="failed", error='no "luck"\t\\', result=None)
    with migrated(old) as store:
        found = records_of(store)
        assert found["rich"].result == {"b": 1e18, "a": [None, 0.1]}
        assert [*found["rich"].result] == ["b", "a"]
        assert type(found["rich"].result["b"]) is float
        assert found["rich"].payload == {"n": 1}
        assert (found["poor"].result, found["poor"].error) == (None, 'no "luck"\t\\')
        assert found["poor"].payload is None


def test_wish_to_cancel_is_kept(old: Ground) -> None:
    """Nobody claims such a task any more, and the time of the wish is there."""
    for status in ("pending", "running", "completed"):
        add(old, f"unwanted-{status}", status=status, cancel_requested=True)
    with migrated(old) as store:
        found = records_of(store)
        for status in ("pending", "running"):
            record = found[f"unwanted-{status}"]
            assert (record.status, record.cancel_requested_at) == (TaskStatus.CANCELLING, UPDATED)
        assert found["cancelling"].cancel_requested_at == UPDATED
        assert found["unwanted-completed"].status is TaskStatus.COMPLETED
        claimed = store.claim(holder="w", task_types=[("note", 0)])
        assert claimed is not None
        assert claimed[1].record.task_id == "pending"
        assert store.claim(holder="w", task_types=[("note", 0)]) is None


@pytest.mark.parametrize("kind", ["double precision", "numeric", "timestamptz"])
def test_all_columns_that_can_be_there(bare: Ground, kind: str) -> None:
    """Times as time stamps or as Unix seconds."""
    more = {
        "not_before": ("t", 4e9),
        "started_at": ("t", CREATED),
        "completed_at": ("t", UPDATED),
        "cancel_requested_at": ("t", UPDATED - 1),
        "stage": ("text", "half"),
        "message": ("text", "on its way"),
        "progress": ("double precision", 12.5),
        "priority": ("integer", 7),
        "timeout_seconds": ("integer", 60),
        "max_attempts": ("integer", 3),
        "attempts": ("integer", 2),
        "handler_version": ("integer", 4),
        "error_code": ("text", "odd"),
        "meta": ("jsonb", '{"a": 1}'),
        "private": ("jsonb", '"key"'),
    }
    bare.run("CREATE SCHEMA {schema}")
    columns = "".join(f", {name} {kind if type_ == 't' else type_}" for name, (type_, _) in more.items())
    bare.run(
        "CREATE TABLE {tasks} (task_id text, account_id text, user_id text, task_type text, status text, "
        f"created_at {kind}, updated_at {kind}{columns})"
    )
    for status in ("running", "failed"):
        values = {"created_at": ("t", CREATED), "updated_at": ("t", UPDATED), **more}
        bare.run(
            "INSERT INTO {tasks} (task_id, account_id, user_id, task_type, status, "
            + ", ".join(values)
            + ") VALUES (%s, 'acme', 'alice', 'note', %s, "
            + ", ".join(
                f"to_timestamp({value})" if type_ == "t" and kind == "timestamptz" else "%s"
                for type_, value in values.values()
            )
            + ")",
            status,
            status,
            *(value for type_, value in values.values() if not (type_ == "t" and kind == "timestamptz")),
        )
    with migrated(bare) as store:
        found = records_of(store)
        record = found["running"]
        assert record.status is TaskStatus.CANCELLING
        assert (record.created_at, record.updated_at) == (CREATED, UPDATED)
        assert (record.not_before, record.started_at, record.completed_at) == (4e9, CREATED, UPDATED)
        assert record.cancel_requested_at == UPDATED - 1
        assert (record.stage, record.message, record.progress) == ("half", "on its way", 12.5)
        assert (record.priority, record.timeout_seconds, record.max_attempts) == (7, 60, 3)
        assert (record.handler_version, record.error_code, record.meta) == (4, "odd", {"a": 1})
        assert record.attempt is not None
        assert record.attempt.count == 2
        assert record.get_private() == "key"
        assert found["failed"].private_json is None


# ---- migrating ---------------------------------------------------------------------------------------------


def test_indexes_with_long_names_that_differ_at_the_end(old: Ground) -> None:
    for end in "ab":
        old.run(f'CREATE INDEX "{"x" * 60}{end}" ON {{tasks}} (status)')
    with migrated(old) as store:
        assert len(records_of(store)) == len(STATES)


def test_check_says_that_it_is_recognised(old: Ground) -> None:
    with closing(open_schema(options(old))) as schema:
        first = f"0001_tasks (takes in the unversioned table {old.names.schema}.{old.names.prefix}tasks)"
        assert schema.pending()[0] == first
        assert schema.migrate()[0] == first
        assert [schema.pending(), schema.migrate()] == [[], []]


def test_script_takes_it_in_as_well(old: Ground, ground: Ground) -> None:
    """Run by hand; and what is there afterwards is what others have."""
    with closing(open_schema(options(old))) as schema:
        old.control.execute(schema.script().encode())
        assert schema.pending() == []
    with closing(old.store()) as store:
        assert len(records_of(store)) == len(STATES)
    old.run("DROP TABLE {unversioned}")
    assert [*map(_without_key_name, shape(old))] == [*map(_without_key_name, shape(ground))]


def _without_key_name(row: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(str(part).replace("pkey1", "pkey") for part in row)


def test_eight_processes_at_once(old: Ground) -> None:
    """One of them takes it in. [D107]"""
    got = migrate_at_once(old)
    assert sum(got) == newest_migration(old.names), got
    with closing(old.store()) as store:
        assert len(records_of(store)) == len(STATES)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            "ALTER TABLE {tasks} DROP COLUMN user_id, DROP COLUMN status",
            "is no table of tasks: it lacks user_id, status",
        ),
        (
            "ALTER TABLE {tasks} ADD COLUMN creation text",
            "was made by this library, and its table of migrations",
        ),
        (
            "UPDATE {tasks} SET user_id = ' ' WHERE task_id = 'running'",
            "1 rows of the table .* have no account_id",
        ),
        (
            "ALTER TABLE {tasks} ALTER status DROP NOT NULL; UPDATE {tasks} SET status = NULL",
            'null value in column "status"',
        ),
        (
            "ALTER TABLE {tasks} DROP CONSTRAINT {index_tasks_pkey}; UPDATE {tasks} SET task_id = 'twice'",
            "duplicate key value",
        ),
        (
            """UPDATE {tasks} SET result = ('"' || chr(92) || 'u0000"')::json""",
            "unsupported Unicode escape sequence",
        ),
    ],
)
def test_what_cannot_be_taken_in_is_left_as_it_is(old: Ground, change: str, complaint: str) -> None:
    """In one line, by the program and by the script."""
    old.run(change)
    before = old.run("SELECT * FROM {tasks} ORDER BY task_id")
    with closing(connect(old)) as connection, pytest.raises(SettingsError, match=complaint):
        Migrations(old.names).apply(connection)
    with closing(open_schema(options(old))) as schema:
        script = schema.script().encode()
    with closing(psycopg.connect(old.dsn)) as by_hand, pytest.raises(psycopg.Error, match=complaint):
        by_hand.execute(script)
    assert old.run("SELECT * FROM {tasks} ORDER BY task_id") == before


def test_table_of_this_library_without_its_versions_is_refused(ground: Ground, bare: Ground) -> None:
    """They were not restored from the backup, say: nothing is put aside."""
    with migrated(bare):
        pass
    bare.run("DELETE FROM {migrations}")
    with closing(connect(bare)) as connection, pytest.raises(SettingsError, match="restore that too"):
        Migrations(bare.names).apply(connection)
    assert bare.run("SELECT count(*) FROM {tasks}") == [(0,)]


# ---- who works on it ---------------------------------------------------------------------------------------


@pytest.fixture
def crew(old: Ground) -> Iterator[Crew]:
    WORK.begin()
    add(old, "unwanted", status="pending", cancel_requested=True)
    with migrated(old, lease_seconds=30) as store:
        yield Crew(SYSTEM_CLOCK, store)


def states(crew: Crew) -> dict[str, str]:
    assert isinstance(crew.store, PostgresTaskStore)
    return {task_id: str(record.status) for task_id, record in records_of(crew.store).items()}


def rescue(crew: Crew, old: Ground, handlers: HandlerRegistry) -> None:
    """Work off what waits, and settle what runs, once its term has passed."""
    for _ in range(2):
        crew.worker(crew.tracker(handlers)).run_once()
        old.lapse(31)


def test_without_a_handler_of_version_0_nobody_acts(
    crew: Crew, old: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler of another version is for other tasks; what is left alone is reported. Nor does a plain tracker's
    reconciler touch it."""
    before = states(crew)
    with caplog.at_level(logging.WARNING, "task_tracker"):
        rescue(crew, old, registry())
    assert states(crew) == before
    assert WORK.begun == []
    assert WORK.failures == []
    assert "note version 0" in caplog.text
    tracker = TaskTracker(crew.store, start_within_seconds=3600)
    tracker.reconcile()
    assert states(crew) == before


def test_handler_of_version_0_acts_on_it(crew: Crew, old: Ground) -> None:
    """What waits is done, what ran is settled with its hook, what was unwanted ends as cancelled; the rest stays."""
    rescue(crew, old, registry(version=0))
    assert states(crew) == {
        "pending": "completed",
        "running": "failed",
        "cancelling": "cancelled",
        "unwanted": "cancelled",
        "completed": "completed",
        "failed": "failed",
        "cancelled": "cancelled",
        "paused_by_moon": "paused_by_moon",
    }
    assert WORK.begun == ["pending"]
    assert {(task_id, code) for task_id, code, _ in WORK.failures} >= {("running", "holder_lost")}
    found = records_of(crew.store)  # type: ignore[arg-type]
    assert found["running"].error_code == "holder_lost"


def test_idempotent_handler_of_version_0_goes_on(crew: Crew, old: Ground) -> None:
    rescue(crew, old, registry(version=0, idempotent=True, retry_seconds=0.001))
    assert states(crew)["running"] in ("pending", "completed")


def test_new_tasks_are_of_another_version(crew: Crew, old: Ground) -> None:
    """One worker has handlers for both."""
    made = HandlerRegistry()
    for version in (0, 1):
        made.register("note", version=version, handler="tests.runtime.work:note")
    tracker = crew.tracker(made)
    new = tracker.submit("note", **OWNER).record
    assert new.handler_version == 1
    assert crew.worker(tracker).run_once() == 2
    assert sorted(WORK.begun) == sorted(["pending", new.task_id])


def test_plain_tasks_of_this_library_stay_plain(crew: Crew, make: RecordMaker) -> None:
    """Whoever creates without submitting works on it himself, also beside handlers of version 0."""
    tracker = crew.tracker(registry(version=0))
    task = tracker.create("note", **OWNER)
    assert task.handler_version is None
    assert crew.worker(tracker).run_once() == 1
    assert WORK.begun == ["pending"]
    assert crew.seen(task).status is TaskStatus.PENDING


def test_command_takes_it_in(old: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    from task_tracker.cli import main

    names = ("--dsn", old.dsn, "--schema", old.names.schema, "--table-prefix", old.names.prefix)
    assert main(["migrate", "--check", *names]) == 1
    assert "takes in the unversioned table" in capsys.readouterr().out
    assert main(["migrate", *names]) == 0
    assert "takes in the unversioned table" in capsys.readouterr().out
    assert main(["migrate", "--check", *names]) == 0
    assert section(old)
