"""ArqTasks: durable tasks run by a worker of ARQ's, beside its other functions.

Owns the function for ``WorkerSettings.functions`` and what has to be done around it: it starts and stops with ARQ's
worker, settles what workers that died have left, and sends messages again that were lost. A message is a hint: it lets
the store's next task run here, and which task it speaks of matters little. Refuses to let ARQ decide anything about a
task: neither its retries nor its results nor its time limit count.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from task_tracker.clock import Clock
from task_tracker.duty import Duty
from task_tracker.errors import SettingsError, StoreUnavailable
from task_tracker.handlers import HandlerRegistry
from task_tracker.queues.extras import extra
from task_tracker.records import TaskKey
from task_tracker.store import LeaseStore
from task_tracker.tracker import TaskTracker
from task_tracker.wakeups import Waking
from task_tracker.worker.executor import HOOK_SECONDS, IMPORT_SECONDS
from task_tracker.worker.hooks import Hook
from task_tracker.worker.readiness import WorkerStatus
from task_tracker.worker.single import OnDemandWorker
from task_tracker.worker.worker import CONCURRENCY, DRAIN_SECONDS, TIMEOUT_SECONDS

with extra("arq", "arq", "redis"):
    from arq.connections import RedisSettings
    from arq.worker import Function, func
    from arq.worker import Worker as ArqWorker

    from task_tracker.queues.messages import ArqWakeUp
    from task_tracker.queues.patience import Patience

__all__ = ["ArqTasks", "ArqWakeUp", "PendingSender"]

_log = logging.getLogger("task_tracker")

SEND_SECONDS: Final = 10.0
SEND_MOST: Final = 20
_STOP_SECONDS: Final = 5.0
_SETTLE_SECONDS: Final = 60.0
"""What an attempt has, beyond its own time, to be written; a shift waits no longer either."""
_TRIES: Final = 1_000_000
"""How often ARQ may deliver a message: one that a stop interrupted comes again, which is harmless and wanted."""
_FIRST_LOOK_SECONDS: Final = 1.0
_ARQ_MAIN: Final = ArqWorker.main.__qualname__
_REDIS: Final = "redis"
"""The name of a fact of the worker's."""


