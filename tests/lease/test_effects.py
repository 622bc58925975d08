"""Directories of attempts: the winner's is named and kept, all others are swept, whatever stops in between."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stores.files.layout import is_reserved
from stores.files.lease import effects as module
from stores.files.lease.effects import Standing, directory_name, standing
from stores.files.lease.names import EntryName
from stores.files.lease.ownership import EntryLease
from stores.files.lease.store import LeaseTaskStore
from stores.files.ops import FileOps
from stores.files.persistent import PersistentTaskStore
from task_tracker import CapabilityMissing, transitions
from task_tracker.errors import CorruptRecord, LeaseLost, StoreUnavailable, TaskNotFound
from task_tracker.records import Attempt, TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Expired, HasEffects, Lease, Query, Stored
from task_tracker.testing import RecordMaker
from task_tracker.testing.answers import claimed_by, fetch, listed
from tests.files.support import descriptors
from tests.lease.faults.failing import FailingOps
from tests.lease.support import age, claimed, control, expired_after, open_store, ops_with

NEVER = 10.0**12


def opened(store: LeaseTaskStore, make: RecordMaker, **fields: object) -> tuple[EntryLease, TaskRecord, Path]:
    """Claim a task and put a file into its attempt's directory."""
    lease, stored = claimed(store, make, **fields)
    return lease, stored.record, filled(store, lease)


def filled(store: LeaseTaskStore, lease: Lease) -> Path:
    place = Path(store.effects(lease).path)
    (place / "index").mkdir()
    (place / "index" / "part").write_text("built")
    return place


def complete(store: LeaseTaskStore, lease: Lease, record: TaskRecord) -> TaskRecord:
    """End a task as a worker does that has asked for the directory."""
    done = transitions.completed(record, 9.0, b"1").changed(effects_dir=store.effects(lease).name)
    return store.end(lease, done).record


def fail(store: LeaseTaskStore, lease: Lease, record: TaskRecord) -> None:
    store.end(lease, transitions.failed(record, 9.0, "no"))


def completed(store: LeaseTaskStore, make: RecordMaker, **fields: object) -> tuple[TaskRecord, Path]:
    lease, record, place = opened(store, make, **fields)
    return complete(store, lease, record), place


def directories(root: Path) -> list[Path]:
    return sorted(path for path in (control(root) / "effects").glob("??/*"))


def markers(root: Path) -> list[str]:
    return sorted(path.name for path in (control(root) / "effects" / "open").glob("*"))


def sweep(store: LeaseTaskStore, root: Path) -> int:
    """Let a lease term pass, and make a pass."""
    age(root, 100)
    return store.recover()


def taken_over(store: LeaseTaskStore, expired: Expired, *, count: bool = True) -> tuple[EntryLease, Stored]:
    taken = store.take_over(expired, holder="other", count_attempt=count)
    assert taken is not None
    assert isinstance(taken[0], EntryLease)
    return taken[0], taken[1]


