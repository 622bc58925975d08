"""Single situations with real processes and real signals. Nothing here waits for luck: leases are aged by hand
where the time itself is not what is tested, and the clock of whoever looks is moved."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from stores.files.lease.store import LeaseTaskStore
from task_tracker import TaskRecord, TaskTracker
from task_tracker.clock import SystemClock
from task_tracker.errors import LeaseHeld
from task_tracker.records import TaskKey, TaskStatus
from task_tracker.store import Expired, Lease, Stored
from tests.lease.processes.child import PATIENCE_SECONDS, Child
from tests.lease.processes.crowd import crowd

KEY = TaskKey("acme", "alice", "task-1")
PUBLICATIONS = ["rename", "replace", "exchange"]
DEAD_PID = 2**22 + 1
"""Larger than any that Linux gives out."""


class MovedClock(SystemClock):
    """The real clock, whose monotonic time can be moved on."""

    def __init__(self) -> None:
        super().__init__()
        self._moved = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._moved

    def advance(self, seconds: float) -> None:
        self._moved += seconds


class Onlooker:
    """A store of this process, which can see leases as expired without waiting for it."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.clock = MovedClock()
        self.store = LeaseTaskStore(root, durability="none", clock=self.clock, **options)

    def create(self, task_id: str = "task-1", **fields: Any) -> None:
        now = self.clock.now()
        self.store.create(
            TaskRecord(task_id, "reindex", TaskStatus.PENDING, now, now, "acme", "alice", **fields)
        )

    def record(self) -> TaskRecord:
        stored = self.store.get(KEY)
        assert isinstance(stored, Stored)
        return stored.record

    def file(self) -> Any:
        return json.loads((self.root / "local/acme/tasks/alice/task-1.json").read_bytes())

    def age(self) -> None:
        """Make all leases look as if they had been silent for an hour."""
        for entry in (self.root / "local/.task_tracker/leases").glob("*/*"):
            stamp = entry.stat().st_mtime_ns - 3600 * 10**9
            os.utime(entry, ns=(stamp, stamp))

    def expired(self) -> list[Expired]:
        self.store.expired()
        self.clock.advance(3 * self.store.heartbeat_seconds)
        return [*self.store.expired()]

    def take_over(self) -> tuple[Lease, Stored]:
        self.age()
        (expired,) = self.expired()
        taken = self.store.take_over(expired, holder="taker")
        assert taken is not None
        return taken


@pytest.fixture
def onlooker(fast_path: Path) -> Onlooker:
    return Onlooker(fast_path / "root")


def ended(record: TaskRecord, message: str = "of the taker") -> TaskRecord:
    return record.changed(status=TaskStatus.COMPLETED, message=message)


# ---- killed --------------------------------------------------------------------------------------------------


def test_a_task_whose_holder_was_killed_fails_one_term_later(fast_path: Path) -> None:
    """Of two tasks one is held by a process that dies; the other one is not starved. [D001 D003]"""
    root = fast_path / "root"
    owner = {"account_id": "acme", "user_id": "alice"}
    with Child(root, "tracker", lease_seconds=1.0) as child:
        for task_id in ("held", "waiting"):
            child.ask("create", "reindex", "docs", task_id=task_id, **owner)
        before = child.ask("start", "held")
        child.kill()
    with TaskTracker(LeaseTaskStore(root, durability="none", lease_seconds=1.0)) as tracker:
        assert tracker.has_running("reindex", "docs", **owner)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not tracker.reconcile().holder_lost:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        lost = tracker.get("held", **owner)
        assert lost is not None
        assert (lost.status, lost.error_code) == (TaskStatus.FAILED, "holder_lost")
        assert lost.updated_at > before["updated_at"]
        assert tracker.reconcile().holder_lost == 0, "once"
        waiting = tracker.start("waiting", "acme", "alice")
        assert waiting is not None
        tracker.complete("waiting", **owner)
        assert not tracker.has_running("reindex", "docs", **owner)


def test_two_reconcilers_settle_one_lost_task_once(onlooker: Onlooker) -> None:
    """[D003]"""
    onlooker.create()
    with Child(onlooker.root, "store") as child:
        child.ask("claim", "task-1")
        child.kill()
    other = Onlooker(onlooker.root)
    onlooker.age()
    (mine,), (its,) = onlooker.expired(), other.expired()
    taken = onlooker.store.take_over(mine, holder="one")
    assert taken is not None
    assert other.store.take_over(its, holder="other") is None, "harmless for the loser"
    lease, stored = taken
    onlooker.store.end(lease, ended(stored.record))
    assert other.expired() == []


