"""Wherever a run stops, or whatever cannot be read: the next run comes to the same end, and nothing is passed over."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stores import InMemoryTaskStore, PersistentTaskStore
from stores.files.ops import FileOps
from task_tracker.copying import Copying, Outcome, Told
from task_tracker.errors import StoreUnavailable
from task_tracker.records import Attempt, TaskStatus
from task_tracker.testing import FaultyStore, RecordMaker
from tests.contract.harnesses import DirectoryHarness
from tests.copying.places import Pair, PassingClock, counts_of, name_of, read
from tests.lease.support import entries, expired_after
from tests.lease.support import open_store as open_lease

WRITES = {"create", "take_in", "update"}


class Stop(BaseException):
    """The end of a process, as far as one can have that in a thread."""


def stop() -> None:
    raise Stop


# ---- stopping ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [True, False])
def test_stopped_at_every_write(pair: Pair, after: bool) -> None:
    """[D016] Right before it or right after it: run again, it ends as if it had never been stopped."""
    make = pair.make()
    records = [pair.source.create(make(status=status)).record for status in [*KINDS, *KINDS]]
    pair.run()
    pair.source.update(read(pair.source, records[0].key).changed(message="later"), expected=None)
    records += [pair.source.create(make(status=status)).record for status in KINDS]
    for nth in range(1, 6):
        target = FaultyStore(pair.target)
        target.interrupt(stop, on=WRITES, nth=1, after=after)
        with contextlib.suppress(Stop):
            pair.run(target=target)
        written = sum(target.calls[name] for name in WRITES)
        assert written == (1 if nth <= (4 if after else 5) else 0), nth
    ran = pair.run()
    assert ran.is_equal
    assert sum(ran.counts.values()) == len(records)
    assert pair.run().counts == counts_of(same=len(records))


KINDS = [TaskStatus.PENDING, TaskStatus.COMPLETED, TaskStatus.FAILED]


@pytest.mark.parametrize("after", [True, False])
def test_writes_that_fail(pair: Pair, after: bool) -> None:
    """[D129] A write that failed, or whose answer was lost, is told; copied again, all is there."""
    make = pair.make()
    records = [pair.source.create(make(status=TaskStatus.FAILED)).record for _ in range(6)]
    target = FaultyStore(pair.target)
    for nth in (1, 3):
        target.fail(on=WRITES, nth=nth, after=after)
    ran = pair.run(target=target)
    assert ran.counts == counts_of(copied=4, failed=2)
    assert [told.outcome for told in ran.told] == [Outcome.FAILED] * 2
    assert ran.is_equal == after, "what counts is what is there"
    ran = pair.run()
    assert ran.is_equal
    assert ran.counts == (counts_of(same=6) if after else counts_of(same=4, copied=2))
    assert all(read(pair.target, record.key).status is TaskStatus.FAILED for record in records)


@pytest.mark.parametrize("side", ["source", "target"])
def test_store_that_does_not_answer_ends_the_run(plain: Pair, side: str) -> None:
    """[D071] After some failures in a row it is not the records: going on would be told as thousands of mistakes."""
    make = plain.make()
    for _ in range(20):
        plain.source.create(make())
    store = FaultyStore(getattr(plain, side))
    store.fail(on={"get", "take_in"}, forever=True)
    told: list[Told] = []
    stores = {"source": plain.source, "target": plain.target, side: store}
    copying = Copying(
        stores["source"], stores["target"], tell=told.append, clock=PassingClock(plain.old, plain.source)
    )
    with pytest.raises(StoreUnavailable):
        copying.copy()
    assert len(told) < 6
    with pytest.raises(StoreUnavailable):
        [*copying.compare()]
    store.heal()
    assert plain.run().is_equal


def test_killed_in_the_middle(tmp_path: Path) -> None:
    """[D005] [D016] kill -9, several times, and each time the same command again."""
    old = PersistentTaskStore(tmp_path / "old", durability="none")
    make = RecordMaker()
    number = 240
    for status in ([TaskStatus.COMPLETED] * 3 + [TaskStatus.PENDING]) * (number // 4):
        old.create(make(status=status, handler_version=1))
    command = [sys.executable, "-m", "task_tracker", "copy"]
    command += ["--from", f"persistent:{tmp_path / 'old'}", "--to", f"lease:{tmp_path / 'new'}"]
    records = tmp_path / "new/local/acme/tasks/alice"

    def there() -> int:
        return len([*records.glob("*.json")]) if records.exists() else 0

    for goal in (10, 60, 120):
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while there() < goal:
                assert running.poll() is None, "it ended before it could be killed"
        finally:
            running.send_signal(signal.SIGKILL)
            running.wait(60)
    before = there()
    assert goal <= before < number
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == "equal"
    assert f"source {number} records" in ended.stdout
    assert there() == number
    assert "copied 0," not in ended.stdout


SIGNALLED = """
import itertools, os, runpy, signal
from stores.files.persistent import PersistentTaskStore

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs without it
count, create = itertools.count(1), PersistentTaskStore.create

