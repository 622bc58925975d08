"""A worker's store whose leases are written down: taken, renewed, given up, and when.

Owns what the judge has to know of a lease. The times are those of the monotonic clock that all processes of a host
share, from before a call and after it, so that what a judge infers from them holds however slow a call was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from task_tracker.store import Lease, LeaseStore
from tests.runtime.processes.clocks import HostClock
from tests.runtime.processes.journal import tell

__all__ = ["listen_for_losses", "watch_leases"]


def watch_leases(store: LeaseStore, clock: HostClock) -> None:
    """Have the calls of ``store`` that take, keep and give up leases told, and when callers looked at a clock."""

    def taking(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **options: Any) -> Any:
            since = clock.looked_at
            taken = call(*arguments, **options)
            if taken is not None:
                _tell(call.__name__, taken[0], since)
            return taken

        return made

    def with_lease(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(lease: Lease, *arguments: Any) -> Any:
            since = clock.looked_at
            answer = call(lease, *arguments)
            _tell(call.__name__, lease, since)
            return answer

        return made

    for name in ("claim", "take_over"):
        setattr(store, name, taking(getattr(store, name)))
    for name in ("renew", "end", "release"):
        setattr(store, name, with_lease(getattr(store, name)))


def _tell(what: str, lease: Lease, since: float) -> None:
    tell(what, task=lease.key.task_id, epoch=lease.epoch, since=since)


class _Losses(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if event in ("lease_lost", "given_back"):
            tell(event, task=record.task_id, why=record.getMessage())  # type: ignore[attr-defined]


def listen_for_losses() -> None:
    """Have it told when leases are lost, or given back unused, and nothing logged: all failures were ordered."""
    log = logging.getLogger("task_tracker")
    log.propagate = False
    log.addHandler(_Losses(logging.WARNING))