class TestNames:
    def test_the_store_offers_it_and_others_do_not(self, tmp_path, store):
        assert isinstance(store, HasEffects)
        assert not isinstance(PersistentTaskStore(tmp_path / "x"), HasEffects)

    def test_name_is_relative_to_the_root_and_hidden_with_the_control_directory(self, tmp_path, store, make):
        lease, _ = claimed(store, make)
        place = store.effects(lease)
        assert place.path == str(tmp_path / place.name)
        assert Path(place.path).is_dir()
        assert is_reserved(place.name.removeprefix("local"))
        assert store.effects(lease) == place, "the same each time"

    def test_it_reveals_neither_token_nor_owner(self, store, make):
        lease, stored = claimed(store, make, task_id="secret-task")
        record = complete(store, lease, stored.record)
        assert record.effects_dir is not None
        for secret in (lease.token, str(stored.record.creation), "acme", "alice", "secret-task"):
            assert secret not in record.effects_dir
        assert record.to_dict()["effects_dir"] == record.effects_dir

    def test_each_claim_of_each_life_has_its_own(self, tmp_path, store, make):
        lease, record, _ = opened(store, make, task_id="own")
        store.release(lease, transitions.released(record, 5.0))
        again, stored = claimed_by(store, record.key)
        filled(store, again)
        complete(store, again, stored.record)
        store.delete(record.key)
        _, place = completed(store, make, task_id="own")
        assert len(directories(tmp_path)) == 2, (
            "of the first attempt, which nobody has swept yet, and of the last life"
        )
        assert place.name.partition("-")[0] == directories(tmp_path)[0].name.partition("-")[0]
        assert len({directory_name(EntryName.of(record, n, t)) for n in (1, 2) for t in "ab"}) == 4

    @pytest.mark.parametrize(
        ("account_id", "user_id", "task_id"),
        [
            ("acme", "alice", "../../etc/passwd"),
            ("acme", "agent:main", "a/b\\c*?"),
            ("..", ".", "%2e"),
            ("acme", "alice", "open"),
            ("acme", "alice", "äöü" * 11),
            ("a" * 200, "u" * 200, "t" * 200),
        ],
    )
    def test_odd_and_long_ids(self, tmp_path, store, make, account_id, user_id, task_id):
        """[D078] One name below the root, and nobody takes it for a task."""
        fields = {"account_id": account_id, "user_id": user_id}
        record = make(task_id, **fields)
        store.create(record)
        claim = store.claim(record.key, holder="h")
        assert claim is not None
        place = filled(store, claim[0])
        assert place.parent.parent == control(tmp_path) / "effects"
        assert place.name.isascii()
        assert len(place.name) < 80
        assert [found.task_id for found in listed(store, Query(account_id))] == [task_id]
        assert store.examine() == []
        age(tmp_path, 100)
        assert store.recover() == 0
        done = complete(store, claim[0], claim[1].record)
        assert store.effects_path(done) == str(place)
        age(tmp_path, 100)
        assert store.examine() == []
        assert (place / "index" / "part").read_text() == "built"
        assert PersistentTaskStore(tmp_path).list(Query(account_id)).items[0].record.task_id == task_id
        store.delete(record.key)
        assert directories(tmp_path) == []
        assert markers(tmp_path) == []

    @pytest.mark.parametrize("task_id", ["short", "t" * 200])
    def test_loser_with_a_long_id_is_swept(self, tmp_path, store, make, task_id):
        lease, record, _ = opened(store, make, task_id=task_id, user_id="u" * 200)
        store.end(lease, transitions.failed(record, 9.0, "no"))
        assert sweep(store, tmp_path) == 1
        assert directories(tmp_path) == []


