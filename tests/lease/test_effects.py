"""Directories of attempts: how they are called, and that the winner's is named and kept."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stores.files.layout import is_reserved
from stores.files.lease.effects import Standing, directory_name, standing
from stores.files.lease.names import EntryName
from stores.files.persistent import PersistentTaskStore
from task_tracker import CapabilityMissing, transitions
from task_tracker.errors import CorruptRecord
from task_tracker.records import Attempt, TaskStatus
from task_tracker.store import HasEffects, Query
from task_tracker.testing.answers import claimed_by, fetch, listed
from tests.lease.directories import (
    age_of,
    complete,
    completed,
    directories,
    filled,
    markers,
    opened,
    sweep,
)
from tests.lease.support import age, claimed, control, open_store, ops_with


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


def test_persistent_store_keeps_none(tmp_path):
    from task_tracker import TaskTracker

    with TaskTracker(PersistentTaskStore(tmp_path)) as tracker:
        task = tracker.create("x", account_id="a", user_id="b")
        with pytest.raises(CapabilityMissing, match="keeps no files of tasks"):
            tracker.effects_path(task.task_id)
