"""One writer of a user's directory at a time: threads, processes, and what becomes of the lock when they die."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest
from filelock import lock_descriptor

from stores.files import locks
from task_tracker.errors import StoreUnavailable, TaskExists, VersionConflict
from task_tracker.store import Stored
from task_tracker.testing import RecordMaker
from tests.files.support import (
    DIRECTORY,
    PATIENCE,
    PROJECT,
    Child,
    StepClock,
    WatchedOps,
    descriptors,
    fetch,
    ids,
    in_thread,
    local_files,
    local_store,
)


def test_waiting_in_vain_names_the_process_that_holds_the_lock(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """Ten seconds, then StoreUnavailable with the pid; nothing was written; afterwards all goes on."""
    clock = StepClock()
    ops.on_pause = lambda: clock.advance(ops.pauses[-1])
    store = local_store(root, ops, clock=clock)
    with Child("hold", root) as holder:
        assert holder.hear() == "held"
        with pytest.raises(StoreUnavailable, match=rf"was held by process {holder.pid} for 10.0 seconds"):
            store.create(make("task-1"))
        assert 10 <= sum(ops.pauses) < 10.1
        assert max(ops.pauses) <= 0.02
        assert ids(store) == []
        holder.tell("go on")
        assert holder.hear() == "released"
        store.create(make("task-1"))
        assert ids(store) == ["task-1"]


def test_a_lock_dies_with_its_holder(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """Killed while it holds the lock, by SIGKILL: whoever waits gets it."""
    store = local_store(root, ops)
    with Child("hold", root) as holder:
        assert holder.hear() == "held"
        ops.on_pause = holder.kill  # as soon as somebody waits
        store.create(make("task-1"))
        assert len(ops.pauses) >= 1
    assert ids(store) == ["task-1"]


def test_readers_do_not_wait_for_writers(root: Path, make: RecordMaker) -> None:
    """[D123] get, list and has_active look at whole records and need no lock."""
    store = local_store(root, lock_timeout_seconds=0.01)
    record = make("task-1")
    store.create(record)
    with Child("hold", root) as holder:
        assert holder.hear() == "held"
        assert fetch(store, record.key) == record
        assert ids(store) == ["task-1"]
        assert store.create_if_no_active(make()) is None
        with pytest.raises(StoreUnavailable, match="was held by process"):
            store.update(record, expected=None)
        store.create(make(user_id="bob"))  # another user's directory


def test_a_thread_that_waits_in_vain_is_told(root: Path) -> None:
    files = local_files(root, lock_timeout_seconds=0.01)

    def write() -> str:
        with files.exclusively(DIRECTORY):
            return "two writers at once"

    with files.exclusively(DIRECTORY, make=True):
        with in_thread(write) as answers:
            pass
        assert isinstance(answers[0], StoreUnavailable)
        assert f"was held by process {os.getpid()} for 0.01 seconds" in str(answers[0])


@pytest.mark.parametrize("note", [b"", b"not a pid\n", b"\xff\xfe", b"9" * 32])
def test_a_holder_that_left_no_pid_is_another_process(root: Path, ops: WatchedOps, note: bytes) -> None:
    """The note is a help, not a part of the lock."""
    clock = StepClock()
    ops.on_pause = lambda: clock.advance(ops.pauses[-1])
    files = local_files(root, ops, clock)
    with Child("hold", root) as holder:
        assert holder.hear() == "held"
        (root / DIRECTORY.lstrip("/") / ".lock").write_bytes(note)
        with pytest.raises(StoreUnavailable, match="was held by"), files.exclusively(DIRECTORY):
            pass


def test_where_the_pid_cannot_be_noted(root: Path, ops: WatchedOps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows locks the very bytes: the lock works, and its holder is another process."""
    monkeypatch.setattr(locks, "_CAN_NOTE", False)
    clock = StepClock()
    ops.on_pause = lambda: clock.advance(ops.pauses[-1])
    files = local_files(root, ops, clock)
    with files.exclusively(DIRECTORY, make=True):
        assert (root / DIRECTORY.lstrip("/") / ".lock").read_bytes() == b""
    with Child("hold", root) as holder:
        assert holder.hear() == "held"
        with (
            pytest.raises(StoreUnavailable, match="was held by another process"),
            files.exclusively(DIRECTORY),
        ):
            pass


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EIO])
def test_without_locks_nothing_is_written(
    root: Path, make: RecordMaker, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """[D102] A mount that has none: StoreUnavailable, never unlocked, and no descriptor is left."""
    store = local_store(root)
    store.create(make("task-1"))
    before = descriptors()
    monkeypatch.setattr(locks, "lock_descriptor", mock.Mock(side_effect=OSError(code, os.strerror(code))))
    for write in (
        lambda: store.create(make()),
        lambda: store.create_if_no_active(make(resource_id="other")),
        lambda: store.update(make("task-1"), expected=None),
        lambda: store.delete(make.key("task-1")),
        lambda: store.delete_owner("acme", "alice"),
    ):
        with pytest.raises(StoreUnavailable, match=os.strerror(code)):
            write()
    assert ids(store) == ["task-1"]
    assert not descriptors() - before


def test_a_lock_that_cannot_be_opened(root: Path, make: RecordMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """[D081] EMFILE and the like."""
    store = local_store(root)
    store.create(make("task-1"))
    real = os.open

    def full(path: str, *rest: int) -> int:
        if path.endswith(".lock"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *rest)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(StoreUnavailable, match="Too many open files"):
        store.create(make())


def test_a_full_disk_does_not_keep_the_lock_from_being_taken(
    root: Path, make: RecordMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D073] The pid cannot be noted; records that shrink or are deleted can still be written."""
    monkeypatch.setattr(os, "pwrite", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    store = local_store(root)
    store.create(make("task-1"))
    assert ids(store) == ["task-1"]


# ---- the lock file is taken away --------------------------------------------------------------------------


def test_a_directory_removed_behind_our_back_is_made_again(root: Path, make: RecordMaker) -> None:
    """An operator removes an account; the next task of it starts anew, and nothing old comes back."""
    store = local_store(root, durability="edges")
    store.create(make("task-1"))
    assert ids(store) == ["task-1"]
    shutil.rmtree(root / "local" / "acme")
    assert ids(store) == []
    store.create(make("task-2"))
    assert ids(store) == ["task-2"]


def test_a_lock_that_was_removed_while_we_waited_is_not_a_lock(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """Two would write at once: one with the removed file, one with the file that took its place."""
    store = local_store(root, ops)
    lock = root / DIRECTORY.lstrip("/") / ".lock"
    with Child("hold", root) as first:
        assert first.hear() == "held"
        entered = threading.Event()

        def replace_the_lock() -> None:
            if not entered.is_set():
                entered.set()
                lock.unlink()
                first.tell("go on")
                assert first.hear() == "released"

        ops.on_pause = replace_the_lock
        store.create(make("task-1"))
    with lock.open("rb") as handle:
        assert handle.read().split() == [str(os.getpid()).encode()]
    assert ids(store) == ["task-1"]


def test_a_directory_moved_away_while_we_waited(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """An operator puts a user's directory aside: nothing is written into it, a new one is made."""
    store = local_store(root, ops)
    directory = root / DIRECTORY.lstrip("/")
    with Child("hold", root) as first:
        assert first.hear() == "held"

        def move_away() -> None:
            if directory.exists():
                directory.rename(root / "aside")
                first.tell("go on")
                assert first.hear() == "released"

        ops.on_pause = move_away
        store.create(make("task-1"))
    assert [path.name for path in (root / "aside").iterdir()] == [".lock"]
    assert ids(local_store(root)) == ["task-1"]


def test_a_lock_that_is_always_removed_is_given_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound, and no descriptor is left."""
    files = local_files(root)
    with files.exclusively(DIRECTORY, make=True):
        pass
    before = descriptors()

    def lock_and_lose(handle: int, *, blocking: bool) -> bool:
        (root / DIRECTORY.lstrip("/") / ".lock").unlink()
        return lock_descriptor(handle, blocking=blocking)

    monkeypatch.setattr(locks, "lock_descriptor", lock_and_lose)
    with pytest.raises(StoreUnavailable, match="removed again and again"), files.exclusively(DIRECTORY):
        pass
    assert not descriptors() - before


def test_nothing_is_made_for_the_asking(root: Path, make: RecordMaker) -> None:
    """[D083] Calls on tasks and users that never were leave no directories behind."""
    store = local_store(root)
    store.create(make("task-1"))
    for write in (
        lambda: store.update(make("x", user_id="nobody"), expected=None),
        lambda: store.delete(make("x", account_id="nowhere").key),
    ):
        with pytest.raises(KeyError, match="no task x"):
            write()
    assert store.delete_owner("nowhere", "nobody") == 0
    assert {path.name for path in root.rglob("*")} == {
        *("local", "acme", "tasks", "alice", "task-1.json", ".lock", ".task_tracker", "opened"),
    }


# ---- many at once -----------------------------------------------------------------------------------------


def test_every_thread_has_its_turn(root: Path, make: RecordMaker) -> None:
    """Eight threads write to one user's tasks: nobody is lost, nobody waits for ever, each update lands once."""
    store = local_store(root)
    first = store.create(make("task-1", revision=0))
    landed: list[int] = []

    def write() -> None:
        for _ in range(20):
            while True:
                stored = store.get(first.record.key)
                assert isinstance(stored, Stored)
                revision = (stored.record.revision or 0) + 1
                try:
                    store.update(stored.record.changed(revision=revision), expected=stored.version)
                except VersionConflict:
                    continue
                landed.append(revision)
                break

    threads = [threading.Thread(target=write, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(landed) == list(range(1, 161))


def test_threads_creating_one_id_have_one_winner(root: Path, make: RecordMaker) -> None:
    stores = [local_store(root) for _ in range(8)]
    records = [make("task-1", message=str(number)) for number in range(8)]
    answers: list[object] = [None] * 8
    start = threading.Barrier(8)

    def write(number: int) -> None:
        start.wait(PATIENCE)
        try:
            answers[number] = stores[number].create(records[number])
        except TaskExists as error:
            answers[number] = error

    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    (winner,) = [answer for answer in answers if isinstance(answer, Stored)]
    assert fetch(stores[0], winner.record.key) == winner.record


# ---- fork -------------------------------------------------------------------------------------------------

FORK_WHILE_HOLDING = """
import os, pathlib, sys
from stores.files.local import LocalFiles
from task_tracker.clock import SYSTEM_CLOCK
from tests.files.support import DIRECTORY
files = LocalFiles(sys.argv[1], SYSTEM_CLOCK, durability="none", lock_timeout_seconds=30)
reading, writing = os.pipe()
with files.exclusively(DIRECTORY, make=True):
    child = os.fork()
    if not child:
        os.read(reading, 1)  # has the lock's descriptor, and lives on
        os._exit(0)
other = LocalFiles(sys.argv[1], SYSTEM_CLOCK, durability="none", lock_timeout_seconds=1)
with other.exclusively(DIRECTORY):
    os.write(writing, b"!")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

FORK_THEN_USE = """
import os, sys
from pathlib import Path
from task_tracker.testing import RecordMaker
from tests.files.support import ids, local_store
store = local_store(Path(sys.argv[1]))
make = RecordMaker()
store.create(make("parent"))
child = os.fork()
if not child:
    store.create(make("child"))
    os._exit(len(ids(store)))
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
store.create(make("later"))
print(status, *sorted(ids(store)))
"""


@pytest.mark.parametrize(
    ("program", "expected"), [(FORK_WHILE_HOLDING, "0"), (FORK_THEN_USE, "2 child later parent")]
)
def test_fork(root: Path, program: str, expected: str) -> None:
    """[D091] A child forked meanwhile does not keep the lock; a store made before the fork works in both."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(root)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == (expected, "")


def test_the_lock_is_released_when_the_writer_raises(root: Path) -> None:
    files = local_files(root, lock_timeout_seconds=0.01)
    with pytest.raises(KeyboardInterrupt), files.exclusively(DIRECTORY, make=True):
        raise KeyboardInterrupt
    with files.exclusively(DIRECTORY):
        pass
