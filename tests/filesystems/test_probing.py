"""What is found out about a file system, whatever its protocol is called."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from stores.files import probing
from stores.files.filesystem import FilesystemFiles
from stores.files.probing import Findings, Limits
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import SettingsError, StoreUnavailable
from task_tracker.store import Capabilities
from tests.files.support import StepClock
from tests.filesystems.odd import odd
from tests.filesystems.support import CONTROL, found_on, watched


def files_on(root: Path, manners: str = "", limits: Limits | None = None) -> FilesystemFiles:
    return FilesystemFiles.of(odd(root, manners), SYSTEM_CLOCK, limits=limits or Limits(rounds=4, racers=3))


def test_local_files_are_moved_and_opened_as_new(root: Path) -> None:
    files = files_on(root)
    assert (files.found.moves, files.found.exclusive) == (True, "open")
    assert files.atomic
    assert files.capabilities == Capabilities(durable=True, shared=True, exclusive_create=True)


def test_where_mv_is_missing_a_write_has_to_do(root: Path) -> None:
    assert not found_on(odd(root, "no mv")).moves


def test_a_reader_that_saw_half_a_file_is_believed(root: Path) -> None:
    """Neither a copying mv nor a write in place is publication: readers are told so."""
    files = files_on(root, "torn, mv copies")
    assert (files.found.moves, files.found.puts) == (False, False)
    assert not files.atomic


def test_a_move_that_keeps_its_source_is_none(root: Path) -> None:
    assert not found_on(odd(root, "mv keeps")).moves


def test_a_move_that_refuses_is_a_creation(root: Path) -> None:
    """As AGFS is with its memory file system: exclusive and whole, but nothing replaces."""
    found = found_on(odd(root, "mv refuses, torn"))
    assert found == Findings(moves=False, puts=False, exclusive="move", exclusive_whole=True)


def test_a_mode_that_is_ignored_is_found_out(root: Path) -> None:
    """[D090] Whatever the protocol is called: it overwrote, so it is not exclusive, and that is said."""
    files = files_on(root, "no mode")
    assert files.found.exclusive is None
    assert not files.capabilities.exclusive_create


def test_looking_first_and_writing_then_is_found_out(root: Path) -> None:
    """[D090] fsspec's own pipe_file(mode="create") has several winners; opening as new has one."""
    fs = DirFileSystem(path=str(root), fs=LocalFileSystem())
    found = found_on(fs, limits=Limits(rounds=30, racers=8))
    assert (found.exclusive, found.exclusive_whole) == ("open", False)


@pytest.mark.parametrize("manners", ["caches files", "late lists"])
def test_old_contents_are_no_place_for_records(root: Path, manners: str) -> None:
    """[D089] A cache of files in front of others' changes cannot be switched off from here."""
    with pytest.raises(SettingsError, match="does not show what was just written"):
        found_on(odd(root, manners))


def test_nothing_is_left_of_the_trial(root: Path) -> None:
    found_on(odd(root))
    left = sorted(path.name for path in root.rglob("*") if path.is_file())
    assert left == [probing.MARK]


def test_a_root_that_cannot_be_written_to(root: Path) -> None:
    with pytest.raises(StoreUnavailable, match="Permission denied"):
        found_on(odd(root, "read-only"))


# ---- what is remembered --------------------------------------------------------------------------------


def moves_while(root: Path, manners: str = "", limits: Limits | None = None) -> int:
    moves = 0

    def count(verb: str, path: str, call: object) -> object:
        nonlocal moves
        moves += verb == "move"
        assert callable(call)
        return call()

    with watched(count):
        files_on(root, manners, limits)
    return moves


def test_the_long_trial_is_made_once(root: Path) -> None:
    long = Limits(rounds=40, racers=2)
    assert moves_while(root, limits=long) > 40
    assert moves_while(root, limits=long) < 10
    mark = json.loads((root / CONTROL.strip("/") / probing.MARK).read_bytes())
    assert mark["version"] == probing.VERSION
    assert mark["moves"] is True


@pytest.mark.parametrize(
    "mark",
    [b"", b"{", b"[]", b'{"version": 0}', b'{"version": 1, "kind": "another"}', b'{"version": 1, "x": 1}'],
    ids=["empty", "half", "array", "old", "other kind", "other keys"],
)
def test_a_mark_that_says_nothing_is_made_anew(root: Path, mark: bytes) -> None:
    files_on(root)
    path = root / CONTROL.strip("/") / probing.MARK
    whole = path.read_bytes()
    path.write_bytes(mark)
    assert files_on(root).found.moves
    assert json.loads(path.read_bytes()) == json.loads(whole)


def test_a_mark_is_not_believed_against_what_is_seen(root: Path) -> None:
    """A root that was copied or mounted otherwise keeps its mark and loses what it says."""
    assert files_on(root).found.moves
    for _ in range(2):
        found = files_on(root, "mv keeps, no mode").found
        # Whether a plain write was seen half is a matter of luck on a fast disk.
        assert (found.moves, found.exclusive) == (False, None)


def test_what_takes_too_long_is_not_promised(root: Path) -> None:
    found = files_on(root, limits=Limits(rounds=4, racers=2, seconds=0.0)).found
    assert found == Findings(moves=False, puts=False, exclusive=None, exclusive_whole=False)


def test_instances_that_cannot_be_built_twice(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = odd(root)
    fs.storage_options = {"unknown": os.devnull, "fs": None, "path": None, "target_protocol": "no such"}
    assert found_on(fs).moves


def test_far_away_some_rounds_are_enough(root: Path) -> None:
    """Of replacing, where the reader looks all the time; not of racing, where it is about the moment."""
    clock = StepClock()

    def wait(verb: str, path: str, call: Any) -> Any:
        if verb == "move":
            clock.advance(0.3)
        return call()

    with watched(wait):
        found = FilesystemFiles.of(odd(root), clock, limits=Limits(rounds=200, racers=2)).found
        assert found.moves
        slow = FilesystemFiles.of(odd(root, "mv refuses"), clock, limits=Limits(rounds=200, racers=2)).found
        assert slow.exclusive != "move"


def test_writing_in_place_is_said_aloud(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    files_on(root)
    assert caplog.records == []
    files_on(root, "torn, mv copies")
    assert [vars(record)["event"] for record in caplog.records] == ["filesystem_not_atomic"]
