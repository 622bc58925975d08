"""Temporary files: whose they are, and which ones a sweep may take away."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stores.files import temporaries
from stores.files.temporaries import FOREIGN_SECONDS, ORPHAN_SECONDS, Temporaries
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import StoreUnavailable
from task_tracker.records import TaskStatus
from task_tracker.store import Query
from task_tracker.testing import RecordMaker
from tests.files.support import COMPLETED, Child, WatchedOps, age, fetch, ids, left_over, local_store

CUTOFFS = {TaskStatus.COMPLETED: 1.0}
"""Nothing is as old as that: a purge that only removes what crashes left."""


@pytest.fixture
def dead_pid() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_names_are_never_used_twice(ops: WatchedOps) -> None:
    """[D074] Not by another number, store, process or host; and they look like no record."""
    first, second = Temporaries(SYSTEM_CLOCK, ops), Temporaries(SYSTEM_CLOCK, ops)
    names = [maker.new_name() for maker in (first, first, second, second)]
    assert len(set(names)) == 4
    for name in names:
        assert re.fullmatch(rf"\.tmp-[0-9a-f]{{8}}-{os.getpid()}-\d+-[0-9a-f]{{8}}-\d+", name)
        assert not name.endswith(".json")
        assert len(name) < 100


def test_names_in_a_forked_child_are_its_own(ops: WatchedOps, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = Temporaries(SYSTEM_CLOCK, ops)
    here = maker.new_name()
    monkeypatch.setattr(os, "getpid", lambda: 424_242)
    assert "-424242-" in maker.new_name()
    assert "-424242-" not in here


@pytest.mark.parametrize(
    ("host", "alive", "seconds", "abandoned"),
    [
        ("here", False, 0, False),
        ("here", False, ORPHAN_SECONDS - 5, False),
        ("here", False, ORPHAN_SECONDS + 5, True),
        ("here", True, ORPHAN_SECONDS + 5, False),
        ("here", True, FOREIGN_SECONDS - 60, False),  # the pid may have been used again: a day must do
        ("here", True, FOREIGN_SECONDS + 60, True),
        ("elsewhere", False, ORPHAN_SECONDS + 5, False),
        ("elsewhere", False, FOREIGN_SECONDS - 60, False),
        ("elsewhere", False, FOREIGN_SECONDS + 60, True),
        ("here", False, -3600, False),  # a clock that was wrong when it was written
    ],
)
def test_when_a_temporary_file_is_nobodys(
    tmp_path: Path, ops: WatchedOps, dead_pid: int, host: str, alive: bool, seconds: float, abandoned: bool
) -> None:
    """[D074] Dead writers of this host after a minute, all others after a day."""
    maker = Temporaries(SYSTEM_CLOCK, ops)
    mine = maker.new_name().split("-")[1]
    name = f".tmp-{mine if host == 'here' else '0' * 8}-{os.getpid() if alive else dead_pid}-1-00000000-0"
    path = tmp_path / name
    path.write_bytes(b"")
    age(path, seconds)
    maker.sweep(str(tmp_path), [name])
    assert path.exists() is not abandoned


@pytest.mark.parametrize(
    "name",
    [
        *(
            ".tmp-mine",
            "tmp-00000000-1-1-00000000-0",
            ".tmp-00000000-1-1-00000000-0.json",
            ".tmp-XYZ-1-1-00000000-0",
        ),
        *("task.json", ".lock", ".tmp-00000000-1-1-00000000-0~"),
    ],
)
def test_other_files_are_left_alone(tmp_path: Path, ops: WatchedOps, name: str) -> None:
    """[D074] However old they are."""
    path = tmp_path / name
    path.write_bytes(b"")
    age(path, 10 * FOREIGN_SECONDS)
    Temporaries(SYSTEM_CLOCK, ops).sweep(str(tmp_path), [name])
    assert path.exists()


@pytest.mark.parametrize("pid", ["0", "99999999999999999999", "1"])
def test_a_pid_that_no_process_can_have_ends_no_sweep(tmp_path: Path, ops: WatchedOps, pid: str) -> None:
    """[D074] It cannot be told who that is, so a day must have passed."""
    maker = Temporaries(SYSTEM_CLOCK, ops)
    path = tmp_path / f".tmp-{maker.new_name().split('-')[1]}-{pid}-1-00000000-0"
    path.write_bytes(b"")
    age(path, FOREIGN_SECONDS - 60)
    maker.sweep(str(tmp_path), [path.name])
    assert path.exists()
    age(path, FOREIGN_SECONDS + 60)
    maker.sweep(str(tmp_path), [path.name])
    assert not path.exists()


def test_where_signal_zero_means_something_else_age_decides(
    monkeypatch: pytest.MonkeyPatch, dead_pid: int
) -> None:
    """Windows ends a process that is sent signal 0."""
    assert not temporaries._alive(dead_pid)
    monkeypatch.setattr(os, "name", "nt")
    assert temporaries._alive(dead_pid)


def test_a_process_of_another_user_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """[D106] EPERM says that it is there."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    monkeypatch.setattr(os, "kill", refuse)
    assert temporaries._alive(1)


