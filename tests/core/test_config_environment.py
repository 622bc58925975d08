"""Configuration from the environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from task_tracker import SettingsError, StorageConfig, TaskTracker
from task_tracker.settings import TaskTrackerSettings

Environment = Callable[..., None]


@pytest.fixture
def environment(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> Environment:
    def put(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


def settings() -> TaskTrackerSettings:
    return StorageConfig().task_tracker


def refusal() -> str:
    with pytest.raises(SettingsError) as refused:
        StorageConfig()
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("TASK_TRACKER__BACKEND", "persistent", "backend", "persistent"),
        ("task_tracker__backend", "persistent", "backend", "persistent"),
        ("TASK_TRACKER__ROOT", "/data/5", "root", "/data/5"),
        ("TASK_TRACKER__ROOT", "5", "root", "5"),
        ("TASK_TRACKER__STRICT", "false", "strict", False),
        ("TASK_TRACKER__MAX_CACHED", "5", "max_cached", 5),
        ("TASK_TRACKER__CALL_SECONDS", "2.5", "call_seconds", 2.5),
        ("TASK_TRACKER__DURABILITY", "full", "durability", "full"),
        ("TASK_TRACKER__OPTIONS", '{"max_records": 5}', "options", {"max_records": 5}),
        ("TASK_TRACKER__RETENTION", "null", "retention", None),
        ("TASK_TRACKER__BACKEND", "", "backend", "memory"),
        ("TASK_TRACKER", '{"backend": "persistent"}', "backend", "persistent"),
    ],
)
def test_each_key_can_be_set(
    environment: Environment, name: str, text: str, field: str, value: object
) -> None:
    environment(**{name: text})
    assert settings() == TaskTrackerSettings(**{field: value})


def test_retention_key_by_key(environment: Environment) -> None:
    environment(
        TASK_TRACKER__RETENTION__FAILED_SECONDS="60", TASK_TRACKER__RETENTION__COMPLETED_SECONDS="null"
    )
    retention = settings().retention
    assert retention is not None
    assert (retention.failed_seconds, retention.completed_seconds) == (60.0, None)
    assert retention.cancelled_seconds == 86_400.0


def test_arguments_win_over_the_environment_key_by_key(environment: Environment) -> None:
    environment(
        TASK_TRACKER__ROOT="/data",
        TASK_TRACKER__BACKEND="persistent",
        TASK_TRACKER__RETENTION__FAILED_SECONDS="60",
    )
    expected = TaskTrackerSettings(
        backend="memory", root="/data", retention={"failed_seconds": 60, "completed_seconds": 1}
    )
    values = {"backend": "memory", "retention": {"completed_seconds": 1}}
    assert StorageConfig(task_tracker=values).task_tracker == expected
    assert StorageConfig.from_document({"storage": {"task_tracker": values}}).task_tracker == expected
    assert StorageConfig(task_tracker={"retention": None}).task_tracker.retention is None


def test_the_environment_counts_where_a_document_is_silent(environment: Environment) -> None:
    environment(TASK_TRACKER__ROOT="/data")
    documents: list[dict[str, Any]] = [{}, {"storage": {}}, {"storage": {"task_tracker": {}}}]
    for document in documents:
        assert StorageConfig.from_document(document).task_tracker.root == "/data"


def test_a_tracker_from_the_environment_alone(environment: Environment) -> None:
    environment(TASK_TRACKER__STRICT="no")
    with StorageConfig().build_task_tracker(cleanup=False) as tracker:
        assert isinstance(tracker, TaskTracker)
        assert tracker.start("unknown") is None


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("TASK_TRACKER__BACKNED", "x", "unknown key storage.task_tracker.backned; did you mean backend?"),
        (
            "TASK_TRACKER__RETENTION__FAILD_SECONDS",
            "1",
            "unknown key storage.task_tracker.retention.faild_seconds; did you mean failed_seconds?",
        ),
        ("TASK_TRACKER__STRICT", "perhaps", "storage.task_tracker.strict is 'perhaps': Input should be"),
        ("TASK_TRACKER__MAX_CACHED", "0", "storage.task_tracker.max_cached is '0': Input should be"),
        (
            "TASK_TRACKER__RETENTION__FAILED_SECONDS",
            "soon",
            "storage.task_tracker.retention.failed_seconds is",
        ),
        (
            "TASK_TRACKER__BACKEND__NAME",
            "x",
            "storage.task_tracker.backend is {'name': 'x'}: Input should be",
        ),
        ("TASK_TRACKER", "memory", "the environment cannot be read: "),
        ("TASK_TRACKER__OPTIONS", "a=b", "the environment cannot be read: "),
    ],
)
def test_a_mistake_is_one_clear_line(environment: Environment, name: str, text: str, complaint: str) -> None:
    environment(**{name: text})
    assert refusal().startswith(complaint)


def test_what_is_no_json_object_says_what_to_write(environment: Environment) -> None:
    environment(TASK_TRACKER="memory")
    assert "take a JSON object, or name one key each (TASK_TRACKER__BACKEND=...)" in refusal()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("TASK_TRACKER_BACKEND", "TASK_TRACKER__BACKEND"),
        ("task_tracker_root", "TASK_TRACKER__ROOT"),
        ("TASK_TRACKER_MAX_CACHED", "TASK_TRACKER__MAX_CACHED"),
        ("TASK_TRACKER_RETENTION__FAILED_SECONDS", "TASK_TRACKER__RETENTION__FAILED_SECONDS"),
        ("STORAGE__TASK_TRACKER__BACKEND", "TASK_TRACKER__BACKEND"),
        ("STORAGE_TASK_TRACKER_BACKEND", "TASK_TRACKER__BACKEND"),
    ],
)
def test_a_near_miss_is_not_ignored(environment: Environment, wrong: str, right: str) -> None:
    """Memory in place of the directory that was meant would lose tasks without a word."""
    environment(**{wrong: "x"})
    assert refusal() == f"the environment variable {wrong} means nothing here; write {right}"


def test_a_near_miss_of_what_was_given_as_an_argument_does_no_harm(environment: Environment) -> None:
    """It may be another program's variable, and nothing hangs on it."""
    environment(TASK_TRACKER_ROOT="/elsewhere", TASK_TRACKER_RETENTION__FAILED_SECONDS="5")
    given: Any = {"backend": "persistent", "root": "/data", "retention": {"failed_seconds": 60}}
    assert StorageConfig(task_tracker=given).task_tracker == TaskTrackerSettings(**given)
    document = {"storage": {"task_tracker": given}}
    assert StorageConfig.from_document(document).task_tracker.root == "/data"
    assert StorageConfig(task_tracker=TaskTrackerSettings(**given)).task_tracker.root == "/data"


def test_a_near_miss_of_what_was_not_given_is_still_not_ignored(environment: Environment) -> None:
    environment(TASK_TRACKER_RETENTION__FAILED_SECONDS="5")
    for given in ({"backend": "persistent", "root": "/data"}, {"retention": {"completed_seconds": 1}}):
        with pytest.raises(SettingsError, match="TASK_TRACKER_RETENTION__FAILED_SECONDS means nothing here"):
            StorageConfig(task_tracker=given)


@pytest.mark.parametrize(
    "name", ["TASK_TRACKER_URL", "MY_TASK_TRACKER__BACKEND", "STORAGE__PATH", "TASK_TRACKER_"]
)
def test_variables_of_others_are_left_alone(environment: Environment, name: str) -> None:
    environment(**{name: "x"})
    assert settings() == TaskTrackerSettings()
