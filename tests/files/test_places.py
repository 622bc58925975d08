"""Where records can be kept, and what is asked about ids that cannot."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from stores import PersistentTaskStore
from stores.files.persistent import open_persistent
from task_tracker import StorageConfig
from task_tracker.errors import SettingsError, TaskTrackerError
from task_tracker.store import Query, StoreOptions
from task_tracker.testing import MovingClient, RecordMaker
from tests.files.support import PROJECT, fetch, local_store


@pytest.mark.parametrize(
    "root", ["", "  ", "a\0b", b"/tmp/x", "file://host/share", "file://x", "memory://a\0b"]
)
def test_roots_that_are_refused(root: str | bytes) -> None:
    with pytest.raises(SettingsError, match="root is"):
        PersistentTaskStore(BytesPath(root) if isinstance(root, bytes) else root)


class BytesPath(os.PathLike[bytes]):
    def __init__(self, path: bytes) -> None:
        self._path = path

    def __fspath__(self) -> bytes:
        return self._path


def test_roots_that_mean_the_same(tmp_path: Path, make: RecordMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = make()
    PersistentTaskStore("tasks").create(record)
    for files in (
        tmp_path / "tasks",
        str(tmp_path / "tasks") + "/",
        f"file://{tmp_path}/tasks",
        Path("tasks"),
    ):
        assert fetch(PersistentTaskStore(files), record.key) == record


def test_opening_by_options(tmp_path: Path, make: RecordMaker) -> None:
    """A root wins over the server's client; neither is an error that says what to do."""
    client = MovingClient()
    record = make()
    open_persistent(StoreOptions(client=client)).create(record)
    assert fetch(PersistentTaskStore(client), record.key) == record
    open_persistent(StoreOptions(root=str(tmp_path), client=client, prefix="")).create(make("task-2"))
    assert (tmp_path / "acme/tasks/alice/task-2.json").is_file()
    with pytest.raises(SettingsError, match="needs a place: set root to a directory"):
        open_persistent(StoreOptions())
    for files in ({"root": str(tmp_path)}, {"client": client}, {"root": f"file://{tmp_path}"}):
        with pytest.raises(
            SettingsError, match="no option 'bucket' here; options are for roots that are URLs"
        ):
            open_persistent(StoreOptions(**files, options={"bucket": "x"}))


def test_urls_of_file_systems(make: RecordMaker) -> None:
    """Options go to the file system."""
    record = make()
    open_persistent(StoreOptions(root="memory://places")).create(record)
    store = open_persistent(StoreOptions(root="memory://places", options={"global_store": True}))
    assert fetch(store, record.key) == record
    assert not store.capabilities.shared
    fs = fsspec.filesystem("memory")
    assert fetch(open_persistent(StoreOptions(client=DirFileSystem("/places", fs))), record.key) == record
    fs.rm("/places", recursive=True)


def test_a_server_may_pass_its_own_instance(make: RecordMaker) -> None:
    fs = fsspec.filesystem("memory")
    config = StorageConfig(task_tracker={"backend": "persistent", "prefix": "/own"})
    with config.build_task_tracker(fs) as tracker:
        task = tracker.create("ingest", "kb-7", account_id="acme", user_id="alice")
        assert fs.exists(f"/own/acme/tasks/alice/{task.task_id}.json")
        assert tracker.store.capabilities.compare_and_set
    fs.rm("/own", recursive=True)


@pytest.mark.parametrize(
    ("root", "options", "reason"),
    [
        ("nosuch://bucket/x", {}, "Protocol not known: nosuch"),
        ("sftp://host/x", {}, 'requires "paramiko" to be installed; install what it names'),
        ("github://x", {}, "the options do not fit root 'github://x'"),
        ("agfs://h:port/", {}, "is no AGFS server"),
        ("agfs://h:1/", {"tiemout": 3}, "no option 'tiemout'"),
    ],
)
def test_urls_that_mean_nothing_here(root: str, options: dict[str, Any], reason: str) -> None:
    """One line each, that says what is wrong or which package is missing."""
    with pytest.raises(SettingsError, match=reason) as caught:
        PersistentTaskStore(root, options=options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hidden", "root", "reason"),
    [
        ("fsspec", "memory://x", r"needs fsspec; install durable-task-tracker\[fsspec\]"),
        ("pyagfs", "agfs://h:1/", r"needs the package pyagfs; install durable-task-tracker\[agfs\]"),
        ("obstore", "s3://bucket/x", r"needs? .*durable-task-tracker\[s3\]"),
    ],
)
def test_packages_that_are_missing(hidden: str, root: str, reason: str) -> None:
    """In a process that has none of them loaded."""
    program = (
        "import sys\n"
        f"sys.modules[{hidden!r}] = None\n"
        "from stores import PersistentTaskStore\n"
        "from task_tracker.errors import SettingsError\n"
        "try:\n"
        f"    PersistentTaskStore({root!r}).get\n"
        "except SettingsError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert re.search(reason, done.stdout), done.stdout + done.stderr


def test_a_directory_needs_no_fsspec(tmp_path: Path) -> None:
    """Nor does a client: whoever has an instance has it loaded."""
    program = (
        "import sys\n"
        "sys.modules['fsspec'] = None\n"
        "from stores import PersistentTaskStore\n"
        "from task_tracker.testing import MovingClient\n"
        f"PersistentTaskStore({str(tmp_path)!r})\n"
        "PersistentTaskStore(MovingClient())\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=PROJECT, check=True)


def test_questions_about_ids_that_cannot_be_stored(root: Path, make: RecordMaker) -> None:
    """[D077] [D139] They are nobody's, whatever is asked."""
    store = local_store(root)
    store.create(make())
    for account, user in (("x" * 300, "alice"), ("acme", " "), ("x" * 300, None)):
        assert store.list(Query(account, user)).items == []
        assert not store.has_active(account, user, "reindex", "docs")
        assert store.count(account, user) == {}
        if user is not None:
            assert store.delete_owner(account, user) == 0
    with pytest.raises(TaskTrackerError):
        store.create(make("x" * 300))
