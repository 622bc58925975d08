"""What callers may import and how they may call it: changing any of this breaks somebody."""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stores
import task_tracker
from task_tracker import (
    AsyncTaskTracker,
    HandlerRegistry,
    Submission,
    TaskTracker,
    get_async_task_tracker,
    get_task_tracker,
    reset_task_tracker,
    set_task_tracker,
)
from task_tracker.store import LeaseStore, TaskStore
from tests.core.support import OWNER, WatchedStore, in_threads, join, own_threads

ROOT = Path(__file__).parents[2]

NAMES = [
    "AmbiguousTask",
    "AsyncTaskTracker",
    "Attempt",
    "CapabilityMissing",
    "CorruptRecord",
    "Finding",
    "HandlerRegistry",
    "InvalidPayload",
    "InvalidTaskId",
    "InvalidTransition",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "Reconciled",
    "Retention",
    "SettingsError",
    "StorageConfig",
    "StoreUnavailable",
    "Submission",
    "TaskExists",
    "TaskKey",
    "TaskNotFound",
    "TaskPage",
    "TaskRecord",
    "TaskStatus",
    "TaskTracker",
    "TaskTrackerError",
    "VersionConflict",
    "get_async_task_tracker",
    "get_task_tracker",
    "reset_task_tracker",
    "set_task_tracker",
]
# Positional ones in their order, `*`, keyword-only ones; "=" has a default.
SIGNATURES = {
    "create": "task_type resource_id= * account_id user_id task_id= meta= payload= private= connection=",
    "create_if_no_running": "task_type resource_id * account_id user_id",
    "submit": "task_type payload= * account_id user_id resource_id= version= dedupe= not_before= priority= "
    "timeout_seconds= max_attempts= task_id= meta= private= unregistered= connection=",
    "wake": "submission",
    "retry": "task_id account_id= user_id= * payload= private= version= not_before= unregistered=",
    "resume": "task_id account_id= user_id= * payload= private= version= not_before= unregistered=",
    "start": "task_id account_id= user_id= * stage= wait_seconds=",
    "release": "task_id account_id= user_id=",
    "lease_of": "task_id account_id= user_id=",
    "update": "task_id account_id= user_id= * stage= progress= message=",
    "update_stage": "task_id stage account_id= user_id=",
    "complete": "task_id result= account_id= user_id= * resource_id=",
    "fail": "task_id error account_id= user_id= * error_code=",
    "cancel": "task_id account_id= user_id=",
    "is_cancellation_requested": "task_id account_id= user_id=",
    "mark_cancelled": "task_id account_id= user_id=",
    "get": "task_id account_id= user_id=",
    "list_tasks": "task_type= status= resource_id= limit= account_id= user_id= * before=",
    "has_running": "task_type resource_id account_id= user_id=",
    "wait": "task_id account_id= user_id= timeout= poll_interval=",
    "effects_path": "task_id account_id= user_id=",
    "delete": "task_id account_id= user_id=",
    "delete_user_tasks": "account_id user_id",
    "count": "",
    "snapshot_counts_by_type": "",
    "stats": "account_id user_id=",
    "purge": "",
    "start_cleanup_loop": "",
    "stop_cleanup_loop": "",
    "reconcile": "* wait=",
    "start_reconciler": "",
    "stop_reconciler": "",
    "pause_type": "task_type",
    "resume_type": "task_type",
    "paused_types": "",
    "workers": "",
    "doctor": "* fix=",
    "close": "",
}


def shape(method: Any) -> str:
    words = []
    keyword_only = False
    for name, parameter in list(inspect.signature(method).parameters.items())[1:]:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            words.append("*")
        words.append(name + ("" if parameter.default is inspect.Parameter.empty else "="))
    return " ".join(words)


