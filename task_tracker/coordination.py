"""What operators tell all workers of a store, and what workers say of themselves.

Owns these calls for trackers, and that workers are woken when a type is resumed. Refuses to pause anything by itself:
the store keeps what is paused, and holds every claim to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from task_tracker.errors import CapabilityMissing, TaskTrackerError
from task_tracker.store import Finding, LeaseStore, TaskStore, WorkerFact
from task_tracker.wakeups import Waking

__all__ = ["Coordination", "kinds_of"]

_WOKEN: Final = 2
"""Tasks that are announced: each that ends announces the next ones."""
_LOOKED_AT: Final = 1000


class Coordination:
    """``leases`` is the store once more, None if it has none; then every call raises CapabilityMissing."""

    def __init__(self, store: TaskStore, leases: LeaseStore | None, waking: Waking) -> None:
        self._store = store
        self._leases = leases
        self._waking = waking

    def pause(self, task_type: str) -> None:
        """Have no worker claim tasks of this type any more."""
        self._asked("pause a type for").pause(task_type)

    def resume(self, task_type: str) -> None:
        """Let workers claim them again, and tell those that wait."""
        leases = self._asked("resume a type for")
        leases.unpause(task_type)
        with contextlib.suppress(TaskTrackerError):  # a hint less; they are found by looking
            # Workers that live say which versions they have handlers for.
            kinds = {kind for fact in leases.facts() for kind in kinds_of(fact) if kind[0] == task_type}
            if kinds:
                waiting = leases.claimable(task_types=[*kinds], limit=_WOKEN)
            else:  # a queue may keep the hint for those that are to come
                oldest = leases.unclaimed(handled=True, limit=_LOOKED_AT)
                waiting = [one.record.key for one in oldest if one.record.task_type == task_type][:_WOKEN]
            if waiting:
                self._waking.wake(waiting)

    def paused(self) -> Sequence[str]:
        """Return the paused types."""
        return self._asked("ask what is paused for").paused()

    def workers(self) -> Sequence[WorkerFact]:
        """Return what workers that live say of themselves."""
        return self._asked("ask about").facts()

    def findings(self) -> Sequence[Finding]:
        """Return what a look at everything is to say of paused types: forgotten, they look like work that hangs."""
        return [
            Finding(
                "paused_type",
                task_type,
                f"the task type {task_type} is paused, so no worker claims its tasks; resume it once they may run "
                "(tracker.resume_type, python -m task_tracker resume)",
            )
            for task_type in (self._leases.paused() if self._leases is not None else ())
        ]

    def _asked(self, to: str) -> LeaseStore:
        if self._leases is None:
            raise CapabilityMissing(
                f"{type(self._store).__name__} has no leases, so there are no workers to {to}; use the lease "
                "backend, or the memory backend within one process"
            )
        return self._leases


def kinds_of(fact: WorkerFact) -> Iterator[tuple[str, int]]:
    """Iterate over the kinds that a worker has handlers for; one of another version may say something else."""
    kinds = fact.data.get("kinds")
    for kind in kinds if isinstance(kinds, list) else ():
        match kind:
            case [str(task_type), int(version)] if not isinstance(version, bool):
                yield task_type, version
