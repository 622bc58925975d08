"""Imports of handlers, for attempts that wait for them.

Owns a thread per import, and the limit after which nobody waits any more. Refuses to let a slow import cost more than
it must: it is not part of any attempt's time, no task fails for it, and it delays tasks of its own kind only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from task_tracker.errors import SettingsError
from task_tracker.handlers import Handler
from task_tracker.worker.calls import Calls, Kept

__all__ = ["Imports"]

_Function = Callable[..., Any]


class _Import(NamedTuple):
    """One that is under way, and until when it is waited for, by the loop's clock."""

    task: asyncio.Task[_Function | None]
    until: float


class Imports:
    """For each kind there is one import at a time, however many wait for it; they do so up to ``seconds``.

    One that takes longer goes on: a thread cannot be stopped, and may come to its end after all.
    """

    def __init__(self, kept: Kept, seconds: float) -> None:
        self.seconds: Final = seconds
        self._kept = kept
        self._under_way: dict[tuple[str, int, str], _Import] = {}

    async def handler(self, handler: Handler, told: asyncio.Event) -> _Function | None:
        """Return the function, None if ``told`` was set meanwhile.

        Raises SettingsError if it cannot be imported, TimeoutError if that takes too long, NoThread.
        """
        if handler.is_loaded:
            return handler.load()
        task, until = self._begin(handler, handler.handler, handler.load)
        waiting = asyncio.ensure_future(told.wait())
        try:
            left = until - asyncio.get_running_loop().time()
            await asyncio.wait({task, waiting}, timeout=max(left, 0.0), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if task.done():
            return task.result()
        if told.is_set():
            return None
        raise TimeoutError(f"{handler.handler} is being imported for more than {self.seconds:g} seconds")

    async def hook(self, handler: Handler, seconds: float) -> _Function | None:
        """Return the hook, None if there is none. Raises in the same way, TimeoutError after ``seconds``."""
        if handler.on_failure is None or handler.is_hook_loaded:
            return handler.load_on_failure()
        task, _ = self._begin(handler, handler.on_failure, handler.load_on_failure)
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise TimeoutError(f"{handler.on_failure} is being imported for more than {seconds:g} seconds")
        return task.result()

    def _begin(self, handler: Handler, reference: str, load: Callable[[], _Function | None]) -> _Import:
        name = *handler.kind, reference
        found = self._under_way.get(name)
        if found is None:
            until = asyncio.get_running_loop().time() + self.seconds
            task = self._kept.start(_in_a_thread(load), f"importing {reference}")
            found = self._under_way[name] = _Import(task, until)
            task.add_done_callback(lambda _: self._under_way.pop(name, None))
        return found


async def _in_a_thread(load: Callable[[], _Function | None]) -> _Function | None:
    calls = Calls(1)
    try:
        return await calls.make(lambda: _loaded(load))
    finally:
        calls.end()


def _loaded(load: Callable[[], _Function | None]) -> _Function | None:
    try:
        return load()
    except SettingsError:
        raise
    except BaseException as error:  # whatever it is, it is not to be raised on the loop
        raise SettingsError(f"it cannot be imported ({type(error).__name__}); mend the module") from error
