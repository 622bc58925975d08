"""What a handler does, and what its task is then."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from task_tracker import TaskRecord
from task_tracker.testing import FakeClock
from task_tracker.worker import Cancelled, Fail, OutOfTime, Result, Retry, ShuttingDown, TaskContext
from task_tracker.worker.outcomes import (
    CancelledOutcome,
    Done,
    Failed,
    Interrupted,
    LeftBehind,
    Lost,
    Raised,
    RetryAt,
    Returned,
    StopReason,
    TimedOut,
    judged,
)
from tests.runtime.attempting import Bench, run

ROOT = Path(__file__).parents[2]

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def attempted(clock: FakeClock, does: Callable[..., Any], **fields: Any) -> tuple[Any, TaskRecord, Bench]:
    """Run one attempt and return outcome, record and bench."""
    options = {
        name: fields.pop(name)
        for name in ("sync", "idempotent", "max_attempts", "cancellable")
        if name in fields
    }

    async def main() -> tuple[Any, TaskRecord, Bench]:
        bench = Bench(clock)
        bench.handler(**options)
        try:
            ended = await bench.attempt(does, **fields)
            assert ended.record is not None
            assert bench.stored(ended.record.key) == ended.record
            assert ended.handler_ended is None
            return ended.outcome, ended.record, bench
        finally:
            await bench.close()

    return run(clock, main())


def raising(error: BaseException) -> Callable[[Any], Any]:
    def body(_: Any) -> Any:
        raise error

    return body


def returning(value: object) -> Callable[[Any], Any]:
    return lambda _: value


def on_loop(body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def run_body(ctx: Any) -> Any:
        return body(ctx)

    return run_body


both = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


@both
@pytest.mark.parametrize("value", [None, {}, [], False, 0, "", {"n": [1, 2]}, ("a", "b")])
def test_what_a_handler_returns_is_the_result(clock: FakeClock, value: object, sync: bool) -> None:
    body = returning(value)
    outcome, record, bench = attempted(clock, body if sync else on_loop(body), sync=sync)
    assert isinstance(outcome, Done)
    assert record.status == "completed"
    assert record.result == (list(value) if isinstance(value, tuple) else value)
    assert bench.outcomes() == ["done"]


@both
@pytest.mark.parametrize("error", [Fail("no such page", code="gone"), Retry(after=5.0, reason="not yet")])
@pytest.mark.parametrize("is_because", [False, True])
def test_what_a_handler_says_is_logged_without_its_traceback(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, error: Exception, is_because: bool, sync: bool
) -> None:
    caplog.set_level(logging.INFO, logger="task_tracker")

    def body(_: Any) -> None:
        try:
            raise KeyError("page")
        except KeyError as reason:
            raise error.with_traceback(None) from (reason if is_because else None)

    attempted(clock, body if sync else on_loop(body), sync=sync)
    said = [record for record in caplog.records if getattr(record, "event", "") == "handler_said"]
    assert [record.levelno for record in said] == [logging.INFO]
    assert ("Traceback" in said[0].getMessage()) == is_because
    assert str(error) in said[0].getMessage()
    assert not [record for record in caplog.records if getattr(record, "event", "") == "handler_failed"]


@both
def test_a_result_may_name_the_resource_that_was_made(clock: FakeClock, sync: bool) -> None:
    body = returning(Result({"n": 1}, resource_id="kb-9"))
    _, record, _ = attempted(clock, body if sync else on_loop(body), sync=sync, resource_id="wanted")
    assert (record.resource_id, record.result) == ("kb-9", {"n": 1})


class Model(BaseModel):
    chunks: int


@both
@pytest.mark.parametrize("value", [Model(chunks=3), Result(Model(chunks=3), resource_id="kb-9")])
def test_a_result_may_be_a_model(clock: FakeClock, value: object, sync: bool) -> None:
    body = returning(value)
    _, record, _ = attempted(clock, body if sync else on_loop(body), sync=sync)
    assert record.result == {"chunks": 3}


@both
@pytest.mark.parametrize("value", [object(), float("nan"), {1: 2}, {"a": {1, 2}}, Result(1, resource_id=3)])  # type: ignore[arg-type]
def test_a_result_that_is_no_json_fails_the_task(clock: FakeClock, value: object, sync: bool) -> None:
    """[D149] A done side effect is not done again because its result cannot be stored."""
    body = returning(value)
    outcome, record, _ = attempted(clock, body if sync else on_loop(body), sync=sync, idempotent=True)
    assert isinstance(outcome, Failed)
    assert (record.status, record.error_code) == ("failed", "unserializable_result")


@both
def test_an_error_fails_the_task_and_is_redacted(clock: FakeClock, sync: bool, caplog: Any) -> None:
    """[D149] at_most_once is the default: an error is not followed by another attempt."""
    body = raising(RuntimeError("no entry for https://bob:hunter22@example.com/"))
    outcome, record, bench = attempted(clock, body if sync else on_loop(body), sync=sync)
    assert outcome == Failed(record.error or "", may_retry=True)
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.startswith("RuntimeError: no entry")
    assert "hunter22" not in record.error + caplog.text
    assert "Traceback" in caplog.text
    assert bench.outcomes() == ["failed"]


@both
def test_an_idempotent_task_is_tried_again_until_its_attempts_are_used_up(
    clock: FakeClock, sync: bool
) -> None:
    """[D056] [D149] The pause doubles; the last failure is the task's own."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync, idempotent=True, max_attempts=3, retry_seconds=4.0)
        body = raising(ConnectionError("gone"))
        claimed = bench.claim(body if sync else on_loop(body))
        key = claimed[0].key
        for pause in (4.0, 8.0):
            ended = await bench.start(claimed)
            assert ended.outcome == RetryAt(clock.now() + pause, "ConnectionError: gone")
            assert ended.record is not None
            assert (ended.record.status, ended.record.error) == ("pending", None)
            assert ended.record.not_before == clock.now() + pause
            assert bench.inner.claim(holder="too early", task_types=[("t", 1)]) is None
            await bench.advance(pause)
            again = bench.inner.claim(holder="test", task_types=[("t", 1)])
            assert again is not None
            claimed = again
        ended = await bench.start(claimed)
        assert isinstance(ended.outcome, Failed)
        record = bench.stored(key)
        assert (record.status, record.error) == ("failed", "ConnectionError: gone")
        assert record.attempt is not None
        assert record.attempt.count == 3
        assert bench.outcomes() == ["retry", "retry", "failed"]
        await bench.close()

    run(clock, main())


