"""What a root says about itself: who may write there, and since when it is known."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stores import PersistentTaskStore
from stores.files.control import RootMarks
from stores.files.layout import Layout
from task_tracker import TaskTracker
from task_tracker.errors import CapabilityMissing, StoreUnavailable
from task_tracker.testing import MovingClient, RecordMaker
from tests.files.support import (
    COMPLETED,
    OWNER,
    StepClock,
    WatchedOps,
    fetch,
    has_active,
    ids,
    local_files,
    local_store,
    plant,
    swap,
)

DAY = 86_400.0


def control(root: Path) -> Path:
    return root / "local" / ".task_tracker"


def marks(root: Path, clock: StepClock, ops: WatchedOps | None = None) -> RootMarks:
    return RootMarks(local_files(root, ops), Layout("/local"), clock)


# ---- whose root it is ----------------------------------------------------------------------------------------


def writes(store: PersistentTaskStore, make: RecordMaker) -> list[Callable[[], object]]:
    return [
        lambda: store.create(make()),
        lambda: store.create_if_no_active(make(resource_id="other")),
        lambda: store.update(make("task-1"), expected=None),
        lambda: store.delete(make.key("ended")),
        lambda: store.delete_owner("acme", "alice"),
        lambda: store.purge({COMPLETED: 9e9}, limit=10),
    ]


def test_a_marked_root_is_read_and_never_written(root: Path, make: RecordMaker) -> None:
    """Writes without leases would void the lease store's guarantees: each is refused, and leaves nothing behind."""
    store = local_store(root)
    store.create(make("task-1"))
    store.create(make("ended", status=COMPLETED, resource_id="other"))
    plant(control(root) / "format", b"1")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    for opened in (store, local_store(root)):
        for write in writes(opened, make):
            with pytest.raises(
                CapabilityMissing, match=r"format says that a lease store owns this root.*'lease'"
            ):
                write()
        assert sorted(ids(opened)) == ["ended", "task-1"]
        assert fetch(opened, make.key("task-1")).status == "pending"
        assert has_active(opened)
        assert opened.count("acme", None) == {"reindex": {"pending": 1, "completed": 1}}
        assert opened.purge({}, limit=10).deleted == []
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_a_root_that_was_never_opened_stays_so_when_it_is_marked(root: Path, make: RecordMaker) -> None:
    plant(control(root) / "format", b"1")
    for write in writes(local_store(root), make):
        with pytest.raises(CapabilityMissing):
            write()
    assert [path.name for path in control(root).iterdir()] == ["format"]


def test_a_client_is_asked_once(make: RecordMaker) -> None:
    """A look costs a request there."""
    client = MovingClient()
    store = PersistentTaskStore(client)
    for _ in range(3):
        store.create(make())
    assert client.calls.count(("read", "/local/.task_tracker/format")) == 1
    client.write("/local/.task_tracker/format", b"1")
    with pytest.raises(CapabilityMissing):
        PersistentTaskStore(client).create(make())


