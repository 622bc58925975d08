"""What a worker may claim just now: the kinds it has handlers for, less what is paused or cannot work.

Owns pausing and the limits per type. Refuses to count what runs: ``max_running`` holds over all workers of a store,
so only the store can count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from task_tracker.errors import SettingsError
from task_tracker.handlers import HandlerRegistry
from task_tracker.order_checks import LARGEST_NUMBER
from task_tracker.worker.gates import Gate, Gates

__all__ = ["Kind", "Limits"]

Kind = tuple[str, int]
"""A task type and the version of its handler."""


class Limits:
    """``max_running``: how many tasks of a type may run at once over all workers; it wins over the handlers' own.

    ``gates``: a function per type that says whether its work can be done just now (is the index up?). While it
    says no, raises, or does not answer, tasks of that type wait; they do not fail. It is called before each claim, so
    it answers from what it knows already. All workers of a store are to be given the same ``max_running``.
    """

    def __init__(
        self,
        registry: HandlerRegistry,
        *,
        max_running: Mapping[str, int] | None = None,
        gates: Mapping[str, Gate] | None = None,
    ) -> None:
        self._kinds = tuple(registry.kinds())
        self._paused: frozenset[str] = frozenset()
        self._known = {task_type for task_type, _ in self._kinds}
        for what, names in (("max_running", max_running or {}), ("gates", gates or {})):
            if not isinstance(names, Mapping):
                raise SettingsError(f"{what} is {names!r:.80}; give a dict by task type")
            for name in names:
                self._check_known(name, f"{what} names the task type")
        self.gates = Gates(gates or {})
        self.max_running = _limits(registry, max_running or {})
        """The limit of each type that has one."""

    @property
    def registered(self) -> Sequence[Kind]:
        """All kinds that there are handlers for."""
        return self._kinds

    @property
    def paused(self) -> Sequence[str]:
        """The types that are paused."""
        return sorted(self._paused)

    @property
    def gated(self) -> Sequence[str]:
        """The types whose gate said no when it was asked last."""
        return sorted(self.gates.closed)

    def pause(self, task_type: str) -> None:
        """Claim nothing of this type any more. What runs goes on. Twice is safe.

        Raises SettingsError for a type that there is no handler for here.
        """
        self._check_known(task_type, "there is nothing to pause of the task type")
        self._paused |= {task_type}

    def resume(self, task_type: str) -> None:
        """Claim this type again. Safe if it is not paused."""
        self._paused -= {task_type}

    def claimable(self) -> Sequence[Kind]:
        """Return the kinds that may be claimed now."""
        shut = self.gates.ask() | self._paused
        return [kind for kind in self._kinds if kind[0] not in shut] if shut else self._kinds

    def _check_known(self, task_type: str, what: str) -> None:
        if task_type not in self._known:
            raise SettingsError(
                f"{what} {task_type!r}, for which there is no handler; known are "
                f"{', '.join(sorted(self._known)) or 'none'}"
            )


def _limits(registry: HandlerRegistry, given: Mapping[str, int]) -> dict[str, int]:
    limits: dict[str, int] = {}
    for task_type, version in registry.kinds():
        handler = registry.get(task_type, version)
        if handler is not None and handler.max_running is not None:
            # Versions share their type's limit, and the smallest is the one that nobody exceeds.
            limits[task_type] = min(handler.max_running, limits.get(task_type, handler.max_running))
    limits |= given
    for task_type, most in limits.items():
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= LARGEST_NUMBER:
            raise SettingsError(
                f"max_running of {task_type!r} is {most!r:.80}; give a whole number of 1 or more, {LARGEST_NUMBER} "
                "at most"
            )
    return limits
