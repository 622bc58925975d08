"""What the handlers of a worker share: clients, models, pools. Built once, when it is first asked for.

Owns the building and the closing, and how long they may take. Refuses to know what is built. Belongs to one event
loop, the worker's.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, Final

from task_tracker.call_threads import Share
from task_tracker.handlers import HandlerRegistry
from task_tracker.worker.calls import Calls, cancel, look_at
from task_tracker.worker.running import is_async

__all__ = ["Resources"]

_log = logging.getLogger("task_tracker")

_CLOSERS: Final = ("aclose", "close", "shutdown")
"""How things are closed: the first of these that one has is called, without arguments."""
BUILD_SECONDS: Final = 600.0
CLOSE_SECONDS: Final = 10.0
_THREADS: Final = 4


class Resources:
    """By name, from the factories of ``registry``.

    However many ask at once, there is one build; all of them get what comes of it, also if it fails. Whoever asks
    after a failure starts another build. Sync factories run on a thread. A build that takes longer than
    ``build_seconds`` has failed, with TimeoutError; a thread in which it hangs is not waited for, and keeps others of
    the same name from being built until it ends.
    """

    def __init__(
        self,
        registry: HandlerRegistry,
        *,
        build_seconds: float = BUILD_SECONDS,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        self._registry = registry
        self._build_seconds = build_seconds
        self._close_seconds = close_seconds
        self._builds: dict[str, asyncio.Task[Any]] = {}
        # One for each that may hang while it is built, and one for each that may hang while it is closed.
        self._calls = Calls(max(_THREADS, 2 * len(registry.resources())))
        self._is_closed = False

    async def get(self, name: str) -> Any:
        """Return the resource. Raises what its factory raised, SettingsError for a name that nobody registered.

        Cancelling the wait does not cancel the build: others may wait for it.
        """
        if self._is_closed:
            raise RuntimeError(f"the worker ends, resource {name!r} is not built any more")
        build = self._builds.get(name)
        if build is None:
            build = asyncio.create_task(self._build(name), name=f"building {name}")
            self._builds[name] = build
            build.add_done_callback(look_at)
            build.add_done_callback(lambda done: self._forget_failed(name, done))
        return await asyncio.shield(build)

    async def aclose(self) -> None:
        """Close what was built, the youngest first; what hangs is left. Builds under way are cancelled.

        Twice is safe.
        """
        self._is_closed = True
        builds, self._builds = self._builds, {}
        for name, build in reversed(builds.items()):
            cancel(build)  # does nothing to those that are done
            await asyncio.wait({build}, timeout=self._close_seconds)
            if build.done() and not build.cancelled() and build.exception() is None:
                await self._close(name, build.result())
        self._calls.end()

    async def _build(self, name: str) -> Any:
        limit = asyncio.timeout(self._build_seconds)
        try:
            async with limit:
                return await self._made(name)
        except TimeoutError as error:
            if not limit.expired():
                raise  # its factory's own
            raise TimeoutError(
                f"resource {name!r} was not built within {self._build_seconds:g} seconds"
            ) from error
        except (SystemExit, KeyboardInterrupt) as error:  # these would end the loop
            raise RuntimeError(f"the factory of resource {name!r} raised {error!r}") from error
        except asyncio.CancelledError as error:
            if self._is_closed:
                raise
            # Whoever asked was not cancelled, and must not look as if.
            raise RuntimeError(f"the build of resource {name!r} was cancelled by its factory") from error

    async def _made(self, name: str) -> Any:
        share = Share(name, 1)
        factory = await self._calls.make(
            lambda: self._registry.factory(name), share
        )  # it may have to be imported
        if is_async(factory):
            return await factory()
        made = await self._calls.make(lambda: _called(factory), share)
        return await made if inspect.isawaitable(made) else made

    def _forget_failed(self, name: str, build: asyncio.Task[Any]) -> None:
        failed = build.cancelled() or build.exception() is not None
        if failed and self._builds.get(name) is build:
            del self._builds[name]

    async def _close(self, name: str, resource: Any) -> None:
        closing = asyncio.create_task(self._closed(resource), name=f"closing {name}")
        closing.add_done_callback(look_at)
        error: BaseException | None = None
        try:
            await asyncio.wait({closing}, timeout=self._close_seconds)
            if closing.done():
                error = closing.exception()
            else:
                error = TimeoutError(f"it does not end within {self._close_seconds:g} seconds")
        finally:
            cancel(closing)
        if error is not None:  # the others are to be closed all the same
            _log.error(
                "resource %r could not be closed",
                name,
                exc_info=error,
                extra={"event": "resource_close_failed", "resource": name},
            )

    async def _closed(self, resource: Any) -> None:
        try:
            closer = next(
                (found for word in _CLOSERS if callable(found := getattr(resource, word, None))), None
            )
            if closer is None:
                return
            done = closer() if is_async(closer) else await self._calls.make(closer)
            if inspect.isawaitable(done):
                await done
        except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            # These would end the loop, or look as if somebody had cancelled the end of the worker.
            raise RuntimeError(f"closing it raised {error!r}") from error


def _called(factory: Callable[[], Any]) -> Any:
    try:
        return factory()
    except StopIteration as error:
        raise RuntimeError("the factory raised StopIteration") from error  # a future cannot hold that one