class TestWinner:
    def test_it_is_named_and_nobody_looks_at_it_again(self, tmp_path, store, make):
        record, place = completed(store, make)
        assert markers(tmp_path) == []
        assert store.effects_path(record) == str(place)
        assert sweep(store, tmp_path) == 0
        assert store.examine(fix=True) == []
        assert (place / "index" / "part").read_text() == "built"

    def test_a_moved_root_stays_valid(self, tmp_path, make):
        record, _ = completed(open_store(tmp_path / "here"), make)
        (tmp_path / "here" / "local").rename(tmp_path / "there")
        moved = open_store(tmp_path / "there", prefix="")
        path = moved.effects_path(
            fetch(moved, record.key).record.changed(attempt=record.attempt, creation=record.creation)
        )
        assert path is not None
        assert path.startswith(str(tmp_path / "there"))
        assert Path(path, "index", "part").read_text() == "built"
        age_of(tmp_path / "there")
        moved.recover()
        assert moved.examine(fix=True) == []
        assert Path(path, "index", "part").read_text() == "built"

    def test_passes_read_no_records_of_winners(self, tmp_path, make):
        """They cost nothing that grows with the number of records."""
        store = open_store(tmp_path)
        for _ in range(20):
            completed(store, make)
        calls: list[str] = []

        def watched(path: Any, *arguments: Any, **keywords: Any) -> int:
            calls.append(str(path))
            return os.open(path, *arguments, **keywords)

        watcher = open_store(tmp_path, ops_with(open=watched))
        watcher.recover()
        calls.clear()
        assert sweep(watcher, tmp_path) == 0
        assert not [path for path in calls if path.endswith(".json") or "/effects/" in path]

    def test_marker_that_a_crash_left_goes_and_the_directory_stays(self, tmp_path, store, make):
        lease, record, place = opened(store, make)
        (marker,) = markers(tmp_path)
        complete(store, lease, record)
        (control(tmp_path) / "effects" / "open" / marker).write_bytes(json.dumps(list(record.key)).encode())
        assert sweep(store, tmp_path) == 1
        assert markers(tmp_path) == []
        assert (place / "index" / "part").exists()

    def test_its_name_survives_a_power_cut_before_it_is_named(self, tmp_path, make):
        """With durability above none; what is in it is for the handler to sync."""
        calls: list[str] = []
        paths: dict[int, str] = {}

        def opening(path: Any, *arguments: Any, **keywords: Any) -> int:
            handle = os.open(path, *arguments, **keywords)
            paths[handle] = str(path)
            return handle

        def fsync(handle: int) -> None:
            calls.append(f"fsync {paths[handle]}")

        def replace(source: str, target: str) -> None:
            calls.append(f"replace {target}")
            os.replace(source, target)

        for durability in ("edges", "none"):
            ops = ops_with(open=opening, fsync=fsync, replace=replace)
            store = open_store(tmp_path / durability, ops, durability=durability)
            lease, record, place = opened(store, make)
            calls.clear()
            complete(store, lease, record)
            synced = f"fsync {place.parent}"
            assert (synced in calls) is (durability == "edges")
            if durability == "edges":
                published = next(
                    call for call in calls if call.startswith("replace") and call.endswith(".json")
                )
                assert calls.index(synced) < calls.index(published)


class TestPathOfARecord:
    @pytest.mark.parametrize("status", ["pending", "running", "failed", "cancelled"])
    def test_only_of_completed_ones(self, store, make, status):
        record, _ = completed(store, make)
        assert store.effects_path(record.changed(status=TaskStatus.parse(status))) is None

    def test_none_if_none_was_asked_for(self, store, make):
        lease, stored = claimed(store, make)
        done = store.end(lease, transitions.completed(stored.record, 9.0, b"1")).record
        assert store.effects_path(done) is None

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "/etc",
            "../../../etc",
            "local/../../etc",
            "effects/7",
            "local/acme/tasks/alice",
            "a\0b",
            ".",
            "..",
        ],
    )
    def test_names_that_lead_elsewhere_are_refused(self, store, make, name):
        record, _ = completed(store, make)
        with pytest.raises(CorruptRecord, match="the attempt that completed it never had here"):
            store.effects_path(record.changed(effects_dir=name))

    def test_another_tasks_directory_is_refused(self, store, make):
        (one, _), (other, _) = completed(store, make), completed(store, make)
        with pytest.raises(CorruptRecord) as refused:
            store.effects_path(one.changed(effects_dir=other.effects_dir))
        assert refused.value.path.endswith(f"{one.task_id}.json")
        with pytest.raises(CorruptRecord):
            store.effects_path(one.changed(attempt=None))


