"""What must hold of workers that come at once: limits, places and pauses, besides what holds of every lease.

Owns these checks. Looks at the disk and at what programs say of their claims, never into the store.
"""

from __future__ import annotations

from stores.files.lease.names import EntryName
from tests.lease.simulation.calls import Request
from tests.lease.simulation.disk import Disk, Result, succeeded
from tests.lease.simulation.invariants import LeaseRules, records, view
from tests.lease.simulation.processes import Fact
from tests.lease.simulation.rules import Ghost, Violation
from tests.lease.simulation.world import CONTROL, RECORDS

__all__ = ["CoordinationRules"]


class CoordinationRules(LeaseRules):
    """``most``: how many tasks may run at once. ``servers``: how many workers claim, where there is room for one."""

    def __init__(self, *, most: int | None = None, servers: int = 0) -> None:
        super().__init__()
        self._most = most
        self._servers = servers

    def called(self, request: Request, result: Result, before: Disk, after: Disk, ghost: Ghost) -> Ghost:
        """Look at a call that may have grabbed a task or made it run."""
        ghost = super().called(request, result, before, after, ghost)
        if not succeeded(result):
            return ghost
        if request.name == "rename" and request.paths[1].startswith(f"{CONTROL}/leases/"):
            name = EntryName.parse(request.paths[1].rpartition("/")[2])
            if name is not None and not name.settled and ("paused",) in ghost:
                ghost |= {("grabbed when it was paused", name.token)}
        for path in request.paths:
            content = after.content_at(path) if path.startswith(RECORDS) else None
            if content is not None and view(content).status == "running":
                self._running(view(content).token, after, ghost)
        return ghost

    def _running(self, token: str, disk: Disk, ghost: Ghost) -> None:
        running = [found for found in records(disk) if found.status == "running"]
        if self._most is not None and len(running) > self._most:
            raise Violation("never more than the limit", f"{running}")
        if ("grabbed when it was paused", token) in ghost:
            raise Violation("what is paused is not taken", f"{running}")

    def said(self, actor: str, fact: Fact, disk: Disk, ghost: Ghost) -> Ghost:
        """Hear what came of a claim, and of the wish to pause."""
        if fact[0] not in ("took", "came back empty", "lost patience", "paused", "resumed"):
            return super().said(actor, fact, disk, ghost)
        if fact[0] == "resumed":
            return frozenset(
                known for known in ghost if known[0] not in ("paused", "grabbed when it was paused")
            )
        if fact[0] == "paused":
            return ghost | {("paused",)}
        ghost |= {(fact[0], actor)}
        told = [known[0] for known in ghost if known[0] in ("took", "came back empty", "lost patience")]
        if set(told) == {"came back empty"} and len(told) == self._servers:
            raise Violation(
                "somebody gets the place", f"all {len(told)} came back empty, and nobody else runs"
            )
        return ghost
