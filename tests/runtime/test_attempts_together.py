"""Attempts side by side: what one does to its end does not reach another."""

from __future__ import annotations

import asyncio

import pytest

from task_tracker.testing import FakeClock
from task_tracker.worker import TaskContext
from task_tracker.worker.outcomes import TimedOut
from tests.runtime.attempting import Bench, for_ever, run, until


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class Stubborn(asyncio.Future[None]):
    def cancel(self, msg: object = None) -> bool:
        raise ValueError("this cannot be cancelled")


def test_one_that_breaks_as_it_is_stopped_keeps_no_other_from_its_time(clock: FakeClock) -> None:
    """A cancellation is asked of what the handler waits for, which may be users' code. Their times end together."""
    waited: list[Stubborn] = []

    async def stubborn(_: TaskContext) -> None:
        waited.append(Stubborn())
        await waited[0]

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(timeout_seconds=1.0, cleanup_seconds=5.0)
        attempts = [await bench.begin(bench.claim(body)) for body in (stubborn, for_ever)]
        try:
            await bench.advance(1.0)
            await bench.advance(5.0)
            assert [attempt.done() for attempt in attempts] == [True, True]
        finally:
            waited[0].set_result(None)
        assert [(await attempt).outcome for attempt in attempts] == [TimedOut(1.0)] * 2
        await until(lambda: not bench.executor.left_behind)
        await bench.close()

    run(clock, main())
