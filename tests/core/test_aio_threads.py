"""AsyncTaskTracker when threads run short or never return: outcomes, fairness, closing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import pytest

from task_tracker import (
    AsyncTaskTracker,
    InvalidTransition,
    StoreUnavailable,
    TaskRecord,
    TaskTracker,
)
from tests.core.support import OWNER, PATIENCE, WatchedStore, own_threads, until

ROOT = Path(__file__).parents[2]


class Busy:
    """A tracker with few threads, all of them held up at a gate by one task while the block lasts."""

    def __init__(self, *, max_threads: int = 1, strict: bool = True) -> None:
        self.store = WatchedStore()
        self.sync = TaskTracker(self.store, strict=strict)
        self.tracker = AsyncTaskTracker(self.sync, max_threads=max_threads)
        self.hanging = self.sync.create("t", **OWNER)
        self.task = self.sync.create("t", **OWNER)
        self.task_id = self.task.task_id
        self.gate = self.store.gate("get", self.hanging.task_id)

    async def __aenter__(self) -> Self:
        self.reading = asyncio.ensure_future(self.tracker.get(self.hanging.task_id))
        await asyncio.to_thread(self.gate.wait_entered)
        self.tracker._call_seconds = 0.001
        return self

    async def __aexit__(self, *_: object) -> None:
        self.gate.open()
        await self.reading
        self.tracker._call_seconds = PATIENCE
        await self.tracker.aclose()

    def record(self) -> TaskRecord:
        return self.store.inner.get(self.task.key).record  # type: ignore[union-attr]


def run(call: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await asyncio.wait_for(call(), 2 * PATIENCE)

    return asyncio.run(main())


# ---- outcomes --------------------------------------------------------------------------------------

ENDINGS: dict[str, tuple[Callable[[Busy], Awaitable[Any]], str]] = {
    "complete": (lambda b: b.tracker.complete(b.task_id, {"n": 1}, **OWNER), "completed"),
    "fail": (lambda b: b.tracker.fail(b.task_id, "it broke", error_code="c"), "failed"),
    "mark_cancelled": (lambda b: b.tracker.mark_cancelled(b.task_id), "cancelled"),
    "complete with what is no JSON": (lambda b: b.tracker.complete(b.task_id, object()), "failed"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_outcome_that_found_no_thread_is_kept_and_lands(ending: str) -> None:
    """[D129] the work is done; that other calls had every thread must not leave the task running."""
    call, status = ENDINGS[ending]

    async def main() -> TaskRecord:
        async with Busy() as busy:
            with pytest.raises(StoreUnavailable, match=r"no thread .* did not begin; .*is kept") as refused:
                await call(busy)
            assert "may still take effect" not in str(refused.value)
            await until(lambda: busy.record().status.is_terminal)
            return busy.record()

    assert run(main).status == status


def test_an_outcome_is_kept_as_of_the_moment_of_the_call() -> None:
    async def main() -> None:
        async with Busy() as busy:
            called_at = busy.sync.clock.now()
            busy.store.go_down(StoreUnavailable("away"), "update")
            with pytest.raises(StoreUnavailable):
                await busy.tracker.complete(busy.task_id, {"n": 1})
            waited_until = busy.sync.clock.now()
            busy.store.come_back()
            await until(lambda: busy.record().status.is_terminal)
            assert called_at <= busy.record().updated_at <= waited_until
            assert busy.record().result == {"n": 1}

    run(main)


def test_of_two_outcomes_that_found_no_thread_the_first_wins_and_the_second_is_told() -> None:
    """[D129] `try: work(); complete() except: fail()` must not show finished work as failed."""

    async def main() -> None:
        async with Busy() as busy:
            busy.store.go_down(StoreUnavailable("away"), "update")
            with pytest.raises(StoreUnavailable, match="is kept"):
                await busy.tracker.complete(busy.task_id, 1)
            with pytest.raises(StoreUnavailable, match=r"an earlier outcome .* will win"):
                await busy.tracker.fail(busy.task_id, "late")
            busy.store.come_back()
            await until(lambda: busy.record().status.is_terminal)
            assert busy.record().status == "completed"

    run(main)


def test_other_calls_that_found_no_thread_say_that_they_did_not_begin() -> None:
    """[D097] nothing of them "may still take effect"."""

    async def main() -> None:
        async with Busy() as busy:
            for call in (
                busy.tracker.start(busy.task_id),
                busy.tracker.get(busy.task_id),
                busy.tracker.create("t", **OWNER),
            ):
                with pytest.raises(
                    StoreUnavailable, match=r"no thread .* did not begin; try again"
                ) as refused:
                    await call
                assert "may still take effect" not in str(refused.value)
            assert len(busy.sync.access.outcomes) == 0

    run(main)


def test_an_outcome_whose_caller_is_cancelled_before_it_began_is_kept() -> None:
    """An ending that was started is settled; one that was not must not be the only one that is lost."""

    async def main() -> None:
        async with Busy() as busy:
            busy.tracker._call_seconds = PATIENCE
            ending = asyncio.ensure_future(busy.tracker.complete(busy.task_id, 1))
            await asyncio.sleep(0)
            ending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ending
            await until(lambda: busy.record().status.is_terminal)
            assert busy.record().status == "completed"

    run(main)


@pytest.mark.parametrize("strict", [True, False])
def test_an_outcome_of_nobodys_task_is_not_kept(strict: bool) -> None:
    async def main() -> None:
        async with Busy(strict=strict) as busy:
            with pytest.raises(StoreUnavailable, match="did not begin; try again"):
                await busy.tracker.complete("unknown", 1)
            assert len(busy.sync.access.outcomes) == 0

    run(main)


# ---- fairness --------------------------------------------------------------------------------------


def ask(tracker: AsyncTaskTracker, task_id: str, times: int) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(tracker.get(task_id, **OWNER)) for _ in range(times)]


def hung(store: WatchedStore, task_id: str) -> int:
    return store.calls.count(("get", task_id))


def test_one_task_that_hangs_leaves_threads_for_all_others() -> None:
    """[D123] as many calls on it as there are threads, twice over."""
    store = WatchedStore()
    tracker = AsyncTaskTracker(TaskTracker(store), max_threads=16)

    async def main() -> None:
        stuck, other = await tracker.create("t", **OWNER), await tracker.create("t", **OWNER)
        gate = store.gate("get", stuck.task_id)
        asking = ask(tracker, stuck.task_id, 32)
        await until(lambda: hung(store, stuck.task_id) == 4)
        assert (await tracker.start(other.task_id)).status == "running"  # type: ignore[union-attr]
        assert (await tracker.complete(other.task_id, 1)).result == 1  # type: ignore[union-attr]
        assert len(await tracker.list_tasks(**OWNER)) == 2
        assert hung(store, stuck.task_id) == 4, "the others of its calls wait without a thread"
        gate.open()
        assert {record.task_id for record in await asyncio.gather(*asking)} == {stuck.task_id}

    run(main)
    tracker.close()


def test_one_owner_whose_directory_hangs_leaves_threads_for_the_others() -> None:
    """[D123]"""
    store = WatchedStore()
    tracker = AsyncTaskTracker(TaskTracker(store), max_threads=16)

    async def main() -> None:
        gate = store.gate("list", "acme")
        listing = [asyncio.ensure_future(tracker.list_tasks(**OWNER)) for _ in range(32)]
        await until(lambda: store.count_of("list") == 8)
        other = await tracker.create("t", account_id="other", user_id="bob")
        assert len(await tracker.list_tasks(account_id="other", user_id="bob")) == 1
        assert (await tracker.complete(other.task_id)).status == "completed"  # type: ignore[union-attr]
        gate.open()
        await asyncio.gather(*listing)
        assert store.count_of("list") == 33

    run(main)
    tracker.close()


def test_a_call_that_waits_for_its_turn_has_a_deadline_and_leaves_nothing_behind() -> None:
    """[D097] pollers of a task that hangs for ever must not pile up."""
    store = WatchedStore()
    tracker = AsyncTaskTracker(TaskTracker(store), max_threads=4)

    async def main() -> None:
        stuck = await tracker.create("t", **OWNER)
        gate = store.gate("get", stuck.task_id)
        asking = ask(tracker, stuck.task_id, 1)
        await asyncio.to_thread(gate.wait_entered)
        tracker._call_seconds = 0.001
        for late in ask(tracker, stuck.task_id, 10):
            with pytest.raises(StoreUnavailable, match="did not begin"):
                await late
        assert len(tracker._threads) == 0
        gate.open()
        await asyncio.gather(*asking)
        assert hung(store, stuck.task_id) == 1

    run(main)
    tracker.close()


def test_calls_of_one_task_from_two_loops_take_turns() -> None:
    """The same tracker on two loops: neither owns the queue."""
    store = WatchedStore()
    sync = TaskTracker(store)
    tracker = AsyncTaskTracker(sync, max_threads=4)
    task = sync.create("t", **OWNER)
    gate = store.gate("get", task.task_id)

    async def one() -> Any:
        return await asyncio.gather(*ask(tracker, task.task_id, 8))

    async def main() -> None:
        loops = [asyncio.to_thread(asyncio.run, one()) for _ in range(2)]
        running = [asyncio.ensure_future(loop) for loop in loops]
        await asyncio.to_thread(gate.wait_entered)
        assert hung(store, task.task_id) == 1
        gate.open()
        for found in await asyncio.gather(*running):
            assert len(found) == 8

    run(main)
    tracker.close()


# ---- closing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [True, False])
def test_calls_after_close_are_refused(blocking: bool) -> None:
    """A new pool that nobody closes, on a store that is closed already, would be worse."""
    before = own_threads()
    sync = TaskTracker(WatchedStore()) if blocking else TaskTracker()
    tracker = AsyncTaskTracker(sync)
    task = sync.create("t", **OWNER)
    sync.complete(task.task_id, 1)
    tracker.close()
    tracker.close()

    async def main() -> None:
        for call in (
            tracker.get(task.task_id),
            tracker.create("t", **OWNER),
            tracker.complete(task.task_id),
            tracker.wait(task.task_id),
        ):
            with pytest.raises(RuntimeError, match="this AsyncTaskTracker is closed"):
                await call
        await tracker.aclose()

    run(main)
    assert own_threads() <= before


def test_close_does_not_wait_for_ever_for_a_call_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    """[D097]"""
    store = WatchedStore()
    sync = TaskTracker(store)
    tracker = AsyncTaskTracker(sync)
    task = sync.create("t", **OWNER)
    gate = store.gate("get", task.task_id)

    async def main() -> None:
        (reading,) = ask(tracker, task.task_id, 1)
        await asyncio.to_thread(gate.wait_entered)
        tracker._call_seconds = 0.01
        await tracker.aclose()
        reading.cancel()

    run(main)
    assert store.closed == 1
    assert not gate.passed.is_set()
    assert "1 call has not returned within 0.01 seconds" in caplog.text
    gate.open()


def test_calls_that_wait_for_a_thread_when_closing_begins_still_run() -> None:
    async def main() -> None:
        busy = Busy()
        async with busy:
            busy.tracker._call_seconds = PATIENCE
            writing = asyncio.ensure_future(busy.tracker.start(busy.task_id))
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(busy.tracker.aclose())
            await until(lambda: busy.tracker._closed)
            busy.gate.open()
            assert (await writing).status == "running"  # type: ignore[union-attr]
            await closing

    run(main)


def test_a_call_that_hangs_does_not_keep_the_interpreter_from_exiting() -> None:
    """[D097] a server that is told to stop stops."""
    program = (
        "import asyncio, threading\n"
        "from task_tracker import AsyncTaskTracker, StoreUnavailable, TaskTracker\n"
        "from tests.core.support import OWNER, WatchedStore\n"
        "class Hangs(WatchedStore):\n"
        "    def get(self, key, *, known=None):\n"
        "        threading.Event().wait()\n"
        "async def main():\n"
        "    tracker = AsyncTaskTracker(TaskTracker(Hangs()), call_seconds=0.01)\n"
        "    try:\n"
        "        await tracker.get('unknown', **OWNER)\n"
        "    except StoreUnavailable:\n"
        "        print('told')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (done.stdout, done.returncode) == ("told\n", 0), done.stderr


def test_an_ending_that_was_refused_is_refused_as_ever() -> None:
    tracker = AsyncTaskTracker(TaskTracker(WatchedStore()))

    async def main() -> None:
        async with tracker:
            task = await tracker.create("t", **OWNER)
            await tracker.complete(task.task_id, 1)
            with pytest.raises(InvalidTransition):
                await tracker.fail(task.task_id, "late")

    run(main)
