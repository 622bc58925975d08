"""Directories of attempts whose process was killed at one of its steps, or one of whose system calls failed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stores.files.ops import FileOps
from task_tracker import transitions
from task_tracker.errors import LeaseLost, StoreUnavailable, TaskNotFound
from task_tracker.records import TaskRecord
from task_tracker.testing import RecordMaker
from tests.files.support import descriptors
from tests.lease.directories import (
    complete,
    directories,
    fail,
    filled,
    markers,
    opened,
    stored_or_none,
    sweep,
    taken_over,
)
from tests.lease.faults.failing import FailingOps
from tests.lease.support import age, claimed, expired_after, open_store


class Crash(BaseException):
    """The process is killed."""


class CrashingOps(FileOps):
    """System calls of a process that is killed before the Nth of those that change something."""

    CHANGES = ("write", "fsync", "mkdir", "link", "replace", "rename", "rmdir", "utime", "unlink", "exchange")

    def __init__(self) -> None:
        self.left = -1
        for name in (*self.CHANGES, "open", "close", "listdir", "lstat", "stat", "read", "fstat"):
            setattr(self, name, self._watched(name, getattr(FileOps, name)))

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **keywords: Any) -> Any:
            makes = name == "open" and bool(arguments[1] & os.O_CREAT)
            if self.left == 0 and name != "close":
                raise Crash
            if self.left > 0 and (name in self.CHANGES or makes):
                self.left -= 1
                if self.left == 0:
                    raise Crash
            return call(*arguments, **keywords)

        return watched


def crashed(root: Path, make: RecordMaker, act: str) -> Iterator[tuple[int, TaskRecord]]:
    """Kill a process at each of its steps in turn; return the step and the record as it was before."""
    for step in range(1, 100):
        place = root / f"{act}-{step}"
        ops = CrashingOps()
        store = open_store(place, ops, durability="edges")
        lease, stored = claimed(store, make, task_id="own")
        if act != "open":
            filled(store, lease)
        record = stored.record
        if act == "delete":
            record = complete(store, lease, record)
        work: dict[str, Callable[[], object]] = {
            "open": partial(filled, store, lease),
            "end": partial(complete, store, lease, record),
            "fail": partial(fail, store, lease, record),
            "delete": partial(store.delete, record.key),
        }
        ops.left = step
        try:
            work[act]()
        except Crash:
            yield step, record
        else:
            assert step > 3, "it has steps at which it can be killed"
            return


@pytest.mark.parametrize("act", ["open", "end", "fail", "delete"])
def test_killed_at_any_step_nothing_is_lost_and_nothing_stays(tmp_path, make, act):
    """[D120] A later process sweeps what no record names, and keeps what one does."""
    outcomes = set()
    for step, record in crashed(tmp_path, make, act):
        root = tmp_path / f"{act}-{step}"
        store = open_store(root)
        sweep(store, root)
        for expired in expired_after(store, root):
            lease, stored = taken_over(store, expired, count=False)
            store.end(lease, transitions.abandoned(stored.record, 9.0))
        for _ in range(2):
            sweep(store, root)
        found = stored_or_none(store, record.key)
        names = [] if found is None or found.effects_dir is None else [Path(str(store.effects_path(found)))]
        assert directories(root) == names, f"killed at step {step}"
        assert markers(root) == [], f"killed at step {step}"
        for path in names:
            assert (path / "index" / "part").read_text() == "built"
        age(root, 1e6)
        assert store.examine() == []
        outcomes.add("none" if found is None else found.status.value)
    assert (
        outcomes
        == {
            "open": {"failed"},
            "end": {"failed", "completed"},
            "fail": {"failed"},
            "delete": {"completed", "none"},
        }[act]
    )


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES], ids=errno.errorcode.get)
@pytest.mark.parametrize("act", ["open", "end", "delete"])
def test_any_call_fails_once_and_the_next_try_works(tmp_path, make, act, code):
    """[D073] A clear error or none, no descriptor left open, no winner without its files."""
    for nth in range(1, 100):
        root = tmp_path / str(nth)
        ops = FailingOps()
        store = open_store(root, ops, durability="edges")
        lease, record, place = opened(store, make, task_id="own")
        if act == "delete":
            record = complete(store, lease, record)
        work: dict[str, Callable[[], object]] = {
            "open": partial(store.effects, lease),
            "end": partial(complete, store, lease, record),
            "delete": partial(store.delete, record.key),
        }
        if act == "open":
            shutil.rmtree(place.parent)  # to be made anew
        before = descriptors()
        ops.fail(code, nth=nth, forever=False)
        try:
            work[act]()
        except StoreUnavailable:
            assert ops.struck
            ops.heal()
            with contextlib.suppress(TaskNotFound, LeaseLost):  # it was done, and only that was not known
                work[act]()
        ops.heal()
        assert not descriptors() - before
        fresh = open_store(root)
        sweep(fresh, root)
        found = stored_or_none(fresh, record.key)
        if act == "open":
            assert place.is_dir()
        elif act == "end":
            assert found is not None
            assert directories(root) == [place] == [Path(str(fresh.effects_path(found)))]
            assert markers(root) == []
        else:
            assert found is None
            assert directories(root) == []
            assert markers(root) == []
        if not ops.struck:
            assert nth > 3
            return
