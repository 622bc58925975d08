"""Trouble with one thing, and what it must not do to the rest."""

import errno
import os
import shutil
import threading

import orjson
import pytest

from stores.files.lease.ownership import EntryLease
from task_tracker import TaskTracker, transitions
from task_tracker.errors import (
    InvalidTransition,
    LeaseLost,
    SettingsError,
    StoreUnavailable,
    TaskExists,
    TaskNotFound,
)
from task_tracker.records import TaskStatus
from task_tracker.testing.answers import claimed_by, fetch
from tests.lease.support import (
    ShiftedClock,
    age,
    claimed,
    clock_of,
    control,
    entries,
    expired_after,
    leftovers,
    open_store,
    ops_with,
)

KIND = [("reindex", 1)]


def failing(call, *, when, code=errno.EIO, times=1):
    """Return ``call``, which fails for arguments that ``when`` accepts; the answer is lost if it says "late"."""
    left = [times]

    def maybe(*arguments):
        wanted = when(*arguments)
        if wanted and left[0]:
            left[0] -= 1
            if wanted == "late":
                call(*arguments)
            raise OSError(code, os.strerror(code), arguments[0])
        return call(*arguments)

    return maybe


class TestOneItem:
    """What cannot be read or is somebody else's keeps nothing else from being claimed, settled or listed."""

    def test_due_task_that_cannot_be_read(self, tmp_path, make):
        now = 4_000_000_000.0

        def is_broken(path, flags, mode=0o777):
            return path.endswith("broken.json")

        store = open_store(tmp_path)
        clock_of(store).stepped += now - clock_of(store).now()
        store.create(make("broken", handler_version=1, not_before=now + 100))
        store.create(make("other", handler_version=1))
        trouble = open_store(
            tmp_path, ops_with(open=failing(os.open, when=is_broken, times=99)), clock=clock_of(store)
        )
        clock_of(store).stepped += 200
        found = trouble.claim(holder="w", task_types=KIND)
        assert found is not None
        assert found[1].record.task_id == "other"
        assert trouble.recover() == 0
        found = store.claim(holder="w", task_types=KIND)
        assert found is not None
        assert found[1].record.task_id == "broken", "it is there again when it can be read"

    @pytest.mark.parametrize(
        "place", ["ready/.DS_Store", "ready/reindex+v1/notes", "later/notes", "leases/00/x", "new/.x"]
    )
    def test_file_of_somebody_else(self, tmp_path, store, make, place):
        store.create(make(handler_version=1))
        claimed(store, make)
        path = control(tmp_path) / place
        path.parent.mkdir(exist_ok=True)
        path.touch()
        age(tmp_path, 100)
        store.recover()
        assert len(expired_after(store, tmp_path)) == 1
        assert len(store.unclaimed(limit=5)) == 1
        assert store.workload().waiting == 1
        store.examine(fix=True)
        assert store.claim(holder="w", task_types=KIND) is not None

    def test_entry_that_cannot_be_looked_at(self, tmp_path, make):
        """As on a network disk, where another client has just moved it."""
        store = open_store(tmp_path)
        for task_id in ("one", "two"):
            store.create(make(task_id))
            claimed_by(store, make.key(task_id))

        def is_one(path, flags, mode=0o777):
            return "+one." in path and flags & os.O_DIRECTORY

        trouble = open_store(
            tmp_path, ops_with(open=failing(os.open, when=is_one, code=errno.ESTALE, times=99))
        )
        found = expired_after(trouble, tmp_path)
        assert [expired.record.task_id for expired in found] == ["two"]

    def test_waiting_record_that_cannot_be_read(self, tmp_path, make, caplog):
        store = open_store(tmp_path)
        for task_id in ("one", "two"):
            store.create(make(task_id))

        def is_one(path, flags, mode=0o777):
            return path.endswith("one.json")

        trouble = open_store(tmp_path, ops_with(open=failing(os.open, when=is_one, times=99)))
        for _ in range(3):
            assert [found.record.task_id for found in trouble.unclaimed(limit=5)] == ["two"]
        assert caplog.text.count("could not be settled") == 1, "said once, not at every pass"

    def test_doctor_reports_what_it_cannot_read_and_goes_on(self, tmp_path, make):
        store = open_store(tmp_path)
        for task_id in ("one", "two"):
            store.create(make(task_id))
        (tmp_path / "local/acme/tasks/alice/two.json").write_bytes(b"{")

        def is_one(path, flags, mode=0o777):
            return path.endswith("one.json")

        trouble = open_store(tmp_path, ops_with(open=failing(os.open, when=is_one, times=99)))
        assert sorted(finding.kind for finding in trouble.examine()) == ["corrupt_record", "unreadable"]