@both
@pytest.mark.parametrize("how", [raising, returning])
def test_fail_is_for_good(clock: FakeClock, sync: bool, how: Any) -> None:
    """[D056] A permanent error ends the task at once, whatever attempts are left, and gives up its lease."""
    body = how(Fail("bad credentials", code="bad_credentials"))
    outcome, record, bench = attempted(clock, body if sync else on_loop(body), sync=sync, idempotent=True)
    assert outcome == Failed("bad credentials", "bad_credentials")
    assert (record.status, record.error, record.error_code) == (
        "failed",
        "bad credentials",
        "bad_credentials",
    )
    assert bench.inner.workload().running == 0


@both
@pytest.mark.parametrize("how", [raising, returning])
@pytest.mark.parametrize("after", [None, 0, 60])
def test_retry_asks_for_another_attempt(clock: FakeClock, sync: bool, how: Any, after: float | None) -> None:
    """[D056] After the time that the handler says, or as after any failure."""
    body = how(Retry(after=after, reason="busy"))
    outcome, record, _ = attempted(clock, body if sync else on_loop(body), sync=sync, idempotent=True)
    assert outcome == RetryAt(clock.now() + (1.0 if after is None else after), "busy")
    assert record.status == "pending"
    assert record.history is not None
    assert record.history[-1]["error"] == "busy"


