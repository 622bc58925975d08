"""The lifecycle: every state against every event, and what goes with a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task_tracker import InvalidTransition, TaskRecord, TaskStatus
from task_tracker import transitions as t
from task_tracker.records import Attempt
from tests.core.support import ACTIVE, PROPERTY, START, STATUSES, TERMINAL, record_of

NOW = START + 10
CLAIM = Attempt(3, "t0ken", "host-1:42", 2)
SAME = "same"  # the very record that was given
EVENTS: dict[str, Callable[[TaskRecord, float], TaskRecord]] = {
    "start": t.started,
    "update": lambda record, now: t.progressed(record, now, message=f"at {now}"),
    "complete": lambda record, now: t.completed(record, now, b'{"n":1}'),
    "fail": lambda record, now: t.failed(record, now, "it broke", error_code="broke"),
    "cancel": t.request_cancel,
    "mark_cancelled": t.cancelled,
    "release": t.released,
    "cancel while held": lambda record, now: t.request_cancel(record, now, held=True),
    "claim": lambda record, now: t.claimed(record, now, CLAIM),
    "abandon": t.abandoned,
    "give up": t.never_started,
}
# State by state, where each event leads; what is not here is illegal.
LEGAL = {
    "pending": {
        "start": "running",
        "update": "pending",
        "complete": "completed",
        "fail": "failed",
        "cancel": "cancelled",
        "mark_cancelled": "cancelled",
        "release": SAME,
        "cancel while held": "cancelling",
        "claim": "running",
        "abandon": "failed",
        "give up": "failed",
    },
    "running": {
        "start": SAME,
        "update": "running",
        "complete": "completed",
        "fail": "failed",
        "cancel": "cancelling",
        "mark_cancelled": "cancelled",
        "release": "pending",
        "cancel while held": "cancelling",
        "abandon": "failed",
    },
    "cancelling": {
        "update": "cancelling",
        "complete": "completed",
        "fail": "failed",
        "cancel": SAME,
        "cancel while held": SAME,
        "abandon": "cancelled",
        "mark_cancelled": "cancelled",
    },
    "completed": {"complete": SAME},
    "failed": {"fail": SAME},
    "cancelled": {"cancel": SAME, "cancel while held": SAME, "mark_cancelled": SAME},
    "paused": {},
}


def example(status: str, **fields: object) -> TaskRecord:
    ends: dict[str, dict[str, Any]] = {
        "completed": {"result_json": b'{"n":1}'},
        "failed": {"error": "it broke", "error_code": "broke"},
    }
    return record_of(status, **(ends.get(status, {}) | fields))


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("status", LEGAL)
def test_every_state_against_every_event(status: str, event: str) -> None:
    record = example(status)
    expected = LEGAL[status].get(event)
    if expected is None:
        with pytest.raises(InvalidTransition) as refused:
            EVENTS[event](record, NOW)
        assert refused.value.task_ids == ["task-1"]
        assert f"task task-1, which is {status}: " in str(refused.value)
    elif expected == SAME:
        assert EVENTS[event](record, NOW) is record
    else:
        changed = EVENTS[event](record, NOW)
        assert changed.status == expected
        assert changed.updated_at == NOW
        assert changed.created_at == record.created_at


@pytest.mark.parametrize(
    ("status", "event", "advice"),
    [
        ("completed", "start", "leave it so, or create a new task"),
        ("cancelling", "start", "end it with mark_cancelled, complete or fail"),
        ("paused", "complete", "upgrade before acting on it"),
    ],
)
def test_a_refusal_says_what_to_do(status: str, event: str, advice: str) -> None:
    with pytest.raises(InvalidTransition, match=advice):
        EVENTS[event](example(status), NOW)


@pytest.mark.parametrize("event", ["complete", "fail"])
@pytest.mark.parametrize("status", TERMINAL)
def test_the_first_end_wins_also_against_the_same_end_with_other_content(status: str, event: str) -> None:
    """[D037]"""
    other = record_of(status, result_json=b'{"n":2}', error="something else")
    with pytest.raises(InvalidTransition):
        EVENTS[event](other, NOW)


def test_the_same_result_is_the_same_whatever_the_order_of_its_keys() -> None:
    """[D037] a repeat of the same completion changes nothing."""
    record = t.completed(record_of("running"), NOW, b'{"a":1,"b":{"c":2,"d":[1,2]}}')
    assert t.completed(record, NOW + 1, b'{"b":{"d":[1,2],"c":2},"a":1}') is record
    for other in (b'{"a":1,"b":{"c":2,"d":[2,1]}}', b'{"a":true,"b":{"c":2,"d":[1,2]}}', b"null"):
        with pytest.raises(InvalidTransition):
            t.completed(record, NOW + 1, other)


def test_started_takes_the_stage() -> None:
    assert t.started(record_of(), NOW).stage is None
    assert t.started(record_of(stage="queued"), NOW).stage == "queued"
    running = t.started(record_of(stage="queued"), NOW, stage="read")
    assert (running.status, running.stage) == ("running", "read")
    assert t.started(running, NOW + 1, stage="read") is running
    again = t.started(running, NOW + 1, stage="write")
    assert (again.status, again.stage, again.updated_at) == ("running", "write", NOW + 1)


def test_progressed_takes_what_is_given_and_leaves_the_rest() -> None:
    record = record_of("running", stage="read", progress=0.0, message="m")
    assert t.progressed(record, NOW) is record
    assert t.progressed(record, NOW, stage="read", progress=0, message="m") is record
    changed = t.progressed(record, NOW, progress=5)
    assert (changed.stage, changed.progress, changed.message) == ("read", 5, "m")
    changed = t.progressed(record_of(), NOW, progress=0.0, message="")
    assert (changed.progress, changed.message, changed.status) == (0.0, "", "pending")


def test_completed_takes_a_resource_and_fills_the_progress() -> None:
    record = t.completed(record_of("running", progress=30.0, error="earlier"), NOW, b"1", resource_id="r")
    assert (record.result, record.resource_id, record.progress, record.error) == (1, "r", 100.0, None)
    assert t.completed(record_of(resource_id="r"), NOW, b"1").resource_id == "r"
    assert t.completed(record, NOW, b"1") is record, "no resource named is no other resource"
    with pytest.raises(InvalidTransition):
        t.completed(record, NOW, b"1", resource_id="other")


@pytest.mark.parametrize("status", TERMINAL)
def test_an_end_names_the_stage_wipes_credentials_and_notes_its_time(status: str) -> None:
    """[D143]"""
    event = {"completed": "complete", "failed": "fail", "cancelled": "mark_cancelled"}[status]
    before = record_of(
        "running",
        stage="read",
        private_json=b'{"token":"s3cret"}',
        meta_json=b'{"password":"s3cret","n":1}',
        payload_json=b'[{"api_key":"s3cret"}]',
        extra_json=b'{"cookie":"s3cret","newer":1}',
        started_at=START,
    )
    record = EVENTS[event](before, NOW)
    assert (record.status, record.stage, record.completed_at) == (status, status, NOW)
    assert record.private_json is None
    assert record.meta["n"] == 1
    assert orjson.loads(record.extra_json or b"")["newer"] == 1
    assert b"s3cret" not in b"".join(
        v for v in (record.meta_json, record.payload_json, record.extra_json) if v
    )


def test_an_end_of_a_plain_record_sets_no_extension() -> None:
    record = t.completed(record_of("running"), NOW, b"1")
    assert (record.stage, record.completed_at, record.progress, record.meta_json) == (None,) * 4


def test_the_end_masks_what_other_writers_left_in_a_record() -> None:
    """[D143] the same fields that the view masks, so that the file does not keep what nobody is shown."""
    secret = b'[{"password":"s3cret"}]'
    record = record_of(
        "running",
        meta_json=secret,
        payload_json=secret,
        history_json=secret,
        extra_json=secret,
        message="password=s3cret",
        hook_error="password=s3cret",
    )
    for ended in (t.completed(record, NOW, b"null"), t.failed(record, NOW, "x"), t.cancelled(record, NOW)):
        stored = repr([getattr(ended, field.name) for field in dataclasses.fields(ended)])
        assert "s3cret" not in stored
        assert ended.history == [{"password": "[REDACTED]"}]


def test_a_result_is_masked_and_left_alone_when_there_is_nothing_to_mask() -> None:
    """[D143]"""
    assert t.completed(record_of(), NOW, b'{"a":{"password":"s3cret"}}').result["a"]["password"] != "s3cret"
    for encoded in (b'"a\\":b"', b'{"a":[1.0,null]}', b"[1,2]"):
        assert t.completed(record_of(), NOW, encoded).result_json is encoded
    masked = t.completed(record_of(), NOW, b'{"password":"s3cret"}')
    assert t.completed(masked, NOW, b'{"password":"s3cret"}') is masked, "a repeat is masked the same way"


def test_request_cancel_of_a_running_task_notes_when() -> None:
    record = t.request_cancel(record_of("running"), NOW)
    assert (record.status, record.cancel_requested_at) == ("cancelling", NOW)


@pytest.mark.parametrize("event", ["start", "update", "complete", "fail", "mark_cancelled"])
def test_a_clock_that_steps_back_does_not_make_a_record_older(event: str) -> None:
    assert EVENTS[event](record_of(), START - 100).updated_at == START


# ---- rules about sets of tasks ---------------------------------------------------------------------


@pytest.mark.parametrize("status", LEGAL)
def test_active_tasks_block_others_of_their_kind(status: str) -> None:
    """[D059] a state of a newer version does too, until it says that it has ended."""
    assert t.blocks_duplicates(TaskStatus.parse(status)) is (status in (*ACTIVE, "paused"))
    assert t.blocks_duplicates(TaskStatus.parse(status), completed_at=1.0) is (status in ACTIVE)


@pytest.mark.parametrize("status", LEGAL)
def test_only_tasks_that_have_ended_can_be_deleted(status: str) -> None:
    record = record_of(status)
    if status in TERMINAL:
        t.check_deletable(record)
        return
    with pytest.raises(InvalidTransition, match=f"is {status}; cancel it or let it end") as refused:
        t.check_deletable(record)
    assert refused.value.task_ids == ["task-1"]


def test_an_owner_with_active_tasks_cannot_be_deleted_and_is_told_which() -> None:
    """[D159]"""
    t.check_owner_deletable("acme", "alice", [])
    with pytest.raises(
        InvalidTransition, match=r"acme/alice has 2 tasks .* \(a, b\); cancel them"
    ) as refused:
        t.check_owner_deletable("acme", "alice", ["a", "b"])
    assert refused.value.task_ids == ["a", "b"]
    many = [str(number) for number in range(11)]
    with pytest.raises(InvalidTransition, match=r"11 tasks .*8, 9, \.\.\.\)") as refused:
        t.check_owner_deletable("acme", "alice", many)
    assert refused.value.task_ids == many


def test_only_ended_tasks_past_their_cutoff_expire() -> None:
    cutoffs = dict.fromkeys(STATUSES, START) | {TaskStatus.parse("paused"): START}
    for status in LEGAL:
        assert t.expired(TaskStatus.parse(status), START, cutoffs) is (status in TERMINAL)
        assert not t.expired(TaskStatus.parse(status), START + 0.1, cutoffs)
        assert not t.expired(TaskStatus.parse(status), START, {}), "no cut-off keeps for ever"


# ---- whatever happens in whatever order ------------------------------------------------------------


@settings(PROPERTY, max_examples=300)
@given(
    st.sampled_from([*STATUSES, TaskStatus.parse("paused")]),
    st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.floats(START - 50, START + 50)), max_size=12),
)
def test_no_sequence_of_events_leaves_an_end_or_goes_where_the_table_does_not(
    status: TaskStatus, events: list[tuple[str, float]]
) -> None:
    """[D037]"""
    record = example(status, private_json=b"1")
    for event, now in events:
        before = record
        legal = LEGAL[before.status].get(event)
        try:
            record = EVENTS[event](before, now)
        except InvalidTransition:
            assert legal is None or before.status.is_terminal
            continue
        if before.status.is_terminal:
            assert record is before
            continue
        assert legal is not None
        assert record.status == (before.status if legal == SAME else legal)
        assert record.updated_at >= before.updated_at
        assert record.key == before.key
        assert record.created_at == before.created_at
        if record is not before and record.status.is_terminal:
            assert record.private_json is None
