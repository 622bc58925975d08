"""The heartbeats of a worker: one thread that renews all its leases, apart from the event loop and the handlers.

Owns which leases the worker holds, and telling it about a lease that is lost or a task that is to be cancelled. A
handler that blocks the loop, or computes for an hour in a thread, costs no lease. Refuses to write records: the
attempt does.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Final

from task_tracker import defaults
from task_tracker.clock import Clock
from task_tracker.errors import SettingsError
from task_tracker.holdings import Holding, Holdings
from task_tracker.keeper import LeaseKeeper
from task_tracker.keyed_locks import KeyedLocks
from task_tracker.records import TaskKey
from task_tracker.store import Lease, LeaseStore, Stored
from task_tracker.worker.hooks import Hooks

__all__ = ["Heartbeats", "check_rhythm"]

_LOOK_SECONDS: Final = 1.0
"""How often cancels are looked for where leases never expire, so that there is no heartbeat to hear them."""
_ROUNDING: Final = 1 + 1e-9


class Heartbeats(LeaseKeeper):
    """Renews what is held every ``store.heartbeat_seconds``; the thread ends when nothing is held.

    ``signalled`` is called, in this or any other thread, when a lease is lost or its task is to be cancelled:
    once for each of the two. The local deadline of a lease is that of :class:`Holdings`: what was not renewed in
    time counts as lost before others may take it. Somebody else than this thread has to call
    :meth:`look_at_deadlines` for that: a renewal that hangs holds up this one.
    """

    def __init__(
        self, store: LeaseStore, clock: Clock, signalled: Callable[[Lease], None], hooks: Hooks
    ) -> None:
        check_rhythm(store)
        self.locks = KeyedLocks()
        """Held by who ends a lease or gives it back: a heartbeat that meets that must not take it for a loss."""
        self.holdings = Holdings(
            clock, lease_seconds=store.lease_seconds, heartbeat_seconds=store.heartbeat_seconds
        )
        super().__init__(store, self.holdings, self.locks, clock, _wait_for_the_round)
        self._signalled = signalled
        self._hooks = hooks
        self._told: dict[Lease, tuple[bool, bool]] = {}
        self._telling = threading.Lock()
        self._held_since: dict[Lease, float] = {}
        self._beat_at = -math.inf
        self._round_began_at: float | None = None

    def begin(self) -> None:
        """Start the thread unless it runs. Raises RuntimeError if there is no thread to be had."""
        # Asked without a lock: a thread decides to end under the one under which a lease is put among those held.
        if not self.running:
            self.start(self._clock.jitter(self._period))

    def hold(self, lease: Lease, stored: Stored, asked_at: float) -> None:
        """Renew ``lease`` from now on; the store was asked for it at ``asked_at`` (monotonic), or earlier.

        Raises RuntimeError, holding nothing, if there is no thread to renew it, or after :meth:`finish`.
        """
        self._told[lease] = (False, False)
        self._held_since[lease] = asked_at
        self.holdings.put(lease, stored, asked_at)
        try:
            if self.holdings.closed:
                # A call to the store that hung until now. Renewed, it would never go to another worker.
                raise RuntimeError("this worker has stopped")
            self.begin()
        except RuntimeError:
            self.let_go(lease)
            raise
        if lease.cancel_requested.is_set() or lease.lost.is_set():  # it may have come with the wish to cancel
            self.look(lease)

    def let_go(self, lease: Lease) -> None:
        """Renew ``lease`` no more: it was ended, given back or lost."""
        self.holdings.drop(lease)
        self._told.pop(lease, None)
        self._held_since.pop(lease, None)

    def holds(self, key: TaskKey) -> bool:
        """Tell whether a lease on ``key`` is held."""
        return self.holdings.current(key) is not None

    def finish(self, seconds: float) -> bool:
        """Renew nothing any more, whatever is held; False if the thread hangs for longer than ``seconds``."""
        self.holdings.closed = True
        return self.stop(seconds)

    def look(self, lease: Lease) -> None:
        """Tell about what has happened to ``lease`` and was not told yet."""
        with self._telling:  # two threads look, and each thing is told once
            told = self._told.get(lease)
            state = lease.lost.is_set(), lease.cancel_requested.is_set()
            if told is None or state == told:
                return
            self._told[lease] = state
        self._signalled(lease)

    def look_at_deadlines(self) -> float:
        """Take note of leases whose time is over, and tell of them; return the seconds until the next one's may be.

        From any thread. Asks no store.
        """
        next_at = math.inf
        for holding in self.holdings.all():
            if self.holdings.current(holding.lease.key) is not holding:
                self.look(holding.lease)
            elif not holding.settling:
                next_at = min(next_at, holding.deadline)
        return max(0.0, next_at - self._clock.monotonic())

    def run_once(self) -> float | None:
        """Renew everything once; return the pause until the next time, None when nothing is held any more."""
        began = self._round_began_at = self._clock.monotonic()
        try:
            pause = super().run_once()
            self._beat_at = self._clock.monotonic()
        finally:
            self._round_began_at = None
        for lease in list(self._told):
            self.look(lease)
        leases = len(self.holdings)
        failing = sum(holding.failed_at > 0 for holding in self.holdings.all())
        self._hooks.tell("heartbeat", seconds=self._beat_at - began, leases=leases, failed=failing)
        return None if pause is None else min(pause, self._period)

    @property
    def age_seconds(self) -> float | None:
        """How long ago the last round ended, or what is held longest was claimed, whichever is later.

        None while nothing is held and no round is under way. While one hangs, since it began at least.
        """
        now, began_at = self._clock.monotonic(), self._round_began_at
        claimed_at = min(list(self._held_since.values()), default=None)
        if claimed_at is None:
            return None if began_at is None else now - began_at
        since = max(self._beat_at, claimed_at)
        return now - (since if began_at is None else min(since, began_at))

    @property
    def is_stuck(self) -> bool:
        """Whether a round takes so long that what is claimed now might be lost before it is renewed."""
        began_at = self._round_began_at
        return began_at is not None and self._clock.monotonic() - began_at > self._store.lease_seconds / 2

    @property
    def period_seconds(self) -> float:
        """How often a round comes."""
        return self._period

    @property
    def _period(self) -> float:
        heartbeat = self._store.heartbeat_seconds
        return _LOOK_SECONDS if math.isinf(heartbeat) else heartbeat


def check_rhythm(store: LeaseStore) -> None:
    """Raise SettingsError unless a lease lives for three heartbeats: one that comes late must not lose it."""
    if store.heartbeat_seconds * defaults.HEARTBEATS_PER_LEASE > store.lease_seconds * _ROUNDING:
        raise SettingsError(
            f"heartbeat_seconds is {store.heartbeat_seconds:g} and lease_seconds {store.lease_seconds:g}; a worker "
            f"needs {defaults.HEARTBEATS_PER_LEASE} heartbeats per lease, give no more than a third of it"
        )


def _wait_for_the_round(_: Holding) -> None:
    """A cancel that a heartbeat hears is told after the round: all of its leases are renewed first."""
