"""Whoever looks at the record files all the time, with nothing but ``open`` and ``json``.

Owns what was seen: for each record each sight that differs from the one before, with the time of the first and
the last look that gave it. Knows nothing of the library.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.lease.processes.trace import Sight, sight_of

__all__ = ["Seen", "observe", "read_seen"]


class Seen(NamedTuple):
    """One sight of a task: no earlier look gave it after ``first_ended``, and the look at ``last_began`` did."""

    task: str
    sight: Sight
    first_began: float
    first_ended: float
    last_began: float


def observe(accounts: Path, output: Path, stopped: Callable[[], bool]) -> None:
    """Look at all records below ``accounts`` again and again; one last time once ``stopped``."""
    seen: dict[str, Seen] = {}
    with output.open("w") as out:

        def forget(task: str) -> None:
            gone = seen.pop(task, None)
            if gone is not None:
                out.write(json.dumps(gone) + "\n")

        last = False
        while not last:
            last = stopped()
            there = set()
            for path in _records(accounts):
                user, task_id = path.parent.name, path.name.removesuffix(".json")
                task = f"{path.parent.parent.parent.name}/{user}/{task_id}"
                began = time.monotonic()
                try:
                    data = path.read_bytes()
                except FileNotFoundError:
                    continue
                ended = time.monotonic()
                sight = _sight(data)
                there.add(task)
                known = seen.get(task)
                if known is not None and known.sight == sight:
                    seen[task] = known._replace(last_began=began)
                    continue
                forget(task)
                seen[task] = Seen(task, sight, began, ended, began)
            for task in seen.keys() - there:
                forget(task)
        for task in [*seen]:
            forget(task)


def _records(accounts: Path) -> list[Path]:
    found = []
    for folder in accounts.glob("*/tasks/*"):
        found += [folder / name for name in os.listdir(folder) if name.endswith(".json")]
    return found


def _sight(data: bytes) -> Sight:
    try:
        return sight_of(json.loads(data))
    except ValueError:
        return Sight("?", 0, 0, "torn", data.decode(errors="replace"), None)


def read_seen(path: Path) -> list[Seen]:
    """Return what an observer saw."""
    found = []
    for line in path.read_text().splitlines():
        task, sight, *times = json.loads(line)
        found.append(Seen(task, Sight(*sight), *times))
    return found