class TestLosers:
    """[D057] What did not complete the task is nobody's."""

    def test_held_for_long_it_is_never_touched(self, tmp_path, store, make):
        lease, record, place = opened(store, make)
        assert sweep(store, tmp_path) == 0
        assert store.examine(fix=True) == []
        assert complete(store, lease, record).effects_dir is not None
        assert (place / "index" / "part").exists()

    def test_expired_but_not_taken_over_it_may_still_win(self, tmp_path, store, make):
        lease, record, place = opened(store, make)
        assert len(expired_after(store, tmp_path)) == 1
        assert sweep(store, tmp_path) == 0
        assert store.examine(fix=True) == []
        complete(store, lease, record)
        assert (place / "index" / "part").exists()

    def test_held_it_may_win_although_somebody_removed_the_record(self, tmp_path, store, make):
        """Its write puts the record back."""
        lease, record, place = opened(store, make)
        (tmp_path / "local/acme/tasks/alice" / f"{record.task_id}.json").unlink()
        assert sweep(store, tmp_path) == 0
        done = complete(store, lease, record)
        assert store.effects_path(done) == str(place)
        assert (place / "index" / "part").exists()

    def test_taken_over_by_an_attempt_it_is_swept(self, tmp_path, store, make):
        lease, _, place = opened(store, make)
        other, stored = taken_over(store, *expired_after(store, tmp_path))
        winner = filled(store, other)
        assert sweep(store, tmp_path) == 1
        assert not place.exists()
        assert (winner / "index" / "part").exists()
        with pytest.raises(LeaseLost):
            store.effects(lease)
        done = complete(store, other, stored.record)
        assert store.effects_path(done) == str(winner)
        assert sweep(store, tmp_path) == 0
        assert directories(tmp_path) == [winner]

    def test_taken_over_to_be_settled_it_is_swept_once_that_is_done(self, tmp_path, store, make):
        _, _, place = opened(store, make)
        other, stored = taken_over(store, *expired_after(store, tmp_path), count=False)
        assert sweep(store, tmp_path) == 0, "the record still shows its claim"
        assert place.exists()
        store.end(other, transitions.abandoned(stored.record, 9.0))
        assert sweep(store, tmp_path) == 1
        assert directories(tmp_path) == []

    @pytest.mark.parametrize("how", ["failed", "cancelled", "completed"])
    def test_an_ending_that_does_not_name_it(self, tmp_path, store, make, how):
        lease, record, place = opened(store, make)
        ended = {
            "failed": lambda: transitions.failed(record, 9.0, "no"),
            "cancelled": lambda: transitions.cancelled(record, 9.0),
            "completed": lambda: transitions.completed(record, 9.0, b"1"),
        }[how]()
        store.end(lease, ended)
        assert place.exists(), "its handler may be about to end"
        assert store.recover() == 0
        assert sweep(store, tmp_path) == 1
        assert directories(tmp_path) == []
        assert markers(tmp_path) == []

    def test_given_back_it_is_swept(self, tmp_path, store, make):
        lease, record, _ = opened(store, make)
        store.release(lease, transitions.released(record, 9.0))
        with pytest.raises(LeaseLost):
            store.effects(lease)
        assert sweep(store, tmp_path) == 1
        assert directories(tmp_path) == []

    def test_purge_sweeps_too(self, tmp_path, store, make):
        lease, record, _ = opened(store, make)
        store.end(lease, transitions.failed(record, 9.0, "no"))
        age(tmp_path, 100)
        store.purge({}, limit=10)
        assert directories(tmp_path) == []

    def test_fenced_off_in_the_middle_it_leaves_nothing(self, tmp_path, make):
        """Suspended until the sweep is over, then it makes its directory: there is no marker to find that by."""
        store = open_store(tmp_path)

        def mkdir(path: str, *arguments: Any) -> None:
            if "/effects/" in path and Path(path).name.count("-") >= 2:
                taken_over(store, *expired_after(store, tmp_path))
                assert sweep(store, tmp_path) == 1
            os.mkdir(path, *arguments)

        slow = open_store(tmp_path, ops_with(mkdir=mkdir))
        lease, _ = claimed(slow, make)
        with pytest.raises(LeaseLost):
            slow.effects(lease)
        assert lease.lost.is_set()
        assert directories(tmp_path) == []
        assert markers(tmp_path) == []

    def test_lease_that_cannot_be_seen_is_not_lost(self, tmp_path, store, make):
        lease, _ = claimed(store, make)
        hidden = control(tmp_path).with_name("hidden")
        control(tmp_path).rename(hidden)
        with pytest.raises(StoreUnavailable):
            store.effects(lease)
        hidden.rename(control(tmp_path))
        assert not lease.lost.is_set()
        assert Path(store.effects(lease).path).is_dir()

    def test_what_it_writes_after_the_sweep_harms_nobody(self, tmp_path, store, make):
        """It makes its directory anew. No record names it, and doctor finds it."""
        _, _, place = opened(store, make)
        other, stored = taken_over(store, *expired_after(store, tmp_path))
        winner = filled(store, other)
        done = complete(store, other, stored.record)
        sweep(store, tmp_path)
        with pytest.raises(FileNotFoundError):
            (place / "late").write_text("x")
        (place / "sub").mkdir(parents=True)
        (place / "sub" / "late").write_text("x")
        assert store.effects_path(fetched(store, done.key)) == str(winner)
        assert sweep(store, tmp_path) == 0
        assert store.examine() == [], "too young"

    def test_directories_that_somebody_removed_are_made_again(self, tmp_path, store, make):
        completed(store, make)
        shutil.rmtree(control(tmp_path) / "effects")
        lease, _, place = opened(store, make)
        assert place.exists()
        assert markers(tmp_path) == [str(lease.entry.name)]


