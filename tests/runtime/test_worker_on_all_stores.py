"""What workers do on every store with leases: who may cancel, gaps between claim and start, what hangs, outages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from stores import InMemoryTaskStore
from task_tracker import AsyncTaskTracker, TaskRecord, TaskStatus
from task_tracker.http import readiness_route
from task_tracker.worker import shift
from task_tracker.worker.executor import Executor
from task_tracker.worker.rescuing import Rescued
from task_tracker.worker.shift import Shift
from tests.core.support import OWNER, PATIENCE, Gate
from tests.http_api.asking import Client, app_with
from tests.lease.support import ShiftedClock
from tests.runtime.places import KINDS, Place, place_for
from tests.runtime.work import WORK, registry, until
from tests.runtime.workers import Crew, network, no_thread_is_left

SLACK_SECONDS = 10.0
"""A call that waits for nothing takes less on any machine, and one that waits for what hangs takes for ever."""
OFTEN = (0.001, 0.001)


@pytest.fixture(autouse=True)
def _fresh_work() -> None:
    WORK.begin()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with no_thread_is_left():
        if request.param == "memory":
            yield in_memory()
        else:
            yield from place_for(request, tmp_path)


def in_memory() -> Place:
    """A place whose time passes by itself: workers wait for it."""
    clock = ShiftedClock()

    def advance(seconds: float) -> None:
        clock.ahead += seconds
        clock.stepped += seconds

    store = InMemoryTaskStore(lease_seconds=30, heartbeat_seconds=10, clock=clock)
    return Place(store, clock, advance, lambda: advance(31))


@pytest.fixture
def served(crew: Crew) -> Iterator[AsyncTaskTracker]:
    """The tracker of a server."""
    tracker = AsyncTaskTracker(crew.tracker())
    yield tracker
    tracker.close()


@pytest.fixture
def crew(place: Place) -> Crew:
    return Crew(place.clock, place.store)


def status_of(crew: Crew, task: TaskRecord) -> str:
    return crew.seen(task).status.value


async def hang_in_hook(ctx: Any, record: Any) -> None:
    WORK.failures.append((record.task_id, record.error_code, ctx.fence))
    await asyncio.get_running_loop().create_future()


# ---- who may cancel --------------------------------------------------------------------------------------


ALLOWED = {"owner": "", "administrator": "?user_id=alice"}
STRANGERS = {"another user": ("acme", "bob"), "another account": ("globex", "alice")}


@pytest.mark.parametrize("who", [*ALLOWED, *STRANGERS])
@pytest.mark.parametrize(
    "state", ["pending", "running", "not cancellable", "completed", "failed", "cancelled"]
)
def test_owner_and_administrator_can_cancel_and_a_stranger_finds_nothing(
    crew: Crew, served: AsyncTaskTracker, place: Place, state: str, who: str
) -> None:
    """[D043] In every state. What has ended is a conflict; what its handler does not cancel is asked for only."""
    handlers = registry(cancellable=state != "not cancellable")
    task = crew.tracker(handlers).submit("note", **OWNER).record
    if state in ("running", "not cancellable"):
        assert place.claim(("note", 1)) is not None
    elif state != "pending":
        place.end(state, ("note", 1))
    account, user = STRANGERS.get(who, ("acme", "*" if who == "administrator" else "alice"))
    client = Client(app_with(served), account=account, user=user)
    before = status_of(crew, task)
    path = f"/tasks/{task.task_id}/cancel{ALLOWED.get(who, '')}"
    if who in STRANGERS:
        assert client.error("POST", path, 404)["code"] == "NOT_FOUND"
        assert status_of(crew, task) == before
    elif crew.seen(task).status.is_terminal:
        error = client.error("POST", path, 412)
        assert (error["code"], error["details"]["status"]) == ("FAILED_PRECONDITION", state)
        assert status_of(crew, task) == before
    else:
        assert client.ok("POST", path)["status"] == ("cancelled" if state == "pending" else "cancelling")


@pytest.mark.parametrize("who", ALLOWED)
def test_a_cancel_frees_the_slot_that_a_hung_task_has(crew: Crew, served: AsyncTaskTracker, who: str) -> None:
    """[D043] The one slot serves the next task, whoever of the two has cancelled."""
    hung = crew.submit("hold")

    async def scenario() -> None:
        async with crew.worker(served.tracker, concurrency=1, poll_seconds=OFTEN):
            await until(lambda: WORK.runs)
            waiting = crew.submit("note")
            asking = Client(app_with(served), user="*" if who == "administrator" else "alice")
            answer = await asking.asking("POST", f"/tasks/{hung.task_id}/cancel{ALLOWED[who]}")
            assert answer.status_code == 200
            await until(lambda: status_of(crew, waiting) == "completed")

    asyncio.run(scenario())
    assert status_of(crew, hung) == "cancelled"


# ---- between claim and start --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["goes on in time", "goes on too late", "never goes on"])
def test_who_pauses_between_claim_and_start_goes_on_only_while_the_token_is_his(
    crew: Crew, place: Place, how: str, request: pytest.FixtureRequest
) -> None:
    """[D017] Claimed is leased. A sweep in the gap finds nothing; of a dead one the task is offered again."""
    handlers = registry(idempotent=True, retry_seconds=0.001)
    task = crew.submit("note")
    other = crew.worker(crew.tracker(handlers))

    async def scenario() -> None:
        paused = Shift(crew.worker(crew.tracker(handlers))._terms)
        ((lease, stored),) = paused._claims._claimer.claim(1).claimed
        assert await other.rescue() == Rescued()
        assert status_of(crew, task) == "running"
        if how != "goes on in time":
            paused._heartbeats.stop(PATIENCE)  # as a process that is frozen, or killed
            place.expire()
            assert await other.rescue() == Rescued(retried=1)
            place.advance(1)
            assert await other.run_until_idle() == 1
            assert (status_of(crew, task), WORK.runs) == ("completed", [(task.task_id, 2)])
        ended = crew.seen(task)
        if how != "never goes on":
            paused._slots.take()
            paused.crew.start(lease, stored)
            await until(lambda: not paused.running)
        if how == "goes on too late":
            assert crew.seen(task) == ended, "what it says comes to nothing"
        await paused.stop(0.0)

    asyncio.run(scenario())
    record = crew.seen(task)
    assert record.status is TaskStatus.COMPLETED
    assert record.attempt is not None
    assert record.attempt.count == (1 if how == "goes on in time" else 2)
    if "postgres" not in request.node.name:  # there no time has passed for it, so that it does not know yet
        assert len(WORK.runs) == 1


# ---- what hangs at the start -----------------------------------------------------------------------------------


async def started(start: Any) -> None:
    """Await ``start`` and see that it has waited for nothing."""
    began = time.monotonic()
    await asyncio.wait_for(start, SLACK_SECONDS)
    assert time.monotonic() - began < SLACK_SECONDS


@pytest.mark.parametrize("call", ["recover", "expired", "take_over", "unclaimed", "workload"])
def test_a_store_call_of_the_recovery_that_never_returns_holds_up_nothing_else(
    crew: Crew, place: Place, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D015] The worker starts within a bound and works; its readiness shows what hangs."""
    monkeypatch.setattr(shift, "SLOW_SECONDS", 0.0)
    crew.crashed("boom")
    place.expire()
    tracker, gate = crew.tracker(), Gate()
    tracker.store.blocking = True  # type: ignore[misc]  # as a disk is
    network(tracker).interrupt(gate.pass_through, on=call, forever=True)
    task = crew.submit("note")
    worker = crew.worker(tracker, poll_seconds=OFTEN)

    async def scenario() -> None:
        await started(worker.start())
        await until(gate.entered.is_set)
        await until(lambda: status_of(crew, task) == "completed")
        await until(lambda: not worker.status().ready)
        gate.open()
        await worker.stop()

    try:
        asyncio.run(scenario())
    finally:
        gate.open()