class ArqTasks:
    """Runs the tasks of ``tracker``'s store in workers of ARQ's::

        durable = ArqTasks(tracker)


        class WorkerSettings:
            functions = [durable.function, send_mail]
            redis_settings = durable.redis_settings
            on_startup = durable.on_startup
            on_shutdown = durable.on_shutdown

    ``tracker``'s ``wake_up`` has to be an :class:`ArqWakeUp`: that says where Redis is and which queue it is.
    ``concurrency``: how many of the ARQ worker's slots tasks may take at once; a message that comes beyond that takes
    none, and its task is announced again when one of them ends. ``send_seconds`` and ``send_most``: how often, and how
    many at most, waiting tasks are announced again; each attempt that ends announces two of the others then. The rest
    is as for :class:`task_tracker.worker.Worker`. Raises CapabilityMissing for a store without leases, SettingsError
    for values that cannot work.
    """

    def __init__(
        self,
        tracker: TaskTracker,
        registry: HandlerRegistry | None = None,
        *,
        concurrency: int = CONCURRENCY,
        default_timeout_seconds: float = TIMEOUT_SECONDS,
        drain_seconds: float = DRAIN_SECONDS,
        send_seconds: float = SEND_SECONDS,
        send_most: int = SEND_MOST,
        max_running: Mapping[str, int] | None = None,
        gates: Mapping[str, Callable[[], bool]] | None = None,
        hooks: Sequence[Hook] = (),
        name: str | None = None,
        rescue: bool = True,
    ) -> None:
        messages = tracker.waking.wake_up
        if not isinstance(messages, ArqWakeUp):
            raise SettingsError(
                f"the tracker's wake_up is {type(messages).__name__}, which sends no messages to ARQ; build the "
                "tracker with wake_up=ArqWakeUp(...)"
            )
        self._messages = messages
        self._worker = OnDemandWorker(
            tracker,
            registry,
            concurrency=concurrency,
            default_timeout_seconds=default_timeout_seconds,
            drain_seconds=drain_seconds,
            max_running=max_running,
            gates=gates,
            hooks=hooks,
            name=name,
            rescue=rescue,
        )
        registry = tracker.handlers if registry is None else registry
        store = tracker.access.leases
        assert store is not None, "a worker takes no other store"
        self._sender = PendingSender(
            store, registry, tracker.waking, tracker.clock, self._worker, seconds=send_seconds, most=send_most
        )
        self._patience = Patience(tracker.clock, messages.where, self._redis_is)
        self._clock = tracker.clock
        self._main: asyncio.Task[Any] | None = None
        self._stopping: asyncio.Task[int] | None = None
        self.timeout_seconds = longest_seconds(registry, default_timeout_seconds)
        """ARQ's time limit for the function: later than any limit of a task's own."""

    @property
    def function(self) -> Function:
        """What belongs into ``WorkerSettings.functions``."""
        return func(
            self._run,
            name=self._messages.function_name,
            timeout=self.timeout_seconds,
            keep_result=0,  # a result that is kept forbids the next message of its name
            max_tries=_TRIES,
        )

    @property
    def redis_settings(self) -> RedisSettings:
        """What belongs into ``WorkerSettings.redis_settings``: with it the worker outlives a Redis that is away."""
        return dataclasses.replace(
            self._messages.redis_settings, retry=self._patience, retry_on_error=Patience.ERRORS
        )

    @property
    def worker(self) -> OnDemandWorker:
        """The worker within: pause and resume types there, and report facts."""
        return self._worker

    def status(self) -> WorkerStatus:
        """Return what is known now; while Redis is away the fact ``redis`` says so. Asks nobody; from any thread."""
        return self._worker.status()

    # ---- life, as ARQ calls it -------------------------------------------------------------------------

    async def on_startup(self, ctx: dict[Any, Any]) -> None:
        """Begin. Raises SettingsError if ARQ's worker reads another queue than messages are sent to."""
        client = ctx["redis"]
        queue_name = client.default_queue_name
        if queue_name != self._messages.queue_name:
            raise SettingsError(
                f"this ARQ worker reads the queue {queue_name!r}, and messages go to {self._messages.queue_name!r}; "
                "give ArqWakeUp and WorkerSettings the same queue_name"
            )
        self._patience.restart()
        self._patience.spread(client)
        self._stopping = None
        await self._worker.start()
        self._sender.start(self._clock.jitter(min(_FIRST_LOOK_SECONDS, self._sender.seconds)))
        main = asyncio.current_task()
        # ARQ does not call on_shutdown if Redis is away when its worker ends. Called by somebody else, in a task that
        # ends at once, there is nothing to watch.
        if main is not None and getattr(main.get_coro(), "__qualname__", "") == _ARQ_MAIN:
            self._main = main
            main.add_done_callback(self._main_ended)

    async def on_shutdown(self, ctx: dict[Any, Any]) -> None:
        """Stop, as :meth:`Worker.stop` does."""
        await self._stopped(None)

    def _redis_is(self, away: str | None) -> None:
        if away is None:
            self._worker.withdraw(_REDIS)
        else:
            self._worker.report(_REDIS, False, away)

    def _main_ended(self, main: asyncio.Task[Any]) -> None:
        """ARQ's worker ends. Told to, it has cancelled what it runs; otherwise that may go on for a while."""
        self._ends(0.0 if main.cancelled() else None)

    def _ends(self, drain_seconds: float | None) -> None:
        self._patience.hurry()
        self._stopped(drain_seconds)

    def _stopped(self, drain_seconds: float | None) -> asyncio.Task[int]:
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(drain_seconds))
        return self._stopping

    async def _stop(self, drain_seconds: float | None) -> int:
        self._patience.hurry()
        sender_ends = asyncio.to_thread(self._sender.stop, _STOP_SECONDS)
        left, _ = await asyncio.gather(self._worker.stop(drain_seconds), sender_ends)
        return left

    # ---- the function ----------------------------------------------------------------------------------

    async def _run(self, ctx: dict[Any, Any], *ids: str) -> None:
        """Run the store's next task, whatever the message speaks of; raises nothing but CancelledError."""
        try:
            key = TaskKey(*ids)
        except TypeError:
            key = None
            _log.warning("a message of ARQ's holds no task's ids", extra={"event": "arq_message_odd"})
        try:
            visit = await self._worker.run_next(key)
        except asyncio.CancelledError:
            if self._main is not None and self._main.cancelling():
                self._ends(0.0)  # it may be long in ending: it may wait for Redis just now
            raise
        finally:
            # ARQ's worker drops everything as soon as one of its functions has ended without Redis.
            if self._stopping is not None:
                await asyncio.wait({self._stopping})
        _log.debug(
            "a message for task %s: %s",
            key.task_id if key is not None else "unknown",
            visit.word,
            extra={"event": "arq_message", "word": visit.word},
        )


