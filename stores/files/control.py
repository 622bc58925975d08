"""What a root says about itself: who may write below it, and since when this library knows it.

Owns ``<prefix>/.task_tracker``: ``opened``, the moment of the first opening, from which retention counts;
and the look at ``format``, which a lease store leaves there.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import orjson

from stores.files.backing import Backing
from stores.files.layout import Layout
from task_tracker.clock import Clock
from task_tracker.errors import CapabilityMissing, TaskTrackerError

__all__ = ["RootMarks"]

FORMAT = "format"
OPENED = "opened"


class RootMarks:
    """The marks of one root. ``locked``: writers here keep each other out by locks."""

    def __init__(self, files: Backing, layout: Layout, clock: Clock, *, locked: bool = True) -> None:
        self._files = files
        self._locked = locked
        self._directory = layout.control
        self._clock = clock
        self._opened_at: float | None = None
        self._looked = False

    def check_writable(self) -> None:
        """Raise CapabilityMissing if a lease store owns this root."""
        if self._looked and self._files.remote:
            return  # a look costs a request; marking a root under a running server is a mistake anyway
        if self._files.exists(self._directory, FORMAT):
            raise CapabilityMissing(
                f"{self._files.where(self._directory, FORMAT)} says that a lease store owns this root; "
                "writes without leases would void its guarantees: configure backend 'lease', or another root"
            )
        self._looked = True

    def opened_at(self) -> float:
        """Return the Unix time at which this library first opened the root; it is noted now if it never was."""
        if not self._files.capabilities.durable:
            return 0.0  # no history from before an upgrade is in there
        if self._opened_at is None:
            try:
                self._opened_at = self._read()
            except FileNotFoundError:
                self._opened_at = self._note()
        return self._opened_at

    def note_opened(self) -> None:
        """Note the moment, if that was not done before. Not worth failing a write for."""
        if self._opened_at is None:
            with contextlib.suppress(TaskTrackerError, OSError):
                self.opened_at()

    def sweep(self) -> None:
        """Remove temporary files that crashed writers left here."""
        if not self._files.remote:
            self._files.sweep(self._directory, self._files.names(self._directory))

    def _turn(self) -> AbstractContextManager[None]:
        """Keep other writers out, where a creation alone is not exclusive."""
        if not self._locked:
            return contextlib.nullcontext()
        return self._files.exclusively(self._directory, make=True)

    def _read(self) -> float:
        data = self._files.read(self._directory, OPENED).data
        try:
            opened_at = orjson.loads(data)["opened_at"]
            if isinstance(opened_at, bool) or not isinstance(opened_at, (int, float)):
                raise TypeError(f"{opened_at!r} is no time")
            return float(opened_at)
        except (ValueError, KeyError, TypeError, OverflowError):
            # Damaged: counted anew, which keeps records longer rather than deleting them too early.
            now = self._clock.now()
            with self._turn():
                self._files.replace(self._directory, OPENED, _mark(now), final=True)
            return now

    def _note(self) -> float:
        now = self._clock.now()
        try:
            with self._turn():
                self._files.create(self._directory, OPENED, _mark(now))
        except FileExistsError:
            return self._read()
        return now


def _mark(now: float) -> bytes:
    return orjson.dumps({"opened_at": now})
