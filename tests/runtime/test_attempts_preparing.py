"""What an attempt is given and what it is called with: payload, handler, context variables; who hears of it."""

from __future__ import annotations

import contextvars
import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest

import task_tracker.worker as package
from task_tracker.testing import FakeClock
from task_tracker.worker.outcomes import (
    Interrupted,
)
from task_tracker.worker.running import is_async
from tests.runtime.attempting import Bench, attempted, run

ROOT = Path(__file__).parents[2]

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


both = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


def on_loop(body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def run_body(ctx: Any) -> Any:
        return body(ctx)

    return run_body


class Order(pydantic.BaseModel):
    amount: int


def test_a_payload_that_does_not_fit_any_more_fails_that_one_task(clock: FakeClock) -> None:
    async def main() -> None:
        bench = Bench(clock)
        bench.handler(payload=Order, idempotent=True)
        ended = await bench.attempt(payload_json=b'{"amount": "secret word"}')
        assert ended.record is not None
        assert (ended.record.status, ended.record.error_code) == ("failed", "invalid_payload")
        assert ended.record.error is not None
        assert "amount" in ended.record.error
        assert "secret word" not in ended.record.error
        await bench.close()

    run(clock, main())


def test_a_handler_that_cannot_be_imported_fails_the_task(clock: FakeClock) -> None:
    async def main() -> None:
        bench = Bench(clock)
        bench.registry.register("t", handler="tests.runtime.nowhere:run")
        ended = await bench.attempt()
        assert ended.record is not None
        assert (ended.record.status, ended.record.error_code) == ("failed", "handler_unavailable")
        await bench.close()

    run(clock, main())


def test_a_task_without_a_handler_here_is_given_back(clock: FakeClock) -> None:
    async def main() -> None:
        bench = Bench(clock)
        ended = await bench.attempt(task_type="unheard-of")
        assert ended.outcome == Interrupted(began=False)
        assert ended.record is not None
        assert ended.record.status == "pending"
        await bench.close()

    run(clock, main())


@both
def test_context_variables_are_carried_into_the_handler(clock: FakeClock, sync: bool) -> None:
    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=sync)
        variable.set("from outside")

        def body(_: Any) -> str:
            seen = variable.get()
            variable.set("from inside")
            return seen

        ended = await bench.attempt(body if sync else on_loop(body))
        assert ended.record is not None
        assert ended.record.result == "from outside"
        assert variable.get() == "from outside"
        await bench.close()

    run(clock, main())


def test_hooks_hear_of_start_and_end(clock: FakeClock) -> None:
    _, record, bench = attempted(clock, on_loop(lambda _: 1))
    assert [event.name for event in bench.events] == ["attempt_started", "attempt_ended"]
    assert bench.events[1].record == record


def test_objects_that_are_called_may_be_async() -> None:
    class Called:
        async def __call__(self) -> None: ...

    async def function(_: int) -> None: ...

    assert is_async(Called())
    assert is_async(functools.partial(functools.partial(function), 1))
    assert not is_async(Called)
    assert not is_async(print)


def test_names_of_the_package_are_imported_when_they_are_asked_for() -> None:
    program = "import sys, task_tracker.worker; print(*(name for name in sys.modules if 'worker.' in name))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == []
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, name).__name__ == name for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = package.Nothing
