"""What each process of the chaos wrote down: its intent before a call, what came of it afterwards.

Owns the format of the trace files and what is called progress. One file for each process, each line written
at once, times of a clock that all processes of a host share. Knows nothing of a store: the trace is the
independent witness.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["ENDED", "UNKNOWN", "Call", "Sight", "Trace", "read_traces", "sight_of"]

ENDED = frozenset({"completed", "failed", "cancelled"})

UNKNOWN = "unknown"
"""The outcome of a call that nobody has an answer of: its process was killed, or the store did not know."""


class Sight(NamedTuple):
    """A record as somebody saw it.

    ``life`` is the mark that its creator put into it: an id may come again. ``sequence`` counts the writes
    under one epoch.
    """

    life: str
    epoch: int
    sequence: int
    status: str
    message: str
    token: str | None

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def progress(self) -> tuple[int, int, bool]:
        """What may only grow from one sight of a life to the next."""
        return self.epoch, self.sequence, self.ended


def sight_of(record: Mapping[str, Any]) -> Sight:
    """Return what the JSON of a record shows."""
    attempt = record.get("attempt") or {}
    epoch = attempt.get("epoch", 0)
    message = record.get("message") or ""
    written, _, sequence = message.partition(".")
    return Sight(
        record.get("meta", {}).get("life", "?"),
        epoch,
        int(sequence) if written == str(epoch) else 0,  # else it is from before this claim
        record["status"],
        message,
        attempt.get("token"),
    )


@dataclasses.dataclass(frozen=True)
class Call:
    """One call and what came of it."""

    process: str
    name: str
    task: str
    asked: dict[str, Any]
    began: float
    ended: float
    outcome: str
    told: dict[str, Any]

    @property
    def sight(self) -> Sight | None:
        return Sight(*self.told["sight"]) if "sight" in self.told else None


class Trace:
    """The trace of one process."""

    def __init__(self, directory: Path, process: str) -> None:
        self._file = os.open(directory / f"trace-{process}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def intend(self, name: str, task: str, **asked: Any) -> None:
        self._write([name, task, asked, time.monotonic()])

    def outcome(self, word: str, **told: Any) -> None:
        self._write([time.monotonic(), word, told])

    def _write(self, line: list[Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def read_traces(directory: Path) -> list[Call]:
    """Return what all processes did."""
    return [call for path in sorted(directory.glob("trace-*")) for call in _calls(path)]


def _calls(path: Path) -> Iterator[Call]:
    process = path.name.removeprefix("trace-")
    intended: list[Any] | None = None
    # A process that was killed can have left half a line.
    lines = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    for line in [*lines, None]:
        if line is not None and len(line) == 3:
            assert intended is not None
            ended, outcome, told = line
            name, task, asked, began = intended
            yield Call(process, name, task, asked, began, ended, outcome, told)
            intended = None
            continue
        if intended is not None:
            name, task, asked, began = intended
            yield Call(process, name, task, asked, began, math.inf, UNKNOWN, {})
        intended = line
