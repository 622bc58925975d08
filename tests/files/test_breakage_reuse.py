"""An id of the caller's own, of the form that the library makes, which is deleted and used again at once.

Names of that form are believed to come once; another process that has seen the first life end must see the
second one all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from stores import PersistentTaskStore
from task_tracker import InvalidTransition, TaskExists, TaskTracker
from task_tracker.clock import SYSTEM_CLOCK
from tests.files.support import DIRECTORY, OWNER, age

DAY = 86_400.0


class Lives(NamedTuple):
    """``theirs`` creates, ends, deletes and creates ``task_id`` again; ``ours`` has seen its first end."""

    ours: TaskTracker
    theirs: TaskTracker
    task_id: str
    directory: Path

    def begin_again(self) -> None:
        self.theirs.delete(self.task_id, **OWNER)
        self.theirs.create("reindex", "docs", task_id=self.task_id, **OWNER)

    def status(self) -> str:
        found = self.theirs.get(self.task_id, **OWNER)
        assert found is not None
        return found.status.value


@pytest.fixture(params=["just written", "long settled"])
def lives(request: pytest.FixtureRequest, root: Path) -> Iterator[Lives]:
    """Files that were just written are looked at again anyway; others only for a reason."""
    directory = root / DIRECTORY.lstrip("/")
    task_id = SYSTEM_CLOCK.new_id(SYSTEM_CLOCK.now())
    with (
        TaskTracker(PersistentTaskStore(root, durability="none")) as ours,
        TaskTracker(PersistentTaskStore(root, durability="none")) as theirs,
    ):
        theirs.create("reindex", "docs", task_id=task_id, **OWNER)
        theirs.complete(task_id, {"life": 1}, **OWNER)
        if request.param == "long settled":
            for path in (*directory.iterdir(), directory):
                age(path, 3600)
        assert [task.status for task in ours.list_tasks(**OWNER)] == ["completed"]
        assert not ours.has_running("reindex", "docs", **OWNER)
        yield Lives(ours, theirs, task_id, directory)


def test_the_second_life_is_running(lives: Lives) -> None:
    lives.begin_again()
    assert lives.ours.has_running("reindex", "docs", **OWNER)
    assert lives.ours.has_running("reindex", "docs", "acme")
    assert lives.ours.create_if_no_running("reindex", "docs", **OWNER) is None


def test_the_second_life_is_not_deleted_while_it_is_active(lives: Lives) -> None:
    lives.begin_again()
    with pytest.raises(InvalidTransition, match="has 1 tasks that have not ended"):
        lives.ours.delete_user_tasks(**OWNER)
    assert lives.status() == "pending"


def test_the_second_life_is_listed_and_counted(lives: Lives) -> None:
    lives.begin_again()
    assert [task.status for task in lives.ours.list_tasks(**OWNER)] == ["pending"]
    assert [task.status for task in lives.ours.list_tasks(account_id="acme", status="pending")] == ["pending"]
    assert not lives.ours.list_tasks(status="completed", **OWNER)
    assert lives.ours.stats("acme") == {"reindex": {"pending": 1}}


@pytest.mark.parametrize("looked", [False, True])
def test_it_is_seen_also_later_however_much_else_happens(lives: Lives, looked: bool) -> None:
    lives.begin_again()
    for number in range(5):
        other = lives.theirs.create("other", f"r{number}", **OWNER)
        lives.theirs.complete(other.task_id, **OWNER)
        if looked:
            lives.theirs.delete(other.task_id, **OWNER)
            assert lives.ours.has_running("reindex", "docs", **OWNER)
    lives.theirs.start(lives.task_id, **OWNER)
    assert lives.ours.has_running("reindex", "docs", **OWNER)
    assert lives.ours.list_tasks(status="running", **OWNER)


def test_lives_that_follow_each_other_fast(lives: Lives) -> None:
    for _ in range(20):
        lives.begin_again()
        assert lives.ours.has_running("reindex", "docs", **OWNER)
        lives.theirs.complete(lives.task_id, **OWNER)
        assert not lives.ours.has_running("reindex", "docs", **OWNER)


@pytest.mark.parametrize("known", ["listed", "read"])
def test_a_change_is_made_to_the_second_life(lives: Lives, known: str) -> None:
    """Whatever `get` says meanwhile, which may be the end that this process remembers."""
    if known == "read":
        assert lives.ours.get(lives.task_id, **OWNER)
    lives.begin_again()
    started = lives.ours.start(lives.task_id, **OWNER)
    assert started is not None
    assert started.status == lives.status() == "running"
    assert lives.ours.complete(lives.task_id, {"life": 2}, **OWNER)
    found = lives.theirs.get(lives.task_id, **OWNER)
    assert found is not None
    assert found.result == {"life": 2}


# ---- ids whose time is not their record's ---------------------------------------------------------------


@pytest.mark.parametrize("refused", [True, False])
def test_only_a_record_that_is_made_marks_its_directory_as_unordered(root: Path, refused: bool) -> None:
    """The mark costs every listing from then on. A caller that tries an old id in vain must not set it."""
    at = SYSTEM_CLOCK.now() - DAY
    old, free = SYSTEM_CLOCK.new_id(at), SYSTEM_CLOCK.new_id(at)
    directory = root / DIRECTORY.lstrip("/")
    directory.mkdir(parents=True)
    record = {"task_type": "t", "status": "completed", "created_at": at, "updated_at": at}
    owner = {"account_id": "acme", "user_id": "alice", "resource_id": None, "result": None, "error": None}
    (directory / f"{old}.json").write_text(json.dumps({"task_id": old, **record, **owner}))
    with TaskTracker(PersistentTaskStore(root, durability="none")) as tracker:
        if refused:
            with pytest.raises(TaskExists):
                tracker.create("t", task_id=old, **OWNER)
        else:
            tracker.create("t", task_id=free, **OWNER)
    assert (directory / ".unordered").exists() is not refused
