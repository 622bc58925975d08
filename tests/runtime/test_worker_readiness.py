"""Whether a worker is ready: what makes it useless shows, and what does not does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from stores import InMemoryTaskStore
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.worker import gates
from task_tracker.worker.rescuing import Rescued
from tests.core.support import PATIENCE, Gate
from tests.runtime.work import WORK, registry, until, wait_for
from tests.runtime.workers import BEAT, LEASE, THREADS_OF_ONE, Crew, InThread, network, no_thread_is_left


@pytest.fixture(autouse=True)
def _fresh_work() -> Iterator[None]:
    WORK.begin()
    with no_thread_is_left():
        yield
        WORK.open()


@pytest.fixture
def crew() -> Crew:
    return Crew()


def statuses(crew: Crew, tasks: list[Any]) -> list[str]:
    return [crew.seen(task).status.value for task in tasks]


# ---- heartbeats --------------------------------------------------------------------------------------------------


def test_a_renewal_that_hangs_is_a_lease_that_is_lost(crew: Crew) -> None:
    """[D021] [D160] The thread that renews hangs: another one judges the deadline and tells the handler."""
    task = crew.submit("hold")
    tracker, gate = crew.tracker(), Gate()
    network(tracker).interrupt(gate.pass_through, on="renew")
    worker = crew.worker(tracker)
    try:
        with InThread(worker):
            WORK.wait_begun()
            crew.clock.until_waiting(THREADS_OF_ONE)
            crew.clock.advance(BEAT)
            gate.wait_entered()
            crew.clock.until_waiting(THREADS_OF_ONE - 1)
            assert WORK.stopped == []
            crew.clock.advance(LEASE - BEAT - 1)  # nobody else may take it yet
            with WORK.changed:
                assert WORK.changed.wait_for(lambda: WORK.ended, PATIENCE), "its handler was never told"
            assert asyncio.run(crew.worker().rescue()) == Rescued()
            wait_for(lambda: worker.status().blocked_loop_seconds == 0)
            status = worker.status()
            assert (status.running, status.ready) == (0, False), "though nothing is held any more"
            assert status.last_heartbeat_seconds is not None
            assert status.last_heartbeat_seconds >= LEASE - BEAT - 1
            late = crew.submit("note")
            wait_for(lambda: crew.told("attempt_ended"))
            assert crew.worker().run_once() == 1, "another worker has it"
            assert crew.seen(late).status == "completed"
            gate.open()
            wait_for(lambda: worker.status().last_heartbeat_seconds is None)
        assert [event.facts["outcome"] for event in crew.told("attempt_ended")][:1] == ["lost"]
        assert crew.told("lease_lost")
        assert crew.seen(task).status == "running", "for the rescuers"
    finally:
        gate.open()


def test_an_attempt_without_a_lease_shows(crew: Crew) -> None:
    """[D160] Its handler hears nothing; others may work on the same task."""
    crew.submit("hold_thread")
    tracker = crew.tracker(registry(cleanup_seconds=PATIENCE))
    network(tracker).fail(on="renew", forever=True)
    with InThread(crew.worker(tracker)) as running:
        WORK.wait_begun()
        crew.clock.until_waiting(THREADS_OF_ONE)
        crew.clock.advance(LEASE + 1)
        wait_for(lambda: running.worker.status().without_lease)
        assert not running.worker.status().ready
        network(tracker).heal()
        WORK.open()
        wait_for(lambda: not running.worker.status().running)


def test_a_worker_that_was_idle_is_ready_when_work_comes(crew: Crew) -> None:
    """[D160] Nothing had to be renewed for hours; that is no heartbeat that is late."""
    first = crew.submit("hold")
    with InThread(crew.worker()) as running:
        worker = running.worker
        WORK.wait_begun()
        crew.live(2 * BEAT)
        wait_for(lambda: worker.status().last_heartbeat_seconds == 0)
        WORK.open(first.task_id)
        crew.wait_ended(first)
        crew.clock.until_waiting(THREADS_OF_ONE)
        crew.clock.advance(BEAT)  # the heartbeats end
        wait_for(lambda: crew.clock.waiting == THREADS_OF_ONE - 1)
        crew.clock.advance(100 * LEASE)
        crew.submit("hold")
        WORK.wait_begun(2)
        wait_for(lambda: worker.status().blocked_loop_seconds == 0)
        assert (worker.status().running, worker.status().last_heartbeat_seconds) == (1, 0)
        assert worker.status().ready
        WORK.open()


# ---- slots -------------------------------------------------------------------------------------------------------


def test_a_slot_stays_taken_until_its_handler_has_ended() -> None:
    """[D048] [D050] [D160] Two deaf handlers are out of time: a third task waits for one of them, and that shows."""
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore())
    deaf = [crew.submit("hold_thread", timeout_seconds=0.05) for _ in range(2)]
    tracker = crew.tracker()

    async def scenario() -> None:
        async with crew.worker(tracker, concurrency=2, poll_seconds=(0.001, 0.001)) as worker:
            await until(lambda: worker.status().lingering == 2)
            assert statuses(crew, deaf) == ["failed", "failed"]
            third = crew.submit("note")
            tried = network(tracker).calls["claim"]
            worker.resume("note")  # which has it look for work
            for _ in range(50):
                await asyncio.sleep(0)  # a turn of the loop: one that looked would have found it in a few
            assert network(tracker).calls["claim"] == tried
            status = worker.status()
            assert (status.running, status.lingering, status.slots, status.ready) == (0, 2, 2, False)
            assert crew.seen(third).status == "pending"
            WORK.open(deaf[0].task_id)
            await until(lambda: crew.seen(third).status == "completed")
            await until(lambda: worker.status().ready)
            assert worker.status().lingering == 1
            WORK.open()
            await until(lambda: worker.status().lingering == 0)

    asyncio.run(scenario())


def test_handlers_that_linger_count_in_the_limit_of_their_type() -> None:
    """[D050] Their tasks have ended, so the store counts them no more."""
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore())
    first, *others = [crew.submit("hold_thread", timeout_seconds=0.05) for _ in range(3)]
    tracker = crew.tracker()

    async def scenario() -> None:
        async with crew.worker(
            tracker, concurrency=4, max_running={"hold_thread": 1}, poll_seconds=(0.001, 0.001)
        ) as worker:
            await until(lambda: worker.status().lingering == 1)
            tried = network(tracker).calls["claim"]
            await until(lambda: network(tracker).calls["claim"] > tried + 3)
            assert worker.status().ready, "other types go on"
            assert statuses(crew, others) == ["pending", "pending"]
            WORK.open(first.task_id)
            await until(lambda: len(WORK.runs) == 2)
            WORK.open()
            await until(lambda: len(WORK.ended) == 3)

    asyncio.run(scenario())
    assert WORK.most_at_once == 1


# ---- claims ------------------------------------------------------------------------------------------------------


def test_claims_that_fail_show_though_all_else_works() -> None:
    """[D160] Passes of the rescuer that come back must not make it look well."""
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore(lease_seconds=0.3, heartbeat_seconds=0.001))
    tracker = crew.tracker()
    network(tracker).fail(on="claim", forever=True)

    async def scenario() -> None:
        async with crew.worker(tracker) as worker:
            await until(lambda: worker.status().store_away_seconds)
            passes = network(tracker).calls["workload"]

            def has_passed() -> bool:
                assert not worker.status().ready
                return network(tracker).calls["workload"] >= passes + 5

            await until(has_passed)
            network(tracker).heal()
            await until(lambda: worker.status().ready)

    asyncio.run(scenario())
    assert len(crew.told("store_away")) == len(crew.told("store_back")) == 1


def test_a_claim_that_hangs_shows(crew: Crew) -> None:
    """[D160] It is no error of the store's, it just does not come back."""
    tracker, gate = crew.tracker(), Gate()
    tracker.store.blocking = True  # type: ignore[misc]  # as a disk is
    network(tracker).interrupt(gate.pass_through, on="claim")
    try:
        with InThread(crew.worker(tracker)) as running:
            gate.wait_entered()
            assert running.worker.status().ready
            crew.clock.until_waiting(THREADS_OF_ONE - 1)
            crew.clock.advance(61)
            wait_for(lambda: running.worker.status().blocked_loop_seconds == 0)
            status = running.worker.status()
            assert (status.claiming_seconds, status.ready) == (61, False)
            gate.open()
            wait_for(lambda: running.worker.status().ready)
    finally:
        gate.open()


