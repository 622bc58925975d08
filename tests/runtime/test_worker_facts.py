"""What a worker says of itself in the store: while it works, while it cannot, and when it has ended."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import pytest

from stores import InMemoryTaskStore
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.store import WorkerFact
from task_tracker.worker import presence, shift
from task_tracker.worker.presence import LIFE_SECONDS, SAID_EVERY_SECONDS, Presence
from tests.core.support import Gate
from tests.runtime.work import WORK, until, wait_for
from tests.runtime.workers import BEAT, LEASE, THREADS_OF_ONE, Crew, InThread, network

pytestmark = pytest.mark.usefixtures("fresh_work")


def said(crew: Crew) -> list[Any]:
    return [fact.data for fact in crew.store.facts()]


def presence_of(crew: Crew, **options: Any) -> Presence:
    """That of a worker that does not work: its rounds are made by hand."""
    worker = crew.worker(**options)
    terms = worker._terms
    return Presence(
        terms.store, crew.clock, instance=terms.instance, kinds=terms.limits.registered, status=worker.status
    )


# ---- while it works ----------------------------------------------------------------------------------------


def test_a_worker_says_that_it_works_and_takes_it_back_when_it_stops(crew: Crew) -> None:
    """[D160] What it does, where it is, and that it is ready; nothing is left of it afterwards."""
    worker = crew.worker(name="indexer", concurrency=3)
    worker.pause("boom")
    worker.report("index", True, "up since password=hunter2 Monday")

    async def scenario() -> None:
        async with worker:
            await until(crew.store.facts)
            (fact,) = crew.tracker().workers()
            assert fact.name.startswith("indexer:")
            assert fact.life_seconds == LIFE_SECONDS
            data = fact.data
            assert (data["name"], data["state"], data["ready"]) == ("indexer", "working", True)
            assert (data["slots"], data["running"], data["pid"]) == (3, 0, os.getpid())
            assert data["host"]
            assert data["kinds"] == [[name, 1] for name in ("block", "boom", "hold", "hold_thread", "note")]
            assert data["paused"] == ["boom"]
            assert data["facts"]["index"]["ready"] is True
            assert "hunter2" not in str(data)

    asyncio.run(scenario())
    assert crew.store.facts() == []
    assert crew.store.examine() == []


def test_it_is_said_again_and_again(crew: Crew) -> None:
    """Before its life ends, with what is new."""
    with InThread(crew.worker()):
        wait_for(lambda: said(crew))
        crew.submit("hold")
        WORK.wait_begun()
        for _ in range(10):
            crew.clock.until_waiting(THREADS_OF_ONE)
            crew.clock.advance(SAID_EVERY_SECONDS)
            wait_for(lambda: crew.store.facts()[0].age_seconds == 0)
        wait_for(lambda: said(crew)[0]["running"] == 1)
        WORK.open()
    assert said(crew) == []


def test_workers_of_one_name_are_told_apart(crew: Crew) -> None:
    """A name is what others read; two may have the same one."""
    rounds = [presence_of(crew, name=name) for name in ("indexer", "indexer", None)]
    for each in rounds:
        each.run_once()
    facts = crew.store.facts()
    assert len(facts) == 3
    assert sorted(fact.data["name"] == "indexer" for fact in facts) == [False, True, True]


# ---- while it cannot ---------------------------------------------------------------------------------------


def test_it_is_said_while_the_loop_is_blocked_and_says_so(crew: Crew) -> None:
    """[D160] The very handler that keeps the loop from running shows everywhere as a worker that is not ready."""
    crew.submit("block")
    with InThread(crew.worker()):
        WORK.wait_begun()
        crew.clock.until_waiting(THREADS_OF_ONE)
        crew.clock.advance(0.25)  # the watch asks the loop
        crew.clock.until_waiting(THREADS_OF_ONE)
        crew.clock.advance(SAID_EVERY_SECONDS)
        wait_for(lambda: said(crew)[0]["ready"] is False)
        assert said(crew)[0]["blocked_loop_seconds"] >= 1
        WORK.open()


def test_it_says_at_once_that_it_drains(crew: Crew) -> None:
    """Whoever sends it work is to know."""
    crew.submit("hold")
    with InThread(crew.worker()) as running:
        WORK.wait_begun()
        assert running._told is not None
        running.call(running._told.set)
        wait_for(lambda: [(data["state"], data["ready"]) for data in said(crew)] == [("draining", False)])
        WORK.open()
    assert said(crew) == []


def test_a_store_that_is_away_is_told_once_and_costs_nothing_else(
    crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    """[D160] The worker works on; others hear of it again when the store is back."""
    tracker = crew.tracker()
    network(tracker).fail(on="publish", forever=True)
    with caplog.at_level(logging.WARNING), InThread(crew.worker(tracker)):
        for _ in range(3):
            crew.clock.until_waiting(THREADS_OF_ONE - 1)
            crew.clock.advance(SAID_EVERY_SECONDS)
        wait_for(lambda: network(tracker).calls["publish"] >= 3)
        assert crew.wait_ended(crew.submit("note")).status == "completed"
        assert said(crew) == []
        network(tracker).heal()
        crew.clock.until_waiting(THREADS_OF_ONE - 1)
        crew.clock.advance(SAID_EVERY_SECONDS)
        wait_for(lambda: said(crew))
    # A clock that jumps can make the loop look blocked.
    events = [record.event for record in caplog.records]  # type: ignore[attr-defined]
    assert [event for event in events if event != "loop_blocked"] == ["presence_failed"]


def test_a_store_that_hangs_hangs_nobody(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """[D160] It works and stops all the same; what was under way is taken back when it comes to its end."""
    monkeypatch.setattr(shift, "_PARTS_END_SECONDS", 0.05)
    tracker, gate = crew.tracker(), Gate()
    network(tracker).interrupt(gate.pass_through, on="publish")
    worker = crew.worker(tracker)
    with InThread(worker) as running:
        gate.wait_entered()
        assert crew.wait_ended(crew.submit("note")).status == "completed"
        assert worker.status().ready
    assert running.left == 0
    assert said(crew) == []
    gate.open()
    wait_for(lambda: network(tracker).calls["withdraw"])
    wait_for(lambda: not said(crew))


def test_what_breaks_is_logged_and_tried_again(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that lives must not be taken for dead because of a mistake in what it says."""
    broken = iter([True])

    def host() -> str:
        if next(broken, False):
            raise OSError("no name today")
        return "host-1"

    monkeypatch.setattr(presence, "host_name", host)
    with caplog.at_level(logging.ERROR), InThread(crew.worker()):
        wait_for(lambda: caplog.records)
        crew.clock.until_waiting(THREADS_OF_ONE - 1)
        crew.clock.advance(SAID_EVERY_SECONDS)
        wait_for(lambda: said(crew))
        caplog.clear()


