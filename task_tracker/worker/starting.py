"""How users' code is called: handlers and their ``on_failure``, async or in threads.

Owns the threads of sync code, and the list of what goes on although nobody waits for it any more. Refuses to judge
what the code does.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from task_tracker.call_threads import NoThread
from task_tracker.errors import SettingsError
from task_tracker.handlers import Handler
from task_tracker.records import TaskRecord
from task_tracker.redaction import redact_error
from task_tracker.worker.calls import Calls, Kept
from task_tracker.worker.context import BlockingTaskContext, Parts, TaskContext, entered
from task_tracker.worker.outcomes import Failed, Interrupted, Outcome, Raised
from task_tracker.worker.running import CoroutineRun, HandlerRun, ThreadRun, is_async

__all__ = ["Prepared", "Starter"]


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """A function, and what it is called with beside its context."""

    function: Callable[..., Any]
    argument: object
    cleanup_seconds: float


class Starter:
    """At most ``threads`` sync handlers, and as many sync hooks, run at once. What runs is ``kept``."""

    def __init__(self, kept: Kept, threads: int) -> None:
        self._kept = kept
        self._handler_calls = Calls(threads)
        # Hooks have threads of their own: a handler that nothing stops must not keep them from being called.
        self._hook_calls = Calls(threads)
        self._imported: set[tuple[str, int]] = set()
        self._left_behind: set[HandlerRun] = set()

    @property
    def left_behind(self) -> int:
        """How much goes on although nobody waits for it."""
        return len(self._left_behind)

    async def prepare(self, handler: Handler, record: TaskRecord, seconds: float) -> Prepared | Outcome:
        """Return what is to be called for ``record``, or how the attempt ends since that cannot be.

        An import may take ``seconds``.
        """
        try:
            if handler.kind not in self._imported:
                async with asyncio.timeout(seconds):
                    await self._hook_calls.make(handler.load)
                self._imported.add(handler.kind)
            function = handler.load()
        except NoThread:
            return Interrupted(began=False)
        except TimeoutError:
            return Failed(
                f"its import did not end within {seconds:g} seconds", "handler_unavailable", may_retry=True
            )
        except SettingsError as error:
            return Failed(redact_error(error), "handler_unavailable", may_retry=True)
        try:
            payload = handler.parse(record.payload_json)
        except Exception as error:  # noqa: BLE001  # validators are users' code
            return Failed(redact_error(error), "invalid_payload")
        return Prepared(function, payload, handler.cleanup_seconds)

    def start(self, prepared: Prepared, parts: Parts) -> HandlerRun:
        """Start a handler. Raises NoThread."""
        return self._start(prepared.function, prepared.argument, parts, self._handler_calls)

    async def call_hook(
        self, handler: Handler, record: TaskRecord, parts: Parts, seconds: float
    ) -> str | None:
        """Call ``on_failure``, for ``seconds`` at most; return what went wrong, None if nothing did.

        Raises what there was before it could be called.
        """
        async with asyncio.timeout(seconds):
            hook = await self._hook_calls.make(handler.load_on_failure)
        if hook is None:
            return None
        run = self._start(hook, record, dataclasses.replace(parts, is_ending=True), self._hook_calls)
        try:
            await asyncio.wait({run.ended}, timeout=seconds)
        finally:
            run.stop()  # does nothing to one that has ended
            self.leave(run)
        if not run.ended.done():
            return f"on_failure did not end within {seconds:g} seconds"
        did = run.ended.result()
        return redact_error(did.error) if isinstance(did, Raised) else None

    def leave(self, run: HandlerRun) -> None:
        """Count ``run`` until it ends, if it has not."""
        if not run.ended.done():
            self._left_behind.add(run)
            run.ended.add_done_callback(lambda _: self._left_behind.discard(run))

    def end(self) -> None:
        """Let everything come to its end, then the threads; wait for neither."""
        self._handler_calls.end()
        self._hook_calls.end()

    def _start(
        self, function: Callable[..., Any], argument: object, parts: Parts, threads: Calls
    ) -> HandlerRun:
        if is_async(function):
            context = TaskContext(parts)
            name = f"task {context.key.task_id}"
            return CoroutineRun(lambda: function(context, argument), name, entered(context), self._kept)
        blocking = BlockingTaskContext(parts)
        return ThreadRun(lambda: function(blocking, argument), entered(blocking), threads)