# ---- gates -------------------------------------------------------------------------------------------------------


def test_a_gate_that_hangs_shuts_its_own_type_only(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """[D154] [D160] It is asked in a thread, waited for once, and not asked again before it has answered."""
    monkeypatch.setattr(gates, "ANSWER_SECONDS", 0.01)
    asked: list[int] = []
    gate = Gate()

    def hangs() -> bool:
        asked.append(1)
        gate.pass_through()
        return True

    held = crew.submit("note")
    worker = crew.worker(gates={"note": hangs, "boom": lambda: True}, poll_seconds=(0.001, 0.001))

    async def scenario() -> None:
        async with worker:
            for _ in range(3):
                other = crew.submit("boom")
                await until(lambda other=other: crew.seen(other).status == "failed")  # type: ignore[misc]
            assert worker.status().gated == ("note",)
            assert crew.seen(held).status == "pending"
            assert asked == [1]
            gate.open()
            await until(lambda: crew.seen(held).status == "completed")
            assert worker.status().gated == ()

    asyncio.run(scenario())
    assert caplog.text.count("the gate of note has not answered") == 1


def test_a_gate_may_break_as_it_likes(crew: Crew) -> None:
    """[D154] Leaving the process is not what a gate is for."""
    is_broken = True

    def gate() -> bool:
        if is_broken:
            raise SystemExit("usage")
        return True

    crew.submit("note")
    worker = crew.worker(gates={"note": gate})
    assert worker.run_once() == 0
    is_broken = False
    assert worker.run_once() == 1
