"""How long the texts are that handlers leave in a record, whatever they are given."""

from __future__ import annotations

import pytest

from task_tracker import TaskRecord
from task_tracker.redaction import REDACTED
from task_tracker.testing import RecordMaker
from task_tracker.worker import Fail
from task_tracker.worker.checkpoints import LONGEST_STAGE, Progress
from task_tracker.worker.excerpts import MOST_CHARS, shortened
from task_tracker.worker.outcomes import LONGEST_CODE

SECRET = "sk-ant-" + "Ab3" * 20


def noted(record: TaskRecord, **texts: str) -> TaskRecord:
    progress = Progress()
    assert progress.note(None, texts.get("message"), texts.get("stage"), record, 0.0)
    return progress.applied(record, record.created_at)


@pytest.fixture
def record() -> TaskRecord:
    return RecordMaker()(handler_version=1)


def test_a_code_is_short_and_holds_no_credential() -> None:
    assert Fail("it broke", "no_access").code == "no_access"
    assert Fail("it broke", "c" * LONGEST_CODE).code == "c" * LONGEST_CODE
    assert Fail("it broke", SECRET).code == REDACTED
    code = Fail("it broke", "code " * 2_000_000).code
    assert code is not None
    assert len(code) == LONGEST_CODE
    assert code.endswith("... [cut]")


def test_a_stage_is_short_and_holds_no_credential(record: TaskRecord) -> None:
    assert noted(record, stage="embedding").stage == "embedding"
    assert noted(record, stage=f"with {SECRET}").stage == f"with {REDACTED}"
    stage = noted(record, stage="stage " * 200_000).stage
    assert stage is not None
    assert len(stage) == LONGEST_STAGE
    assert stage.endswith("... [cut]")


def test_a_message_has_its_bound_too(record: TaskRecord) -> None:
    message = noted(record, message="word " * 200_000).message
    assert message is not None
    assert len(message) <= MOST_CHARS + len("... [cut]")
    assert message.endswith("... [cut]")


@pytest.mark.parametrize("before", range(150, 205, 7))
def test_no_part_of_a_credential_is_left_where_a_text_is_cut(before: int) -> None:
    short = shortened("a " * (before // 2) + SECRET + " b" * 20_000, 200)
    assert len(short) == 200
    assert "sk-ant" not in short