# ---- frozen --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "status"),
    [("commit", "running"), ("release", "pending"), ("end", "completed"), ("end", "failed")],
)
def test_who_was_frozen_and_replaced_can_write_no_more(onlooker: Onlooker, call: str, status: str) -> None:
    """[D022]"""
    onlooker.create()
    with Child(onlooker.root, "store") as child:
        assert child.ask("claim", "task-1") == 1
        child.freeze()
        lease, stored = onlooker.take_over()
        assert lease.epoch == 2
        stored = onlooker.store.commit(lease, stored.record.changed(message="of the taker"))
        child.thaw()
        assert child.ask("write", call, "task-1", status, "too late")["error"] == "LeaseLost"
        assert child.ask("is_lost", "task-1")
        assert child.ask("renew", "task-1")["error"] == "LeaseLost"
        assert onlooker.file()["message"] == "of the taker"
        assert onlooker.file()["status"] == "running"
        onlooker.store.end(lease, ended(stored.record))
    assert onlooker.record().status is TaskStatus.COMPLETED


def test_who_was_frozen_learns_it_at_the_next_heartbeat(onlooker: Onlooker) -> None:
    """[D022]"""
    onlooker.create()
    with Child(onlooker.root, "store") as child:
        child.ask("claim", "task-1")
        child.freeze()
        onlooker.take_over()
        child.thaw()
        assert not child.ask("is_lost", "task-1"), "nobody can know that without looking"
        assert child.ask("renew", "task-1")["error"] == "LeaseLost"
        assert child.ask("is_lost", "task-1")


@pytest.mark.parametrize(
    ("call", "status"), [("commit", "running"), ("release", "pending"), ("end", "completed")]
)
def test_who_was_frozen_between_its_check_and_its_write(onlooker: Onlooker, call: str, status: str) -> None:
    """Everything is written and checked; the one system call that publishes it comes too late. [D022]"""
    onlooker.create()
    with Child(onlooker.root, "store") as child:
        child.ask("claim", "task-1")
        child.ask("stop_before", PUBLICATIONS, "/stage-")
        child.tell("write", call, "task-1", status, "too late")
        child.wait_until_frozen()
        lease, stored = onlooker.take_over()
        before = onlooker.file()
        child.thaw()
        assert child.hear()["error"] == "LeaseLost"
        assert onlooker.file() == before
        onlooker.store.end(lease, ended(stored.record))
    assert onlooker.record().message == "of the taker"


def test_who_was_frozen_after_its_last_write_has_ended_the_task(onlooker: Onlooker) -> None:
    """The record is terminal; what is left of the lease is removed by whoever finds it."""
    onlooker.create()
    with Child(onlooker.root, "store") as child:
        child.ask("claim", "task-1")
        child.ask("stop_before", ["rmdir"], "/leases/")
        child.tell("write", "end", "task-1", "completed", "in time")
        child.wait_until_frozen()
        onlooker.age()
        for expired in onlooker.expired():
            assert onlooker.store.take_over(expired, holder="taker") is None
        onlooker.store.recover()
        assert onlooker.record().status is TaskStatus.COMPLETED
        child.thaw()
        assert child.hear()["message"] == "in time"
    assert onlooker.expired() == []
    assert onlooker.store.examine() == []


def test_of_two_claimers_one_wins_whoever_was_frozen(onlooker: Onlooker) -> None:
    onlooker.create()
    with Child(onlooker.root, "store") as child:
        child.ask("stop_before", ["rename"], "task-1")
        child.tell("claim", "task-1")
        child.wait_until_frozen()
        claimed = onlooker.store.claim(KEY, holder="quicker")
        assert claimed is not None
        child.thaw()
        assert child.hear()["error"] == "LeaseHeld"
        lease, stored = claimed
        assert onlooker.record().attempt == stored.record.attempt
        onlooker.store.end(lease, ended(stored.record))


@pytest.mark.parametrize("call", ["update", "complete", "fail"])
def test_a_tracker_that_was_frozen_is_told(fast_path: Path, call: str) -> None:
    """The whole way: SIGSTOP for longer than the lease, another instance settles the task, SIGCONT. [D022]"""
    root = fast_path / "root"
    owner = {"account_id": "acme", "user_id": "alice"}
    with (
        Child(root, "tracker", lease_seconds=0.6) as child,
        TaskTracker(LeaseTaskStore(root, durability="none", lease_seconds=0.6)) as tracker,
    ):
        child.ask("create", "reindex", task_id="task-1", **owner)
        child.ask("start", "task-1")
        child.freeze()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not tracker.reconcile().holder_lost:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        settled = tracker.get("task-1", **owner)
        child.thaw()
        arguments = {"update": [], "complete": ["late"], "fail": ["late"]}[call]
        keywords = {"message": "late"} if call == "update" else {}
        assert child.ask(call, "task-1", *arguments, **keywords)["error"] == "LeaseLost"
        assert child.ask("is_lost", "task-1")
        assert tracker.get("task-1", **owner) == settled


