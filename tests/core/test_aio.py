"""AsyncTaskTracker: the same answers, awaited; and what it does with its threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stores import InMemoryTaskStore
from task_tracker import (
    AsyncTaskTracker,
    InvalidTransition,
    StoreUnavailable,
    TaskNotFound,
    TaskRecord,
    TaskTracker,
)
from tests.core.support import OWNER, FakeClock, WatchedStore, ids, own_threads, until


@pytest.fixture(params=["memory", "blocking"])
def pair(request: pytest.FixtureRequest, clock: FakeClock) -> Any:
    """An AsyncTaskTracker on a store that never waits, and one on a store that may."""
    store = InMemoryTaskStore() if request.param == "memory" else WatchedStore()
    tracker = AsyncTaskTracker(TaskTracker(store, clock=clock))
    yield tracker
    tracker.close()


def run(call: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await asyncio.wait_for(call(), 60)

    return asyncio.run(main())


# ---- the same interface ----------------------------------------------------------------------------

PLAIN = {
    *("count", "snapshot_counts_by_type", "lease_of", "close"),
    *("start_cleanup_loop", "stop_cleanup_loop", "start_reconciler", "stop_reconciler"),
}


def methods_of(kind: type) -> dict[str, Callable[..., object]]:
    return {name: value for name, value in vars(kind).items() if inspect.isfunction(value) and name[0] != "_"}


def test_the_async_tracker_has_the_same_methods_with_the_same_parameters() -> None:
    sync, aio = methods_of(TaskTracker), methods_of(AsyncTaskTracker)
    assert aio.keys() - sync.keys() == {"aclose"}
    assert sync.keys() - aio.keys() == set()
    for name, method in sync.items():
        assert inspect.signature(aio[name]) == inspect.signature(method), name
        assert inspect.iscoroutinefunction(aio[name]) is (name not in PLAIN), name


def test_every_call_gives_what_the_synchronous_one_gives(pair: AsyncTaskTracker, clock: FakeClock) -> None:
    async def main() -> None:
        task = await pair.create("t", "r", **OWNER, meta={"a": 1}, payload=[1], private="p", task_id="mine")
        assert (task.task_id, task.meta, task.payload, task.get_private()) == ("mine", {"a": 1}, [1], "p")
        assert await pair.create_if_no_running("t", "r", **OWNER) is None
        other = await pair.create_if_no_running("t", "r2", **OWNER)
        assert other is not None
        assert (await pair.start("mine", stage="s")).stage == "s"  # type: ignore[union-attr]
        assert (await pair.update("mine", progress=5, message="m")).progress == 5  # type: ignore[union-attr]
        assert (await pair.update_stage("mine", "s2")).stage == "s2"  # type: ignore[union-attr]
        assert not await pair.is_cancellation_requested("mine")
        assert (await pair.cancel("mine")).status == "cancelling"  # type: ignore[union-attr]
        assert await pair.is_cancellation_requested("mine")
        assert await pair.has_running("t", "r", **OWNER)
        assert (await pair.mark_cancelled("mine")).status == "cancelled"  # type: ignore[union-attr]
        assert (await pair.complete(other.task_id, 1, resource_id="r3")).result == 1  # type: ignore[union-attr]
        third = await pair.create("t", **OWNER)
        assert (await pair.fail(third.task_id, "x", error_code="c")).error_code == "c"  # type: ignore[union-attr]
        assert (await pair.get("mine", **OWNER)).status == "cancelled"  # type: ignore[union-attr]
        assert await pair.get("unknown", **OWNER) is None
        assert await pair.get("unknown") is None
        page = await pair.list_tasks("t", limit=2, **OWNER)
        assert len(page) == 2
        assert len(await pair.list_tasks(before=page.next_cursor, **OWNER)) == 1
        assert (await pair.wait("mine")).status == "cancelled"
        assert pair.count() == 3
        expected = {"t": {"cancelled": 1, "completed": 1, "failed": 1}}
        assert pair.snapshot_counts_by_type() == await pair.stats("acme") == expected
        assert await pair.delete("mine")
        clock.advance(90_000)
        assert await pair.purge() == 1
        assert await pair.delete_user_tasks(**OWNER) == 1

    run(main)


def test_errors_are_the_same(pair: AsyncTaskTracker) -> None:
    async def main() -> None:
        task = await pair.create("t", **OWNER)
        await pair.complete(task.task_id)
        with pytest.raises(InvalidTransition):
            await pair.start(task.task_id)
        for call in (pair.start, pair.wait, pair.cancel):
            with pytest.raises(TaskNotFound):
                await call("unknown", **OWNER)
            with pytest.raises(TaskNotFound):
                await call("unknown")
        with pytest.raises(ValueError, match="Task ownership"):
            await pair.create("t", account_id="", user_id="u")
        with pytest.raises(ValueError, match="poll_interval"):
            await pair.wait(task.task_id, poll_interval=0)

    run(main)


def test_by_itself_it_makes_a_tracker_in_memory() -> None:
    async def main() -> TaskRecord:
        async with AsyncTaskTracker() as tracker:
            return await tracker.create("t", **OWNER)

    assert run(main).status == "pending"


@pytest.mark.parametrize("arguments", [{"max_threads": 0}, {"call_seconds": 0}, {"call_seconds": math.nan}])
def test_senseless_limits_are_refused_at_once(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be "):
        AsyncTaskTracker(**arguments)


# ---- threads ---------------------------------------------------------------------------------------


def test_a_store_that_never_waits_costs_no_thread(clock: FakeClock) -> None:
    async def main() -> None:
        task = await tracker.create("t", **OWNER)
        await tracker.complete(task.task_id)
        await tracker.get(task.task_id)

    tracker = AsyncTaskTracker(TaskTracker(InMemoryTaskStore(), clock=clock))
    run(main)
    assert own_threads() == set()
    tracker.close()


def test_what_the_cache_can_answer_costs_no_thread(store: WatchedStore, clock: FakeClock) -> None:
    sync = TaskTracker(store, clock=clock)
    task = sync.create("t", **OWNER)
    sync.complete(task.task_id)
    tracker = AsyncTaskTracker(sync)

    async def main() -> None:
        assert await tracker.get(task.task_id) is not None
        assert await tracker.get(task.task_id, **OWNER) is not None
        assert tracker.count() == 1
        assert own_threads() == set()
        await tracker.get("other", **OWNER)
        assert own_threads()

    run(main)
    tracker.close()


def test_no_more_threads_are_used_than_allowed(store: WatchedStore) -> None:
    """[D123] store concurrency is bounded: 41 writers and 41 readers."""
    tracker = AsyncTaskTracker(TaskTracker(store), max_threads=4)
    lock = threading.Lock()
    inside: list[int] = [0]
    most: list[int] = [0]

    class Counted(WatchedStore):
        def _call(self, operation, subject, call):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            try:
                return super()._call(operation, subject, call)
            finally:
                with lock:
                    inside[0] -= 1

    tracker.tracker.access.store = Counted(store.inner)

    async def main() -> None:
        tasks = [await tracker.create("t", **OWNER) for _ in range(41)]
        writes = [tracker.start(task.task_id) for task in tasks]
        reads = [tracker.get(task.task_id, **OWNER) for task in tasks]
        await asyncio.gather(*writes, *reads)
        assert len(own_threads()) <= 4

    run(main)
    assert 1 <= most[0] <= 4
    assert len(tracker.tracker.access._locks) == 0
    tracker.close()


def test_calls_see_the_context_of_the_caller(clock: FakeClock) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("request")
    seen: list[str] = []
    store = WatchedStore()
    tracker = AsyncTaskTracker(TaskTracker(store, clock=clock))

    async def one(name: str) -> None:
        variable.set(name)
        store.before("create", lambda: seen.append(variable.get()))
        await tracker.create("t", **OWNER)

    async def main() -> None:
        for name in ("a", "b"):
            await asyncio.create_task(one(name))

    run(main)
    assert seen == ["a", "b"]
    tracker.close()


# ---- wait ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [True, False])
def test_wait_is_told_of_an_end_in_this_process_at_once(blocking: bool) -> None:
    """Poll interval of an hour: only being told ends it. The end comes from another thread."""
    store = WatchedStore() if blocking else InMemoryTaskStore()
    sync = TaskTracker(store)
    tracker = AsyncTaskTracker(sync)

    async def main() -> None:
        task = await tracker.create("t", **OWNER)
        waits = [asyncio.create_task(tracker.wait(task.task_id, poll_interval=3600.0)) for _ in range(3)]
        await until(lambda: len(sync.access.changes._callbacks.get(task.key, ())) == 3)
        thread = threading.Thread(target=sync.complete, args=(task.task_id, 5))
        thread.start()
        assert [one.result for one in await asyncio.gather(*waits)] == [5, 5, 5]
        thread.join()
        assert sync.access.changes._callbacks == {}

    run(main)
    tracker.close()


def test_wait_looks_once_per_change_and_not_for_ever_after(store: WatchedStore) -> None:
    tracker = AsyncTaskTracker(TaskTracker(store))

    async def main() -> None:
        task = await tracker.create("t", **OWNER)
        waiting = asyncio.create_task(tracker.wait(task.task_id, poll_interval=3600.0))
        look = ("get", task.task_id)
        await until(lambda: store.calls.count(look) == 1)
        await tracker.start(task.task_id)
        await until(lambda: store.calls.count(look) == 2)
        for _ in range(20):
            await tracker.stats("acme")
        assert store.calls.count(look) == 2
        await tracker.complete(task.task_id)
        assert (await waiting).status == "completed"

    run(main)
    tracker.close()


def test_wait_holds_no_thread_meanwhile(store: WatchedStore) -> None:
    tracker = AsyncTaskTracker(TaskTracker(store), max_threads=2)

    async def main() -> None:
        tasks = [await tracker.create("t", **OWNER) for _ in range(20)]
        waits = [asyncio.create_task(tracker.wait(task.task_id, poll_interval=3600.0)) for task in tasks]
        for task in tasks:
            await tracker.complete(task.task_id)
        assert ids(await asyncio.gather(*waits)) == ids(tasks)

    run(main)
    tracker.close()


def test_wait_notices_an_end_in_another_process_and_an_outage_that_passes(
    store: WatchedStore, clock: FakeClock
) -> None:
    """[D122]"""
    theirs = TaskTracker(store, clock=clock)
    tracker = AsyncTaskTracker(TaskTracker(store, clock=clock))

    async def main() -> None:
        task = await tracker.create("t", **OWNER)
        store.go_down(StoreUnavailable("away"), "get")
        waiting = asyncio.create_task(tracker.wait(task.task_id, poll_interval=0.001))
        await until(lambda: store.count_of("get") >= 3)
        store.come_back()
        theirs.complete(task.task_id, 1, **OWNER)
        assert (await waiting).result == 1

    run(main)
    tracker.close()


def test_wait_raises_when_time_is_up_and_when_the_store_stays_away(
    store: WatchedStore, clock: FakeClock
) -> None:
    tracker = AsyncTaskTracker(TaskTracker(store, clock=clock))

    async def main() -> None:
        task = await tracker.create("t", **OWNER)
        with pytest.raises(TimeoutError, match="has not ended within 0 seconds"):
            await tracker.wait(task.task_id, timeout=0)
        store.before("get", lambda: clock.advance(5))
        with pytest.raises(TimeoutError, match="has not ended within 5 seconds"):
            await tracker.wait(task.task_id, timeout=5)
        store.go_down(StoreUnavailable("away"), "get")
        store.before("get", lambda: None)
        store.before("get", lambda: clock.advance(61))
        with pytest.raises(StoreUnavailable):
            await tracker.wait(task.task_id, poll_interval=0.001)

    run(main)
    tracker.close()


def test_a_waiter_whose_loop_has_closed_disturbs_nobody(store: WatchedStore) -> None:
    sync = TaskTracker(store)
    tracker = AsyncTaskTracker(sync)
    task = sync.create("t", **OWNER)
    key = task.key

    async def main() -> None:
        waiting = asyncio.create_task(tracker.wait(task.task_id, poll_interval=3600.0))
        await until(lambda: sync.access.changes._callbacks.get(key))
        callback = sync.access.changes._callbacks[key][0]
        kept.append(callback)
        waiting.cancel()

    kept: list[Callable[[], None]] = []
    run(main)
    with sync.access.changes.subscribed(key, kept[0]):  # as if the loop had been closed before it ended
        assert sync.complete(task.task_id, 1) is not None
    tracker.close()
