"""``python -m task_tracker list``, ``show``, ``cancel`` and ``retry``: what an operator asks, and does to one task."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stores.files.lease.store import LeaseTaskStore
from stores.files.persistent import PersistentTaskStore
from task_tracker import HandlerRegistry, TaskStatus, TaskTracker
from task_tracker.cli import main

OWNER: dict[str, Any] = {"account_id": "acme", "user_id": "alice"}
ALICE = ("--account=acme", "--user=alice")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if "TASK_TRACKER" in name.upper()]:
        monkeypatch.delenv(name)


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
    assert json.loads(lines[0])["user_id"] == "alice"
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
    assert (shown["task_id"], shown["status"], shown["account_id"]) == (task.task_id, "pending", "acme")
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
        assert run("cancel", runs, *ALICE) == (0, [f"{runs} is to stop, and is cancelled once it has"])
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
        assert run("retry", old, *ALICE) == (0, [f"{new} is active already with the work of {old}"])
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
        (("list", "--account=acme", "--limit=many"), "--limit"),
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
