"""Heartbeats: the duty that renews every lease that this tracker holds.

Owns the rhythm. Refuses to decide what a lost lease means for the work. One thread for all leases, apart from
any event loop: blocked loops and busy workers do not miss heartbeats.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from task_tracker.clock import Clock
from task_tracker.duty import Duty
from task_tracker.errors import LeaseLost, TaskTrackerError
from task_tracker.holdings import Holding, Holdings
from task_tracker.keyed_locks import KeyedLocks
from task_tracker.store import LeaseStore

__all__ = ["LeaseKeeper"]

_log = logging.getLogger("task_tracker")

_RETRIES_PER_HEARTBEAT: Final = 4
_FAILURES_IN_A_ROW: Final = 10
"""After so many the store is taken to be down; it is not asked 10,000 times more in this round."""


class LeaseKeeper(Duty):
    """Renews all ``holdings`` every ``store.heartbeat_seconds``; ends when nothing is held.

    ``locks`` are those under which tasks are written; ``acknowledge`` is called for a lease whose task is to be
    cancelled.
    """

    def __init__(
        self,
        store: LeaseStore,
        holdings: Holdings,
        locks: KeyedLocks,
        clock: Clock,
        acknowledge: Callable[[Holding], None],
    ) -> None:
        super().__init__("lease keeper", clock)
        self._store = store
        self._holdings = holdings
        self._locks = locks
        self._acknowledge = acknowledge
        self._is_slow = False
        self._is_failing = False

    def begin(self) -> None:
        """Start the thread unless it runs, or leases never expire. Raises RuntimeError if there is no thread."""
        if not math.isinf(self._store.lease_seconds):
            self.start(self._clock.jitter(self._store.heartbeat_seconds))

    def run_once(self) -> float | None:
        """Renew everything once; return the pause until the next time, None when nothing is held any more."""
        began = self._clock.monotonic()
        failed, error = self._renew_all()
        took = self._clock.monotonic() - began
        self._report(took, failed, error)
        with self._holdings.lock:
            # Decided under the lock that claims take, so that no lease is left without a thread.
            if not len(self._holdings):
                self.last_round()
                return None
        heartbeat = self._store.heartbeat_seconds
        if failed:
            return self._clock.jitter(heartbeat / _RETRIES_PER_HEARTBEAT)
        return max(0.0, heartbeat - took)

    def on_error(self) -> float:
        """Leases do not wait for a minute."""
        return self._store.heartbeat_seconds / _RETRIES_PER_HEARTBEAT

    def _renew_all(self) -> tuple[int, Exception | None]:
        failed, in_a_row = 0, 0
        last: Exception | None = None
        holdings = self._holdings.all()
        for number, holding in enumerate(holdings):
            if in_a_row >= _FAILURES_IN_A_ROW:
                # Not asked in this round. Their time may be over all the same, which their code has to learn.
                for unasked in holdings[number:]:
                    self._is_held(unasked)
                return failed + len(holdings) - number, last
            if not self._is_held(holding):
                continue
            try:
                self._beat(holding)
            except Exception as error:  # noqa: BLE001  # logged; one lease must not cost the others theirs
                holding.failed_at = self._clock.monotonic()
                failed, in_a_row, last = failed + 1, in_a_row + 1, error
            else:
                in_a_row = 0
        return failed, last

    def _is_held(self, holding: Holding) -> bool:
        """Tell whether it is still held, noticing if its time is over."""
        return self._holdings.current(holding.lease.key) is holding

    def _beat(self, holding: Holding) -> None:
        asked_at = self._clock.monotonic()
        try:
            self._store.renew(holding.lease)
        except LeaseLost as error:
            with self._locks.hold(holding.lease.key, 0) as free:
                # A write that is just ending the lease makes it look lost; that write will learn what is so.
                if free:
                    self._holdings.lose(holding.lease, str(error))
            return
        self._holdings.renewed(holding, asked_at)
        if holding.lease.cancel_requested.is_set():
            self._acknowledge(holding)

    def _report(self, took: float, failed: int, error: Exception | None) -> None:
        """Say once that something is wrong, not at every heartbeat."""
        slow = took > self._store.heartbeat_seconds
        if slow and not self._is_slow:
            _log.warning(
                "renewing %d leases took %.1f seconds, longer than a heartbeat (%s); leases may be lost, raise "
                "lease_seconds and heartbeat_seconds or hold fewer tasks",
                len(self._holdings),
                took,
                self._store.heartbeat_seconds,
                extra={"event": "slow_heartbeat"},
            )
        if failed and not self._is_failing:
            _log.warning(
                "%d leases could not be renewed and are tried again until their time is over: %s",
                failed,
                error,
                exc_info=None if isinstance(error, TaskTrackerError) else error,
                extra={"event": "renewal_failed"},
            )
        self._is_slow, self._is_failing = slow, bool(failed)
