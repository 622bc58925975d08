"""Blocking calls from a worker's loop: one thread for those that are short, more for those that are not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from task_tracker.worker import calls as calls_module
from task_tracker.worker.calls import Calls
from tests.core.support import PATIENCE, Gate
from tests.runtime.work import until
from tests.runtime.workers import no_thread_is_left


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    with no_thread_is_left():
        yield


def run(scenario: Callable[[Calls], Coroutine[Any, Any, None]], *, short: bool = True) -> None:
    async def main() -> None:
        calls = Calls(4, short=short)
        try:
            await asyncio.wait_for(scenario(calls), PATIENCE)
        finally:
            calls.end()

    asyncio.run(main())


def test_short_calls_share_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        calls_module, "_PATIENCE_SECONDS", PATIENCE
    )  # a busy machine makes no call a long one

    async def scenario(calls: Calls) -> None:
        made = await asyncio.gather(*(calls.make(threading.get_ident) for _ in range(4)))
        assert len(set(made)) == 1
        assert threading.get_ident() not in made

    run(scenario)


@pytest.mark.parametrize("short", [False, True])
def test_a_call_that_hangs_holds_up_no_other(*, short: bool) -> None:
    async def scenario(calls: Calls) -> None:
        gate = Gate()
        hanging = asyncio.create_task(calls.make(gate.pass_through))
        await until(gate.entered.is_set)
        assert await asyncio.gather(*(calls.make(lambda: 5) for _ in range(3))) == [5, 5, 5]
        assert not hanging.done()
        gate.open()
        await hanging

    run(scenario, short=short)


def test_calls_that_all_take_long_are_made_at_once() -> None:
    async def scenario(calls: Calls) -> None:
        gates = [Gate() for _ in range(4)]
        made = [asyncio.create_task(calls.make(gate.pass_through)) for gate in gates]
        await until(lambda: all(gate.entered.is_set() for gate in gates))
        for gate in gates:
            gate.open()
        await asyncio.gather(*made)

    run(scenario)


def test_an_answer_does_not_wait_for_what_comes_after_it() -> None:
    async def scenario(calls: Calls) -> None:
        gate, heard = Gate(), asyncio.Event()

        def after() -> Callable[[], None]:
            gate.pass_through()
            return heard.set

        assert await calls.make(lambda: 5, then=lambda: after) == 5
        await until(gate.entered.is_set)
        assert not heard.is_set()
        gate.open()
        await heard.wait()

    run(scenario)


def test_nothing_comes_after_a_call_that_failed() -> None:
    async def scenario(calls: Calls) -> None:
        with pytest.raises(ZeroDivisionError):
            await calls.make(lambda: 1 // 0, then=lambda: pytest.fail("it failed"))

    run(scenario)
