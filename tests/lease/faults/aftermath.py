"""What is on disk after a fault, and how a fresh process brings all of it to a good end.

Owns the independent look (the standard library's ``json`` and ``os`` only), the ageing of what a dead process left,
and the way from any state to one in which nothing is left to do. Refuses to know how the store does its work.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from stores.files.lease.store import LeaseTaskStore
from stores.files.ops import FileOps
from task_tracker import transitions
from task_tracker.clock import SYSTEM_CLOCK, wall_ns
from task_tracker.errors import InvalidTransition, LeaseHeld, TaskNotFound
from task_tracker.records import TaskKey
from task_tracker.store import Lease, Stored
from tests.files.support import StepClock, swap

LEASE_SECONDS: Final = 30.0
HEARTBEAT_SECONDS: Final = 10.0
MOST_ROUNDS: Final = 12
AGE_SECONDS: Final = 3 * 86_400
"""Older than anything that a live process could still be at."""

CONTROL: Final = ".task_tracker"
LASTING: Final = ("format", "opened", "now")
"""Files of the control directory whose time stamps say something else than that somebody is at work."""
TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})
ABSENT: Final = "absent"


# ---- the independent look --------------------------------------------------------------------------------


def record_paths(root: Path) -> list[Path]:
    """All records' files."""
    return sorted(root.glob("local/*/tasks/*/*.json"))


def documents(root: Path) -> dict[str, dict[str, Any]]:
    """Every record by its task id. Raises AssertionError for one that is not whole."""
    found = {}
    for path in record_paths(root):
        data = path.read_bytes()
        try:
            document = json.loads(data)
        except ValueError as error:
            raise AssertionError(f"{path.name} is not whole: {data[:60]!r} ({len(data)} bytes)") from error
        assert isinstance(document, dict), f"{path.name} holds no object"
        missing = {"task_id", "status", "created_at", "account_id", "user_id"} - document.keys()
        assert not missing, f"{path.name} lacks {missing}"
        assert document["task_id"] == path.name.removesuffix(".json"), f"{path.name} is another task's"
        found[document["task_id"]] = document
    return found


def word(document: dict[str, Any] | None) -> str:
    """A record in one word: its state and its message."""
    if document is None:
        return ABSENT
    message = document.get("message")
    return str(document["status"]) + (f":{message}" if message else "")


def words(root: Path) -> dict[str, str]:
    """Every record in one word, and every type that is paused."""
    paused = root / "local" / CONTROL / "paused"
    types = [path.name for path in paused.iterdir()] if paused.is_dir() else []
    return {
        **{task_id: word(document) for task_id, document in documents(root).items()},
        **{f"type {name}": "paused" for name in types if not name.startswith("~")},
    }


def epoch_of(document: dict[str, Any]) -> int:
    """The epoch of the last claim that wrote a record."""
    return int((document.get("attempt") or {}).get("epoch", 0))


# ---- time passes -----------------------------------------------------------------------------------------


def age(root: Path) -> None:
    """Make everything look as if nobody had touched it for days. A second time changes nothing."""
    limit = wall_ns() - AGE_SECONDS * 10**9
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            path = os.path.join(directory, name)
            if name in LASTING or name.endswith(".json"):
                continue
            with contextlib.suppress(FileNotFoundError):
                if os.lstat(path).st_mtime_ns > limit:
                    os.utime(path, ns=(limit, limit - 10**9))


# ---- a good end ------------------------------------------------------------------------------------------


def open_lease_store(
    root: Path, clock: StepClock, ops: FileOps | None = None, **options: Any
) -> LeaseTaskStore:
    """A store as all of these tests use it: few directories to look through, a plain lease.

    Nobody sleeps: where it waits for another process, its clock goes on.
    """
    ops = FileOps() if ops is None else ops
    swap(ops, pause=clock.advance)
    given: dict[str, Any] = {
        "ops": ops,
        "durability": "edges",
        "shards": 1,
        "lease_seconds": LEASE_SECONDS,
    } | options
    return LeaseTaskStore(root, clock=clock, heartbeat_seconds=HEARTBEAT_SECONDS, **given)


