"""Migrations: applied once by any number of processes, checked, printed, and refused when they do not fit."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from stores.postgres.connections import BoundedConnection, opener
from stores.postgres.migrating import Migrations
from stores.postgres.names import Names
from stores.postgres.store import PostgresTaskStore, open_schema
from task_tracker.errors import SettingsError, StoreUnavailable
from task_tracker.registry import open_store
from task_tracker.store import StoreOptions
from task_tracker.testing import RecordMaker
from task_tracker.testing.racing import race
from tests.postgres.grounds import Ground, newest_migration

FIRST = Path(__file__).parents[2] / "stores" / "postgres" / "migrations"


def connect(ground: Ground) -> BoundedConnection:
    return opener(ground.dsn, connect_seconds=5, statement_seconds=30)()


@pytest.fixture
def connection(bare: Ground) -> Iterator[BoundedConnection]:
    with closing(connect(bare)) as connection:
        yield connection


def options(ground: Ground, **more: object) -> StoreOptions:
    names = {"schema": ground.names.schema, "table_prefix": ground.names.prefix}
    return StoreOptions(dsn=ground.dsn, options=names, **more)  # type: ignore[arg-type]


def applied(ground: Ground) -> list[tuple[int, str]]:
    return [(number, name) for number, name in ground.run("SELECT number, name FROM {migrations} ORDER BY 1")]


def migrate_in_a_process(dsn: str, names: Names, start: object, answers: object) -> None:
    start.wait(60)  # type: ignore[attr-defined]
    try:
        with closing(opener(dsn, connect_seconds=30, statement_seconds=60)()) as connection:
            answers.put(len(Migrations(names).apply(connection)))  # type: ignore[attr-defined]
    except BaseException as error:
        answers.put(repr(error))  # type: ignore[attr-defined]
        raise


def migrate_at_once(ground: Ground, processes: int = 8) -> list[int]:
    """Have so many processes migrate at once; return how many steps each has applied."""
    context = multiprocessing.get_context("spawn")
    start, answers = context.Event(), context.Queue()
    crew = [
        context.Process(target=migrate_in_a_process, args=(ground.dsn, ground.names, start, answers))
        for _ in range(processes)
    ]
    for process in crew:
        process.start()
    start.set()
    got = [answers.get(timeout=120) for _ in crew]
    for process in crew:
        process.join(60)
        process.close()
    answers.close()
    answers.join_thread()
    return got


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """The migrations of a later version: one more."""
    for path in FIRST.glob("*.sql"):
        (tmp_path / path.name).write_text(path.read_text())
    next_one = len([*FIRST.glob("*.sql")]) + 1
    (tmp_path / f"{next_one:04}_colours.sql").write_text("ALTER TABLE {tasks} ADD COLUMN colour text;")
    return tmp_path


class TestFirstBoot:
    def test_eight_processes_at_once_and_again(self, bare: Ground) -> None:
        """Each step is applied by one of them, and all are content. [D107]"""
        for expected in (newest_migration(bare.names), 0):
            got = migrate_at_once(bare)
            assert sum(got) == expected, got
        assert [number for number, _ in applied(bare)] == [*range(1, newest_migration(bare.names) + 1)]

    def test_a_later_version_joins_in_the_middle(self, bare: Ground, later: Path) -> None:
        """It adds what is new to it; the older one is refused from then on. [D107]"""
        old, new = Migrations(bare.names), Migrations(bare.names, later)

        def apply(steps: Migrations) -> list[str]:
            with closing(connect(bare)) as connection:
                return [step.name for step in steps.apply(connection)]

        outcomes = race(*([lambda: apply(old)] * 4), *([lambda: apply(new)] * 4))
        names = [name for outcome in outcomes if isinstance(outcome, list) for name in outcome]
        # An older one may have applied some, and been refused when it came to the next.
        assert len(names) == len({*names})
        assert applied(bare) == [(step.number, step.name) for step in new.steps]
        assert new.steps[-1].name in names
        refused = [outcome for outcome in outcomes if not isinstance(outcome, list)]
        assert all(isinstance(outcome, SettingsError) for outcome in refused), refused
        assert outcomes[4:] == [outcome for outcome in outcomes[4:] if isinstance(outcome, list)]
        with pytest.raises(SettingsError, match=r"are at migration \d+, this version knows \d+; upgrade"):
            apply(old)
        assert apply(new) == []

    def test_configuration_can_ask_for_it(self, bare: Ground, make: RecordMaker) -> None:
        """One line; without it a store that has no tables says what to run."""
        with pytest.raises(
            SettingsError, match=r"run `python -m task_tracker migrate`, or set .*migrate to true"
        ):
            open_store("postgres", options(bare))
        with closing(open_store("postgres", options(bare, migrate=True))) as store:
            created = store.create(make())
        with closing(open_store("postgres", options(bare))) as store:
            assert store.get(created.record.key) == created

    def test_store_that_was_opened_too_early_says_so_at_its_first_call(
        self, bare: Ground, make: RecordMaker
    ) -> None:
        with closing(bare.store()) as store:
            for _ in range(2):
                with pytest.raises(SettingsError, match="lack the migration 0001_tasks"):
                    store.create(make())
            with closing(bare.store()) as other:
                other.prepare(migrate=True)
            store.create(make())


class TestSteps:
    def test_pending_check_and_apply(self, bare: Ground, connection: BoundedConnection) -> None:
        steps = Migrations(bare.names)
        assert [*steps.pending(connection)] == [*steps.steps]
        with pytest.raises(SettingsError, match="lack the migration 0001_tasks"):
            steps.check(connection)
        assert steps.apply(connection) == [*steps.steps]
        assert steps.apply(connection) == [*steps.pending(connection)] == []
        steps.check(connection)
        assert applied(bare) == [(step.number, step.name) for step in steps.steps]

    def test_step_that_fails_leaves_nothing(
        self, bare: Ground, connection: BoundedConnection, tmp_path: Path
    ) -> None:
        """Each is a transaction with its note; those before it stay."""
        (tmp_path / "0001_one.sql").write_text("CREATE TABLE {tasks} (a int);")
        (tmp_path / "0002_two.sql").write_text("CREATE TABLE {workers} (a int); SELECT 1 / 0;")
        with pytest.raises(StoreUnavailable, match=r"did not migrate .*division by zero"):
            Migrations(bare.names, tmp_path).apply(connection)
        assert applied(bare) == [(1, "0001_one")]
        assert bare.run("SELECT to_regclass(%s)", f'"{bare.names.schema}"."{bare.names.prefix}workers"') == [
            (None,)
        ]
        (tmp_path / "0002_two.sql").write_text("CREATE TABLE {workers} (a int);")
        assert len(Migrations(bare.names, tmp_path).apply(connection)) == 1

    def test_numbers_must_not_have_a_gap(self, tmp_path: Path) -> None:
        (tmp_path / "0002_two.sql").write_text("SELECT 1")
        with pytest.raises(ValueError, match="without a gap"):
            Migrations(Names(), tmp_path)

    def test_lock_of_another_migration_is_waited_for_so_long(
        self, bare: Ground, connection: BoundedConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """[D107]"""
        monkeypatch.setattr("stores.postgres.migrating._LOCK_SECONDS", 0.05)
        with closing(psycopg.connect(bare.dsn)) as other:
            other.execute("SELECT pg_advisory_xact_lock(%s)", [bare.names.lock_key("migrate")])
            with pytest.raises(StoreUnavailable, match="somebody else has locked it for too long"):
                Migrations(bare.names).apply(connection)

    def test_script_gives_the_same_tables(
        self, bare: Ground, connection: BoundedConnection, ground: Ground
    ) -> None:
        """Whoever runs it by hand has what the program would have made, and the program knows it."""
        with closing(open_schema(options(bare))) as schema:
            assert schema.pending()
            bare.control.execute(schema.script().encode())
            assert [schema.pending(), schema.migrate()] == [[], []]
        assert shape(bare) == shape(ground)

    def test_names_are_quoted(self, grounds: object, bare: Ground, make: RecordMaker) -> None:
        """Whatever a schema is called."""
        names = Names(f'{bare.names.schema}; "drop" {{x}}', "Tä'b ")
        ground = Ground(bare.dsn, names, bare.control)
        with closing(ground.store()) as store:
            try:
                store.prepare(migrate=True)
                record = store.create(make()).record
                assert store.has_active("acme", "alice", record.task_type, record.resource_id)
                assert ground.run("SELECT count(*) FROM {tasks}") == [(1,)]
            finally:
                bare.control.execute(
                    sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(names.schema))
                )

    @pytest.mark.parametrize(
        ("schema", "prefix", "complaint"),
        [
            ("", "", "schema is ''"),
            ("a\0b", "", "schema is "),
            ("a$b", "", "schema is 'a\\$b'"),
            ("a", "100%", "table_prefix is '100%'"),
            ("x" * 64, "", "longer than 63 bytes"),
            ("a", "p" * 41, "table_prefix is 'p+', longer than 40 bytes"),
            ("a", 3, "table_prefix is 3"),
        ],
    )
    def test_what_cannot_be_a_name_is_refused(self, schema: str, prefix: str, complaint: str) -> None:
        with pytest.raises(SettingsError, match=complaint):
            Names(schema, prefix)

    def test_stores_in_one_schema_are_told_apart_by_their_prefixes(
        self, bare: Ground, make: RecordMaker
    ) -> None:
        records = []
        for prefix in ("one_", "two_"):
            with closing(PostgresTaskStore(bare.dsn, schema=bare.names.schema, table_prefix=prefix)) as store:
                store.prepare(migrate=True)
                records.append(store.create(make("same")).record)
        for prefix, record in zip(("one_", "two_"), records, strict=True):
            with closing(PostgresTaskStore(bare.dsn, schema=bare.names.schema, table_prefix=prefix)) as store:
                found = store.get(record.key)
                assert found.record == record  # type: ignore[union-attr]

    def test_old_server_is_refused(self, connection: BoundedConnection, bare: Ground) -> None:
        class Old:
            server_version = 120_010

        class Connection:
            info = Old()

        with pytest.raises(SettingsError, match="the server is PostgreSQL 12; this store needs 13 or newer"):
            Migrations(bare.names).pending(Connection())  # type: ignore[arg-type]


def shape(ground: Ground) -> list[tuple[object, ...]]:
    """Return columns and indexes, without the schema's own name."""
    columns = ground.control.execute(
        "SELECT replace(table_name, %s, ''), column_name, data_type, collation_name, is_nullable, "
        "is_generated, generation_expression FROM information_schema.columns WHERE table_schema = %s ORDER BY 1, 2",
        [ground.names.prefix, ground.names.schema],
    ).fetchall()
    indexes = ground.control.execute(
        "SELECT replace(replace(replace(indexdef, %s, ''), %s, ''), '\"', '') FROM pg_indexes WHERE schemaname = %s "
        "ORDER BY 1",
        [ground.names.schema, ground.names.prefix, ground.names.schema],
    ).fetchall()
    return [*columns, *indexes]
