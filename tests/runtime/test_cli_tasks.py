"""``python -m task_tracker list``, ``show``, ``cancel`` and ``retry``: what an operator asks, and does to one task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stores.files.lease.store import LeaseTaskStore
from stores.files.persistent import PersistentTaskStore
from task_tracker import HandlerRegistry, TaskStatus, TaskTracker
from task_tracker.cli import main
from task_tracker.store import Query

OWNER: dict[str, Any] = {"account_id": "acme", "user_id": "alice"}
ALICE = ("--account=acme", "--user=alice")


pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def tracker(tmp_path: Path) -> TaskTracker:
    """Of another process, as far as the commands know."""
    registry = HandlerRegistry()
    registry.register("ingest", version=2, handler="json:dumps")
    return TaskTracker(LeaseTaskStore(tmp_path, durability="none"), handlers=registry)


class Run:
    """Runs commands on the store of ``tmp_path``."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str], backend: str = "lease") -> None:
        self._where = (f"--root={root}", f"--backend={backend}")
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: str) -> tuple[int, list[str]]:
        code = main([*arguments, *self._where])
        told = self._capsys.readouterr()
        self.err = told.err
        return code, told.out.splitlines()


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(tmp_path, capsys)


def test_list_has_a_line_for_each_task_of_the_account(tracker: TaskTracker, run: Run) -> None:
    """Newest first; an error stands there in one line, without credentials."""
    with tracker:
        old = tracker.submit("ingest", {"n": 1}, resource_id="kb-7", **OWNER)
        tracker.start(old.task_id, **OWNER)
        tracker.update(old.task_id, progress=40, stage="fetching", **OWNER)
        bad = tracker.create("index", account_id="acme", user_id="bob")
        tracker.start(bad.task_id, account_id="acme", user_id="bob")
        tracker.fail(
            bad.task_id,
            "no answer\nfrom https://me:hunter2@host/" + "x" * 200,
            account_id="acme",
            user_id="bob",
        )
        tracker.create("index", account_id="others", user_id="eve")
        code, lines = run("list", "--account=acme")
        assert (code, run.err) == (0, "")
        first, second = lines
        assert first.startswith(f"{bad.task_id}; bob; index; failed; ")
        assert "no answer from https://" in first
        assert "hunter2" not in first
        assert first.endswith("...")
        assert second.startswith(f"{old.task_id}; alice; ingest; running; ")
        assert second.endswith("; for kb-7; 40 %; fetching")
        for chosen in ("--user=alice", "--type=ingest", "--status=running", "--resource=kb-7"):
            assert run("list", "--account=acme", chosen) == (0, [second])


def test_list_says_where_it_goes_on_and_that_there_is_nothing(tracker: TaskTracker, run: Run) -> None:
    """On the other stream, so that what is printed is tasks and nothing else."""
    with tracker:
        made = [tracker.create("index", **OWNER).task_id for _ in range(3)]
    code, lines = run("list", *ALICE, "--limit=2", "--json")
    assert code == 0
    assert [json.loads(line)["task_id"] for line in lines] == made[:0:-1]
    assert json.loads(lines[0])["owner_user_id"] == "alice"
    told, _, cursor = run.err.rpartition(" ")
    assert told == "there are more: --before"
    code, lines = run("list", *ALICE, f"--before={cursor.strip()}", "--json")
    assert (code, [json.loads(line)["task_id"] for line in lines], run.err) == (0, made[:1], "")
    assert run("list", "--account=nobody") == (0, [])
    assert run.err == "there are none\n"


def test_what_cannot_be_read_is_told_and_never_called_missing(
    tmp_path: Path, tracker: TaskTracker, run: Run
) -> None:
    """Exit code 1, and the rest is listed."""
    with tracker:
        bad, good = (tracker.create("index", **OWNER).task_id for _ in range(2))
    (tmp_path / "local" / "acme" / "tasks" / "alice" / f"{bad}.json").write_text("{")
    code, lines = run("list", *ALICE)
    assert code == 1
    assert [line.partition(";")[0] for line in lines] == [good]
    assert run.err.startswith("cannot be read: ")
    assert bad in run.err
    for command in ("show", "cancel", "retry"):
        assert run(command, bad, *ALICE) == (1, []), command
        assert bad in run.err
        assert "has no task" not in run.err


def test_show_prints_what_the_http_api_shows(tracker: TaskTracker, run: Run) -> None:
    """Nothing private."""
    with tracker:
        task = tracker.submit("ingest", {"n": 1, "token": "abc"}, private={"key": "hunter2"}, **OWNER)
    code, lines = run("show", task.task_id, *ALICE)
    shown = json.loads("\n".join(lines))
    assert code == 0
    assert (shown["task_id"], shown["status"], shown["owner_account_id"]) == (task.task_id, "pending", "acme")
    assert "hunter2" not in str(shown)
    assert '"abc"' not in str(shown)


