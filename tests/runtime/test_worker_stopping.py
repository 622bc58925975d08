"""The life of a worker at its edges: stops that are cancelled or overlap, starts that fail, wishes that come early."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from stores import InMemoryTaskStore
from task_tracker import HandlerRegistry
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.worker import crew as crew_module
from task_tracker.worker.presence import Presence
from task_tracker.worker.rescuing import Rescued
from tests.core.support import OWNER, PATIENCE
from tests.runtime.work import WORK, registry, until, wait_for
from tests.runtime.workers import LEASE, Crew

pytestmark = pytest.mark.usefixtures("fresh_work")


def look(ctx: Any, payload: Any) -> None:
    """Wait in a thread, with open ears."""
    task_id = WORK.enter(ctx)
    try:
        while not WORK.is_open(task_id):
            ctx.check()
            threading.Event().wait(0.001)
    except BaseException as stop:
        WORK.stopped.append((task_id, type(stop).__name__))
        raise
    finally:
        WORK.leave(ctx)


async def clean_up(ctx: Any, payload: Any) -> None:
    """Take as long to clean up as the test says."""
    task_id = WORK.enter(ctx)
    try:
        await asyncio.Event().wait()
    finally:
        WORK.stopped.append((task_id, "told"))
        await until(lambda: WORK.is_open(task_id))
        WORK.leave(ctx)


def listening() -> HandlerRegistry:
    made = registry()
    made.register("look", handler=f"{__name__}:look", cleanup_seconds=PATIENCE)
    made.register("clean_up", handler=f"{__name__}:clean_up", cleanup_seconds=PATIENCE)
    return made


# ---- a stop that is cancelled ------------------------------------------------------------------------------------


def test_a_stop_that_is_cancelled_tells_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """[D049] Whoever gives up waiting must not leave attempts that nobody renews and nobody told."""
    monkeypatch.setattr(crew_module, "_CUT_SECONDS", PATIENCE)
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore())
    task = crew.tracker(listening()).submit("look", **OWNER).record
    worker = crew.worker(crew.tracker(listening()))

    async def scenario() -> None:
        await worker.start()
        await until(lambda: WORK.runs)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker.stop(3600), 0.01)
        assert WORK.stopped == [(task.task_id, "ShuttingDown")]
        assert worker.status().state == "stopped"
        assert await worker.stop() == 0

    asyncio.run(scenario())
    assert crew.seen(task).error_code == "interrupted"


def test_what_hears_nothing_is_left_when_a_stop_is_cancelled(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D049] Its lease is renewed no more, counts as lost here, and others get the task when it ends."""
    monkeypatch.setattr(crew_module, "_CUT_SECONDS", 0.01)
    task = crew.tracker(listening()).submit("clean_up", **OWNER).record
    worker = crew.worker(crew.tracker(listening()))
    leases: list[Any] = []

    async def scenario() -> None:
        await worker.start()
        await until(lambda: WORK.runs)
        shift = worker._shift
        assert shift is not None
        leases.extend(shift.crew._attempts)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker.stop(3600), 0.01)
        WORK.open()

    asyncio.run(scenario())
    assert [lease.lost.is_set() for lease in leases] == [True]
    assert crew.seen(task).status == "running"
    crew.clock.advance(LEASE + 1)
    assert asyncio.run(crew.worker(crew.tracker(listening())).rescue()) == Rescued(failed=1)


def test_a_loop_that_ends_under_a_worker_has_it_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """[D049] ``asyncio.run`` cancels everything, the stop itself too."""
    monkeypatch.setattr(crew_module, "_CUT_SECONDS", PATIENCE)
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore())
    task = crew.tracker(listening()).submit("look", **OWNER).record
    worker = crew.worker(crew.tracker(listening()))

    async def scenario() -> asyncio.Task[int]:
        await worker.start()
        await until(lambda: WORK.runs)
        stopping = asyncio.create_task(worker.stop(3600))
        await until(lambda: worker.status().state == "draining")
        return stopping

    assert asyncio.run(scenario()).cancelled()
    wait_for(lambda: WORK.stopped)  # it is told, and its thread hears it a moment later
    assert [task_id for task_id, _ in WORK.stopped] == [task.task_id]


# ---- stops that overlap -------------------------------------------------------------------------------------------


