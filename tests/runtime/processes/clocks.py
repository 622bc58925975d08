"""Clocks of hosts, that step while their processes run: somebody sets them, or a time server does.

Owns the offsets, in a file that all processes have mapped. Only the wall clock steps; a monotonic one never does.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from pathlib import Path

from task_tracker.clock import SystemClock

__all__ = ["Clocks", "HostClock"]

_DOUBLE = struct.Struct("d")


class Clocks:
    """The offsets of ``hosts`` clocks, in seconds. Forked processes see what the conductor sets."""

    def __init__(self, path: Path, hosts: int) -> None:
        self.hosts = hosts
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(file, _DOUBLE.size * hosts)
            self._map = mmap.mmap(file, _DOUBLE.size * hosts)
        finally:
            os.close(file)

    def step_to(self, host: int, offset_seconds: float) -> None:
        """Set a host's clock."""
        _DOUBLE.pack_into(self._map, _DOUBLE.size * host, offset_seconds)

    def offset(self, host: int) -> float:
        """How far a host's clock is ahead of the true one, in seconds."""
        offset: float = _DOUBLE.unpack_from(self._map, _DOUBLE.size * host)[0]
        return offset


class HostClock(SystemClock):
    """The clock of one host."""

    def __init__(self, clocks: Clocks, host: int) -> None:
        super().__init__()
        self._clocks = clocks
        self._host = host
        self._looked = threading.local()

    def monotonic(self) -> float:
        """As ever, and remembered."""
        at = super().monotonic()
        self._looked.at = at
        return at

    @property
    def looked_at(self) -> float:
        """When this thread has looked at the monotonic clock last: before it asked for a lease, say. 0 if never."""
        at: float = getattr(self._looked, "at", 0.0)
        return at

    def now(self) -> float:
        """What this host takes for the time."""
        return round(super().now() + self._clocks.offset(self._host), 6)