class TestDeletion:
    def test_delete(self, tmp_path, store, make):
        record, _ = completed(store, make)
        kept, place = completed(store, make)
        store.delete(record.key)
        assert directories(tmp_path) == [place]
        assert markers(tmp_path) == []
        assert store.effects_path(kept) == str(place)

    def test_delete_owner(self, tmp_path, store, make):
        for _ in range(3):
            completed(store, make)
        _, place = completed(store, make, user_id="bob")
        assert store.delete_owner("acme", "alice") == 3
        assert directories(tmp_path) == [place]

    def test_purge(self, tmp_path, store, make):
        record, _ = completed(store, make)
        purged = store.purge({TaskStatus.COMPLETED: NEVER}, limit=10)
        assert purged.deleted == [record.key]
        assert directories(tmp_path) == []

    def test_a_purge_deletes_no_marker_of_others(self, tmp_path, store, make):
        completed(store, make)
        lease, record, place = opened(store, make)
        store.purge({TaskStatus.COMPLETED: NEVER}, limit=10)
        assert directories(tmp_path) == [place]
        complete(store, lease, record)

    def test_refused_deletion_removes_nothing(self, tmp_path, store, make):
        _, record, place = opened(store, make)
        with pytest.raises(ValueError, match="running"):
            store.delete(record.key)
        assert (place / "index" / "part").exists()

    def test_loser_whose_record_is_deleted_is_swept(self, tmp_path, store, make):
        lease, record, place = opened(store, make)
        store.end(lease, transitions.failed(record, 9.0, "no"))
        store.delete(record.key)
        assert place.exists()
        assert sweep(store, tmp_path) == 1
        assert directories(tmp_path) == []

    def test_id_used_again_keeps_its_own(self, tmp_path, store, make):
        lease, record, _ = opened(store, make, task_id="own")
        store.end(lease, transitions.failed(record, 9.0, "no"))
        store.delete(record.key)
        lease, record, place = opened(store, make, task_id="own")
        assert sweep(store, tmp_path) == 1
        assert directories(tmp_path) == [place]
        complete(store, lease, record)

    def test_full_disk_keeps_nobody_from_deleting(self, tmp_path, make):
        def is_marker(path: str, *_: Any) -> bool:
            return "/effects/open/" in path

        record, _ = completed(open_store(tmp_path), make)
        store = open_store(tmp_path, ops_with(open=failing(os.open, is_marker, errno.ENOSPC)))
        store.delete(record.key)
        assert directories(tmp_path) == []

    def test_what_cannot_be_removed_is_left_to_the_sweep_and_reported(self, tmp_path, store, make, caplog):
        """The record is gone all the same, and the rest is removed."""
        (record, _), (other, _) = completed(store, make), completed(store, make)
        stuck = f"/{record.effects_dir}"

        def is_stuck(path: Any, *_: Any, **__: Any) -> bool:
            return stuck in str(path)

        trouble = open_store(tmp_path, ops_with(unlink=failing(os.unlink, is_stuck, errno.EACCES)))
        trouble.delete(record.key)
        trouble.delete(other.key)
        with pytest.raises(TaskNotFound):
            store.get(record.key)
        assert len(directories(tmp_path)) == len(markers(tmp_path)) == 1
        for _ in range(3):
            assert sweep(trouble, tmp_path) == 0
        assert caplog.text.count("could not be settled") == 1
        assert sweep(store, tmp_path) == 1
        assert directories(tmp_path) == []


