"""The directory of an attempt: files that become the task's only if this attempt completes it.

Owns when a directory is asked for and whether the record is to name it. Refuses to know where it is and to make it:
the store does, and keeps the promises (only the winning attempt's directory is named, others are swept).
"""

from __future__ import annotations

import threading

from task_tracker.errors import CapabilityMissing
from task_tracker.store import EffectsPlace, HasEffects, Lease, LeaseStore

__all__ = ["EffectsPlace", "HasEffects", "WorkDirectory"]


class WorkDirectory:
    """Made at the first question for it. Thread-safe."""

    def __init__(self, store: LeaseStore, lease: Lease) -> None:
        self._store = store
        self._lease = lease
        self._lock = threading.Lock()
        self._place: EffectsPlace | None = None

    @property
    def path(self) -> str:
        """The directory.

        Raises CapabilityMissing if the store has no place for one, LeaseLost if the attempt is over, StoreUnavailable.
        """
        with self._lock:
            if self._place is None:
                self._place = self._ask()
            return self._place.path

    @property
    def name(self) -> str | None:
        """What the record says of it; None if nobody asked for it."""
        return None if self._place is None else self._place.name

    def _ask(self) -> EffectsPlace:
        place = self._store.effects(self._lease) if isinstance(self._store, HasEffects) else None
        if place is None:
            raise CapabilityMissing(
                f"{type(self._store).__name__} has no place for files of an attempt; write them elsewhere, under a "
                "name made of ctx.fence"
            )
        return place
