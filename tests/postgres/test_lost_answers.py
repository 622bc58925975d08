"""Every call, with the connection cut at each of its statements: it takes effect once, or says that it may have."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from stores.postgres.store import PostgresTaskStore
from task_tracker import transitions
from task_tracker.errors import StoreUnavailable, TaskExists
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Expired, Lease, Purged, Query, Stored, WorkerFact
from task_tracker.testing import RecordMaker
from tests.postgres.cutting import Cut, Scissors, cut_opener
from tests.postgres.grounds import Ground

KIND = ("reindex", 1)
MOST_STATEMENTS = 20


@dataclasses.dataclass
class Scene:
    """A store whose connections can be cut, another one, and what was made for the call."""

    ground: Ground
    store: PostgresTaskStore
    plain: PostgresTaskStore
    scissors: Scissors
    make: RecordMaker = dataclasses.field(default_factory=lambda: RecordMaker(own_fields=False))

    def waiting(self) -> TaskRecord:
        return self.plain.create(self.make("one", handler_version=1)).record

    def held(self) -> tuple[Lease, TaskRecord]:
        claimed = self.plain.claim(self.waiting().key, holder="first")
        assert claimed is not None
        return claimed[0], claimed[1].record

    def silent(self) -> Expired:
        self.held()
        self.ground.lapse(1000)
        (expired,) = self.plain.expired()
        return expired

    def ended(self) -> TaskRecord:
        return self.plain.create(self.make("one", status=TaskStatus.COMPLETED)).record

    def rows(self) -> list[tuple[Any, ...]]:
        return self.ground.run(
            "SELECT task_id, status, record ->> 'message', epoch, holder, attempts, token IS NULL FROM {tasks} "
            "ORDER BY task_id"
        )


@pytest.fixture
def scene(ground: Ground) -> Iterator[Scene]:
    scissors = Scissors()
    with (
        closing(ground.store(pool_size=2, open_connection=cut_opener(ground, scissors))) as store,
        closing(ground.store(pool_size=1)) as plain,
    ):
        store.prepare()
        yield Scene(ground, store, plain, scissors)


Prepared = Callable[[PostgresTaskStore], object]


def create(scene: Scene) -> Prepared:
    record = scene.make("one")
    return lambda store: store.create(record)


def create_if_no_active(scene: Scene) -> Prepared:
    record = scene.make("one")
    return lambda store: store.create_if_no_active(record)


def update(scene: Scene) -> Prepared:
    stored = scene.plain.create(scene.make("one"))
    return lambda store: store.update(stored.record.changed(message="m"), expected=stored.version)


def delete(scene: Scene) -> Prepared:
    key = scene.ended().key
    return lambda store: store.delete(key)


def claim(scene: Scene) -> Prepared:
    key = scene.waiting().key
    return lambda store: store.claim(key, holder="h")


def claim_of_its_own(scene: Scene) -> Prepared:
    """Of a task that the store has just created: it need not be read."""
    key = scene.store.create(scene.make("one", handler_version=1)).record.key
    return lambda store: store.claim(key, holder="h")


def claim_on_behalf(scene: Scene) -> Prepared:
    key = scene.waiting().key
    return lambda store: store.claim(key, holder="h", count_attempt=False)


def claim_next(scene: Scene) -> Prepared:
    scene.waiting()
    return lambda store: store.claim(holder="h", task_types=[KIND], max_running={"reindex": 1})


def claim_several(scene: Scene) -> Prepared:
    scene.waiting()
    scene.plain.create(scene.make("two", handler_version=1))
    return lambda store: sorted(
        store.claim_several(2, holder="h", task_types=[KIND]), key=lambda claimed: claimed[0].key
    )


def claim_of_what_is_due(scene: Scene) -> Prepared:
    scene.plain.create(scene.make("one", handler_version=1, not_before=4e9))
    scene.ground.bring_forward(4e9)
    return lambda store: store.claim(holder="h", task_types=[KIND])


def renew(scene: Scene) -> Prepared:
    lease, _ = scene.held()
    return lambda store: store.renew(lease)


def commit(scene: Scene) -> Prepared:
    lease, record = scene.held()
    return lambda store: store.commit(lease, record.changed(message="m"))


def commit_after_a_cancel(scene: Scene) -> Prepared:
    lease, record = scene.held()
    scene.plain.request_cancel(lease.key)
    return lambda store: store.commit(lease, record.changed(message="m"))


def release(scene: Scene) -> Prepared:
    lease, record = scene.held()
    return lambda store: store.release(lease, transitions.released(record, record.updated_at))


def release_after_a_cancel(scene: Scene) -> Prepared:
    lease, record = scene.held()
    scene.plain.request_cancel(lease.key)
    return lambda store: store.release(lease, transitions.released(record, record.updated_at))


def end(scene: Scene) -> Prepared:
    lease, record = scene.held()
    return lambda store: store.end(lease, transitions.completed(record, record.updated_at, b"1"))


def end_several(scene: Scene) -> Prepared:
    held = [scene.held()]
    claimed = scene.plain.claim(
        scene.plain.create(scene.make("two", handler_version=1)).record.key, holder="h"
    )
    assert claimed is not None
    held.append((claimed[0], claimed[1].record))
    return lambda store: store.end_several(
        [(lease, transitions.completed(record, record.updated_at, b"1")) for lease, record in held]
    )


def cancel_of_what_waits(scene: Scene) -> Prepared:
    key = scene.waiting().key
    return lambda store: store.request_cancel(key)


def cancel_of_what_runs(scene: Scene) -> Prepared:
    lease, _ = scene.held()
    return lambda store: store.request_cancel(lease.key)


def take_over(scene: Scene) -> Prepared:
    expired = scene.silent()
    return lambda store: store.take_over(expired, holder="r")


def settle(scene: Scene) -> Prepared:
    expired = scene.silent()
    return lambda store: store.take_over(expired, holder="r", count_attempt=False)


def pause(scene: Scene) -> Prepared:
    return lambda store: store.pause("reindex")


def publish(scene: Scene) -> Prepared:
    return lambda store: store.publish(WorkerFact("w", {"a": 1}, 30))


CALLS = [
    *(
        create,
        create_if_no_active,
        update,
        delete,
        claim,
        claim_of_its_own,
        claim_on_behalf,
        claim_next,
        claim_several,
        claim_of_what_is_due,
        renew,
    ),
    *(
        commit,
        commit_after_a_cancel,
        release,
        release_after_a_cancel,
        end,
        end_several,
        cancel_of_what_waits,
        cancel_of_what_runs,
    ),
    *(take_over, settle, pause, publish),
]

each_call = pytest.mark.parametrize("prepare", CALLS, ids=lambda prepare: prepare.__name__)
each_side = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])


def said(outcome: object) -> object:
    """Return what an answer says, without tokens, times and versions."""
    if isinstance(outcome, tuple) and isinstance(outcome[0], Lease):
        lease, stored = outcome
        return (
            lease.key,
            lease.epoch,
            lease.holder,
            lease.attempt_count,
            lease.cancel_requested.is_set(),
            said(stored),
        )
    if isinstance(outcome, list):
        return [said(one) for one in outcome]
    if isinstance(outcome, Stored):
        record = outcome.record
        return record.key, record.status, record.message, record.attempt and record.attempt.epoch
    return outcome


@each_call
@each_side
def test_call_whose_connection_breaks_once_takes_effect_once(
    scene: Scene, prepare: Callable[[Scene], Prepared], after: bool
) -> None:
    """At each of its statements; it answers as if nothing had been. [D016]"""
    call = prepare(scene)
    expected = said(call(scene.store)), scene.rows()
    for nth in range(1, MOST_STATEMENTS):
        scene.ground.empty()
        scene.make = RecordMaker(own_fields=False)
        call = prepare(scene)
        scene.scissors.cut_at(nth, after=after)
        outcome = call(scene.store)
        cut = scene.scissors.cuts
        scene.scissors.put_away()
        assert (said(outcome), scene.rows()) == expected, f"cut at statement {nth}"
        if isinstance(outcome, Stored) and outcome.record.key == TaskKey("acme", "alice", "one"):
            assert scene.plain.get(outcome.record.key) == outcome
        if isinstance(outcome, tuple) and isinstance(outcome[0], Lease):
            scene.plain.renew(outcome[0])
        if not cut:
            assert nth > 1
            return
    raise AssertionError("there is always another statement")


def told_of_each(outcome: object) -> None:
    """Raise what a call that raises nothing has told of each."""
    if isinstance(outcome, list) and isinstance(outcome[0], Exception):
        assert {type(one) for one in outcome} == {type(outcome[0])}
        raise outcome[0]


@each_call
@each_side
def test_call_that_gets_no_connection_any_more_says_that_it_may_have_happened(
    scene: Scene, prepare: Callable[[Scene], Prepared], after: bool
) -> None:
    """Never "not found", never "done"; tried again later it comes out right, or is told what is there."""
    call = prepare(scene)
    scene.scissors.cut_at(1, after=after, forever=True)
    with pytest.raises(StoreUnavailable, match="it may have happened all the same") as raised:
        told_of_each(call(scene.store))
    assert raised.value.__cause__ is not None
    scene.scissors.put_away()
    scene.plain.prepare()


ROUND_TRIPS: dict[Callable[[Scene], Prepared], int] = {
    **dict.fromkeys((create, create_if_no_active, renew, commit, release, end, end_several, publish), 1),
    claim_of_its_own: 1,
    **dict.fromkeys((update, delete, claim, claim_on_behalf, take_over, settle), 4),
    **dict.fromkeys((cancel_of_what_waits, cancel_of_what_runs, pause), 4),
    claim_next: 1 + 4 + 2,  # is there one; the claim; who may, and how many run
    claim_several: 1 + 4,
    claim_of_what_is_due: 1 + 2 + 4,  # is there one; moved in, and asked again
    commit_after_a_cancel: 1 + 4,
    release_after_a_cancel: 1 + 4,
}


@each_call
def test_call_takes_as_few_round_trips_as_it_can(scene: Scene, prepare: Callable[[Scene], Prepared]) -> None:
    call = prepare(scene)
    scene.scissors.cut_at(0, after=False)
    call(scene.store)
    assert scene.scissors.seen == ROUND_TRIPS[prepare]


@pytest.mark.parametrize("conflict", [psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected])
@pytest.mark.parametrize("times", [1, 4, 5])
def test_call_that_the_database_gave_up_on_is_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, conflict: type[psycopg.Error], times: int
) -> None:
    """A bounded number of times; nothing has happened then, so nothing may have."""
    call = claim(scene)
    left = times

    def give_up(_: Cut, send: Callable[[], Any]) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise conflict("others were quicker")
        return send()

    monkeypatch.setattr(Cut, "around", give_up)
    if times < 5:
        assert isinstance(call(scene.store), tuple)
        return
    with pytest.raises(StoreUnavailable, match="others were quicker") as raised:
        call(scene.store)
    assert "may have happened" not in str(raised.value)
    assert isinstance(call(scene.store), tuple)


def test_answers_of_reads_are_asked_for_again(scene: Scene) -> None:
    record = scene.ended()
    reads: list[Callable[[PostgresTaskStore], object]] = [
        lambda store: store.get(record.key),
        lambda store: store.list(Query("acme")).items,
        lambda store: store.count("acme", None),
        lambda store: store.has_active("acme", None, "reindex", "docs"),
        lambda store: store.find_active("acme", "alice", "reindex", "docs"),
        lambda store: store.unclaimed(limit=1),
        lambda store: store.claimable(task_types=[KIND], limit=1),
        lambda store: store.workload(),
        lambda store: store.expired(),
        lambda store: store.recover(),
        lambda store: store.facts(),
        lambda store: store.paused(),
        lambda store: store.examine(),
    ]
    for read in reads:
        expected = read(scene.store)
        for after in (False, True):
            scene.scissors.cut_at(1, after=after)
            assert read(scene.store) == expected
            assert scene.scissors.cuts == 1


def test_deletions_whose_answer_was_lost_are_not_repeated_blindly(scene: Scene) -> None:
    """What they deleted would not be known; the next pass goes on."""

    def purge(store: PostgresTaskStore) -> object:
        return store.purge({TaskStatus.COMPLETED: 5e9}, limit=10)

    def delete_owner(store: PostgresTaskStore) -> object:
        return store.delete_owner("acme", "alice")

    for call in (purge, delete_owner):
        scene.ground.empty()
        scene.make = RecordMaker(own_fields=False)
        scene.ended()
        scene.scissors.cut_at(1, after=True)
        if call is purge:
            with pytest.raises(StoreUnavailable, match="may have happened"):
                call(scene.store)
            assert call(scene.store) == Purged([], 0, False)
        else:  # the first statement only puts up the fence
            assert call(scene.store) == 1
        assert scene.rows() == []


def test_id_that_somebody_else_took_meanwhile_is_still_taken(scene: Scene) -> None:
    """A repeated creation tells its own record from another one's."""
    record = scene.make("one")
    scene.plain.create(record)
    for create_call in (scene.store.create, scene.store.create_if_no_active):
        scene.scissors.cut_at(1, after=False)
        with pytest.raises(TaskExists):
            create_call(scene.make("one", resource_id="other"))
    assert scene.plain.get(record.key).record.resource_id == "docs"  # type: ignore[union-attr]


def test_end_whose_answer_was_lost_and_whose_task_was_deleted_is_not_claimed_to_be_done(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the lost answer and the look somebody deleted the task: nobody knows."""
    lease, record = scene.held()
    meanwhile = [lambda: scene.plain.delete(record.key)]
    connections = scene.store._database.connections
    monkeypatch.setattr(connections, "forget_idle", lambda: meanwhile and meanwhile.pop()())
    scene.scissors.cut_at(1, after=True)
    with pytest.raises(StoreUnavailable, match="may have happened or not"):
        scene.store.end(lease, transitions.completed(record, record.updated_at, b"1"))
    assert scene.rows() == []
