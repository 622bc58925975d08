"""AsyncTaskTracker over a store that is slow or hangs: the loop, deadlines, cancellation, closing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from task_tracker import AsyncTaskTracker, StoreUnavailable, TaskRecord, TaskTracker
from task_tracker.clock import SYSTEM_CLOCK, Clock
from tests.core.support import OWNER, PATIENCE, FakeClock, Gate, WatchedStore, background, own_threads, until


class Slow:
    """A tracker whose store can be held up, and a pending task in it."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, **limits: Any) -> None:
        self.store = WatchedStore()
        self.sync = TaskTracker(self.store, clock=clock)
        self.tracker = AsyncTaskTracker(self.sync, **limits)
        self.task = self.sync.create("t", "r", **OWNER)
        self.task_id = self.task.task_id

    def status(self) -> str:
        return str(self.store.inner.get(self.task.key).record.status)  # type: ignore[union-attr]


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.tracker.close()


def still_hangs(gate: Gate) -> None:
    assert gate.entered.is_set()
    assert not gate.passed.is_set()


async def entered(gate: Gate) -> None:
    """Wait until a thread stands at the gate; the loop goes on meanwhile."""
    await asyncio.to_thread(gate.wait_entered)


def run(call: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await asyncio.wait_for(call(), 2 * PATIENCE)

    return asyncio.run(main())


@asynccontextmanager
async def held_up(slow: Slow, operation: str, call: Awaitable[Any]) -> AsyncIterator[asyncio.Future[Any]]:
    """Run ``call`` into a gate at ``operation`` on the task; the gate is open after the block."""
    gate = slow.store.gate(operation, slow.task_id)
    task = asyncio.ensure_future(call)
    await entered(gate)
    try:
        yield task
    finally:
        gate.open()


# ---- the loop goes on ------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["get", "update"])
def test_the_loop_and_other_tasks_go_on_while_a_call_hangs(slow: Slow, operation: str) -> None:
    """[D097] [D123] no blocking call on the loop; other keys go on."""
    tracker = slow.tracker

    async def main() -> None:
        call = tracker.get(slow.task_id) if operation == "get" else tracker.start(slow.task_id)
        async with held_up(slow, operation, call) as hanging:
            turns = 0
            for _ in range(1000):
                await asyncio.sleep(0)
                turns += 1
            assert turns == 1000
            other = await tracker.create("t", **OWNER)
            assert await tracker.start(other.task_id) is not None
            assert await tracker.get(other.task_id) is not None
            assert await tracker.complete(other.task_id, 1) is not None
            assert (await tracker.get(other.task_id)).result == 1  # type: ignore[union-attr]
            assert len(await tracker.list_tasks(**OWNER)) == 2
            assert await tracker.has_running("t", "r", **OWNER)
            assert not hanging.done()
        assert isinstance(await hanging, TaskRecord)

    run(main)


def test_ended_tasks_are_answered_while_every_thread_hangs() -> None:
    """[D097]"""
    slow = Slow(max_threads=1)
    ended = slow.sync.create("t", **OWNER)
    slow.sync.complete(ended.task_id, 1)

    async def main() -> None:
        async with held_up(slow, "get", slow.tracker.get(slow.task_id)) as hanging:
            assert (await slow.tracker.get(ended.task_id)).result == 1  # type: ignore[union-attr]
            assert (await slow.tracker.get(ended.task_id, **OWNER)).result == 1  # type: ignore[union-attr]
            assert slow.tracker.count() == 2
        await hanging

    run(main)
    slow.tracker.close()


# ---- deadlines -------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["get", "update"])
def test_a_call_that_hangs_has_a_deadline(operation: str) -> None:
    """[D097]"""
    slow = Slow(call_seconds=0.001)

    async def main() -> None:
        gate = slow.store.gate(operation, slow.task_id)
        call = slow.tracker.get if operation == "get" else slow.tracker.start
        try:
            while True:
                with pytest.raises(StoreUnavailable) as refused:
                    await call(slow.task_id)
                if "did not begin" not in str(refused.value):  # a machine that is busy starts threads slowly
                    break
            assert re.search(r"not answered within 0.001 seconds; .*ask again", str(refused.value))
            assert not gate.passed.is_set()
        finally:
            gate.open()

    run(main)
    slow.tracker.close()
    assert slow.status() in ("pending", "running"), "it may or may not have begun in that time"


def test_a_call_that_found_no_thread_before_its_deadline_never_begins() -> None:
    """[D097] it would land long after the caller was told that nothing is known."""
    slow = Slow(max_threads=1)

    async def main() -> None:
        async with held_up(slow, "get", slow.tracker.get(slow.task_id)) as first:
            slow.tracker._call_seconds = 0.001
            with pytest.raises(StoreUnavailable):
                await slow.tracker.create("never", **OWNER)
        await first

    run(main)
    slow.tracker.close()
    assert slow.store.count_of("create") == 1
    assert slow.sync.stats("acme") == {"t": {"pending": 1}}


def test_an_error_after_the_deadline_is_nobodys_unretrieved_exception(slow: Slow) -> None:
    impatient = AsyncTaskTracker(slow.sync, call_seconds=0.001)
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        gate = slow.store.gate("get", slow.task_id)
        slow.store.errors["get"] = StoreUnavailable("later")
        with pytest.raises(StoreUnavailable):
            await impatient.get(slow.task_id)
        gate.open()
        impatient.close()
        await asyncio.sleep(0)

    run(main)
    assert complaints == []


def test_wait_outlives_looks_that_hang_and_ends_at_its_own_timeout() -> None:
    """[D097] a look that hangs is an outage like others; the caller's timeout comes before the look's."""
    slow = Slow(call_seconds=0.01)

    async def main() -> None:
        gate = slow.store.gate("get", slow.task_id)
        waiting = asyncio.create_task(slow.tracker.wait(slow.task_id, poll_interval=0.001))
        await entered(gate)
        await until(lambda: slow.store.count_of("get") >= 3)
        gate.open()
        slow.sync.complete(slow.task_id, 1)
        assert (await waiting).result == 1

    run(main)
    slow.tracker.close()


def test_waits_timeout_ends_a_look_that_hangs() -> None:
    """[D097]"""
    slow = Slow()

    async def main() -> None:
        gate = slow.store.gate("get", slow.task_id)
        with pytest.raises(TimeoutError, match=r"has not ended within 0.01 seconds"):
            await slow.tracker.wait(slow.task_id, timeout=0.01)
        still_hangs(gate)
        gate.open()

    run(main)
    slow.tracker.close()


# ---- cancellation ----------------------------------------------------------------------------------

WRITES: dict[str, tuple[str, Callable[[Slow], Awaitable[Any]], str]] = {
    "start": ("update", lambda s: s.tracker.start(s.task_id), "running"),
    "complete": ("update", lambda s: s.tracker.complete(s.task_id, 1), "completed"),
    "fail": ("update", lambda s: s.tracker.fail(s.task_id, "x"), "failed"),
    "cancel": ("update", lambda s: s.tracker.cancel(s.task_id), "cancelled"),
    "mark_cancelled": ("update", lambda s: s.tracker.mark_cancelled(s.task_id), "cancelled"),
    "update": ("update", lambda s: s.tracker.update(s.task_id, progress=5), "pending"),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("cancels", [1, 3])
def test_a_write_that_was_started_is_settled_before_the_cancellation_goes_on(
    slow: Slow, write: str, cancels: int
) -> None:
    operation, call, status = WRITES[write]

    async def main() -> None:
        async with held_up(slow, operation, call(slow)) as writing:
            for _ in range(cancels):
                writing.cancel()
                for _ in range(10):
                    await asyncio.sleep(0)
                assert not writing.done(), "it waits for the write"
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert slow.status() == status
        assert slow.store.count_of("update") == 1

    run(main)


def test_a_write_that_fails_while_it_is_settled_is_still_a_cancellation(slow: Slow) -> None:
    async def main() -> None:
        slow.store.errors["update"] = StoreUnavailable("away")
        async with held_up(slow, "update", slow.tracker.start(slow.task_id)) as writing:
            writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        slow.store.come_back()

    run(main)
    assert slow.status() == "pending"


def test_a_write_that_was_not_started_yet_never_is() -> None:
    slow = Slow(max_threads=1)

    async def main() -> None:
        async with held_up(slow, "get", slow.tracker.get(slow.task_id)) as reading:
            writing = asyncio.create_task(slow.tracker.start(slow.task_id))
            await asyncio.sleep(0)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
        await reading

    run(main)
    slow.tracker.close()
    assert slow.status() == "pending"
    assert slow.store.count_of("update") == 0


def test_settling_has_a_deadline_too() -> None:
    """[D097] a write that hangs for ever does not make its caller immortal."""
    clock = FakeClock()
    slow = Slow(clock)

    async def main() -> None:
        async with held_up(slow, "update", slow.tracker.start(slow.task_id)) as writing:
            clock.advance(61)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            still_hangs(slow.store.gate("update", slow.task_id))

    run(main)
    slow.tracker.close()


READS: dict[str, Callable[[Slow], Awaitable[Any]]] = {
    "get": lambda s: s.tracker.get(s.task_id),
    "wait": lambda s: s.tracker.wait(s.task_id),
    "is_cancellation_requested": lambda s: s.tracker.is_cancellation_requested(s.task_id),
    "list_tasks of the cache": lambda s: s.tracker.list_tasks(),
    "has_running in the cache": lambda s: s.tracker.has_running("t", "r"),
}


@pytest.mark.parametrize("read", READS)
def test_a_read_that_hangs_can_be_cancelled_at_once(slow: Slow, read: str) -> None:
    """[D097] nothing is half done by a read: `asyncio.timeout` around it must work."""

    async def main() -> None:
        async with held_up(slow, "get", READS[read](slow)) as reading:
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            still_hangs(slow.store.gate("get", slow.task_id))

    run(main)


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("list", lambda t: t.list_tasks(**OWNER)),
        ("has_active", lambda t: t.has_running("t", "r", **OWNER)),
        ("count", lambda t: t.stats("acme")),
    ],
)
def test_other_reads_can_be_cancelled_at_once_too(
    slow: Slow, operation: str, call: Callable[[AsyncTaskTracker], Awaitable[Any]]
) -> None:
    """[D097]"""

    async def main() -> None:
        gate = slow.store.gate(operation, "acme")
        reading = asyncio.ensure_future(call(slow.tracker))
        await entered(gate)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        still_hangs(gate)
        gate.open()

    run(main)


