"""How users' code is called: handlers and their ``on_failure``, async or in threads, each with threads of their own.

Owns the threads of sync code, and the list of what goes on although nobody waits for it any more. Refuses to judge
what the code does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from task_tracker.errors import SettingsError
from task_tracker.handlers import Handler
from task_tracker.records import TaskRecord
from task_tracker.worker.calls import Calls, Kept
from task_tracker.worker.context import BlockingTaskContext, TaskContext, entered
from task_tracker.worker.importing import Imports
from task_tracker.worker.outcomes import Failed, Interrupted, Raised, error_text
from task_tracker.worker.parts import Parts
from task_tracker.worker.running import CoroutineRun, HandlerRun, ThreadRun, is_async
from task_tracker.worker.transactions import HookTransaction

__all__ = ["Function", "Starter"]

_log = logging.getLogger("task_tracker")

_SLOW_IMPORT_PAUSE_SECONDS: Final = 30.0
_FOREIGN_HOOKS: Final = 4
"""Hooks for tasks of other workers that run at once."""

Function = Callable[..., Any]
"""A handler's or a hook's, as it was imported."""


class Called(NamedTuple):
    """What came of the call of a hook."""

    problem: str | None = None
    """What went wrong, None if nothing did."""
    goes_on: HandlerRun | None = None
    """The hook, if it has not ended."""


class Starter:
    """At most ``threads`` sync handlers, and as many sync hooks, run at once. What runs is ``kept``.

    An import of a handler is waited for up to ``import_seconds``.
    """

    def __init__(self, kept: Kept, threads: int, import_seconds: float) -> None:
        self._kept = kept
        self.handler_calls = Calls(threads, prompt=True)  # none waits behind another: its time would begin
        # Hooks have threads of their own: a handler that nothing stops must not keep them from being called.
        self._hook_calls = Calls(threads)
        # So have hooks for tasks of workers that stopped: those take no slot, which would bound how many hang.
        self._foreign_hook_calls = Calls(_FOREIGN_HOOKS)
        self._imports = Imports(kept, import_seconds)
        self._left_behind: set[HandlerRun] = set()

    @property
    def left_behind(self) -> int:
        """How much goes on although nobody waits for it."""
        return len(self._left_behind)

    async def imported(
        self, handler: Handler, task_id: str, told: asyncio.Event
    ) -> Function | Failed | Interrupted | None:
        """Return the function of ``handler``, or how the attempt ends since there is none.

        None if ``told`` was set while it was imported. Raises NoThread.
        """
        try:
            return await self._imports.handler(handler, told)
        except TimeoutError as error:
            _log.warning("task %s is given back: %s", task_id, error, extra={"event": "import_slow"})
            return Interrupted(began=False, after=_SLOW_IMPORT_PAUSE_SECONDS)
        except SettingsError as error:
            return Failed(error_text(error), "handler_unavailable", may_retry=True)

    def start(
        self, handler: Handler, function: Function, record: TaskRecord, parts: Parts
    ) -> HandlerRun | Failed:
        """Start a handler, or return how the attempt ends since it cannot be. Raises NoThread, unless it is async."""
        try:
            payload = handler.parse(record.payload_json)
        except BaseException as error:  # noqa: BLE001  # validators are users' code
            return Failed(error_text(error), "invalid_payload")
        return self._start(function, payload, parts, self.handler_calls)

    async def call_hook(
        self,
        handler: Handler,
        record: TaskRecord,
        parts: Parts,
        transaction: HookTransaction,
        seconds: float,
        *,
        foreign: bool,
    ) -> Called:
        """Call ``on_failure``, for ``seconds`` at most; ``foreign``: of a task that another worker has left.

        Raises what there was before it could be called.
        """
        hook = await self._imports.hook(handler, seconds)
        if hook is None:
            return Called()
        threads = self._foreign_hook_calls if foreign else self._hook_calls
        run = self._start(hook, record, parts, threads, transaction)
        try:
            await asyncio.wait({run.ended}, timeout=seconds)
        finally:
            run.stop()  # does nothing to one that has ended
            self.leave(run)
        did = run.did
        if did is None:
            return Called(f"on_failure did not end within {seconds:g} seconds", run)
        if not isinstance(did, Raised):
            return Called()
        if not did.began:
            return Called(f"there was no thread free for on_failure within {seconds:g} seconds")
        return Called(error_text(did.error))

    def leave(self, run: HandlerRun) -> None:
        """Count ``run`` until it ends, if it has not."""
        if run.did is None:
            self._left_behind.add(run)
            run.ended.add_done_callback(lambda _: self._left_behind.discard(run))

    def end(self) -> None:
        """Let everything come to its end, then the threads; wait for neither."""
        self.handler_calls.end()
        self._hook_calls.end()
        self._foreign_hook_calls.end()

    def _start(
        self,
        function: Function,
        argument: object,
        parts: Parts,
        threads: Calls,
        transaction: HookTransaction | None = None,
    ) -> HandlerRun:
        if is_async(function):
            context = TaskContext(parts, transaction)
            name = f"task {context.key.task_id}"
            return CoroutineRun(lambda: function(context, argument), name, entered(context), self._kept)
        blocking = BlockingTaskContext(parts, transaction)
        return ThreadRun(lambda: function(blocking, argument), entered(blocking), threads)
