"""A root that goes away or is replaced under a running server, and a user's directory that is a link.

Nothing is known of the tasks then: they are neither "not found" nor "none is running", and nothing is made in
the place of what is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stores import PersistentTaskStore
from task_tracker import Retention, StoreUnavailable, TaskTracker
from tests.files.support import OWNER, ids, local_store

TASK = "task-1"
Call = Callable[[TaskTracker], object]

CALLS: dict[str, Call] = {
    "get": lambda tracker: tracker.get(TASK, **OWNER),
    "get-unknown": lambda tracker: tracker.get("unknown", **OWNER),
    "list": lambda tracker: tracker.list_tasks(**OWNER),
    "list-account": lambda tracker: tracker.list_tasks(account_id="acme"),
    "list-other-account": lambda tracker: tracker.list_tasks(account_id="other"),
    "has_running": lambda tracker: tracker.has_running("reindex", "docs", **OWNER),
    "has_running-account": lambda tracker: tracker.has_running("reindex", "docs", "acme"),
    "stats": lambda tracker: tracker.stats(**OWNER),
    "stats-account": lambda tracker: tracker.stats("acme"),
    "create": lambda tracker: tracker.create("reindex", "docs", **OWNER),
    "create-new-user": lambda tracker: tracker.create("reindex", account_id="acme", user_id="new"),
    "create_if_no_running": lambda tracker: tracker.create_if_no_running("reindex", "docs", **OWNER),
    "update": lambda tracker: tracker.update(TASK, progress=5, **OWNER),
    "cancel": lambda tracker: tracker.cancel(TASK, **OWNER),
    "complete": lambda tracker: tracker.complete(TASK, **OWNER),
    "delete": lambda tracker: tracker.delete(TASK, **OWNER),
    "delete_user_tasks": lambda tracker: tracker.delete_user_tasks(**OWNER),
    "purge": lambda tracker: tracker.purge(),
}


class Place:
    """A root that can be taken away and brought back."""

    def __init__(self, path: Path, kind: str) -> None:
        self.root = path / "root"
        self._kind = kind
        self._volume = path / "volume"
        self._away = path / "away"
        if kind == "link":
            self.root.symlink_to(self._volume)
        (self._volume if kind == "link" else self.root).mkdir()

    def go_away(self) -> None:
        (self._volume if self._kind == "link" else self.root).rename(self._away)
        if self._kind == "replaced":
            self.root.mkdir()

    def come_back(self) -> None:
        if self._kind == "replaced":
            self.root.rmdir()
        self._away.rename(self._volume if self._kind == "link" else self.root)

    def is_untouched(self) -> bool:
        if self._kind == "replaced":
            return not os.listdir(self.root)
        return not self.root.exists() and not self._volume.exists()


@pytest.fixture(params=["renamed", "link", "replaced"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.param)


def tracker_on(root: Path, **options: Any) -> TaskTracker:
    return TaskTracker(PersistentTaskStore(root, durability="none"), **options)


@pytest.fixture
def task(place: Place) -> str:
    """A running task, made by another process."""
    with tracker_on(place.root) as other:
        other.create("reindex", "docs", task_id=TASK, **OWNER)
        other.start(TASK)
    return TASK


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("before", ["knows it", "has only opened it", "has looked at others"])
def test_nothing_is_said_of_what_is_away(place: Place, task: str, name: str, before: str) -> None:
    with tracker_on(place.root) as tracker:
        if before == "knows it":
            for look in ("get", "list-account", "has_running"):
                CALLS[look](tracker)
        elif before == "has looked at others":
            tracker.get(task, "acme", "bob")
            tracker.list_tasks(account_id="other")
        place.go_away()
        with pytest.raises(StoreUnavailable, match=r"is gone|another directory"):
            CALLS[name](tracker)
        assert place.is_untouched()
        place.come_back()
        if name != "complete":
            assert tracker.has_running("reindex", "docs", **OWNER)
        assert tracker.get(task, **OWNER)
        tracker.create("reindex", "others", **OWNER)
    assert len(ids(local_store(place.root))) == 2


@pytest.mark.parametrize("lands", ["the next call", "close"])
def test_an_outcome_waits_until_the_root_is_back(
    place: Place, task: str, lands: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tracker_on(place.root) as tracker:
        monkeypatch.setattr(tracker.access.outcomes, "start", lambda *_: None)
        tracker.update(task, progress=5, **OWNER)
        place.go_away()
        with pytest.raises(StoreUnavailable, match="tried again in the background"):
            tracker.complete(task, {"hours": "of work"})
        assert tracker.access.outcomes.run_once() is not None, "it waits on"
        assert place.is_untouched()
        place.come_back()
        if lands == "the next call":
            assert tracker.complete(task, {"hours": "of work"})
            assert len(tracker.access.outcomes) == 0
    with tracker_on(place.root) as other:
        found = other.get(task, **OWNER)
        assert found is not None
        assert (found.status, found.result) == ("completed", {"hours": "of work"})


def test_a_root_that_is_not_there_yet_has_no_tasks(tmp_path: Path) -> None:
    """It is made by the first creation, in this process or another; from then on it is missed."""
    root = tmp_path / "root"
    with tracker_on(root) as tracker, tracker_on(root) as reader:
        for each in (tracker, reader):
            assert each.get(TASK, **OWNER) is None
            assert each.list_tasks(account_id="acme") == []
            assert not each.has_running("reindex", None, **OWNER)
        assert not root.exists()
        tracker.create("reindex", "docs", task_id=TASK, **OWNER)
        assert reader.has_running("reindex", "docs", **OWNER)
        root.rename(tmp_path / "away")
        for each in (tracker, reader):
            with pytest.raises(StoreUnavailable, match="is gone"):
                each.has_running("reindex", "docs", **OWNER)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "purge"])
def test_a_link_that_leads_nowhere_is_no_empty_root(tmp_path: Path, name: str) -> None:
    """The server starts before its volume is mounted."""
    root = tmp_path / "root"
    root.symlink_to(tmp_path / "volume")
    with tracker_on(root) as tracker:
        with pytest.raises(StoreUnavailable, match="is gone"):
            CALLS[name](tracker)
        assert os.listdir(tmp_path) == ["root"]
        (tmp_path / "volume").mkdir()
        tracker.create("reindex", **OWNER)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc here")
@pytest.mark.parametrize("name", ["create", "create_if_no_running"])
@pytest.mark.parametrize("durability", ["none", "edges", "full"])
def test_a_root_that_cannot_be_made_is_unavailable(name: str, durability: str) -> None:
    """mkdir says ENOENT there, which is what a missing task looks like."""
    with (
        TaskTracker(PersistentTaskStore("/proc/nope", durability=durability)) as tracker,
        pytest.raises(StoreUnavailable, match="/proc/nope"),
    ):
        CALLS[name](tracker)


# ---- a user's directory that is a link ------------------------------------------------------------------


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A root where an operator has moved alice's directory to a bigger disk, and bob's is where it was."""
    root = tmp_path / "root"
    with tracker_on(root) as other:
        other.create("reindex", "docs", task_id=TASK, **OWNER)
        for user in ("alice", "bob"):
            other.create("old", task_id="old", account_id="acme", user_id=user)
            other.complete("old", account_id="acme", user_id=user)
    directory = root / "local" / "acme" / "tasks" / "alice"
    directory.rename(tmp_path / "alice")
    directory.symlink_to(tmp_path / "alice")
    return root


@pytest.mark.parametrize(
    "name",
    [name for name in CALLS if name not in ("list-other-account", "create-new-user", "purge")],
)
def test_a_users_directory_that_is_a_link_is_not_left_out(linked: Path, name: str) -> None:
    with tracker_on(linked) as tracker:
        with pytest.raises(StoreUnavailable, match="symbolic link below the root"):
            CALLS[name](tracker)
        assert tracker.stats("acme", "bob") == {"old": {"completed": 1}}
    assert len(list((linked.parent / "alice").glob("*.json"))) == 2


def test_the_sweep_of_the_other_users_goes_on(linked: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tracker_on(linked, retention=Retention(0, 0, 0)) as tracker:
        assert tracker.purge() == 1
        assert tracker.stats("acme", "bob") == {}
    assert "1 expired tasks could not be deleted" in caplog.text
    assert (linked.parent / "alice" / "old.json").exists()
