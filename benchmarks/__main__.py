"""``make bench``: print the table of ratios; exit with 1 if a target was missed, with 2 for names of no part."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import (
    agfs,
    backends,
    importing,
    leases,
    life,
    listing,
    objects,
    postgres,
    reading,
    wakeups,
    workers,
)
from benchmarks.measure import Row, file_system

SCRATCH = Path(__file__).resolve().parent.parent / ".bench"
MEMORY_DISK = Path("/dev/shm")


def main() -> int:
    """Run everything."""
    memory_disk = MEMORY_DISK if file_system(MEMORY_DISK) == "tmpfs" else None
    parts: list[tuple[str, Callable[[], Iterable[Row]]]] = [
        ("import", importing.rows),
        ("get", lambda: reading.rows(SCRATCH, memory_disk)),
        ("life", lambda: life.rows(SCRATCH, memory_disk)),
        ("listing", lambda: listing.rows(SCRATCH, memory_disk)),
        ("leases", lambda: leases.rows(SCRATCH, memory_disk)),
        ("agfs", lambda: agfs.rows(SCRATCH)),
        ("objects", objects.rows),
        ("workers", lambda: workers.rows(SCRATCH, memory_disk)),
        ("postgres", lambda: postgres.rows(SCRATCH)),
        ("wakeups", lambda: wakeups.rows(SCRATCH)),
    ]
    asked = sys.argv[1:] or [name for name, _ in parts]
    parts.append(("backends", lambda: backends.rows(SCRATCH)))  # a comparison, only if it is asked for
    if unknown := [name for name in asked if name not in dict(parts)]:
        print(
            f"no benchmark is called {', '.join(unknown)}; there are {', '.join(dict(parts))}",
            file=sys.stderr,
        )
        return 2
    missed = 0
    print(f'"on disk" is {SCRATCH}, on {file_system(SCRATCH.parent)}')
    print(f'"tmpfs" is {memory_disk}' if memory_disk else f"no rows for tmpfs: {MEMORY_DISK} is none")
    print(f"{'':6} {'measured':>12}  {'target':>8}  what")
    try:
        for name, measure in parts:
            if name in asked:
                started = time.perf_counter()
                for row in measure():
                    missed += row.met is False
                    _print(row)
                print(f"       ({name}: {time.perf_counter() - started:.0f} s)")
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
    print(f"\n{missed} target(s) missed" if missed else "\nall targets met")
    return 1 if missed else 0


def _print(row: Row) -> None:
    mark = {True: "ok", False: "MISSED", None: ""}[row.met]
    target = "" if row.target is None else f"<= {row.target:g}"
    detail = f"  ({row.detail})" if row.detail else ""
    print(f"{mark:6} {row.value:9.2f} {row.unit:5} {target:>8}  {row.what}{detail}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
