"""What leases cost: writes under them against unfenced ones, heartbeats, claims, and passes of the reconciler.

Counts of tasks are made where files are cheapest (in memory, if there is such a disk): what depends on a count
does so there as well.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks.measure import Row, directory, paired
from stores import PersistentTaskStore
from stores.files.lease.store import LeaseTaskStore
from task_tracker import TaskRecord, TaskStatus
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.codec import encode_record
from task_tracker.store import Lease, Stored

ACCOUNT, USER = "acme", "alice"
TYPE = "session_commit"
PROCESSES = 2
FEW, MANY = 1000, 100_000
RUNNING = 1000

MOST_FOR_A_COMMIT = 1.15
MOST_FOR_A_HEARTBEAT = 3.0
MOST_FOR_A_LIFE = 2.5
MOST_FOR_A_BACKLOG = 2.0
MOST_FOR_HISTORY = 1.2


def rows(disk: Path, memory_disk: Path | None) -> list[Row]:
    """Measure what has a target on disk, and the same on tmpfs; what depends on a count on one of the two."""
    found = []
    for base, where, counts in ((disk, "on disk", True), (memory_disk, "tmpfs", False)):
        if base is None:
            continue
        for durability, rounds in (("none", 30), ("edges", 20)):
            found.append(_commit(base, where, durability, rounds, MOST_FOR_A_COMMIT if counts else None))
        found.append(_heartbeat(base, where, MOST_FOR_A_HEARTBEAT if counts else None))
        found.append(_life(base, where, MOST_FOR_A_LIFE if counts else None))
    place = (disk, "on disk") if memory_disk is None else (memory_disk, "tmpfs")
    found.append(_backlog(*place, "a second apart", spread_seconds=1.0))
    found.append(_backlog(*place, "a thousand a second", spread_seconds=0.001))
    found.append(_pass(*place))
    return found


def _record(number: int, created_at: float, status: TaskStatus = TaskStatus.PENDING) -> TaskRecord:
    return TaskRecord(
        SYSTEM_CLOCK.new_id(created_at),
        TYPE,
        status,
        created_at,
        created_at,
        ACCOUNT,
        USER,
        resource_id=f"sess-{number}",
        handler_version=1,
    )


def _claimed(store: LeaseTaskStore, number: int = 0) -> tuple[Lease, Stored]:
    record = _record(number, SYSTEM_CLOCK.now())
    store.create(record)
    claimed = store.claim(record.key, holder="benchmark")
    assert claimed is not None
    return claimed


# ---- one task ----------------------------------------------------------------------------------------------


def _commit(base: Path, where: str, durability: str, rounds: int, target: float | None) -> Row:
    numbers = itertools.count()
    with directory(base) as root, directory(base) as plain_root:
        leases = LeaseTaskStore(root, durability=durability, lease_seconds=3600)
        lease, stored = _claimed(leases)
        record = stored.record
        plain = PersistentTaskStore(plain_root, durability=durability)
        plain.create(record)
        ours, theirs, ratio = paired(
            lambda: leases.commit(lease, record.changed(message=f"page {next(numbers)}")),
            lambda: plain.update(record.changed(message=f"page {next(numbers)}"), expected=None),
            rounds=rounds,
        )
    what = f"commit / update of the persistent store, {where}, durability {durability}"
    return Row(what, ratio, "x", target, f"{ours:.0f} us / {theirs:.0f} us")


def _heartbeat(base: Path, where: str, target: float | None) -> Row:
    with directory(base) as root:
        store = LeaseTaskStore(root, durability="none", lease_seconds=3600)
        lease, _ = _claimed(store)
        (entry,) = (root / "local/.task_tracker/leases").glob("*/*")
        path = os.fspath(entry)
        ours, floor, ratio = paired(lambda: store.renew(lease), lambda: os.utime(path), times=200)
    return Row(f"heartbeat / os.utime, {where}", ratio, "x", target, f"{ours:.1f} us / {floor:.1f} us")


def _life(base: Path, where: str, target: float | None) -> Row:
    rounds, times = 30, 50
    with directory(base) as root, directory(base) as floor_root:
        store = LeaseTaskStore(root, durability="none", lease_seconds=3600)
        records = [_record(number, SYSTEM_CLOCK.now()) for number in range(rounds * times)]
        for record in records:
            store.create(record)
        waiting = iter(records)

        def live() -> None:
            claimed = store.claim(next(waiting).key, holder="benchmark")
            assert claimed is not None
            lease, stored = claimed
            stored = store.commit(lease, stored.record.changed(message="half of it", progress=50.0))
            store.end(lease, stored.record.changed(status=TaskStatus.COMPLETED, result_json=b"{}"))

        document = encode_record(records[0].changed(status=TaskStatus.RUNNING))
        ours, floor, ratio = paired(live, _three_writes(floor_root, document), rounds=rounds, times=times)
    what = f"claim + commit + end / three times temp + rename, {where}, durability none"
    return Row(what, ratio, "x", target, f"{ours:.0f} us / {floor:.0f} us")


def _three_writes(root: Path, document: bytes) -> Callable[[], object]:
    """The floor: a file that is written and renamed into place three times, under a name of its own."""
    numbers = itertools.count()

    def write() -> None:
        target, temporary = f"{root}/{next(numbers)}.json", f"{root}/temporary"
        for _ in range(3):
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.write(handle, document)
            os.close(handle)
            os.replace(temporary, target)

    return write


# ---- many tasks ----------------------------------------------------------------------------------------------


def _backlog(base: Path, where: str, how: str, *, spread_seconds: float) -> Row:
    with directory(base) as many_root, directory(base) as few_root:
        many, few = (
            _waiting(root, size, spread_seconds) for root, size in ((many_root, MANY), (few_root, FEW))
        )
        ours, theirs, ratio = paired(many, few, rounds=10, times=20)
    what = f"claiming the next of {MANY:,} / of {FEW:,} waiting, created {how}, {where}"
    return Row(what, ratio, "x", MOST_FOR_A_BACKLOG, f"{ours:.0f} us / {theirs:.0f} us")


def _waiting(root: Path, size: int, spread_seconds: float) -> Callable[[], object]:
    """Create so many tasks and return how to claim the next one, which checks that it is the oldest left."""
    LeaseTaskStore(root, durability="none")
    # Both sizes at the same pace and from a full second on: all that differs is how many there are.
    started = math.floor(SYSTEM_CLOCK.now() - size * spread_seconds)
    pids = []
    for process in range(PROCESSES):
        pid = os.fork()
        if not pid:
            _create_and_exit(root, range(process, size, PROCESSES), started, spread_seconds)
        pids.append(pid)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    store = LeaseTaskStore(root, durability="none", lease_seconds=3600, prepared=True)
    last = 0.0

    def claim() -> None:
        nonlocal last
        claimed = store.claim(holder="benchmark", task_types=[(TYPE, 1)])
        assert claimed is not None
        assert claimed[0].created_at >= last, "oldest first"
        last = claimed[0].created_at

    claim()
    return claim


def _create_and_exit(root: Path, numbers: Iterable[int], started: float, spread_seconds: float) -> None:
    """Create some of the tasks, as a forked child. Never returns."""
    code = 1
    try:
        store = LeaseTaskStore(root, durability="none", prepared=True)
        for number in numbers:
            store.create(_record(number, round(started + number * spread_seconds, 6)))
        code = 0
    except BaseException:  # noqa: BLE001  # shown, and told by the exit code
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _pass(base: Path, where: str) -> Row:
    with directory(base) as long_root, directory(base) as short_root:
        _finish(long_root, MANY)
        with_history, without = _reconciling(long_root), _reconciling(short_root)
        ours, theirs, ratio = paired(with_history, without, rounds=10, times=5)
    what = f"reconcile pass, {RUNNING:,} running, with {MANY:,} finished / without, {where}"
    return Row(what, ratio, "x", MOST_FOR_HISTORY, f"{ours / 1000:.1f} ms / {theirs / 1000:.1f} ms")


def _finish(root: Path, size: int) -> None:
    """Write records of ended tasks behind the store's back; nothing else is left of such tasks."""
    LeaseTaskStore(root, durability="none")
    folder = root / "local" / ACCOUNT / "tasks" / USER
    folder.mkdir(parents=True)
    for record in _ended(size):
        (folder / f"{record.task_id}.json").write_bytes(encode_record(record))


def _ended(size: int) -> Iterator[TaskRecord]:
    started = SYSTEM_CLOCK.now() - size
    for number in range(size):
        yield _record(number, round(started + number, 6), TaskStatus.COMPLETED)


def _reconciling(root: Path) -> Callable[[], object]:
    store = LeaseTaskStore(root, durability="none", lease_seconds=3600)
    for number in range(RUNNING):
        _claimed(store, number)
    store.recover()  # what was left to do is done

    def look() -> None:
        assert store.recover() == 0
        assert not store.expired()

    return look
