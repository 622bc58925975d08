"""What handlers share: built once, off the loop, again after a failure, closed at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from task_tracker import HandlerRegistry, SettingsError
from task_tracker.testing import FakeClock
from task_tracker.worker import Resources
from tests.runtime.attempting import Gate, run, until

both = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def resources(**factories: Callable[[], Any] | str) -> Resources:
    registry = HandlerRegistry()
    for name, factory in factories.items():
        registry.resource(name, factory)
    return Resources(registry, build_seconds=60.0, close_seconds=10.0)


@both
def test_it_is_built_once_however_many_ask(clock: FakeClock, sync: bool) -> None:
    gate, built = Gate(), []

    def in_thread() -> object:
        gate.pass_in_thread()
        built.append(threading.current_thread())
        return object()

    async def on_loop() -> object:
        await gate.pass_on_loop()
        built.append(threading.current_thread())
        return object()

    async def main() -> None:
        shared = resources(model=in_thread if sync else on_loop)
        asked = [asyncio.create_task(shared.get("model")) for _ in range(50)]
        await until(gate.entered.is_set)
        gate.opened.set()
        got = await asyncio.gather(*asked)
        assert len({id(one) for one in got}) == 1
        assert await shared.get("model") is got[0]
        assert len(built) == 1
        assert (built[0] is threading.main_thread()) != sync
        await shared.aclose()

    run(clock, main())


@both
def test_a_build_that_failed_is_made_again_for_the_next_one(clock: FakeClock, sync: bool) -> None:
    calls: list[int] = []

    def build() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("not yet")
        return "built"

    async def on_loop() -> str:
        return build()

    async def main() -> None:
        shared = resources(client=build if sync else on_loop)
        first = await asyncio.gather(*(shared.get("client") for _ in range(3)), return_exceptions=True)
        assert [type(one) for one in first] == [ConnectionError] * 3
        assert len(calls) == 1
        assert await shared.get("client") == "built"
        await shared.aclose()

    run(clock, main())


def test_who_stops_waiting_does_not_stop_the_build(clock: FakeClock) -> None:
    gate = Gate()

    async def build() -> str:
        await gate.pass_on_loop()
        return "built"

    async def main() -> None:
        shared = resources(client=build)
        impatient = asyncio.create_task(shared.get("client"))
        patient = asyncio.create_task(shared.get("client"))
        await until(gate.entered.is_set)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        gate.opened.set()
        assert await patient == "built"
        await shared.aclose()

    run(clock, main())


def make_text() -> str:
    return "made"


def test_a_factory_may_be_named(clock: FakeClock) -> None:
    async def main() -> None:
        shared = resources(text="tests.runtime.test_resources:make_text", gone="tests.runtime.nowhere:make")
        assert await shared.get("text") == "made"
        with pytest.raises(SettingsError, match="nowhere"):
            await shared.get("gone")
        with pytest.raises(SettingsError, match="'other'"):
            await shared.get("other")
        await shared.aclose()

    run(clock, main())


def test_a_sync_factory_may_return_what_is_to_be_awaited(clock: FakeClock) -> None:
    async def connect(to: str) -> str:
        return f"connected to {to}"

    async def main() -> None:
        shared = resources(client=lambda: connect("db"))
        assert await shared.get("client") == "connected to db"
        await shared.aclose()

    run(clock, main())


def test_a_factory_that_raises_what_futures_cannot_hold(clock: FakeClock) -> None:
    def build() -> None:
        raise StopIteration

    async def main() -> None:
        shared = resources(client=build)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await shared.get("client")
        await shared.aclose()

    run(clock, main())


@both
def test_a_factory_that_says_cancelled_or_exit_is_an_error(clock: FakeClock, sync: bool) -> None:
    """[D047] Whoever asks was not cancelled, nor is the worker to end."""
    errors: list[BaseException] = [asyncio.CancelledError(), SystemExit(2), KeyboardInterrupt()]

    def build() -> None:
        raise errors.pop(0)

    async def on_loop() -> None:
        build()

    async def main() -> None:
        shared = resources(client=build if sync else on_loop)
        for message in ("was cancelled by its factory", "SystemExit", "KeyboardInterrupt"):
            with pytest.raises(RuntimeError, match=message):
                await shared.get("client")
        await shared.aclose()

    run(clock, main())


@both
def test_a_build_that_hangs_fails_in_time_and_holds_up_no_other(clock: FakeClock, sync: bool) -> None:
    gate = Gate()

    async def hangs() -> None:
        gate.entered.set()
        await asyncio.get_running_loop().create_future()

    names = [f"n{number}" for number in range(5)]

    async def main() -> None:
        factories: dict[str, Any] = dict.fromkeys(names, gate.pass_in_thread if sync else hangs)
        shared = resources(**factories, other=lambda: "other")
        asked = [asyncio.create_task(shared.get(name)) for name in (*names, "n0")]
        await until(gate.entered.is_set)
        assert await shared.get("other") == "other"
        clock.advance(60.0)
        for error in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(error, TimeoutError)
            assert "was not built within 60 seconds" in str(error)
        again = asyncio.create_task(shared.get("n0"))
        gate.opened.set()
        if sync:
            assert await again is None
        await shared.aclose()
        await asyncio.wait({again})

    run(clock, main())


def test_a_timeout_of_the_factorys_own_is_passed_on(clock: FakeClock) -> None:
    async def main() -> None:
        shared = resources(client=lambda: throw(TimeoutError("connect")))
        with pytest.raises(TimeoutError, match=r"^connect$"):
            await shared.get("client")
        await shared.aclose()

    run(clock, main())


def throw(error: BaseException) -> Any:
    raise error


class Closing:
    """Something with one way to be closed."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log


