"""The rules of the lifecycle that hold under a lease."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from task_tracker import InvalidTransition, TaskRecord
from task_tracker import transitions as t
from task_tracker.records import Attempt, TaskKey
from tests.core.support import ACTIVE, START, STATUSES, TERMINAL, record_of

NOW = START + 10
CLAIM = Attempt(3, "t0ken", "host-1:42", 2)
ANY = [*STATUSES, "paused"]


def test_a_claim_notes_the_attempt_and_when_a_handler_began() -> None:
    record = t.claimed(record_of(), NOW, CLAIM)
    assert (record.status, record.attempt, record.started_at) == ("running", CLAIM, None)
    assert t.claimed(record_of(handler_version=0), NOW, CLAIM).started_at == NOW


@pytest.mark.parametrize("status", ["running", "cancelling", "pending"])
def test_what_its_holder_left_is_failed_or_cancelled_if_that_was_wanted(status: str) -> None:
    """[D037] the error does not name the host: it is shown to everybody."""
    record = record_of(status, attempt=Attempt(3, "t", "web-1:4711", 1))
    assert t.abandoned(record, NOW, cancel_requested=True).status == "cancelled"
    lost = t.abandoned(record, NOW)
    if status == "cancelling":
        assert (lost.status, lost.error) == ("cancelled", None)
        return
    assert (lost.status, lost.error_code) == ("failed", "holder_lost")
    assert "web-1" not in (lost.error or "")
    assert t.abandoned(lost, NOW + 1) is lost


def test_what_nobody_started_is_failed() -> None:
    record = t.never_started(record_of(), NOW)
    assert (record.status, record.error_code) == ("failed", "never_started")


def test_the_next_attempt_has_an_epoch_that_nobody_had() -> None:
    """[D100] also above those that were used up without being written."""
    assert t.next_attempt(None, "t", holder="h", counted=True) == Attempt(1, "t", "h", 1)
    assert t.next_attempt(None, "t") == Attempt(1, "t", "", 0)
    assert t.next_attempt(CLAIM, "t", holder="h", counted=True) == Attempt(4, "t", "h", 3)
    assert t.next_attempt(CLAIM, "t", holder="h") == Attempt(4, "t", "h", 2)
    assert t.next_attempt(CLAIM, "t") == Attempt(4, "t", "host-1:42", 2)
    assert t.next_attempt(CLAIM, "t", above=2).epoch == 4
    assert t.next_attempt(CLAIM, "t", above=3).epoch == 4
    assert t.next_attempt(CLAIM, "t", above=7).epoch == 8
    assert t.next_attempt(None, "t", above=7).epoch == 8


def test_claims_go_by_priority_then_by_age() -> None:
    records = [
        record_of(task_id="low", priority=-1),
        record_of(task_id="b"),
        record_of(task_id="a", priority=0),
        record_of(task_id="old", created_at=START - 1),
        record_of(task_id="high", priority=7, created_at=START + 5),
    ]
    in_order = [record.task_id for record in sorted(records, key=t.claim_order)]
    assert in_order == ["high", "old", "a", "b", "low"]


CHECKS: dict[str, tuple[Callable[[TaskRecord, TaskKey], None], tuple[str, ...], str]] = {
    "commit": (t.check_commit, ACTIVE, r"end\(\) writes that|upgrade before"),
    "release": (t.check_release, ("pending",), r"only a pending record is given back"),
    "end": (t.check_end, TERMINAL, r"commit\(\) writes that"),
}


@pytest.mark.parametrize("write", CHECKS)
@pytest.mark.parametrize("status", ANY)
def test_every_write_under_a_lease_has_its_states(write: str, status: str) -> None:
    check, states, advice = CHECKS[write]
    record = record_of(status)
    if status in states:
        check(record, record.key)
    else:
        with pytest.raises(InvalidTransition, match=advice) as refused:
            check(record, record.key)
        assert refused.value.task_ids == ["task-1"]
    with pytest.raises(InvalidTransition, match="write each task under its own lease"):
        check(record, record.key._replace(user_id="bob"))


@pytest.mark.parametrize("status", ANY)
def test_only_active_tasks_are_claimed_and_only_ended_ones_are_final(status: str) -> None:
    record = record_of(status)
    if status in ACTIVE:
        t.check_claimable(record)
    else:
        with pytest.raises(InvalidTransition, match="cannot claim"):
            t.check_claimable(record)
    if status in TERMINAL:
        with pytest.raises(InvalidTransition, match="its first end is final"):
            t.check_not_final(record)
    else:
        t.check_not_final(record)


@pytest.mark.parametrize("status", ANY)
def test_a_commit_does_not_lose_a_wish_to_cancel(status: str) -> None:
    """[D125] whatever its writer had read before."""
    record = record_of(status)
    assert t.under_intent(record, None) is record
    written = t.under_intent(record, NOW)
    if status not in ACTIVE:
        assert written is record
        return
    assert (written.status, written.cancel_requested_at, written.updated_at) == ("cancelling", NOW, NOW)
    assert t.under_intent(written, NOW + 5) is written, "the time of the first wish stays"


def test_a_release_ends_cancelled_if_that_was_wanted() -> None:
    record = record_of(stage="read", started_at=START, private_json=b'{"token":"s3cret"}')
    assert t.given_back(record, None) is record
    ended = t.given_back(record, NOW)
    assert (ended.status, ended.stage, ended.cancel_requested_at) == ("cancelled", "cancelled", NOW)
    assert (ended.updated_at, ended.completed_at, ended.private_json) == (NOW, NOW, None)
    later = t.given_back(record_of(updated_at=NOW + 5, cancel_requested_at=NOW - 1), NOW)
    assert (later.updated_at, later.cancel_requested_at) == (NOW + 5, NOW - 1)
