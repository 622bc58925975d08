"""What doctor finds among the directories of attempts, and what it leaves alone."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from stores.files.lease.store import LeaseTaskStore
from task_tracker import transitions
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.testing import RecordMaker
from tests.lease.directories import (
    complete,
    completed,
    directories,
    failing,
    filled,
    markers,
    opened,
    taken_over,
)
from tests.lease.support import age, claimed, control, expired_after, open_store, ops_with


def later(store: LeaseTaskStore, root: Path, seconds: float = 100.0) -> None:
    """Let time pass for everything in the control directory, by the file server's clock too."""
    age(root, seconds)
    now_ns = store._control.now_ns
    store._control.now_ns = lambda: now_ns() + int(seconds * 1e9)  # type: ignore[method-assign]


def mended(store: LeaseTaskStore, kind: str) -> None:
    """A look finds just this and changes nothing; mending it leaves nothing to find."""
    assert [(one.kind, one.fixed) for one in store.examine()] == [(kind, False)]
    (finding,) = store.examine(fix=True)
    assert finding.kind == kind
    assert finding.fixed
    assert finding.message
    assert store.examine() == []


def record_file(root: Path, record: TaskRecord) -> Path:
    return root / "local/acme/tasks" / record.user_id / f"{record.task_id}.json"


class TestFoundAndMended:
    def test_what_a_loser_left(self, tmp_path, store, make):
        """Before a reconciler has come by."""
        lease, record, _ = opened(store, make)
        store.end(lease, transitions.failed(record, 9.0, "no"))
        assert store.examine() == [], "too young"
        later(store, tmp_path)
        mended(store, "unnamed_effects")
        assert directories(tmp_path) == []
        assert markers(tmp_path) == []

    def test_what_a_loser_made_anew_after_the_sweep(self, tmp_path, store, make):
        _, _, place = opened(store, make)
        other, stored = taken_over(store, *expired_after(store, tmp_path))
        winner = filled(store, other)
        complete(store, other, stored.record)
        age(tmp_path, 100)
        store.recover()
        place.mkdir()
        (place / "late").touch()
        later(store, tmp_path)
        mended(store, "unnamed_effects")
        assert directories(tmp_path) == [winner]

    def test_what_lost_its_marker_in_a_power_cut(self, tmp_path, store, make):
        lease, record, _ = opened(store, make)
        store.end(lease, transitions.failed(record, 9.0, "no"))
        shutil.rmtree(control(tmp_path) / "effects" / "open")
        later(store, tmp_path)
        assert store.recover() == 0
        mended(store, "unnamed_effects")

    def test_whose_record_was_removed_by_hand(self, tmp_path, store, make):
        record, _ = completed(store, make)
        record_file(tmp_path, record).unlink()
        later(store, tmp_path)
        mended(store, "unnamed_effects")
        assert directories(tmp_path) == []

    def test_marker_of_a_winner(self, tmp_path, store, make):
        lease, record, place = opened(store, make)
        marker = control(tmp_path) / "effects" / "open" / str(lease.entry.name)
        data = marker.read_bytes()
        complete(store, lease, record)
        marker.write_bytes(data)
        later(store, tmp_path)
        mended(store, "half_made")
        assert (place / "index" / "part").exists()

    def test_marker_that_does_not_say_any_more_whose_it_is(self, tmp_path, store, make, caplog):
        """A power cut emptied it, and the name is too short for the ids."""
        lease, record, place = opened(store, make, task_id="t" * 200)
        store.end(lease, transitions.failed(record, 9.0, "no"))
        (control(tmp_path) / "effects" / "open" / str(lease.entry.name)).write_bytes(b"")
        later(store, tmp_path)
        assert store.recover() == 0
        assert "run doctor with fix" in caplog.text
        assert place.exists()
        mended(store, "unnamed_effects")

    def test_marker_of_nothing(self, tmp_path, store, make):
        """Its creator was killed before it had made the directory, or before it had said whose it is."""
        lease, record, place = opened(store, make, task_id="t" * 200)
        store.end(lease, transitions.failed(record, 9.0, "no"))
        shutil.rmtree(place)
        marker = control(tmp_path) / "effects" / "open" / str(lease.entry.name)
        marker.write_bytes(b"")
        later(store, tmp_path)
        assert [finding.kind for finding in store.examine()] == ["half_made"]
        assert store.recover() == 1
        assert markers(tmp_path) == []


