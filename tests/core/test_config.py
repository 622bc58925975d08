"""Configuration: documents, files, arguments. The environment: test_config_environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from task_tracker import AsyncTaskTracker, Retention, SettingsError, StorageConfig, TaskTracker
from task_tracker.settings import RetentionSettings, TaskTrackerSettings
from tests.core.support import OWNER, own_threads


@pytest.fixture(autouse=True)
def _clean_environment(clean_environment: None) -> None:
    """Nothing of the machine's own settings gets in."""


def refusal(call: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(SettingsError) as refused:
        call(*arguments, **named)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500
    return str(refused.value)


def settings_of(**values: Any) -> TaskTrackerSettings:
    return StorageConfig(task_tracker=values).task_tracker


# ---- what there is ---------------------------------------------------------------------------------


def test_by_itself_everything_lives_in_memory() -> None:
    assert StorageConfig().task_tracker == TaskTrackerSettings()
    assert StorageConfig().task_tracker.model_dump() == {
        "backend": "memory",
        "root": None,
        "prefix": "/local",
        "dsn": None,
        "migrate": False,
        "durability": "edges",
        "retention": {
            "completed_seconds": 86_400.0,
            "cancelled_seconds": 86_400.0,
            "failed_seconds": 604_800.0,
            "sweep_seconds": 300.0,
        },
        "strict": True,
        "max_cached": 10_000,
        "max_payload_bytes": 1_048_576,
        "max_checkpoint_bytes": 1_048_576,
        "max_result_bytes": 1_048_576,
        "lock_timeout_seconds": 10.0,
        "lease_seconds": None,
        "heartbeat_seconds": None,
        "reconcile": True,
        "start_within_seconds": 86_400.0,
        "wake_up": None,
        "max_threads": 16,
        "call_seconds": 60.0,
        "options": {},
    }


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="frozen"):
        StorageConfig().task_tracker.backend = "other"  # type: ignore[misc]


def test_the_terms_of_retention_reach_the_tracker() -> None:
    """[D134] [D135]"""
    assert RetentionSettings().as_value() == Retention()
    retention = settings_of(retention={"failed_seconds": None, "completed_seconds": 0}).retention
    assert retention is not None
    assert retention.as_value() == Retention(0.0, 86_400.0, None)
    assert settings_of(retention=None).retention is None


# ---- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"backned": "memory"}, "unknown key storage.task_tracker.backned; did you mean backend?"),
        ({"zzz": 1}, "unknown key storage.task_tracker.zzz; known are backend, root, prefix, "),
        (
            {"retention": {"faild_seconds": 1}},
            "unknown key storage.task_tracker.retention.faild_seconds; did you mean failed_seconds?",
        ),
        ({"a\nb": 1}, "unknown key storage.task_tracker.a b; known are "),
        ({"durability": "some"}, "storage.task_tracker.durability is 'some': Input should be 'full', "),
        (
            {"max_result_bytes": 0},
            "storage.task_tracker.max_result_bytes is 0: Input should be greater than or equal to 1",
        ),
        (
            {"max_cached": 0},
            "storage.task_tracker.max_cached is 0: Input should be greater than or equal to 1",
        ),
        (
            {"max_cached": "many"},
            "storage.task_tracker.max_cached is 'many': Input should be a valid integer",
        ),
        ({"max_threads": 1001}, "storage.task_tracker.max_threads is 1001: "),
        ({"call_seconds": 0}, "storage.task_tracker.call_seconds is 0: Input should be greater than 0"),
        ({"lock_timeout_seconds": -1}, "storage.task_tracker.lock_timeout_seconds is -1: "),
        ({"call_seconds": float("nan")}, "storage.task_tracker.call_seconds is nan: "),
        ({"call_seconds": float("inf")}, "storage.task_tracker.call_seconds is inf: "),
        ({"retention": {"failed_seconds": -1}}, "storage.task_tracker.retention.failed_seconds is -1: "),
        ({"retention": {"sweep_seconds": 0}}, "storage.task_tracker.retention.sweep_seconds is 0: "),
        (
            {"retention": {"failed_seconds": float("nan")}},
            "storage.task_tracker.retention.failed_seconds is nan: ",
        ),
        ({"retention": 5}, "storage.task_tracker.retention is 5: Input should be a valid dictionary"),
        ({"strict": "perhaps"}, "storage.task_tracker.strict is 'perhaps': Input should be a valid boolean"),
        ({"root": 5}, "storage.task_tracker.root is 5: Input should be a valid string"),
        ({"options": ["a"]}, "storage.task_tracker.options is ['a']: Input should be a valid dictionary"),
        (
            {"backend": "x" * 1000, "root": "y" * 1000, "strict": "z" * 1000},
            "storage.task_tracker.strict is 'zzz",
        ),
        ({"strict": "a", "max_cached": "b"}, "storage.task_tracker.strict is 'a': "),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(values: dict[str, Any], complaint: str) -> None:
    for call in (
        lambda: StorageConfig(task_tracker=values),
        lambda: StorageConfig.from_document({"storage": {"task_tracker": values}}),
    ):
        assert refusal(call).startswith(complaint)