@pytest.mark.parametrize("command", ["show", "cancel", "retry"])
def test_task_that_is_not_there_is_told_so(tracker: TaskTracker, run: Run, command: str) -> None:
    """Exit code 1: the store was asked, and that is its answer."""
    with tracker:
        tracker.create("index", **OWNER)
    assert run(command, "nope", *ALICE) == (1, [])
    assert run.err == "task_tracker: acme/alice has no task nope; ids are in what list prints\n"


def test_cancelling(tracker: TaskTracker, run: Run) -> None:
    """One that waits is cancelled at once; who works on one that runs is asked to stop, and an ended one stays so."""
    with tracker:
        waits, runs = (tracker.submit("ingest", {}, **OWNER).task_id for _ in range(2))
        tracker.start(runs, **OWNER)
        assert run("cancel", waits, *ALICE) == (0, [f"{waits} is cancelled"])
        assert run("cancel", runs, *ALICE) == (0, [f"{runs} is asked to stop"])
        found = tracker.get(runs, **OWNER)
        assert found is not None
        assert found.status is TaskStatus.CANCELLING
        tracker.mark_cancelled(runs, **OWNER)
        done = tracker.create("index", **OWNER).task_id
        tracker.start(done, **OWNER)
        tracker.complete(done, {}, **OWNER)
        assert run("cancel", done, *ALICE) == (1, [])
        assert "completed" in run.err


def test_retrying(tracker: TaskTracker, run: Run) -> None:
    """A new task with the old one's payload; one that is active is left alone."""
    with tracker:
        old = tracker.submit("ingest", {"n": 1}, resource_id="kb-7", dedupe=True, **OWNER).task_id
        assert run("retry", old, *ALICE) == (1, [])
        assert "pending" in run.err
        tracker.start(old, **OWNER)
        tracker.fail(old, "boom", **OWNER)
        code, (line,) = run("retry", old, *ALICE)
        assert code == 0
        new = line.partition(" ")[0]
        assert line == f"{new} is submitted and does the work of {old}"
        made = tracker.get(new, **OWNER)
        assert made is not None
        assert (made.payload, made.handler_version, made.meta) == ({"n": 1}, 2, {"retry_of": old})
        assert run("retry", old, *ALICE) == (1, [])
        told = f"{new}, of the same type and resource, is active; nothing was submitted"
        assert run.err == f"task_tracker: {told}\n"
        plain = tracker.create("index", **OWNER).task_id
        tracker.start(plain, **OWNER)
        tracker.fail(plain, "boom", **OWNER)
        assert run("retry", plain, *ALICE) == (1, [])
        assert "submitted" in run.err


def test_persistent_store_is_asked_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has no leases: what needs them says so, with exit code 2."""
    run = Run(tmp_path, capsys, "persistent")
    with TaskTracker(PersistentTaskStore(tmp_path)) as tracker:
        task = tracker.create("index", **OWNER).task_id
        code, lines = run("list", *ALICE)
        assert (code, [line.partition(";")[0] for line in lines]) == (0, [task])
        assert run("cancel", task, *ALICE) == (0, [f"{task} is cancelled"])
        assert run("show", task, *ALICE)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("list",), "--account"),
        (("show", "x", "--account=acme"), "--user"),
        (("list", "--account=acme", "--limit=0"), "1 or more"),
        (("list", "--account=acme", "--limit=many"), "not 'many'"),
        (("list", "--account=acme", f"--limit={2**63 - 1}"), "whole number"),
        (("list", "--account=acme", "--status=done"), "completed"),
    ],
)
def test_wrong_arguments(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    """Exit code 2, and a line that names them."""
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [("--account=",), ("--account=acme", "--user= "), ("--account=acme", "--before=x")]
)
def test_values_that_cannot_be_meant(tracker: TaskTracker, run: Run, arguments: tuple[str, ...]) -> None:
    """The same."""
    with tracker:
        tracker.create("index", **OWNER)
    assert run("list", *arguments) == (2, [])
    assert run.err.startswith("task_tracker: ")
    assert len(run.err.splitlines()) == 1


def test_who_wants_no_errors_is_told_all_the_same(
    tracker: TaskTracker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's ``strict: false`` is its own."""
    with tracker:
        done = tracker.create("index", **OWNER).task_id
        tracker.start(done, **OWNER)
        tracker.complete(done, {}, **OWNER)
    monkeypatch.setenv("TASK_TRACKER__STRICT", "false")
    assert run("cancel", done, *ALICE) == (1, [])
    assert run.err == f"task_tracker: {done} has ended: it is completed\n"
    assert run("cancel", "nope", *ALICE) == (1, [])
    assert "has no task nope" in run.err