class TestReported:
    def test_files_that_are_lost(self, tmp_path, store, make):
        record, place = completed(store, make)
        shutil.rmtree(place)
        (finding,) = store.examine(fix=True)
        assert (finding.kind, finding.where, finding.fixed) == ("lost_effects", str(place), False)
        assert record.task_id in finding.message

    def test_record_that_names_another_directory(self, tmp_path, store, make):
        record, place = completed(store, make)
        assert record.effects_dir is not None
        file = record_file(tmp_path, record)
        file.write_bytes(file.read_bytes().replace(record.effects_dir.encode(), b"../../etc"))
        later(store, tmp_path)
        found = store.examine()
        assert [finding.kind for finding in found] == ["lost_effects", "unnamed_effects"]
        assert "never had" in found[0].message
        assert place.exists()

    def test_what_cannot_be_removed(self, tmp_path, store, make):
        lease, record, place = opened(store, make)
        store.end(lease, transitions.failed(record, 9.0, "no"))
        other, record, orphan = opened(store, make)
        complete(store, other, record)
        record_file(tmp_path, record).unlink()

        def is_stuck(path, *_):
            return str(path).endswith(("/part", "/index"))

        trouble = open_store(tmp_path, ops_with(unlink=failing(os.unlink, is_stuck, errno.EACCES)))
        later(trouble, tmp_path)
        found = trouble.examine(fix=True)
        assert [(finding.kind, finding.fixed) for finding in found] == [("unnamed_effects", False)] * 2
        assert {finding.where for finding in found} == {str(place), str(orphan)}
        assert all("remove it by hand" in finding.message for finding in found)


class TestLeftAlone:
    def test_winners_and_those_that_run(self, tmp_path, store, make):
        completed(store, make)
        opened(store, make)
        later(store, tmp_path)
        assert store.examine(fix=True) == []
        assert len(directories(tmp_path)) == 2

    def test_one_that_runs_and_lost_its_marker(self, tmp_path, store, make):
        lease, record, _ = opened(store, make)
        shutil.rmtree(control(tmp_path) / "effects" / "open")
        later(store, tmp_path)
        assert store.examine(fix=True) == []
        assert complete(store, lease, record).effects_dir is not None

    def test_whose_record_cannot_be_read(self, tmp_path, store, make):
        """It may name it."""
        record, place = completed(store, make)
        record_file(tmp_path, record).write_bytes(b"{")
        later(store, tmp_path)
        assert [finding.kind for finding in store.examine(fix=True)] == ["corrupt_record"]
        assert (place / "index" / "part").exists()

    def test_a_users_whose_tasks_cannot_be_listed(self, tmp_path, make):
        """All of them may be there."""
        _, place = completed(open_store(tmp_path), make)

        def is_alices(path, *_):
            return str(path).endswith("/tasks/alice")

        trouble = open_store(tmp_path, ops_with(listdir=failing(os.listdir, is_alices, errno.EIO)))
        later(trouble, tmp_path)
        assert {finding.kind for finding in trouble.examine(fix=True)} == {"unreadable"}
        assert (place / "index" / "part").exists()

    def test_a_marker_that_does_not_say_whose_while_not_all_can_be_listed(self, tmp_path, make):
        store = open_store(tmp_path)
        lease, record, place = opened(store, make, task_id="t" * 200)
        store.end(lease, transitions.failed(record, 9.0, "no"))
        (control(tmp_path) / "effects" / "open" / str(lease.entry.name)).write_bytes(b"")

        def is_alices(path, *_):
            return str(path).endswith("/tasks/alice")

        trouble = open_store(tmp_path, ops_with(listdir=failing(os.listdir, is_alices, errno.EIO)))
        later(trouble, tmp_path)
        assert {finding.kind for finding in trouble.examine(fix=True)} == {"unreadable"}
        assert place.exists()

    def test_one_that_came_into_being_while_the_records_were_looked_at(
        self, tmp_path, store, make, monkeypatch
    ):
        """Its time stamp may say something else: an unpacked archive sets it."""
        completed(store, make)
        made: list[Path] = []
        look = type(store._indexes).owners

        def owners(indexes, failed):
            yield from look(indexes, failed)
            if not made:
                _, place = completed(store, make, user_id="zoe")
                os.utime(place, (1.0, 1.0))
                made.append(place)

        monkeypatch.setattr(type(store._indexes), "owners", owners)
        assert store.examine(fix=True) == []
        assert made[0].exists()

    @pytest.mark.parametrize("place", ["effects/notes", "effects/ab/notes", "effects/open/notes"])
    def test_files_of_somebody_else(self, tmp_path, store, make, place):
        completed(store, make)
        path = control(tmp_path) / place
        path.parent.mkdir(exist_ok=True)
        path.touch()
        later(store, tmp_path)
        assert store.examine(fix=True) == []
        assert path.exists()

    def test_a_record_that_has_not_completed_names_nothing(self, tmp_path, store, make: RecordMaker):
        store.create(make(status=TaskStatus.FAILED, effects_dir="effects/7"))
        store.create(make(effects_dir="effects/7"))
        claimed(store, make, effects_dir="effects/7")
        assert store.examine() == []