def test_further_mistakes_are_counted() -> None:
    assert refusal(settings_of, strict="a", max_cached="b", zzz=1).endswith(" (and 2 more)")
    assert "more)" not in refusal(settings_of, strict="a")


@pytest.mark.parametrize("value", [None, 5, "memory", ["memory"]])
def test_settings_that_are_no_object_are_refused(value: object) -> None:
    assert refusal(StorageConfig, task_tracker=value).startswith(f"storage.task_tracker is {value!r}: ")


def test_a_misspelt_argument_is_refused() -> None:
    assert refusal(StorageConfig, task_trackr={}) == (
        "unknown key storage.task_trackr; did you mean task_tracker?"
    )


@pytest.mark.parametrize(
    ("seconds", "kept"), [("completed_seconds", 1e12), ("failed_seconds", 0), ("cancelled_seconds", None)]
)
def test_all_terms_that_the_settings_take_the_tracker_takes_too(seconds: str, kept: float | None) -> None:
    config = StorageConfig(task_tracker={"retention": {seconds: kept, "sweep_seconds": 1e12}})
    with config.build_task_tracker() as tracker:
        tracker.create("t", **OWNER)


# ---- documents and files ---------------------------------------------------------------------------


def test_a_document_of_the_server_is_read() -> None:
    document = {"server": {"port": 1}, "storage": {"vectors": {}, "task_tracker": {"strict": False}}}
    assert StorageConfig.from_document(document).task_tracker == settings_of(strict=False)


@pytest.mark.parametrize("document", [{}, {"server": {}}, {"storage": {}}, {"storage": {"task_tracker": {}}}])
def test_a_document_that_does_not_speak_of_tasks_gives_the_defaults(document: dict[str, Any]) -> None:
    assert StorageConfig.from_document(document) == StorageConfig()


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({"storag": {}}, "unknown key storag; did you mean storage?"),
        ({"Storage": {}}, "unknown key Storage; did you mean storage?"),
        (
            {"storage": {"task_traker": {}}},
            "unknown key storage.task_traker; did you mean storage.task_tracker?",
        ),
        (
            {"storage": {"tasktracker": {}}},
            "unknown key storage.tasktracker; did you mean storage.task_tracker?",
        ),
        (
            {"task_tracker": {"backend": "lease"}},
            'task_tracker belongs into the section "storage"; give {"storage": {"task_tracker": {...}}}',
        ),
        ({"storage": None}, "storage must be an object, not None"),
        ({"storage": {"task_tracker": "memory"}}, "storage.task_tracker must be an object, not 'memory'"),
        ({"storage": {"task_tracker": []}}, "storage.task_tracker must be an object, not []"),
        ([], "the configuration must be an object, not []"),
        (None, "the configuration must be an object, not None"),
    ],
)
def test_a_document_with_a_mistake_is_refused(document: Any, complaint: str) -> None:
    assert refusal(StorageConfig.from_document, document) == complaint