def created(self, *arguments, **options):
    if next(count) == 10:
        os.kill(os.getpid(), int(os.environ["SENT"]))
    return create(self, *arguments, **options)

PersistentTaskStore.create = created
runpy.run_module("task_tracker", run_name="__main__", alter_sys=True)
"""
"""The command, which is sent the signal as it writes the tenth record."""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_says_that_it_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals, code: int
) -> None:
    """Ctrl-C ends it in order, and so does a supervisor; what was copied is whole."""
    monkeypatch.setenv("SENT", str(int(sent)))
    old = PersistentTaskStore(tmp_path / "old", durability="none")
    make = RecordMaker()
    for _ in range(20):
        old.create(make(status=TaskStatus.COMPLETED))
    command = ["copy", "--from", f"persistent:{tmp_path / 'old'}", "--to", f"persistent:{tmp_path / 'new'}"]
    stopped = subprocess.run(
        [sys.executable, "-c", SIGNALLED, *command], capture_output=True, text=True, timeout=60, check=False
    )
    assert stopped.returncode == code
    assert 0 < len([*(tmp_path / "new/local/acme/tasks/alice").glob("*.json")]) < 20
    said = stopped.stderr
    assert said.splitlines()[-1].startswith("stopped")
    assert "again" in said
    assert "Traceback" not in said
    again = [sys.executable, "-m", "task_tracker", *command]
    ended = subprocess.run(again, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


# ---- records that cannot be read -----------------------------------------------------------------------------


@pytest.mark.parametrize("status", [TaskStatus.COMPLETED, TaskStatus.PENDING])
def test_corrupt_records_are_named_and_keep_nobody_from_moving(pair: Pair, status: TaskStatus) -> None:
    """[D069] [D070] Once in each pass, however many pages there are; at the source and at the target."""
    make = pair.make()
    good = [pair.source.create(make(status=status)).record for _ in range(5)]
    bad, shadowed = (pair.source.create(make(status=status)).record for _ in range(2))
    pair.old.plant(bad.key, b'{"half": ')
    pair.target.create(shadowed.changed(attempt=None, creation=None))
    pair.new.plant(shadowed.key, b'{"half": ')
    source, target = pair.old.open(), pair.new.open()
    ran = pair.run(page=2, source=source, target=target)
    assert ran.counts == counts_of(copied=5, unreadable=2)
    for told in (ran.told, ran.compared):
        assert [each.outcome for each in told] == [Outcome.UNREADABLE] * 2
        assert any(name_of(shadowed.key) == each.where and "target" in each.message for each in told)
        assert any(bad.task_id in each.message for each in told)
    assert not ran.is_equal
    assert all(read(target, record.key).status is status for record in good)
    assert pair.new.peek(shadowed.key) == b'{"half": '
    source.close()
    target.close()


def test_record_that_cannot_be_reached_is_told(plain: Pair) -> None:
    """[D071] A bad sector under an active record: the others are copied."""
    make = plain.make()
    records = [plain.source.create(make()).record for _ in range(4)]
    assert isinstance(plain.old, DirectoryHarness)
    source = FaultyStore(plain.source)
    source.fail(on="get", nth=2)
    ran = plain.run(source=source)
    assert ran.counts == counts_of(copied=3, failed=1)
    assert len(ran.tallies) == 1
    assert not ran.is_equal
    assert plain.run().is_equal
    assert len(records) == 4


def test_owner_that_cannot_be_listed_is_told(plain: Pair) -> None:
    """[D071] The others are copied; it is not taken for one without records."""
    make = plain.make()
    plain.source.create(make())
    plain.source.create(make(user_id="bob"))
    source = FaultyStore(plain.source)
    source.fail(on="list")
    ran = plain.run(source=source)
    assert ran.counts == counts_of(copied=1, failed=1)
    assert ran.told[0].where == "acme/alice"
    source.fail(on="owners", forever=True)
    ran = plain.run(source=source)
    assert ran.counts == counts_of(unreadable=1)
    assert not ran.is_equal
    assert ran.tallies == []


def test_id_that_the_target_cannot_keep(tmp_path: Path) -> None:
    """[D079] It is refused by name, and the others are copied."""
    source, target = InMemoryTaskStore(), PersistentTaskStore(tmp_path)
    make = RecordMaker()
    source.create(make("x" * 300, status=TaskStatus.COMPLETED))
    source.create(make(status=TaskStatus.COMPLETED))
    told: list[Told] = []
    counts = Copying(source, target, tell=told.append).copy()
    assert counts == counts_of(copied=1, failed=1)
    assert "300 bytes" in told[0].message


def test_task_that_is_deleted_meanwhile_is_not_missed(plain: Pair) -> None:
    """Between the list and the look at it: it is gone, which is no mistake."""
    make = plain.make()
    record = plain.source.create(make()).record
    ended = plain.source.create(make(status=TaskStatus.COMPLETED)).record
    source = FaultyStore(plain.source)
    source.interrupt(lambda: plain.old.remove(record.key), on="get")
    ran = plain.run(source=source)
    assert ran.counts == counts_of(copied=1)
    assert ran.is_equal
    assert read(plain.target, ended.key).status is TaskStatus.COMPLETED


def test_source_that_is_written_to_meanwhile(pair: Pair) -> None:
    """[D125] The comparison finds what changed behind the copying's back; the next run takes it along."""
    make = pair.make()
    records = [pair.source.create(make()).record for _ in range(3)]
    target = FaultyStore(pair.target)

    def change() -> None:
        for record in records[-1:]:
            now = read(pair.source, record.key)
            pair.source.update(now.changed(updated_at=now.updated_at + 1, message="later"), expected=None)
        pair.source.create(make())

    target.interrupt(change, on=WRITES, nth=3)
    ran = pair.run(target=target)
    assert sorted(told.outcome for told in ran.compared) == [Outcome.MISSING, Outcome.OLDER]
    ran = pair.run()
    assert ran.counts == counts_of(copied=1, renewed=1, same=2)
    assert ran.is_equal


