"""One line of configuration, and the commands that go with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import stores
from task_tracker import SettingsError, StorageConfig
from task_tracker.cli import main
from task_tracker.settings import TaskTrackerSettings
from tests.core.support import OWNER
from tests.postgres.grounds import Ground

SECRET = "open-sesame"
DSN = f"postgresql://bob:{SECRET}@127.0.0.1:1/tasks"


def section(ground: Ground, **more: Any) -> dict[str, Any]:
    names = {"schema": ground.names.schema, "table_prefix": ground.names.prefix}
    return {"backend": "postgres", "dsn": ground.dsn, "options": names} | more


def refusal(**settings: Any) -> str:
    with pytest.raises(SettingsError) as refused:
        StorageConfig(task_tracker=settings).build_task_store()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_configured_tracker_works_and_reconciles(bare: Ground) -> None:
    with StorageConfig(task_tracker=section(bare, migrate=True)).build_task_tracker() as tracker:
        task = tracker.create("t", **OWNER)
        tracker.start(task.task_id)
        tracker.complete(task.task_id, {"n": 1})
        assert type(tracker.store) is stores.PostgresTaskStore
    with StorageConfig(task_tracker=section(bare)).build_task_tracker(cleanup=False) as other:
        found = other.get(task.task_id, **OWNER)
        assert found is not None
        assert found.result == {"n": 1}


def test_environment_is_enough(bare: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("BACKEND", "postgres"),
        ("DSN", bare.dsn),
        ("MIGRATE", "true"),
        ("LEASE_SECONDS", "12"),
        ("OPTIONS", orjson.dumps({"schema": bare.names.schema, "pool_size": 3}).decode()),
    ):
        monkeypatch.setenv(f"TASK_TRACKER__{name}", value)
    with StorageConfig().build_task_tracker() as tracker:
        assert isinstance(tracker.store, stores.PostgresTaskStore)
        assert tracker.store.lease_seconds == 12
        tracker.create("t", **OWNER)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"backend": "postgres"},
            'backend is "postgres", which needs a database; give storage.task_tracker.dsn',
        ),
        ({"backend": "postgres", "dsn": " "}, "needs storage.task_tracker.dsn; give postgresql://"),
        ({"backend": "postgres", "dsn": DSN, "root": "/x"}, "root is set, but the backend is"),
        ({"dsn": DSN}, 'dsn is set, but the backend is "memory", which has no database'),
        ({"backend": "lease", "root": "/x", "migrate": True}, 'migrate is set, but the backend is "lease"'),
        ({"backend": "postgres", "dsn": f"nonsense {SECRET}"}, "dsn is no PostgreSQL connection string"),
        ({"backend": "postgres", "dsn": 5}, "storage.task_tracker.dsn is 5: "),
        *(
            ({"backend": "postgres", "dsn": DSN, "options": options}, complaint)
            for options, complaint in [
                (
                    {"colour": 1},
                    "the postgres backend has no option 'colour'; it knows connect_seconds, listen",
                ),
                ({"pool_size": 0}, "options.pool_size is 0; give a whole number of at least 1"),
                ({"pool_size": True}, "options.pool_size is True"),
                ({"listen": "yes"}, "options.listen is 'yes'; give true or false"),
                ({"listen_dsn": 5}, "options.listen_dsn is no text"),
                (
                    {"listen_dsn": f"nonsense {SECRET}"},
                    "options.listen_dsn is no PostgreSQL connection string",
                ),
                (
                    {"statement_seconds": -1},
                    "options.statement_seconds is -1; give a number of seconds above 0",
                ),
                ({"connect_seconds": "5"}, "options.connect_seconds is '5'"),
                ({"schema": "a$b"}, "schema is 'a$b'"),
                ({"table_prefix": 7}, "table_prefix is 7"),
            ]
        ),
        (
            {"backend": "postgres", "dsn": DSN, "lease_seconds": 3, "heartbeat_seconds": 2},
            "less than 3 heartbeats",
        ),
    ],
)
def test_mistake_is_one_line_without_the_password(settings: dict[str, Any], complaint: str) -> None:
    said = refusal(**settings)
    assert complaint in said
    assert SECRET not in said


def test_password_is_shown_nowhere() -> None:
    settings = TaskTrackerSettings(backend="postgres", dsn=DSN)
    shown = [
        repr(settings),
        str(settings),
        repr(StorageConfig(task_tracker=settings)),
        str(settings.model_dump()),
    ]
    shown += [settings.model_dump_json(), repr(settings.store_options(None))]
    assert SECRET not in " ".join(shown)
    assert settings.store_options(None).dsn == DSN


def test_worker_says_that_there_is_a_database_and_not_how_to_get_in() -> None:
    """What a worker prints when it starts can be stored, and holds no password."""
    from task_tracker.cli.worker_settings import WorkerSettings, effective

    settings = TaskTrackerSettings(backend="postgres", dsn=DSN)
    said = orjson.dumps(effective(WorkerSettings(), settings)).decode()
    assert SECRET not in said
    assert '"dsn":"**********"' in said


def test_missing_driver_names_the_extra() -> None:
    """In a process of its own, where nothing has been imported."""
    program = """
