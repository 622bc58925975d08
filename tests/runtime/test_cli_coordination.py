"""``python -m task_tracker pause``, ``resume`` and ``workers``: what an operator does with all workers of a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stores.files.lease.store import LeaseTaskStore
from task_tracker.cli import main
from task_tracker.store import WorkerFact

FACT: dict[str, Any] = {
    "state": "working",
    "ready": True,
    "slots": 4,
    "running": 1,
    "kinds": [["reindex", 1], ["ingest", 2]],
    "paused": [],
    "facts": {},
}


pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def store(tmp_path: Path) -> LeaseTaskStore:
    return LeaseTaskStore(tmp_path, durability="none")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    code = main(arguments)
    return code, capsys.readouterr().out.splitlines()


def test_pausing_and_resuming(
    tmp_path: Path, store: LeaseTaskStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """[D154] Each says what holds now, also if it held before."""
    root = f"--root={tmp_path}"
    code, lines = run(capsys, "pause", "reindex", root)
    assert (code, store.paused()) == (0, ["reindex"])
    assert lines == ["reindex is paused; what runs goes on, and nothing of it is claimed until it is resumed"]
    assert run(capsys, "pause", "reindex", root) == (0, ["reindex was paused already"])
    assert run(capsys, "resume", "reindex", root) == (0, ["reindex is claimed again"])
    assert store.paused() == []
    assert run(capsys, "resume", "reindex", root) == (0, ["reindex was not paused"])


def test_workers_are_listed_with_what_is_wrong(
    tmp_path: Path, store: LeaseTaskStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """[D160] One line each; the exit code says whether one of them is ready."""
    assert run(capsys, "workers", f"--root={tmp_path}") == (1, ["0 of 0 workers ready; paused: nothing"])
    store.publish(
        WorkerFact(
            "b",
            {
                **FACT,
                "ready": False,
                "blocked_loop_seconds": 3.5,
                "paused": ["embed"],
                "facts": {"index": {"ready": False, "detail": "down"}, "net": {"ready": True, "detail": ""}},
            },
            20.0,
        )
    )
    store.publish(WorkerFact("c", {}, 20.0))
    store.pause("reindex")
    code, lines = run(capsys, "workers", f"--root={tmp_path}")
    assert code == 1
    assert lines == [
        (
            "b; working, NOT ready; 1 of 4 slots taken; for reindex 1, ingest 2; because of a blocked event loop, "
            "index (down); leaves alone embed; heard of 0 s ago"
        ),
        "c; of an unknown state, NOT ready; heard of 0 s ago",
        "0 of 2 workers ready; paused: reindex",
    ]
    store.publish(WorkerFact("a", FACT, 20.0))
    code, lines = run(capsys, "workers", f"--root={tmp_path}")
    assert code == 0
    assert lines[0] == "a; working, ready; 1 of 4 slots taken; for reindex 1, ingest 2; heard of 0 s ago"
    assert lines[-1] == "1 of 3 workers ready; paused: reindex"


def test_type_that_no_worker_knows_is_paused_with_a_remark(
    tmp_path: Path, store: LeaseTaskStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be mistyped, or its workers may come later."""
    root = f"--root={tmp_path}"
    assert main(["pause", "nope", root]) == 0
    told = capsys.readouterr()
    assert told.err == "no live worker has a handler for nope; there is no worker just now\n"
    assert told.out.startswith("nope is paused; ")
    store.publish(WorkerFact("a", FACT, 20.0))
    store.publish(WorkerFact("b", {"kinds": [["embed", 1]]}, 20.0))
    store.publish(WorkerFact("c", {}, 20.0))
    assert main(["pause", "rindex", root]) == 0
    told = capsys.readouterr()
    assert told.err == "no live worker has a handler for rindex; they have some for embed, ingest, reindex\n"
    assert store.paused() == ["nope", "rindex"]
    assert main(["pause", "reindex", root]) == 0
    assert capsys.readouterr().err == ""


def test_blank_type_is_refused(
    tmp_path: Path, store: LeaseTaskStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pause", " ", f"--root={tmp_path}"]) == 2
    assert "task_type" in capsys.readouterr().err
    assert store.paused() == []


def test_workers_as_json(tmp_path: Path, store: LeaseTaskStore, capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts: everything that they say."""
    store.publish(WorkerFact("a", FACT, 20.0))
    code, (line,) = run(capsys, "workers", "--json", f"--root={tmp_path}")
    said = json.loads(line)
    assert code == 0
    assert 0 <= said.pop("age_seconds") < 20
    assert said == {**FACT, "instance": "a", "life_seconds": 20.0}


def test_where_tasks_are_kept_is_found_as_for_a_worker(
    tmp_path: Path, store: LeaseTaskStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """[D020] By the environment, or a file, and nothing is settled or swept by the way."""
    monkeypatch.setenv("TASK_TRACKER__ROOT", str(tmp_path))
    monkeypatch.setenv("TASK_TRACKER__BACKEND", "lease")
    assert run(capsys, "pause", "reindex")[0] == 0
    monkeypatch.delenv("TASK_TRACKER__ROOT")
    monkeypatch.delenv("TASK_TRACKER__BACKEND")
    config = tmp_path / "server.json"
    config.write_text(json.dumps({"storage": {"task_tracker": {"backend": "lease", "root": str(tmp_path)}}}))
    assert run(capsys, "resume", "reindex", f"--config={config}") == (0, ["reindex is claimed again"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pause", "x"], "the backend is memory"),
        (["resume", "x", "--root=ROOT", "--backend=persistent"], "has no leases"),
        (["workers", "--root=ROOT", "--backend=persistent"], "has no leases"),
        (["workers", "--root=ROOT/gone/file"], "has ever used"),
        (["pause", "x", "--root=ROOT/typo"], "has ever used"),
        (["pause", "x", "--root=ROOT"], "has ever used"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Exit code 2: it is not known whether anything is paused, or anybody works."""
    (tmp_path / "gone").write_bytes(b"no directory")
    assert main([argument.replace("ROOT", str(tmp_path)) for argument in arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert message in told.err
    assert [path.name for path in tmp_path.iterdir()] == ["gone"]


def test_what_a_worker_says_does_nothing_to_the_terminal(
    tmp_path: Path, store: LeaseTaskStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Details are its server's, and may quote anything."""
    facts = {"index": {"ready": False, "detail": "\x1b[2Jdown\npostgres://me:hunter2@host"}}
    store.publish(WorkerFact("a", {**FACT, "ready": False, "facts": facts}, 20.0))
    _, lines = run(capsys, "workers", f"--root={tmp_path}")
    assert len(lines) == 2
    assert lines[0].isprintable()
    assert "hunter2" not in lines[0]
