"""Copying again takes over what has changed at the source, and never what has gone on at the target."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from task_tracker import transitions
from task_tracker.copying import Outcome
from task_tracker.errors import LeaseHeld, VersionConflict
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.store import LeaseStore, TaskStore
from task_tracker.testing import FaultyStore, PlainClient
from tests.copying.places import Pair, counts_of, read


def change(pair: Pair, record: TaskRecord, **fields: object) -> TaskRecord:
    """Write a task of the source, as its tracker does."""
    now = read(pair.source, record.key)
    return pair.source.update(now.changed(updated_at=now.updated_at + 1, **fields), expected=None).record


def finish(pair: Pair, record: TaskRecord) -> TaskRecord:
    now = read(pair.source, record.key)
    return pair.source.update(transitions.completed(now, now.updated_at + 1, b'"done"'), expected=None).record


def test_what_changed_at_the_source_is_copied_again(pair: Pair) -> None:
    """As often as it changes, until it has ended; what is new comes along."""
    make = pair.make()
    active, ends, stays = (pair.source.create(make()).record for _ in range(3))
    assert pair.run().counts == counts_of(copied=3)
    for number in range(3):
        changed = change(pair, active, message=f"step {number}", progress=number)
        late = pair.source.create(make()).record
        ran = pair.run()
        assert ran.is_equal
        assert ran.counts == counts_of(copied=1, renewed=1, same=number + 2)
        assert read(pair.target, active.key).message == changed.message
        assert read(pair.target, late.key).status is TaskStatus.PENDING
    finish(pair, ends)
    ran = pair.run()
    assert ran.is_equal
    assert ran.counts == counts_of(renewed=1, same=5)
    there = read(pair.target, ends.key)
    assert (there.status, there.result, there.extra_json) == (TaskStatus.COMPLETED, "done", None)
    assert read(pair.target, stays.key).status is TaskStatus.PENDING


def test_before_it_is_copied_again_the_comparison_tells(pair: Pair) -> None:
    """What is missing, and what is older."""
    make = pair.make()
    active = pair.source.create(make()).record
    pair.run()
    change(pair, active, message="more")
    late = pair.source.create(make()).record
    ran = pair.run(target=unwritten(pair.target))
    assert [told.outcome for told in ran.told] == [Outcome.FAILED, Outcome.FAILED]
    assert sorted(told.outcome for told in ran.compared) == [Outcome.MISSING, Outcome.OLDER]
    assert not ran.is_equal
    (tally,) = ran.tallies
    assert (tally.source, tally.target, tally.same) == (2, 1, 0)
    assert tally.source_digest != tally.target_digest
    assert pair.new.peek(late.key) is None


def unwritten(store: TaskStore) -> TaskStore:
    """Return a store that takes nothing."""
    faulty = FaultyStore(store)
    faulty.fail(on={"create", "take_in", "update"}, forever=True)
    return faulty


def go_on(record: TaskRecord) -> TaskRecord:
    return record.changed(updated_at=record.updated_at + 5, message="by the new server")


def end(record: TaskRecord) -> TaskRecord:
    return transitions.completed(record, record.updated_at + 5, b'"elsewhere"')


@pytest.mark.parametrize("step", [go_on, end])
@pytest.mark.parametrize("source_too", [True, False])
def test_what_has_gone_on_at_the_target_stays(
    pair: Pair, step: Callable[[TaskRecord], TaskRecord], source_too: bool
) -> None:
    """[D037] [D125] Whatever the source has by now; it is named, and told apart from what differs otherwise."""
    make = pair.make()
    record, other = pair.source.create(make()).record, pair.source.create(make()).record
    pair.run()
    there = pair.target.update(step(read(pair.target, record.key)), expected=None).record
    if source_too:
        change(pair, record, message="by the old server")
        finish(pair, record)
    before = pair.new.peek(record.key)
    ran = pair.run()
    assert ran.outcome_of(record) is Outcome.GONE_ON
    assert ran.counts == counts_of(gone_on=1, same=1)
    assert not ran.is_equal
    assert ("newer one" in ran.told[0].message) == (not source_too)
    assert pair.new.peek(record.key) == before
    assert read(pair.target, record.key) == there
    assert read(pair.target, other.key).status is TaskStatus.PENDING


def test_what_somebody_works_on_at_the_target_stays(leases: Pair) -> None:
    """[D125] Also if its record was not written yet."""
    make = leases.make()
    record = leases.source.create(make()).record
    leases.run()
    assert isinstance(leases.target, LeaseStore)
    claimed = leases.target.claim(record.key, holder="new server", count_attempt=False)
    assert claimed is not None
    change(leases, record, message="by the old server")
    ran = leases.run()
    assert ran.told[0].outcome is Outcome.GONE_ON
    assert "new server" in ran.told[0].message or "held" in ran.told[0].message
    leases.target.renew(claimed[0])


def test_cancelled_at_the_target_stays_cancelled(pair: Pair) -> None:
    """[D037] [D041] A wish that was spoken at the target is not overwritten."""
    if not isinstance(pair.target, LeaseStore):
        pytest.skip("the target has no leases")
    make = pair.make()
    record = pair.source.create(make()).record
    pair.run()
    pair.target.request_cancel(record.key)
    change(pair, record, message="goes on")
    ran = pair.run()
    assert ran.outcome_of(record) is Outcome.GONE_ON
    assert read(pair.target, record.key).status is TaskStatus.CANCELLED


def test_another_task_under_the_same_id(pair: Pair) -> None:
    """[D090] Created at another time, it is another one: neither is overwritten, whatever their states."""
    make = pair.make()
    mine = [pair.source.create(make(f"own-{number}", status=status)).record for number, status in STATES]
    theirs = [pair.target.create(make(f"own-{number}", status=status)).record for number, status in STATES]
    ran = pair.run()
    assert ran.counts == counts_of(other=len(STATES))
    assert [read(pair.target, record.key) for record in theirs] == theirs
    assert [read(pair.source, record.key) for record in mine] == mine
    assert not ran.is_equal


STATES = list(enumerate([TaskStatus.PENDING, TaskStatus.COMPLETED]))


def test_ended_otherwise(pair: Pair) -> None:
    """[D037] The first end at the target is final there."""
    make = pair.make()
    record = make(status=TaskStatus.COMPLETED, result_json=b'"one"')
    pair.source.create(record)
    there = pair.target.create(record.changed(result_json=b'"two"')).record
    ran = pair.run()
    assert ran.outcome_of(record) is Outcome.GONE_ON
    assert read(pair.target, record.key) == there


def test_copied_by_other_means(pair: Pair) -> None:
    """What is there as it should be is found to be the same; what is older was not copied by this, and stays."""
    make = pair.make()
    same = pair.source.create(make()).record
    older = pair.source.create(make()).record
    for record in (same, older):
        pair.target.create(record)
    change(pair, older, message="later")
    ran = pair.run()
    assert ran.counts == counts_of(same=1, gone_on=1)
    assert ran.outcome_of(older) is Outcome.GONE_ON


def test_somebody_is_quicker(pair: Pair) -> None:
    """[D125] What comes in between the look and the write is looked at again; nothing is overwritten."""
    make = pair.make()
    new, older = pair.source.create(make()).record, pair.source.create(make()).record
    pair.run()
    pair.source.create(late := make())
    change(pair, older, message="later")
    target = FaultyStore(pair.target)
    writes = {"create", "take_in", "update"}

    def others_come() -> None:
        pair.target.create(late)
        there = read(pair.target, older.key)
        pair.target.update(go_on(there), expected=None)

    target.interrupt(others_come, on=writes)
    ran = pair.run(target=target)
    assert ran.counts[Outcome.GONE_ON] == 1
    assert ran.outcome_of(older) is Outcome.GONE_ON
    assert read(pair.target, older.key).message == "by the new server"
    assert read(pair.target, new.key).status is TaskStatus.PENDING


@pytest.mark.parametrize("error", [VersionConflict("changed"), LeaseHeld("held")])
def test_target_that_never_rests(leases: Pair, error: Exception) -> None:
    """It is given up after some tries, and the others are copied."""
    make = leases.make()
    record = leases.source.create(make()).record
    leases.run()
    change(leases, record, message="later")
    leases.source.create(make())
    target = FaultyStore(leases.target)
    target.fail(error, on="take_in", nth=2, forever=True)
    ran = leases.run(target=target)
    assert ran.counts[Outcome.COPIED] == 1
    assert sum(ran.counts.values()) == 2
    assert not ran.is_equal


def test_target_that_cannot_compare(plain: Pair) -> None:
    """[D125] Where a write could overwrite another's unseen, an older copy is left, and named."""
    from stores import PersistentTaskStore

    target = PersistentTaskStore(PlainClient())
    assert not target.capabilities.compare_and_set
    make = plain.make()
    record = plain.source.create(make()).record
    assert plain.run(target=target).is_equal
    change(plain, record, message="later")
    ran = plain.run(target=target)
    assert ran.outcome_of(record) is Outcome.OLDER
    assert read(target, record.key).message is None