def test_a_hook_of_the_recovery_that_never_returns_has_a_deadline(
    crew: Crew, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D015] [D150] The task ends all the same, and says what hung; meanwhile the worker works."""
    defaults = Executor.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "hook_seconds", 0.05)
    handlers = registry(on_failure=f"{__name__}:hang_in_hook")
    lost = crew.crashed("note")
    place.expire()
    task = crew.submit("note")
    worker = crew.worker(crew.tracker(handlers), poll_seconds=OFTEN)

    async def scenario() -> None:
        await started(worker.start())
        await until(lambda: status_of(crew, task) == "completed")
        await until(lambda: WORK.failures and status_of(crew, lost) == "failed")
        await worker.stop()

    asyncio.run(scenario())
    record = crew.seen(lost)
    assert (record.error_code, record.hook_error) == (
        "holder_lost",
        "on_failure did not end within 0.05 seconds",
    )


def test_a_trackers_recovery_that_hangs_holds_up_no_server(crew: Crew, place: Place) -> None:
    """[D015] Its reconciler starts within a bound, and calls are answered."""
    tracker, gate = crew.tracker(), Gate()
    network(tracker).interrupt(gate.pass_through, on="recover", forever=True)
    try:
        began = time.monotonic()
        tracker.start_reconciler()
        assert time.monotonic() - began < SLACK_SECONDS
        gate.wait_entered()
        task = tracker.create("plain", **OWNER)
        assert tracker.get(task.task_id, **OWNER) == task
    finally:
        gate.open()
        tracker.stop_reconciler()


# ---- an outage ---------------------------------------------------------------------------------------------------


def readiness_of(tracker: AsyncTaskTracker, worker: Any) -> Client:
    app = FastAPI()
    app.include_router(readiness_route(tracker, worker=worker))
    return Client(app, account=None, base="")


def test_an_embedded_worker_outlives_an_outage_and_the_servers_health_shows_it(
    crew: Crew,
    served: AsyncTaskTracker,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """[D110] A minute without the store, and the claim loop crashes in it: all goes on by itself afterwards."""
    monkeypatch.setattr(shift, "_RESTART_SECONDS", 0.001)
    tracker = served.tracker
    worker = crew.worker(tracker, poll_seconds=OFTEN)
    asking = readiness_of(served, worker)

    async def ask() -> Any:
        return await asking.asking("GET", "/ready")

    async def scenario() -> None:
        async with worker:
            before = crew.submit("note")
            await until(lambda: status_of(crew, before) == "completed")
            assert (await ask()).status_code == 200
            network(tracker).fail(forever=True)
            await until(lambda: worker._shift is not None and worker._shift._health._away_since)
            place.advance(60)
            await until(lambda: worker.status().store_away_seconds > 0)
            answer = await ask()
            checks = answer.json()["error"]["details"]["checks"]
            assert (answer.status_code, checks["store"]["ready"]) == (503, False)
            assert "the store does not answer it" in checks["worker"]["detail"]
            duty = next(duty for duty in worker._shift._duties if "claiming" in duty.get_name())  # type: ignore[union-attr]
            monkeypatch.setattr(worker._shift._claims, "fill", broken_once(worker._shift._claims.fill))  # type: ignore[union-attr]
            late = crew.submit("note")
            await until(lambda: "claiming broke; it begins again" in caplog.text)
            assert not duty.done()
            network(tracker).heal()
            await until(lambda: status_of(crew, late) == "completed")
            await until(lambda: worker.status().ready)
            assert (await ask()).status_code == 200

    asyncio.run(scenario())
    assert len(crew.told("store_away")) == len(crew.told("store_back")) == 1


def broken_once(work: Any) -> Any:
    broken = [ValueError("a mistake of ours")]

    async def fill(free: int, **asked: bool) -> Any:
        if broken:
            raise broken.pop()
        return await work(free, **asked)

    return fill