def test_stops_that_overlap_have_one_end(crew: Crew) -> None:
    """The one that returns last must not take a newer start for what it has stopped."""
    worker = crew.worker(poll_seconds=(0.001, 0.001))

    async def scenario() -> None:
        async def again() -> None:
            await worker.stop()
            await worker.start()

        await worker.start()
        await asyncio.gather(again(), worker.stop())
        assert worker.status().state == "working"
        task = crew.submit("note")
        await until(lambda: crew.seen(task).status == "completed")
        assert await worker.stop() == 0
        late = crew.submit("note")
        assert worker.status().state == "stopped"
        assert crew.seen(late).status == "pending"

    asyncio.run(scenario())


def test_the_shorter_drain_counts(crew: Crew) -> None:
    crew.submit("hold")
    worker = crew.worker()

    async def scenario() -> None:
        await worker.start()
        await until(lambda: WORK.runs)
        patient = asyncio.create_task(worker.stop(3600))
        await until(lambda: worker.status().state == "draining")
        assert await worker.stop(0.0) == 0
        assert await patient == 0

    asyncio.run(scenario())
    assert [told for _, told in WORK.stopped] == ["CancelledError"]


def test_a_stop_goes_on_while_anybody_waits_for_it(crew: Crew) -> None:
    task = crew.submit("hold")
    worker = crew.worker()

    async def scenario() -> None:
        await worker.start()
        await until(lambda: WORK.runs)
        stops = [asyncio.create_task(worker.stop(3600)) for _ in range(2)]
        await until(lambda: worker.status().state == "draining")
        await asyncio.sleep(0)  # both wait
        stops[0].cancel()
        await asyncio.wait({stops[0]})
        assert stops[0].cancelled()
        WORK.open()
        assert await stops[1] == 0

    asyncio.run(scenario())
    assert WORK.stopped == []
    assert crew.seen(task).status == "completed"


def test_a_stop_waits_as_long_as_a_handler_may_clean_up(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """[D049] After the drain, and apart from what writing the outcome may take."""
    monkeypatch.setattr(crew_module, "_SETTLE_SECONDS", 0.0)
    task = crew.tracker(listening()).submit("clean_up", **OWNER).record
    worker = crew.worker(crew.tracker(listening()))

    async def scenario() -> None:
        await worker.start()
        await until(lambda: WORK.runs)
        stopping = asyncio.create_task(worker.stop(0.0))
        await until(lambda: WORK.stopped)
        for _ in range(10):
            await asyncio.sleep(0)  # turns of the loop in which one that did not wait would be gone
        WORK.open()
        assert await stopping == 0

    asyncio.run(scenario())
    assert crew.seen(task).error_code == "interrupted"


# ---- starting ----------------------------------------------------------------------------------------------------


def test_a_wish_to_stop_is_not_lost_because_it_comes_early(crew: Crew) -> None:
    """Whoever starts it in a thread may want it to end before it has begun."""
    worker = crew.worker()
    left: list[int] = []
    for _ in range(2):  # it is remembered once
        worker.ask_to_stop()
        thread = threading.Thread(target=lambda: left.append(worker.run()))
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert left == [0, 0]


def test_a_start_without_threads_leaves_nothing_behind(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = crew.worker()

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Presence, "start", no_thread)
            with pytest.raises(RuntimeError, match="new thread"):
                await worker.start()
        assert worker.status().state == "new"
        async with worker:
            assert worker.status().state == "working"

    asyncio.run(scenario())


def test_a_worker_refuses_a_tracker_that_is_closed(crew: Crew) -> None:
    tracker = crew.tracker()
    worker = crew.worker(tracker)
    tracker.close()

    async def scenario() -> None:
        for begin in (worker.start, worker.run_until_idle, worker.rescue):
            with pytest.raises(RuntimeError, match="is closed"):
                await begin()

    asyncio.run(scenario())
    assert worker.status().state == "new"


def test_working_once_does_not_wait_for_handlers_that_linger() -> None:
    """[D048] Its slot is taken until it ends; what would need it is left to others."""
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore())
    deaf = crew.submit("hold_thread", timeout_seconds=0.05)
    try:
        worker = crew.worker(concurrency=1)
        waiting: list[Any] = []

        def then_submit() -> None:
            WORK.wait_begun()
            waiting.append(crew.submit("note"))

        thread = threading.Thread(target=then_submit)
        thread.start()
        assert worker.run_once() == 1
        thread.join(PATIENCE)
        assert crew.seen(deaf).error_code == "timeout"
        assert [crew.seen(task).status for task in waiting] == ["pending"]
    finally:
        WORK.open()
