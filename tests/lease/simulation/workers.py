"""What simulated workers do: claim the next task that waits, work on it, pause its type.

Owns these programs; those of other users of a lease store are in :mod:`tests.lease.simulation.programs`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from stores.files.lease.ownership import Patience
from task_tracker.store import Lease, Stored
from tests.lease.simulation.processes import Process, Program
from tests.lease.simulation.programs import finish, granted
from tests.lease.simulation.world import promised, store_of

__all__ = ["QUEUED", "pausing", "serve", "serve_both"]

QUEUED: Final[dict[str, Any]] = {"handler_version": 0}
"""Fields of a task that waits for a worker."""


def serve(*, most: int | None = None, retry: bool = False) -> Program:
    """Claim the next task that waits for a worker, and work on it."""

    def program(process: Process) -> None:
        with promised():
            limits = None if most is None else {"work": most}
            store = store_of(process)
            with _patience_told(process):
                claimed = granted(
                    process,
                    store.claim(holder=process.actor.name, task_types=[("work", 0)], max_running=limits),
                )
            if claimed is None:
                process.note("came back empty")
            else:
                process.note("took", claimed[1].record.task_id)
                finish(process, *claimed, retry=retry)

    return program


def serve_both(*, retry: bool = False) -> Program:
    """Claim the next two tasks in one call, and work on one after the other."""

    def program(process: Process) -> None:
        found: Sequence[tuple[Lease, Stored]] = ()
        with promised():
            found = store_of(process).claim_several(
                2, holder=process.actor.name, task_types=[("work", 0)], max_running=None
            )
        for claimed in found:
            granted(process, claimed)
            process.note("took", claimed[1].record.task_id)
        if not found:
            process.note("came back empty")
        for claimed in found:
            with promised():
                finish(process, *claimed, retry=retry)

    return program


@contextlib.contextmanager
def _patience_told(process: Process) -> Iterator[None]:
    """Say when a claim did not wait any longer for others, who may be suspended for ever here."""
    wait = Patience.wait

    def told(patience: Patience) -> bool:
        goes_on = wait(patience)
        if not goes_on:
            process.note("lost patience")
        return goes_on

    store = store_of(process)
    make = store._ownership.patience

    def patience(most_seconds: float = math.inf) -> Patience:
        made = make(most_seconds)
        made.wait = lambda: told(made)  # type: ignore[method-assign]
        return made

    store._ownership.patience = patience  # type: ignore[method-assign]
    try:
        yield
    finally:
        del store._ownership.patience


def pausing(*, resume: bool = False) -> Program:
    """Pause the type, and resume it."""

    def program(process: Process) -> None:
        store = store_of(process)
        with promised():
            store.pause("work")
            process.note("paused")
            if resume:
                process.ops.turn()
                process.note("resumed")
                store.unpause("work")

    return program
