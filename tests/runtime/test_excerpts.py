"""Long texts of users' code are cut before they are masked, and no half of a credential is left at a cut."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from task_tracker.redaction import REDACTED, redact_text
from task_tracker.testing import FakeClock
from task_tracker.worker import BlockingTaskContext, TaskContext
from task_tracker.worker import excerpts as module
from task_tracker.worker.excerpts import MOST_CHARS, excerpt, traceback_text
from tests.runtime.attempting import attempted

SECRET = "sk-ant-" + "Ab3" * 20


def error_of(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:  # noqa: BLE001  # whatever it is
        return error
    raise AssertionError("it raised nothing")


def raise_it(error: BaseException) -> None:
    raise error


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long the texts were that were masked."""
    lengths: list[int] = []
    redact = redact_text

    def counting(text: str) -> str:
        lengths.append(len(text))
        return redact(text)

    monkeypatch.setattr(module, "redact_text", counting)
    return lengths


def test_a_short_text_is_only_masked() -> None:
    assert excerpt("chunk 1") == "chunk 1"
    assert excerpt(f"with {SECRET}") == f"with {REDACTED}"
    assert excerpt("a " * (MOST_CHARS // 2)) == "a " * (MOST_CHARS // 2)


@pytest.mark.parametrize("shift", [1, 10, 40, 80])
def test_a_credential_at_the_cut_is_not_shown_in_part(shift: int, read: list[int]) -> None:
    text = "a " * ((MOST_CHARS - shift) // 2) + SECRET + " b" * 10_000_000
    short = excerpt(text)
    assert len(short) <= MOST_CHARS + 10
    assert short.endswith("... [cut]")
    assert "sk-ant" not in short
    assert max(read) == MOST_CHARS


def test_a_long_traceback_keeps_its_first_and_its_last_frames(read: list[int]) -> None:
    """[D149]"""
    huge = ValueError(f"{SECRET} " + "x " * 1_000_000)

    def chained() -> None:
        try:
            raise_it(huge)
        except ValueError as error:
            raise RuntimeError("the last word") from error

    text = traceback_text(error_of(chained))
    assert "in raise_it" in text
    assert "raise RuntimeError(" in text
    assert text.rstrip().endswith("RuntimeError: the last word")
    assert "Ab3" not in text
    assert len(text) < 3 * MOST_CHARS
    assert max(read) <= MOST_CHARS


def test_the_end_of_a_long_message_is_not_shown(read: list[int]) -> None:
    """It may be the second half of a key whose first half is not there to tell."""
    key = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQ\n" * 100_000 + "-----END PRIVATE KEY-----"
    text = traceback_text(error_of(lambda: raise_it(ValueError(key))))
    assert "MIIEvQ" not in text
    assert "in raise_it" in text
    assert max(read) <= MOST_CHARS


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_an_attempt_masks_no_more_than_it_keeps(
    sync: bool, read: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Millions of characters would take seconds, in which nothing else runs on the loop."""
    words = "a word " * 500_000

    def in_thread(ctx: BlockingTaskContext) -> None:
        ctx.progress(1, words)
        raise ValueError(words)

    async def on_loop(ctx: TaskContext) -> None:
        await ctx.progress(1, words)
        raise ValueError(words)

    body: Any = in_thread if sync else on_loop
    with caplog.at_level(logging.WARNING):
        _, record, _ = attempted(FakeClock(), body, sync=sync)
    assert record.status == "failed"
    assert record.message is not None
    assert len(record.message) <= MOST_CHARS + 10
    assert "Traceback" in caplog.text
    assert max(read) <= MOST_CHARS
