"""The demo as a person meets it: it runs, it checks, it leaves nothing behind."""

import contextlib
import io
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from demo.ingestion import Index
from demo.processes import DemoFailed, Stage
from demo.screen import Screen
from demo.worker_story import WorkerStory

ROOT: Final = Path(__file__).parent.parent
PACE: Final = "0.15"
PATIENCE_SECONDS: Final = 200.0

CHEATING: Final = """
import sys
from demo import __main__, processes

ask = processes.ServerProcess.ask

def lie(self, method, path, **options):
    answer = ask(self, method, path, **options)
    if (self.name, path) == ("B", "/tasks/stats"):
        answer._content = answer.content.replace(b"completed", b"finished")
    return answer

processes.ServerProcess.ask = lie
sys.exit(__main__.main())
"""


def demo(*arguments: str, stdout: int = subprocess.PIPE, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *(arguments or ("-m", "demo", "--pace", PACE))],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A child that nobody has waited for still has a number, and a state.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def processes_in(output: str) -> list[int]:
    found = [int(number) for number in re.findall(r"process,? (\d+)", output)]
    assert found
    return found


def directory_in(output: str) -> Path:
    found = re.search(r"\.demo/run-\w+", output)
    assert found
    return ROOT / found[0]


def assert_nothing_is_left(output: str) -> None:
    assert not directory_in(output).exists()
    assert [pid for pid in processes_in(output) if lives(pid)] == []


def without_codes(output: str) -> str:
    return re.sub(r"\x1b\[\d*\w", "", output)


def drawn_demo() -> str:
    """Run it on a terminal and return what it shows there."""
    ours, theirs = pty.openpty()
    running = demo(stdout=theirs, TERM="xterm", COLUMNS="70", LINES="40")
    os.close(theirs)
    shown = b""
    try:
        while more := os.read(ours, 65536):
            shown += more
    except OSError:  # how a terminal tells that nobody is there any more
        pass
    finally:
        os.close(ours)
    assert (running.wait(PATIENCE_SECONDS), running.communicate()[1]) == (0, "")
    return shown.decode()


def assert_all_was_told(output: str) -> None:
    told = " ".join(without_codes(output).split())
    for summary in (
        r"Done: 6 tasks, 3 server processes \(one killed\), \d+ checks, none of them failed\.",
        r"Done: 3 more tasks, 3 more server processes \(one killed, one frozen\), \d+ more checks, none",
        r"Done: 12 more tasks, 3 worker processes \(one killed, one frozen\), 1 late write refused, \d+ more checks",
    ):
        assert re.search(summary, told)


def test_it_succeeds_on_a_terminal() -> None:
    shown = drawn_demo()
    assert_all_was_told(shown)
    assert_nothing_is_left(without_codes(shown))
    assert "\x1b[36m" in shown, "coloured"
    assert re.search(r"\x1b\[\dA", shown), "redrawn in place"


@pytest.mark.slow
def test_two_demos_at_once_succeed_with_and_without_a_terminal() -> None:
    plain = demo()
    shown = without_codes(drawn_demo())
    output, errors = plain.communicate(timeout=PATIENCE_SECONDS)
    assert (plain.returncode, errors) == (0, ""), output + errors
    for text in (output, shown):
        assert_all_was_told(text)
        assert_nothing_is_left(text)
    assert "\x1b" not in output
    assert "completed" in output


@pytest.mark.slow
def test_the_ingestion_runs_unchanged_on_postgresql() -> None:
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: the extra `postgres` has it")
    from tests.postgres.server import NoServer, found_or_started

    with contextlib.ExitStack() as holding:
        try:
            dsn = holding.enter_context(found_or_started())
        except NoServer as error:
            pytest.skip(str(error))
        running = demo("-m", "demo", "--pace", PACE, "--dsn", dsn)
        output, errors = running.communicate(timeout=PATIENCE_SECONDS)
        assert (running.returncode, errors) == (0, ""), output + errors
        assert "1 late write refused" in " ".join(output.split())
        assert [pid for pid in processes_in(output) if lives(pid)] == []
        with psycopg.connect(dsn) as connection:
            schemas = connection.execute(
                "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'task_tracker_demo_%'"
            )
            assert f"task_tracker_demo_{running.pid}" not in [name for (name,) in schemas]


@pytest.mark.slow
def test_it_ends_in_time_at_the_pace_of_people() -> None:
    began = time.monotonic()
    running = demo("-m", "demo", NO_COLOR="1")
    output, errors = running.communicate(timeout=PATIENCE_SECONDS)
    assert (running.returncode, errors) == (0, ""), output + errors
    assert time.monotonic() - began < 60
    assert_nothing_is_left(output)


@pytest.mark.slow
def test_a_server_that_says_something_else_is_noticed() -> None:
    running = demo("-c", CHEATING, "--pace", PACE)
    output, errors = running.communicate(timeout=PATIENCE_SECONDS)
    assert (running.returncode, errors) == (1, ""), output + errors
    assert "FAILED: /tasks/stats differs in its body" in output
    assert "Done" not in output
    assert_nothing_is_left(output)