# ---- closing ---------------------------------------------------------------------------------------


def test_close_waits_for_calls_under_way_before_it_lets_go_of_the_store(slow: Slow) -> None:
    """A write under way must not find its store closed."""
    closed_at_write: list[int] = []
    slow.store.before("update", lambda: closed_at_write.append(slow.store.closed))

    async def main() -> None:
        async with held_up(slow, "update", slow.tracker.start(slow.task_id)) as writing:
            closing = asyncio.create_task(slow.tracker.aclose())
            for _ in range(10):
                await asyncio.sleep(0)
            assert not closing.done()
        await closing
        assert isinstance(await writing, TaskRecord)

    run(main)
    assert closed_at_write == [0]
    assert slow.store.closed == 1
    assert own_threads() == set()


def test_close_from_a_thread_without_a_loop(slow: Slow) -> None:
    gate = slow.store.gate("update", slow.task_id)

    def write() -> object:
        return asyncio.run(slow.tracker.start(slow.task_id))

    with background(write) as answers:
        gate.wait_entered()
        with background(slow.tracker.close):
            gate.open()
    assert isinstance(answers[0], TaskRecord)


def test_an_outcome_that_the_store_did_not_take_is_tried_again_by_close(slow: Slow) -> None:
    """[D129] also one that was under way when closing began."""

    async def main() -> None:
        slow.store.errors["update"] = StoreUnavailable("away")
        async with held_up(slow, "update", slow.tracker.complete(slow.task_id, 1)) as writing:
            closing = asyncio.create_task(slow.tracker.aclose())
            await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable):
            await writing
        slow.store.come_back()
        await closing

    run(main)
