"""Settings of leases, and what is started because of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from task_tracker import SettingsError, StorageConfig, TaskTracker
from task_tracker.store import LeaseStore
from tests.core.support import OWNER, own_threads


@pytest.fixture(autouse=True)
def _clean_environment(clean_environment: None) -> None:
    """Nothing of the machine's own settings gets in."""


@contextmanager
def built(settings: dict[str, Any], **options: Any) -> Iterator[tuple[TaskTracker, set[str]]]:
    """A tracker, and the names of the threads that were started with it."""
    before = own_threads()
    with StorageConfig(task_tracker=settings).build_task_tracker(**options) as tracker:
        yield tracker, {thread.name.removeprefix("task_tracker ") for thread in own_threads() - before}
    assert own_threads() <= before


@pytest.mark.parametrize(
    ("settings", "heartbeat", "lease"),
    [
        ({"lease_seconds": 6, "heartbeat_seconds": 6}, 6, 6),
        ({"lease_seconds": 6, "heartbeat_seconds": 3}, 3, 6),
        ({"lease_seconds": 6, "heartbeat_seconds": 2.001}, 2.001, 6),
        ({"backend": "lease", "root": "/r", "heartbeat_seconds": 11}, 11, 30),
    ],
)
def test_a_lease_has_room_for_heartbeats_that_come_late(
    settings: dict[str, Any], heartbeat: float, lease: float
) -> None:
    """[D019] At least three per lease, or the configuration is refused at the start, in one line."""
    with pytest.raises(SettingsError) as refused:
        StorageConfig(task_tracker=settings)
    assert str(refused.value) == (
        f"storage.task_tracker.heartbeat_seconds is {heartbeat:g} and storage.task_tracker.lease_seconds "
        f"{lease:g}, less than 3 heartbeats; give no more than a third of it, or leave it out"
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"lease_seconds": 6, "heartbeat_seconds": 2},
        {"lease_seconds": 0.3, "heartbeat_seconds": 0.1},
        {"lease_seconds": 1},
        {"heartbeat_seconds": 10},
        {"backend": "lease", "root": "/r", "heartbeat_seconds": 10},
    ],
)
def test_three_heartbeats_are_enough(settings: dict[str, Any]) -> None:
    StorageConfig(task_tracker=settings)


@pytest.mark.parametrize("key", ["lease_seconds", "heartbeat_seconds", "start_within_seconds"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "soon"])
def test_what_is_no_time_is_refused(key: str, value: object) -> None:
    with pytest.raises(SettingsError, match=rf"storage\.task_tracker\.{key} is "):
        StorageConfig(task_tracker={key: value})


def test_the_settings_reach_the_store_and_the_tracker() -> None:
    with built({"lease_seconds": 60, "heartbeat_seconds": 5, "start_within_seconds": None}) as (tracker, _):
        assert isinstance(tracker.store, LeaseStore)
        assert (tracker.store.lease_seconds, tracker.store.heartbeat_seconds) == (60, 5)
        assert tracker._reconciler is not None
        assert tracker._reconciler._start_within_seconds is None
    with built({}) as (tracker, _):
        assert isinstance(tracker.store, LeaseStore)
        assert math.isinf(tracker.store.lease_seconds)
        assert tracker._reconciler is not None
        assert tracker._reconciler._start_within_seconds == 86_400


@pytest.mark.parametrize(
    ("settings", "options", "threads"),
    [
        ({}, {}, {"retention sweep"}),
        ({}, {"reconcile": True}, {"retention sweep"}),
        ({"lease_seconds": 30}, {}, {"retention sweep", "reconciler"}),
        ({"lease_seconds": 30}, {"cleanup": False}, {"reconciler"}),
        ({"lease_seconds": 30}, {"reconcile": False}, {"retention sweep"}),
        ({"lease_seconds": 30, "reconcile": False}, {}, {"retention sweep"}),
        ({"lease_seconds": 30, "reconcile": False}, {"reconcile": True}, {"retention sweep", "reconciler"}),
    ],
)
def test_the_reconciler_runs_where_leases_expire(
    settings: dict[str, Any], options: dict[str, Any], threads: set[str]
) -> None:
    with built(settings, **options) as (_, started):
        assert started == threads


def test_a_store_without_leases_has_nothing_to_reconcile(tmp_path: Path) -> None:
    with built({"backend": "persistent", "root": str(tmp_path)}) as (_, started):
        assert started == {"retention sweep"}


def test_an_awaited_tracker_reconciles_as_well() -> None:
    before = own_threads()
    config = StorageConfig(task_tracker={"lease_seconds": 30})
    tracker = config.build_async_task_tracker(cleanup=False)
    assert [thread.name for thread in own_threads() - before] == ["task_tracker reconciler"]
    tracker.close()
    tracker = config.build_async_task_tracker(cleanup=False, reconcile=False)
    assert own_threads() <= before
    tracker.close()


@pytest.mark.parametrize("key", ["lease_seconds", "heartbeat_seconds"])
def test_terms_that_a_backend_would_ignore_are_refused(tmp_path: Path, key: str) -> None:
    config = StorageConfig(task_tracker={"backend": "persistent", "root": str(tmp_path), key: 10})
    with pytest.raises(SettingsError) as refused:
        config.build_task_tracker()
    assert str(refused.value) == (
        f"storage.task_tracker.{key} is set, but the backend 'persistent' has no leases; leave it out, or set "
        'storage.task_tracker.backend to "lease"'
    )


def test_leases_on_disk_need_a_directory() -> None:
    with pytest.raises(SettingsError) as refused:
        StorageConfig(task_tracker={"backend": "lease"}).build_task_store(agfs=object())
    assert str(refused.value) == (
        'storage.task_tracker.backend is "lease", which needs a directory; give storage.task_tracker.root (no file '
        "client can keep its promises)"
    )


def test_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASK_TRACKER__LEASE_SECONDS", "60")
    monkeypatch.setenv("TASK_TRACKER__HEARTBEAT_SECONDS", "30")
    with pytest.raises(SettingsError, match="less than 3 heartbeats; give no more"):
        StorageConfig()
    monkeypatch.setenv("TASK_TRACKER__HEARTBEAT_SECONDS", "20")
    monkeypatch.setenv("TASK_TRACKER__RECONCILE", "false")
    monkeypatch.setenv("TASK_TRACKER__START_WITHIN_SECONDS", "null")
    settings = StorageConfig().task_tracker
    assert (settings.lease_seconds, settings.heartbeat_seconds) == (60, 20)
    assert (settings.reconcile, settings.start_within_seconds) == (False, None)


def test_work_on_a_configured_tracker() -> None:
    """With real threads and a real clock, as a server has them."""
    with built({"lease_seconds": 30}) as (tracker, _):
        task = tracker.create("t", **OWNER)
        tracker.start(task.task_id)
        assert {"task_tracker lease keeper"} <= {thread.name for thread in own_threads()}
        tracker.complete(task.task_id, {"n": 1})