class Watcher:
    """A fresh process that finds a root as a fault left it."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.clock = StepClock(SYSTEM_CLOCK.now())
        self.store = open_lease_store(root, self.clock, **options)

    def expired(self) -> Iterator[tuple[Lease, Stored]]:
        """Take over all that nobody seems to hold, having watched it for two heartbeat periods."""
        age(self.root)
        self.store.recover()
        self.store.expired()
        self.clock.advance(LEASE_SECONDS + 2 * HEARTBEAT_SECONDS + 1)
        for found in self.store.expired():
            before = documents(self.root).get(found.record.task_id)
            taken = self.store.take_over(found, holder="watcher", count_attempt=False)
            if taken is not None:
                if before is not None:
                    lease = taken[0]
                    assert lease.epoch > epoch_of(before), f"epoch {lease.epoch} after {epoch_of(before)}"
                yield taken

    def pending(self) -> Iterator[tuple[Lease, Stored]]:
        """Claim all that waits."""
        for waiting in self.store.unclaimed(limit=100):
            with contextlib.suppress(LeaseHeld, TaskNotFound, InvalidTransition):
                before = documents(self.root).get(waiting.record.task_id)
                claimed = self.store.claim(waiting.record.key, holder="watcher", count_attempt=False)
                if claimed is not None:
                    if before is not None:
                        assert claimed[0].epoch > epoch_of(before), "an epoch came again"
                    yield claimed

    def take_all(self) -> dict[str, Lease]:
        """Hold every task that is active, by id, whoever held it before."""
        return {lease.key.task_id: lease for source in (self.expired, self.pending) for lease, _ in source()}

    def settle_held(self, leases: dict[str, Lease]) -> None:
        """End what :meth:`take_all` took."""
        for lease in leases.values():
            stored = self.store.get(lease.key)
            assert isinstance(stored, Stored)
            self.store.end(lease, transitions.completed(stored.record, self.clock.now(), b"1"))

    def settle(self) -> None:
        """End whatever is active and mend what is left over, until there is nothing to do."""
        left: list[str] = []
        for _ in range(MOST_ROUNDS):
            for lease, stored in self.expired():
                now = self.clock.now()
                wanted = lease.cancel_requested.is_set()
                self.store.end(lease, transitions.abandoned(stored.record, now, cancel_requested=wanted))
            for lease, stored in self.pending():
                self.store.end(lease, transitions.never_started(stored.record, self.clock.now()))
            age(self.root)
            self.store.examine(fix=True)
            self.store.purge({}, limit=1000)
            left = unfinished(self.root)
            if not left:
                break
        assert not left, f"after {MOST_ROUNDS} rounds there is still {left}"
        assert not self.store.facts(), "whoever said something has been dead for days"
        findings = self.store.examine()
        assert not findings, f"examine still finds {findings}"

    def report_torn(self) -> None:
        """See that records that are not whole are reported, keep nobody else from being settled, and are left alone.

        Then do what the report says: remove them.
        """
        torn = {path for path in record_paths(self.root) if not _is_whole(path)}
        if torn:
            self.store.recover()
            self.store.expired()
            found = {Path(one.where) for one in self.store.examine(fix=True) if one.kind == "corrupt_record"}
            assert found == torn, f"reported are {found}, not {torn}"
            for path in torn:
                path.unlink()

    def close(self) -> None:
        self.store.close()


def settle(root: Path, *, torn: bool = False) -> dict[str, str]:
    """Let a fresh process bring ``root`` to a good end; return the final words. ``torn``: some may not be whole."""
    watcher = Watcher(root)
    try:
        if torn:
            watcher.report_torn()
        before = words(root)
        watcher.settle()
        if not torn:  # which type a torn file pauses cannot be said: that is said
            watcher.store.paused()
    finally:
        watcher.close()
    after = words(root)
    for task_id, was in before.items():
        if was.partition(":")[0] in TERMINAL:
            assert after.get(task_id) == was, f"{task_id} had ended as {was} and is {after.get(task_id)} now"
        else:
            assert task_id in after, f"{task_id} was {was} and is gone"
    return after


def unfinished(root: Path) -> list[str]:
    """What there is still to do: active records, and files and entries that no live task needs."""
    active = [
        f"{task_id} is {document['status']}"
        for task_id, document in documents(root).items()
        if document["status"] not in TERMINAL
    ]
    return active + left_over(root)


def left_over(root: Path) -> list[str]:
    """Names below ``root`` that mean something is under way."""
    control = root / "local" / CONTROL
    return [
        str(path.relative_to(root))
        for path in sorted(root.rglob("*"))
        if path.name.startswith(".tmp-") or (path.is_relative_to(control) and _is_unfinished(path))
    ]


def _is_unfinished(path: Path) -> bool:
    """Tell whether something below the control directory is there for a while only."""
    if path.is_file():
        mark = path.parent.name == CONTROL and "-" not in path.name  # those that come and go have a token
        is_paused = path.parent.name == "paused" and not path.name.startswith("~")
        return not mark and not is_paused and path.parent.name != "adopt"
    return "@" in path.name or path.parent.name == "deletes"


def _is_whole(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except ValueError:
        return False


def key_of(task_id: str) -> TaskKey:
    """The key of a task of acme/alice, whose tasks all of these are."""
    return TaskKey("acme", "alice", task_id)