class TestLostAnswers:
    """The call was done, and the answer says that it was not."""

    def test_link_of_a_new_record(self, tmp_path, make):
        def is_record(source, target):
            return "late" if target.endswith(".json") else False

        store = open_store(tmp_path, ops_with(link=failing(os.link, when=is_record, code=errno.ETIMEDOUT)))
        record = make()
        assert store.create(record).record.task_id == record.task_id
        assert entries(tmp_path) == ["idle@0"]
        with pytest.raises(TaskExists):
            store.create(record)

    def test_link_that_cannot_even_be_looked_at(self, tmp_path, make):
        """Nothing of a record that may be there is taken away; recovery finds out."""
        reads = [0]

        def is_record(source, target):
            return "late" if target.endswith(".json") else False

        def is_read(path, flags, mode=0o777):
            reads[0] += path.endswith(".json")
            return path.endswith(".json")

        ops = ops_with(link=failing(os.link, when=is_record), open=failing(os.open, when=is_read, times=2))
        store = open_store(tmp_path, ops)
        record = make()
        with pytest.raises(StoreUnavailable):
            store.create(record)
        age(tmp_path, 100)
        fresh = open_store(tmp_path)
        fresh.recover()
        assert claimed_by(fresh, record.key)[0].epoch == 1

    def test_time_out_is_not_taken_for_a_crowd(self, tmp_path, make):
        def is_record(source, target):
            return target.endswith(".json")

        store = open_store(
            tmp_path, ops_with(link=failing(os.link, when=is_record, code=errno.ETIMEDOUT, times=99))
        )
        with pytest.raises(StoreUnavailable, match="timed out"):
            store.create(make())
        assert leftovers(tmp_path) == []

    def test_same_bytes_prove_nothing_after_a_take_over(self, tmp_path, store, make):
        """A settler writes nothing when it takes over: the old holder finds its own last commit there."""
        lease, stored = claimed(store, make)
        stored = store.commit(lease, transitions.progressed(stored.record, 5.0, stage="one"))
        (expired,) = expired_after(store, tmp_path)
        assert store.take_over(expired, holder="me", count_attempt=False) is not None
        with pytest.raises(LeaseLost):
            store.commit(lease, stored.record)


class TestAfterTheFact:
    """What fails after the point of no return does not make a call fail."""

    def test_deletion_whose_mark_cannot_be_written(self, tmp_path, make):
        def is_mark(source, target):
            return target.endswith("/.deleted")

        store = open_store(
            tmp_path, ops_with(replace=failing(os.replace, when=is_mark, code=errno.ENOSPC, times=1))
        )
        record = make(status=TaskStatus.COMPLETED)
        store.create(record)
        store.delete(record.key)
        with pytest.raises(TaskNotFound):
            store.delete(record.key)
        age(tmp_path, 100)
        store.recover()
        assert leftovers(tmp_path) == []

    def test_release_whose_cancel_cannot_be_looked_at(self, tmp_path, make):
        def is_home(path):
            return "/idle/" in path and path.endswith("/cancel")

        store = open_store(tmp_path, ops_with(stat=failing(os.stat, when=is_home)))
        lease, stored = claimed(store, make)
        released = store.release(lease, transitions.released(stored.record, 5.0))
        assert released.record.status is TaskStatus.PENDING
        assert claimed_by(store, stored.record.key)[0].epoch == 2

    def test_heartbeat_of_a_lease_that_ends_at_this_moment(self, tmp_path, make):
        """It is over, not lost: whoever waits for a loss must not hear of one."""
        ended = threading.Event()
        holder: list[EntryLease] = []

        def utime(path):
            if "@1-" in path and not ended.is_set():
                ended.set()
                store.end(holder[0], transitions.completed(fetch(store, holder[0].key).record, 9.0, b"1"))
            os.utime(path)

        store = open_store(tmp_path, ops_with(utime=utime))
        lease, _ = claimed(store, make)
        holder.append(lease)
        with pytest.raises(LeaseLost):
            store.renew(lease)
        assert not lease.lost.is_set()


class TestForeignRecords:
    """Records that somebody wrote with attempts of his own never make a path, nor a task that nobody can see."""

    @pytest.mark.parametrize(
        "attempt",
        [
            {"epoch": 1, "token": "a\u0000b", "holder": "x", "count": 1},
            {"epoch": 1, "token": "../../x", "holder": "x", "count": 1},
            {"epoch": 1, "token": "t" * 300, "holder": "x", "count": 1},
            {"epoch": 10**18 - 1, "token": "abc", "holder": "x", "count": 1},
        ],
    )
    def test_odd_attempt(self, tmp_path, store, make, attempt):
        record = make("own")
        store.create(record)
        path = tmp_path / "local/acme/tasks/alice/own.json"
        document = orjson.loads(path.read_bytes()) | {"attempt": attempt, "creation": "c" * 99}
        path.write_bytes(orjson.dumps(document).replace(b"\\u0000", b""))
        store.get(record.key)
        lease, stored = claimed_by(store, record.key)
        store.end(lease, transitions.completed(stored.record, 5.0, b"1"))
        assert store.get(record.key).record.status is TaskStatus.COMPLETED


