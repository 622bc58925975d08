"""A commit races a take-over: ``python -m tests.lease.faults.window <place> --rounds N [--no-purge]``.

Owns the race of two processes inside the kernel. A holder can be suspended after the kernel has walked the path of the
file that it publishes and before it is renamed; the rename then lands whatever has happened to the path meanwhile.
Both run the real store; its system calls wait for each other just before the two renames that matter. A commit is late
if it lands after the taker has read the record. ``--no-purge`` leaves the former holder's staging directory alone,
which must let some through, or else the race shows nothing here. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import mmap
import os
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from stores.files.ops import FileOps
from task_tracker import transitions
from task_tracker.clock import SYSTEM_CLOCK, wall_ns
from task_tracker.errors import LeaseLost
from task_tracker.store import Expired, Lease, LeaseStore, Stored
from tests.files.support import StepClock
from tests.lease.faults.aftermath import (
    AGE_SECONDS,
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    key_of,
    open_lease_store,
)
from tests.lease.faults.scenes import TASK, record_of

HOLDER, TAKER, HELD, READY, DONE, NEXT, LANDED, BROKEN = range(8)
"""Places in the memory that both share."""

SPINS: Final = 300
DELAYS: Final = 400
"""The two set out up to so many turns of an empty loop apart, in either order."""


class Board:
    """Numbers in memory that both processes see."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def __getitem__(self, place: int) -> int:
        return int(struct.unpack_from("=q", self._memory, place * 64)[0])

    def __setitem__(self, place: int, value: int) -> None:
        struct.pack_into("=q", self._memory, place * 64, value)

    def wait(self, place: int, value: int) -> None:
        """Spin until a number has been reached; give the processor away where that takes long."""
        while True:
            for _ in range(SPINS):
                if self[place] >= value:
                    return
            if self[BROKEN]:
                raise SystemExit(1)
            os.sched_yield()

    def close(self) -> None:
        self._memory.close()


class GatedOps(FileOps):
    """System calls of which the rename in question waits until the other process has come to its own."""

    def __init__(self, board: Board, me: int, other: int, matters: Callable[[str, str], bool]) -> None:
        self._board = board
        self._me = me
        self._other = other
        self._matters = matters
        self.round = 0
        """In which round to wait; 0: not at all."""
        for name in ("rename", "replace", "exchange"):
            setattr(self, name, self._gated(getattr(FileOps, name)))

    def _gated(self, rename: Callable[..., None]) -> Callable[..., None]:
        def call(source: str, target: str) -> None:
            if self.round and self._matters(source, target):
                self._meet()
            rename(source, target)

        return call

    def _meet(self) -> None:
        number, self.round = self.round, 0
        delay = _delay(number) * (1 if self._me == HOLDER else -1)
        self._board[self._me] = number
        self._board.wait(self._other, number)
        for _ in range(delay):
            pass


class ForgetfulOps(GatedOps):
    """The mutant: whoever takes an entry over sees nothing in it, and so leaves the former holder's stage."""

    def __init__(self, board: Board, me: int, other: int, matters: Callable[[str, str], bool]) -> None:
        super().__init__(board, me, other, matters)
        self.blind = False
        setattr(self, "listdir", self._listdir)  # noqa: B010  # it is a static method there

    def _listdir(self, path: str) -> list[str]:
        return [] if self.blind and path.endswith("~") else os.listdir(path)


def _delay(number: int) -> int:
    """How much later the holder sets out: the same in every run, spread over both orders."""
    return number * 7919 % (2 * DELAYS) - DELAYS


@dataclasses.dataclass
class Tally:
    rounds: int = 0
    landed: int = 0
    lost: int = 0
    late: int = 0