import sys
sys.modules["psycopg"] = None
from task_tracker import SettingsError
from task_tracker.registry import open_schema, open_store
from task_tracker.store import StoreOptions
for call in (open_store, open_schema):
    try:
        call("postgres", StoreOptions(dsn="host=h"))
    except SettingsError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    line = "needs the package 'psycopg'; install it: pip install \"durable-task-tracker[postgres]\""
    assert [line in said for said in done.stdout.splitlines()] == [True, True]


# ---- the command -------------------------------------------------------------------------------------


@pytest.fixture
def command(bare: Ground, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    names = ("--schema", bare.names.schema, "--table-prefix", bare.names.prefix)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["migrate", *arguments, *names])
        said = capsys.readouterr()
        return code, said.out.strip(), said.err.strip()

    return run


def test_migrate_applies_checks_and_prints(
    bare: Ground, command: Callable[..., tuple[int, str, str]]
) -> None:
    dsn = ("--dsn", bare.dsn)
    code, out, _ = command("--check", *dsn)
    assert (code, out.splitlines()[0]) == (1, "to come: 0001_tasks")
    code, out, _ = command("--sql", *dsn)
    assert code == 0
    assert f'CREATE TABLE "{bare.names.schema}"."{bare.names.prefix}tasks"' in out
    assert command("--sql")[:2] == (0, out), "no database is needed for that"
    code, out, _ = command(*dsn)
    assert (code, out.splitlines()[0]) == (0, "applied: 0001_tasks")
    for arguments in ((), ("--check",)):
        assert command(*arguments, *dsn)[:2] == (0, "nothing to do")


def test_migrate_reads_documents(
    bare: Ground, command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "server.json"
    path.write_bytes(orjson.dumps({"storage": {"task_tracker": section(bare)}}))
    assert command("--config", str(path))[1].startswith("applied: 0001_tasks")


def test_migrate_takes_the_database_from_the_environment(
    bare: Ground, command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no list of processes shows the password; the backend need not be named."""
    monkeypatch.setenv("TASK_TRACKER__DSN", bare.dsn)
    assert command()[1].startswith("applied: 0001_tasks")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--dsn", f"host=127.0.0.1 port=1 password={SECRET}"), "Connection refused"),
        (("--dsn", SECRET), "dsn is no PostgreSQL connection string"),
        ((), 'the backend "postgres" needs storage.task_tracker.dsn'),
        (("--backend", "lease"), "the backend 'lease' has no tables, so there is nothing to migrate"),
    ],
)
def test_migrate_says_what_is_wrong_in_one_line(
    command: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], complaint: str
) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert complaint in err
    assert len(err.splitlines()) == 1
    assert SECRET not in err


def test_migrate_is_a_command_of_the_program(bare: Ground) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "task_tracker", "migrate", "--check"),
            *("--dsn", bare.dsn, "--schema", bare.names.schema),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("to come: 0001_tasks")