def test_a_document_whose_keys_are_no_text_is_refused() -> None:
    document = {1: {}, "storage": {2: 3, "task_tracker": {4: 5}}}
    assert refusal(StorageConfig.from_document, document) == (
        "storage.task_tracker.4 is 4: Keys should be strings"
    )


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    path.write_text(json.dumps({"storage": {"task_tracker": {"root": "/data"}}}))
    assert StorageConfig.from_file(path).task_tracker.root == "/data"
    assert StorageConfig.from_file(str(path)).task_tracker.root == "/data"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    assert refusal(StorageConfig.from_file, missing) == f"{missing} cannot be read: No such file or directory"
    assert refusal(StorageConfig.from_file, tmp_path) == f"{tmp_path} cannot be read: Is a directory"
    broken = tmp_path / "broken.json"
    for content in (b"", b"{", b"\xff", b"backend: memory\n", b"[" * 5000):
        broken.write_bytes(content)
        assert refusal(StorageConfig.from_file, broken).startswith(f"{broken} is not JSON: ")
    broken.write_text("[1]")
    assert refusal(StorageConfig.from_file, broken) == "the configuration must be an object, not [1]"


# ---- building --------------------------------------------------------------------------------------


def test_the_tracker_is_built_as_configured() -> None:
    config = StorageConfig(
        task_tracker={
            "strict": False,
            "max_cached": 7,
            "retention": {"sweep_seconds": 9, "failed_seconds": 5},
            "options": {"max_records": 3},
        }
    )
    with config.build_task_tracker() as tracker:
        assert [thread.name for thread in own_threads()] == ["task_tracker retention sweep"]
        assert tracker.start("unknown") is None, "not strict"
        assert tracker._sweep.sweep_seconds == 9.0
        assert tracker._sweep._retention == Retention(failed_seconds=5.0)
        for _ in range(5):
            tracker.complete(tracker.create("t", **OWNER).task_id)
        assert len(tracker.list_tasks(account_id="acme")) == 3
        for _ in range(10):
            tracker.create("t", **OWNER)
        assert tracker.count() == 7
    assert own_threads() == set()


def test_the_sweep_can_be_left_out() -> None:
    with StorageConfig().build_task_tracker(cleanup=False) as tracker:
        assert own_threads() == set()
        assert isinstance(tracker, TaskTracker)


def test_keeping_everything_for_ever() -> None:
    """[D134]"""
    with StorageConfig(task_tracker={"retention": None}).build_task_tracker() as tracker:
        assert tracker._sweep._retention == Retention(None, None, None)


def test_the_async_tracker_is_built_as_configured() -> None:
    config = StorageConfig(task_tracker={"max_threads": 3, "call_seconds": 4})
    tracker = config.build_async_task_tracker()
    assert isinstance(tracker, AsyncTaskTracker)
    assert (tracker._max_threads, tracker._call_seconds) == (3, 4.0)
    assert own_threads()
    tracker.close()
    assert own_threads() == set()


def test_the_store_alone() -> None:
    assert StorageConfig().build_task_store().capabilities.exclusive_create
    assert "did you mean 'memory'?" in refusal(
        StorageConfig(task_tracker={"backend": "memry"}).build_task_store
    )


def test_a_root_without_a_backend_is_refused_and_not_left_empty(tmp_path: Path) -> None:
    """Whoever names a place wants tasks to be kept there: memory in its stead would lose them."""
    with pytest.raises(SettingsError, match=r"root is set, but the backend is .memory.*persistent"):
        StorageConfig(task_tracker={"root": str(tmp_path)}).build_task_tracker()
