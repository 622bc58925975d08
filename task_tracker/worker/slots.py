"""How many attempts a worker may have at once.

Owns the count. Nothing is claimed unless a slot is free, and a slot is given back when the handler has really
ended. Used on the worker's event loop only.
"""

from __future__ import annotations

from collections.abc import Callable

from task_tracker.errors import SettingsError
from task_tracker.order_checks import LARGEST_NUMBER

__all__ = ["Slots", "check_concurrency"]


class Slots:
    """``most`` slots; ``on_free`` is called whenever one is given back."""

    def __init__(self, most: int, on_free: Callable[[], None] = lambda: None) -> None:
        self.most = check_concurrency(most)
        self._on_free = on_free
        self._taken = 0

    @property
    def taken(self) -> int:
        """How many are taken."""
        return self._taken

    @property
    def free(self) -> int:
        """How many are not."""
        return self.most - self._taken

    def take(self) -> None:
        """Take one of those that are free."""
        assert self._taken < self.most, "nothing is claimed for which there is no slot"
        self._taken += 1

    def give_back(self) -> None:
        """Give one back."""
        assert self._taken, "no more is given back than was taken"
        self._taken -= 1
        self._on_free()


def check_concurrency(most: int) -> int:
    """Return ``most``. Raises SettingsError for what is no number of slots."""
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= LARGEST_NUMBER:
        raise SettingsError(
            f"concurrency is {most!r:.80}; give a whole number of 1 or more, {LARGEST_NUMBER} at most"
        )
    return most
