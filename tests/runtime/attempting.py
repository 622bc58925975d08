"""What the tests of attempts share: an event loop whose time stands still, and attempts that are claimed and run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from stores import InMemoryTaskStore
from task_tracker import HandlerRegistry, TaskRecord, TaskStatus, TaskTracker
from task_tracker.clock import Clock
from task_tracker.records import TaskKey
from task_tracker.store import Lease, LeaseStore, Stored
from task_tracker.testing import FakeClock, FaultyStore
from task_tracker.wakeups import WakeUp
from task_tracker.worker import BlockingTaskContext, Ended, Executor, Resources, TaskContext
from task_tracker.worker.hooks import Event, Hooks
from tests.runtime.handling import BEGUN, BODIES

T = TypeVar("T")

PATIENCE = 30.0
"""Real seconds after which a test gives up. Never reached when all is well."""
OWNER = {"account_id": "acme", "user_id": "alice"}
HANDLING = "tests.runtime.handling"


class ClockLoop(asyncio.SelectorEventLoop):
    """An event loop that knows no other time than the clock's: its timers fire when a test advances it."""

    def __init__(self, clock: FakeClock) -> None:
        self._test_clock = clock
        super().__init__()

    def time(self) -> float:
        return self._test_clock.monotonic()


def run(clock: FakeClock, main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` on such a loop."""
    with asyncio.Runner(loop_factory=lambda: ClockLoop(clock)) as runner:
        loop = runner.get_loop()
        task = loop.create_task(main)
        # Whoever waits for a time that does not come is told by a clock that moves by itself.
        alarm = threading.Timer(PATIENCE, lambda: loop.call_soon_threadsafe(task.cancel))
        alarm.start()
        try:
            return loop.run_until_complete(task)
        finally:
            alarm.cancel()
            alarm.join()


async def until(condition: Callable[[], object]) -> None:
    """Let everything on this loop go on until ``condition`` holds. Other threads may be waited for."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0)


class Bench:
    """A tracker on a store, a registry, and an executor made when it is first asked for.

    Nobody renews leases here, so they last; a test of their end gives ``lease_seconds``.
    """

    def __init__(
        self,
        clock: Clock,
        store: LeaseStore | None = None,
        *,
        lease_seconds: float = 1_000_000.0,
        wake_up: WakeUp | None = None,
        **options: Any,
    ) -> None:
        self.clock = clock
        self.inner = (
            store if store is not None else InMemoryTaskStore(lease_seconds=lease_seconds, clock=clock)
        )
        self.store = FaultyStore(self.inner)
        self.tracker = TaskTracker(self.store, clock=clock, retention=None, wake_up=wake_up)
        self.registry = HandlerRegistry()
        self.events: list[Event] = []
        self._options = options
        self._executor: Executor | None = None
        self._resources: Resources | None = None
        self._attempts: list[asyncio.Task[Ended]] = []

    @property
    def executor(self) -> Executor:
        if self._executor is None:
            self._resources = Resources(self.registry)
            self._executor = Executor(
                self.tracker,
                self.registry,
                self._resources,
                hooks=Hooks(self.events.append),
                **self._options,
            )
        return self._executor

    def outcomes(self) -> list[object]:
        """What was told of ended attempts."""
        return [event.facts["outcome"] for event in self.events if event.name == "attempt_ended"]

    # ---- tasks ---------------------------------------------------------------------------------------

    def handler(
        self,
        task_type: str = "t",
        *,
        sync: bool = False,
        hook: str | None = None,
        imported: bool = True,
        **options: Any,
    ) -> None:
        """Register a handler; ``hook`` is "loop" or "thread". ``imported``: as those of a worker that has begun."""
        on_failure = None
        if hook is not None:
            on_failure = f"{HANDLING}:{'hook_on_loop' if hook == 'loop' else 'hook_in_thread'}"
        self.registry.register(
            task_type,
            handler=f"{HANDLING}:{'in_thread' if sync else 'on_loop'}",
            on_failure=on_failure,
            **options,
        )
        if imported:
            handler = self.registry.get(task_type, options.get("version", 1))
            assert handler is not None
            handler.load()

    def claim(
        self, does: Callable[..., Any] | None = None, task_type: str = "t", **fields: Any
    ) -> tuple[Lease, Stored]:
        """Store a task whose handler ``does`` this, and claim it."""
        now = self.clock.now()
        task_id = self.clock.new_id(now)
        if does is not None:
            BODIES[task_id] = does
        record = TaskRecord(
            task_id=task_id,
            task_type=task_type,
            status=TaskStatus.PENDING,
            created_at=now,
            updated_at=now,
            account_id=OWNER["account_id"],
            user_id=OWNER["user_id"],
            payload_json=f'"{task_id}"'.encode(),
            handler_version=1,
        ).changed(**fields)
        self.inner.create(record)
        return self.claim_again(record.key)

    def claim_again(self, key: TaskKey) -> tuple[Lease, Stored]:
        claimed = self.inner.claim(key, holder="test")
        assert claimed is not None
        return claimed

    def start(self, claimed: tuple[Lease, Stored]) -> asyncio.Task[Ended]:
        """Begin an attempt, as a worker does: what begins at once does so before the task that is returned."""
        attempt = asyncio.create_task(self.executor.see_through(self.executor.begin(*claimed)))
        self._attempts.append(attempt)
        return attempt

    async def begin(self, claimed: tuple[Lease, Stored]) -> asyncio.Task[Ended]:
        """Begin an attempt, and return it once its handler runs."""
        attempt = self.start(claimed)
        await until(lambda: claimed[0].key.task_id in BEGUN)
        await self.rest()
        return attempt

    async def attempt(self, does: Callable[..., Any] | None = None, **fields: Any) -> Ended:
        """Claim a task, run an attempt, and return what became of it."""
        return await self.start(self.claim(does, **fields))

    def stored(self, key: TaskKey | Lease) -> TaskRecord:
        """The record as the store has it."""
        answer = self.inner.get(key.key if isinstance(key, Lease) else key)
        assert isinstance(answer, Stored)
        return answer.record

    # ---- time ----------------------------------------------------------------------------------------

    async def advance(self, seconds: float) -> None:
        """Let time pass on the clock and on the loop."""
        await self.rest()
        assert isinstance(self.clock, FakeClock)
        self.clock.advance(seconds)
        await self.rest()

    async def rest(self) -> None:
        """Let everything on the loop go as far as it can without time or other threads."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def close(self) -> None:
        executor = self.executor
        executor.interrupt()
        await self.rest()
        for attempt in self._attempts:
            attempt.cancel()
        await asyncio.gather(*self._attempts, return_exceptions=True)
        closing = asyncio.create_task(executor.aclose())
        await self.rest()
        if not closing.done() and isinstance(self.clock, FakeClock):
            self.clock.advance(60)  # something does not end, and is left
        await closing
        assert self._resources is not None
        await self._resources.aclose()
        self.tracker.close()


class Gate:
    """A place in a handler at which it waits, on the loop or in a thread."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    async def pass_on_loop(self) -> None:
        self.entered.set()
        await until(self.opened.is_set)

    def pass_in_thread(self) -> None:
        self.entered.set()
        assert self.opened.wait(PATIENCE), "nobody opened the gate"


def attempted(
    clock: FakeClock, body: Callable[[Any], Any], *, sync: bool = False, **fields: Any
) -> tuple[Any, TaskRecord, Bench]:
    """Run one attempt to its end; return its outcome, the record, and the bench."""

    async def main() -> tuple[Any, TaskRecord, Bench]:
        bench = Bench(clock)
        bench.handler(sync=sync)
        ended = await bench.attempt(body, **fields)
        assert ended.record is not None
        await bench.close()
        return ended.outcome, ended.record, bench

    return run(clock, main())


async def for_ever(ctx: TaskContext) -> None:
    """A handler that ends only when it is told to."""
    await asyncio.get_running_loop().create_future()


def until_told(ctx: BlockingTaskContext) -> None:
    """The same in a thread: it looks all the time."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ctx.check()
    raise AssertionError("nobody told it to stop")