@pytest.mark.slow  # it is a part of the whole one
def test_the_ingestion_alone_tells_what_became_of_each_task() -> None:
    """Killed and frozen in mid-task; a part of the index that is missing would be noticed."""
    out = io.StringIO()
    with Stage() as stage:
        WorkerStory(stage, Screen(out, {}), pace=float(PACE)).tell()
        directory = stage.directory
    told = " ".join(out.getvalue().split())
    assert re.search(r"[FGH] has it, and goes on from part 4: the checkpoint of [FG]", told)
    assert (
        "Its history: pending, running (attempt 1), pending (holder_lost), running (attempt 2), completed."
        in told
    )
    assert len(re.findall(r"completed +1 +[FGH] +1 +8 of 8, as in the file", told)) == 10
    assert len(re.findall(r"completed +2 +[FGH] +1 +8 of 8, as in the file", told)) == 2
    assert "the index refused 1 write" in told
    assert "12 tasks, 12 ends, all of them completed" in told
    assert not directory.exists()
    assert [pid for pid in processes_in(told) if lives(pid)] == []


@pytest.mark.slow
def test_a_part_that_is_missing_in_the_index_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Index.parts
    monkeypatch.setattr(Index, "parts", lambda index, document: parts(index, document)[1:])
    with Stage() as stage, pytest.raises(DemoFailed, match="does not hold: the index has the whole of"):
        WorkerStory(stage, Screen(io.StringIO(), {}), pace=float(PACE)).tell()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),  # these two as well, at five seconds each
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_stopped_in_the_middle_it_cleans_up(number: signal.Signals, code: int) -> None:
    running = demo()
    assert running.stdout is not None
    output = ""
    while "3. " not in output:
        line = running.stdout.readline()
        assert line, "it ended too early"
        output += line
    running.send_signal(number)
    rest, errors = running.communicate(timeout=PATIENCE_SECONDS)
    assert (running.returncode, errors) == (code, ""), output + rest + errors
    assert_nothing_is_left(output)


def test_its_servers_do_not_outlive_it_even_if_it_is_killed() -> None:
    running = demo()
    assert running.stdout is not None
    output = ""
    while "3. " not in output:
        output += running.stdout.readline()
    running.kill()
    running.communicate(timeout=PATIENCE_SECONDS)
    until(lambda: not any(lives(pid) for pid in processes_in(output)))
    shutil.rmtree(directory_in(output))  # that much is left to others then
    with contextlib.suppress(OSError):
        directory_in(output).parent.rmdir()


# ---- the screen --------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


TASKS: Final[list[dict[str, Any]]] = [
    {"task_id": "1", "resource_id": "sess-1", "status": "running", "progress": 50.0, "stage": "reading"},
    {"task_id": "2", "resource_id": "sess-2", "status": "cancelling", "progress": None, "stage": None},
    {
        "task_id": "3",
        "resource_id": "sess-10",
        "status": "completed",
        "progress": 100.0,
        "stage": "completed",
    },
]


def drawn(monkeypatch: pytest.MonkeyPatch, columns: int, rows: int = 24, **environment: str) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(rows))
    out = Terminal()
    screen = Screen(out, {"TERM": "xterm", **environment})
    for _ in range(2):
        screen.show(TASKS)
    screen.step("Title")
    screen.fact("a fact that is longer than a narrow terminal is wide, and has to be wrapped")
    return out.getvalue()


@pytest.mark.parametrize("columns", [22, 30, 40, 60, 80, 200])
def test_bars_fit_any_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    lines = without_codes(drawn(monkeypatch, columns)).splitlines()
    assert max(map(len, lines)) < columns
    assert len([line for line in lines if line.startswith("   sess")]) == 6
    if columns >= 60:
        assert "50% running    reading" in lines[0]


def test_colours_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = drawn(monkeypatch, 80)
    assert "\x1b[36m" in coloured
    plain = drawn(monkeypatch, 80, NO_COLOR="1")
    assert not re.search(r"\x1b\[\d*m", plain)
    assert "\x1b[3A" in plain, "bars still move"


@pytest.mark.parametrize(("environment", "rows"), [({"TERM": "dumb"}, 24), ({}, 4)])
def test_where_bars_cannot_move_changes_are_lines(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], rows: int
) -> None:
    lines = without_codes(drawn(monkeypatch, 80, rows, **environment)).splitlines()
    assert lines[:4] == [
        "   sess-1  50% running",
        "   sess-2   0% cancelling",
        "   sess-10 100% completed",
        "",
    ]


@pytest.mark.parametrize(("columns", "first"), [(40, "   page    ends"), (13, "   page    e")])
def test_tables_have_columns_and_end_where_the_terminal_does(
    monkeypatch: pytest.MonkeyPatch, columns: int, first: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = io.StringIO()
    Screen(out, {}).table([("page", "ends"), ("leases", "1")])
    assert out.getvalue().splitlines() == [first, "   leases  1"]


def test_a_terminal_without_unicode_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Terminal, "encoding", "ascii")
    assert "####" in drawn(monkeypatch, 80)
