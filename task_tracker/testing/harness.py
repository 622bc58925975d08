"""How a backend tells the suite about itself: how to open a store, and how to reach behind its back.

Owns the list of what the suite can ask for. Three raw accessors and ``open`` are needed; the hooks after them
are optional, and a test that needs one which is missing is skipped with a reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, NoReturn

import pytest

from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.records import TaskKey
from task_tracker.store import Expired, LeaseStore, TaskStore
from task_tracker.testing.racing import StoreSpec

__all__ = ["StoreHarness", "expired_now"]


class StoreHarness(ABC):
    """One place where records can be kept, empty at first, and the ways to it."""

    spec: StoreSpec | None = None
    """How another process opens the same place: ``open_store(spec[0], StoreOptions(**spec[1]))``. None if no
    other process can; the tests with several processes are skipped then."""

    unstorable_ids: ClassVar[Sequence[str]] = ()
    """Ids that this backend refuses besides those that all refuse: too long ones, for instance."""

    # ---- needed --------------------------------------------------------------------------------------

    @abstractmethod
    def open(self) -> TaskStore:
        """Return a fresh instance on the same place, as another process would have one.

        A store that is neither durable nor shared may return the same instance again.
        """

    @abstractmethod
    def plant(self, key: TaskKey, data: bytes) -> None:
        """Put bytes where the record of ``key`` lives, over what is there, whole, as a foreign writer would.

        Call :func:`pytest.skip` for bytes that this kind of place cannot hold.
        """

    @abstractmethod
    def peek(self, key: TaskKey) -> bytes | None:
        """Return the bytes where the record of ``key`` lives; None if there are none."""

    @abstractmethod
    def remove(self, key: TaskKey) -> None:
        """Take away the bytes where the record of ``key`` lives."""

    # ---- optional ------------------------------------------------------------------------------------

    def fresh(self) -> StoreHarness:
        """Return a harness of the same kind on another place, empty. The state machine needs many."""
        _missing("fresh")

    def close(self) -> None:  # noqa: B027  # most places are removed by whoever made them
        """Throw the place away. Called for what :meth:`fresh` returned."""

    def age(self, seconds: float) -> None:  # noqa: B027  # right for stores that keep nothing
        """Make the place look as if this library had first opened it ``seconds`` earlier.

        Needed where records are durable: retention deletes nothing older than that moment.
        """

    def outage(self) -> AbstractContextManager[None]:
        """Return a context in which the place does not answer, also to stores that are open already."""
        _missing("outage")

    def unreachable(self, key: TaskKey) -> AbstractContextManager[None]:
        """Return a context in which the record of ``key`` is there but reading it fails, by any instance."""
        _missing("unreachable")

    def undeletable(self, key: TaskKey) -> AbstractContextManager[None]:
        """Return a context in which nothing can delete the record of ``key``, by instances opened in it."""
        _missing("undeletable")

    def lapse(self, store: LeaseStore, seconds: float) -> None:
        """Make every heartbeat and every worker's fact so far look ``seconds`` older, to ``store`` and to all others.

        Needed where leases expire. ``store``'s own monotonic clock may run on by as much.
        """
        _missing("lapse")

    def let_pass(self, store: LeaseStore, seconds: float) -> None:
        """Let ``seconds`` pass on the monotonic clock of ``store``, in which nobody does anything.

        Needed where leases expire: a store that watches a lease before it calls it expired is given that time.
        Whether heartbeats grow older meanwhile is the harness's choice.
        """
        _missing("let_pass")

    def step_clock(self, store: LeaseStore, seconds: float) -> None:
        """Move the wall clock of the host that ``store`` runs on, as an operator or NTP does."""
        _missing("step_clock")

    def now(self) -> float:
        """Return the Unix time of the clock by which the store judges what is old."""
        return SYSTEM_CLOCK.now()

    def reads(self) -> int:
        """Return how many bodies of records have been read so far, by all instances of this process."""
        _missing("reads")


def expired_now(harness: StoreHarness, store: LeaseStore, *, limit: int = 1000) -> Sequence[Expired]:
    """Return what ``store`` calls expired once it has watched for as long as it may want to."""
    store.expired(limit=limit)
    harness.let_pass(store, 2 * store.heartbeat_seconds)
    return store.expired(limit=limit)


def _missing(hook: str) -> NoReturn:
    pytest.skip(f"the harness has no {hook}()")
