"""Staging directories of tasks that have ended are used for other claims; announcements are names of a file."""

import errno
import os
import shutil

import pytest

from task_tracker import transitions
from tests.lease.support import age, control, leftovers, ops_with
from tests.lease.waiting import CountingOps, claim, end, fill, opened, run


class TestKeptStages:
    def spares(self, root):
        return list((control(root) / "spares").iterdir())

    def test_stage_of_an_ended_task_is_used_again(self, tmp_path, make):
        store = opened(tmp_path)
        fill(store, make, 3)
        run(store)
        (spare,) = self.spares(tmp_path)
        inode = spare.stat().st_ino
        claimed = claim(store)
        assert claimed is not None
        assert self.spares(tmp_path) == []
        assert os.stat(claimed[0].entry.stage).st_ino == inode
        end(store, claimed)
        assert [path.stat().st_ino for path in self.spares(tmp_path)] == [inode]
        assert [path for path in leftovers(tmp_path) if "leases" in path] == []

    def test_somebody_tidies_up(self, tmp_path, make):
        """The reconciler removes those that nobody has used for a lease term; others are made then."""
        store = opened(tmp_path)
        fill(store, make, 4)
        first, second = claim(store), claim(store)
        for claimed in (first, second):
            assert claimed is not None
            end(store, claimed)
        assert len(self.spares(tmp_path)) == 2
        age(tmp_path, 1000.0)
        assert opened(tmp_path).recover() == 0
        assert self.spares(tmp_path) == []
        run(store)
        run(store)
        assert len(self.spares(tmp_path)) == 1

    def test_no_more_are_kept_than_may_be_needed(self, tmp_path, make, monkeypatch):
        monkeypatch.setattr("stores.files.lease.entries.MOST_SPARES", 2)
        store = opened(tmp_path)
        fill(store, make, 5)
        held = [claim(store) for _ in range(5)]
        for claimed in held:
            assert claimed is not None
            end(store, claimed)
        assert len(self.spares(tmp_path)) == 2

    def test_missing_place_is_no_trouble(self, tmp_path, make):
        store = opened(tmp_path)
        fill(store, make, 3)
        run(store)
        shutil.rmtree(control(tmp_path) / "spares")
        run(store)
        run(store)
        assert [path for path in leftovers(tmp_path) if "leases" in path] == []

    @pytest.mark.parametrize("durability", ["none", "edges"])
    def test_stage_with_something_in_it_is_removed(self, tmp_path, make, durability):
        """What could not be unlinked, or a write whose answer was lost, stays in no stage that is used again."""
        failing: list[int] = []

        def fails(path):
            if "/stage-" in path and failing:
                raise OSError(failing.pop(), "no", path)

        def unlink(path, **options):
            fails(path)
            os.unlink(path, **options)

        def replace(source, target):
            os.replace(source, target)
            fails(source)

        store = opened(tmp_path, ops_with(unlink=unlink, replace=replace), durability=durability)
        fill(store, make, 2)
        claimed = claim(store)
        assert claimed is not None
        lease, stored = claimed
        failing.append(errno.ENOENT if durability == "edges" else errno.EIO)
        stored = store.commit(lease, transitions.progressed(stored.record, 5.0, progress=7.0))
        assert not failing
        end(store, (lease, stored))
        assert self.spares(tmp_path) == []
        assert [path for path in leftovers(tmp_path) if "leases" in path] == []

    def test_stage_that_was_taken_is_not_kept(self, tmp_path, make):
        """Who ended a task and was taken for dead at that moment has no stage any more."""
        store = opened(tmp_path)
        fill(store, make, 1)
        claimed = claim(store)
        assert claimed is not None
        entry = claimed[0].entry
        taken = f"{entry.path.rpartition('@')[0]}@2-somebody"
        os.rename(entry.path, taken)
        store._entries.retire(entry)
        assert self.spares(tmp_path) == []
        assert os.listdir(taken) == [os.path.basename(entry.stage)]


class TestOldStages:
    """A claim looks for the stage of an older holder, unless the name says that there never was one."""

    def looked_for(self, ops):
        return [path for path in ops.listed if path.endswith("~")]

    def test_first_claim_of_a_task_has_nothing_to_look_for(self, tmp_path, make):
        ops = CountingOps()
        store = opened(tmp_path, ops)
        fill(store, make, 1)
        claimed = claim(store)
        assert claimed is not None
        assert os.listdir(claimed[0].entry.path) == [os.path.basename(claimed[0].entry.stage)]
        assert self.looked_for(ops) == []

    def test_every_other_claim_removes_what_it_finds(self, tmp_path, make):
        ops = CountingOps()
        store = opened(tmp_path, ops)
        fill(store, make, 1)
        claimed = claim(store)
        assert claimed is not None
        lease, stored = claimed
        store.release(lease, transitions.released(stored.record, 5.0))
        (waiting,) = (path for path in (control(tmp_path) / "ready").rglob("*@*"))
        (waiting / "stage-left").mkdir()
        (waiting / "stage-left" / "0").touch()
        claimed = claim(store)
        assert claimed is not None
        assert os.listdir(claimed[0].entry.path) == [os.path.basename(claimed[0].entry.stage)]
        assert len(self.looked_for(ops)) == 2  # what is there, and that nothing is left


def test_announcement_that_cannot_be_linked_is_written(tmp_path, make):
    """A file has so many names and no more."""

    def link(source, target, **options):
        if "/keys/" in target:
            raise OSError(errno.EMLINK, "too many", target)
        os.link(source, target, **options)

    store = opened(tmp_path, ops_with(link=link))
    record = make(resource_id="one")
    assert store.create_if_no_active(record) is not None
    assert store.create_if_no_active(make(resource_id="one")) is None
    assert len(list((control(tmp_path) / "keys").rglob("*.*"))) == 1
