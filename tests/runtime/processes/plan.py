"""What a chaos is to do, and how its processes open their store.

Owns the form of the plan: its own keys, and everything else is the store's configuration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from task_tracker import TaskTracker
from task_tracker.clock import Clock
from task_tracker.registry import open_store
from task_tracker.settings import TaskTrackerSettings
from tests.runtime.processes.ledger import registry

__all__ = ["TYPES", "Plan", "open_tracker"]

TYPES = {"once": 4, "often": 4, "thread": 1, "single": 2}
"""The task types, and how often each is submitted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to happen, at least: a bound of work, not of time."""

    directory: str
    """For what processes share beside the store. Kept on a disk that is never full."""
    seed: int = 1
    workers: int = 4
    clients: int = 2
    tasks: int = 200
    kills: int = 5
    freezes: int = 5
    stops: int = 2
    """SIGTERM to a worker."""
    clock_steps: int = 5
    full_disks: int = 3
    """Times at which all writes of one worker fail."""
    full_stores: int = 0
    """Times at which the store's disk is full for everybody. Needs the right to mount, and a backend with a root."""
    terminations: int = 0
    """Times at which a session on PostgreSQL is ended, whatever it does."""
    server_restarts: int = 0
    """Times at which PostgreSQL stops without a word and begins again. Needs the chaos's own: a plan without a dsn."""
    redis_stops: int = 0
    """Times at which Redis, which wakes the workers then, is away for a while."""
    redis_url: str | None = None
    """Made by the chaos itself."""
    cancels: int = 15
    client_kills: int = 1
    blocking: float = 0.0
    """Which part of the coroutines blocks its event loop for two leases."""
    lease_seconds: float = 0.9
    pace_seconds: float = 0.15
    """The mean time between two blows."""
    patience_seconds: float = 300.0
    store: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"backend": "lease"})

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the plan in ``document``: keys that are not the plan's are the store's."""
        own = {field.name for field in dataclasses.fields(cls)} - {"store"}
        store = dict(document.get("store", {}))
        store |= {name: value for name, value in document.items() if name not in own | {"store"}}
        values = {name: value for name, value in document.items() if name in own}
        return cls(**values, store={"backend": "lease", **store})

    @property
    def root(self) -> Path | None:
        """The directory of the store, if its backend has one."""
        root = self.settings.root
        return None if root is None else Path(root)

    @property
    def settings(self) -> TaskTrackerSettings:
        """The store's configuration."""
        given: dict[str, Any] = {"lease_seconds": self.lease_seconds, **self.store}
        if given["backend"] == "lease":
            given = {"root": f"{self.directory}/root", "durability": "none", **given}
        return TaskTrackerSettings(**given)


def open_tracker(plan: Plan, clock: Clock) -> TaskTracker:
    """Return a tracker of this process's own."""
    settings = plan.settings
    options = dataclasses.replace(settings.store_options(None), clock=clock)
    wake_up = None
    if plan.redis_url is not None:
        from task_tracker.queues.redis import RedisWakeUp

        wake_up = RedisWakeUp(plan.redis_url)
    return TaskTracker(
        open_store(settings.backend, options), handlers=registry(), clock=clock, wake_up=wake_up
    )
