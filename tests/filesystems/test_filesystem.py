"""The persistent store on file systems of fsspec: what goes wrong there in other trackers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import orjson
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from stores.files.filesystem import CLAIM
from stores.files.probing import Limits
from task_tracker.codec import encode_record
from task_tracker.errors import CorruptRecord, StoreUnavailable, TaskExists, TaskNotFound
from task_tracker.records import TaskStatus
from task_tracker.store import Query
from task_tracker.testing import FakeClock, RecordMaker
from task_tracker.testing.racing import race
from tests.files.support import DIRECTORY, StepClock, fetch, has_active, ids, path_of, plant
from tests.filesystems.odd import odd
from tests.filesystems.support import CONTROL, files_on, opened, watched

# ---- listings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_another_process_does_is_seen_at_once(root: Path, make: RecordMaker, wrapped: bool) -> None:
    """[D089] Cached listings are neither kept nor believed, through wrappers as well."""

    def mount() -> Any:
        fs = odd(root, "caches lists")
        return DirFileSystem(path="inner", fs=fs) if wrapped else fs

    a, b = opened(mount()), opened(mount())
    assert ids(b) == []
    first = make()
    a.create(first)
    assert ids(b) == [first.task_id]
    assert has_active(b)
    second = make()
    a.create(second)
    ended = make.changed(first, status=TaskStatus.COMPLETED)
    a.update(ended, expected=None)
    assert ids(b) == [second.task_id, first.task_id]
    assert fetch(b, first.key) == ended
    a.delete(first.key)
    assert ids(b) == [second.task_id]
    with pytest.raises(TaskNotFound):
        b.get(first.key)


def test_our_own_instances_keep_no_listings(root: Path) -> None:
    """[D089] A URL's file system is nobody else's: its cache is off."""
    opened(f"dir://x::file://{root}")
    fs, _ = fsspec.core.url_to_fs(f"dir://x::file://{root}")
    assert fs.fs.dircache.use_listings_cache, "the one that all share is left as it is"


# ---- directories ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("auto_mkdir", [True, False])
@pytest.mark.parametrize("manners", ["mv", "no mv"])
def test_the_first_task_of_a_new_user(root: Path, make: RecordMaker, auto_mkdir: bool, manners: str) -> None:
    """[D093] The store makes the parents itself, also again if they are taken away."""
    fs: Any = LocalFileSystem(auto_mkdir=auto_mkdir, skip_instance_cache=True)
    if manners == "no mv":
        fs = odd(root, manners).fs
    store = opened(DirFileSystem(path=str(root), fs=fs))
    record = make()
    store.create(record)
    assert fetch(store, record.key) == record
    path = path_of(root, record.key)
    path.unlink()
    for left in path.parent.iterdir():
        left.unlink()
    path.parent.rmdir()
    store.create(record)
    assert fetch(store, record.key) == record


def test_a_directory_that_cannot_be_made(root: Path, make: RecordMaker) -> None:
    """[D093] Then it is trouble, not a lost record."""
    store = opened(odd(root))
    plant(root / "local/acme/tasks", b"in the way")
    with pytest.raises(StoreUnavailable):
        store.create(make())


# ---- exclusive create ----------------------------------------------------------------------------------


@pytest.mark.parametrize("manners", ["", "no mode", "mv refuses", "mv refuses, no mode"])
def test_twenty_create_one_id(root: Path, make: RecordMaker, manners: str) -> None:
    """[D090] One wins where that is claimed, small bodies or not; the others are told."""
    stores = [opened(odd(root, manners)) for _ in range(20)]
    each = [make("same", message=str(number), created_at=5e9) for number in range(20)]
    outcomes = race(*(lambda s=s, r=r: s.create(r) for s, r in zip(stores, each, strict=True)))
    won = [stored for stored in outcomes if not isinstance(stored, Exception)]
    if stores[0].capabilities.exclusive_create:
        assert len(won) == 1
        assert fetch(stores[0], each[0].key) == won[0].record
        assert all(isinstance(error, TaskExists) for error in outcomes if isinstance(error, Exception))
    assert stores[0].capabilities.exclusive_create == (manners in ("", "mv refuses", "mv refuses, no mode"))
    with pytest.raises(TaskExists):
        stores[0].create(each[0])
    assert sorted(path.name for path in (root / DIRECTORY.strip("/")).iterdir()) == ["same.json"]


def test_whoever_comes_while_another_one_creates_waits_for_it(root: Path, make: RecordMaker) -> None:
    """[D090] And learns what became of it: it was created, or it was given up."""
    record = make("same")
    claim = root / DIRECTORY.strip("/") / f"{CLAIM}same"

    def finish() -> None:
        plant(path_of(root, record.key), encode_record(record))

    for created in (True, False):
        clock = StepClock()
        store = opened(odd(root), clock=clock)
        plant(claim, orjson.dumps({"token": "somebody", "at": clock.now()}))
        clock.during_wait = [finish if created else claim.unlink]
        if created:
            with pytest.raises(TaskExists):
                store.create(record)
            claim.unlink()
            path_of(root, record.key).unlink()
        else:
            store.create(record)
            assert not claim.exists()
    assert fetch(store, record.key) == record


def test_a_creator_that_died(root: Path, make: RecordMaker) -> None:
    """[D090] Its claim keeps that one id until it is removed, by hand, or by a sweep after a day."""
    clock = StepClock()
    store = opened(odd(root), clock=clock, lock_timeout_seconds=0.1)
    claim = root / DIRECTORY.strip("/") / f"{CLAIM}same"
    plant(claim, orjson.dumps({"token": "somebody", "at": clock.now()}))
    with pytest.raises(StoreUnavailable, match="is being created by somebody else"):
        store.create(make("same"))
    store.create(make("other"))
    store.purge({}, limit=10)
    assert claim.exists()
    clock.advance(86_401)
    store.purge({}, limit=10)
    assert not claim.exists()
    store.create(make("same"))


def test_a_claim_that_was_never_finished(root: Path) -> None:
    clock = StepClock()
    files = files_on(odd(root), clock)
    plant(root / DIRECTORY.strip("/") / f"{CLAIM}same", b"{")
    assert not files.is_abandoned(DIRECTORY, f"{CLAIM}same")
    clock.advance(3601)
    assert files.is_abandoned(DIRECTORY, f"{CLAIM}same")
    assert not files.is_abandoned(DIRECTORY, f"{CLAIM}gone")
    assert not files.is_abandoned(DIRECTORY, "same.json")


# ---- answers that get lost -----------------------------------------------------------------------------


def lost(verb: str, *, served: bool, times: int = 1) -> Any:
    """Have the next calls of ``verb`` raise, after they were served or instead of that."""
    left = times

    def watch(called: str, path: str, call: Any) -> Any:
        nonlocal left
        if called != verb or left == 0 or path.endswith(".deleted"):
            return call()
        left -= 1
        if served:
            call()
        raise TimeoutError("no answer")

    return watched(watch)


def refusal(call: Callable[[], object]) -> str:
    """What is said if it is refused."""
    try:
        call()
    except StoreUnavailable as error:
        return str(error)
    return ""


@pytest.mark.parametrize("manners", ["", "no mv", "mv refuses", "no mode"])
@pytest.mark.parametrize("verb", ["write", "move", "create"])
def test_a_write_whose_answer_was_lost(root: Path, make: RecordMaker, manners: str, verb: str) -> None:
    """What is there tells whether it was served: then it is done, otherwise nothing happened and nothing will."""
    for served in (True, False):
        store = opened(odd(root, manners))
        store._marks.note_opened()
        store.create(make(f"before-{served}"))
        record = make(f"{verb}-{served}")
        with lost(verb, served=served):
            refused = refusal(lambda: store.create(record))  # noqa: B023  # called at once
        if refused:
            assert "no answer" in refused
            with pytest.raises(TaskNotFound):
                store.get(record.key)
            store.create(record)
        assert fetch(store, record.key) == record
        changed = make.changed(record, status=TaskStatus.COMPLETED)
        with lost(verb, served=served):
            if refusal(lambda: store.update(changed, expected=None)):  # noqa: B023  # called at once
                assert fetch(store, record.key) == record
                store.update(changed, expected=None)
        assert fetch(store, record.key) == changed
    left = [path.name for path in (root / DIRECTORY.strip("/")).iterdir()]
    assert [name for name in left if not name.endswith(".json") and name != ".deleted"] == []


def test_a_move_that_was_served_is_a_success(root: Path, make: RecordMaker) -> None:
    """The source is gone and nobody else knew its name."""
    store = opened(odd(root))
    record = make()
    with lost("move", served=True):
        store.create(record)
    assert fetch(store, record.key) == record


def test_a_removal_whose_answer_was_lost(root: Path, make: RecordMaker) -> None:
    store = opened(odd(root))
    record = make(status=TaskStatus.COMPLETED)
    store.create(record)
    with lost("remove", served=False), pytest.raises(StoreUnavailable):
        store.delete(record.key)
    with lost("remove", served=True):
        store.delete(record.key)
    assert ids(store) == []


def test_trouble_is_not_absence(root: Path, make: RecordMaker) -> None:
    """[D071] fsspec's own exists() says no to every error; nothing here asks it."""
    store = opened(odd(root))
    record = make()
    store.create(record)

    def fail(verb: str, path: str, call: object) -> None:
        raise PermissionError(13, "Permission denied", path)

    with watched(fail):
        for ask in (
            lambda: store.get(record.key),
            lambda: has_active(store),
            lambda: store.list(Query("acme")),
            lambda: store.create(make("other")),
            lambda: store.create_if_no_active(make("other", resource_id="x")),
        ):
            with pytest.raises(StoreUnavailable, match="Permission denied"):
                ask()


