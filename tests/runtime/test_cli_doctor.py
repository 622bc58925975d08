"""``python -m task_tracker doctor``: what an operator is told of a store, and what is mended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from stores.files.lease.store import LeaseTaskStore
from stores.files.persistent import PersistentTaskStore
from task_tracker.cli import main
from task_tracker.store import Finding
from task_tracker.testing import RecordMaker
from task_tracker.tracker import TaskTracker

pytestmark = pytest.mark.usefixtures("clean_environment")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    code = main(["doctor", *arguments])
    return code, capsys.readouterr().out.splitlines()


def test_one_line_for_each_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """[D069] What it is, where, and what to do; the exit code says whether something is left."""
    root = f"--root={tmp_path}"
    store = LeaseTaskStore(tmp_path, durability="none")
    record = store.create(RecordMaker()()).record
    assert run(capsys, root) == (0, ["nothing found"])
    store.pause("reindex")
    damaged = tmp_path / f"local/acme/tasks/alice/{record.task_id}.json"
    damaged.write_bytes(b'{"half": ')
    for fix in ([], ["--fix"]):
        code, lines = run(capsys, root, *fix)
        assert code == 1
        assert [line.partition(":")[0] for line in lines[:-1]] == [
            f"corrupt_record {damaged}",
            "paused_type reindex",
        ]
        assert "python -m task_tracker resume" in lines[1]
        assert lines[-1] == "2 found, 0 of them fixed"
    store.close()


def test_what_is_mended_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """[D070] A record of an older layout, in a place without leases."""
    old = tmp_path / "local/acme/_system/tasks/alice/t-1.json"
    old.parent.mkdir(parents=True)
    old.write_text(
        json.dumps({"task_id": "t-1", "task_type": "reindex", "status": "completed", "created_at": 1.7e9})
    )
    place = [f"--root={tmp_path}", "--backend=persistent"]
    code, lines = run(capsys, *place)
    assert (code, lines[-1]) == (1, "1 found, 0 of them fixed")
    assert lines[0].startswith(f"old_layout {old}: ")
    assert old.exists()
    code, lines = run(capsys, *place, "--fix")
    assert (code, lines[-1]) == (0, "1 found, 1 of them fixed")
    assert lines[0].startswith(f"fixed: old_layout {old}: ")
    assert run(capsys, *place) == (0, ["nothing found"])


def test_no_credential_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each finding stays one line, too."""

    def found(self: TaskTracker, *, fix: bool) -> Sequence[Finding]:
        return [Finding("own_word", "s3://key:open-sesame@bucket", "password=open-sesame\nfor ever")]

    monkeypatch.setattr(TaskTracker, "doctor", found)
    LeaseTaskStore(tmp_path, durability="none").close()
    code, lines = run(capsys, f"--root={tmp_path}")
    assert (code, len(lines)) == (1, 2)
    assert "open-sesame" not in lines[0]
    assert lines[0].endswith("for ever")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the backend is memory"),
        (["--root=ROOT/typo"], "has ever used"),
        (["--root=ROOT/plain"], "has ever used"),
        (["--root=ROOT/typo", "--backend=persistent"], "there is no directory"),
        (["--dsn=host=127.0.0.1 port=1 password=open-sesame"], "cannot connect to PostgreSQL"),
    ],
)
def test_place_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """And not made: a store without findings is not what was asked for."""
    PersistentTaskStore(tmp_path / "plain").close()
    assert main(["doctor", *(argument.replace("ROOT", str(tmp_path)) for argument in arguments)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert message in told.err
    assert "open-sesame" not in told.err
    assert not (tmp_path / "typo").exists()