def test_script_that_looks_in_once_settles_dead_holders(tmp_path, make):
    """It has watched nobody before: it waits for as long as it has to. [D014]"""

    class PatientClock(ShiftedClock):
        def wait(self, condition, seconds):
            self.ahead += seconds

    store = open_store(tmp_path)
    claimed(store, make)
    age(tmp_path, 100)
    clock = PatientClock()
    with TaskTracker(open_store(tmp_path, clock=clock), clock=clock) as script:
        assert script.reconcile().holder_lost == 0
        assert script.reconcile(wait=True).holder_lost == 1


def test_state_of_a_newer_version_is_left_alone(tmp_path, store, make):
    """It may be replaced by who knows better, but is neither claimed nor taken for dead."""
    record = make("own", status=TaskStatus.parse("paused"))
    store.create(record)
    assert expired_after(store, tmp_path) == []
    store.recover()
    assert store.examine() == []
    with pytest.raises(InvalidTransition):
        store.claim(record.key, holder="me")
    assert store.create_if_no_active(make()) is None
    store.update(make.changed(record, status=TaskStatus.PENDING), expected=None)
    assert claimed_by(store, record.key)[1].record.status is TaskStatus.RUNNING


class TestWhatSomebodyRemoved:
    def test_directory_of_an_owner(self, tmp_path, store, make):
        """It is made again, also in a process that has seen it before."""
        record = make(status=TaskStatus.COMPLETED)
        store.create(record)
        shutil.rmtree(tmp_path / "local/acme")
        assert store.create(make()).record.status is TaskStatus.PENDING

    def test_directory_of_deletions(self, tmp_path, store, make):
        """A task that cannot be deleted is not "not found"."""
        record = make(status=TaskStatus.COMPLETED)
        store.create(record)
        (control(tmp_path) / "deletes").rmdir()
        with pytest.raises(StoreUnavailable, match="doctor"):
            store.delete(record.key)
        with pytest.raises(StoreUnavailable):
            store.delete_owner("acme", "alice")
        assert [finding.kind for finding in store.examine(fix=True)] == ["missing_directory"]
        store.delete(record.key)

    def test_root(self, tmp_path, make):
        root = tmp_path / "root"
        store = open_store(root)
        record = make(status=TaskStatus.COMPLETED)
        store.create(record)
        root.rename(tmp_path / "away")
        with pytest.raises(StoreUnavailable):
            store.delete(record.key)


class TestClocks:
    def test_stamp_from_the_future(self, tmp_path, store, make):
        """The server's clock was set back since: a dead holder is noticed all the same. [D026]"""
        claimed(store, make)
        age(tmp_path, -86_400)
        assert store.expired() == []
        clock_of(store).ahead += 1000
        (expired,) = store.expired()
        assert store.take_over(expired, holder="me") is not None

    def test_holder_that_renews_is_never_taken_for_dead_by_that(self, tmp_path, store, make):
        lease, _ = claimed(store, make)
        age(tmp_path, -86_400)
        store.expired()
        for _ in range(3):
            clock_of(store).ahead += 1000
            store.renew(lease)
            assert store.expired() == []

    @pytest.mark.parametrize("seconds", [0, -1, 1e-9, float("nan"), "30", None, True])
    def test_lease_that_is_no_time(self, tmp_path, seconds):
        with pytest.raises(SettingsError, match="lease_seconds"):
            open_store(tmp_path, lease_seconds=seconds)

    def test_start_time_that_never_comes(self, store, make):
        store.create(make(handler_version=1, not_before=8e15))
        assert store.claim(holder="w", task_types=KIND) is None


class TestClaimsThatFail:
    @pytest.mark.parametrize(
        ("call", "claims"), [("listdir", 1), ("mkdir", 0), ("mkdir", 1), ("rename", 0), ("rename", 1)]
    )
    def test_task_is_where_workers_look_at_once(self, tmp_path, make, call, claims):
        """Not only once a pass has found it, however a claim was broken off, the first of a task or a later one."""
        other = open_store(tmp_path)
        other.create(make(handler_version=1))
        for _ in range(claims):
            given_back = other.claim(holder="w", task_types=KIND)
            assert given_back is not None
            other.release(given_back[0], transitions.released(given_back[1].record, make.clock.now()))
        wanted = {
            "listdir": lambda path: path.endswith("~"),
            "mkdir": lambda path, *_: "~/stage-" in path,
            "rename": lambda source, _: source.endswith("~"),
        }
        broken = failing(getattr(os, call), when=wanted[call])
        store = open_store(tmp_path, ops_with(**{call: broken}))
        with pytest.raises(StoreUnavailable):
            store.claim(holder="w", task_types=KIND)
        assert entries(tmp_path) == [f"ready@{claims + 1}"], "the name says that it was claimed"
        found = store.claim(holder="w", task_types=KIND)
        assert found is not None
        lease, stored = found
        assert (lease.epoch, lease.attempt_count) == (claims + 2, claims + 1)
        store.end(lease, transitions.completed(stored.record, make.clock.now(), b"1"))
        assert entries(tmp_path) == []
