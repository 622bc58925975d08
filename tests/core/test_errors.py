"""The error tree: parents, texts, and survival on the way between processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from task_tracker import errors

PARENTS = {
    "TaskNotFound": KeyError,
    "AmbiguousTask": LookupError,
    "InvalidTransition": ValueError,
    "InvalidPayload": ValueError,
    "InvalidTaskId": ValueError,
    "SettingsError": ValueError,
}
EXAMPLES = [
    errors.TaskNotFound("no task a"),
    errors.AmbiguousTask("two"),
    errors.InvalidTransition("not now", task_ids=["a", "b"]),
    errors.LeaseHeld("held", holder="host:1", heartbeat_age_seconds=2.5),
    errors.CorruptRecord("broken", path="/somewhere/a.json"),
    errors.InvalidPayload("payload.url: Field required"),
    errors.SettingsError("bad"),
    errors.StoreUnavailable("away"),
]


@pytest.mark.parametrize("name", errors.__all__)
def test_everything_is_a_task_tracker_error(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, errors.TaskTrackerError)
    assert issubclass(kind, PARENTS.get(name, Exception))
    assert name in errors.__doc__.replace("TaskTrackerError(", ""), "the tree in the docstring is complete"


def test_kinds_that_must_not_look_alike_are_not_related() -> None:
    three = (errors.TaskNotFound, errors.CorruptRecord, errors.StoreUnavailable)
    for one in three:
        assert [other for other in three if issubclass(one, other)] == [one]


def test_text_is_the_message_also_for_a_key_error() -> None:
    assert str(errors.TaskNotFound("no task a")) == "no task a"
    assert str(errors.TaskNotFound()) == ""


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_survives_pickling_and_copying(error: errors.TaskTrackerError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_invalid_transition_keeps_its_own_list_of_ids() -> None:
    ids = ["a"]
    error = errors.InvalidTransition("no", task_ids=ids)
    ids.append("b")
    assert error.task_ids == ["a"]
    assert errors.InvalidTransition("no").task_ids == []


def test_settings_error_is_one_line_whatever_is_quoted_in_it() -> None:
    assert str(errors.SettingsError("unknown key a\nb\r\nc; remove it")) == "unknown key a b c; remove it"