def test_a_root_that_is_gone_is_not_an_empty_one(root: Path, make: RecordMaker) -> None:
    """[D071] Unmounted, or another directory in its place: nothing may start twice because of that."""
    store = opened(odd(root))
    assert not has_active(store, user_id="nobody")
    root.rename(root.with_name("elsewhere"))
    root.mkdir()
    with pytest.raises(StoreUnavailable, match="another one or it is not mounted"):
        has_active(store)
    root.rmdir()
    with pytest.raises(StoreUnavailable):
        store.list(Query("acme", "alice"))


@pytest.mark.parametrize("manners", ["", "torn"])
def test_a_directory_in_the_place_of_a_record(root: Path, make: RecordMaker, manners: str) -> None:
    store = opened(odd(root, manners))
    key = make.key("planted")
    path_of(root, key).mkdir(parents=True)
    with pytest.raises(CorruptRecord, match="is a directory"):
        store.get(key)


def test_two_clients_one_of_which_wraps(root: Path, make: RecordMaker) -> None:
    """[D087] Records that another configuration wrote are each one clear error; the store opens and goes on."""
    plain = opened(odd(root))
    readable = make()
    plain.create(readable)
    sealed = make("sealed")
    plant(path_of(root, sealed.key), bytes(byte ^ 0x5A for byte in encode_record(sealed)))
    again = opened(odd(root))
    page = again.list(Query("acme", "alice"))
    assert [stored.record for stored in page.items] == [readable]
    assert ["sealed.json" in error.path for error in page.corrupt if error.path] == [True]
    with pytest.raises(CorruptRecord, match=r"sealed\.json"):
        again.get(sealed.key)
    again.create(make())
    assert [finding.kind for finding in again.examine()] == ["corrupt_record"]


