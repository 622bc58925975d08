"""Pauses, facts of workers and places on a directory: what only files can go wrong in."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stores.files.lease.store import LeaseTaskStore
from task_tracker.errors import StoreUnavailable
from task_tracker.store import FORGOTTEN_SECONDS, WorkerFact
from task_tracker.testing import RecordMaker
from tests.core.support import PATIENCE, Gate
from tests.lease.support import age, clock_of, control, entries, leftovers, open_store, ops_with

KIND = ("reindex", 1)
LIFE = 30.0


def take(store: LeaseTaskStore, *kinds: tuple[str, int], most: int | None = None) -> str | None:
    limits = None if most is None else {"reindex": most}
    claimed = store.claim(holder="w", task_types=kinds or (KIND,), max_running=limits)
    return None if claimed is None else claimed[1].record.task_id


def findings(store: LeaseTaskStore, *, fix: bool = False) -> list[tuple[str, bool]]:
    return [(finding.kind, finding.fixed) for finding in store.examine(fix=fix)]


def is_grab(source: str, target: str) -> bool:
    return "/leases/" in target and target.endswith("~")


class Counting:
    """System calls that count how often ``paused/`` is listed."""

    def __init__(self) -> None:
        self.listings = 0

    def listdir(self, path: str) -> list[str]:
        self.listings += path.endswith("/paused")
        return os.listdir(path)


# ---- pausing ---------------------------------------------------------------------------------------------


def test_a_pause_whose_answer_got_lost_is_a_pause(tmp_path: Path, make: RecordMaker) -> None:
    """A network client asks again, and is told that what it has renamed is not there."""

    def replace(source: str, target: str) -> None:
        os.replace(source, target)
        os.replace(source, target)

    store = open_store(tmp_path, ops_with(replace=replace))
    store.create(make(handler_version=1))
    store.pause("reindex")
    assert store.paused() == ["reindex"]
    assert take(store) is None
    store.publish(WorkerFact("w", {}, LIFE))
    assert [fact.name for fact in store.facts()] == ["w"]


def test_a_pause_that_did_not_happen_says_so(tmp_path: Path) -> None:
    def replace(source: str, target: str) -> None:
        os.unlink(source)
        os.replace(source, target)

    store = open_store(tmp_path, ops_with(replace=replace))
    with pytest.raises(StoreUnavailable, match="pause"):
        store.pause("reindex")
    assert store.paused() == []


def test_a_claim_that_is_under_way_does_not_get_what_is_paused_meanwhile(
    tmp_path: Path, make: RecordMaker
) -> None:
    """It has looked at everything already, and is about to take the task. [D154]"""
    other = open_store(tmp_path)

    def rename(source: str, target: str) -> None:
        if is_grab(source, target):
            other.pause("reindex")
        os.rename(source, target)

    store = open_store(tmp_path, ops_with(rename=rename))
    task = store.create(make(handler_version=1)).record.task_id
    spare = store.create(make(task_type="ingest", handler_version=1)).record.task_id
    assert take(store, KIND, ("ingest", 1)) == spare, "it goes on to what is not paused"
    assert entries(tmp_path) == ["leases@1", "ready@1"]
    other.unpause("reindex")
    assert take(other) == task


def test_pauses_cost_next_to_nothing(tmp_path: Path, make: RecordMaker) -> None:
    """One listing per claim at most, and none while nothing waits."""
    ops = Counting()
    store = open_store(tmp_path, ops_with(listdir=ops.listdir))
    others = [("ingest", 1), ("embed", 1)]

    def listings(*kinds: tuple[str, int]) -> int:
        ops.listings = 0
        take(store, *kinds)
        return ops.listings

    assert listings(KIND) == 0
    for record in make.many(3, handler_version=1):
        store.create(record)
    assert listings(KIND, *others) == 1
    store.pause("reindex")
    store.create(make(task_type="ingest", handler_version=1))
    assert listings(KIND, *others) == 1
    assert listings(KIND, *others) == 1, "what was paused is asked about first, and for all"
    assert listings(*others) == 0
    store.unpause("reindex")
    assert listings(KIND) == 1


def test_where_pauses_cannot_be_looked_for_nothing_is_claimed(tmp_path: Path, make: RecordMaker) -> None:
    """A directory that is gone does not mean that nothing is paused."""
    store = open_store(tmp_path)
    store.create(make(handler_version=1))
    (control(tmp_path) / "paused").rmdir()
    for call in (lambda: take(store), store.paused):
        with pytest.raises(StoreUnavailable, match="paused"):
            call()
    assert entries(tmp_path) == ["ready@1"], "the task was given back"
    assert findings(store, fix=True) == [("missing_directory", True)]
    assert take(store) is not None


@pytest.mark.parametrize(("durability", "synced"), [("full", True), ("edges", True), ("none", False)])
def test_a_pause_survives_a_power_cut(tmp_path: Path, durability: str, synced: bool) -> None:
    """[D154] And so does its end, unless nothing is to."""
    opened: dict[int, str] = {}
    done: list[str] = []

    def open_(path: str, flags: int, mode: int = 0o777) -> int:
        handle = os.open(path, flags, mode)
        opened[handle] = path
        return handle

    def fsync(handle: int) -> None:
        done.append(opened[handle])

    store = open_store(tmp_path, ops_with(open=open_, fsync=fsync), durability=durability)
    for call in (store.pause, store.unpause):
        done.clear()
        call("reindex")
        assert (str(control(tmp_path) / "paused") in done) == synced


def test_a_pause_that_was_not_finished_is_none(tmp_path: Path, make: RecordMaker) -> None:
    """What its writer left is removed once nobody can be writing it."""

    def fail(source: str, target: str) -> None:
        raise OSError(5, "Input/output error", source)

    store = open_store(tmp_path)
    with pytest.raises(StoreUnavailable):
        open_store(tmp_path, ops_with(replace=fail)).pause("reindex")
    assert leftovers(tmp_path) == []
    staged = control(tmp_path) / "paused" / "~abc"
    staged.write_bytes(b"")
    assert store.paused() == []
    store.create(make(handler_version=1))
    assert take(store) is not None
    store.recover()
    assert findings(store) == []
    assert staged.exists()
    age(tmp_path, 4000)
    assert ("temporary_file", False) in findings(store)
    store.recover()
    assert not staged.exists()


def test_a_long_name_that_is_lost_is_not_passed_over(tmp_path: Path, make: RecordMaker) -> None:
    """Its tasks still wait; whoever asks what is paused is told that it cannot be said."""
    store, name = open_store(tmp_path), "t" * 300
    store.pause(name)
    (file,) = (control(tmp_path) / "paused").iterdir()
    file.write_bytes(b"t")
    store.create(make(task_type=name, handler_version=1))
    assert take(store, (name, 1)) is None
    with pytest.raises(StoreUnavailable, match="does not say which one any more; remove it"):
        store.paused()
    store.unpause(name)
    assert store.paused() == []
    assert take(store, (name, 1)) is not None


def test_what_somebody_else_put_there_pauses_nothing(tmp_path: Path, make: RecordMaker) -> None:
    store = open_store(tmp_path)
    (control(tmp_path) / "paused" / "READ ME").write_bytes(b"")
    assert store.paused() == []
    store.create(make(handler_version=1))
    assert take(store) is not None


# ---- what workers say --------------------------------------------------------------------------------------


def test_files_of_workers_that_nobody_needs_are_found_and_removed(tmp_path: Path) -> None:
    """The dead by name, what no worker wrote, and what was not finished; never those that live."""
    store = open_store(tmp_path)
    workers = control(tmp_path) / "workers"
    store.publish(WorkerFact("died", {}, LIFE))
    (workers / "~abc").write_bytes(b"{")
    for name, data in {"half": b'{"name": "ha', "list": b"[]", "other": b'{"name": 3}', "empty": b""}.items():
        (workers / name).write_bytes(data)
    assert [fact.name for fact in store.facts()] == ["died"]
    age(tmp_path, 4000)
    store.publish(WorkerFact("lives", {}, LIFE))
    expected = {"silent_worker": 1, "unreadable": 4, "temporary_file": 1}
    found = [finding for finding in store.examine() if "/workers/" in finding.where]
    assert {kind: [finding.kind for finding in found].count(kind) for kind in expected} == expected
    store.recover()
    assert not (workers / "~abc").exists()
    store.examine(fix=True)
    assert [path.name for path in workers.iterdir()] == ["lives"]
    assert [fact.name for fact in store.facts()] == ["lives"]


def test_the_long_dead_are_removed_a_batch_at_a_time(tmp_path: Path) -> None:
    """However many there are, a pass does a bounded part of it."""
    store = open_store(tmp_path)
    for number in range(5):
        store.publish(WorkerFact(f"w{number}", {}, LIFE))
    age(tmp_path, FORGOTTEN_SECONDS + LIFE + 10)
    left = []
    for _ in range(3):
        store.recover(limit=2)
        left.append(len(os.listdir(control(tmp_path) / "workers")))
    assert left == [3, 1, 0]


def test_a_stamp_from_the_future_ends_a_life_too(tmp_path: Path) -> None:
    """The server's clock stepped back: who lives says so soon, and who died would live on for as long."""
    store = open_store(tmp_path)
    store.publish(WorkerFact("w", {}, LIFE))
    age(tmp_path, -3600)
    assert store.facts() == []
    store.publish(WorkerFact("w", {"back": True}, LIFE))
    assert [fact.data for fact in store.facts()] == [{"back": True}]


