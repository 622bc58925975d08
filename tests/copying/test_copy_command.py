"""``python -m task_tracker copy``: how stores are named, what it prints, and its exit code."""

# long: every line and exit code of one command

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stores import LeaseTaskStore, PersistentTaskStore
from task_tracker.cli import copy_command, main
from task_tracker.clock import SystemClock
from task_tracker.copying import Copying
from task_tracker.records import TaskKey, TaskStatus
from task_tracker.store import Stored, TaskStore
from task_tracker.testing import RecordMaker
from tests.objects.server import S3Server

Run = Callable[..., int]


pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def make() -> RecordMaker:
    return RecordMaker()


@pytest.fixture
def old(tmp_path: Path) -> Iterator[PersistentTaskStore]:
    (tmp_path / "old").mkdir()
    store = PersistentTaskStore(tmp_path / "old", durability="none")
    yield store
    store.close()


@pytest.fixture
def copy(tmp_path: Path) -> Run:
    """Run the command; names without a colon are files, ``~`` is the directory of the test."""

    def run(source: str = "persistent:~/old", target: str = "persistent:~/new", *more: str) -> int:
        places = [text.replace("~", str(tmp_path)) for text in (source, target)]
        return main(["copy", "--from", places[0], "--to", places[1], *more])

    return run


def settings(path: Path, **fields: object) -> str:
    path.write_text(json.dumps({"storage": {"task_tracker": fields}, "other": 1}))
    return str(path)


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


# ---- what it answers -----------------------------------------------------------------------------------------