# ---- a target on files, at each of its system calls --------------------------------------------------------------


CHANGING = ["write", "mkdir", "link", "replace", "rename", "rmdir", "unlink"]


class Dying(FileOps):
    """System calls of a process that ends before the ``nth`` of those that change something."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        for name in CHANGING:
            setattr(self, name, partial(self._call, getattr(FileOps, name)))

    def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        self.left -= 1
        if self.left <= 0:
            raise Stop
        return call(*args)


@pytest.mark.parametrize("status", [TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.COMPLETED])
def test_newer_copy_that_is_stopped_at_any_system_call(tmp_path: Path, status: TaskStatus) -> None:
    """[D016] [D023] The record is the old one or the newer one, whole; no epoch comes twice, and nothing is stuck."""
    make = RecordMaker(own_fields=False)
    nth = 0
    while True:
        nth += 1
        root = tmp_path / str(nth)
        root.mkdir()
        store = open_lease(root)
        old = store.take_in(make(attempt=Attempt(7, "elsewhere", "h", 3)))
        newer = make.changed(
            old.record, status=status, message="newer", attempt=Attempt(40, "elsewhere", "h", 5)
        )
        dying = Dying(nth)
        try:
            open_lease(root, dying, prepared=True).take_in(newer, expected=old.version)
        except Stop:
            pass
        else:
            break
        store = open_lease(root)
        found = read(store, old.record.key)
        assert found.message in (None, "newer"), nth
        assert found.attempt is not None
        assert found.attempt.epoch > 40 if found.message else found.attempt.epoch == 7
        failed = found.changed(status=TaskStatus.FAILED)
        taken = [
            store.take_over(expired, holder="r", count_attempt=False)
            for expired in expired_after(store, root)
        ]
        store.recover()
        if not found.status.is_terminal:
            lease = next((each[0] for each in taken if each is not None), None)
            ended = store.update(failed, expected=None) if lease is None else store.end(lease, failed)
            attempt = ended.record.attempt
            assert attempt is not None
            assert attempt.epoch > (40 if found.message else 7)
            assert attempt.count == (5 if found.message else 3)
        store.recover()
        assert not entries(root), nth
    assert nth > 8