class TestSweep:
    def test_one_that_cannot_be_removed_does_not_stop_the_rest(self, tmp_path, store, make, caplog):
        places = []
        for _ in range(3):
            lease, record, place = opened(store, make)
            store.end(lease, transitions.failed(record, 9.0, "no"))
            places.append(place)

        def is_stuck(path: Any, *_: Any, **__: Any) -> bool:
            return str(path).endswith(places[0].name)

        trouble = open_store(tmp_path, ops_with(rmdir=failing(os.rmdir, is_stuck, errno.EBUSY)))
        assert sweep(trouble, tmp_path) == 2
        assert directories(tmp_path) == [places[0]]
        assert list(places[0].iterdir()) == [], "what is in it goes all the same"
        assert places[0].name in caplog.text

    def test_markers_that_cannot_be_listed_keep_nobody_from_being_settled(self, tmp_path, make, caplog):
        def is_open(path: Any, *_: Any) -> bool:
            return str(path).endswith("effects/open")

        store = open_store(tmp_path, ops_with(listdir=failing(os.listdir, is_open, errno.EIO)))
        assert store.recover() == 0
        assert "effects/open could not be settled" in caplog.text

    def test_record_that_cannot_be_read_keeps_its_directory(self, tmp_path, store, make, caplog):
        lease, record, place = opened(store, make)
        store.end(lease, transitions.failed(record, 9.0, "no"))
        file = tmp_path / "local/acme/tasks/alice" / f"{record.task_id}.json"
        whole = file.read_bytes()
        file.write_bytes(b"{")
        assert sweep(store, tmp_path) == 0
        assert place.exists()
        assert "could not be settled" in caplog.text
        file.write_bytes(whole)
        assert sweep(store, tmp_path) == 1

    def test_it_takes_as_many_passes_as_there_is_to_remove(self, tmp_path, store, make, monkeypatch):
        monkeypatch.setattr(module, "_MOST_REMOVED", 10)
        lease, record, place = opened(store, make)
        for number in range(25):
            (place / str(number)).touch()
        store.end(lease, transitions.failed(record, 9.0, "no"))
        assert sweep(store, tmp_path) == 0
        assert place.exists()
        assert [sweep(store, tmp_path) for _ in range(3)] == [0, 1, 0]
        assert directories(tmp_path) == []

    def test_links_are_removed_and_not_followed(self, tmp_path, store, make):
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "precious").write_text("x")
        lease, record, place = opened(store, make)
        (place / "link").symlink_to(outside, target_is_directory=True)
        (place / "index" / "up").symlink_to("../..", target_is_directory=True)
        (place / "broken").symlink_to("nowhere")
        swapped_lease, swapped_record, swapped = opened(store, make)
        shutil.rmtree(swapped)
        swapped.symlink_to(outside, target_is_directory=True)
        for lease, record in ((lease, record), (swapped_lease, swapped_record)):  # noqa: B020  # both alike
            store.end(lease, transitions.failed(record, 9.0, "no"))
        for marker in (control(tmp_path) / "effects" / "open").iterdir():
            os.utime(marker, (1.0, 1.0))
        assert store.recover() == 2
        assert directories(tmp_path) == []
        assert (outside / "precious").read_text() == "x"

    def test_two_sweep_at_once(self, tmp_path, store, make):
        """Of two that remove the same one loses, harmlessly."""
        lease, record, place = opened(store, make)
        for number in range(5):
            (place / str(number)).touch()
        store.end(lease, transitions.failed(record, 9.0, "no"))
        others: list[int] = []

        def unlink(path: Any, *arguments: Any, **keywords: Any) -> None:
            if path == "3" and not others:
                others.append(store.recover())
            os.unlink(path, *arguments, **keywords)

        one = open_store(tmp_path, ops_with(unlink=unlink))
        age(tmp_path, 100)
        assert one.recover() == 1
        assert others == [1]
        assert directories(tmp_path) == []
        assert markers(tmp_path) == []

    @pytest.mark.parametrize(
        "text", ["notes", ".nfs0001", f"{'0' * 16}.=xyz.abc@1-t", f"{'0' * 16}.a+b+c.abc@1-t~"]
    )
    def test_file_of_somebody_else_among_the_markers(self, tmp_path, store, make, text):
        opened(store, make)
        (control(tmp_path) / "effects" / "open" / text).touch()
        assert sweep(store, tmp_path) == 0
        assert store.examine(fix=True) == []
        assert text in markers(tmp_path)


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
        assert descriptors() == before
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


