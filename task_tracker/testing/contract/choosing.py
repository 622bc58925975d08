"""Waiting work: which task a worker gets next, how many may run, and what can be said of the backlog."""

from __future__ import annotations

from typing import Any

import pytest

from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Lease, LeaseStore, Stored, Unchanged, Workload
from task_tracker.testing import jobs
from task_tracker.testing.answers import claimed_by
from task_tracker.testing.contract.leases import LeaseFixtures, as_it_stands, completed, lose, released
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.racing import race
from task_tracker.testing.samples import START, RecordMaker

__all__ = ["ChoosingContract"]

_KIND = ("reindex", 1)
_LATER = 9e9
"""By any clock."""


def claim_next(store: LeaseStore, *kinds: tuple[str, int], **limits: int) -> TaskRecord | None:
    """Claim the next task, of reindex version 1 unless told otherwise; return its record."""
    claimed = store.claim(holder="w", task_types=kinds or (_KIND,), max_running=limits or None)
    return None if claimed is None else claimed[1].record


class ChoosingContract(LeaseFixtures):
    """``claim`` of the next task, ``claimable``, ``unclaimed`` and ``workload``."""

    def test_next_is_the_highest_priority_then_the_oldest(
        self, leases: LeaseStore, make: RecordMaker
    ) -> None:
        """No priority counts as 0; tasks of one instant go by id. None when nothing is left."""
        priorities = [None, 5, -1, 0, 5, None, 7, -1]
        records = [make(handler_version=1, priority=priority) for priority in priorities]
        ties = [make(task_id, handler_version=1, priority=5, created_at=START + 90) for task_id in "ba"]
        for record in (*records, *ties):
            leases.create(record)
        taken = []
        while (found := claim_next(leases)) is not None:
            assert found.status is TaskStatus.RUNNING
            taken.append(found.task_id)
        in_order = [6, 1, 4], [0, 3, 5], [2, 7]
        first, middle, last = ([records[number].task_id for number in numbers] for numbers in in_order)
        assert taken == [*first, "a", "b", *middle, *last]

    def test_only_what_there_is_a_handler_for(self, leases: LeaseStore, make: RecordMaker) -> None:
        """Type and version must both fit; a task of a plain tracker has no version and is nobody's."""
        leases.create(make())
        old = leases.create(make(handler_version=0)).record
        newer = leases.create(make(handler_version=2)).record
        other = leases.create(make(task_type="ingest", handler_version=1)).record
        assert claim_next(leases) is None
        assert leases.claim(holder="w") is None
        assert leases.claim(holder="w", task_types=[]) is None
        for kinds, expected in (
            ([("ingest", 1), ("reindex", 7)], other),
            ([("reindex", 1), ("reindex", 2)], newer),
            ([("reindex", 0)], old),
        ):
            taken = claim_next(leases, *kinds)
            assert taken is not None
            assert taken.key == expected.key
            assert claim_next(leases, *kinds) is None

    def test_kinds_are_taken_in_one_order(self, leases: LeaseStore, make: RecordMaker) -> None:
        """The order in which they are named means nothing."""
        kinds = [("a", 1), ("b", 1), ("a", 2)]
        records = [
            leases.create(make(task_type=task_type, handler_version=version)).record
            for task_type, version in [kinds[1], kinds[2], kinds[0], kinds[1]]
        ]
        for record in records:
            taken = claim_next(leases, *kinds)
            assert taken is not None
            assert taken.key == record.key

    def test_start_time_must_have_come(
        self, harness: StoreHarness, leases: LeaseStore, make: RecordMaker
    ) -> None:
        """A task for later waits, whatever its priority."""
        later = leases.create(make(handler_version=1, not_before=harness.now() + 3600, priority=9)).record
        due = leases.create(make(handler_version=1, not_before=harness.now() - 1)).record
        taken = claim_next(leases)
        assert taken is not None
        assert taken.key == due.key
        assert claim_next(leases) is None
        assert as_it_stands(leases, later.key) == later

    def test_no_more_run_than_are_allowed(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Over all holders, of each type; others are not held up, and an end makes room."""
        for record in make.many(4, handler_version=1):
            leases.create(record)
        others = [leases.create(make(task_type="ingest", handler_version=1)).record for _ in range(2)]
        first = leases.claim(holder="w", task_types=[_KIND], max_running={"reindex": 2})
        assert first is not None
        assert claim_next(rescuer, reindex=2) is not None
        for store in (leases, rescuer):
            assert claim_next(store, reindex=2) is None
        taken = claim_next(leases, _KIND, ("ingest", 1), reindex=2)
        assert taken is not None
        assert taken.key == others[0].key
        assert claim_next(leases, _KIND, ("ingest", 1), reindex=2, ingest=1) is None
        lease, stored = first
        leases.end(lease, completed(stored.record))
        assert claim_next(rescuer, reindex=2) is not None
        assert claim_next(rescuer, reindex=2) is None
        assert claim_next(rescuer, ingest=1) is not None, "a limit that is not named is none"

    def test_lost_holder_takes_a_place_until_it_is_settled(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """It may still be working. Afterwards the place is free, so that nobody starves. [D003]"""
        for record in make.many(2, handler_version=1):
            leases.create(record)
        claimed = leases.claim(holder="w", task_types=[_KIND], max_running={"reindex": 1})
        assert claimed is not None
        expired = lose(harness, rescuer, claimed[0])
        assert claim_next(rescuer, reindex=1) is None
        taken = rescuer.take_over(expired, holder="r", count_attempt=False)
        assert taken is not None
        assert claim_next(rescuer, reindex=1) is None
        rescuer.end(taken[0], completed(taken[1].record))
        assert claim_next(rescuer, reindex=1) is not None
        assert claim_next(rescuer, reindex=1) is None

    def test_released_task_is_offered_again(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """In its old place, to anybody. One that was claimed by its key is not offered meanwhile."""
        first, second = (leases.create(record).record for record in make.many(2, handler_version=1))
        lease, stored = claimed_by(leases, first.key)
        taken = claim_next(rescuer)
        assert taken is not None
        assert taken.key == second.key
        assert claim_next(rescuer) is None
        leases.release(lease, released(stored.record))
        taken = claim_next(rescuer)
        assert taken is not None
        assert taken.key == first.key

    def test_each_task_is_claimed_once(self, leases: LeaseStore, make: RecordMaker) -> None:
        """Eight threads take 200 tasks between them. [D095]"""
        records = make.many(200, handler_version=1)
        for record in records:
            leases.create(record)
        drained = race(*[lambda: jobs.drain(leases, lambda: None, [_KIND], "w")] * 8)
        taken = [task_id for part in drained if isinstance(part, list) for task_id in part]
        assert [part for part in drained if not isinstance(part, list)] == []
        assert sorted(taken) == [record.task_id for record in records]
        assert leases.count("acme", "alice") == {"reindex": {"completed": 200}}

    # ---- who could be next -----------------------------------------------------------------------------

    def test_claimable_are_named_in_the_order_of_claims(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Of all kinds and owners together, no more than asked for; and naming them takes none."""
        kinds = [_KIND, ("ingest", 1), ("reindex", 2)]
        for number, priority in enumerate([None, 5, -1, 0, 5, 7, None, -1, 5]):
            task_type, version = kinds[number % 3]
            user_id = ("alice", "bob")[number % 2]
            leases.create(
                make(task_type=task_type, handler_version=version, priority=priority, user_id=user_id)
            )
        for task_id in "ba":
            leases.create(make(task_id, handler_version=1, priority=5, created_at=START + 90))
        named = [*leases.claimable(task_types=kinds, limit=99)]
        assert len(named) == 11
        for limit in (1, 2, 5):
            assert [*rescuer.claimable(task_types=kinds[::-1], limit=limit)] == named[:limit]
        taken = []
        while (found := claim_next(leases, *kinds)) is not None:
            taken.append(found.key)
            assert [*rescuer.claimable(task_types=kinds, limit=2)] == named[len(taken) :][:2]
        assert taken == named

    def test_claimable_is_what_a_claim_could_take(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """No task of a plain tracker or of another kind, none that is held, has ended or is for later."""

        def named(*kinds: tuple[str, int]) -> list[TaskKey]:
            return [*rescuer.claimable(task_types=kinds, limit=9)]

        leases.create(make())
        newer = leases.create(make(handler_version=2)).record
        other = leases.create(make(task_type="ingest", handler_version=1)).record
        for status in (TaskStatus.COMPLETED, TaskStatus.RUNNING, TaskStatus.CANCELLING):
            leases.create(make(handler_version=1, status=status))
        leases.create(make(handler_version=1, not_before=_LATER))
        assert named(_KIND) == named(("ingest", 2)) == named() == []
        due = leases.create(make(handler_version=1, not_before=5.0)).record
        waiting = leases.create(make(handler_version=1)).record
        assert named(_KIND) == [due.key, waiting.key]
        assert named(("reindex", 2), ("ingest", 1)) == [newer.key, other.key]
        for count_attempt in (True, False):
            lease, stored = claimed_by(leases, due.key, count_attempt=count_attempt)
            assert named(_KIND) == [waiting.key]
            leases.release(lease, released(stored.record))
            assert named(_KIND) == [due.key, waiting.key]
        leases.request_cancel(due.key)
        assert named(_KIND) == [waiting.key]

    def test_claimable_are_found_behind_any_number_of_others(
        self, leases: LeaseStore, make: RecordMaker
    ) -> None:
        """What cannot be claimed takes no place of the limit."""
        for record in make.many(6, handler_version=1, not_before=_LATER, priority=9):
            leases.create(record)
        for record in make.many(6, handler_version=1, priority=9):
            claimed_by(leases, leases.create(record).record.key)
        low, high = (
            leases.create(make(handler_version=1, priority=priority)).record for priority in (None, 1)
        )
        assert [*leases.claimable(task_types=[_KIND], limit=1)] == [high.key]
        assert [*leases.claimable(task_types=[_KIND, _KIND], limit=3)] == [high.key, low.key]

    def test_claimable_is_nothing_of_a_paused_type(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Until it is paused no more; others are named all the while, whoever paused it."""
        paused = leases.create(make(handler_version=1, priority=9)).record
        other = leases.create(make(task_type="ingest", handler_version=1)).record
        kinds = [_KIND, ("ingest", 1)]
        assert [*rescuer.claimable(task_types=kinds, limit=1)] == [paused.key]
        leases.pause("reindex")
        for store in (leases, rescuer):
            assert [*store.claimable(task_types=kinds, limit=1)] == [other.key]
            assert [*store.claimable(task_types=[_KIND], limit=1)] == []
        leases.unpause("reindex")
        for store in (leases, rescuer):
            assert [*store.claimable(task_types=kinds, limit=1)] == [paused.key]

    # ---- the backlog -----------------------------------------------------------------------------------

    def test_unclaimed_are_those_that_nobody_holds(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Pending ones of all accounts, oldest first; no more than asked for."""
        waiting = [
            leases.create(record).record
            for record in (make(), make(account_id="globex", handler_version=1), make(user_id="bob"), make())
        ]
        held, ended = leases.create(make()).record, make(status=TaskStatus.COMPLETED)
        leases.create(ended)
        leases.create(make(status=TaskStatus.RUNNING))
        leases.create(make(status=TaskStatus.CANCELLING))
        lease, stored = claimed_by(leases, held.key)
        for store in (leases, rescuer):
            assert [found.record for found in store.unclaimed(limit=9)] == waiting
            assert [found.record for found in store.unclaimed(limit=2)] == waiting[:2]
        for found in leases.unclaimed(limit=9):  # with the version that is stored
            assert isinstance(leases.get(found.record.key, known=found.version), Unchanged)
        leases.release(lease, released(stored.record))
        assert len(rescuer.unclaimed(limit=9)) == 5

    def test_unclaimed_of_some_types(self, leases: LeaseStore, make: RecordMaker) -> None:
        """Type and version must both fit; also for kinds that nobody here has a handler for."""
        plain = leases.create(make()).record
        first = leases.create(make(handler_version=1)).record
        second = leases.create(make(handler_version=2)).record
        ingest = leases.create(make(task_type="ingest", handler_version=1)).record

        def found(*kinds: tuple[str, int]) -> list[TaskRecord]:
            return [stored.record for stored in leases.unclaimed(task_types=kinds, limit=9)]

        assert found(_KIND) == [first]
        assert found(("reindex", 2), ("ingest", 1)) == [second, ingest]
        assert found(("ingest", 2)) == found() == []
        assert [stored.record for stored in leases.unclaimed(limit=9)] == [plain, first, second, ingest]

    def test_unclaimed_but_for_some_types(
        self, harness: StoreHarness, leases: LeaseStore, make: RecordMaker
    ) -> None:
        """Type and version must both fit; a task of a plain tracker is of no kind. Also those for later."""
        tomorrow = harness.now() + 86_400
        plain = leases.create(make()).record
        first = leases.create(make(handler_version=1)).record
        second = leases.create(make(handler_version=2, priority=-1)).record
        leases.create(make(handler_version=1, not_before=tomorrow))
        later = leases.create(make(handler_version=2, not_before=tomorrow)).record
        ingest = leases.create(make(task_type="ingest", handler_version=1, priority=9)).record

        def found(*kinds: tuple[str, int], limit: int = 9, **asked: Any) -> list[TaskRecord]:
            return [stored.record for stored in leases.unclaimed(except_types=kinds, limit=limit, **asked)]

        assert found(_KIND) == [plain, second, later, ingest]
        assert found(_KIND, handled=True) == [second, later, ingest]
        assert found(_KIND, handled=True, limit=2) == [second, later]
        assert found(_KIND, handled=False) == [plain]
        assert found(_KIND, ("reindex", 2)) == [plain, ingest]
        assert found(_KIND, ("reindex", 2), ("ingest", 1), handled=True) == []
        assert found(("reindex", 2), ("ingest", 2), limit=2) == [plain, first]
        assert found(_KIND, ("nothing", 1), task_types=[_KIND, ("ingest", 1)]) == [ingest]
        assert found(_KIND, task_types=[_KIND]) == found(task_types=[]) == []
        assert len(found()) == 6

    def test_unclaimed_of_other_types_are_found_behind_any_number(
        self, leases: LeaseStore, make: RecordMaker
    ) -> None:
        """What is left out takes no place of the limit."""
        for record in make.many(12, handler_version=1):
            leases.create(record)
        others = [leases.create(make(handler_version=2)).record for _ in range(3)]
        asked = leases.unclaimed(except_types=[_KIND], handled=True, limit=2)
        assert [stored.record for stored in asked] == others[:2]
        claimed_by(leases, others[0].key)
        asked = leases.unclaimed(except_types=[_KIND], limit=2)
        assert [stored.record for stored in asked] == others[1:]

    @pytest.mark.parametrize("version", [None, 1])
    def test_unclaimed_for_some_time(
        self, harness: StoreHarness, leases: LeaseStore, make: RecordMaker, version: int | None
    ) -> None:
        """What was made just now may still be started; what waits for long is found. Also beside kinds left out."""
        then = harness.now() - 1000
        old = leases.create(make(created_at=then, updated_at=then, handler_version=version)).record
        harness.lapse(leases, 1000)
        now = harness.now()
        new = leases.create(make(created_at=now, updated_at=now, handler_version=version)).record
        handled = version is not None
        for others in ([], [("nothing", 1)]):
            found = leases.unclaimed(except_types=others, handled=handled, older_than_seconds=500, limit=9)
            assert [stored.record for stored in found] == [old]
        assert [stored.record for stored in leases.unclaimed(limit=9)] == [old, new]
        assert [*leases.unclaimed(older_than_seconds=100_000, limit=9)] == []

    def test_workload(self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker) -> None:
        """What waits and what runs, whoever it belongs to; ages are 0 where there is nothing."""
        assert leases.workload() == Workload(0, 0, 0, 0)
        kept: list[tuple[Lease, Stored]] = []
        for account_id in ("acme", "globex"):
            for _ in range(3):
                leases.create(make(account_id=account_id))
            kept.append(claimed_by(leases, leases.create(make(account_id=account_id)).record.key))
        leases.create(make(status=TaskStatus.COMPLETED))
        leases.request_cancel(kept[0][0].key)
        for store in (leases, rescuer):
            load = store.workload()
            assert load[:2] == (6, 2)
            assert min(load[2:]) >= 0
        for lease, stored in kept:
            leases.end(lease, completed(stored.record))
        load = rescuer.workload()
        assert (load.waiting, load.running, load.oldest_running_seconds) == (6, 0, 0)

    def test_workload_tells_ages(self, harness: StoreHarness, leases: LeaseStore, make: RecordMaker) -> None:
        """In seconds, of the oldest."""
        then = harness.now() - 1000
        running = leases.create(make(created_at=then, updated_at=then)).record
        leases.create(make(created_at=then, updated_at=then))
        claimed_by(leases, running.key)
        harness.lapse(leases, 1000)
        load = leases.workload()
        assert load.oldest_waiting_seconds >= 900
        assert load.oldest_running_seconds >= 0

    @pytest.mark.parametrize("limit", [0, 1])
    def test_limit_of_what_runs_counts_only_what_is_held(
        self, leases: LeaseStore, make: RecordMaker, limit: int
    ) -> None:
        """Not what waits, what has ended, or what is held of another type."""
        for record in make.many(2, handler_version=1):
            leases.create(record)
        leases.create(make(status=TaskStatus.COMPLETED))
        claimed_by(leases, leases.create(make(task_type="ingest")).record.key)
        assert (claim_next(leases, reindex=limit) is not None) == (limit == 1)
