"""What killed writers leave: out of everybody's way, and removed once nobody can be about to finish it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from stores.files.lease.store import LeaseTaskStore
from task_tracker import transitions
from task_tracker.records import TaskRecord
from task_tracker.store import Query
from task_tracker.testing import RecordMaker
from tests.lease.support import age, claimed, control, expired_after, leftovers, open_store, ops_with

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], object]) -> None:
    """Run ``work`` in a forked child, which is expected to be killed in it."""
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_creators_that_were_killed_before_the_record_was_there(tmp_path: Path, make: RecordMaker) -> None:
    """Twenty of them, and a live one: listings know nothing of it, and the live one's file stays. [D074]"""
    store = open_store(tmp_path)
    doomed = open_store(tmp_path, ops_with(link=die), prepared=True)
    records = make.many(20, resource_id=None)

    def create(record: TaskRecord) -> Callable[[], object]:
        return lambda: doomed.create(record)

    for record in records:
        in_child(create(record))
    staged = [name for name in leftovers(tmp_path) if name.endswith(".rec")]
    assert len(staged) == 20
    assert store.list(Query("acme")).items == []
    assert store.recover() == 0, "too young: their writers might live"
    age(tmp_path, 100)

    swept = []

    def sweep_meanwhile(source: str, target: str) -> None:
        swept.append(store.recover())
        os.link(source, target)

    alive: LeaseTaskStore = open_store(tmp_path, ops_with(link=sweep_meanwhile), prepared=True)
    live = make(resource_id="live")
    alive.create(live)
    assert swept[0] >= 20
    assert [stored.record.task_id for stored in store.list(Query("acme")).items] == [live.task_id]
    assert not [name for name in leftovers(tmp_path) if name.startswith("new/")]
    store.create(records[0])


def test_holder_that_was_killed_before_its_record_was_published(
    tmp_path: Path, make: RecordMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The staged file goes with the take-over, and the record is the old one. [D074]"""
    doomed = open_store(tmp_path, durability="edges")
    lease, stored = claimed(doomed, make)
    monkeypatch.setattr(doomed._ops, "replace", die)
    in_child(lambda: doomed.commit(lease, transitions.progressed(stored.record, 9.0, stage="lost")))
    assert len(list((control(tmp_path) / "leases").rglob("stage-*/*"))) == 1
    store = open_store(tmp_path)
    (expired,) = expired_after(store, tmp_path)
    assert expired.record.stage is None
    taken = store.take_over(expired, holder="me", count_attempt=False)
    assert taken is not None
    store.end(taken[0], transitions.abandoned(taken[1].record, 9.0))
    assert leftovers(tmp_path) == []
