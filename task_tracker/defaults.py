"""Defaults that several layers name: settings, constructors and stores take them from here."""

from __future__ import annotations

from typing import Final, Literal

__all__ = [
    "CALL_SECONDS",
    "DURABILITY",
    "HEARTBEATS_PER_LEASE",
    "LEASE_SECONDS",
    "LOCK_TIMEOUT_SECONDS",
    "MAX_CACHED",
    "MAX_CHECKPOINT_BYTES",
    "MAX_PAYLOAD_BYTES",
    "MAX_RESOURCE_ID_CHARACTERS",
    "MAX_RESULT_BYTES",
    "MAX_THREADS",
    "PREFIX",
    "START_WITHIN_SECONDS",
    "Durability",
]

Durability = Literal["full", "edges", "none"]
"""What survives a power cut: every write, creations and ends, or nothing."""

MAX_CACHED: Final = 10_000
"""Records that a process keeps in memory."""
MAX_PAYLOAD_BYTES: Final = 2**20
"""As JSON, of a submitted task. So for the next two, of the handler that works on it."""
MAX_CHECKPOINT_BYTES: Final = 2**20
MAX_RESULT_BYTES: Final = 2**20
MAX_RESOURCE_ID_CHARACTERS: Final = 2048
"""Enough for any URL that servers take."""
MAX_THREADS: Final = 16
"""Threads of an AsyncTaskTracker."""
CALL_SECONDS: Final = 60.0
"""How long an awaited call may take."""
PREFIX: Final = "/local"
"""Path between the root and the accounts."""
DURABILITY: Final[Durability] = "edges"
LOCK_TIMEOUT_SECONDS: Final = 10.0
"""How long a write waits for another process's write to the same user's tasks."""
LEASE_SECONDS: Final = 30.0
"""How long a lease lives after its last heartbeat, where leases expire."""
HEARTBEATS_PER_LEASE: Final = 3
"""Renewals per lease term; fewer are refused."""
START_WITHIN_SECONDS: Final = 86_400.0
"""How long a task may wait for its creator to start it."""