def test_retry_of_work_that_may_not_run_twice_fails(clock: FakeClock) -> None:
    """[D149] at_most_once holds even if the handler asks for more."""
    outcome, record, _ = attempted(clock, on_loop(raising(Retry(reason="busy"))))
    assert isinstance(outcome, Failed)
    assert (record.status, record.error) == ("failed", "busy")


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), 1e300, 10**400, 1e12])
def test_retry_takes_no_time_that_is_none(after: float) -> None:
    """Nor one that no store knows: the attempt would break, or the task wait for ever."""
    with pytest.raises(ValueError, match=re.escape(f"after is {str(after)[:4]}")):
        Retry(after=after)


class OwnFail(Fail):
    """A class of a handler's own, which forgets what it is made of."""

    def __init__(self) -> None:
        pass


class OwnRetry(Retry):
    def __init__(self) -> None:
        pass


@both
@pytest.mark.parametrize("how", [raising, returning])
def test_classes_of_a_handlers_own_mean_what_theirs_mean(clock: FakeClock, sync: bool, how: Any) -> None:
    body = how(OwnFail())
    outcome, record, _ = attempted(clock, body if sync else on_loop(body), sync=sync, idempotent=True)
    assert (record.status, record.error_code) == ("failed", None)
    body = how(OwnRetry())
    outcome, record, _ = attempted(clock, body if sync else on_loop(body), sync=sync, idempotent=True)
    assert isinstance(outcome, RetryAt)
    assert record.status == "pending"


class Disguised:
    """As a stand-in for something that is not there: asking for its class raises."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    @property  # type: ignore[misc]  # that it is no type is the point
    def __class__(self) -> type:
        raise self._error


@both
@pytest.mark.parametrize("error", [RuntimeError("outside of a request"), KeyboardInterrupt()])
def test_a_result_that_raises_when_it_is_looked_at_fails_the_task(
    clock: FakeClock, sync: bool, error: BaseException
) -> None:
    body = returning(Disguised(error))
    _, record, _ = attempted(clock, body if sync else on_loop(body), sync=sync)
    assert (record.status, record.error_code) == ("failed", "unserializable_result")


@both
def test_whatever_is_raised_ends_the_attempt_and_not_the_worker(clock: FakeClock, sync: bool) -> None:
    for error in (
        SystemExit(3),
        KeyboardInterrupt(),
        Unprintable(),
        StopIteration(7),
        GeneratorExit(),
        ExceptionGroup("many", [OSError("a"), OSError("b")]),
    ):
        body = raising(error)
        outcome, record, _ = attempted(clock, body if sync else on_loop(body), sync=sync)
        assert isinstance(outcome, Failed), error
        assert record.status == "failed"


class Unprintable(Exception):
    """Looking at it ends a program that is not careful."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_a_function_that_returns_a_coroutine_is_told_what_it_is(clock: FakeClock) -> None:
    async def forgotten() -> None:
        raise AssertionError("nobody awaits this")

    _, record, _ = attempted(clock, lambda _: forgotten(), sync=True)
    assert record.error is not None
    assert "async def" in record.error


def test_a_step_that_fails_fails_the_task(clock: FakeClock) -> None:
    """[D055] gather passes on the error of one of three steps; the task does not look completed."""

    async def step(number: int) -> int:
        await asyncio.sleep(0)
        if number == 2:
            raise ValueError("step 2 broke")
        return number

    async def gathers(_: TaskContext) -> Any:
        return await asyncio.gather(step(1), step(2), step(3))

    async def collects(_: TaskContext) -> Any:
        return await asyncio.gather(step(1), step(2), step(3), return_exceptions=True)

    async def groups(_: TaskContext) -> None:
        async with asyncio.TaskGroup() as group:
            for number in (1, 2, 3):
                group.create_task(step(number))

    for body in (gathers, groups):
        _, record, bench = attempted(clock, body)
        assert (record.status, record.error) == ("failed", "ValueError: step 2 broke")
        assert bench.outcomes() == ["failed"]
    _, record, _ = attempted(clock, collects)
    assert (record.status, record.error_code) == ("failed", "unserializable_result")


