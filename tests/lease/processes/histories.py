"""Records histories: ``python -m tests.lease.processes.histories <json>``, and threads for a store in memory.

Owns forking the processes (a fork costs a hundredth of starting Python), starting every history together, and
killing one of them in the last history of each batch. What they noted is in files, one for each process, so
that it survives the process.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random  # noqa: TID251  # seeded: who is killed, and when
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stores.files.ops import FileOps
from task_tracker.records import TaskKey
from task_tracker.registry import open_store
from task_tracker.store import StoreOptions, TaskStore
from task_tracker.testing.racing import race
from tests.lease.processes.actors import Actor
from tests.lease.processes.linear import Event

__all__ = ["History", "record_histories", "record_threads"]

PROJECT = Path(__file__).resolve().parent.parent.parent.parent
ACTORS = 4
BATCH = 5
"""Histories that one set of processes and one root are used for."""
PATIENCE_SECONDS = 600.0
PAUSED = 0.1
"""Of all system calls."""
LONGEST_PAUSE_SECONDS = 0.0003

History = list[Event]


class FileNotes:
    """Notes of one process, each line written at once."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.history = ""

    def begin(self, call: str, asked: tuple[Any, ...]) -> None:
        self._write([self.history, call, asked, time.monotonic()])

    def end(self, answer: tuple[Any, ...] | None) -> None:
        self._write([time.monotonic(), answer])

    def _write(self, line: list[Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


class ListNotes:
    """Notes of one thread."""

    def __init__(self, process: int) -> None:
        self._process = process
        self.events: History = []
        self._begun: tuple[str, tuple[Any, ...], float] | None = None

    def begin(self, call: str, asked: tuple[Any, ...]) -> None:
        self._begun = (call, asked, time.monotonic())

    def end(self, answer: tuple[Any, ...] | None) -> None:
        ended = time.monotonic()
        assert self._begun is not None
        call, asked, began = self._begun
        self.events.append(
            Event(self._process, call, asked, answer, began, math.inf if answer is None else ended)
        )


# ---- the test's side -----------------------------------------------------------------------------------


def record_histories(
    backend: str, options: dict[str, Any], directory: Path, *, number: int, seed: int, robbing: bool = False
) -> tuple[list[History], int]:
    """Return that many histories of processes on ``backend``, and how many of the processes were killed."""
    order = {
        "backend": backend,
        "options": options,
        "directory": str(directory),
        "number": number,
        "seed": seed,
        "robbing": robbing,
    }
    with tempfile.TemporaryDirectory(dir=directory) as place:
        order["directory"] = place
        with subprocess.Popen(
            [sys.executable, "-m", "tests.lease.processes.histories", json.dumps(order)],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                told, _ = process.communicate(timeout=PATIENCE_SECONDS)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, "the recorder failed; its error is above"
        histories: dict[str, History] = defaultdict(list)
        for path in sorted(Path(place).glob("notes-*")):
            for history, event in _events(path):
                histories[history].append(event)
    return [*histories.values()], json.loads(told)["killed"]


def _events(path: Path) -> Iterator[tuple[str, Event]]:
    process = int(path.name.rpartition("-")[2])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    begun: list[Any] | None = None
    for line in [*lines, None]:
        if line is not None and begun is not None and len(line) == 2:
            ended, answer = line
            yield begun[0], _event(process, begun, answer, ended)
            begun = None
            continue
        if begun is not None:
            yield begun[0], _event(process, begun, None, math.inf)
        begun = line


def _event(process: int, begun: list[Any], answer: list[Any] | None, ended: float) -> Event:
    _, call, asked, began = begun
    return Event(
        process,
        call,
        tuple(tuple(value) if isinstance(value, list) else value for value in asked),
        None if answer is None else tuple(answer),
        began,
        math.inf if answer is None else ended,
    )


def record_threads(store: TaskStore, *, seed: int, robbing: bool = False, blind: bool = False) -> History:
    """Return one history of threads of this process, on a task of its own."""
    notes = [ListNotes(index) for index in range(ACTORS)]
    key = TaskKey("acme", "alice", f"history-{seed}")

    def act(index: int) -> None:
        actor = Actor(f"p{index}", store, key, f"{seed}/{index}", notes[index], blind=blind, robbing=robbing)
        _act(actor, index, f"{seed}/{index}")

    outcomes = race(*(lambda index=index: act(index) for index in range(ACTORS)))
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    last = ListNotes(ACTORS)
    Actor("last", store, key, "last", last, blind=True, robbing=False).step("get")
    return [event for noted in (*notes, last) for event in noted.events]


def _act(actor: Actor, index: int, seed: str) -> None:
    """Make four to eight calls; the first process makes sure that there is a task."""
    calls = random.Random(f"calls {seed}").randint(4, 8)
    for number in range(calls):
        actor.step("create" if index == number == 0 else None)


# ---- the recorder's side ---------------------------------------------------------------------------------


def main(order: dict[str, Any]) -> None:
    # Imports what the processes need, before they are forked.
    first = dict(order["options"], root=str(Path(order["directory"]) / "first"))
    open_store(order["backend"], StoreOptions(**first)).close()
    killed = 0
    for batch in range(0, order["number"], BATCH):
        killed += _batch(order, batch, min(BATCH, order["number"] - batch))
    print(json.dumps({"killed": killed}))  # noqa: T201  # that is how it answers


def _batch(order: dict[str, Any], batch: int, size: int) -> int:
    """Fork the processes, have each history begin when all are ready for it, and wait for their end."""
    members = []
    for index in range(ACTORS):
        here, there = os.pipe(), os.pipe()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                _member(order, index, batch, size, ready=here[1], go=there[0])
                code = 0
            except Exception:  # noqa: BLE001  # shown, and told by the exit code
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(code)
        os.close(here[1])
        os.close(there[0])
        members.append((pid, here[0], there[1]))
    for _ in range(size + 1):
        alive = [member for member in members if os.read(member[1], 1)]
        for _, _, go in alive:
            with contextlib.suppress(BrokenPipeError):
                os.write(go, b"!")
    killed = 0
    for pid, ready, go in members:
        _, status = os.waitpid(pid, 0)
        killed += os.WIFSIGNALED(status)
        if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
            sys.exit(f"a process of batch {batch} failed")
        os.close(ready)
        os.close(go)
    return killed


def _interleave(dice: random.Random) -> None:
    """Have this process pause now and then before a system call, so that others come in between.

    On a busy machine each of them would otherwise make all its calls in one go.
    """

    def pausing(function: Callable[..., Any]) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if dice.random() < PAUSED:
                time.sleep(dice.uniform(0, LONGEST_PAUSE_SECONDS))
            return function(*arguments, **keywords)

        return staticmethod(call)

    for name in vars(FileOps):
        if not name.startswith("_") and name != "pause":
            setattr(FileOps, name, pausing(getattr(FileOps, name)))


def _member(order: dict[str, Any], index: int, batch: int, size: int, *, ready: int, go: int) -> None:
    directory, seed = Path(order["directory"]), order["seed"]
    _interleave(random.Random(f"pauses {seed}/{batch}/{index}"))
    options = dict(order["options"], root=str(directory / f"root-{batch}"))
    store = open_store(order["backend"], StoreOptions(**options))
    notes = FileNotes(directory / f"notes-{batch}-{index}")
    before: Actor | None = None
    victim = random.Random(f"victim {seed}/{batch}").randrange(ACTORS)
    for number in range(batch, batch + size):
        os.write(ready, b"!")
        os.read(go, 1)
        if before is not None and index == 0:
            before.step("get")  # after everybody's last call
        notes.history = str(number)
        name = f"{seed}/{number}/{index}"
        blind = number % 3 == 0
        key = TaskKey("acme", "alice", f"history-{number}")
        actor = Actor(f"p{index}", store, key, name, notes, blind=blind, robbing=order["robbing"])
        if number == batch + size - 1 and index == victim:
            # Nobody handles it: the kernel ends the process wherever it is.
            signal.setitimer(signal.ITIMER_REAL, random.Random(name).uniform(0.0002, 0.005))
        _act(actor, index, name)
        signal.setitimer(signal.ITIMER_REAL, 0)
        before = actor
    os.write(ready, b"!")
    os.read(go, 1)
    if index == (1 if victim == 0 else 0):
        notes.history = str(batch + size - 1)
        assert before is not None
        before.step("get")
    store.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