class Taker:
    """The process that takes over, and counts."""

    def __init__(self, root: Path, board: Board, durability: str, *, purge: bool) -> None:
        self._root = root
        self._board = board
        self._clock = StepClock(SYSTEM_CLOCK.now())
        kind = GatedOps if purge else ForgetfulOps
        self._ops = kind(board, TAKER, HOLDER, lambda _, target: target.endswith("~"))
        self._store: LeaseStore = open_lease_store(root, self._clock, ops=self._ops, durability=durability)
        self._record = root / "local" / "acme" / "tasks" / "alice" / f"{TASK}.json"
        self._leases = root / "local" / ".task_tracker" / "leases" / "00"
        self.tally = Tally()

    def run(self, rounds: int) -> None:
        for number in range(1, rounds + 1):
            self._board.wait(HELD, number)
            self._round(number)

    def _round(self, number: int) -> None:
        expired = self._watch()
        self._board[READY] = number
        self._ops.round = number
        if isinstance(self._ops, ForgetfulOps):
            self._ops.blind = True
        taken = self._store.take_over(expired, holder="taker", count_attempt=False)
        if isinstance(self._ops, ForgetfulOps):
            self._ops.blind = False
        self._board.wait(DONE, number)
        assert taken is not None, "the take-over did not happen"
        lease, stored = taken
        self.tally.rounds += 1
        if self._board[LANDED]:
            self.tally.landed += 1
        else:
            self.tally.lost += 1
        if self._read() != stored.record.message:
            self.tally.late += 1
        self._give_back(lease)
        self._board[NEXT] = number

    def _watch(self) -> Expired:
        """See the lease expire, as a watcher does in half a minute."""
        old = wall_ns() - AGE_SECONDS * 10**9
        for entry in os.scandir(self._leases):
            os.utime(entry.path, ns=(old, old))
        self._store.expired()
        self._clock.advance(LEASE_SECONDS + 2 * HEARTBEAT_SECONDS + 1)
        (expired,) = self._store.expired()
        return expired

    def _read(self) -> object:
        """The record's message, read by nobody's code but Python's."""
        return json.loads(self._record.read_bytes()).get("message")

    def _give_back(self, lease: Lease) -> None:
        stored = self._store.get(lease.key)
        assert isinstance(stored, Stored)
        self._store.release(lease, transitions.released(stored.record, self._clock.now()))


def hold(root: Path, board: Board, durability: str, rounds: int) -> None:
    """Be the holder: claim, commit when the taker is ready, in every round."""
    ops = GatedOps(board, HOLDER, TAKER, lambda source, _: "/stage-" in source)
    store = open_lease_store(root, StepClock(SYSTEM_CLOCK.now()), ops=ops, durability=durability)
    store.create(record_of())
    for number in range(1, rounds + 1):
        claimed = store.claim(key_of(TASK), holder="holder")
        assert claimed is not None
        lease, stored = claimed
        board[HELD] = number
        board.wait(READY, number)
        ops.round = number
        try:
            store.commit(lease, stored.record.changed(message=f"round {number}"))
            board[LANDED] = 1
        except LeaseLost:
            board[LANDED] = 0
        finally:
            ops.round = 0
        board[DONE] = number
        board.wait(NEXT, number)


def race(root: Path, durability: str, rounds: int, *, purge: bool) -> Tally:
    """Run both; return what was counted. Called in a process without other threads."""
    board = Board()
    open_lease_store(root, StepClock()).close()
    pid = os.fork()
    if not pid:
        _be_holder(root, board, durability, rounds)
    taker = Taker(root, board, durability, purge=purge)
    try:
        taker.run(rounds)
    except BaseException:
        board[BROKEN] = 1
        raise
    finally:
        _, status = os.waitpid(pid, 0)
    assert status == 0, "the holder failed; its error is above"
    board.close()
    return taker.tally


def _be_holder(root: Path, board: Board, durability: str, rounds: int) -> None:
    code = 1
    try:
        hold(root, board, durability, rounds)
        code = 0
    except BaseException:  # noqa: BLE001  # shown, and the other is told
        traceback.print_exc()
        board[BROKEN] = 1
    finally:
        sys.stderr.flush()
        os._exit(code)


def verdict(tally: Tally, *, purge: bool) -> str:
    """What a race has shown."""
    if not tally.landed:
        return "inconclusive: no commit ever landed"
    if purge:
        return "safe" if tally.late == 0 else f"{tally.late} commits were late"
    if tally.late == 0:
        return "inconclusive: without the purge no commit was late either, so this machine does not show the window"
    return "shown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument(
        "--durability", default="edges", help="none swaps the files, edges replaces the old one"
    )
    parser.add_argument("--no-purge", action="store_true")
    given = parser.parse_args()
    tally = race(given.place, given.durability, given.rounds, purge=not given.no_purge)
    answer: dict[str, Any] = dataclasses.asdict(tally)
    answer["verdict"] = verdict(tally, purge=not given.no_purge)
    print(json.dumps(answer))  # noqa: T201  # that is how it answers


if __name__ == "__main__":
    main()
