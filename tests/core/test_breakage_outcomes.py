"""Outcomes that wait for the store, when more is wrong than the store: no threads, closing, an id that came again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stores import InMemoryTaskStore
from task_tracker import AsyncTaskTracker, StoreUnavailable, TaskNotFound, TaskRecord, TaskTracker
from tests.core.support import ACTIVE, OWNER, PATIENCE, FakeClock, WatchedStore, own_threads

AWAY = StoreUnavailable("the store is away")


@pytest.fixture(autouse=True)
def _nothing_is_left_to_the_retry_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Most tests here are about what happens before that thread comes to it: it is not started."""
    if "no_threads" in request.fixturenames:
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("task_tracker.outcomes.PendingOutcomes.start", lambda *_: None)
        yield


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """While the block lasts, the system has no thread to give."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    @contextmanager
    def block() -> Iterator[None]:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            yield

    return block


def begun(tracker: TaskTracker, number: int) -> list[TaskRecord]:
    tasks = [tracker.create("t", f"r{index}", **OWNER) for index in range(number)]
    for task in tasks:
        tracker.start(task.task_id)
    return tasks


def stored(store: WatchedStore, task: TaskRecord) -> TaskRecord:
    return store.inner.get(task.key).record  # type: ignore[union-attr]


# ---- closing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [AWAY, RuntimeError("a backend's own error")])
@pytest.mark.parametrize("stuck", [1, 3, 8])
def test_closing_tries_each_outcome_though_the_first_ones_fail(
    clock: FakeClock, store: WatchedStore, trouble: Exception, stuck: int
) -> None:
    tracker = TaskTracker(store, clock=clock)
    tasks = begun(tracker, stuck + 5)
    store.go_down(AWAY)
    for task in tasks:
        with pytest.raises(StoreUnavailable, match="tried again in the background"):
            tracker.complete(task.task_id, {"work": "of an hour"})
    store.come_back()
    store.errors_of = dict.fromkeys([task.task_id for task in tasks[:stuck]], trouble)
    store.calls.clear()
    tracker.close()
    asked = [subject for _, subject in store.calls]
    assert {task.task_id for task in tasks} <= set(asked)
    assert [asked.count(task.task_id) for task in tasks[:stuck]] == [1] * stuck, "once, not again and again"
    assert {stored(store, task).status for task in tasks[:stuck]} == {"running"}
    assert {stored(store, task).status for task in tasks[stuck:]} == {"completed"}
    assert store.closed == 1


def test_closing_does_not_try_for_ever(
    clock: FakeClock, store: WatchedStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Each try takes as long as a hanging mount does; what was not tried is named as lost."""
    tracker = TaskTracker(store, clock=clock)
    tasks = begun(tracker, 4)
    store.go_down(AWAY)
    for task in tasks:
        with pytest.raises(StoreUnavailable):
            tracker.complete(task.task_id)
    store.calls.clear()
    for _ in range(8):
        store.before("update", lambda: clock.advance(20))
    tracker.close()
    assert len({subject for _, subject in store.calls}) == 2
    assert "4 outcomes could not be stored" in caplog.text


# ---- no thread to be had --------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["the next call", "the next outcome", "close"])
def test_an_outcome_is_kept_without_a_thread_to_try_it(
    clock: FakeClock, store: WatchedStore, no_threads: Callable[[], Any], then: str
) -> None:
    tracker = TaskTracker(store, clock=clock)
    task, other = begun(tracker, 2)
    store.go_down(AWAY)
    with no_threads():
        with pytest.raises(StoreUnavailable, match="tried again in the background"):
            tracker.complete(task.task_id, {"n": 1})
        with pytest.raises(StoreUnavailable, match="an earlier outcome"):
            tracker.fail(task.task_id, "after")
        assert not tracker.access.outcomes.running
        store.come_back()
        if then == "the next call":
            found = tracker.complete(task.task_id, {"n": 1})
            assert found is not None
            assert found.status == "completed"
            assert len(tracker.access.outcomes) == 0
        elif then == "close":
            tracker.close()
    if then == "the next outcome":
        store.errors_of = {other.task_id: AWAY}
        with pytest.raises(StoreUnavailable):
            tracker.complete(other.task_id)
        thread = tracker.access.outcomes._thread
        assert thread is not None, "there is one now, for both"
    tracker.close()
    assert stored(store, task).result == {"n": 1}