def test_a_worker_that_is_withdrawn_while_it_is_read_is_no_trouble(tmp_path: Path) -> None:
    def listdir(path: str) -> list[str]:
        names = os.listdir(path)
        if path.endswith("/workers"):
            other.withdraw("gone")
        return names

    other = open_store(tmp_path)
    store = open_store(tmp_path, ops_with(listdir=listdir))
    for name in ("gone", "here"):
        other.publish(WorkerFact(name, {}, LIFE))
    assert [fact.name for fact in store.facts()] == ["here"]


# ---- who gets a place --------------------------------------------------------------------------------------


class Held:
    """A store whose claims stop once they have their task and before they look at who else has one."""

    def __init__(self, root: Path) -> None:
        self.gate, self._grabbed = Gate(), threading.Event()
        self.store = open_store(root, ops_with(rename=self._rename, listdir=self._listdir))

    def _rename(self, source: str, target: str) -> None:
        os.rename(source, target)
        if is_grab(target, source):
            self._grabbed.set()

    def _listdir(self, path: str) -> list[str]:
        if self._grabbed.is_set() and "/leases/" in path and not self.gate.passed.is_set():
            self.gate.pass_through()
        return os.listdir(path)


@pytest.fixture
def two(tmp_path: Path, make: RecordMaker) -> tuple[str, str]:
    """The ids of an older task of version 1 and a younger one of version 2, of one type."""
    store = open_store(tmp_path)
    older, younger = (store.create(make(handler_version=version)).record.task_id for version in (1, 2))
    return older, younger