class ClosedAsync(Closing):
    async def aclose(self) -> None:
        self.log.append(self.name)

    def close(self) -> None:
        raise AssertionError("the async way is the right one")


class ClosedInThread(Closing):
    def close(self) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.log.append(self.name)


class ClosedAwaiting(Closing):
    async def close(self) -> None:
        self.log.append(self.name)


class ClosedBadly(Closing):
    def close(self) -> None:
        self.log.append(self.name)
        raise OSError("it does not want to")


def test_what_was_built_is_closed_the_youngest_first(clock: FakeClock, caplog: Any) -> None:
    log: list[str] = []
    pool = ThreadPoolExecutor(1)

    async def main() -> None:
        shared = resources(
            first=lambda: ClosedAsync("first", log),
            bad=lambda: ClosedBadly("bad", log),
            second=lambda: ClosedInThread("second", log),
            third=lambda: ClosedAwaiting("third", log),
            never=lambda: pytest.fail("nobody asks for it"),
            plain=lambda: {"nothing": "to close"},
            pool=lambda: pool,
        )
        for name in ("first", "bad", "second", "third", "plain", "pool"):
            await shared.get(name)
        await shared.aclose()
        assert log == ["third", "second", "bad", "first"]
        await shared.aclose()
        assert len(log) == 4
        with pytest.raises(RuntimeError, match="the worker ends"):
            await shared.get("first")
        with pytest.raises(RuntimeError):
            pool.submit(print)

    caplog.set_level(logging.ERROR)
    run(clock, main())
    assert "'bad' could not be closed" in caplog.text


def test_a_close_that_hangs_is_left(clock: FakeClock, caplog: Any) -> None:
    closing = asyncio.Event()

    class Hangs:
        async def aclose(self) -> None:
            closing.set()
            await asyncio.get_running_loop().create_future()

    async def main() -> None:
        shared = resources(client=Hangs)
        await shared.get("client")
        ending = asyncio.create_task(shared.aclose())
        await closing.wait()
        clock.advance(10.0)
        await ending

    run(clock, main())
    assert "'client' could not be closed" in caplog.text


class ClosedOddly:
    """What closing it raises is no error, in a thread or on the loop."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def close(self) -> None:
        raise self.error


class ClosedOddlyOnLoop(ClosedOddly):
    async def aclose(self) -> None:
        raise self.error


class OutOfContext:
    """As the stand-ins of some frameworks: whatever is asked of it raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("outside of a request")


@pytest.mark.parametrize(
    "odd",
    [
        OutOfContext,
        *(
            lambda kind=kind, error=error: kind(error())
            for kind in (ClosedOddly, ClosedOddlyOnLoop)
            for error in (SystemExit, KeyboardInterrupt, asyncio.CancelledError, StopIteration, GeneratorExit)
        ),
    ],
)
def test_whatever_closing_raises_the_others_are_closed(
    clock: FakeClock, odd: Callable[[], Any], caplog: Any
) -> None:
    log: list[str] = []

    async def main() -> None:
        shared = resources(good=lambda: ClosedAsync("good", log), odd=odd)
        await shared.get("good")
        await shared.get("odd")
        await shared.aclose()

    run(clock, main())
    assert log == ["good"]
    assert "'odd' could not be closed" in caplog.text


def test_a_close_that_refuses_to_be_cancelled_is_left(clock: FakeClock) -> None:
    closing = asyncio.Event()
    log: list[str] = []

    class Refuses:
        async def aclose(self) -> None:
            closing.set()
            while not log:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.get_running_loop().create_future()

    async def main() -> None:
        shared = resources(good=lambda: ClosedAsync("good", log), client=Refuses)
        await shared.get("good")
        await shared.get("client")
        ending = asyncio.create_task(shared.aclose())
        await closing.wait()
        clock.advance(10.0)
        await ending
        assert log == ["good"]
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    run(clock, main())


def test_a_build_under_way_ends_with_the_worker(clock: FakeClock) -> None:
    gate = Gate()

    async def build() -> None:
        gate.entered.set()
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        shared = resources(client=build)
        asked = asyncio.create_task(shared.get("client"))
        await until(gate.entered.is_set)
        await shared.aclose()
        with pytest.raises(asyncio.CancelledError):
            await asked

    run(clock, main())


class Uncancellable(asyncio.Future[None]):
    def cancel(self, msg: object = None) -> bool:
        raise ValueError("this cannot be cancelled")


@pytest.mark.parametrize("where", ["build", "close"])
def test_what_breaks_whoever_cancels_it_keeps_no_other_from_being_closed(
    clock: FakeClock, caplog: Any, where: str
) -> None:
    log: list[str] = []
    waited: list[Uncancellable] = []

    async def wait() -> None:
        waited.append(Uncancellable())
        await waited[0]

    class Waits:
        aclose = staticmethod(wait)

    async def main() -> None:
        shared = resources(good=lambda: ClosedAsync("good", log), odd=wait if where == "build" else Waits)
        await shared.get("good")
        asked = asyncio.create_task(shared.get("odd"))
        await (until(lambda: bool(waited)) if where == "build" else asked)
        ending = asyncio.create_task(shared.aclose())
        try:
            await until(lambda: bool(waited) and (where == "close" or "cannot be cancelled" in caplog.text))
            clock.advance(10.0)
            await ending
            assert log == ["good"]
        finally:
            waited[0].set_result(None)
        with contextlib.suppress(asyncio.CancelledError):
            await asked

    run(clock, main())
    assert "cannot be cancelled" in caplog.text