def test_fail_within_a_group_is_for_good(clock: FakeClock) -> None:
    """[D056]"""

    async def fails() -> None:
        raise Fail("no such account", code="gone")

    async def groups(_: TaskContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())

    outcome, _, _ = attempted(clock, groups, idempotent=True)
    assert outcome == Failed("no such account", "gone")


def test_a_cancellation_that_nobody_asked_for_is_a_failure(clock: FakeClock) -> None:
    """[D047] Something inside was cancelled; no user cancelled the task."""
    outcome, record, _ = attempted(clock, on_loop(raising(asyncio.CancelledError())))
    assert isinstance(outcome, Failed)
    assert (record.status, record.error_code) == ("failed", "cancelled_within")


def group(*errors: BaseException) -> BaseException:
    return BaseExceptionGroup("several", errors)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (group(Cancelled(), OSError("a")), Failed("OSError: a", may_retry=True)),
        (group(Retry(after=3, reason="b")), Failed("b", may_retry=True, after=3)),
        (group(Retry(), group(OSError("c"), Fail("d", code="e"))), Failed("d", "e")),
        (Fail(None), Failed("failed without a message")),
        (OSError(), Failed("OSError", may_retry=True)),
    ],
    ids=repr,
)
def test_what_was_raised_says_why(error: BaseException, outcome: object) -> None:
    """[D056]"""
    assert judged(Raised(error), None, 9.0) == outcome


STOPS: list[tuple[BaseException, StopReason, object]] = [
    (OutOfTime(), StopReason.TIMEOUT, TimedOut(9.0)),
    (ShuttingDown(), StopReason.SHUTDOWN, Interrupted()),
    (Cancelled(), StopReason.CANCEL, CancelledOutcome()),
    (group(Cancelled()), StopReason.CANCEL, CancelledOutcome()),
]


@pytest.mark.parametrize(("error", "reason", "outcome"), STOPS, ids=repr)
def test_a_stop_is_believed_of_who_was_told_so(
    error: BaseException, reason: StopReason, outcome: object
) -> None:
    """[D047] Also before the loop has told of it: a thread may see the signal first."""
    assert judged(Raised(error), None, 9.0, seen=reason) == outcome
    for other in (None, *({*StopReason} - {reason, StopReason.LOST})):
        unasked = judged(Raised(error), None, 9.0, seen=other)
        assert isinstance(unasked, Failed), other
        assert (unasked.error_code, unasked.may_retry) == ("unasked_stop", True)
        assert "nobody had told it to stop" in unasked.error


@both
@pytest.mark.parametrize("error", [OutOfTime("x"), ShuttingDown("x"), Cancelled("x")], ids=repr)
def test_a_stop_that_nobody_asked_for_is_a_failure_like_others(
    clock: FakeClock, sync: bool, error: BaseException
) -> None:
    """[D047] [D056] It uses up an attempt, waits before the next one, and is no shutdown, timeout or cancel."""
    body = raising(error)
    outcome, record, _ = attempted(clock, body if sync else on_loop(body), sync=sync, idempotent=True)
    assert isinstance(outcome, RetryAt)
    assert (record.status, record.not_before) == ("pending", clock.now() + 1.0)
    assert record.meta == {}
    outcome, record, _ = attempted(clock, body if sync else on_loop(body), sync=sync)
    assert (record.status, record.error_code) == ("failed", "unasked_stop")
    assert type(error).__name__ in str(record.error)


@pytest.mark.parametrize("did", [Returned(1), Returned(Fail("x")), Raised(OSError()), LeftBehind()], ids=repr)
def test_two_reasons_are_stronger_than_what_a_handler_did(did: Any) -> None:
    """[D024] [D057]"""
    assert isinstance(judged(did, StopReason.LOST, 9.0), Lost)
    assert judged(did, StopReason.TIMEOUT, 9.0) == TimedOut(9.0)
