"""Creating tasks: what is taken, what is refused, and who blocks whom."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from task_tracker import InvalidTaskId, StoreUnavailable, TaskExists, TaskTracker
from task_tracker.clock import is_generated_id, time_of_id
from tests.core.support import (
    ACTIVE,
    OWNER,
    START,
    TERMINAL,
    FakeClock,
    WatchedStore,
    drive_to,
    in_threads,
)


def test_a_new_task_is_pending_and_carries_what_was_given(tracker: TaskTracker, clock: FakeClock) -> None:
    task = tracker.create(
        "add_resource",
        "sess-1",
        **OWNER,
        meta={"a": [1]},
        payload=[1, None],
        private={"token": "s3cret"},
    )
    assert (task.task_type, task.resource_id, task.status) == ("add_resource", "sess-1", "pending")
    assert (task.account_id, task.user_id) == ("acme", "alice")
    assert task.created_at == task.updated_at == clock.now() == START
    assert (task.meta, task.payload, task.get_private()) == ({"a": [1]}, [1, None], {"token": "s3cret"})
    assert (task.result, task.error, task.stage) == (None, None, None)
    assert "attempt" not in task.to_dict(), "nobody has claimed it"
    assert tracker.get(task.task_id, **OWNER) == task


def test_an_id_is_made_unless_one_is_given(tracker: TaskTracker) -> None:
    """[D067] None makes an id."""
    made = tracker.create("t", **OWNER, task_id=None)
    assert is_generated_id(made.task_id)
    assert time_of_id(made.task_id) == START
    assert tracker.create("t", **OWNER, task_id="mine").task_id == "mine"


def test_real_ids_differ_and_grow() -> None:
    with TaskTracker() as tracker:
        made = [tracker.create("t", **OWNER).task_id for _ in range(100)]
    assert made == sorted(set(made))


@pytest.mark.parametrize("task_id", ["", " ", "\n", "a\0", "\ud800", 5, b"a"])
def test_an_id_that_cannot_be_one_is_refused(tracker: TaskTracker, task_id: Any) -> None:
    """[D067]"""
    with pytest.raises(InvalidTaskId, match="task_id"):
        tracker.create("t", **OWNER, task_id=task_id)
    assert tracker.count() == 0
    assert tracker.stats("acme") == {}


@pytest.mark.parametrize("name", ["account_id", "user_id"])
@pytest.mark.parametrize("value", ["", "  ", "\t", None, 5, b"a"])
def test_an_owner_that_is_blank_or_no_text_is_refused(tracker: TaskTracker, name: str, value: Any) -> None:
    """[D067] [D155]"""
    owner = OWNER | {name: value}
    for call in (
        lambda: tracker.create("t", **owner),
        lambda: tracker.create_if_no_running("t", None, **owner),
        lambda: tracker.delete_user_tasks(**owner),
    ):
        with pytest.raises(ValueError, match="Task ownership requires non-empty account_id and user_id"):
            call()
    assert tracker.count() == 0


@pytest.mark.parametrize("name", ["account_id", "user_id"])
def test_an_owner_that_is_missing_is_a_type_error(tracker: TaskTracker, name: str) -> None:
    owner: Any = {key: value for key, value in OWNER.items() if key != name}
    with pytest.raises(TypeError, match=name):
        tracker.create("t", **owner)
    with pytest.raises(TypeError, match=name):
        tracker.create_if_no_running("t", None, **owner)


@pytest.mark.parametrize("task_type", ["", " ", None, 5])
def test_a_type_that_is_blank_or_no_text_is_refused(tracker: TaskTracker, task_type: Any) -> None:
    with pytest.raises(InvalidTaskId, match="task_type must be a non-blank string"):
        tracker.create(task_type, **OWNER)


@pytest.mark.parametrize("resource_id", [5, b"a", "a\0b", "\udfff"])
def test_a_resource_that_is_no_text_is_refused(tracker: TaskTracker, resource_id: Any) -> None:
    for call in (
        lambda: tracker.create("t", resource_id, **OWNER),
        lambda: tracker.create_if_no_running("t", resource_id, **OWNER),
    ):
        with pytest.raises(ValueError, match="resource_id"):
            call()


@pytest.mark.parametrize("name", ["meta", "payload"])
def test_what_is_not_json_is_refused_and_nothing_is_created(tracker: TaskTracker, name: str) -> None:
    values: Any = {name: {"a": object()}}
    with pytest.raises(ValueError, match=rf"{name}\.a is a builtins\.object"):
        tracker.create("t", **OWNER, **values)
    assert tracker.stats("acme") == {}


def test_meta_may_be_any_mapping(tracker: TaskTracker) -> None:
    task = tracker.create("t", **OWNER, meta=MappingProxyType({"a": 1}))
    assert task.meta == {"a": 1}
    assert tracker.create("t", **OWNER, meta={}).meta_json is None


@pytest.mark.parametrize("meta", [[1], "text", 5])
def test_meta_that_is_no_mapping_is_refused(tracker: TaskTracker, meta: Any) -> None:
    with pytest.raises(ValueError, match="meta must be a mapping with text as keys, not "):
        tracker.create("t", **OWNER, meta=meta)


def test_values_given_can_be_changed_afterwards_without_effect(tracker: TaskTracker) -> None:
    meta: dict[str, Any] = {"a": [1]}
    result = {"b": [2]}
    task = tracker.create("t", **OWNER, meta=meta)
    tracker.complete(task.task_id, result)
    meta["a"].append(2)
    result["b"].clear()
    found = tracker.get(task.task_id)
    assert found is not None
    assert (found.meta, found.result) == ({"a": [1]}, {"b": [2]})


@pytest.mark.parametrize("status", [*ACTIVE, *TERMINAL])
def test_an_id_that_is_taken_is_refused_whatever_became_of_the_task(
    tracker: TaskTracker, status: str
) -> None:
    tracker.create("t", **OWNER, task_id="mine")
    drive_to(tracker, "mine", status)
    with pytest.raises(TaskExists, match="task mine exists already; choose another id"):
        tracker.create("other", **OWNER, task_id="mine")
    found = tracker.get("mine")
    assert found is not None
    assert (found.task_type, found.status) == ("t", status)


def test_an_id_can_be_used_again_after_deletion(tracker: TaskTracker, clock: FakeClock) -> None:
    tracker.create("t", **OWNER, task_id="mine")
    tracker.complete("mine")
    assert tracker.delete("mine")
    clock.advance(1)
    tracker.create("t2", **OWNER, task_id="mine")
    found = tracker.get("mine")
    assert found is not None
    assert (found.task_type, found.status) == ("t2", "pending")
    assert tracker.start("mine") is not None


def test_one_of_many_who_create_the_same_id_wins(store: WatchedStore) -> None:
    with TaskTracker(store) as one, TaskTracker(store) as two:
        calls = [lambda t=t: t.create("t", **OWNER, task_id="mine") for t in (one, two) for _ in range(4)]
        answers = in_threads(*calls)
    assert sum(isinstance(answer, TaskExists) for answer in answers) == 7


# ---- create_if_no_running --------------------------------------------------------------------------


@pytest.mark.parametrize("status", ACTIVE)
def test_an_active_task_keeps_another_of_its_kind_away(tracker: TaskTracker, status: str) -> None:
    """[D059]"""
    task = tracker.create("t", "r", **OWNER)
    drive_to(tracker, task.task_id, status)
    assert tracker.create_if_no_running("t", "r", **OWNER) is None
    assert tracker.has_running("t", "r", **OWNER)
    assert tracker.stats("acme") == {"t": {status: 1}}


@pytest.mark.parametrize("status", TERMINAL)
def test_an_ended_task_makes_room_for_the_next(tracker: TaskTracker, status: str) -> None:
    """[D059]"""
    task = tracker.create_if_no_running("t", "r", **OWNER)
    assert task is not None
    drive_to(tracker, task.task_id, status)
    assert not tracker.has_running("t", "r", **OWNER)
    again = tracker.create_if_no_running("t", "r", **OWNER)
    assert again is not None
    assert again.task_id != task.task_id
    assert tracker.create_if_no_running("t", "r", **OWNER) is None


def test_other_types_resources_and_owners_are_other_kinds(tracker: TaskTracker) -> None:
    """[D066] the key holds the tenant."""
    owners = [
        {"account_id": account, "user_id": user}
        for account, user in (("a", "u1"), ("a", "u2"), ("b", "u1"), ("b", "u2"))
    ]
    for owner in owners:
        for task_type in ("t1", "t2"):
            for resource_id in (None, "", "r", "R"):
                assert tracker.create_if_no_running(task_type, resource_id, **owner) is not None
                assert tracker.create_if_no_running(task_type, resource_id, **owner) is None
    assert len(tracker.list_tasks(limit=None)) == 32


def test_plain_create_never_refuses_and_is_seen_by_those_who_ask(tracker: TaskTracker) -> None:
    tracker.create("t", "r", **OWNER)
    tracker.create("t", "r", **OWNER)
    assert tracker.create_if_no_running("t", "r", **OWNER) is None


def test_one_of_many_who_create_if_none_runs_wins(store: WatchedStore) -> None:
    with TaskTracker(store) as one, TaskTracker(store) as two:
        for _ in range(10):
            calls = [
                lambda t=t: t.create_if_no_running("t", "r", **OWNER) for t in (one, two) for _ in range(4)
            ]
            answers = in_threads(*calls)
            created = [answer for answer in answers if answer is not None]
            assert len(created) == 1
            one.complete(created[0].task_id, **OWNER)  # type: ignore[union-attr]


def test_a_check_that_failed_creates_nothing(watched: TaskTracker, store: WatchedStore) -> None:
    """[D071]"""
    store.go_down(StoreUnavailable("away"))
    for call in (
        lambda: watched.create_if_no_running("t", "r", **OWNER),
        lambda: watched.create("t", "r", **OWNER),
        lambda: watched.has_running("t", "r", **OWNER),
    ):
        with pytest.raises(StoreUnavailable):
            call()
    store.come_back()
    assert watched.stats("acme") == {}
    assert watched.count() == 0