def test_a_mark_that_cannot_be_looked_at_refuses_writes(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """[D071] Not "there is none"."""
    store = local_store(root, ops)
    ops.fail(errno.EIO, on=["stat"], path="format")
    with pytest.raises(StoreUnavailable):
        store.create(make())
    store.create(make())


# ---- since when it is known ------------------------------------------------------------------------------------


def test_the_first_opening_is_noted_once_and_for_all(root: Path) -> None:
    """By whoever comes first; later ones, and other instances, read it."""
    clock = StepClock()
    first = marks(root, clock)
    opened_at = first.opened_at()
    assert opened_at == clock.now()
    clock.advance(DAY)
    assert first.opened_at() == opened_at
    assert marks(root, clock).opened_at() == opened_at
    assert json.loads((control(root) / "opened").read_bytes()) == {"opened_at": opened_at}


def test_two_that_come_first_agree(root: Path, ops: WatchedOps) -> None:
    """Both find nothing, both note: the first one's moment counts."""
    clock = StepClock()
    other = marks(root, clock)
    mine = marks(root, clock, ops)

    def interrupt(call: object) -> None:
        if getattr(call, "name", "") == "link":
            ops.heal()
            # Not through the lock, which is ours: as somebody on another host would.
            plant(control(root) / "opened", b'{"opened_at": 5.0}')

    ops.before = interrupt
    assert mine.opened_at() == 5.0
    assert other.opened_at() == 5.0


@pytest.mark.parametrize(
    "damage",
    [
        *(
            b"",
            b"{",
            b"[]",
            b"{}",
            b'{"opened_at": null}',
            b'{"opened_at": true}',
            b'{"opened_at": "0"}',
            b"\xff",
        ),
        *(b'{"opened_at": "nan"}', b'{"opened_at": [0]}', b'{"opened_at": NaN}'),
    ],
)
def test_a_damaged_note_is_begun_anew(root: Path, damage: bytes) -> None:
    """[D069] Records are kept longer rather than deleted too early."""
    clock = StepClock()
    plant(control(root) / "opened", damage)
    assert marks(root, clock).opened_at() == clock.now()
    clock.advance(DAY)
    assert marks(root, clock).opened_at() == clock.now() - DAY


def test_a_note_that_cannot_be_made_fails_no_write(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """It is tried again with the next record; retention, which needs it, raises."""
    store = local_store(root, ops)
    ops.fail(errno.EIO, on=["open"], path=".task_tracker", forever=True)
    store.create(make())
    with pytest.raises(StoreUnavailable):
        store.purge({COMPLETED: 9e9}, limit=10)
    ops.heal()
    store.create(make())
    assert (control(root) / "opened").is_file()


@pytest.mark.parametrize("in_the_way", ["a directory", "a file"])
def test_what_lies_in_the_way_of_the_note_fails_no_write(
    root: Path, make: RecordMaker, in_the_way: str
) -> None:
    if in_the_way == "a directory":
        (control(root) / "opened").mkdir(parents=True)
    else:
        control(root).parent.mkdir(parents=True)
        control(root).write_text("")
    store = local_store(root)
    if in_the_way == "a directory":
        store.create(make("task-1"))
        assert ids(store) == ["task-1"]
    else:
        with pytest.raises(StoreUnavailable, match="Not a directory"):
            store.create(make("task-1"))  # whether the root is marked cannot be told


def test_a_note_that_vanishes_fails_no_write(root: Path, make: RecordMaker) -> None:
    store = local_store(root)

    def vanish(*_: object) -> object:
        raise FileNotFoundError("gone again")

    swap(store._marks, opened_at=vanish)
    store.create(make("task-1"))
    assert ids(store) == ["task-1"]


# ---- what retention makes of it --------------------------------------------------------------------------------


def test_nothing_is_deleted_within_one_term_after_the_first_opening(root: Path, make: RecordMaker) -> None:
    """[D130] An upgrade must not eat the history that it finds."""
    clock = StepClock()
    old = make(status=COMPLETED, created_at=clock.now() - 365 * DAY)
    other = StepClock()
    local_store(root, clock=other).create(old)
    (control(root) / "opened").unlink()
    with TaskTracker(local_store(root, clock=clock), clock=clock) as tracker:
        assert tracker.purge() == 0
        clock.advance(DAY - 1)
        assert tracker.purge() == 0
        with TaskTracker(local_store(root, clock=clock), clock=clock) as another:
            assert another.purge() == 0
        clock.advance(1)
        assert tracker.purge() == 1
    assert ids(local_store(root)) == []


def test_each_state_has_its_own_term(root: Path) -> None:
    """[D134] A week for failures: nothing failed goes before a week after the first opening."""
    clock = StepClock()
    with TaskTracker(local_store(root, clock=clock), clock=clock) as tracker:
        done, failed = (tracker.create("reindex", **OWNER) for _ in range(2))
        tracker.complete(done.task_id)
        tracker.fail(failed.task_id, "it broke")
        clock.advance(DAY + 1)
        assert tracker.purge() == 1
        assert [task.status.value for task in tracker.list_tasks(**OWNER)] == ["failed"]
        clock.advance(6 * DAY)
        assert tracker.purge() == 1
        assert tracker.list_tasks(**OWNER) == []
