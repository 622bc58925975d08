"""Coordination of workers by way of the store: paused types, what workers say of themselves, and who gets a place."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from task_tracker.errors import CapabilityMissing, StoreUnavailable
from task_tracker.records import TaskStatus
from task_tracker.store import FORGOTTEN_SECONDS, Finding, LeaseStore, WorkerFact
from task_tracker.testing import jobs
from task_tracker.testing.answers import claimed_by, taken_over
from task_tracker.testing.contract.leases import LeaseFixtures, as_it_stands, completed, lose, released
from task_tracker.testing.contract.processes import ProcessFixtures
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.racing import Crew, StoreSpec, race
from task_tracker.testing.samples import RecordMaker

__all__ = ["CoordinationContract"]

_KIND: Final = ("reindex", 1)
_INGEST: Final = ("ingest", 1)
_LIFE_SECONDS: Final = 30.0
_STATE: Final = {"state": "working", "ready": True, "slots": 4, "kinds": [["reindex", 1]], "host": "höst-1"}
ODD_TYPES: Final = ("a/b", "../x", ".", "reindex ", "Reindex-2", "con", "~x", "=x", "漢" * 80, "t" * 300)


def claim_next(store: LeaseStore, *kinds: tuple[str, int]) -> str | None:
    """Claim the next task, of reindex version 1 unless told otherwise; return its id."""
    claimed = store.claim(holder="w", task_types=kinds or (_KIND,))
    return None if claimed is None else claimed[1].record.task_id


def said_by(store: LeaseStore) -> dict[str, Any]:
    """Return what is said of workers that live, by name."""
    facts = store.facts()
    assert [fact.name for fact in facts] == sorted(fact.name for fact in facts)
    return {fact.name: fact.data for fact in facts}


def silent(store: LeaseStore, *, fix: bool = False) -> Sequence[Finding]:
    """Return what a look at everything finds of workers that died."""
    try:
        found = store.examine(fix=fix)
    except CapabilityMissing:
        pytest.skip("this store cannot examine itself")
    return [finding for finding in found if finding.kind == "silent_worker"]


class CoordinationContract(LeaseFixtures, ProcessFixtures):
    """``pause``, ``unpause``, ``paused``; ``publish``, ``withdraw``, ``facts``; and ``max_running`` in a crowd."""

    # ---- pausing -------------------------------------------------------------------------------------

    def test_paused_type_is_claimed_by_nobody(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Until it is not paused any more; then in the old order. Other types go on. [D154]"""
        tasks = [leases.create(make(handler_version=1)).record.task_id for _ in range(2)]
        other = leases.create(make(task_type="ingest", handler_version=1)).record.task_id
        rescuer.pause("reindex")
        for store in (leases, rescuer):
            assert [*store.paused()] == ["reindex"]
            assert claim_next(store) is None
        assert claim_next(leases, _KIND, _INGEST) == other
        assert claim_next(leases, _KIND, _INGEST) is None
        late = leases.create(make(handler_version=1, priority=9)).record.task_id
        assert claim_next(rescuer) is None
        leases.unpause("reindex")
        for store in (leases, rescuer):
            assert [*store.paused()] == []
        assert [claim_next(rescuer), claim_next(leases), claim_next(rescuer)] == [late, *tasks]

    def test_pausing_leaves_alone_what_runs(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Heartbeats, commits, ends, releases, claims of a key, cancels and take-overs are as ever."""
        leases.create(make(handler_version=1))
        claimed = leases.claim(holder="w", task_types=[_KIND])
        assert claimed is not None
        leases.pause("reindex")
        lease, stored = claimed
        leases.renew(lease)
        stored = leases.commit(lease, make.changed(stored.record, message="half way"))
        leases.release(lease, released(stored.record))
        assert claim_next(rescuer) is None
        lease, stored = claimed_by(rescuer, lease.key)
        lease, stored = taken_over(leases, lose(harness, leases, lease))
        leases.end(lease, completed(stored.record))
        waiting = leases.create(make(handler_version=1)).record
        assert leases.request_cancel(waiting.key).record.status is TaskStatus.CANCELLED

    def test_any_number_of_types_is_paused_each_by_itself(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Whatever their names are; one that was never paused is not resumed, and twice is safe."""
        for task_type in (*ODD_TYPES, *ODD_TYPES):
            leases.pause(task_type)
        assert [*rescuer.paused()] == sorted(ODD_TYPES)
        for task_type in ODD_TYPES:
            leases.create(make(task_type=task_type, handler_version=1))
            assert claim_next(leases, (task_type, 1)) is None
        mine = leases.create(make(handler_version=1)).record.task_id
        assert claim_next(leases, _KIND, *((task_type, 1) for task_type in ODD_TYPES)) == mine
        rescuer.unpause("reindex")
        for number, task_type in enumerate(ODD_TYPES, start=1):
            rescuer.unpause(task_type)
            rescuer.unpause(task_type)
            assert [*leases.paused()] == sorted(ODD_TYPES[number:])
            assert claim_next(leases, (task_type, 1)) is not None
        assert claim_next(leases) is None

    @pytest.mark.parametrize("task_type", ["", " ", "a\0b", "\ud800", None, 3])
    def test_what_cannot_be_a_type_is_not_paused(self, leases: LeaseStore, task_type: Any) -> None:
        """A mistake that is not told would be taken for a type at rest."""
        for call in (leases.pause, leases.unpause):
            with pytest.raises(ValueError, match="task_type"):
                call(task_type)
        assert [*leases.paused()] == []

    def test_pause_outlives_whoever_asked_for_it(self, harness: StoreHarness, make: RecordMaker) -> None:
        """Where records survive the process, so does the wish that nobody works on them. [D154]"""
        with closing(harness.open()) as first:
            assert isinstance(first, LeaseStore)
            if not first.capabilities.durable:
                pytest.skip("this store is gone with its process")
            first.create(make(handler_version=1))
            first.pause("reindex")
        with closing(harness.open()) as second:
            assert isinstance(second, LeaseStore)
            assert [*second.paused()] == ["reindex"]
            assert claim_next(second) is None

    def test_no_claim_begins_after_a_pause_and_takes_a_task(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Whatever the others are about to do at that moment. [D154]"""
        records = [leases.create(record).record for record in make.many(6, handler_version=1)]
        paused, begun = threading.Event(), threading.Barrier(5)

        def take(store: LeaseStore) -> int:
            """Claim and give back, until a claim that begins when it is paused gets nothing."""
            begun.wait(60)
            taken = 0
            while True:
                late = paused.is_set()
                claimed = store.claim(holder="w", task_types=[_KIND])
                if claimed is not None:
                    store.release(claimed[0], released(claimed[1].record))
                    assert not late, "a claim began when the type was paused, and took a task"
                    taken += 1
                elif late:
                    return taken

        def pause() -> int:
            begun.wait(60)
            leases.pause("reindex")
            paused.set()
            return 0

        outcomes = race(*[lambda: take(leases), lambda: take(rescuer)] * 2, pause)
        assert not [outcome for outcome in outcomes if not isinstance(outcome, int)], outcomes
        assert claim_next(leases) is claim_next(rescuer) is None
        leases.unpause("reindex")
        assert claim_next(rescuer) == records[0].task_id

    # ---- what workers say ----------------------------------------------------------------------------

    def test_what_a_worker_says_is_read_by_all(self, leases: LeaseStore, rescuer: LeaseStore) -> None:
        """The last that it said, until it is withdrawn; what it was made of can be changed afterwards."""
        assert [*leases.facts()] == []
        state = {**_STATE, "nested": {"list": [1, None, "x"]}}
        leases.publish(WorkerFact("w2", state, _LIFE_SECONDS, age_seconds=1e9))
        state.clear()
        rescuer.publish(WorkerFact("w1", {}, 5))
        for store in (leases, rescuer):
            one, two = store.facts()
            assert (one.name, one.data, one.life_seconds) == ("w1", {}, 5)
            assert (two.name, two.life_seconds) == ("w2", _LIFE_SECONDS)
            assert two.data == {**_STATE, "nested": {"list": [1, None, "x"]}}
            assert 0 <= two.age_seconds < _LIFE_SECONDS
        rescuer.publish(WorkerFact("w2", {"ready": False}, _LIFE_SECONDS))
        assert said_by(leases) == {"w1": {}, "w2": {"ready": False}}
        for _ in range(2):
            rescuer.withdraw("w2")
        assert said_by(leases) == {"w1": {}}
        leases.withdraw("nobody")
        assert said_by(rescuer) == {"w1": {}}

    def test_names_of_workers_are_kept_apart(self, leases: LeaseStore, rescuer: LeaseStore) -> None:
        """Whatever they hold: hosts, processes, what a person wrote."""
        for number, name in enumerate(ODD_TYPES):
            leases.publish(WorkerFact(name, {"number": number}, _LIFE_SECONDS))
        assert said_by(rescuer) == {name: {"number": number} for number, name in enumerate(ODD_TYPES)}
        for number, name in enumerate(ODD_TYPES, start=1):
            rescuer.withdraw(name)
            assert [*said_by(leases)] == sorted(ODD_TYPES[number:])

    @pytest.mark.parametrize(
        ("name", "data", "life_seconds"),
        [
            ("", {}, 1.0),
            (" ", {}, 1.0),
            (7, {}, 1.0),
            ("w", [], 1.0),
            ("w", {"x": math.nan}, 1.0),
            ("w", {"x": object()}, 1.0),
            ("w", {}, 0.0),
            ("w", {}, -1.0),
            ("w", {}, math.inf),
            ("w", {}, "soon"),
        ],
    )
    def test_nonsense_is_not_published(
        self, leases: LeaseStore, name: Any, data: Any, life_seconds: Any
    ) -> None:
        """And what was said before stays."""
        leases.publish(WorkerFact("w", _STATE, _LIFE_SECONDS))
        with pytest.raises(ValueError, match=r"worker|life_seconds"):
            leases.publish(WorkerFact(name, data, life_seconds))
        assert said_by(leases) == {"w": _STATE}

    def test_fact_holds_for_its_life(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore
    ) -> None:
        """Each by its own, by the store's clock; whoever says it again lives on. [D160]"""
        leases.publish(WorkerFact("long", {}, 1000.0))
        leases.publish(WorkerFact("short", {}, 20.0))
        leases.publish(WorkerFact("said again", {}, 20.0))
        harness.lapse(rescuer, 100)
        leases.publish(WorkerFact("said again", {"again": True}, 20.0))
        for store in (leases, rescuer):
            assert said_by(store) == {"long": {}, "said again": {"again": True}}
            assert store.facts()[0].age_seconds >= 100
        leases.publish(WorkerFact("short", {"back": True}, 20.0))
        assert said_by(rescuer)["short"] == {"back": True}

    @pytest.mark.parametrize("seconds", [3600.0, -3600.0])
    def test_clock_of_a_host_that_is_wrong_ends_no_life(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, seconds: float
    ) -> None:
        """Neither that of who says it nor that of who reads it."""
        harness.step_clock(leases, seconds)
        leases.publish(WorkerFact("w", {}, 60.0))
        harness.step_clock(rescuer, -seconds)
        assert [*said_by(rescuer)] == [*said_by(leases)] == ["w"]
        harness.lapse(leases, 100)
        assert [*said_by(rescuer)] == [*said_by(leases)] == []

    def test_worker_that_died_is_named(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore
    ) -> None:
        """By a look at everything, unless it was withdrawn; mending removes it. [D160]"""
        for name in ("lives", "died", "ended"):
            leases.publish(WorkerFact(name, {}, 20.0))
        leases.withdraw("ended")
        harness.lapse(rescuer, 100)
        leases.publish(WorkerFact("lives", {}, 20.0))
        rescuer.recover()
        (finding,) = silent(rescuer)
        assert "died" in finding.message
        assert not finding.fixed
        (finding,) = silent(leases, fix=True)
        assert finding.fixed
        assert [*silent(leases)] == []
        assert [*said_by(rescuer)] == ["lives"]

    def test_the_long_dead_are_forgotten(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore
    ) -> None:
        """By whoever reconciles; a worker that lives, or died yesterday, is not. Nothing of it is counted."""
        leases.publish(WorkerFact("old", {}, 20.0))
        harness.lapse(rescuer, FORGOTTEN_SECONDS)
        leases.publish(WorkerFact("younger", {}, 20.0))
        harness.lapse(rescuer, 60)
        leases.publish(WorkerFact("lives", {}, 20.0))
        assert len(silent(leases)) == 2
        assert rescuer.recover() == 0
        (finding,) = silent(leases)
        assert "younger" in finding.message
        assert [*said_by(rescuer)] == ["lives"]

    def test_facts_are_whole(self, leases: LeaseStore, rescuer: LeaseStore) -> None:
        """Whoever reads while it is written finds what was said before, or what is said now."""
        texts = ["x" * 9, "y" * 20_000]
        leases.publish(WorkerFact("w", {"text": texts[0]}, _LIFE_SECONDS))
        done = threading.Event()

        def write() -> None:
            try:
                for turn in range(100):
                    leases.publish(WorkerFact("w", {"text": texts[turn % 2]}, _LIFE_SECONDS))
            finally:
                done.set()

        def read() -> int:
            times = 0
            while not done.is_set():
                (fact,) = rescuer.facts()
                assert fact.data["text"] in texts
                times += 1
            return times

        outcomes = race(write, read, read)
        assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]

    def test_store_that_cannot_be_reached_says_so(self, harness: StoreHarness, leases: LeaseStore) -> None:
        """It never answers that nothing is paused, or that nobody works."""
        leases.pause("reindex")
        leases.publish(WorkerFact("w", _STATE, _LIFE_SECONDS))
        with harness.outage():
            for call in (
                leases.paused,
                leases.facts,
                lambda: leases.pause("other"),
                lambda: leases.unpause("reindex"),
                lambda: leases.publish(WorkerFact("w", {}, 1.0)),
                lambda: leases.withdraw("w"),
                lambda: leases.claim(holder="w", task_types=[_KIND]),
            ):
                with pytest.raises(StoreUnavailable):
                    call()
        assert [*leases.paused()] == ["reindex"]
        assert said_by(leases) == {"w": _STATE}

    # ---- who gets a place ----------------------------------------------------------------------------

    @pytest.mark.parametrize("most", [1, 3])
    def test_never_more_run_than_are_allowed_however_many_come(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker, tmp_path: Path, most: int
    ) -> None:
        """Six threads on two instances, until all is done: nobody is in the others' way for ever. [D095]"""
        records = [leases.create(record).record for record in make.many(20, handler_version=1)]
        calls = [
            lambda store=store: jobs.drain_within(store, lambda: None, _KIND, "w", most, f"{tmp_path}/flag")
            for store in (leases, rescuer) * 3
        ]
        done = race(*calls)
        assert not [part for part in done if not isinstance(part, list)], done
        taken = [task_id for part in done if isinstance(part, list) for task_id in part]
        assert sorted(taken) == [record.task_id for record in records]

    def test_where_there_is_room_somebody_gets_it(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Of six that come at once for one place one goes on: they do not all give back for the others."""
        for _ in range(15):
            records = [leases.create(record).record for record in make.many(6, handler_version=1)]
            claims = race(
                *(
                    lambda store=store: store.claim(
                        holder="w", task_types=[_KIND], max_running={"reindex": 1}
                    )
                    for store in (leases, rescuer) * 3
                )
            )
            won = [claim for claim in claims if claim is not None]
            assert len(won) == 1, claims
            (claim,) = won
            assert isinstance(claim, tuple), claim
            leases.release(claim[0], released(claim[1].record))
            for record in records:
                lease, stored = claimed_by(leases, record.key)
                leases.end(lease, completed(stored.record))
                assert as_it_stands(leases, record.key).status is TaskStatus.COMPLETED

    def test_never_more_run_than_are_allowed_over_all_processes(
        self, leases: LeaseStore, shared_spec: StoreSpec, crew: Crew, make: RecordMaker, tmp_path: Path
    ) -> None:
        """Four processes hammer at a limit of two until everything is done. [D095]"""
        records = [leases.create(record).record for record in make.many(40, handler_version=1)]
        done = crew.run(
            shared_spec,
            jobs.drain_within,
            [(_KIND, f"p{number}", 2, f"{tmp_path}/flag") for number in range(4)],
        )
        assert sorted(task_id for part in done for task_id in part) == [record.task_id for record in records]
