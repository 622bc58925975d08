"""Which leases this tracker holds, and which it has lost.

Owns the table and the local deadline of each lease. Refuses to ask a store: the keeper renews, the tracker
writes, both tell this table what came of it. A forked child holds nothing of its parent's.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import threading
from functools import cache
from typing import Final

from task_tracker.clock import Clock
from task_tracker.errors import LeaseLost
from task_tracker.forks import renew_after_fork
from task_tracker.records import TaskKey
from task_tracker.store import Lease, Stored

__all__ = ["Holding", "Holdings", "holder_name"]

_log = logging.getLogger("task_tracker")

MAX_LOST: Final = 10_000
_MARGIN_HEARTBEATS: Final = 0.5
"""How long before the lease's end its holder stops writing: others may take over at its end."""


@dataclasses.dataclass(slots=True, eq=False)
class Holding:
    """A lease that is held, and the record as its holder wrote it last.

    While a lease is held nobody else writes the record, so this one is the truth. ``stored`` is None while that
    is not known: the answer to a write was lost.
    """

    lease: Lease
    stored: Stored | None
    deadline: float
    """By the monotonic clock. Nothing is written under this lease after it unless it was renewed."""
    settling: bool = False
    """The work is done and its outcome waits for the store. Nobody has to be stopped any more, so only the
    store's own word ends the lease then."""
    failed_at: float = 0.0
    """When renewing it failed last, by the monotonic clock; 0 if the last attempt did not fail."""


class Holdings:
    """The table. Thread-safe; two threads that change the same task are kept apart by whoever calls."""

    def __init__(self, clock: Clock, *, lease_seconds: float, heartbeat_seconds: float) -> None:
        self._clock = clock
        self._holds_for_seconds = (
            math.inf
            if math.isinf(lease_seconds)
            else lease_seconds - min(_MARGIN_HEARTBEATS * heartbeat_seconds, lease_seconds / 4)
        )
        self.closed = False
        """Set once nothing more is to be claimed."""
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock and hold nothing: in a forked child the parent goes on holding."""
        self.lock = threading.Lock()
        self._held: dict[TaskKey, Holding] = {}
        self._lost: dict[TaskKey, Lease] = {}

    def __len__(self) -> int:
        """Return how many leases are held."""
        return len(self._held)

    def all(self) -> list[Holding]:
        """Return a copy of what is held, the one renewed longest ago first; those that failed come last."""
        with self.lock:
            return sorted(self._held.values(), key=lambda holding: (holding.failed_at, holding.deadline))

    # ---- asking --------------------------------------------------------------------------------------

    def current(self, key: TaskKey) -> Holding | None:
        """Return what is held of ``key``; None also if it was lost, or is lost now because its time is over."""
        holding = self._held.get(key)
        if holding is None:
            return None
        if holding.lease.lost.is_set() or self._is_over(holding):
            said = holding.lease.lost.is_set()
            self.lose(holding.lease, "somebody else has it" if said else "it was not renewed in time")
            return None
        return holding

    def check(self, key: TaskKey) -> Holding | None:
        """Return what is held of ``key``, None if it never was. Raises LeaseLost if it was held and lost."""
        holding = self.current(key)
        if holding is None and key in self._lost:
            raise LeaseLost(
                f"the lease on task {key.task_id} was lost, somebody else may work on it; stop working on it, "
                "or call start() again"
            )
        return holding

    def lease(self, key: TaskKey) -> Lease | None:
        """Return the lease on ``key`` that is held, or was and is lost; None if it never was or has ended."""
        holding = self.current(key)
        return holding.lease if holding is not None else self._lost.get(key)

    # ---- what happens to a lease ---------------------------------------------------------------------

    def put(self, lease: Lease, stored: Stored, asked_at: float) -> Holding:
        """Hold ``lease``, for which the store was asked at ``asked_at`` (monotonic), or earlier."""
        holding = Holding(lease, stored, asked_at + self._holds_for_seconds)
        with self.lock:
            self._held[lease.key] = holding
            self._lost.pop(lease.key, None)
        return holding

    def renewed(self, holding: Holding, asked_at: float) -> None:
        """Take note that the store renewed it, having been asked at ``asked_at`` (monotonic)."""
        holding.deadline = asked_at + self._holds_for_seconds
        holding.failed_at = 0.0

    def lose(self, lease: Lease, why: str) -> None:
        """Take note that ``lease`` is lost, and tell its holder's code. Nothing happens if it is not held."""
        with self.lock:
            holding = self._held.get(lease.key)
            if holding is None or holding.lease is not lease:
                return  # it has ended meanwhile, or was claimed anew
            del self._held[lease.key]
            self._lost[lease.key] = lease
            if len(self._lost) > MAX_LOST:
                del self._lost[next(iter(self._lost))]
        lease.lost.set()
        task_id = lease.key.task_id
        _log.warning(
            "the lease on task %s was lost: %s",
            task_id,
            why,
            extra={"event": "lease_lost", "task_id": task_id},
        )

    def drop(self, lease: Lease) -> None:
        """Forget ``lease``, which was ended or given back, also if it looked lost just before that."""
        with self.lock:
            holding = self._held.get(lease.key)
            if holding is not None and holding.lease is lease:
                del self._held[lease.key]
            if self._lost.get(lease.key) is lease:
                del self._lost[lease.key]

    def forget(self, key: TaskKey) -> None:
        """Forget that a lease on ``key`` was lost: that task is gone."""
        with self.lock:
            self._lost.pop(key, None)

    def _is_over(self, holding: Holding) -> bool:
        return not holding.settling and self._clock.monotonic() >= holding.deadline


def holder_name(suffix: str) -> str:
    """Return ``host:pid:suffix``: what others read when they meet a task that this process holds."""
    return f"{host_name()}:{os.getpid()}:{suffix}"


@cache
def host_name() -> str:
    """Return the name of this host, for messages."""
    from socket import gethostname  # dear, and not needed where nothing is ever claimed

    return gethostname()
