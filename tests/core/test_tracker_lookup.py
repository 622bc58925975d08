"""Who finds what: cache first, the store with an owner, and nothing of anybody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from task_tracker import AmbiguousTask, TaskNotFound, TaskRecord, TaskTracker
from tests.core.support import (
    ACTIVE,
    OWNER,
    STATUSES,
    TERMINAL,
    FakeClock,
    Owner,
    WatchedStore,
    drive_to,
    ids,
)

BOB: Owner = {"account_id": "acme", "user_id": "bob"}
EVE: Owner = {"account_id": "evil", "user_id": "alice"}


def other_tracker(store: WatchedStore, clock: FakeClock) -> TaskTracker:
    """A tracker of another process, or of this one after a restart: nothing in its cache."""
    return TaskTracker(store, clock=clock)


# ---- cache and store -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", TERMINAL)
@pytest.mark.parametrize("owner", [{}, OWNER])
def test_an_ended_task_is_answered_by_the_cache_alone(
    watched: TaskTracker, store: WatchedStore, status: str, owner: Owner
) -> None:
    task = watched.create("t", **OWNER)
    drive_to(watched, task.task_id, status)
    store.calls.clear()
    found = watched.get(task.task_id, **owner)
    assert found is not None
    assert found.status == status
    assert store.calls == []


@pytest.mark.parametrize("status", ACTIVE)
@pytest.mark.parametrize("owner", [{}, OWNER])
def test_an_active_task_is_confirmed_by_the_store(
    watched: TaskTracker, store: WatchedStore, status: str, owner: Owner
) -> None:
    """[D122]"""
    task = watched.create("t", **OWNER)
    drive_to(watched, task.task_id, status)
    store.calls.clear()
    found = watched.get(task.task_id, **owner)
    assert found is not None
    assert found.status == status
    assert store.calls == [("get", task.task_id)]


def test_without_an_owner_only_the_cache_is_asked(
    watched: TaskTracker, store: WatchedStore, clock: FakeClock
) -> None:
    task = watched.create("t", **OWNER)
    cold = other_tracker(store, clock)
    store.calls.clear()
    some: list[Owner] = [{}, {"account_id": "acme"}, {"user_id": "alice"}]
    for owner in some:
        assert cold.get(task.task_id, **owner) is None
        with pytest.raises(TaskNotFound, match="pass account_id and user_id to have the store asked"):
            cold.start(task.task_id, **owner)
        assert cold.delete(task.task_id, **owner) is False
    assert store.calls == []
    assert cold.get(task.task_id, **OWNER) == task
    assert cold.get(task.task_id) == task, "now the cache knows it"


@pytest.mark.parametrize("call", ["complete", "fail", "cancel", "start", "mark_cancelled", "update", "wait"])
def test_a_cold_cache_without_an_owner_is_a_typed_error_and_with_one_it_works(
    watched: TaskTracker, store: WatchedStore, clock: FakeClock, call: str
) -> None:
    """[D054]"""
    arguments: dict[str, list[Any]] = {"complete": [None], "fail": ["broke"]}
    task = watched.create("t", **OWNER)
    if call == "wait":
        watched.complete(task.task_id)
    cold = other_tracker(store, clock)
    method = getattr(cold, call)
    with pytest.raises(TaskNotFound, match=task.task_id):
        method(task.task_id, *arguments.get(call, []))
    with pytest.raises(TaskNotFound, match="unknown-id"):
        method("unknown-id", *arguments.get(call, []), **OWNER)
    assert isinstance(method(task.task_id, *arguments.get(call, []), **OWNER), TaskRecord)


def test_the_triple_is_enough_to_go_on_from_any_instance(store: WatchedStore, clock: FakeClock) -> None:
    """[D121]"""
    one, two, three = (other_tracker(store, clock) for _ in range(3))
    task = one.create("t", "r", **OWNER)
    assert two.get(task.task_id, **OWNER) == task
    assert ids(two.list_tasks(**OWNER)) == [task.task_id]
    assert two.has_running("t", "r", **OWNER)
    assert two.has_running("t", "r", account_id="acme")
    assert two.create_if_no_running("t", "r", **OWNER) is None
    two.start(task.task_id, **OWNER)
    assert three.is_cancellation_requested(task.task_id, **OWNER) is False
    three.cancel(task.task_id, **OWNER)
    assert two.is_cancellation_requested(task.task_id), (
        "asked without an owner: the cache has it, the store is asked"
    )
    two.mark_cancelled(task.task_id)
    for tracker in (one, two, three):
        found = tracker.get(task.task_id)
        assert found is not None
        assert found.status == "cancelled"
        assert not tracker.has_running("t", "r", **OWNER)


def test_no_instance_shows_running_after_another_has_ended_the_task(
    store: WatchedStore, clock: FakeClock
) -> None:
    """[D122]"""
    ours, theirs = other_tracker(store, clock), other_tracker(store, clock)
    task = ours.create("t", "r", **OWNER)
    ours.start(task.task_id)
    assert theirs.get(task.task_id, **OWNER).status == "running"  # type: ignore[union-attr]
    ours.complete(task.task_id, 1)
    assert theirs.list_tasks()[0].status == "completed"
    assert theirs.get(task.task_id).status == "completed"  # type: ignore[union-attr]
    assert theirs.wait(task.task_id, timeout=0).result == 1
    assert not theirs.has_running("t", "r")
    assert not theirs.is_cancellation_requested(task.task_id)
    assert theirs.snapshot_counts_by_type() == {"t": {"completed": 1}}


def test_a_task_that_another_instance_deleted_is_gone_here_too(store: WatchedStore, clock: FakeClock) -> None:
    ours, theirs = other_tracker(store, clock), other_tracker(store, clock)
    task = ours.create("t", **OWNER)
    theirs.cancel(task.task_id, **OWNER)
    theirs.delete(task.task_id, **OWNER)
    assert ours.get(task.task_id) is None
    assert ours.count() == 0
    with pytest.raises(TaskNotFound):
        ours.start(task.task_id)


def test_an_update_never_creates_a_deleted_task_again(store: WatchedStore, clock: FakeClock) -> None:
    ours, theirs = other_tracker(store, clock), other_tracker(store, clock)
    task = ours.create("t", **OWNER)
    theirs.cancel(task.task_id, **OWNER)
    theirs.delete(task.task_id, **OWNER)
    with pytest.raises(TaskNotFound):
        ours.complete(task.task_id)
    assert theirs.get(task.task_id, **OWNER) is None
    assert ours.count() == 0, "and it is no longer remembered"


# ---- two owners, one id ----------------------------------------------------------------------------


def test_an_id_of_two_owners_needs_an_owner(tracker: TaskTracker) -> None:
    for owner in (OWNER, BOB, EVE):
        tracker.create("t", **owner, task_id="same")
    for call in (
        lambda: tracker.get("same"),
        lambda: tracker.get("same", account_id="acme"),
        lambda: tracker.get("same", user_id="alice"),
        lambda: tracker.start("same"),
        lambda: tracker.wait("same"),
        lambda: tracker.delete("same"),
        lambda: tracker.is_cancellation_requested("same"),
    ):
        with pytest.raises(AmbiguousTask, match="owners have a task same; name account_id and user_id"):
            call()
    assert tracker.get("same", account_id="evil").account_id == "evil"  # type: ignore[union-attr]
    assert tracker.get("same", user_id="bob").user_id == "bob"  # type: ignore[union-attr]
    tracker.start("same", **BOB)
    assert [tracker.get("same", **owner).status for owner in (OWNER, BOB, EVE)] == [  # type: ignore[union-attr]
        "pending",
        "running",
        "pending",
    ]


def test_two_owners_are_no_longer_two_when_one_deleted_the_task(tracker: TaskTracker) -> None:
    tracker.create("t", **OWNER, task_id="same")
    tracker.create("t", **BOB, task_id="same")
    tracker.cancel("same", **BOB)
    tracker.delete("same", **BOB)
    assert tracker.get("same").user_id == "alice"  # type: ignore[union-attr]


# ---- strangers -------------------------------------------------------------------------------------


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # compared
        return type(error), str(error).replace("never-existed", "ID")


CALLS: dict[str, Callable[[TaskTracker, str, Owner], object]] = {
    "get": lambda t, i, who: t.get(i, **who),
    "start": lambda t, i, who: t.start(i, **who),
    "update": lambda t, i, who: t.update(i, **who, progress=1),
    "update_stage": lambda t, i, who: t.update_stage(i, "s", **who),
    "complete": lambda t, i, who: t.complete(i, 1, **who),
    "fail": lambda t, i, who: t.fail(i, "x", **who),
    "cancel": lambda t, i, who: t.cancel(i, **who),
    "mark_cancelled": lambda t, i, who: t.mark_cancelled(i, **who),
    "is_cancellation_requested": lambda t, i, who: t.is_cancellation_requested(i, **who),
    "wait": lambda t, i, who: t.wait(i, **who, timeout=0),
    "delete": lambda t, i, who: t.delete(i, **who),
}


@pytest.mark.parametrize("stranger", [BOB, EVE], ids=["other user", "other account"])
@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("call", CALLS)
def test_somebody_elses_task_looks_exactly_like_no_task(
    tracker: TaskTracker, call: str, status: str, stranger: Owner
) -> None:
    """[D155]"""
    task = tracker.create("t", "r", **OWNER, task_id="ID")
    drive_to(tracker, "ID", status)
    before = tracker.get("ID", **OWNER)
    foreign = outcome(lambda: CALLS[call](tracker, "ID", stranger))
    unknown = outcome(lambda: CALLS[call](tracker, "never-existed", stranger))
    assert foreign == unknown
    assert tracker.get("ID", **OWNER) == before
    assert task.key == before.key  # type: ignore[union-attr]


@pytest.mark.parametrize("stranger", [BOB, EVE], ids=["other user", "other account"])
def test_strangers_see_nothing_in_lists_and_counts(tracker: TaskTracker, stranger: Owner) -> None:
    """[D155]"""
    tracker.create("t", "r", **OWNER)
    assert tracker.list_tasks(**stranger) == []
    assert not tracker.has_running("t", "r", **stranger)
    assert tracker.stats(**stranger) == {}
    assert tracker.create_if_no_running("t", "r", **stranger) is not None
    assert tracker.delete_user_tasks(account_id="evil", user_id="mallory") == 0


def test_the_account_sees_its_users_and_no_other_account(tracker: TaskTracker) -> None:
    """[D155] for those who look at a whole account."""
    for owner in (OWNER, BOB, EVE):
        tracker.create("t", "r", **owner)
    assert {task.user_id for task in tracker.list_tasks(account_id="acme")} == {"alice", "bob"}
    assert tracker.has_running("t", "r", account_id="acme")
    assert not tracker.has_running("t", "r", account_id="nobody")
    assert tracker.stats("acme") == {"t": {"pending": 2}}
    assert tracker.stats("acme", "bob") == {"t": {"pending": 1}}


# ---- ids that cannot be meant ----------------------------------------------------------------------


@pytest.mark.parametrize("task_id", ["never-existed", "", " ", "../x", "a\0b", "x" * 1000, "\ud800"])
@pytest.mark.parametrize("owner", [{}, OWNER])
def test_ids_of_no_task_are_not_found_at_once(
    tracker: TaskTracker, clock: FakeClock, task_id: str, owner: Owner
) -> None:
    """[D139] never existed, malformed."""
    assert tracker.get(task_id, **owner) is None
    assert tracker.delete(task_id, **owner) is False
    for call in (tracker.wait, tracker.cancel, tracker.start, tracker.is_cancellation_requested):
        with pytest.raises(TaskNotFound):
            call(task_id, **owner)
    assert clock.waited == []


def test_a_purged_task_is_not_found_at_once(tracker: TaskTracker, clock: FakeClock) -> None:
    """[D139]"""
    task = tracker.create("t", **OWNER)
    tracker.complete(task.task_id)
    clock.advance(90_000)
    assert tracker.purge() == 1
    assert tracker.get(task.task_id, **OWNER) is None
    for call in (tracker.wait, tracker.cancel, tracker.complete):
        with pytest.raises(TaskNotFound):
            call(task.task_id, **OWNER)


@pytest.mark.parametrize("name", ["account_id", "user_id"])
@pytest.mark.parametrize("value", ["", "  ", 5, b"a"])
@pytest.mark.parametrize("call", CALLS)
def test_a_blank_owner_is_refused_everywhere(tracker: TaskTracker, call: str, name: str, value: Any) -> None:
    """[D067] blank is not the same as not given."""
    for owner in (OWNER | {name: value}, {name: value}):
        with pytest.raises(ValueError, match="Task ownership requires non-empty account_id and user_id"):
            CALLS[call](tracker, "task-1", owner)


@pytest.mark.parametrize("name", ["account_id", "user_id"])
@pytest.mark.parametrize("value", ["", "  ", 5])
def test_a_blank_owner_is_refused_where_many_are_asked_for(
    tracker: TaskTracker, name: str, value: Any
) -> None:
    """[D067]"""
    for owner in (OWNER | {name: value}, {name: value}):
        for call in (
            lambda o=owner: tracker.list_tasks(**o),
            lambda o=owner: tracker.has_running("t", None, **o),
        ):
            with pytest.raises(ValueError, match="Task ownership requires non-empty"):
                call()
    with pytest.raises(ValueError, match="Task ownership requires non-empty"):
        tracker.stats(**(OWNER | {name: value}))