def test_the_names_of_task_tracker() -> None:
    assert task_tracker.__all__ == NAMES
    for name in NAMES:
        assert getattr(task_tracker, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'task_tracker' has no attribute 'nothing'"):
        task_tracker.nothing  # noqa: B018


def test_a_handler_is_registered_by_name() -> None:
    assert shape(HandlerRegistry.register) == (
        "task_type * version= handler payload= timeout_seconds= on_failure= idempotent= cancellable= max_attempts= "
        "retry_seconds= retry_limit_seconds= cleanup_seconds= max_running="
    )
    assert Submission._fields == ("record", "created")


def test_what_can_be_awaited_takes_the_same() -> None:
    for name, wanted in SIGNATURES.items():
        assert shape(getattr(AsyncTaskTracker, name)) == wanted, name


def test_the_names_of_stores() -> None:
    assert stores.__all__ == [
        "InMemoryTaskStore",
        "LeaseTaskStore",
        "PersistentTaskStore",
        "PostgresTaskStore",
    ]
    for name in stores.__all__:
        assert issubclass(getattr(stores, name), TaskStore)
    with pytest.raises(AttributeError, match="module 'stores' has no attribute 'nothing'"):
        stores.nothing  # noqa: B018


@pytest.mark.parametrize("module", ["task_tracker", "stores", "task_tracker.testing"])
def test_names_that_are_imported_late_show_up_all_the_same(module: str) -> None:
    imported = importlib.import_module(module)
    assert set(dir(imported)) >= {*imported.__all__, "__name__"}


@pytest.mark.parametrize("module", ["task_tracker", "stores"])
def test_everything_can_be_imported_with_a_star(module: str) -> None:
    names: dict[str, Any] = {}
    exec(f"from {module} import *", names)  # that is the question
    assert sorted(names.keys() - {"__builtins__"}) == sorted(sys.modules[module].__all__)


def test_the_methods_of_a_tracker_and_their_parameters() -> None:
    methods = {
        name: shape(value)
        for name, value in vars(TaskTracker).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert methods == SIGNATURES


def test_defaults_that_callers_rely_on() -> None:
    assert inspect.signature(TaskTracker.list_tasks).parameters["limit"].default == 50
    tracker = inspect.signature(TaskTracker).parameters
    assert list(tracker) == [
        *("store", "strict", "retention", "sweep_seconds", "max_cached"),
        *("holder", "start_within_seconds", "handlers", "wake_up"),
        *("max_payload_bytes", "max_checkpoint_bytes", "max_result_bytes", "clock"),
    ]
    assert tracker["strict"].default is True
    assert tracker["max_cached"].default == 10_000


def test_the_seam_is_abstract() -> None:
    for kind in (TaskStore, LeaseStore):
        with pytest.raises(TypeError, match="abstract"):
            kind()  # type: ignore[abstract]
    assert TaskStore.__abstractmethods__ == {
        *("create", "create_if_no_active", "update", "get", "list", "delete"),
        *("has_active", "count", "delete_owner", "purge"),
    }
    assert LeaseStore.__abstractmethods__ - TaskStore.__abstractmethods__ == {
        *("claim", "renew", "commit", "release", "end", "request_cancel", "expired", "take_over"),
        *("workload", "unclaimed", "recover"),
        *("pause", "unpause", "paused", "publish", "withdraw", "facts"),
    }


def test_a_store_that_holds_nothing_need_not_close() -> None:
    TaskStore.close(WatchedStore())


def test_what_is_imported_late_is_imported_when_asked_for() -> None:
    program = (
        "import sys, task_tracker\n"
        "late = ('pydantic', 'pydantic_settings', 'task_tracker.config', 'stores')\n"
        "print([name for name in late if name in sys.modules])\n"
        "task_tracker.StorageConfig\n"
        "print([name for name in late if name not in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["[]", "['stores']"], done.stderr


# ---- the tracker of the process --------------------------------------------------------------------


@pytest.fixture
def _reset() -> Any:
    yield
    reset_task_tracker()


@pytest.mark.usefixtures("_reset")
def test_the_tracker_of_the_process_is_set_and_taken_away(store: WatchedStore) -> None:
    with pytest.raises(RuntimeError, match=r"no task tracker is set up; call set_task_tracker\("):
        get_task_tracker()
    tracker = TaskTracker(store)
    set_task_tracker(tracker)
    assert get_task_tracker() is tracker
    assert in_threads(*[get_task_tracker] * 4) == [tracker] * 4
    other = TaskTracker()
    set_task_tracker(other)
    assert get_task_tracker() is other
    assert store.closed == 0, "whoever made it closes it"
    set_task_tracker(None)
    with pytest.raises(RuntimeError):
        get_task_tracker()
    with pytest.raises(RuntimeError, match=r"no task tracker is set up; call set_task_tracker\("):
        get_async_task_tracker()
    assert other.create("t", **OWNER).status == "pending"


@pytest.mark.parametrize("wrong", ["tracker", 1, TaskTracker, WatchedStore()])
def test_what_is_no_tracker_is_not_installed(wrong: Any) -> None:
    with pytest.raises(TypeError, match="is no tracker; give a TaskTracker, an AsyncTaskTracker or None"):
        set_task_tracker(wrong)


@pytest.mark.usefixtures("_reset")
def test_code_that_awaits_and_code_that_does_not_share_the_tracker_of_the_process(
    store: WatchedStore,
) -> None:
    """Whichever kind is installed, both can be had."""
    sync = TaskTracker(store)
    aio = AsyncTaskTracker(sync)
    set_task_tracker(aio)
    assert get_async_task_tracker() is aio
    assert get_task_tracker() is sync
    set_task_tracker(sync)
    assert get_task_tracker() is sync
    assert get_async_task_tracker().tracker is sync
    assert get_async_task_tracker() is get_async_task_tracker()
    other = TaskTracker()
    set_task_tracker(other)
    assert get_async_task_tracker().tracker is other
    aio.close()


@pytest.mark.usefixtures("_reset")
@pytest.mark.parametrize("wrapped", [True, False])
def test_resetting_ends_the_threads_of_the_tracker_that_was_awaited(
    store: WatchedStore, wrapped: bool
) -> None:
    before = own_threads()
    sync = TaskTracker(store)
    set_task_tracker(AsyncTaskTracker(sync) if wrapped else sync)
    asyncio.run(get_async_task_tracker().stats("acme"))
    assert own_threads() - before
    reset_task_tracker()
    assert own_threads() <= before
    assert store.closed == 1


@pytest.mark.usefixtures("_reset")
def test_a_wrapper_that_nobody_has_any_more_takes_its_threads_along(store: WatchedStore) -> None:
    """nobody can close it; the tracker below is not its own and stays open."""
    before = own_threads()
    set_task_tracker(TaskTracker(store))
    asyncio.run(get_async_task_tracker().stats("acme"))
    (thread,) = own_threads() - before
    set_task_tracker(None)
    gc.collect()
    join(thread)
    assert store.closed == 0


@pytest.mark.usefixtures("_reset")
def test_resetting_closes_it(store: WatchedStore) -> None:
    set_task_tracker(TaskTracker(store))
    reset_task_tracker()
    reset_task_tracker()
    assert store.closed == 1
    with pytest.raises(RuntimeError):
        get_task_tracker()
