"""Two calls at once, interleaved at every statement boundary, end as if one had come after the other.

What is compared: what both answered, and the rows that are left. Whatever the schedule, it must be what one of the two
orders gives, or what the contract allows besides; a call that would have to wait for the other one's lock waits.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest

from stores.postgres.store import PostgresTaskStore
from task_tracker import transitions
from task_tracker.records import TaskRecord
from task_tracker.store import Expired, Lease, Stored, StoreTransaction
from task_tracker.testing import RecordMaker
from tests.postgres.grounds import Ground
from tests.postgres.interleaving import Call, Interleaver
from tests.telling import TOLD

KIND = ("reindex", 1)


@dataclasses.dataclass
class Scene:
    """What the calls find: a store behind their backs, and what it made for them."""

    ground: Ground
    store: PostgresTaskStore
    make: RecordMaker
    lease: Lease | None = None
    record: TaskRecord | None = None
    expired: Expired | None = None
    beside: tuple[Lease, TaskRecord] | None = None
    """Another task that is held."""

    def held(self) -> tuple[Lease, TaskRecord]:
        assert self.lease is not None
        assert self.record is not None
        return self.lease, self.record

    def seen(self) -> Expired:
        assert self.expired is not None
        return self.expired


# ---- what there is at first ----------------------------------------------------------------------------


def pending(scene: Scene) -> None:
    scene.record = scene.store.create(scene.make("one", handler_version=1)).record


def two_pending(scene: Scene) -> None:
    pending(scene)
    scene.store.create(scene.make("two", handler_version=1))


def running(scene: Scene) -> None:
    pending(scene)
    assert scene.record is not None
    claimed = scene.store.claim(scene.record.key, holder="first")
    assert claimed is not None
    scene.lease, scene.record = claimed[0], claimed[1].record


def two_running(scene: Scene) -> None:
    running(scene)
    claimed = scene.store.claim(
        scene.store.create(scene.make("two", handler_version=1)).record.key, holder="first"
    )
    assert claimed is not None
    scene.beside = claimed[0], claimed[1].record


def two_late(scene: Scene) -> None:
    two_running(scene)
    scene.ground.lapse(1000)
    (scene.expired, _) = sorted(scene.store.expired(), key=lambda expired: expired.record.key)
    scene.ground.lapse(-1000)


def silent(scene: Scene) -> None:
    running(scene)
    scene.ground.lapse(1000)
    (scene.expired,) = scene.store.expired()


def late(scene: Scene) -> None:
    """Seen silent, but heard of again: the scan is old."""
    silent(scene)
    scene.ground.lapse(-1000)


def nothing(scene: Scene) -> None:
    """Not even a row."""


# ---- calls ---------------------------------------------------------------------------------------------


def anew(lease: Lease) -> Lease:
    return dataclasses.replace(lease, lost=threading.Event(), cancel_requested=threading.Event())


def claim(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    assert scene.record is not None
    return store.claim(scene.record.key, holder=who)


def claim_next(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    return store.claim(holder=who, task_types=[KIND])


def claim_limited(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    return store.claim(holder=who, task_types=[KIND], max_running={"reindex": 1})


def renew(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    store.renew(anew(scene.held()[0]))
    return None


def commit(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    lease, record = scene.held()
    return store.commit(anew(lease), record.changed(message=f"of {who}"))


def release(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    lease, record = scene.held()
    return store.release(anew(lease), transitions.released(record, record.updated_at))


def end(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    lease, record = scene.held()
    return store.end(anew(lease), transitions.completed(record, record.updated_at, b'"done"'))


def end_two(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    """Both together, as a worker does: what is left over by itself."""
    assert scene.beside is not None
    ends = [
        (anew(lease), transitions.completed(record, record.updated_at, b'"done"'))
        for lease, record in (scene.held(), scene.beside)
    ]
    return [
        plain(outcome_of(partial(_end, lease, record), store) if found is None else found)
        for (lease, record), found in zip(ends, store.end_several(ends), strict=True)
    ]


def _end(lease: Lease, record: TaskRecord, store: PostgresTaskStore) -> object:
    return store.end(lease, record)


def end_within(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    """A row of the caller's own goes with the end; any table will do."""
    lease, record = scene.held()
    done = transitions.completed(record, record.updated_at, b'"done"')
    return within(store, anew(lease), lambda begun: begun.write("end", done), who, scene)


