"""Several ends in one call: each is as it would have been alone."""

from __future__ import annotations

import dataclasses
import threading
from functools import partial

import pytest

from task_tracker import transitions
from task_tracker.errors import InvalidTransition, LeaseLost
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.store import Lease, LeaseStore, Stored, Unchanged
from task_tracker.testing.answers import claimed_by, said, taken_over
from task_tracker.testing.contract.fixtures import TERMINAL_STATES
from task_tracker.testing.contract.leases import LeaseFixtures, as_it_stands, completed, lose, released
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.racing import race
from task_tracker.testing.samples import RecordMaker

__all__ = ["EndingContract"]


def end_all(leases: LeaseStore, ends: list[tuple[Lease, TaskRecord]]) -> list[Stored | Exception]:
    """End several as a worker does; return what came of each."""
    found: list[Stored | Exception] = []
    for (lease, record), one in zip(ends, leases.end_several(ends), strict=True):
        if one is None:
            try:
                one = leases.end(lease, record)  # noqa: PLW2901  # what end_several left to it
            except Exception as error:  # noqa: BLE001  # looked at
                one = error  # noqa: PLW2901  # as above
        found.append(one)
    return found


def ended(found: Stored | Exception) -> Stored:
    """Return what an end is said to have left. Raises what it is said to have raised."""
    if isinstance(found, Exception):
        raise found
    return found


def claim_three(leases: LeaseStore, make: RecordMaker) -> list[tuple[Lease, Stored]]:
    """Create and claim three tasks."""
    return [claimed_by(leases, leases.create(record).record.key) for record in make.many(3)]


