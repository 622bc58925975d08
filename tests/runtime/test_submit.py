"""Submitting work for workers: stored as a worker takes it, or refused, and never lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stores import PersistentTaskStore
from task_tracker import (
    AsyncTaskTracker,
    CapabilityMissing,
    HandlerRegistry,
    InvalidPayload,
    SettingsError,
    StorageConfig,
    StoreUnavailable,
    TaskRecord,
    TaskStatus,
    TaskTracker,
    wakeups,
)
from task_tracker.records import TaskKey
from task_tracker.store import Stored
from task_tracker.wakeups import InProcessWakeUp
from tests.core.support import OWNER, PATIENCE, WatchedStore, join, own_threads
from tests.runtime.places import (
    KINDS,
    PAYLOAD,
    V1,
    V2,
    Ingest,
    Place,
    Recording,
    count,
    handlers,
    place_for,
    stored,
    submit,
)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from place_for(request, tmp_path)


@pytest.fixture
def tracker(place: Place) -> Iterator[TaskTracker]:
    with place.tracker() as made:
        yield made


# ---- what is stored --------------------------------------------------------------------------------


def test_a_task_is_stored_for_a_worker(place: Place, tracker: TaskTracker) -> None:
    task = submit(
        tracker,
        payload=Ingest(url="u"),
        priority=3,
        timeout_seconds=5,
        max_attempts=1,
        meta={"by": "api"},
        private={"api_key": "k"},
    )
    assert task.created
    assert task.task_id == task.record.task_id
    record = stored(place, task)
    assert record == task.record
    assert tracker.get(task.task_id) == record
    assert (record.status, record.handler_version, record.dedupe_key) == ("pending", 1, None)
    assert (record.priority, record.timeout_seconds, record.max_attempts) == (3, 5, 1)
    assert (record.payload, record.meta) == ({"url": "u", "depth": 1}, {"by": "api"})
    _, claimed = place.claimed()
    assert claimed.task_id == task.task_id
    assert claimed.get_private() == {"api_key": "k"}
    registered = tracker.handlers.get("ingest", 1)
    assert registered is not None
    assert registered.parse(claimed.payload_json) == Ingest(url="u")


def test_what_was_not_given_is_not_in_the_record(tracker: TaskTracker) -> None:
    record = tracker.submit("reindex", **OWNER).record
    assert record.to_dict().keys() & {"payload", "priority", "not_before", "timeout_seconds", "meta"} == set()
    assert record.payload_json is None


def test_a_plain_task_is_nothing_for_workers(place: Place, tracker: TaskTracker) -> None:
    tracker.create("ingest", "kb-7", **OWNER, payload=PAYLOAD)
    assert place.claim() is None


def test_the_highest_version_is_meant_unless_another_one_is_named(place: Place) -> None:
    with place.tracker(handlers(1, 2)) as tracker:
        assert submit(tracker).record.handler_version == 2
        assert submit(tracker, version=1).record.handler_version == 1


def test_a_worker_of_another_version_leaves_it_alone(place: Place) -> None:
    """[D148] Rolled out and rolled back: what nobody here knows waits, and is told apart from what can be done."""
    with place.tracker(handlers(1, 2)) as new, place.tracker(handlers(1)) as old:
        second, first = submit(new), submit(old)
        assert place.drain(V1) == [first.task_id]
        assert place.claim(V1) is None
        assert stored(place, second) == second.record
        waiting = place.store.unclaimed(task_types=[V2], limit=10)
        assert [found.record.task_id for found in waiting] == [second.task_id]
        with pytest.raises(SettingsError) as refused:
            submit(old, version=2)
        assert str(refused.value) == (
            "no handler for version 2 of 'ingest' is registered here, known are versions 1; pass "
            "unregistered=True if workers elsewhere have one"
        )
        assert place.drain(V1, V2) == [second.task_id]


def test_what_only_others_can_do_needs_to_be_said(place: Place) -> None:
    with place.tracker(HandlerRegistry()) as tracker:
        with pytest.raises(
            SettingsError, match="no handler for 'ingest' is registered here; pass unregistered"
        ):
            submit(tracker)
        with pytest.raises(ValueError, match="so version must be given: the one that workers have"):
            submit(tracker, unregistered=True)
        with pytest.raises(InvalidPayload, match=r"payload\.x is a builtins"):
            submit(tracker, unregistered=True, version=2, payload={"x": object()})
        assert count(place) == 0
        task = submit(tracker, unregistered=True, version=2, payload={"any": "thing"})
        assert (task.record.handler_version, task.record.payload) == (2, {"any": "thing"})
        assert place.drain(V2) == [task.task_id]


def test_what_is_known_here_is_checked_with_the_flag_too(tracker: TaskTracker) -> None:
    with pytest.raises(InvalidPayload):
        submit(tracker, unregistered=True, payload={})


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"payload": {}}, InvalidPayload, "payload.url: Field required"),
        ({"payload": None}, InvalidPayload, "payload: Input should be a valid dictionary"),
        ({"payload": {"url": 5}}, InvalidPayload, "payload.url: Input should be a valid string"),
        ({"account_id": " "}, ValueError, "requires non-empty account_id and user_id"),
        ({"task_id": " "}, ValueError, "task_id must be a non-blank string"),
        ({"resource_id": "\0"}, ValueError, "holds a NUL"),
        ({"private": object()}, ValueError, "private is not JSON that can be stored"),
        ({"meta": [1]}, ValueError, "meta must be a mapping"),
        ({"meta": {"retry_of": "x"}}, ValueError, "meta has the key 'retry_of', which this library writes"),
        ({"meta": {"_checkpoint": 1}}, ValueError, "meta has the key '_checkpoint'"),
        ({"version": True}, ValueError, "version must be a whole number of 0 or more, not True"),
        ({"version": -1}, ValueError, "version must be"),
        ({"not_before": "tomorrow"}, ValueError, "not_before must be a Unix time in seconds, not 'tomorrow'"),
        ({"not_before": float("inf")}, ValueError, "not_before must be"),
        ({"not_before": -1}, ValueError, "not_before must be"),
        ({"not_before": 2**70}, ValueError, "not_before must be a Unix time in seconds, not 11805"),
        ({"not_before": 1_800_000_000_000}, ValueError, "not_before must be a Unix time in seconds"),
        ({"priority": 1.5}, ValueError, "priority must be a whole number from -1000000000 to 1000000000"),
        ({"priority": 10**9 + 1}, ValueError, "priority must be"),
        ({"timeout_seconds": 0}, ValueError, "timeout_seconds must be a finite number above 0, not 0"),
        ({"timeout_seconds": float("nan")}, ValueError, "timeout_seconds must be"),
        ({"timeout_seconds": 10**400}, ValueError, "timeout_seconds must be"),
        ({"dedupe": "false"}, ValueError, "dedupe must be True or False, not 'false'"),
        ({"unregistered": 1}, ValueError, "unregistered must be True or False, not 1"),
        ({"max_attempts": 0}, ValueError, "max_attempts must be a whole number of 1 or more"),
        (
            {"max_attempts": 2},
            ValueError,
            "'ingest' is not idempotent, so it must run once at most; leave it out",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_stored(
    place: Place, tracker: TaskTracker, fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as refused:
        submit(tracker, **fields)
    assert message in str(refused.value)
    assert count(place) == 0
    assert place.way.woken == []


def test_the_longest_times_can_be_stored(place: Place, tracker: TaskTracker) -> None:
    """As what a store can keep, whatever kind of number they were given as."""
    task = submit(tracker, not_before=253_402_300_799, timeout_seconds=10**9)
    record = stored(place, task)
    assert (record.not_before, record.timeout_seconds) == (253_402_300_799.0, 1e9)
    assert (type(task.record.not_before), type(task.record.timeout_seconds)) == (float, float)


def test_a_task_may_shorten_its_handlers_time_and_no_more(tracker: TaskTracker) -> None:
    assert tracker.submit("reindex", **OWNER, timeout_seconds=60).created
    with pytest.raises(ValueError, match="more than the 60 of the handler of 'reindex'; give no more"):
        tracker.submit("reindex", **OWNER, timeout_seconds=61)


def test_how_often_a_task_may_run_is_the_handlers_declaration(place: Place) -> None:
    """[D149] At most once cannot be talked out of it by a single task; at least once may be given more."""
    with place.tracker(handlers(idempotent=True)) as tracker:
        assert submit(tracker, max_attempts=7).record.max_attempts == 7
    with place.tracker(handlers()) as tracker, pytest.raises(ValueError, match="must run once at most"):
        submit(tracker, max_attempts=7)


@pytest.mark.parametrize("call", ["submit", "retry", "resume"])
@pytest.mark.parametrize("kind", ["persistent", "watched"])
def test_a_store_without_leases_cannot_have_workers(tmp_path: Path, call: str, kind: str) -> None:
    store = PersistentTaskStore(tmp_path) if kind == "persistent" else WatchedStore()
    with TaskTracker(store, handlers=handlers()) as tracker:
        task = tracker.create("ingest", **OWNER)
        with pytest.raises(
            CapabilityMissing, match="has no leases, so no worker could own what is submitted; use"
        ):
            submit(tracker) if call == "submit" else getattr(tracker, call)(task.task_id)
        assert len(tracker.list_tasks(**OWNER)) == 1


def test_private_is_never_shown(place: Place, tracker: TaskTracker, caplog: pytest.LogCaptureFixture) -> None:
    place.way.error = ConnectionError("away")
    with caplog.at_level(logging.DEBUG):
        task = submit(tracker, private={"key": "hunter2"}, dedupe=True)
        again = submit(tracker, private={"key": "hunter2"}, dedupe=True)
    for shown in (task, again, task.record.to_dict(), tracker.list_tasks(**OWNER), caplog.text):
        assert "hunter2" not in repr(shown)
    assert stored(place, task).get_private() == {"key": "hunter2"}
    ended = place.end("completed")
    assert ended.private_json is None
    assert ended.get_private() is None


# ---- order -----------------------------------------------------------------------------------------


def test_higher_priorities_go_first_then_older_ones(place: Place, tracker: TaskTracker) -> None:
    names = {}
    for name, priority in (("a", None), ("low", -1), ("b", 0), ("high", 10**9), ("c", None), ("more", 5)):
        names[submit(tracker, priority=priority).task_id] = name
        place.advance(1)
    assert [names[task_id] for task_id in place.drain()] == ["high", "more", "a", "b", "c", "low"]


def test_a_task_waits_for_its_time(place: Place, tracker: TaskTracker) -> None:
    later = submit(tracker, not_before=place.clock.now() + 100)
    past = submit(tracker, not_before=place.clock.now() - 100)
    assert place.way.woken == [later.task_id, past.task_id], "who sleeps is to learn of its start time"
    assert place.drain() == [past.task_id]
    place.advance(101)
    assert place.drain() == [later.task_id]


# ---- wake-ups --------------------------------------------------------------------------------------


def test_the_task_is_stored_before_anybody_is_woken(place: Place, tracker: TaskTracker) -> None:
    """The way looks into the store when it is used, and would not find it."""
    task = submit(tracker)
    assert place.way.woken == [task.task_id]
    assert tracker.wake_up_failures == 0


def test_a_wake_up_that_fails_is_counted_and_the_task_waits(
    place: Place, tracker: TaskTracker, caplog: pytest.LogCaptureFixture
) -> None:
    """[D118] The caller gets the truth: it is stored. Whoever looks finds it, and it runs once."""
    place.way.error = ConnectionError("the queue is down")
    with caplog.at_level(logging.WARNING, "task_tracker"):
        tasks = [submit(tracker, resource_id=name, dedupe=True) for name in "abc"]
    assert all(task.created for task in tasks)
    assert tracker.wake_up_failures == 3
    (said,) = [record for record in caplog.records if record.__dict__.get("event") == "wake_up_failed"]
    assert "they find the tasks when they look next" in said.getMessage()
    again = submit(tracker, resource_id="a", dedupe=True)
    assert (again.task_id, again.created) == (tasks[0].task_id, False)
    assert place.drain() == [task.task_id for task in tasks]
    assert place.claim() is None


def test_a_wake_up_that_hangs_is_not_waited_for_to_its_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D118] The task is stored, and the caller learns it; the end of the tracker leaves no thread."""
    monkeypatch.setattr(wakeups, "WAKE_SECONDS", 0.01)
    opened = threading.Event()

    class Hanging(Recording):
        def wake(self, keys: Sequence[TaskKey]) -> None:
            opened.wait(PATIENCE)

    before = own_threads()
    with TaskTracker(place.store, handlers=handlers(), wake_up=Hanging()) as tracker:
        task = submit(tracker)
        assert (task.created, tracker.wake_up_failures) == (True, 1)
        assert place.drain() == [task.task_id]
        opened.set()
    for thread in own_threads() - before:
        join(thread)  # it may be on its way out