# ---- who a lease belongs to is not a matter of pids --------------------------------------------------------------


def test_a_lease_expires_though_its_holders_pid_is_alive(onlooker: Onlooker) -> None:
    """A recycled pid is not mistaken for the holder. [D098 D106]"""
    onlooker.create()
    with Child(onlooker.root, "store") as child:
        child.ask("claim", "task-1", holder=f"{os.uname().nodename}:{os.getpid()}")
        child.kill()
    lease, _ = onlooker.take_over()
    assert lease.epoch == 2


def test_a_lease_that_is_renewed_lives_though_its_holders_pid_is_dead(onlooker: Onlooker) -> None:
    """A live one is never broken, whatever its name says: it may be on another host. [D098 D106]"""
    onlooker.create()
    with Child(onlooker.root, "store") as child:
        child.ask("claim", "task-1", holder=f"{os.uname().nodename}:{DEAD_PID}")
        onlooker.age()
        (expired,) = onlooker.expired()
        child.ask("renew", "task-1")
        assert onlooker.store.take_over(expired, holder="taker") is None
        assert onlooker.expired() == []
        with pytest.raises(LeaseHeld, match=str(DEAD_PID)) as held:
            onlooker.store.claim(KEY, holder="taker")
        assert held.value.holder == f"{os.uname().nodename}:{DEAD_PID}"
        child.ask("write", "end", "task-1", "completed", "done")
    assert onlooker.record().message == "done"


def test_rubbish_among_the_leases_breaks_none(onlooker: Onlooker) -> None:
    """Empty files, half a name, a link to something old: a live lease is not broken by any. [D098]"""
    onlooker.create()
    with Child(onlooker.root, "store") as child:
        child.ask("claim", "task-1")
        (entry,) = (onlooker.root / "local/.task_tracker/leases").glob("*/*@*")
        (entry.parent / "garbage").write_bytes(b"")
        (entry.parent / entry.name.partition("@")[0]).mkdir()
        (entry.parent / f"{entry.name}x~").symlink_to(entry)
        (entry.parent / "0.=x.y@1-z").symlink_to("/nowhere")
        for expired in onlooker.expired():
            assert onlooker.store.take_over(expired, holder="taker") is None
        onlooker.store.recover()
        assert child.ask("renew", "task-1") is False
        child.ask("write", "end", "task-1", "completed", "done")
    assert onlooker.record().message == "done"


# ---- forks -------------------------------------------------------------------------------------------------------


def test_a_forked_child_holds_nothing_and_its_parent_goes_on(fast_path: Path) -> None:
    """As servers do that load first and fork then. [D091]"""
    root = fast_path / "root"
    with Child(root, "tracker", lease_seconds=3) as child:
        child.ask("create", "reindex", task_id="task-1", account_id="acme", user_id="alice")
        child.ask("start", "task-1")
        told = child.ask("fork", "task-1")
        assert told["lease"] == "None"
        assert told["update"] == "LeaseHeld"
        assert told["live"] == "completed"
        assert child.ask("update", "task-1", message="of the parent")["message"] == "of the parent"
        assert child.ask("complete", "task-1", "done")["status"] == "completed"


# ---- many at once ------------------------------------------------------------------------------------------------


def test_twenty_processes_create_the_first_task_of_a_user(fast_path: Path) -> None:
    """On a directory that none of them has opened before. [D086]"""
    root = fast_path / "root"
    created = crowd("create_first", 20, root=str(root), user_id="new")
    assert sorted(created) == sorted(f"task-{index}" for index in range(20))
    assert len([*(root / "local/acme/tasks/new").glob("*.json")]) == 20
    assert Onlooker(root).store.examine() == []


def test_one_at_a_time(fast_path: Path) -> None:
    """Sixteen processes; a witness that the store cannot fool tells whether two were active at once. [D060]"""
    root = fast_path / "root"
    won = crowd("create_one", 16, root=str(root), calls=200, flag=str(fast_path / "flag"))
    assert sum(won) > 0
    onlooker = Onlooker(root)
    assert onlooker.store.count("acme", "alice") == {"reindex": {"completed": sum(won)}}
    assert onlooker.store.examine() == []


def use_descriptors(path: Path, cycles: int) -> None:
    (told,) = crowd("cycle", 1, root=str(path / "root"), cycles=cycles)
    assert told["after"] == told["before"]
    assert told["failures"] > cycles // 10
    assert told["ended"] > cycles // 2


def test_descriptors_stay_constant(fast_path: Path) -> None:
    """[D081]"""
    use_descriptors(fast_path, 500)


@pytest.mark.slow
def test_descriptors_stay_constant_for_long(fast_path: Path) -> None:
    """[D081]"""
    use_descriptors(fast_path, 5000)