class EndingContract(LeaseFixtures):
    """``end_several``."""

    def test_each_of_several_ends_is_what_is_stored(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Told in their order, each with its version; the leases are gone, and the records final. [D037] [D059]"""
        three = claim_three(leases, make)
        records = [
            make.changed(stored.record, status=status, message=f'the "end" \\ of {number}', resource_id=None)
            for number, ((_, stored), status) in enumerate(zip(three, TERMINAL_STATES, strict=True))
        ]
        ends = [(lease, record) for (lease, _), record in zip(three, records, strict=True)]
        for (lease, before), record, found in zip(
            three, records, map(ended, end_all(leases, ends)), strict=True
        ):
            assert said(found.record) == said(record)
            assert found.record.attempt == before.record.attempt
            assert as_it_stands(rescuer, lease.key) == found.record
            assert isinstance(leases.get(lease.key, known=found.version), Unchanged)
            with pytest.raises(LeaseLost):
                leases.renew(lease)
            with pytest.raises(InvalidTransition):
                rescuer.claim(lease.key, holder="h")
        counted = rescuer.count("acme", None)["reindex"]
        assert counted == {status.value: 1 for status in TERMINAL_STATES}
        assert rescuer.workload().running == 0
        assert rescuer.create_if_no_active(make(resource_id=None)) is not None

    def test_none_of_several_ends_fails_because_another_does(
        self, leases: LeaseStore, make: RecordMaker
    ) -> None:
        """A lease that is gone, one that was declared lost, a record that is no end: each is told, the others end."""
        three = claim_three(leases, make)
        (good, stored), (declared, of_declared), (gone, of_gone) = three
        left = leases.release(gone, released(of_gone.record))
        declared.lost.set()
        active, of_active = claimed_by(leases, leases.create(make()).record.key)
        last, of_last = claimed_by(leases, leases.create(make()).record.key)
        found = end_all(
            leases,
            [
                (gone, completed(of_gone.record)),
                (good, completed(stored.record)),
                (declared, completed(of_declared.record)),
                (active, of_active.record),
                (last, completed(of_last.record)),
            ],
        )
        kinds = [Stored if isinstance(one, Stored) else type(one) for one in found]
        assert kinds == [LeaseLost, Stored, LeaseLost, InvalidTransition, Stored]
        assert as_it_stands(leases, gone.key) == left.record
        assert as_it_stands(leases, declared.key) == of_declared.record
        assert as_it_stands(leases, active.key) == of_active.record
        assert [as_it_stands(leases, lease.key) for lease in (good, last)] == [
            ended(found[1]).record,
            ended(found[4]).record,
        ]
        leases.renew(active)

    def test_old_holder_ends_nothing_with_others(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """What was taken over is its taker's; what was not ends, if its lease was renewed."""
        three = claim_three(leases, make)
        (lost, of_lost), *others = three
        taken, of_taken = taken_over(rescuer, lose(harness, rescuer, lost))
        for lease, _ in others:
            leases.renew(lease)
        asleep = dataclasses.replace(lost, lost=threading.Event(), cancel_requested=threading.Event())
        first, *rest = end_all(
            leases,
            [(asleep, completed(of_lost.record)), *((lease, completed(of.record)) for lease, of in others)],
        )
        assert isinstance(first, LeaseLost)
        assert asleep.lost.is_set()
        assert [ended(one).record.status for one in rest] == [TaskStatus.COMPLETED] * 2
        assert as_it_stands(leases, lost.key) == of_taken.record
        assert isinstance(rescuer.end(taken, completed(of_taken.record)), Stored)

    def test_end_that_comes_with_others_counts_against_a_cancel(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Its writer may not know of the wish, and may complete; one that knows ends as it says."""
        three = claim_three(leases, make)
        (one, of_one), (other, _), (third, of_third) = three
        rescuer.request_cancel(one.key)
        wanted = rescuer.request_cancel(other.key)
        found = end_all(
            leases,
            [
                (one, completed(of_one.record)),
                (other, transitions.cancelled(wanted.record, wanted.record.updated_at)),
                (third, completed(of_third.record)),
            ],
        )
        states = [ended(each).record.status for each in found]
        assert states == [TaskStatus.COMPLETED, TaskStatus.CANCELLED, TaskStatus.COMPLETED]
        assert [as_it_stands(rescuer, lease.key).status for lease, _ in three] == states

    def test_kind_of_what_ends_with_others_is_free(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Also if the end names another resource. [D059]"""
        created = [rescuer.create_if_no_active(make(resource_id=name)) for name in ("a", "b")]
        claimed = [claimed_by(leases, one.record.key) for one in created if one is not None]
        ends = [(lease, completed(stored.record).changed(resource_id="c")) for lease, stored in claimed]
        assert [ended(found).record.resource_id for found in end_all(leases, ends)] == ["c", "c"]
        for name in ("a", "b", "c"):
            assert not rescuer.has_active("acme", "alice", "reindex", name)
            assert rescuer.create_if_no_active(make(resource_id=name)) is not None

    def test_several_ends_of_none_are_none(self, leases: LeaseStore) -> None:
        """A single one is as ``end`` has it."""
        assert [*leases.end_several([])] == []

    def test_one_of_several_ends_counts_whoever_comes_with_others(
        self, leases: LeaseStore, make: RecordMaker
    ) -> None:
        """Of the same leases by several threads: each task ends once. [D037]"""
        for _ in range(5):
            claimed = claim_three(leases, make)
            outcomes = race(
                *(
                    partial(
                        end_all,
                        leases,
                        [
                            (lease, make.changed(of.record, status=status, message="m"))
                            for lease, of in claimed
                        ],
                    )
                    for status in TERMINAL_STATES
                )
            )
            for number, (lease, _) in enumerate(claimed):
                told = []
                for outcome in outcomes:
                    assert not isinstance(outcome, Exception), "it raises nothing itself"
                    told.append(outcome[number])
                (won,) = [one for one in told if isinstance(one, Stored)]
                assert [type(one) for one in told if one is not won] == [LeaseLost] * 2
                assert as_it_stands(leases, lease.key) == won.record
