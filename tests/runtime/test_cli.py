"""``python -m task_tracker worker``: what it is told, by whom, and what it says."""

# long: what a worker is told has one table of sources, read side by side with what it says

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from task_tracker import HandlerRegistry
from task_tracker.cli import main, worker_command
from task_tracker.cli.worker_command import JsonLines, load_registry
from task_tracker.cli.worker_settings import storage_config, worker_settings
from task_tracker.errors import SettingsError
from task_tracker.tracker import TaskTracker
from tests.runtime.work import registry as all_handlers

HANDLERS = "--handlers=tests.runtime.work:registry"
BROKEN = HandlerRegistry()
BROKEN.register("gone", handler="tests.runtime.work:no_such_function")
TEXT = "no registry"


@pytest.fixture(autouse=True)
def _clean(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(logging.getLogger(), "handlers", [*logging.getLogger().handlers])
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


class Told:
    """A worker that only remembers what it was told."""

    made: list[Told]

    def __init__(self, tracker: TaskTracker, registry: HandlerRegistry, **options: Any) -> None:
        self.store = tracker.access.leases
        self.options = options
        self.left = 0
        self.made.append(self)

    def run(self) -> int:
        return self.left


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Told]:
    Told.made = []
    monkeypatch.setattr(worker_command, "Worker", Told)
    return Told.made


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return said_of(capsys.readouterr().out.splitlines()[0])


