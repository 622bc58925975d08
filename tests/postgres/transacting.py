"""What the tests of transactions share: attempts of handlers that are told block by block what to do, and a table.

Each script runs as a coroutine and as a plain function: the two contexts have to do the same.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from task_tracker import HandlerRegistry, TaskRecord, TaskTracker
from task_tracker.store import Lease, Stored
from task_tracker.worker import Ended, Executor, Resources
from task_tracker.worker.hooks import Event, Hooks
from tests.core.support import OWNER
from tests.postgres.cutting import Scissors, cut_opener
from tests.postgres.grounds import Ground
from tests.runtime.handling import BODIES

HANDLING = "tests.runtime.handling"
PATIENCE_SECONDS = 60.0


def nothing(_: Any) -> None:
    """Do nothing in a block."""


def complete(tx: Any) -> None:
    """Have a block end the task."""
    tx.complete({"rows": 1}, resource_id="kb-1")


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of ``ctx.transaction()``: the numbers that it writes, and what else is done in it."""

    numbers: tuple[int, ...] = ()
    inside: Callable[[Any], object] = nothing
    after: Callable[[Any], object] = nothing
    """Called with the context once the block has ended."""


def body(
    *blocks: Block,
    sync: bool,
    result: object = "returned",
    catch: type[BaseException] | tuple[type[BaseException], ...] = (),
) -> Callable[..., Any]:
    """Return a handler, or a hook, of these blocks; an error of type ``catch`` of theirs it survives."""

    async def on_loop(ctx: Any, record: Any = None) -> Any:
        for block in blocks:
            try:
                async with ctx.transaction() as tx:
                    for number in block.numbers:
                        await tx.connection.execute("INSERT INTO numbers (n) VALUES (%s)", [number])
                    block.inside(tx)
            except catch as error:
                CAUGHT.append(error)
            block.after(ctx)
        return result

    def in_thread(ctx: Any, record: Any = None) -> Any:
        for block in blocks:
            try:
                with ctx.transaction() as tx:
                    for number in block.numbers:
                        tx.connection.execute("INSERT INTO numbers (n) VALUES (%s)", [number])
                    block.inside(tx)
            except catch as error:
                CAUGHT.append(error)
            block.after(ctx)
        return result

    return in_thread if sync else on_loop


CAUGHT: list[BaseException] = []


class Bench:
    """A store with a table ``numbers`` beside it, and an executor whose attempts are run one by one."""

    def __init__(
        self, ground: Ground, *, sync: bool, hook: Callable[..., Any] | None = None, **options: Any
    ) -> None:
        CAUGHT.clear()
        self.ground = dataclasses.replace(
            ground,
            dsn=psycopg.conninfo.make_conninfo(ground.dsn, options=f'-c search_path="{ground.names.schema}"'),
        )
        self.sync = sync
        self.scissors = Scissors()
        self.store = self.ground.store(
            lease_seconds=30, open_connection=cut_opener(self.ground, self.scissors)
        )
        self.other = self.ground.store(lease_seconds=30)
        self.events: list[Event] = []
        registry = HandlerRegistry()
        if hook is not None:
            BODIES["hook"] = hook
            options["on_failure"] = f"{HANDLING}:{'hook_in_thread' if sync else 'hook_on_loop'}"
        self.hook_seconds = options.pop("hook_seconds", 30.0)
        registry.register("t", handler=f"{HANDLING}:{'in_thread' if sync else 'on_loop'}", **options)
        self.registry = registry
        self.tracker = TaskTracker(self.store, handlers=registry, retention=None)
        self.executor: Executor | None = None

    def submit(self, does: Callable[..., Any]) -> TaskRecord:
        """Submit a task whose handler ``does`` this."""
        task_id = self.tracker.clock.new_id(self.tracker.clock.now())
        BODIES[task_id] = does
        return self.tracker.submit("t", task_id, task_id=task_id, **OWNER).record

    def claim(self, task: TaskRecord) -> tuple[Lease, Stored]:
        claimed = self.store.claim(task.key, holder="test")
        assert claimed is not None
        return claimed

    def run(self, does: Callable[..., Any]) -> tuple[Ended, TaskRecord]:
        """Run one attempt of a new task; return what became of it, and the record as the store has it."""
        task = self.submit(does)
        return self.run_claimed(self.claim(task))

    def run_claimed(self, claimed: tuple[Lease, Stored]) -> tuple[Ended, TaskRecord]:
        async def main() -> Ended:
            self.executor = Executor(
                self.tracker,
                self.registry,
                Resources(self.registry),
                hooks=Hooks(self.events.append),
                hook_seconds=self.hook_seconds,
            )
            ended = await self.executor.execute(*claimed)
            if ended.handler_ended is not None:
                await ended.handler_ended
            await self.executor.aclose()
            return ended

        return asyncio.run(main()), self.stored(claimed[0])

    def stored(self, of: Any) -> TaskRecord:
        """The record of what has a key, as the store has it."""
        answer = self.other.get(of.key)
        assert isinstance(answer, Stored)
        return answer.record

    def numbers(self) -> list[int]:
        """What is committed."""
        return [n for (n,) in self.ground.run("SELECT n FROM {schema}.numbers ORDER BY n")]

    def take_over(self) -> None:
        """Have somebody else take the only task over."""
        self.ground.lapse(1000)
        (expired,) = self.other.expired()
        assert self.other.take_over(expired, holder="somebody else", count_attempt=False) is not None

    def sessions_in_transactions(self) -> int:
        ((number,),) = self.ground.run(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state LIKE 'idle in transaction%%'",
            self.ground.names.schema,
        )
        return int(number)

    def terminate(self, tx: Any) -> None:
        """End the session of a transaction, as an administrator or a restart does."""
        self.ground.run("SELECT pg_terminate_backend(%s, 10000)", tx.connection.info.backend_pid)


@contextmanager
def bench(ground: Ground, *, sync: bool, **options: Any) -> Iterator[Bench]:
    """Give a bench; nothing of it is left."""
    ground.run(
        "CREATE TABLE {schema}.numbers (n int, UNIQUE (n) DEFERRABLE INITIALLY DEFERRED, CHECK (n >= 0))"
    )
    made = Bench(ground, sync=sync, **options)
    try:
        with closing(made.store), closing(made.other):
            yield made
        # The server notices a moment later that a connection was closed.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while made.sessions_in_transactions():
            assert time.monotonic() < deadline, "a session is left in a transaction"
    finally:
        ground.run("DROP TABLE {schema}.numbers")