def test_calls_are_refused_as_unavailable_without_a_thread_to_make_them(
    store: WatchedStore, no_threads: Callable[[], Any]
) -> None:
    """The awaited calls need one each. A refused one leaves nothing behind; an outcome is kept all the same."""
    tracker = TaskTracker(store)
    task, other = begun(tracker, 2)

    async def story() -> None:
        wrapper = AsyncTaskTracker(tracker)
        with no_threads():
            for call in (
                wrapper.create("t", "new", **OWNER),
                wrapper.create_if_no_running("t", "new", **OWNER),
                wrapper.get(task.task_id, **OWNER),
                wrapper.list_tasks(**OWNER),
                wrapper.has_running("t", "new", **OWNER),
                wrapper.stats(**OWNER),
                wrapper.update(task.task_id, progress=5),
                wrapper.delete(task.task_id, **OWNER),
            ):
                with pytest.raises(StoreUnavailable, match="did not begin; try again"):
                    await call
            with pytest.raises(StoreUnavailable, match="is kept and tried again"):
                await wrapper.complete(task.task_id, {"n": 1})
            with pytest.raises(StoreUnavailable, match="an earlier outcome"):
                await wrapper.fail(task.task_id, "after")
        assert await wrapper.complete(other.task_id, {"n": 2})
        assert [found.resource_id for found in await wrapper.list_tasks(**OWNER)] == ["r1", "r0"]
        await wrapper.aclose()

    asyncio.run(asyncio.wait_for(story(), PATIENCE))
    assert stored(store, task).result == {"n": 1}
    assert stored(store, other).result == {"n": 2}
    assert not own_threads()


# ---- an id that came again ------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ACTIVE)
@pytest.mark.parametrize("lands", ["the retry", "the next call", "close"])
def test_an_outcome_is_not_for_the_next_life_of_its_id(clock: FakeClock, state: str, lands: str) -> None:
    """Monday's outcome waits; an administrator ends and deletes the task; tuesday's task has the same id."""
    shared = InMemoryTaskStore()
    store = WatchedStore(shared)
    tracker, others = TaskTracker(store, clock=clock), TaskTracker(WatchedStore(shared), clock=clock)
    tracker.create("t", "r", task_id="nightly", **OWNER)
    tracker.start("nightly")
    store.go_down(AWAY)
    with pytest.raises(StoreUnavailable):
        tracker.complete("nightly", {"of": "monday"})

    others.mark_cancelled("nightly", **OWNER)
    others.delete("nightly", **OWNER)
    clock.advance(86_400)
    others.create("t", "r", task_id="nightly", **OWNER)
    if state != "pending":
        others.start("nightly")
    if state == "cancelling":
        others.cancel("nightly")

    store.come_back()
    if lands == "the retry":
        assert tracker.access.outcomes.run_once() is None
    elif lands == "the next call":
        tracker.update("nightly", message="tuesday's", **OWNER)
    else:
        tracker.close()
    found = others.get("nightly", **OWNER)
    assert found is not None
    assert (found.status, found.result) == (state, None)
    assert len(tracker.access.outcomes) == 0


def test_an_outcome_for_a_task_that_nobody_used_the_id_of_again_lands(
    clock: FakeClock, store: WatchedStore
) -> None:
    """However the task has been changed by others in the meantime."""
    tracker, others = TaskTracker(store, clock=clock), TaskTracker(store.inner, clock=clock)
    (task,) = begun(tracker, 1)
    store.go_down(AWAY)
    with pytest.raises(StoreUnavailable):
        tracker.complete(task.task_id, {"n": 1})
    clock.advance(5)
    others.update(task.task_id, progress=50, **OWNER)
    store.come_back()
    assert tracker.access.outcomes.run_once() is None
    assert stored(store, task).result == {"n": 1}
    others.delete(task.task_id, **OWNER)
    with pytest.raises(TaskNotFound):
        tracker.update(task.task_id, progress=60)