def test_copies_compares_and_says_so(
    old: PersistentTaskStore, copy: Run, make: RecordMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for every owner, the sums, both digests; 0 only if they are equal."""
    for user_id in ("alice", "bob", "bob"):
        old.create(make(user_id=user_id, status=TaskStatus.COMPLETED))
    assert copy() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "copied 3, copied again 0, there already 0, refused 0"
    assert [line.split() for line in lines[1:5]] == [
        ["owner", "source", "target", "same"],
        ["acme/alice", "1", "1", "1"],
        ["acme/bob", "2", "2", "2"],
        ["all", "3", "3", "3"],
    ]
    digests = [
        line.removeprefix(f"{side} 3 records, digest ")
        for side, line in zip(("source", "target"), lines[5:7], strict=True)
    ]
    assert re.fullmatch("[0-9a-f]{32}", digests[0])
    assert digests[0] == digests[1] != "0" * 32
    assert lines[7:] == ["equal"]


def test_refused_tasks_are_named_once_and_counted(
    old: PersistentTaskStore, copy: Run, make: RecordMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what to do about them; the exit code is 1."""
    old.create(make("own", status=TaskStatus.RUNNING))
    old.create(make("paused", status=TaskStatus.parse("paused")))
    old.create(make(status=TaskStatus.COMPLETED))
    assert copy() == 1
    out = capsys.readouterr().out
    assert out.count("RUNNING acme/alice/own: it is running") == 1
    assert out.count("UNKNOWN STATE acme/alice/paused: ") == 1
    assert "copied 1, copied again 0, there already 0, refused 2" in out
    assert out.splitlines()[-1] == "NOT EQUAL: 1 running, 1 unknown state"
    assert "acme/alice" + " " * 40 in out or "DIFFERS" in out
    assert copy("persistent:~/old", "persistent:~/new", "--include-running") == 1
    assert "--include-running" not in capsys.readouterr().out


def test_check_writes_nothing(
    old: PersistentTaskStore, copy: Run, make: RecordMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even a directory; it says how many are missing, and names the first of them."""
    for record in make.many(25, status=TaskStatus.COMPLETED):
        old.create(record)
    before = tree(tmp_path)
    for target in ("persistent:~/new", "lease:~/new", "lease:~/old/elsewhere"):
        assert copy("persistent:~/old", target, "--check") == 1
        said = capsys.readouterr()
        assert said.out.count("MISSING acme/alice/") == 20
        assert said.out.splitlines()[-1] == "NOT EQUAL: 25 missing"
        assert "no store of this kind yet" in said.err
    assert tree(tmp_path) == before
    assert not (tmp_path / "new").exists()
    assert copy() == 0
    before = tree(tmp_path)
    capsys.readouterr()
    assert copy("persistent:~/old", "persistent:~/new", "--check") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "equal"
    assert tree(tmp_path) == before


def test_check_leaves_a_directory_of_another_kind_as_it_is(
    old: PersistentTaskStore, copy: Run, make: RecordMaker, tmp_path: Path
) -> None:
    """To compare with it as a lease store would make it one."""
    old.create(make())
    (tmp_path / "new").mkdir()
    PersistentTaskStore(tmp_path / "new").create(make())
    before = tree(tmp_path / "new")
    assert copy("persistent:~/old", "lease:~/new", "--check") == 1
    assert tree(tmp_path / "new") == before


def test_source_without_records(
    copy: Run, old: PersistentTaskStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may well be the wrong place: nothing was copied, and that is not called a success."""
    assert copy() == 1
    assert "holds no records; check --from" in capsys.readouterr().out


def test_interrupted(
    old: PersistentTaskStore,
    copy: Run,
    make: RecordMaker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    old.create(make())
    monkeypatch.setattr(Copying, "copy", interrupt)
    assert copy() == 130
    assert capsys.readouterr().err.startswith("stopped; nothing is half copied")


def test_progress_is_shown_on_a_terminal(
    old: PersistentTaskStore,
    copy: Run,
    make: RecordMaker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is printed does not stand behind it."""
    old.create(make(status=TaskStatus.COMPLETED))
    old.create(make("own", status=TaskStatus.RUNNING))
    monkeypatch.setattr(copy_command, "_PROGRESS_SECONDS", 0.0)
    assert copy() == 1
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert copy() == 1
    said = capsys.readouterr().err
    assert "\rcopied 1 " in said
    assert "\rcompared 2 " in said
    assert said.endswith("\r\x1b[K")


def test_progress_is_told_now_and_then_where_there_is_no_terminal(
    old: PersistentTaskStore,
    copy: Run,
    make: RecordMaker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A line every ten seconds, so that a log shows that it goes on."""
    for record in make.many(7, status=TaskStatus.COMPLETED):
        old.create(record)
    monkeypatch.setattr(copy_command, "SYSTEM_CLOCK", Ticking(4.0))
    assert copy() == 0
    assert capsys.readouterr().err.splitlines() == [
        "copied 3 so far",
        "copied 6 so far",
        "compared 3 so far",
        "compared 6 so far",
    ]


class Ticking(SystemClock):
    """A clock on which each look takes so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += self._seconds
        return self._now


def test_source_that_cannot_list_its_owners(
    old: PersistentTaskStore,
    copy: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A third party's: it is said which side that is, and what can be done. Nothing has begun."""
    monkeypatch.setattr(PersistentTaskStore, "owners", TaskStore.owners)
    assert copy() == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("task_tracker: --from: PersistentTaskStore cannot list who has tasks there")
    assert "has owners()" in told.err


# ---- from where to where ------------------------------------------------------------------------------------


def test_every_way_of_naming_a_place(
    old: PersistentTaskStore, copy: Run, make: RecordMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """BACKEND:PLACE, BACKEND:URL, or a file with settings: prefix, options, lease terms."""
    record = old.create(make(status=TaskStatus.COMPLETED)).record
    assert copy("persistent:file://~/old", "lease:~/one") == 0
    there = settings(
        tmp_path / "there.json", backend="lease", root=str(tmp_path / "two"), prefix="", lease_seconds=9
    )
    assert copy("lease:~/one", there) == 0
    assert (tmp_path / "two/acme/tasks/alice" / f"{record.task_id}.json").exists()
    assert copy(there, "persistent:~/three") == 0
    assert (
        copy(settings(tmp_path / "b.json", backend="persistent", root=str(tmp_path / "two/acme")), there) == 1
    )
    assert "holds no records" in capsys.readouterr().out


def test_environment_is_not_looked_at(
    old: PersistentTaskStore, copy: Run, make: RecordMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It speaks of one store, and nobody knows of which of them."""
    monkeypatch.setenv("TASK_TRACKER__PREFIX", "/elsewhere")
    monkeypatch.setenv("TASK_TRACKER__LEASE_SECONDS", "7")
    monkeypatch.setenv("TASK_TRACKER__BACKEND", "memory")
    record = old.create(make(status=TaskStatus.COMPLETED)).record
    assert copy(target=settings(tmp_path / "new.json", backend="persistent", root=str(tmp_path / "new"))) == 0
    assert (tmp_path / "new/local/acme/tasks/alice" / f"{record.task_id}.json").exists()


def test_from_and_to_an_object_store(
    old: PersistentTaskStore, copy: Run, make: RecordMaker, tmp_path: Path, s3_server: S3Server
) -> None:
    """Nothing is written to the source, not even to find out what it can do."""
    old.create(make(status=TaskStatus.COMPLETED))
    old.create(make())
    bucket = settings(
        tmp_path / "s3.json", backend="persistent", root=s3_server.new_root(), options=s3_server.options()
    )
    assert copy(target=bucket) == 0
    with s3_server.counted() as counts:
        assert copy(bucket, "lease:~/new") == 0
    assert set(counts) <= {"GET", "LIST", "HEAD"}


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("memory:", "persistent:~/new", "--from: the backend is memory"),
        ("persistent:~/old", "memory:x", "--to: the backend is memory"),
        ("persistent:~/nowhere", "persistent:~/new", "there is no directory"),
        ("lease:~/old", "persistent:~/new", "has never used .*; write persistent:"),
        ("persistent:~/leased", "persistent:~/new", "belongs to the lease backend, .*; write lease:"),
        ("persistent:~/old", "persistent:~/leased", "belongs to a lease store|lease"),
        ("persistent:~/old", "lease:~/new/../old", "are the same place"),
        ("persistent:~/old", "persistent:file://~/old", "are the same place"),
        ("s3://bucket/x", "persistent:~/new", r"did you mean persistent:s3://bucket/x\?"),
        ("~/old", "persistent:~/new", "which is no file"),
        ("persistent:~/old", "~/nothing.json", "--to is .*nothing.json"),
        ("persistent:", "persistent:~/new", "."),
        ("~/wrong.json", "persistent:~/new", "unknown key storage.task_tracker.rot"),
    ],
)
def test_what_cannot_be_meant(
    copy: Run,
    old: PersistentTaskStore,
    make: RecordMaker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    source: str,
    target: str,
    said: str,
) -> None:
    """One line that says what to write instead, exit code 2, and nothing was done."""
    old.create(make())
    LeaseTaskStore(tmp_path / "leased").close()
    settings(tmp_path / "wrong.json", backend="persistent", rot="x")
    before = tree(tmp_path)
    assert copy(source, target) == 2
    assert re.search(said, line := capsys.readouterr().err)
    assert line.startswith("task_tracker: ")
    assert line.count("\n") == 1
    assert tree(tmp_path) == before


def test_running_ones_are_not_included_where_leases_tell(
    copy: Run, make: RecordMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The source knows better."""
    LeaseTaskStore(tmp_path / "leased").close()
    assert copy("lease:~/leased", "persistent:~/new", "--include-running") == 2
    assert "leave it out" in capsys.readouterr().err


def test_passwords_are_not_shown(copy: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """[D142]"""
    assert copy("postgre://me:s3cret@host/db", "persistent:~/new") == 2
    assert "s3cret" not in capsys.readouterr().err


@pytest.mark.parametrize("dsn", ["postgresql://me@host/db", "postgres://me@host/db"])
def test_databases_are_named_by_their_url(dsn: str) -> None:
    """Or, like all others, by the name of the backend."""
    assert copy_command._named(dsn) == {"backend": "postgres", "dsn": dsn}
    assert copy_command._named("postgres:host=x dbname=y") == {
        "backend": "postgres",
        "dsn": "host=x dbname=y",
    }


def test_pauses_are_not_forgotten(
    copy: Run, make: RecordMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """[D154] They are not copied; whoever starts workers at the target is told."""
    old = LeaseTaskStore(tmp_path / "leased", durability="none")
    old.create(make(attempt=None, creation=None))
    old.pause("reindex")
    old.close()
    assert copy("lease:~/leased", "lease:~/new") == 0
    assert "paused at the source, and not at the target: reindex" in capsys.readouterr().out
    new = LeaseTaskStore(tmp_path / "new")
    new.pause("reindex")
    new.close()
    assert copy("lease:~/leased", "lease:~/new") == 0
    assert "paused" not in capsys.readouterr().out


# ---- a directory of another tracker ---------------------------------------------------------------------------


def plant(root: Path, place: str, **fields: object) -> None:
    """Write a record as a tracker of the first generation does."""
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    *_, user, name = path.parts
    document: dict[str, object] = {
        "task_id": name.removesuffix(".json"),
        "task_type": "session_commit",
        "status": "completed",
        "created_at": 1_700_000_000.25,
        "updated_at": 1_700_000_009.5,
        "resource_id": "sess-1",
        "account_id": "acme",
        "user_id": user,
        "result": {"archived": True},
        "error": None,
    }
    path.write_text(json.dumps(document | fields, indent=2))


@pytest.mark.parametrize("target", ["lease", "persistent"])
def test_directory_of_an_openviking_style_server(
    copy: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    """[D143] [D144] [D146] Ended, waiting and running tasks, with keys nobody knows; what lies elsewhere is named."""
    root = tmp_path / "old/local"
    plant(root, "acme/tasks/alice/t-1.json")
    plant(root, "acme/tasks/alice/t-2.json", status="failed", error="broke", result=None)
    plant(root, "acme/tasks/bob/t-1.json", status="pending", result=None, auth={"token": "hidden"}, works=[1])
    plant(
        root, "acme/tasks/bob/t-3.json", status="running", result=None, created_at="2023-11-14T22:13:20+00:00"
    )
    plant(root, "acme/_system/tasks/alice/t-9.json")
    for name in ("t-4", "t-5"):
        (root / f"acme/tasks/bob/{name}.json").write_text('{"task_id": "t-4", ')
    assert copy(target=f"{target}:~/new") == 1
    out = capsys.readouterr().out
    assert "RUNNING acme/bob/t-3" in out
    assert out.count("t-4.json is not a task record") == out.count("t-5.json is not a task record") == 1
    assert "LEFT OUT" in out
    assert "_system/tasks/alice/t-9.json" in out
    assert "hidden" not in out
    assert "copied 3," in out
    assert copy("persistent:~/old", f"{target}:~/new", "--include-running") == 1
    out = capsys.readouterr().out
    assert "copied 1, copied again 0, there already 3, refused 2" in out
    assert out.splitlines()[-1] == "NOT EQUAL: 1 left out, 2 unreadable"
    store = (LeaseTaskStore if target == "lease" else PersistentTaskStore)(tmp_path / "new")
    stored = store.get(TaskKey("acme", "bob", "t-1"))
    assert isinstance(stored, Stored)
    assert json.loads(stored.record.extra_json or b"")["auth"] == {"token": "hidden"}
    assert sorted(path.name for path in (tmp_path / "new").rglob("t-*.json")) == [
        "t-1.json",
        "t-1.json",
        "t-2.json",
        "t-3.json",
    ]
    store.close()