# ---- the rest ------------------------------------------------------------------------------------------


def test_temporary_files_of_the_dead_go(root: Path, make: RecordMaker) -> None:
    clock = FakeClock(4_100_000_000.0)
    files = files_on(odd(root), clock)
    name = files._temporaries.new_name()
    plant(root / DIRECTORY.strip("/") / name, b"half")
    files.sweep(DIRECTORY, files.names(DIRECTORY))
    assert name in files.names(DIRECTORY)
    clock.advance(86_402)
    files.sweep(DIRECTORY, files.names(DIRECTORY))
    assert files.names(DIRECTORY) == []


def test_instances_travel_between_processes(root: Path, make: RecordMaker) -> None:
    """A pickled instance means the same place."""
    record = make()
    opened(odd(root)).create(record)
    assert fetch(opened(pickle.loads(pickle.dumps(odd(root)))), record.key) == record


def test_messages_hide_passwords(root: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot open") as caught:
        opened("ftp://me:hunter2hunter2@127.0.0.1:1/x", limits=Limits(rounds=1, racers=1))
    assert "hunter2hunter2" not in str(caught.value)


def test_the_mark_is_beside_the_others(root: Path, make: RecordMaker) -> None:
    opened(odd(root)).create(make())
    names = sorted(path.name for path in (root / CONTROL.strip("/")).iterdir())
    assert names == ["opened", "probe.json"]
    assert "opened_at" in json.loads((root / CONTROL.strip("/") / "opened").read_bytes())