def test_of_two_who_meet_the_later_gives_back_at_once(tmp_path: Path, two: tuple[str, str]) -> None:
    """The one with the younger task; it waits for nobody, and the other one gets the place."""
    first = Held(tmp_path)
    with ThreadPoolExecutor() as pool:
        claim = pool.submit(take, first.store, ("reindex", 1), most=1)
        first.gate.wait_entered()
        assert take(open_store(tmp_path), ("reindex", 2), most=1) is None
        first.gate.open()
        assert claim.result(PATIENCE) == two[0]


def test_of_two_who_meet_the_earlier_waits_for_the_later_to_give_back(
    tmp_path: Path, two: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one came first and may have seen nobody: only when it has gone the place is free."""
    first, about_to_grab, waits = Held(tmp_path), Gate(), threading.Event()

    def rename(source: str, target: str) -> None:
        if is_grab(source, target):
            about_to_grab.pass_through()
        os.rename(source, target)

    def pause(seconds: float) -> None:
        if about_to_grab.passed.is_set():
            waits.set()
        threading.Event().wait(seconds)

    second = open_store(tmp_path, ops_with(rename=rename, pause=pause))
    monkeypatch.setattr("stores.files.lease.work.LONGEST_WAIT_SECONDS", PATIENCE)
    with ThreadPoolExecutor() as pool:
        earlier = pool.submit(take, second, ("reindex", 1), most=1)
        about_to_grab.wait_entered()
        later = pool.submit(take, first.store, ("reindex", 2), most=1)
        first.gate.wait_entered()
        about_to_grab.open()
        assert waits.wait(PATIENCE), "it does not wait"
        first.gate.open()
        assert later.result(PATIENCE) is None
        assert earlier.result(PATIENCE) == two[0]


def test_a_claimer_that_died_in_the_middle_is_not_waited_for_for_ever(
    tmp_path: Path, two: tuple[str, str]
) -> None:
    """Its place is taken until its lease has expired; whoever comes goes away empty, and keeps nothing."""

    def mkdir(path: str, mode: int = 0o777) -> None:
        os.mkdir(path, mode)
        if "/leases/" in path:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take(open_store(tmp_path, ops_with(mkdir=mkdir)), ("reindex", 2), most=1)
    store = open_store(tmp_path)
    assert take(store, ("reindex", 1), most=1) is None
    assert entries(tmp_path) == ["leases@1", "ready@0"]
    age(tmp_path, 1000)
    store.expired()
    clock_of(store).ahead += 1000
    store.expired()
    assert take(store, ("reindex", 1), most=1) == two[0]


def test_a_claim_whose_look_fails_gives_its_task_back(tmp_path: Path, make: RecordMaker) -> None:
    """A failed look is not a free place, and the task is not held for a lease term by nobody."""
    broken: list[bool] = []

    def rename(source: str, target: str) -> None:
        os.rename(source, target)
        if is_grab(target, source):
            broken.append(True)

    def listdir(path: str) -> list[str]:
        if len(broken) == 1 and path.endswith("/leases/00"):
            broken.append(True)
            raise OSError(5, "Input/output error", path)
        return os.listdir(path)

    store = open_store(tmp_path, ops_with(rename=rename, listdir=listdir))
    task = store.create(make(handler_version=1)).record.task_id
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        take(store, most=1)
    assert entries(tmp_path) == ["ready@1"]
    assert take(store, most=1) == task


def test_the_type_of_a_record_that_could_not_be_read_is_asked_again(
    tmp_path: Path, make: RecordMaker
) -> None:
    """Half a record (a foreign hand) that is mended counts from then on."""
    store = open_store(tmp_path)
    record = store.create(make(handler_version=1)).record
    store.create(make(handler_version=1))
    assert take(store, most=1) == record.task_id
    (path,) = (tmp_path / "local").rglob(f"{record.task_id}.json")
    whole, other = path.read_bytes(), open_store(tmp_path)
    path.write_bytes(b"{")
    assert other._work._room.counts() == {}
    path.write_bytes(whole)
    assert take(other, most=1) is None