def said_of(line: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(line)
    return answer


# ---- who wins ----------------------------------------------------------------------------------------------


def test_arguments_reach_the_worker_and_the_store(
    told: list[Told], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """[D020] And one line says what holds."""
    code = main(
        [
            "worker",
            HANDLERS,
            f"--root={tmp_path}",
            "--lease-seconds=9",
            "--heartbeat-seconds=2",
            "--default-timeout-seconds=60",
            "--concurrency=7",
            "--drain-seconds=0",
            "--max-running=note=2",
            "--max-running=hold=1",
            "--shortest-poll-seconds=0.2",
            "--longest-poll-seconds=3",
            "--name=indexer",
            "--durability=none",
        ]
    )
    assert code == 0
    (worker,) = told
    assert worker.store is not None
    assert (worker.store.lease_seconds, worker.store.heartbeat_seconds) == (9, 2)
    assert worker.options == {
        "concurrency": 7,
        "default_timeout_seconds": 60.0,
        "drain_seconds": 0.0,
        "poll_seconds": (0.2, 3.0),
        "max_running": {"note": 2, "hold": 1},
        "name": "indexer",
        "wake_up": None,
    }
    line = said(capsys)
    assert line["event"] == "worker_settings"
    assert line["storage"]["backend"] == "lease"
    assert line["storage"]["lease_seconds"] == 9
    assert line["worker"]["concurrency"] == 7
    assert "options" not in line["storage"], "it may hold credentials"


def test_the_environment_reaches_them_too(
    told: list[Told], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D020] Lease, heartbeat and default timeout."""
    for name, value in {
        "TASK_TRACKER__ROOT": str(tmp_path),
        "TASK_TRACKER__BACKEND": "lease",
        "TASK_TRACKER__LEASE_SECONDS": "12",
        "TASK_TRACKER__HEARTBEAT_SECONDS": "3",
        "TASK_TRACKER_WORKER__DEFAULT_TIMEOUT_SECONDS": "77",
        "TASK_TRACKER_WORKER__MAX_RUNNING": '{"note": 3}',
        "TASK_TRACKER_WORKER__NAME": "",
    }.items():
        monkeypatch.setenv(name, value)
    assert main(["worker", HANDLERS]) == 0
    (worker,) = told
    assert worker.store is not None
    assert (worker.store.lease_seconds, worker.store.heartbeat_seconds) == (12, 3)
    assert worker.options["default_timeout_seconds"] == 77
    assert worker.options["max_running"] == {"note": 3}
    assert worker.options["name"] is None


def test_arguments_win_over_the_environment_and_that_over_the_file(
    told: list[Told], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D020] Each key by itself."""
    config = tmp_path / "server.json"
    config.write_text(
        json.dumps(
            {
                "storage": {
                    "task_tracker": {
                        "backend": "lease",
                        "root": str(tmp_path),
                        "lease_seconds": 60,
                        "heartbeat_seconds": 5,
                    }
                },
                "worker": {"concurrency": 2, "drain_seconds": 2, "default_timeout_seconds": 2},
                "something": "of the server's own",
            }
        )
    )
    monkeypatch.setenv("TASK_TRACKER__LEASE_SECONDS", "50")
    monkeypatch.setenv("TASK_TRACKER__HEARTBEAT_SECONDS", "4")
    monkeypatch.setenv("TASK_TRACKER_WORKER__DRAIN_SECONDS", "3")
    monkeypatch.setenv("TASK_TRACKER_WORKER__DEFAULT_TIMEOUT_SECONDS", "3")
    arguments = ["--heartbeat-seconds=3", "--default-timeout-seconds=4"]
    assert main(["worker", HANDLERS, f"--config={config}", *arguments]) == 0
    (worker,) = told
    assert worker.store is not None
    assert (worker.store.lease_seconds, worker.store.heartbeat_seconds) == (50, 3)
    assert [worker.options[name] for name in ("concurrency", "drain_seconds", "default_timeout_seconds")] == [
        2,
        3,
        4,
    ]


# ---- nonsense ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [[], ["--check"]])
@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--lease-seconds=6", "--heartbeat-seconds=3"], {}, "no more than a third"),
        (["--lease-seconds=0"], {}, "lease_seconds"),
        (["--concurrency=0"], {}, "worker.concurrency is 0"),
        (["--default-timeout-seconds=inf"], {}, "default_timeout_seconds"),
        (["--log-level=LOUD"], {}, "--log-level"),
        (["--config=/nowhere/at/all"], {}, "cannot be read"),
        ([], {"TASK_TRACKER_WORKER__CONCURENCY": "3"}, "did you mean concurrency"),
        ([], {"TASK_TRACKER_WORKER__DRAIN_SECONDS": "soon"}, "worker.drain_seconds is 'soon'"),
        (
            [],
            {"TASK_TRACKER_WORKER__DRAIN_SECONDS": "soon"},
            "(in TASK_TRACKER_WORKER__DRAIN_SECONDS)",
        ),
        (["--shortest-poll-seconds=3", "--longest-poll-seconds=2"], {}, "poll_seconds is (3.0, 2.0)"),
        ([f"--max-running=note={10**30}"], {}, "worker.max_running.note is 1000"),
        ([f"--concurrency={10**30}"], {}, "worker.concurrency is 1000"),
        (["--name="], {}, "name is ''"),
        ([], {"TASK_TRACKER_WORKER__MAX_RUNNING": "note=2"}, "give an object like"),
        (["--backend=memory"], {}, "memory"),
        (["--watch", "--backend=persistent"], {}, "needs the lease backend"),
    ],
)
def test_nonsense_is_refused_in_one_line(
    told: list[Told],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    environment: dict[str, str],
    message: str,
    check: list[str],
) -> None:
    """[D020] Exit code 2, and nothing has begun."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["worker", HANDLERS, f"--root={tmp_path}", *arguments, *check]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert told == []


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"worker": {"concurency": 3}}, "unknown key worker.concurency; did you mean concurrency?"),
        ({"worker": {"max_running": {"note": 0}}}, "worker.max_running.note is 0"),
        ({"worker": 3}, "worker must be an object"),
        ({"worker": {"colour": 3}}, "known are concurrency"),
    ],
)
def test_a_section_that_cannot_work_is_refused(document: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message.replace("?", r"\?")):
        worker_settings({}, document)


@pytest.mark.parametrize("text", ["[]", "{", "3"])
def test_a_file_that_is_no_object_is_refused(told: list[Told], tmp_path: Path, text: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(text)
    assert main(["worker", HANDLERS, f"--config={config}"]) == 2


def test_without_a_shared_store_there_is_nothing_to_work_on() -> None:
    with pytest.raises(SettingsError, match="give --root"):
        storage_config({}, {})


@pytest.mark.parametrize("limit", ["note", "note=", "=3", "note=0", "note=x"])
def test_a_limit_that_is_none_is_refused(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["worker", HANDLERS, "--root=/tmp", f"--max-running={limit}"])
    assert "TYPE=N" in capsys.readouterr().err


@pytest.mark.parametrize("check", [[], ["--check"]])
@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--root=ROOT/new", "--max-running=nope=2"], {}, "max_running names the task type 'nope'"),
        (["--root=ROOT/new", "--backend=nope"], {}, "unknown backend 'nope'"),
        (["--root=ROOT/new", "--backend=persistent"], {}, "has no leases"),
        (["--root=ROOT/new", "--backend=postgres"], {}, "give storage.task_tracker.dsn"),
        (["--backend=postgres"], {}, "give storage.task_tracker.dsn"),
        (["--backend=postgres"], {"TASK_TRACKER__DSN": "nonsense"}, "no PostgreSQL connection string"),
        (
            ["--backend=postgres"],
            {"TASK_TRACKER__DSN": "host=db", "TASK_TRACKER__OPTIONS": '{"listen_dsn": "nonsense"}'},
            "options.listen_dsn is no PostgreSQL connection string",
        ),
        (
            ["--backend=postgres"],
            {"TASK_TRACKER__DSN": "host=db", "TASK_TRACKER__OPTIONS": '{"colour": 1}'},
            "has no option 'colour'",
        ),
        (["--backend=lease"], {}, "needs a directory"),
        (["--root=s3://bucket"], {}, "in local directories"),
        (["--root=ROOT/new"], {"TASK_TRACKER__DSN": "host=db"}, "which has no database"),
        (["--root=ROOT/new"], {"TASK_TRACKER__OPTIONS": '{"colour": 1}'}, "has no option 'colour'"),
        (["--root=ROOT/new"], {"TASK_TRACKER__WAKE_UP": "http://x"}, "wake_up is 'http://x'"),
        ([], {"TASK_TRACKER__BACKEND": "memory"}, "the backend is memory"),
    ],
)
def test_check_refuses_what_the_start_refuses(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    environment: dict[str, str],
    message: str,
    check: list[str],
) -> None:
    """[D020] And opens no store for it."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given = [argument.replace("ROOT", str(tmp_path)) for argument in arguments]
    assert main(["worker", HANDLERS, *given, *check]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not check or [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--root=ROOT/new", "--max-running=note=2", "--watch"], {}),
        (["--backend=postgres"], {"TASK_TRACKER__DSN": "host=127.0.0.1 port=1"}),
        (["--root=ROOT/new"], {"TASK_TRACKER__WAKE_UP": "redis://127.0.0.1:1"}),
        (["--lease-seconds=9", "--heartbeat-seconds=3"], {}),
    ],
)
def test_check_asks_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], environment: dict[str, str]
) -> None:
    """[D020] Nor anything else: what is not up yet is no mistake of the settings."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given = [argument.replace("ROOT", str(tmp_path)) for argument in arguments]
    assert main(["worker", HANDLERS, *given, "--check"]) == 0
    assert [*tmp_path.iterdir()] == []


# ---- handlers ----------------------------------------------------------------------------------------------


def test_handlers_are_checked_without_any_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", HANDLERS, "--check"]) == 0
    assert said(capsys)["kinds"] == [list(kind) for kind in all_handlers().kinds()]


def test_what_is_wrong_with_handlers_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", f"--handlers={__name__}:BROKEN", "--check"]) == 2
    assert "there is no no_such_function in tests.runtime.work" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nothing", 'write "module:function"'),
        ("no_such_module_at_all:registry", "cannot be imported"),
        (f"{__name__}:NOTHING", "there is no NOTHING"),
        (f"{__name__}:TEXT", "has to be a HandlerRegistry"),
    ],
)
def test_a_registry_that_is_not_there_is_refused(reference: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_registry(reference)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise SystemExit(0)", "cannot be imported (SystemExit: 0)"),
        ("raise OSError('no disk')", "cannot be imported (OSError: no disk)"),
        ("def registry(): raise KeyError('dsn')", "failed when it was called (KeyError: 'dsn')"),
        ("def registry(): raise SystemExit(0)", "failed when it was called (SystemExit: 0)"),
        ("async def registry(): ...", "is async; give an ordinary function"),
        (
            "def __getattr__(name): raise ImportError('lazy')",
            "cannot be looked up in told (ImportError: lazy)",
        ),
    ],
)
def test_what_the_module_does_wrong_is_said_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    body: str,
    message: str,
) -> None:
    """Never as a success, nor as attempts that were left behind."""
    (tmp_path / "told.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "told", raising=False)
    assert main(["worker", "--handlers=told:registry", "--check"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    sys.modules.pop("told", None)


def test_a_registry_may_be_a_value_or_what_makes_one() -> None:
    assert load_registry(f"{__name__}:BROKEN") is BROKEN
    assert load_registry("tests.runtime.work:registry").kinds() == all_handlers().kinds()


def test_the_exit_code_says_that_attempts_were_left(
    told: list[Told], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Told, "run", lambda self: 2)
    assert main(["worker", HANDLERS, f"--root={tmp_path}"]) == 1


@pytest.mark.parametrize("error", [RuntimeError("odd"), SystemExit(0)])
def test_a_worker_that_breaks_is_told_from_one_that_left_attempts(
    told: list[Told],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
) -> None:
    def breaks(self: Told) -> int:
        raise error

    monkeypatch.setattr(Told, "run", breaks)
    assert main(["worker", HANDLERS, f"--root={tmp_path}", "--log-format=json"]) == 3
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert line["event"] == "worker_broke"
    assert type(error).__name__ in line["error"]


def test_a_store_that_does_not_answer_at_the_start_is_told_from_wrong_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """[D071] A supervisor starts it again after the one, and not after the other."""
    dsn = "--dsn=host=127.0.0.1 port=1"
    assert main(["worker", HANDLERS, dsn, "--log-format=json"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert told["event"] == "store_unopened"
    assert "cannot connect to PostgreSQL to look at its tables" in told["message"]


# ---- the program -------------------------------------------------------------------------------------------


def test_a_database_is_named_as_for_the_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """[D020] By --dsn, which says the backend, too; it is not shown."""
    dsn = "--dsn=postgresql://bob:open-sesame@127.0.0.1:1/tasks"
    assert main(["worker", HANDLERS, dsn, "--check"]) == 0
    assert main(["worker", HANDLERS, dsn, "--backend=lease", "--check"]) == 2
    assert main(["worker", HANDLERS, dsn]) != 0
    told = capsys.readouterr()
    assert said_of(told.out.splitlines()[-1])["storage"]["backend"] == "postgres"
    assert "open-sesame" not in told.out + told.err


@pytest.mark.parametrize("command", [["worker", HANDLERS], ["pause", "note"], ["copy", "--from=a", "--to=b"]])
def test_what_a_command_does_not_know_is_told_with_its_own_usage(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--colour=blue", "--url=postgresql://bob:open-sesame@db"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"usage: task_tracker {command[0]} [-h]")
    assert f"task_tracker {command[0]}: error: unrecognized arguments: --colour=blue" in error
    assert "open-sesame" not in error


def test_log_lines_are_json_with_their_event() -> None:
    record = logging.makeLogRecord({"name": "task_tracker", "msg": "%d lost", "args": (3,), "event": "lost"})
    line = orjson.loads(JsonLines().format(record))
    assert (line["event"], line["message"], line["logger"]) == ("lost", "3 lost", "task_tracker")
    try:
        raise ValueError("why")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert "ValueError: why" in orjson.loads(JsonLines().format(record))["error"]


def test_the_program_says_what_is_wrong_and_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "task_tracker", "worker", "--handlers=nowhere:registry"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("task_tracker: --handlers: nowhere cannot be imported")