@pytest.mark.parametrize("call", ["stat", "unlink"])
def test_what_cannot_be_looked_at_or_removed_now_is_left_for_the_next_sweep(
    tmp_path: Path, ops: WatchedOps, call: str
) -> None:
    maker = Temporaries(SYSTEM_CLOCK, ops)
    names = [f".tmp-00000000-1-1-00000000-{number}" for number in range(2)]
    for name in names:
        (tmp_path / name).write_bytes(b"")
        age(tmp_path / name, FOREIGN_SECONDS + 60)
    ops.fail(errno.EACCES, on=[call])
    maker.sweep(str(tmp_path), names)
    assert [(tmp_path / name).exists() for name in names] == [True, False]
    maker.sweep(str(tmp_path), [*names, ".tmp-00000000-1-1-00000000-7"])
    assert not (tmp_path / names[0]).exists()


# ---- crashes -----------------------------------------------------------------------------------------------


def test_what_killed_writers_left_is_swept_and_nothing_else(root: Path, make: RecordMaker) -> None:
    """[D074] Twenty writers killed between temp write and rename, and a live one in the same place."""
    with Child("crash", root, 21) as crashed:
        pids = crashed.hear()
        store, everybody = local_store(root), Query("acme", limit=None)
        assert len(left_over(root)) == 21
        created = [f"user-{number}" for number in range(21) if number % 2]
        assert sorted(records.user_id for records, _ in store.list(everybody).items) == sorted(created)

        store.purge(CUTOFFS, limit=100)
        assert len(left_over(root)) == 21, "too young to judge"
        for path in left_over(root):
            age(root / path, ORPHAN_SECONDS + 5)
        store.purge(CUTOFFS, limit=100)
        (live,) = left_over(root)
        assert f"-{pids['live']}-" in live

        # The dead ones' records can be written at once: their locks died with them.
        for number in range(20):
            store.create(make("task-2", user_id=f"user-{number}"))
        crashed.tell("kill the live one")
        assert crashed.hear() == "all dead"
        store.purge({}, limit=100)  # also where retention keeps everything
        assert left_over(root) == []
        assert len(store.list(everybody).items) == 30


def test_temporary_files_of_the_control_directory_are_swept(root: Path, make: RecordMaker) -> None:
    """[D074]"""
    store = local_store(root)
    store.create(make(status=COMPLETED))
    path = root / "local" / ".task_tracker" / ".tmp-00000000-1-1-00000000-0"
    path.write_bytes(b"")
    age(path, FOREIGN_SECONDS + 60)
    store.purge(CUTOFFS, limit=100)
    assert left_over(root) == []


def test_a_swept_writer_that_was_only_slow_is_told(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """[D074] Suspended for a day between write and rename: its write fails, the old record stays."""
    store = local_store(root, ops)
    stored = store.create(make("task-1"))

    def sweep(call: object) -> None:
        if getattr(call, "name", "") in ("replace", "exchange"):
            for found in left_over(root):
                age(root / found, FOREIGN_SECONDS + 60)
            local_store(root).purge(CUTOFFS, limit=100)

    ops.before = sweep
    with pytest.raises(StoreUnavailable, match="No such file"):
        store.update(make.changed(stored.record, message="late"), expected=stored.version)
    assert fetch(store, stored.record.key) == stored.record
    assert ids(store) == ["task-1"]
