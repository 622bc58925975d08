"""The end of a shift, for however many wait for it.

Owns that there is one end only, that it goes on while anybody waits, and that it comes soon when nobody does any more.
Refuses to know in what order things end: the shift does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from task_tracker.call_threads import NoThread
from task_tracker.worker.calls import Calls, look_at

__all__ = ["Stopping", "finish_all"]

_SHORTEST_SHARE: Final = 0.1
"""Of the time for all parts, what each has at least."""


class Stopping:
    """Made on the loop of what stops. ``stop`` is awaited once."""

    def __init__(self, stop: Callable[[], Awaitable[int]]) -> None:
        async def stopped() -> int:
            return await stop()

        self._waiting = 0
        self._task = asyncio.get_running_loop().create_task(stopped(), name="task_tracker stop")
        self._task.add_done_callback(look_at)

    async def wait(self) -> int:
        """Return what it returns. If all who wait are cancelled it is cut short, for which the last of them waits."""
        self._waiting += 1
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._waiting == 1 and not self._task.done():
                self._task.cancel()
                await asyncio.wait({self._task})  # it has bounds of its own; cancelled again, nobody waits
            raise
        finally:
            self._waiting -= 1


async def finish_all(parts: Sequence[Callable[[float], object]], seconds: float) -> None:
    """Call ``parts``, each with the seconds that it has, one after the other in a thread: they may hang.

    Cancelled, or without any thread, all are told and none is waited for.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    ending = Calls(1)
    try:
        for finish in parts:
            left = max(seconds * _SHORTEST_SHARE, ends_at - loop.time())
            await ending.make(partial(finish, left))
    except (asyncio.CancelledError, NoThread) as error:
        for finish in parts:
            finish(0.0)
        if isinstance(error, asyncio.CancelledError):
            raise
    finally:
        ending.end()
