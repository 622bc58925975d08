"""That a worker hands its settings on, and that its parts are put together as they are meant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stores import InMemoryTaskStore
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.testing import FakeClock
from task_tracker.worker import rescuing
from task_tracker.worker.rescuing import Rescued
from tests.core.support import OWNER, PATIENCE, Gate
from tests.runtime.work import WORK, registry, until
from tests.runtime.workers import LEASE, Crew, InThread, network, no_thread_is_left


@pytest.fixture(autouse=True)
def _fresh_work() -> Iterator[None]:
    WORK.begin()
    with no_thread_is_left():
        yield
        WORK.open()


@pytest.fixture
def crew() -> Crew:
    return Crew()


def hasty() -> Crew:
    """Passes of the rescuer follow at once, and leases live until the test says otherwise."""
    clock = FakeClock()
    return Crew(clock, InMemoryTaskStore(lease_seconds=LEASE, heartbeat_seconds=0.02, clock=clock))


def wait_until(condition: Callable[[], object]) -> None:
    with WORK.changed:
        assert WORK.changed.wait_for(condition, PATIENCE), "it never came to that"


class Client:
    """A resource that knows whether it is open."""

    is_open = True

    def close(self) -> None:
        self.is_open = False


async def use(ctx: Any, payload: Any) -> None:
    WORK.enter(ctx)
    client = await ctx.resource("client")
    assert client.is_open
    WORK.leave(ctx)


async def held_failure(ctx: Any, record: Any) -> None:
    WORK.failures.append((record.task_id, record.error_code, ctx.fence))
    with WORK.changed:
        WORK.changed.notify_all()
    await until(lambda: WORK.is_open(record.task_id))


def deaf(ctx: Any, payload: Any) -> None:
    """Wait in a thread until the test ends."""
    try:
        WORK.wait_open(WORK.enter(ctx))
    finally:
        WORK.leave(ctx)


def sync_failure(ctx: Any, record: Any) -> None:
    assert WORK.at_once == 1, "it had to wait for the thread of its handler"
    WORK.failures.append((record.task_id, record.error_code, ctx.fence))


# ---- settings ----------------------------------------------------------------------------------------------------


def test_the_timeout_of_the_worker_is_that_of_handlers_without_one(crew: Crew) -> None:
    task = crew.submit("hold")
    assert crew.worker(default_timeout_seconds=0.02).run_once() == 1
    assert crew.seen(task).error_code == "timeout"
    assert "0.02 seconds" in str(crew.seen(task).error)


def test_there_is_a_thread_for_each_slot() -> None:
    """More sync handlers at once than anybody has threads for by himself."""
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore())
    for _ in range(9):
        crew.submit("hold_thread")

    async def scenario() -> None:
        async with crew.worker(concurrency=9):
            await until(lambda: WORK.at_once == 9)
            WORK.open()
            await until(lambda: len(WORK.ended) == 9)

    asyncio.run(scenario())


def test_resources_are_closed_when_it_stops(crew: Crew) -> None:
    clients: list[Client] = []

    def build() -> Client:
        clients.append(Client())
        return clients[-1]

    handlers = registry()
    handlers.register("use", handler=f"{__name__}:use")
    handlers.resource("client", build)
    tracker = crew.tracker(handlers)
    tasks = [tracker.submit("use", **OWNER).record for _ in range(2)]
    assert crew.worker(tracker).run_once() == 2
    assert {crew.seen(task).status for task in tasks} == {"completed"}
    assert [client.is_open for client in clients] == [False]


# ---- rescuing ----------------------------------------------------------------------------------------------------


def test_what_is_rescued_is_renewed_while_its_hook_runs(crew: Crew) -> None:
    """[D012] An ``on_failure`` may take longer than a lease; nobody else calls it meanwhile."""
    handlers = registry(on_failure=f"{__name__}:held_failure")
    task = crew.crashed("note")
    crew.clock.advance(LEASE + 1)
    other = crew.worker(crew.tracker(handlers))
    with InThread(crew.worker(crew.tracker(handlers))):
        wait_until(lambda: WORK.failures)
        crew.live(3 * LEASE)
        assert asyncio.run(other.rescue()) == Rescued()
        WORK.open()
        assert crew.wait_ended(task).error_code == "holder_lost"
    assert len(WORK.failures) == 1


def test_a_worker_does_not_rescue_from_itself(crew: Crew) -> None:
    """The store was away for longer than a lease; the outcome of its own task waits, and is no loss."""
    task = crew.submit("hold")
    tracker = crew.tracker()

    async def scenario() -> None:
        async with crew.worker(tracker, rescue=False) as worker:
            await until(lambda: WORK.runs)
            network(tracker).fail(on="end", forever=True)
            WORK.open()
            await until(lambda: network(tracker).calls["end"])
            network(tracker).fail(on="renew", forever=True)
            crew.clock.advance(LEASE + 1)
            assert [expired.record.key for expired in crew.store.expired()] == [task.key]
            assert await worker.rescue() == Rescued()
            network(tracker).heal()
            await until(lambda: crew.seen(task).status == "completed")

    asyncio.run(scenario())
    assert WORK.failures == []


def test_a_call_that_hangs_holds_up_its_own_task_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """[D015] One task whose files hang: others whose worker has stopped are settled, pass after pass."""
    monkeypatch.setattr(rescuing, "_PATIENCE_SECONDS", 0.01)
    crew = hasty()
    tracker, gate = crew.tracker(), Gate()
    tracker.store.blocking = True  # type: ignore[misc]  # as a disk is
    network(tracker).interrupt(gate.pass_through, on="take_over")
    hung = crew.crashed("note")
    crew.clock.advance(LEASE + 1)

    async def scenario() -> None:
        async with crew.worker(tracker) as worker:
            await until(gate.entered.is_set)
            for _ in range(3):
                late = crew.crashed("note")
                crew.clock.advance(LEASE + 1)
                await until(lambda late=late: crew.seen(late).status == "failed")  # type: ignore[misc]
            counted = network(tracker).calls["workload"]
            await until(lambda: network(tracker).calls["workload"] > counted + 1)
            assert crew.seen(hung).status == "running"
            assert worker.status().rescuing_seconds < 60
            gate.open()
            await until(lambda: not crew.store.expired())
            # It has the lease now, so late that it does not believe in it; the next one to look does.
            crew.clock.advance(LEASE + 1)
            await until(lambda: crew.seen(hung).status == "failed")

    try:
        asyncio.run(scenario())
    finally:
        gate.open()


def test_so_many_that_hang_that_nothing_is_begun_any_more_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """[D160] Passes end, and settle nothing."""
    monkeypatch.setattr(rescuing, "_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(rescuing, "_MOST_UNDER_WAY", 2)
    crew = hasty()
    handlers = registry(on_failure=f"{__name__}:held_failure")
    tasks = [crew.crashed("note") for _ in range(3)]
    crew.clock.advance(LEASE + 1)

    async def scenario() -> None:
        async with crew.worker(crew.tracker(handlers)) as worker:
            await until(lambda: len(WORK.failures) == 2)
            crew.clock.advance(5)
            await until(lambda: worker.status().rescuing_seconds == 5)
            assert len(WORK.failures) == 2
            WORK.open()
            await until(lambda: {crew.seen(task).status.value for task in tasks} == {"failed"})

    asyncio.run(scenario())
    assert len(WORK.failures) == 3


# ---- retries and hooks -------------------------------------------------------------------------------------------


class JitteryClock(FakeClock):
    """Takes a third off what it is asked to jitter, and so can be told from one that was not asked."""

    def jitter(self, seconds: float) -> float:
        return seconds * 2 / 3


@pytest.mark.parametrize("crashed", [False, True])
def test_pauses_before_another_try_are_jittered(crashed: bool) -> None:
    """What failed together is not to come back together; the same for what was rescued."""
    crew = Crew(JitteryClock())
    handlers = registry(idempotent=True, retry_seconds=30.0)
    task = crew.crashed("boom") if crashed else crew.submit("boom")
    crew.clock.advance(LEASE + 1)
    assert crew.worker(crew.tracker(handlers)).run_once() == (0 if crashed else 1)
    waiting = crew.seen(task)
    assert waiting.not_before is not None
    assert waiting.not_before - crew.clock.now() == pytest.approx(20.0)


def test_handlers_that_hang_in_all_threads_keep_no_hook_from_being_called() -> None:
    """[D050] The thread of the one slot hears nothing; its own ``on_failure`` is a function as well."""
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore())
    handlers = registry()
    handlers.register("deaf", handler=f"{__name__}:deaf", on_failure=f"{__name__}:sync_failure")
    tracker = crew.tracker(handlers)
    task = tracker.submit("deaf", timeout_seconds=0.05, **OWNER).record
    assert crew.worker(tracker, concurrency=1).run_once() == 1
    assert [code for _, code, _ in WORK.failures] == ["timeout"]
    assert crew.seen(task).hook_error is None