def test_a_duplicate_wakes_for_the_task_that_may_have_been_missed(place: Place, tracker: TaskTracker) -> None:
    """[D118] Its creator may have died between the two; the next one who asks makes up for it."""
    place.way.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        submit(tracker, dedupe=True)
    place.way.error = None
    with place.tracker() as other:
        again = submit(other, dedupe=True)
        assert not again.created
        assert place.way.woken == [again.task_id] * 2
        assert place.drain() == [again.task_id]
        submit(other, dedupe=True)
        assert place.way.woken == [again.task_id] * 2, "it runs already"


def test_what_could_not_be_stored_wakes_nobody(
    place: Place, tracker: TaskTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(record: TaskRecord) -> Stored:
        raise StoreUnavailable("the disk is away; try again")

    monkeypatch.setattr(place.store, "create", away)
    monkeypatch.setattr(place.store, "create_if_no_active", away)
    for dedupe in (False, True):
        with pytest.raises(StoreUnavailable):
            submit(tracker, dedupe=dedupe)
    assert place.way.woken == []


# ---- from coroutines, from the configuration -------------------------------------------------------


def test_the_same_from_coroutines(place: Place) -> None:
    async def story() -> None:
        async with AsyncTaskTracker(place.tracker()) as tracker:
            task = await tracker.submit("ingest", PAYLOAD, **OWNER, resource_id="kb-7", dedupe=True)
            again = await tracker.submit("ingest", PAYLOAD, **OWNER, resource_id="kb-7", dedupe=True)
            assert (task.created, again) == (True, (task.record, False))
            with pytest.raises(InvalidPayload):
                await tracker.submit("ingest", {}, **OWNER)
            place.end("failed", meta_json=b'{"_checkpoint":1}')
            resumed = await tracker.resume(task.task_id, **OWNER)
            assert resumed.record.meta == {"_checkpoint": 1, "resume_of": task.task_id}
            place.end("failed")
            place.way.error = ConnectionError("away")
            retried = await tracker.retry(resumed.task_id, private={"key": "k"})
            assert retried.record.meta == {"retry_of": resumed.task_id}
            assert retried.record.get_private() == {"key": "k"}
            assert tracker.wake_up_failures == 1

    asyncio.run(story())


def test_a_configured_tracker_has_its_handlers_and_its_way(tmp_path: Path, clean_environment: None) -> None:
    registry, way = handlers(), InProcessWakeUp()
    config = StorageConfig(task_tracker={"backend": "lease", "root": str(tmp_path), "durability": "none"})
    with config.build_task_tracker(cleanup=False, reconcile=False, handlers=registry, wake_up=way) as tracker:
        assert tracker.handlers is registry
        task = submit(tracker)
        assert way.wait(0) is True
    aio = config.build_async_task_tracker(cleanup=False, reconcile=False, handlers=registry, wake_up=way)
    found = aio.tracker.get(task.task_id, **OWNER)
    assert found is not None
    assert found.status is TaskStatus.PENDING
    aio.close()
