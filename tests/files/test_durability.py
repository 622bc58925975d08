"""What survives a power cut: the order of system calls, and a disk that forgets what was not synced."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from stores.files.persistent import PersistentTaskStore
from task_tracker.codec import encode_record
from task_tracker.errors import StoreUnavailable
from task_tracker.records import TaskRecord
from task_tracker.testing import RecordMaker
from tests.files.support import (
    COMPLETED,
    DIRECTORY,
    RUNNING,
    Call,
    WatchedOps,
    fetch,
    ids,
    local_store,
    path_of,
)

LEVELS = ("full", "edges", "none")


@dataclasses.dataclass
class Life:
    """A task that was created, started, updated and completed, and the system calls that it took."""

    states: list[TaskRecord]
    ends: list[int]
    """How many calls had been made when each of the four returned."""

    calls: list[Call]
    path: str


def live(root: Path, ops: WatchedOps, make: RecordMaker, durability: str) -> Life:
    store = local_store(root, ops, durability=durability)
    created = make("task-1")
    states = [created, make.changed(created, status=RUNNING)]
    states.append(make.changed(states[-1], message="half"))
    states.append(make.changed(states[-1], status=COMPLETED))
    ends = []
    stored = store.create(created)
    ends.append(len(ops.calls))
    for state in states[1:]:
        stored = store.update(state, expected=stored.version)
        ends.append(len(ops.calls))
    return Life(states, ends, list(ops.calls), str(path_of(root, created.key)))


# ---- the order -------------------------------------------------------------------------------------------


def steps(calls: Sequence[Call], directory: str) -> list[str]:
    """The calls that matter below ``directory``, in words."""
    words = []
    for call in calls:
        if call.name in ("write", "link", "replace", "exchange"):
            words.append(call.name)
        elif call.name == "fsync" and call.path.startswith(directory):
            words.append("fsync directory" if call.path == directory else "fsync file")
    return words


@pytest.mark.parametrize(
    ("durability", "create", "update", "complete"),
    [
        (
            "full",
            ["write", "fsync file", "link", "fsync directory"],
            ["write", "fsync file", "replace", "fsync directory"],
            ["write", "fsync file", "replace", "fsync directory"],
        ),
        (
            "edges",
            ["write", "fsync file", "link", "fsync directory"],
            ["write", "fsync file", "replace"],
            ["write", "fsync file", "replace", "fsync directory"],
        ),
        ("none", ["write", "link"], ["write", "exchange"], ["write", "exchange"]),
    ],
)
def test_order_of_publication(
    root: Path,
    ops: WatchedOps,
    make: RecordMaker,
    durability: str,
    create: list[str],
    update: list[str],
    complete: list[str],
) -> None:
    """[D072] write -> fsync(file) -> rename or link -> fsync(directory), as each level promises."""
    store = local_store(root, ops, durability=durability)
    store.create(make())  # makes the directories and notes the opening of the root
    directory = f"{root}{DIRECTORY}"
    found = []
    record = make()
    ops.forget()
    stored = store.create(record)
    found.append(steps(ops.calls, directory))
    for status in (RUNNING, COMPLETED):
        ops.forget()
        stored = store.update(make.changed(stored.record, status=status), expected=stored.version)
        found.append(steps(ops.calls, directory))
    assert found == [create, update, complete]


@pytest.mark.parametrize("durability", LEVELS)
def test_new_directories_are_synced_into_their_parents(
    root: Path, ops: WatchedOps, make: RecordMaker, durability: str
) -> None:
    """[D072] A record in a directory that a power cut takes away is lost, too. Once per directory and process."""
    below = [f"{root}/local", f"{root}/local/acme", f"{root}/local/acme/tasks"]
    parents = [str(root.parent), str(root), *below]
    store = local_store(root, ops, durability=durability)
    store.create(make())
    linked = ops.names().index("link")
    synced = [call.path for call in ops.calls[:linked] if call.name == "fsync" and ".tmp-" not in call.path]
    assert sorted(synced) == ([] if durability == "none" else sorted(parents))
    ops.forget()
    store.create(make())
    assert ops.count("fsync") == (0 if durability == "none" else 2)


def test_directories_that_others_made_are_synced_all_the_same(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """[D072] Whoever made them may have crashed, or not have come to it yet."""
    local_store(root).create(make())
    local_store(root, ops, durability="edges").create(make())
    synced = {call.path for call in ops.calls if call.name == "fsync"}
    assert {str(root), f"{root}/local", f"{root}/local/acme", f"{root}/local/acme/tasks"} <= synced


def test_a_directory_whose_parent_could_not_be_synced_is_tried_again(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """[D072] It is there by then, which proves nothing."""
    store = local_store(root, ops, durability="edges")
    ops.fail(errno.EMFILE, on=["open"], path=f"{root}/local/acme/tasks")
    with pytest.raises(StoreUnavailable):
        store.create(make())
    assert (root / "local/acme/tasks/alice").is_dir()
    ops.heal()
    ops.forget()
    store.create(make())
    assert f"{root}/local/acme/tasks" in {call.path for call in ops.calls if call.name == "fsync"}


def test_directories_that_had_to_be_made_again_are_synced_again(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """[D072] That the first ones had been is no help."""
    store = local_store(root, ops, durability="edges")
    store.create(make())
    shutil.rmtree(root / "local/acme")
    ops.forget()
    store.create(make())
    synced = {call.path for call in ops.calls if call.name == "fsync"}
    assert {f"{root}/local", f"{root}/local/acme", f"{root}/local/acme/tasks"} <= synced


def test_many_directories_are_not_remembered_for_ever(
    root: Path, ops: WatchedOps, make: RecordMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D096]"""
    monkeypatch.setattr("stores.files.local._MAX_CHECKED", 5)
    store = local_store(root, ops, durability="edges")
    for number in range(20):
        store.create(make(user_id=f"user-{number}"))
    files = store._files
    assert len(files._checked) <= 6  # type: ignore[attr-defined]
    assert len(files._anchored) <= 10  # type: ignore[attr-defined]
    assert len(ids(store, user_id=None)) == 20


