"""Work that must not be done twice at once: who creates it, and what the others are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from task_tracker import (
    StoreUnavailable,
    Submission,
    TaskExists,
    TaskRecord,
    TaskTracker,
    transitions,
)
from task_tracker.store import Stored
from tests.core.support import OWNER, in_threads
from tests.runtime.places import (
    KINDS,
    Place,
    count,
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


# ---- duplicates ------------------------------------------------------------------------------------


def test_a_duplicate_is_told_which_task_does_the_work(place: Place, tracker: TaskTracker) -> None:
    task = submit(tracker, dedupe=True)
    assert task.record.dedupe_key == '["ingest","kb-7"]'
    with place.tracker() as other:
        for again in (submit(tracker, dedupe=True), submit(other, dedupe=True, payload={"url": "other"})):
            assert (again.created, again.record) == (False, task.record)
            assert again.task_id == task.task_id
        assert other.get(again.task_id) == task.record, "it is known from now on without its owner's name"
    _, running = place.claimed()
    assert submit(tracker, dedupe=True) == (running, False)
    assert count(place) == 1


def test_duplicates_are_looked_for_within_owner_type_and_resource(place: Place, tracker: TaskTracker) -> None:
    """[D066] Nobody else's task is in the way, and no other kind of work."""
    tasks = [
        submit(tracker, dedupe=True),
        submit(tracker, dedupe=True, user_id="bob"),
        submit(tracker, dedupe=True, account_id="globex"),
        submit(tracker, dedupe=True, resource_id="kb-8"),
        submit(tracker, dedupe=True, resource_id=None),
        tracker.submit("reindex", **OWNER, resource_id="kb-7", dedupe=True),
        submit(tracker),
    ]
    assert all(task.created for task in tasks)
    assert len({task.task_id for task in tasks}) == 7
    assert not submit(tracker, dedupe=True, resource_id=None).created


def test_any_active_task_of_the_kind_is_in_the_way(place: Place, tracker: TaskTracker) -> None:
    plain = tracker.create("ingest", "kb-7", **OWNER)
    assert submit(tracker, dedupe=True) == (plain, False)
    assert place.way.woken == [], "workers have nothing to do with it"


def abandoned(place: Place, tracker: TaskTracker) -> None:
    """Its worker dies, and somebody settles that."""
    place.claimed()
    place.expire()
    (expired,) = place.store.expired()
    taken = place.store.take_over(expired, holder="rescuer", count_attempt=False)
    assert taken is not None
    lease, (record, _) = taken
    place.store.end(lease, transitions.abandoned(record, place.clock.now()))


def told_to_stop(place: Place, tracker: TaskTracker) -> None:
    """Somebody cancels it while it runs, and its worker stops."""
    lease, record = place.claimed()
    cancelling = tracker.cancel(record.task_id, **OWNER)
    assert cancelling is not None
    assert cancelling.status == "cancelling"
    assert not submit(tracker, dedupe=True).created, "until it has really stopped"
    place.store.end(lease, transitions.cancelled(cancelling, place.clock.now()))


ENDS: dict[str, Callable[[Place, TaskTracker], object]] = {
    "completed": lambda place, _: place.end("completed"),
    "failed": lambda place, _: place.end("failed"),
    "cancelled while it ran": told_to_stop,
    "cancelled before it ran": lambda place, tracker: tracker.cancel(only(tracker).task_id, **OWNER),
    "abandoned": abandoned,
    "completed by hand": lambda place, tracker: tracker.complete(only(tracker).task_id, 1, **OWNER),
    "failed by hand": lambda place, tracker: tracker.fail(only(tracker).task_id, "no", **OWNER),
    "stopped by hand": lambda place, tracker: tracker.mark_cancelled(only(tracker).task_id, **OWNER),
}


def only(tracker: TaskTracker) -> TaskRecord:
    (task,) = tracker.list_tasks(**OWNER)
    return task


@pytest.mark.parametrize("how", ENDS)
def test_every_end_makes_room_for_the_next_one(place: Place, tracker: TaskTracker, how: str) -> None:
    """[D016] What ended does not keep its key, however it ended; there is nothing that could be forgotten."""
    first = submit(tracker, dedupe=True)
    assert not submit(tracker, dedupe=True).created
    ENDS[how](place, tracker)
    assert stored(place, first).status.is_terminal
    second = submit(tracker, dedupe=True)
    assert second.created
    assert second.task_id != first.task_id
    assert place.drain() == [second.task_id]


def test_a_task_that_is_given_back_keeps_its_key(place: Place, tracker: TaskTracker) -> None:
    task = submit(tracker, dedupe=True)
    lease, record = place.claimed()
    place.store.release(lease, transitions.released(record, place.clock.now()))
    again = submit(tracker, dedupe=True)
    assert (again.task_id, again.created) == (task.task_id, False)


def test_of_many_at_once_one_creates_and_all_learn_which(place: Place) -> None:
    trackers = [place.tracker() for _ in range(2)]
    answers = in_threads(*[lambda tracker=tracker: submit(tracker, dedupe=True) for tracker in trackers * 4])
    tasks = [answer for answer in answers if isinstance(answer, Submission)]
    assert len(tasks) == 8, answers
    assert sorted(task.created for task in tasks) == [False] * 7 + [True]
    assert len({task.task_id for task in tasks}) == 1
    assert count(place) == 1
    for tracker in trackers:
        tracker.close()


def test_one_that_ends_between_two_answers_is_not_in_the_way(
    place: Place, tracker: TaskTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was active when the store refused the duplicate, and has ended when it is asked which one that was."""
    first = submit(tracker, dedupe=True)
    find_active = place.store.find_active

    def end_it(*args: Any) -> Stored | None:
        if not stored(place, first).status.is_terminal:
            place.end("completed")
        return find_active(*args)

    monkeypatch.setattr(place.store, "find_active", end_it)
    second = submit(tracker, dedupe=True)
    assert second.created
    assert second.task_id != first.task_id


def test_trying_again_has_an_end(place: Place, tracker: TaskTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(tracker, dedupe=True)
    asked: list[object] = []
    monkeypatch.setattr(place.store, "find_active", lambda *args: asked.append(args))
    with pytest.raises(StoreUnavailable, match="nothing was created, try again, and ask doctor"):
        submit(tracker, dedupe=True)
    assert len(asked) == 10
    assert count(place) == 1


def test_an_id_of_ones_own_gets_a_clear_answer(place: Place, tracker: TaskTracker) -> None:
    """[D062] Existing, refused, or a new attempt that says so: never None without a reason."""
    first = submit(tracker, task_id="job-1", dedupe=True)
    assert submit(tracker, task_id="job-1", dedupe=True) == (first.record, False)
    with pytest.raises(TaskExists, match="task job-1 exists already; choose another id"):
        submit(tracker, task_id="job-1")
    place.end("completed")
    for dedupe in (True, False):
        with pytest.raises(TaskExists, match="task job-1 exists already; choose another id"):
            submit(tracker, task_id="job-1", dedupe=dedupe)
    once_more = tracker.retry("job-1", **OWNER)
    assert (once_more.created, once_more.record.meta) == (True, {"retry_of": "job-1"})
    place.end("completed")
    assert tracker.delete("job-1", **OWNER)
    assert submit(tracker, task_id="job-1").created, "after retention the id is free"