# ---- when it has ended -------------------------------------------------------------------------------------


def test_a_worker_that_was_killed_is_missed(crew: Crew) -> None:
    """[D160] Its fact is believed for a while; then nobody hears of it, and doctor names it until it is mended."""
    presence_of(crew, name="killed").run_once()
    tracker = crew.tracker()
    assert [fact.data["name"] for fact in tracker.workers()] == ["killed"]
    assert tracker.doctor() == []
    crew.clock.advance(LIFE_SECONDS + 1)
    assert tracker.workers() == []
    (finding,) = tracker.doctor()
    assert finding.kind == "silent_worker"
    assert "killed:" in finding.message
    (finding,) = tracker.doctor(fix=True)
    assert finding.fixed
    assert tracker.doctor() == []


def test_nothing_is_said_after_it_was_taken_back(crew: Crew) -> None:
    """A round that comes late finds that the worker has ended."""
    late = presence_of(crew)
    assert late.run_once() == SAID_EVERY_SECONDS
    assert late.finish(1.0)
    assert late.run_once() is None
    assert said(crew) == []


def test_a_worker_that_works_once_says_nothing(crew: Crew) -> None:
    """It is gone before anybody could ask."""
    crew.submit("note")
    tracker = crew.tracker()
    assert crew.worker(tracker).run_once() == 1
    assert network(tracker).calls["publish"] == network(tracker).calls["withdraw"] == 0


def test_facts_are_for_any_store_with_leases() -> None:
    """Those of workers of other programs are shown as they are."""
    crew = Crew(SYSTEM_CLOCK, InMemoryTaskStore(lease_seconds=LEASE, heartbeat_seconds=BEAT))
    crew.store.publish(WorkerFact("a stranger", {"mood": "fine"}, 60.0))
    assert [(fact.name, fact.data) for fact in crew.tracker().workers()] == [("a stranger", {"mood": "fine"})]