def test_a_failed_fsync_is_final_for_that_file(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """[D072] The kernel forgets what it could not write: the file is thrown away, the next try has a new one."""
    store = local_store(root, ops, durability="full")
    stored = store.create(make())
    changed = make.changed(stored.record, status=RUNNING)
    ops.forget()
    ops.fail(errno.EIO, on=["fsync"], path=".tmp-")
    with pytest.raises(StoreUnavailable):
        store.update(changed, expected=stored.version)
    (first,) = [call.path for call in ops.calls if call.name == "fsync"]
    assert ops.count("unlink", path=first) == 1
    ops.forget()
    store.update(changed, expected=stored.version)
    assert first not in {call.path for call in ops.calls}
    assert fetch(store, changed.key) == changed


def test_a_created_record_that_may_not_survive_was_not_created(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """[D072] Its creator is told that it failed and does not know its id: it would stay pending for ever."""
    store = local_store(root, ops, durability="edges")
    store.create(make("first"))
    ops.fail(errno.EIO, on=["fsync"], path="/tasks/alice", nth=2)
    with pytest.raises(StoreUnavailable, match="cannot create"):
        store.create(make("second"))
    ops.heal()
    assert ids(store) == ["first"]


def test_a_written_record_that_may_not_survive_says_so(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """[D072] It is there and seen by all; the message does not say that nothing was changed."""
    store = local_store(root, ops, durability="edges")
    stored = store.create(make())
    ended = make.changed(stored.record, status=COMPLETED)
    ops.fail(errno.EIO, on=["fsync"], nth=2)
    with pytest.raises(
        StoreUnavailable, match="was written, but whether that survives a power cut is not known"
    ):
        store.update(ended, expected=stored.version)
    assert fetch(store, ended.key) == ended


# ---- a disk that forgets -----------------------------------------------------------------------------------


class Disk:
    """What a disk holds after some system calls. Names and data reach it when they are synced, or earlier."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.data: dict[int, bytes] = {}
        self.synced: set[int] = set()
        self.pending: dict[str, list[tuple[str, int | None]]] = {}
        """By directory: names set and names taken away since it was synced last, as pairs."""
        self._numbers = itertools.count()
        self._open: dict[str, int] = {}

    def apply(self, call: Call) -> None:
        if call.name == "mkdir":
            self._set(call.path, next(self._numbers))
        elif call.name == "write":
            if call.path not in self._open:
                self._open[call.path] = number = next(self._numbers)
                self._set(call.path, number)
            number = self._open[call.path]
            self.data[number] = self.data.get(number, b"") + call.data
            self.synced.discard(number)
        elif call.name == "fsync" and call.path in self._open:
            self.synced.add(self._open[call.path])
        elif call.name == "fsync":
            for change in self.pending.pop(call.path, []):
                self._keep(self.names, *change)
        elif call.name in ("link", "replace"):
            assert call.target is not None
            self._set(call.target, self._open[call.path])
            if call.name == "replace":
                self._set(call.path, None)
        elif call.name == "unlink":
            self._set(call.path, None)

    def after_power_cuts(self, path: str) -> Iterator[bytes | None]:
        """Every content that ``path`` may have when the power comes back; None where it is not there."""
        directories = [str(parent) for parent in Path(path).parents]
        changes = [
            change
            for directory in directories
            for change in self.pending.get(directory, ())
            if change[0] == path or change[0] in directories
        ]
        for kept in itertools.product((False, True), repeat=len(changes)):
            names = dict(self.names)
            for (changed, number), keep in zip(changes, kept, strict=True):
                if keep:
                    self._keep(names, changed, number)
            made = {changed for changed, number in changes if number is not None}
            if path not in names or any(parent in made and parent not in names for parent in directories):
                yield None
                continue
            data = self.data[names[path]]
            yield data
            if names[path] not in self.synced:
                yield from (b"", data[: len(data) // 2])

    def _set(self, path: str, number: int | None) -> None:
        self.pending.setdefault(str(Path(path).parent), []).append((path, number))

    @staticmethod
    def _keep(names: dict[str, int], path: str, number: int | None) -> None:
        if number is None:
            names.pop(path, None)
        else:
            names[path] = number


def outcomes(life: Life) -> Iterator[tuple[int, set[bytes | None]]]:
    """For a power cut after each system call: how many of the four had returned, and what may be found."""
    disk = Disk()
    for number, call in enumerate(life.calls, start=1):
        disk.apply(call)
        yield sum(end <= number for end in life.ends), set(disk.after_power_cuts(life.path))


@pytest.mark.parametrize("durability", ["full", "edges"])
def test_after_a_power_cut_a_record_is_whole_and_no_older_than_promised(
    root: Path, ops: WatchedOps, make: RecordMaker, durability: str
) -> None:
    """[D072] At any instant: old or new, never empty or half; what a level promises to keep is kept."""
    life = live(root, ops, make, durability)
    contents: list[bytes | None] = [None, *(encode_record(state) for state in life.states)]
    promised = {"full": [0, 1, 2, 3, 4], "edges": [0, 1, 1, 1, 4]}[durability]
    seen = set()
    for returned, found in outcomes(life):
        assert found <= set(contents[promised[returned] : returned + 2]), (returned, found)
        seen |= found
    assert seen == set(contents)


def test_without_durability_a_power_cut_may_leave_anything(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """[D072] That is what the other levels are for; and that this simulation would notice."""
    life = live(root, ops, make, "none")
    assert ops.count("fsync") == 0
    assert b"" in set().union(*(found for _, found in outcomes(life)))


def test_without_durability_a_crash_of_the_process_loses_nothing(root: Path, make: RecordMaker) -> None:
    """[D072] `none` survives the process: another one sees whole records only, old or new."""
    ops = WatchedOps()
    expected: set[bytes] = set()
    found: set[bytes] = set()
    reader = PersistentTaskStore(root)
    record = make("task-1")

    def look(_: Call) -> None:
        if reader._files.exists(DIRECTORY, "task-1.json"):
            found.add(reader._files.read(DIRECTORY, "task-1.json").data)

    ops.before = ops.after = look
    life = live(root, ops, make, "none")
    expected.update(encode_record(state) for state in life.states)
    assert found == expected
    assert record.task_id == life.states[0].task_id