def test_cancelling_twice_comes_too_late(tracker: TaskTracker, run: Run) -> None:
    with tracker:
        task = tracker.create("index", **OWNER).task_id
    assert run("cancel", task, *ALICE)[0] == 0
    assert run("cancel", task, *ALICE) == (1, [])
    assert run.err == f"task_tracker: {task} has ended: it is cancelled\n"


def test_what_only_a_program_can_retry(tracker: TaskTracker, run: Run) -> None:
    """Its credentials were masked when it ended."""
    with tracker:
        task = tracker.submit("ingest", {"password": "hunter2"}, **OWNER).task_id
        tracker.cancel(task, **OWNER)
    assert run("retry", task, *ALICE) == (1, [])
    assert "TaskTracker.retry" in run.err


def test_nothing_that_others_have_written_reaches_the_terminal_as_it_is(
    tmp_path: Path, tracker: TaskTracker, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor do credentials, in records that cannot be read either; all of it is still JSON, a line each."""
    with tracker:
        odd, bad = (tracker.create("index", **OWNER).task_id for _ in range(2))
        tracker.start(odd, **OWNER)
        tracker.update(odd, message="a\x1b[2J\x9b\x85\u2028\u202e\x7f\nb", **OWNER)
    place = tmp_path / "local" / "acme" / "tasks" / "alice"
    record = json.loads((place / f"{bad}.json").read_text())
    (place / f"{bad}.json").write_text(json.dumps({**record, "created_at": "token=hunter2\n"}))
    for command in (("list", *ALICE), ("list", *ALICE, "--json"), ("show", odd, *ALICE)):
        _, lines = run(*command)
        assert all(line.isprintable() for line in lines), command
        assert all(line.isprintable() for line in run.err.splitlines()), command
        assert "hunter2" not in run.err
        if "list" in command:
            assert len(lines) == len(run.err.splitlines()) == 1
    message = json.loads("\n".join(lines))["message"]
    assert message.startswith("a\x1b[2J")


def test_record_that_is_nested_as_deep_as_can_be_read_is_shown(
    tmp_path: Path, tracker: TaskTracker, run: Run
) -> None:
    """Of another writer; the rest is listed too."""
    with tracker:
        deep, other = (tracker.create("index", **OWNER).task_id for _ in range(2))
    path = tmp_path / "local" / "acme" / "tasks" / "alice" / f"{deep}.json"
    text = path.read_text().replace('"result":null', f'"result":{"[" * 254}{"]" * 254}')
    path.write_text(text)
    assert run("show", deep, *ALICE)[0] == 0
    code, lines = run("list", *ALICE, "--json")
    assert (code, {json.loads(line)["task_id"] for line in lines}) == (0, {deep, other})


@pytest.mark.parametrize("root", ["~nobody-of-this-name/x", "x" * 5000])
def test_root_that_cannot_be_looked_at(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    for backend in ("lease", "persistent"):
        assert main(["list", "--account=acme", f"--root={root}", f"--backend={backend}"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("closed", ["/dev/full", "pipe"])
def test_what_was_done_counts_also_if_that_cannot_be_printed(
    tmp_path: Path, tracker: TaskTracker, closed: str
) -> None:
    """Who listens no more is told nothing; a full disk keeps nobody from learning the id of what was submitted."""
    with tracker:
        old = tracker.submit("ingest", {}, **OWNER).task_id
        tracker.cancel(old, **OWNER)
    command = [sys.executable, "-m", "task_tracker", "retry", old, *ALICE, f"--root={tmp_path}"]
    if closed == "pipe":
        reads, writes = os.pipe()
        os.close(reads)
    else:
        writes = os.open(closed, os.O_WRONLY)
    try:
        done = subprocess.run(
            command, check=False, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=60
        )
    finally:
        os.close(writes)
    assert done.returncode == 0
    waiting = Query("acme", "alice", status=TaskStatus.PENDING)
    (made,) = LeaseTaskStore(tmp_path, durability="none").list(waiting).items
    assert done.stderr.count(made.record.task_id) == (closed != "pipe")
    assert "Traceback" not in done.stderr


def test_ids_beyond_the_encoding_of_a_terminal_are_printed(tmp_path: Path, tracker: TaskTracker) -> None:
    with tracker:
        tracker.create("index", "日本", **OWNER)
    command = [sys.executable, "-m", "task_tracker", "list", *ALICE, f"--root={tmp_path}"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, check=False, capture_output=True, env=environment, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "for \\u65e5\\u672c" in done.stdout