class PendingSender(Duty):
    """Announces waiting tasks again, now and then: their messages may be lost."""

    def __init__(
        self,
        store: LeaseStore,
        registry: HandlerRegistry,
        waking: Waking,
        clock: Clock,
        worker: OnDemandWorker,
        *,
        seconds: float,
        most: int,
    ) -> None:
        super().__init__("sender of waiting tasks", clock)
        if isinstance(seconds, bool) or not 0 < seconds < float("inf"):
            raise SettingsError(f"send_seconds is {seconds!r}; give a finite number of seconds above 0")
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise SettingsError(f"send_most is {most!r}; give a whole number of 1 or more")
        self._store = store
        self._kinds = registry.kinds()
        self._waking = waking
        self._worker = worker
        self.seconds = seconds
        """How often it looks."""
        self._most = most
        self._is_first = True

    def start(self, delay_seconds: float = 0.0) -> None:
        """Begin, with whatever waits."""
        self._is_first = True
        super().start(delay_seconds)

    def run_once(self) -> float | None:
        """Look once."""
        try:
            self.send()
        except StoreUnavailable as error:
            _log.debug("waiting tasks are not announced: %s", error, extra={"event": "send_failed"})
        return self._clock.jitter(self.seconds)

    def on_error(self) -> float:
        """Whatever it was, the next look is soon."""
        return self._clock.jitter(self.seconds)

    def send(self) -> int:
        """Announce what waits here and now; return how many tasks. Raises StoreUnavailable.

        Nothing while all slots are taken: each attempt that ends announces the next ones then.
        """
        if not self._worker.has_room or not self._kinds:
            return 0
        # What was submitted a moment ago has a message of its own on its way.
        grace = 0.0 if self._is_first else self.seconds / 2
        waiting = self._store.unclaimed(task_types=self._kinds, older_than_seconds=grace, limit=self._most)
        now = self._clock.now()
        records = [stored.record for stored in waiting]
        keys = [record.key for record in records if record.not_before is None or record.not_before <= now]
        if len(records) == self._most:
            self._worker.owe()
            # If none of these may run yet, others may stand behind them. A message lets the store choose.
            keys = keys or [records[0].key]
        if not keys or self._waking.wake(keys):
            self._is_first = False
        return len(keys)


def longest_seconds(registry: HandlerRegistry, default_timeout_seconds: float) -> float:
    """Return after how many seconds every attempt is over, whatever its handler does: import, work, clean-up, hook."""
    handlers = registry.handlers()
    longest = max(
        (handler.timeout_seconds or default_timeout_seconds for handler in handlers),
        default=default_timeout_seconds,
    )
    cleanup = max((handler.cleanup_seconds for handler in handlers), default=0.0)
    return IMPORT_SECONDS + longest + cleanup + HOOK_SECONDS + _SETTLE_SECONDS