def commit_within(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    lease, record = scene.held()
    return within(
        store,
        anew(lease),
        lambda begun: begun.write("commit", record.changed(message=f"of {who}")),
        who,
        scene,
    )


def look_within(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    return within(store, anew(scene.held()[0]), lambda begun: begun.look(), who, scene)


def within(
    store: PostgresTaskStore,
    lease: Lease,
    write: Callable[[StoreTransaction], object],
    who: str,
    scene: Scene,
) -> object:
    begun = store.begin(lease, for_loop=False)
    try:
        names = scene.ground.names
        begun.connection.execute(names.fill("INSERT INTO {paused} (task_type) VALUES (%s)"), [f"of {who}"])
        begun.revoke()
        answer = write(begun)
        begun.commit()
        return answer
    finally:
        begun.roll_back()


def cancel(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    assert scene.record is not None
    return store.request_cancel(scene.record.key)


def take_over(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    return store.take_over(scene.seen(), holder=who)


def settle(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    return store.take_over(scene.seen(), holder=who, count_attempt=False)


def update(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    assert scene.record is not None
    return store.update(scene.record.changed(message=f"of {who}"), expected=None)


def create_alone(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    record = scene.make(f"of {who}", created_at=scene.make.clock.now())
    return store.create_if_no_active(record)


def pause(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    store.pause("reindex")
    return None


def delete_owner(who: str, scene: Scene, store: PostgresTaskStore) -> object:
    return store.delete_owner("acme", "alice")


Prepare = Callable[[Scene], None]
Do = Callable[[str, Scene, PostgresTaskStore], object]

LONG: list[tuple[Prepare, Do, Do]] = [(two_pending, claim_next, claim_next)]
"""Hundreds of schedules; with one task that waits there are fewer."""

PAIRS: list[tuple[Prepare, Do, Do]] = [
    (pending, claim, claim),
    (pending, claim, cancel),
    (pending, claim, claim_next),
    (pending, claim_next, claim_next),
    (pending, claim_next, cancel),
    (pending, claim, update),
    (pending, cancel, cancel),
    (two_pending, claim_next, claim_next),
    (two_pending, claim_limited, claim_limited),
    (two_pending, claim_next, pause),
    (running, commit, cancel),
    (running, commit, commit),
    (running, commit, end),
    (running, end, cancel),
    (running, end, end),
    (two_running, end_two, cancel),
    (two_running, end_two, end),
    (two_running, end_two, commit),
    (two_running, end_two, renew),
    (two_late, end_two, take_over),
    (running, end_within, cancel),
    (running, end_within, end),
    (running, commit_within, cancel),
    (running, commit_within, commit_within),
    (running, look_within, cancel),
    (running, release, cancel),
    (running, release, claim_next),
    (running, end, update),
    (silent, take_over, take_over),
    (silent, take_over, settle),
    (silent, take_over, renew),
    (silent, take_over, commit),
    (silent, take_over, end),
    (silent, take_over, release),
    (silent, take_over, cancel),
    (silent, settle, cancel),
    (late, take_over, commit),
    (late, take_over, end),
    (late, take_over, release),
    (late, take_over, end_within),
    (late, take_over, look_within),
    (silent, take_over, end_within),
    (silent, take_over, commit_within),
    (silent, renew, end_within),
    (nothing, create_alone, create_alone),
    (nothing, create_alone, delete_owner),
]


ALLOWED: dict[Do, list[object]] = {delete_owner: [("InvalidTransition", 0, [])]}
"""A creation that comes while an owner is being deleted is refused, and nothing is left."""


@pytest.fixture(scope="module")
def totals() -> Iterator[Counter[str]]:
    """Numbers of schedules, told at the end."""
    totals: Counter[str] = Counter()
    yield totals
    TOLD.setdefault("figures", []).append(
        f"PostgreSQL: {totals['schedules']} schedules of {totals['pairs']} pairs of calls, {totals['waits']} with a "
        "wait for a lock; each ended as one of the two orders does"
    )


@pytest.fixture
def interleaver(ground: Ground) -> Iterator[Interleaver]:
    with closing(Interleaver(ground)) as interleaver:
        yield interleaver


@pytest.mark.parametrize(
    ("prepare", "one", "other"),
    [pytest.param(*pair, marks=[pytest.mark.slow] if pair in LONG else []) for pair in PAIRS],
    ids=lambda part: part.__name__,
)
def test_every_schedule_gives_what_one_order_gives(
    ground: Ground, interleaver: Interleaver, totals: Counter[str], prepare: Prepare, one: Do, other: Do
) -> None:
    """[D007] [D008] [D023] [D060] [D095] [D125]"""
    with closing(ground.store(pool_size=1)) as store:
        scene = Scene(ground, store, RecordMaker(own_fields=False))

        def begin() -> tuple[Call, Call]:
            ground.empty()
            scene.make = RecordMaker(own_fields=False)
            scene.lease = scene.record = scene.expired = scene.beside = None
            prepare(scene)
            return partial(one, "A", scene), partial(other, "B", scene)

        legal = ALLOWED.get(other, [])[:]
        for first in (0, 1):
            calls = begin()
            outcomes: list[object] = [None, None]
            for index in (first, 1 - first):
                outcomes[index] = outcome_of(calls[index], store)
            legal.append((*map(plain, outcomes), left(ground)))
        before = totals["schedules"]
        for run in interleaver.runs(begin):
            got = (*map(plain, run.outcomes), left(ground))
            assert got in legal, (run.steps, got, legal)
            totals["schedules"] += 1
            totals["waits"] += run.waited
    assert totals["schedules"] > before + 1
    totals["pairs"] += 1


def outcome_of(call: Call, store: PostgresTaskStore) -> object:
    try:
        return call(store)
    except Exception as error:  # noqa: BLE001  # it is the answer
        return error


def plain(outcome: object) -> object:
    """Return what an answer says, without tokens, times and versions."""
    if isinstance(outcome, Exception):
        return type(outcome).__name__
    if isinstance(outcome, tuple) and isinstance(outcome[0], Lease):
        lease, stored = outcome
        return (lease.key.task_id, lease.epoch, lease.holder, lease.cancel_requested.is_set(), plain(stored))
    if isinstance(outcome, Stored):
        record = outcome.record
        assert record.attempt is not None
        return (
            record.task_id,
            record.status.value,
            record.message,
            record.attempt.epoch,
            record.attempt.holder,
        )
    return outcome


def left(ground: Ground) -> list[tuple[object, ...]]:
    """Return the rows that are left, with columns and record side by side, and what is paused or fenced."""
    rows = ground.run(
        "SELECT task_id, status, record ->> 'status', record ->> 'message', record -> 'attempt' ->> 'epoch', "
        "epoch, holder, attempts, token IS NULL, blocks, alone FROM {tasks} ORDER BY task_id"
    )
    for row in rows:
        assert row[1] == row[2], "the column says what the record says"
    return [
        *rows,
        *ground.run("SELECT task_type FROM {paused} ORDER BY task_type"),
        *ground.run("SELECT user_id FROM {deletions}"),
    ]
