"""Worker: claims tasks of the kinds that it has handlers for and sees each attempt through.

Owns the settings and the life of a worker: blocking, embedded, or once. What belongs to one event loop is in
:mod:`task_tracker.worker.shift`. Refuses to own the tracker: whoever built it closes it, after the worker.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from task_tracker.errors import CapabilityMissing, SettingsError
from task_tracker.handlers import HandlerRegistry
from task_tracker.holdings import holder_name
from task_tracker.tracker import TaskTracker
from task_tracker.wakeups import WakeUp
from task_tracker.worker.alone import run_alone
from task_tracker.worker.heartbeat import check_rhythm
from task_tracker.worker.hooks import Hook, Hooks
from task_tracker.worker.limits import Limits
from task_tracker.worker.options import (
    check_flag,
    check_kind,
    check_name,
    check_poll_seconds,
    check_seconds,
    check_wake_up,
)
from task_tracker.worker.readiness import Facts, WorkerStatus
from task_tracker.worker.rescuing import Rescued
from task_tracker.worker.shift import Shift, Terms
from task_tracker.worker.slots import check_concurrency
from task_tracker.worker.stopping import Stopping

__all__ = ["Worker"]

_log = logging.getLogger("task_tracker")

CONCURRENCY: Final = 4
TIMEOUT_SECONDS: Final = 3600.0
DRAIN_SECONDS: Final = 30.0
POLL_SECONDS: Final = (0.05, 0.1)
"""The shortest and the longest pause between two looks. Looking costs a disk next to nothing; on a network mount,
or with many workers, take longer ones and a wake-up."""


class Worker:
    """Works on the tasks of ``tracker``'s store, with the handlers of ``registry`` (by itself the tracker's own).

    ``concurrency``: attempts at once. ``default_timeout_seconds``: how long an attempt may take if neither its task
    nor its handler says less. ``poll_seconds``: the shortest and the longest pause between two looks for work while
    there is none. ``drain_seconds``: how long attempts may go on once the worker is to stop. ``max_running`` and
    ``gates``: see :class:`task_tracker.worker.limits.Limits`. ``hooks``: functions that are told of every
    :class:`task_tracker.worker.hooks.Event`. ``name``: what others read of who holds a task. ``wake_up``: by itself
    the tracker's. ``rescue=False`` leaves the tasks of workers that stopped to other workers.

    Raises CapabilityMissing for a store without leases, SettingsError for values that cannot work.
    """

    def __init__(
        self,
        tracker: TaskTracker,
        registry: HandlerRegistry | None = None,
        *,
        concurrency: int = CONCURRENCY,
        default_timeout_seconds: float = TIMEOUT_SECONDS,
        poll_seconds: tuple[float, float] = POLL_SECONDS,
        drain_seconds: float = DRAIN_SECONDS,
        max_running: Mapping[str, int] | None = None,
        gates: Mapping[str, Callable[[], bool]] | None = None,
        hooks: Sequence[Hook] = (),
        name: str | None = None,
        wake_up: WakeUp | None = None,
        rescue: bool = True,
    ) -> None:
        if isinstance(getattr(tracker, "tracker", None), TaskTracker):
            raise SettingsError(
                "tracker is an AsyncTaskTracker; give the tracker behind it, its attribute tracker"
            )
        check_kind("tracker", tracker, TaskTracker)
        store = tracker.access.leases
        if store is None:
            raise CapabilityMissing(
                f"{type(tracker.store).__name__} has no leases, so a worker could not own what it works on; use the "
                "lease backend, or the memory backend within one process"
            )
        check_rhythm(store)
        registry = tracker.handlers if registry is None else registry
        check_kind("registry", registry, HandlerRegistry)
        registry.freeze()
        suffix = tracker.clock.new_token()[-6:]
        check_name(name)
        self._terms = Terms(
            tracker=tracker,
            store=store,
            registry=registry,
            concurrency=check_concurrency(concurrency),
            timeout_seconds=check_seconds("default_timeout_seconds", default_timeout_seconds),
            poll_seconds=check_poll_seconds(poll_seconds),
            limits=Limits(registry, max_running=max_running, gates=gates),
            hooks=Hooks.of(hooks, tracker.clock),
            wake_up=tracker.waking.wake_up if wake_up is None else check_wake_up(wake_up),
            rescue=check_flag("rescue", rescue),
            holder=lambda: name if name is not None else holder_name(suffix),
            instance=lambda: holder_name(suffix) if name is None else f"{name}:{suffix}",
            status=self.status,
        )
        self._drain_seconds = check_seconds("drain_seconds", drain_seconds, zero=True)
        self._facts = Facts(tracker.clock)
        self._shift: Shift | None = None
        self._stopping: Stopping | None = None
        self._state = "new"
        self._asking = threading.Lock()
        self._is_asked_to_stop = False

    @property
    def name(self) -> str:
        """What others read of who holds a task of this worker's."""
        return self._terms.holder()

    # ---- life ----------------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until SIGTERM or SIGINT (or :meth:`ask_to_stop`), drain, and return how many attempts were left behind.

        For a process of its own: has an event loop of its own. A second signal ends the draining at once. Elsewhere
        than in the main thread signals are not heard. What goes on although it was told to stop is not waited for:
        threads of ``asyncio.to_thread`` and coroutines that refuse to be cancelled count as left behind, too.
        """
        ended = run_alone(self._run())
        left: int = ended.value
        return max(left, ended.coroutines) + ended.threads  # coroutines of attempts are among those left

    async def start(self) -> None:
        """Begin to work on the running event loop. Asks no store, so it returns at once, whatever the store does.

        Raises RuntimeError if it works already, if its tracker is closed, or if there is no thread for it.
        """
        shift = self._begin()
        try:
            shift.start()
        except BaseException:
            await self._end(shift, 0.0, self._state)
            raise
        self._state = "working"
        _log.info(
            "worker %s works, %d attempts at once, on %s",
            self.name,
            self._terms.concurrency,
            ", ".join(f"{task_type} {version}" for task_type, version in self._terms.limits.registered)
            or "nothing",
            extra={"event": "worker_started", "holder": self.name},
        )

    async def stop(self, drain_seconds: float | None = None) -> int:
        """Claim nothing more, let what runs end, and return how many attempts were left behind.

        After ``drain_seconds`` (None: the worker's own) what still runs is told that the worker ends, and is waited
        for as long as its handler may clean up. Tasks of attempts that are left behind go to other workers once
        their leases expire. Heartbeats stop last. Safe if it does not work.

        Who calls it while it stops waits for the same end, which comes no later than he wants it. If all who wait are
        cancelled, what runs is told at once, and left behind if it has not ended about a second later.
        """
        shift = self._shift
        if shift is None:
            return 0
        seconds = (
            self._drain_seconds
            if drain_seconds is None
            else check_seconds("drain_seconds", drain_seconds, zero=True)
        )
        if self._stopping is None:
            self._state = "draining"
            _log.info(
                "worker %s drains, %d attempts run",
                self.name,
                shift.running,
                extra={"event": "worker_draining", "holder": self.name},
            )
        return await self._end(shift, seconds)

    async def rescue(self) -> Rescued:
        """Settle now what workers that stopped have left, once; say what became of it. Raises StoreUnavailable.

        A worker that works does that by itself, at every heartbeat.
        """
        if self._shift is not None:
            return await self._shift.rescue()
        state, shift = self._state, self._begin()
        try:
            return await shift.rescue()
        finally:
            await self._end(shift, 0.0, state)

    async def run_until_idle(self) -> int:
        """Settle what workers that stopped have left, then work until nothing waits; return how many attempts ended.

        On the running loop, without looking for work in the background. For tests and scripts. A handler that goes on
        although its attempt is over is not waited for, nor is a task for which it leaves no slot.
        """
        shift = self._begin()
        self._state = "working"
        try:
            return await shift.run_until_idle()
        finally:
            await self._end(shift, 0.0)

    def run_once(self) -> int:
        """Do the same from where there is no event loop."""
        ended: int = run_alone(self.run_until_idle()).value
        return ended

    def ask_to_stop(self) -> None:
        """Have :meth:`run` drain and return; again: at once. From any thread.

        If it does not work just then, the next :meth:`run` returns at once.
        """
        with self._asking:
            shift = self._shift
            if shift is None:
                self._is_asked_to_stop = True
                return
        with contextlib.suppress(RuntimeError):  # its loop has closed: it has stopped
            shift.loop.call_soon_threadsafe(shift.told)

    async def __aenter__(self) -> Self:
        """Start, and return the worker; leaving the block stops it."""
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        await self.stop()

    def _new_shift(self) -> Shift:
        return Shift(self._terms)

    def _begin(self) -> Shift:
        if self._shift is not None:
            raise RuntimeError("this worker works already; stop it first")
        ownership = self._terms.tracker.access.ownership
        if ownership is not None and ownership.holdings.closed:
            raise RuntimeError("the tracker of this worker is closed; build both anew")
        self._shift = shift = self._new_shift()
        return shift

    async def _end(self, shift: Shift, drain_seconds: float, state: str = "stopped") -> int:
        """Stop ``shift``, or wait with those who do already; return how many attempts were left behind."""
        if self._shift is not shift:
            return 0  # it has ended
        if self._stopping is None:
            self._stopping = Stopping(lambda: self._stop(shift, drain_seconds, state))
        else:
            shift.hurry_in(drain_seconds)
        return await self._stopping.wait()

    async def _stop(self, shift: Shift, drain_seconds: float, state: str) -> int:
        try:
            left = await shift.stop(drain_seconds)
        finally:
            self._state = state
            self._shift = self._stopping = None
        _log.info(
            "worker %s has stopped, %d attempts are left behind",
            self.name,
            left,
            extra={"event": "worker_stopped", "holder": self.name, "left": left},
        )
        return left

    async def _run(self) -> int:
        await self.start()
        shift = self._shift
        assert shift is not None
        with self._asking:
            is_asked, self._is_asked_to_stop = self._is_asked_to_stop, False
        if is_asked:
            shift.told()
        heard = []
        for number in (signal.SIGTERM, signal.SIGINT):
            # Not in the main thread, or no signals on this platform: ask_to_stop() is left.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                shift.loop.add_signal_handler(number, shift.told)
                heard.append(number)
        try:
            await shift.until_told()
            return await self.stop()
        finally:
            for number in heard:
                shift.loop.remove_signal_handler(number)

    # ---- asking --------------------------------------------------------------------------------------

    def status(self) -> WorkerStatus:
        """Return what is known now. Asks nobody, so it answers whatever hangs; from any thread."""
        shift, limits = self._shift, self._terms.limits
        facts = self._facts.all()
        if shift is None:
            return WorkerStatus(
                name=self.name,
                state=self._state,
                ready=False,
                slots=self._terms.concurrency,
                paused=tuple(limits.paused),
                gated=tuple(limits.gated),
                facts=facts,
            )
        return shift.status(self.name, self._state, facts)

    def report(self, name: str, ready: bool, detail: str = "", *, life_seconds: float = 60.0) -> None:
        """Add a fact of the embedding server's to :meth:`status`; it has to be said again within ``life_seconds``."""
        self._facts.report(name, ready, detail, life_seconds=life_seconds)

    def withdraw(self, name: str) -> None:
        """Take such a fact out again. Safe if there is none."""
        self._facts.withdraw(name)

    # ---- pausing -------------------------------------------------------------------------------------

    def pause(self, task_type: str) -> None:
        """Have this worker claim nothing of this type any more; what runs goes on. Twice is safe."""
        self._terms.limits.pause(task_type)

    def resume(self, task_type: str) -> None:
        """Have it claim this type again. Safe if it is not paused."""
        self._terms.limits.resume(task_type)
        shift = self._shift
        if shift is not None:
            shift.look()
