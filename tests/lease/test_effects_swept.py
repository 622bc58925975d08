"""Directories of attempts that no record names: left, deleted, and swept, with whatever is in the way."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from stores.files.lease import effects as module
from task_tracker import transitions
from task_tracker.errors import LeaseLost, StoreUnavailable, TaskNotFound
from task_tracker.records import TaskStatus
from tests.lease.directories import (
    NEVER,
    complete,
    completed,
    directories,
    failing,
    fetched,
    filled,
    markers,
    opened,
    sweep,
    taken_over,
)
from tests.lease.support import age, claimed, control, expired_after, open_store, ops_with


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
