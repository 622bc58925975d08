"""Work that is submitted once more when it has ended: from its beginning, or from its last checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from task_tracker import (
    InvalidPayload,
    InvalidTransition,
    SettingsError,
    TaskNotFound,
    TaskTracker,
)
from tests.core.support import OWNER
from tests.runtime.places import (
    KINDS,
    PAYLOAD,
    V1,
    V2,
    Place,
    Wider,
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


# ---- once more -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
@pytest.mark.parametrize("call", ["retry", "resume"])
def test_ended_work_is_done_once_more_by_a_new_task(
    place: Place, tracker: TaskTracker, how: str, call: str
) -> None:
    old = submit(tracker, priority=4, timeout_seconds=9, meta={"by": "api"}, private={"key": "k"})
    place.end(how)
    new = getattr(tracker, call)(old.task_id)
    assert new.created
    assert new.task_id != old.task_id
    record = stored(place, new)
    assert (record.status, record.error, record.completed_at) == ("pending", None, None)
    assert record.meta == {"by": "api", f"{call}_of": old.task_id}
    assert (record.task_type, record.handler_version, record.resource_id) == ("ingest", 1, "kb-7")
    assert (record.payload, record.priority, record.timeout_seconds) == (PAYLOAD, 4, 9)
    assert record.get_private() is None, "it was wiped; whoever has it passes it anew"
    assert stored(place, old).status == how
    assert place.way.woken == [old.task_id, new.task_id]
    assert place.drain() == [new.task_id]


def test_what_is_different_the_second_time_is_passed(place: Place) -> None:
    registry = handlers(1)
    registry.register("ingest", version=2, handler="app.ingest:run", payload=Wider)
    with place.tracker(registry) as tracker:
        old = submit(tracker, version=1)
        place.end("failed")
        with pytest.raises(InvalidPayload, match=r"payload\.language: Field required"):
            tracker.retry(old.task_id, version=2)
        at = place.clock.now() + 50
        new = tracker.retry(
            old.task_id,
            version=2,
            payload={"url": "u", "language": "de"},
            private={"key": "k"},
            not_before=at,
        )
        assert (new.record.handler_version, new.record.not_before) == (2, at)
        assert new.record.payload == {"url": "u", "depth": 1, "language": "de"}
        assert new.record.get_private() == {"key": "k"}
        assert place.drain(V1, V2) == []


def test_a_version_that_is_gone_has_to_be_dealt_with(place: Place, tracker: TaskTracker) -> None:
    old = submit(tracker)
    place.end("failed")
    with place.tracker(handlers(2)) as newer:
        with pytest.raises(
            SettingsError, match="no handler for version 1 of 'ingest' is registered here, known"
        ):
            newer.retry(old.task_id, **OWNER)
        assert newer.retry(old.task_id, **OWNER, unregistered=True).record.handler_version == 1
        assert newer.retry(old.task_id, **OWNER, version=2).record.handler_version == 2


@pytest.mark.parametrize("strict", [True, False])
def test_only_ended_work_is_done_once_more(place: Place, strict: bool) -> None:
    """Refused also by a tracker that is not strict: nothing would be in place of an answer."""
    with place.tracker(strict=strict) as tracker:
        task = submit(tracker)
        for call in (tracker.retry, tracker.resume):
            with pytest.raises(
                InvalidTransition, match="is pending; cancel it or wait for its end, then call"
            ):
                call(task.task_id)
            with pytest.raises(TaskNotFound, match="no task nothing"):
                call("nothing", **OWNER)
            with pytest.raises(TaskNotFound, match="no task nothing is known to this process; pass"):
                call("nothing")
            with pytest.raises(TaskNotFound):
                call(task.task_id, "acme", "mallory")
        plain = tracker.create("ingest", **OWNER)
        tracker.complete(plain.task_id)
        with pytest.raises(
            InvalidTransition, match="was created, not submitted, and no handler knows it; submit"
        ):
            tracker.retry(plain.task_id)
        assert count(place) == 2


@pytest.mark.parametrize("call", ["retry", "resume"])
def test_work_that_is_not_to_be_done_twice_is_not_by_a_retry(
    place: Place, tracker: TaskTracker, call: str
) -> None:
    """The new task takes over the key; if somebody else has it by now, that one is the answer."""
    old = submit(tracker, dedupe=True)
    place.end("failed")
    first = getattr(tracker, call)(old.task_id)
    assert (first.created, first.record.dedupe_key) == (True, old.record.dedupe_key)
    assert getattr(tracker, call)(old.task_id) == (first.record, False)
    assert submit(tracker, dedupe=True) == (first.record, False)


def test_a_payload_whose_credentials_are_gone_is_not_used(place: Place) -> None:
    """They were masked at the end; a handler would take the mask for the password."""
    with place.tracker(handlers(payload=None)) as tracker:
        old = submit(tracker, payload={"password": "hunter2"})
        assert place.end("failed").payload == {"password": "[REDACTED]"}
        for call in (tracker.retry, tracker.resume):
            with pytest.raises(InvalidPayload, match="were masked when it ended; pass payload anew"):
                call(old.task_id)
        assert tracker.retry(old.task_id, payload={"url": "u"}).created


@pytest.mark.parametrize("call", ["retry", "resume"])
def test_a_payload_that_speaks_of_the_mask_is_none_that_was_masked(place: Place, call: str) -> None:
    """A log or a document may hold the mark as text."""
    payload = {"text": "token=[REDACTED] in a log", "lines": ["[REDACTED]"]}
    with place.tracker(handlers(payload=None)) as tracker:
        old = submit(tracker, payload=payload)
        place.end("failed", meta_json=orjson.dumps({"_checkpoint": payload}))
        assert getattr(tracker, call)(old.task_id).record.payload == payload


@pytest.mark.parametrize("call", ["retry", "resume"])
def test_what_was_masked_in_meta_is_not_taken_over(place: Place, tracker: TaskTracker, call: str) -> None:
    """[D143] Nobody is to take the mask for the password."""
    meta = {"by": "[REDACTED] by hand", "api_key": "k", "database": {"host": "db", "password": "hunter2"}}
    old = submit(tracker, meta=meta)
    assert place.end("failed").meta["api_key"] == "[REDACTED]"
    assert getattr(tracker, call)(old.task_id).record.meta == {"by": meta["by"], f"{call}_of": old.task_id}


def test_two_who_resume_the_same_task_get_the_same_one(place: Place, tracker: TaskTracker) -> None:
    """Also where others of its kind may run beside it: both would go on from one checkpoint."""
    old, beside = submit(tracker), submit(tracker)
    place.end("failed")
    first = tracker.resume(old.task_id)
    with place.tracker() as other:
        assert other.resume(old.task_id, **OWNER) == (first.record, False)
    place.advance(1)
    assert tracker.retry(old.task_id).created, "that begins anew, and may be beside it"
    assert place.claimed()[1].task_id == beside.task_id
    assert place.end("failed").task_id == first.task_id
    with pytest.raises(
        InvalidTransition, match=rf"was resumed before, as {first.task_id}, and that is failed"
    ):
        tracker.resume(old.task_id)
    further = tracker.resume(first.task_id)
    assert further.created
    assert further.task_id not in (old.task_id, first.task_id)


def test_what_resumed_a_task_and_was_deleted_is_in_nobodys_way(place: Place, tracker: TaskTracker) -> None:
    old = submit(tracker)
    place.end("failed")
    first = tracker.resume(old.task_id)
    place.end("completed")
    tracker.delete(first.task_id)
    assert tracker.resume(old.task_id).created


def test_a_retry_begins_anew_and_a_resume_where_it_was(place: Place, tracker: TaskTracker) -> None:
    old = submit(tracker, meta={"by": "api"})
    place.end("failed", meta_json=orjson.dumps({"by": "api", "_checkpoint": {"chunks": 4}}))
    resumed = tracker.resume(old.task_id)
    assert resumed.record.meta == {"by": "api", "_checkpoint": {"chunks": 4}, "resume_of": old.task_id}
    place.end("failed")
    further = tracker.resume(resumed.task_id)
    assert further.record.meta == {"by": "api", "_checkpoint": {"chunks": 4}, "resume_of": resumed.task_id}
    place.end("failed")
    retried = tracker.retry(further.task_id)
    assert retried.record.meta == {"by": "api", "retry_of": further.task_id}


def test_a_checkpoint_whose_credentials_are_gone_is_not_used(place: Place, tracker: TaskTracker) -> None:
    old = submit(tracker)
    place.end("failed", meta_json=orjson.dumps({"_checkpoint": {"password": "hunter2"}}))
    with pytest.raises(InvalidPayload, match=r"in the checkpoint of task .* use retry, which begins anew"):
        tracker.resume(old.task_id)
    assert tracker.retry(old.task_id).created


def test_meta_that_others_wrote_is_no_trouble(place: Place, tracker: TaskTracker) -> None:
    old = submit(tracker)
    place.end("failed", meta_json=b"[1]")
    assert tracker.resume(old.task_id).record.meta == {"resume_of": old.task_id}
