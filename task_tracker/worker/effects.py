"""The directory of an attempt: files that become the task's only if this attempt ends it.

Owns when a directory is made and whether the record is to name it. Refuses to know where: the store says so,
since what it promises is the store's (only the winning attempt's directory is named, others are swept).
"""

from __future__ import annotations

import os
import threading
from typing import NamedTuple, Protocol, runtime_checkable

from task_tracker.errors import CapabilityMissing, StoreUnavailable
from task_tracker.store import Lease, LeaseStore

__all__ = ["EffectsPlace", "HasEffects", "WorkDirectory"]


class EffectsPlace(NamedTuple):
    """Where an attempt may put files: the directory, and what ``record.effects_dir`` is to say of it."""

    path: str
    name: str


@runtime_checkable
class HasEffects(Protocol):
    """What a store with such a place offers beside :class:`LeaseStore`."""

    def effects(self, lease: Lease) -> EffectsPlace | None:
        """Return the place of the attempt under ``lease``, of its own and not made yet; None if there is none."""


class WorkDirectory:
    """Made at the first question for it. Thread-safe."""

    def __init__(self, store: LeaseStore, lease: Lease) -> None:
        self._store = store
        self._lease = lease
        self._lock = threading.Lock()
        self._place: EffectsPlace | None = None

    @property
    def path(self) -> str:
        """The directory. Raises CapabilityMissing if the store has no place for one, StoreUnavailable."""
        with self._lock:
            if self._place is None:
                self._place = self._make()
            return self._place.path

    @property
    def name(self) -> str | None:
        """What the record says of it; None if nobody asked for it."""
        return None if self._place is None else self._place.name

    def _make(self) -> EffectsPlace:
        place = self._store.effects(self._lease) if isinstance(self._store, HasEffects) else None
        if place is None:
            raise CapabilityMissing(
                f"{type(self._store).__name__} has no place for files of an attempt; write them elsewhere, under a "
                "name made of ctx.fence"
            )
        try:
            os.makedirs(place.path, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(f"{place.path} cannot be made ({error}); try again") from error
        return place
