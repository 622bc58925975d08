"""Patience: how a worker of ARQ's outlives a Redis that is away for a while.

Owns when a call to Redis is given up and when it is tried again. By itself ARQ's worker ends at the first call that
fails, and with it what it runs, and waits for ever for a server that is silent. With this its calls wait until Redis is
back, however long that takes; once the worker is to stop they give up soon, so that it does stop.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from task_tracker.clock import Clock
from task_tracker.queues.extras import extra
from task_tracker.redaction import redact_text

with extra("redis", "redis"):
    import redis
    from redis.asyncio.client import Pipeline, Redis
    from redis.asyncio.connection import AbstractConnection
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

__all__ = ["Patience"]

_T = TypeVar("_T")

_log = logging.getLogger("task_tracker")

_ANSWER_SECONDS: Final = 10.0
"""How long an answer may take; ARQ sends nothing that has to wait."""
_LAST_ANSWER_SECONDS: Final = 1.0
"""The same once the worker is to stop."""
_WITHIN: Final[contextvars.ContextVar[bool]] = contextvars.ContextVar("task_tracker_arq_call", default=False)
"""Whether this is a part of a call: the connecting within it, say."""
_SHORTEST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0


class Patience(Retry):
    """For ``RedisSettings(retry=..., retry_on_error=Patience.ERRORS)``; one for all connections of a worker.

    ``told`` is called with a sentence when Redis does not answer any more, and with None when it does again. A password
    that is refused is no outage: that is raised at once.
    """

    __slots__ = ("_away_since", "_clock", "_hurry", "_told", "_under_way", "_where")

    ERRORS: Final[list[type[Exception]]] = [redis.ConnectionError, redis.TimeoutError, OSError]

    def __init__(
        self, clock: Clock, where: str, told: Callable[[str | None], None] = lambda sentence: None
    ) -> None:
        super().__init__(NoBackoff(), -1)
        self._clock = clock
        self._where = where
        self._told = told
        self._away_since: float | None = None
        self.restart()

    def __deepcopy__(self, memo: dict[int, Any]) -> Patience:
        """Stay the one that it is: each connection copies what it is given."""
        return self

    def restart(self) -> None:
        """Begin anew: a worker begins."""
        self._hurry = asyncio.Event()
        self._under_way: set[asyncio.Timeout] = set()

    def hurry(self) -> None:
        """Give up at the first failure from now on: the worker is to stop. On the loop's thread."""
        if self._hurry.is_set():
            return
        self._hurry.set()
        latest = asyncio.get_running_loop().time() + _LAST_ANSWER_SECONDS
        for limit in self._under_way:
            when = limit.when()
            if not limit.expired() and (when is None or when > latest):
                limit.reschedule(latest)

    @property
    def away_seconds(self) -> float:
        """How long Redis has not answered; 0 while it does."""
        return 0.0 if self._away_since is None else self._clock.monotonic() - self._away_since

    def spread(self, client: Redis) -> None:
        """Have it hold where redis-py asks nobody whether to try again.

        That is what follows a new connection (a proxy takes connections though Redis behind it is away), and what
        follows a WATCH.
        """
        pool = client.connection_pool
        connect = pool.ensure_connection

        async def patient(connection: AbstractConnection) -> None:
            within = _WITHIN.set(True)  # that somebody takes connections does not mean that Redis answers
            try:
                await self.call_with_retry(lambda: connect(connection), lambda _: connection.disconnect())
            finally:
                _WITHIN.reset(within)

        def pipeline(transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
            return _CalmPipeline(pool, client.response_callbacks, transaction, shard_hint)

        # Of this client alone.
        pool.ensure_connection = patient  # type: ignore[method-assign]
        client.pipeline = pipeline  # type: ignore[method-assign]

    async def call_with_retry(self, do: Callable[[], Awaitable[_T]], fail: Callable[[Any], Any]) -> _T:
        """Return what ``do`` returns, once it does; ``fail`` makes ready for another try, or raises."""
        pause = _SHORTEST_PAUSE_SECONDS
        while True:
            try:
                answer = await self._answer(do)
            except redis.AuthenticationError:
                raise
            except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                self._is_away(error)
                await fail(error)
                if await self._is_over(pause):
                    raise
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                if not _WITHIN.get():
                    self._is_back()
                return answer

    async def _answer(self, do: Callable[[], Awaitable[_T]]) -> _T:
        seconds = _LAST_ANSWER_SECONDS if self._hurry.is_set() else _ANSWER_SECONDS
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                self._under_way.add(limit)
                within = _WITHIN.set(True)
                try:
                    return await do()
                finally:
                    _WITHIN.reset(within)
                    self._under_way.discard(limit)
        except TimeoutError as error:
            raise redis.TimeoutError(f"no answer within {seconds:g} s") from error

    async def _is_over(self, pause: float) -> bool:
        """Wait before the next try; True if there is to be none."""
        try:
            await asyncio.wait_for(self._hurry.wait(), self._clock.jitter(pause))
        except TimeoutError:
            return False
        return True

    def _is_away(self, error: Exception) -> None:
        if self._away_since is None:
            self._away_since = self._clock.monotonic()
            why = redact_text(str(error)) or type(error).__name__
            self._told(f"Redis at {self._where} does not answer: {why}")
            _log.warning(
                "Redis at %s does not answer (%s); the ARQ worker waits for it, and what it runs goes on",
                self._where,
                why,
                extra={"event": "arq_redis_away"},
            )

    def _is_back(self) -> None:
        if self._away_since is not None:
            seconds, self._away_since = self.away_seconds, None
            self._told(None)
            _log.info(
                "Redis at %s answers again after %.0f s",
                self._where,
                seconds,
                extra={"event": "arq_redis_back"},
            )


class _CalmPipeline(Pipeline):
    """A connection that is lost after a WATCH fails the transaction at its end, as a change of what is watched does.

    ARQ's worker is made for that, and for no error between the two.
    """

    _is_cut = False

    async def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command now; once the connection was lost on another one, where nothing is watched."""
        pipeline: Any = super()
        try:
            return await pipeline.immediate_execute_command(*args, **options)
        except redis.WatchError:
            self._is_cut = True
            answer = await pipeline.immediate_execute_command(*args, **options)
            self.watching = True  # commands still go out one by one until multi() is called
            return answer

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Execute the transaction, unless what was watched may have changed unseen. Raises WatchError."""
        if self._is_cut:
            self._is_cut = False
            await self.aclose()
            raise redis.WatchError("the connection was lost while keys were watched; nothing was changed")
        return await super().execute(raise_on_error)

    async def reset(self) -> None:
        """Begin anew. A server that is silent is not waited for: a connection that is closed watches nothing either."""
        pipeline: Any = super()
        try:
            async with asyncio.timeout(_LAST_ANSWER_SECONDS):
                await pipeline.reset()
        except (redis.TimeoutError, TimeoutError):
            self.watching = False
            if self.connection is not None:
                await self.connection.disconnect(nowait=True)
            await pipeline.reset()
