"""Which claims use up attempts, and which do not."""

from __future__ import annotations

from typing import Any

import pytest

from task_tracker import TaskRecord
from task_tracker.submitting import INTERRUPTED
from task_tracker.testing import FakeClock
from task_tracker.worker import TaskContext
from task_tracker.worker.outcomes import CancelledOutcome, Failed, RetryAt
from task_tracker.worker.rescuing import LOST, judged_loss
from task_tracker.worker.retrying import attempts_used, uncounted
from tests.core.support import record_of
from tests.runtime.attempting import OWNER, Bench, for_ever, run
from tests.runtime.handling import BODIES


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def interrupted(record: TaskRecord, times: int) -> TaskRecord:
    for _ in range(times):
        record = uncounted(record)
    return record


async def restart(bench: Bench, claimed: Any) -> None:
    """End the worker in the middle of an attempt, and begin with a new one."""
    attempt = await bench.begin(claimed)
    bench.executor.interrupt()
    assert (await attempt).outcome.name == "interrupted"
    bench.executor._is_interrupted = False


def test_shutdowns_use_up_no_attempts(clock: FakeClock) -> None:
    """[D047] [D149] Three restarts, and the first error is followed by as many attempts as after none."""

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(idempotent=True, max_attempts=3, retry_seconds=4.0)
        claimed = bench.claim(for_ever, meta_json=b'{"mine":1}')
        key = claimed[0].key
        for _ in range(3):
            await restart(bench, claimed)
            claimed = bench.claim_again(key)
        assert bench.stored(key).meta == {"mine": 1, INTERRUPTED: 3}

        async def breaks(_: TaskContext) -> None:
            raise OSError("broken")

        BODIES[key.task_id] = breaks
        for pause in (4.0, 8.0):
            ended = await bench.start(claimed)
            assert ended.outcome == RetryAt(clock.now() + pause, "OSError: broken")
            await bench.advance(pause)
            claimed = bench.claim_again(key)
        assert isinstance((await bench.start(claimed)).outcome, Failed)
        record = bench.stored(key)
        assert record.attempt is not None
        assert record.attempt.count == 6
        await bench.close()

    run(clock, main())


def test_who_submits_it_again_begins_to_count_anew(clock: FakeClock) -> None:
    async def main() -> None:
        bench = Bench(clock)
        bench.handler(idempotent=True)
        claimed = bench.claim(for_ever, meta_json=b'{"mine":1}')
        task_id = claimed[0].key.task_id
        await restart(bench, claimed)
        bench.tracker.cancel(task_id, **OWNER)
        assert bench.stored(claimed[0]).meta == {"mine": 1, INTERRUPTED: 1}
        for again, name in ((bench.tracker.retry, "retry_of"), (bench.tracker.resume, "resume_of")):
            assert again(task_id, "acme", "alice", unregistered=True).record.meta == {
                "mine": 1,
                name: task_id,
            }
        with pytest.raises(ValueError, match="_interrupted"):
            bench.tracker.submit(
                "t", version=1, meta={INTERRUPTED: 5}, unregistered=True, account_id="acme", user_id="alice"
            )
        await bench.close()

    run(clock, main())


def test_a_crash_says_how_many_attempts_there_were(clock: FakeClock) -> None:
    """[D012] Shutdowns are not among them, and errors were no crashes."""
    bench = Bench(clock)
    bench.handler(idempotent=True, max_attempts=3, retry_seconds=4.0)
    (handler,) = bench.registry.handlers()
    record = interrupted(record_of(status="running", handler_version=1), 3)

    def lost(attempts: int, record: TaskRecord = record, *, wish: bool = False) -> object:
        return judged_loss(handler, record, attempts, cancel_requested=wish, clock=clock)

    assert lost(4) == RetryAt(clock.now() + 4.0, LOST, "holder_lost")
    assert lost(5) == RetryAt(clock.now() + 8.0, LOST, "holder_lost")
    assert lost(6) == Failed(f"{LOST}, in the last of 3 attempts", "crash_loop")
    assert lost(4, wish=True) == CancelledOutcome()
    bench.tracker.close()


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_crash_of_what_cannot_be_cancelled_is_no_cancel(clock: FakeClock, idempotent: bool) -> None:
    """[D043]"""
    bench = Bench(clock)
    bench.handler(idempotent=idempotent, cancellable=False)
    (handler,) = bench.registry.handlers()
    record = record_of(status="cancelling", handler_version=1)
    outcome = judged_loss(handler, record, 1, cancel_requested=True, clock=clock)
    assert outcome == Failed(LOST, "holder_lost")
    bench.tracker.close()


@pytest.mark.parametrize("meta", [b"[]", b'"x"', b"{}", b'{"_interrupted":"two"}', b'{"_interrupted":-1}'])
def test_a_file_may_hold_anything(meta: bytes) -> None:
    record = record_of().changed(meta_json=meta)
    assert attempts_used(record, 2) == 2
    assert attempts_used(uncounted(record), 2) == 1
    assert attempts_used(record_of().changed(meta_json=b'{"_interrupted":9}'), 2) == 0