class TestStanding:
    """What a record says of a directory, whatever of it a network client may still show."""

    @pytest.fixture
    def claim(self, make):
        self.record = make("own", attempt=Attempt(3, "t3", "h", 1), creation="abc", status=TaskStatus.RUNNING)
        return EntryName.of(self.record, 3, "t3")

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({}, Standing.OPEN),
            ({"status": TaskStatus.CANCELLING}, Standing.OPEN),
            ({"status": TaskStatus.PENDING}, Standing.LEFT),
            ({"status": TaskStatus.FAILED}, Standing.LEFT),
            ({"status": TaskStatus.parse("paused")}, Standing.OPEN),
            ({"attempt": Attempt(2, "t2", "h", 1)}, Standing.OPEN),
            ({"attempt": Attempt(2, "t2", "h", 1), "status": TaskStatus.COMPLETED}, Standing.LEFT),
            ({"attempt": Attempt(3, "t4", "h", 1)}, Standing.LEFT),
            ({"attempt": Attempt(4, "t4", "h", 1), "status": TaskStatus.PENDING}, Standing.LEFT),
            ({"attempt": None}, Standing.OPEN),
            ({"attempt": None, "status": TaskStatus.COMPLETED}, Standing.LEFT),
            ({"creation": "other", "attempt": Attempt(1, "t1", "h", 1)}, Standing.LEFT),
            ({"created_at": 5.0, "attempt": Attempt(1, "t1", "h", 1)}, Standing.LEFT),
            ({"effects_dir": "elsewhere", "status": TaskStatus.COMPLETED}, Standing.LEFT),
        ],
    )
    def test_of_a_record(self, claim, changes, expected):
        record = self.record.changed(**changes)
        assert standing(record, directory_name(claim), 3, claim) is expected

    def test_named_and_gone(self, claim):
        name = directory_name(claim)
        named = self.record.changed(
            status=TaskStatus.COMPLETED, effects_dir=f"local/.task_tracker/effects/ab/{name}"
        )
        assert standing(named, name, 3, claim) is standing(named, name, 3) is Standing.NAMED
        assert standing(None, name, 3) is Standing.LEFT


def failing(call: Callable[..., Any], when: Callable[..., bool], code: int) -> Callable[..., Any]:
    """Return ``call``, which fails for arguments that ``when`` accepts."""

    def maybe(path: Any, *arguments: Any, **keywords: Any) -> Any:
        inside = keywords.get("dir_fd")
        full = path if inside is None else f"{os.readlink(f'/proc/self/fd/{inside}')}/{path}"
        if when(full, *arguments):
            raise OSError(code, os.strerror(code), str(path))
        return call(path, *arguments, **keywords)

    return maybe


def fetched(store: LeaseTaskStore, key: TaskKey) -> TaskRecord:
    """A record with what the store adds."""
    found = store.get(key)
    assert isinstance(found, Stored)
    return found.record


def stored_or_none(store: LeaseTaskStore, key: TaskKey) -> TaskRecord | None:
    try:
        return fetched(store, key)
    except TaskNotFound:
        return None


def age_of(root: Path) -> None:
    for path in (root / ".task_tracker").rglob("*"):
        os.utime(path, (1.0, 1.0))


def test_persistent_store_keeps_none(tmp_path):
    from task_tracker import TaskTracker

    with TaskTracker(PersistentTaskStore(tmp_path)) as tracker:
        task = tracker.create("x", account_id="a", user_id="b")
        with pytest.raises(CapabilityMissing, match="keeps no files of tasks"):
            tracker.effects_path(task.task_id)
