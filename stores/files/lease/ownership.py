"""Who may write a task: claims, take-overs, writes under a lease, and how each comes to its end.

Owns the decisions that follow a grab: is this the life and the state that the claim was meant for, and where
does the entry go now. The steps are those of :mod:`stores.files.lease.entries`, the rules about states those
of :mod:`task_tracker.transitions`.
"""

# long: the ways in and out of a lease are read side by side

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

from stores.files.lease.announcements import Announcements
from stores.files.lease.births import Births
from stores.files.lease.control import Control
from stores.files.lease.entries import Entries, Entry
from stores.files.lease.names import LEGACY, EntryName, announcement, life_of
from stores.files.lease.names import attempt_of as claim_of
from stores.files.lease.records import Records
from stores.files.lease.watch import LeaseWatch
from task_tracker import transitions
from task_tracker.clock import Clock
from task_tracker.errors import (
    LeaseHeld,
    LeaseLost,
    StoreUnavailable,
    TaskTrackerError,
)
from task_tracker.keyed_locks import KeyedLocks
from task_tracker.records import Attempt, TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Lease, Stored, Version

__all__ = ["EntryLease", "Grabbed", "Ownership", "Patience"]

_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.05
_LONG_CALL_SECONDS = 0.5
_NO_ENTRY = Entry("", EntryName("", "", LEGACY, 0, ""))


class Grabbed(NamedTuple):
    """An entry that is ours, and the record as it was read after everybody else had been fenced."""

    entry: Entry
    stored: Stored

    @property
    def record(self) -> TaskRecord:
        """The record."""
        return self.stored.record


@dataclasses.dataclass(slots=True, eq=False)
class Progress:
    """What was done under a lease so far."""

    announced: str
    """The name under which the task is announced."""
    attempt: Attempt | None = None
    """What :func:`attempt_of` has made."""
    given_up: bool = False
    """Nothing more is written, also if what is left of the entry could not be removed."""
    written: Version = None
    """What was published last."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class EntryLease(Lease):
    """A lease with its entry, and what was done under it."""

    entry: Entry = dataclasses.field(default=_NO_ENTRY, repr=False)
    progress: Progress = dataclasses.field(default_factory=lambda: Progress(""), repr=False)


class _Guard:
    """See :meth:`Ownership.guarded`."""

    __slots__ = ("_grabbed", "_ownership")

    def __init__(self, ownership: Ownership, grabbed: Grabbed) -> None:
        self._ownership = ownership
        self._grabbed = grabbed

    def __enter__(self) -> None:
        """Do nothing yet."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self._ownership.leave(self._grabbed.entry, self._grabbed.record.key)


class Patience:
    """Pauses, growing and jittered, until a number of seconds is over."""

    def __init__(self, clock: Clock, pause: Callable[[float], None], seconds: float) -> None:
        self._clock = clock
        self._sleep = pause
        self._begun = clock.monotonic()
        self._seconds = seconds
        self._pause = _PAUSE_SECONDS

    @property
    def tried(self) -> bool:
        """True once it has lasted for longer than any call takes that is really under way."""
        return self._clock.monotonic() - self._begun >= _LONG_CALL_SECONDS

    def wait(self) -> bool:
        """Wait a moment; False if there is no time left."""
        if self._clock.monotonic() - self._begun >= self._seconds:
            return False
        self._sleep(self._clock.jitter(self._pause))
        self._pause = min(self._pause * 1.5, _LONGEST_PAUSE_SECONDS)
        return True


class Ownership:
    """Claims and what is done under them."""

    def __init__(
        self,
        records: Records,
        control: Control,
        entries: Entries,
        births: Births,
        announcements: Announcements,
        watch: LeaseWatch,
        clock: Clock,
        *,
        patience_seconds: float,
        check_root: Callable[[], None],
    ) -> None:
        self._records = records
        self._control = control
        self._entries = entries
        self._births = births
        self._announcements = announcements
        self._watch = watch
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._check_root = check_root
        self._locks = KeyedLocks()

    def patience(self, most_seconds: float = math.inf) -> Patience:
        """Return how long a call may wait for one that is under way elsewhere."""
        return Patience(self._clock, self._control.ops.pause, min(self._patience_seconds, most_seconds))

    # ---- claiming ------------------------------------------------------------------------------------

    def claim(
        self, key: TaskKey, load: Callable[[], Stored], holder: str, *, count_attempt: bool
    ) -> tuple[EntryLease, Stored]:
        """Take one task. ``load`` reads it or raises TaskNotFound."""
        patience = self.patience()
        while True:
            record = load().record
            transitions.check_claimable(record)
            grabbed = self.take(record, short=not count_attempt, running=not count_attempt)
            if grabbed is not None:
                claimed = self.begin(grabbed, holder, count_attempt=count_attempt)
                if claimed is not None:
                    return claimed
            self.wait(patience, record)

    def wait(self, patience: Patience, record: TaskRecord) -> None:
        """Wait a moment for a call of somebody else's on the same task.

        Raises LeaseHeld if it takes too long, or if its caller has stopped in the middle of it.
        """
        path = None
        if patience.tried:
            place = self._entries.find(record)
            path = None if place is None else place[0]
            age = None if path is None else self._watch.age_seconds(path)
            if age is not None and age > self._watch.heartbeat_seconds:
                raise self.held(record, path, by_a_call=True)
        if not patience.wait():
            raise self.held(record, path, by_a_call=True)

    def take(self, record: TaskRecord, *, short: bool, running: bool) -> Grabbed | None:
        """Grab the entry of ``record``, which may have gone on since it was read; None: look again.

        ``running``: also one that runs and that nobody holds. Raises LeaseHeld if somebody does.
        """
        entry = self.grab_at_home(record, short=short)
        if entry is None:
            place = self._entries.find(record)
            if place is None:
                self._births.adopt(record)
                return None
            path, name = place
            if path == self._control.lease(name):
                if not self._is_free(record, path, name):
                    return None
                if record.status is not TaskStatus.PENDING and not running:
                    raise self.held(record, path)
            entry = self._entries.grab(path, name, short=short)
        return None if entry is None else self.judged(entry, record.key)

    def grab_at_home(self, record: TaskRecord, *, short: bool) -> Entry | None:
        """Grab the entry of a waiting task where its record says that it waits; None if it is not there."""
        attempt = claim_of(record)
        if record.status is not TaskStatus.PENDING or attempt is None:
            return None
        name = EntryName.of(record, attempt.epoch, attempt.token)
        for home in self._entries.homes(record, name):
            entry = self._entries.grab(home, name, short=short)
            if entry is not None:
                return entry
        return None

    def _is_free(self, record: TaskRecord, path: str, name: EntryName) -> bool:
        """Tell whether nobody holds the entry at ``path``; False if that will be known in a moment.

        Raises LeaseHeld if its holder has committed that it holds it.
        """
        stages = self._entries.stages(path)
        if stages == [] and name.settled:
            return True
        if stages and name.settled and not name.short and _token(record) == name.token:
            raise self.held(record, path)
        return False  # somebody is on the way in or out, or writes on another's behalf

    def judged(self, entry: Entry, key: TaskKey) -> Grabbed | None:
        """Read the record of an entry that was grabbed; None, and the entry is gone, if it is for nothing."""
        try:
            while True:
                stored = self._records.load(key)
                record = None if stored is None else stored.record
                if stored is None or record is None or not self._is_for(entry, record):
                    self._clear(entry, record)
                    return None
                attempt = claim_of(record)
                epoch = attempt.epoch if attempt is not None else 0
                if epoch < entry.name.epoch:
                    return Grabbed(entry, stored)
                # A power cut lost the last rename of the entry; or there is a second entry, which is older.
                if any(name.epoch > entry.name.epoch for _, name in self._entries.others(record, entry.name)):
                    self._entries.remove(entry.path, entry.name.token)
                    return None
                again = self._entries.grab(entry.path, entry.name, short=entry.name.short, above=epoch)
                if again is None:
                    return None
                entry = again
        except BaseException:
            self.leave(entry, key)
            raise

    @staticmethod
    def _is_for(entry: Entry, record: TaskRecord) -> bool:
        """Tell whether this record is what the entry is for, and may still change."""
        return life_of(record) == entry.name.life and not record.status.is_terminal

    def _clear(self, entry: Entry, record: TaskRecord | None) -> None:
        """Remove an entry whose task has ended or is gone."""
        if record is not None and life_of(record) == entry.name.life:
            self._announcements.take_back(record)
        self._entries.remove(entry.path, entry.name.token)

    def begin(
        self, grabbed: Grabbed, holder: str, *, count_attempt: bool
    ) -> tuple[EntryLease, Stored] | None:
        """Make a lease of a grabbed entry, and commit the claim if it counts; None: look again.

        Raises LeaseHeld for a task that runs without a holder, if the claim counts.
        """
        entry, stored = grabbed
        record = stored.record
        with self.guarded(grabbed):
            if count_attempt and record.status is not TaskStatus.PENDING:
                raise self.held(record, entry.path)
            wished = self._entries.cancel_requested_at(entry.path) is not None
            if record.status is TaskStatus.PENDING and wished:
                self.cancel(grabbed)
                return None
            lease = self.lease(grabbed, holder, count_attempt=count_attempt, wished=wished)
            if not count_attempt:
                return lease, stored
            return self._begin_with(lease, transitions.claimed(record, self._clock.now(), attempt_of(lease)))

    def _begin_with(self, lease: EntryLease, record: TaskRecord) -> tuple[EntryLease, Stored] | None:
        """Commit the first write of a lease; None if it was taken over before that."""
        done = self._records.publish(lease.entry, _stamped(record, lease))
        if done is None:
            return None
        lease.progress.written = done.version
        return lease, done

    def guarded(self, grabbed: Grabbed) -> _Guard:
        """Let go of an entry if what is to be done with it fails: nobody else is to wait for it."""
        return _Guard(self, grabbed)

    def lease(
        self, grabbed: Grabbed, holder: str, *, count_attempt: bool, wished: bool | None = None
    ) -> EntryLease:
        """Return the lease on a grabbed entry. ``wished``: whether a cancel waits in it, if that was looked for."""
        entry, record = grabbed.entry, grabbed.record
        if wished is None:
            wished = self._entries.cancel_requested_at(entry.path) is not None
        count = record.attempt.count if record.attempt is not None else 0
        lease = EntryLease(
            record.key,
            record.created_at,
            entry.name.epoch,
            entry.name.token,
            holder,
            count + 1 if count_attempt else count,
            entry=entry,
            progress=Progress(announcement(record)),
        )
        if wished or transitions.cancellation_requested(record):
            lease.cancel_requested.set()
        return lease

    def take_over(
        self, grabbed: Grabbed, holder: str, *, count_attempt: bool
    ) -> tuple[EntryLease, Stored] | None:
        """Go on from a grabbed entry whose holder has stopped; None if there is nothing to go on with."""
        if grabbed.record.status is TaskStatus.PENDING:
            self.settle(grabbed)
            return None
        with self.guarded(grabbed):
            lease = self.lease(grabbed, holder, count_attempt=count_attempt)
            return self._begin_with(lease, grabbed.record) if count_attempt else (lease, grabbed.stored)

    def settle(self, grabbed: Grabbed) -> None:
        """Give back an entry with which nothing is to be done. A wish to cancel a waiting task is fulfilled."""
        with self.guarded(grabbed):
            if grabbed.record.status is not TaskStatus.PENDING:
                self._entries.let_go(grabbed.entry)
            elif self._entries.cancel_requested_at(grabbed.entry.path) is not None:
                self.cancel(grabbed)
            else:
                self.put_back(grabbed.entry, grabbed.record)

    # ---- writing -------------------------------------------------------------------------------------

    def commit(self, lease: Lease, record: TaskRecord) -> Stored:
        """Write under a lease."""
        transitions.check_commit(record, lease.key)
        with self._locks.hold(lease.token):
            held = self._held(lease)
            record = transitions.under_intent(record, self._entries.cancel_requested_at(held.entry.path))
            return self._publish(held, record)

    def release(self, lease: Lease, record: TaskRecord) -> Stored:
        """Write a pending record and give up the lease."""
        transitions.check_release(record, lease.key)
        with self._locks.hold(lease.token):
            held = self._held(lease)
            record = transitions.given_back(record, self._entries.cancel_requested_at(held.entry.path))
            if record.status.is_terminal:
                return self._end(held, record)
            stored = self._publish(held, record)
            held.progress.given_up = True
            with contextlib.suppress(OSError, TaskTrackerError):  # it waits; the reconciler brings it home
                cancelled = self.put_back(held.entry, stored.record)
                if cancelled is not None:
                    return cancelled
            return stored

    def end(self, lease: Lease, record: TaskRecord) -> Stored:
        """Write a terminal record and give up the lease."""
        transitions.check_end(record, lease.key)
        with self._locks.hold(lease.token):
            return self._end(self._held(lease), record)

    def _end(self, lease: EntryLease, record: TaskRecord) -> Stored:
        stored = self._publish(lease, record)
        lease.progress.given_up = True
        try:
            self._control.remove_file(self._control.announcement(lease.progress.announced))
            if self._records.is_clean(lease.entry):
                self._entries.retire(lease.entry)
            else:
                self._entries.remove(lease.entry.path, lease.token)
        except OSError:
            pass  # the task has ended; the reconciler tidies up
        return stored

    def _publish(self, lease: EntryLease, record: TaskRecord) -> Stored:
        record = _stamped(record, lease)
        before = name = lease.progress.announced
        if record.status.is_active:  # one that has ended is announced no more
            name = announcement(record)
        changed = name != before
        if changed:
            self._announcements.make(record)
        stored = self._records.publish(lease.entry, record, before=lease.progress.written)
        if stored is None:
            self._lost(lease)
        lease.progress.written = stored.version
        if changed:
            lease.progress.announced = name
            with contextlib.suppress(OSError):  # whoever meets it finds that it is stale
                self._control.remove_file(self._control.announcement(before))
        return stored

    def renew(self, lease: Lease) -> None:
        """Heartbeat."""
        held = self._held(lease)
        path = held.entry.path
        try:
            self._control.ops.utime(path)
        except FileNotFoundError:
            self._lost(held)
        if not lease.cancel_requested.is_set() and self._entries.cancel_requested_at(path) is not None:
            lease.cancel_requested.set()

    @contextlib.contextmanager
    def under(self, lease: Lease) -> Iterator[EntryName]:
        """Do something that is no write of the record, between two looks at whether ``lease`` is held.

        Nothing is written under this lease meanwhile. Raises LeaseLost, also for what was done in the block in vain.
        """
        with self._locks.hold(lease.token):
            held = self._held(lease)
            self._look(held)
            yield held.entry.name
            self._look(held)

    def _look(self, lease: EntryLease) -> None:
        if not self._control.exists(lease.entry.path):
            self._lost(lease)

    def _held(self, lease: Lease) -> EntryLease:
        """Return the lease with its entry. Refused without a look once it is known to be lost."""
        if lease.lost.is_set() or not isinstance(lease, EntryLease) or lease.progress.given_up:
            raise _loss(lease)
        return lease

    def _lost(self, lease: EntryLease) -> NoReturn:
        """Raise LeaseLost if the entry is really gone: one that cannot be seen just now is not lost."""
        if lease.progress.given_up:
            raise _loss(lease)  # ended by another thread at this moment, which is no loss
        self._check_root()
        path = lease.entry.path
        directory, _, name = path.rpartition("/")
        # An empty mount point and a file server that is late look like an entry that was taken.
        self._control.ops.lstat(self._control.format)
        if name in self._control.ops.listdir(directory):
            raise StoreUnavailable(
                f"{path} is there, but cannot be written through just now; try again, the lease is not lost"
            )
        lease.lost.set()
        raise _loss(lease)

    # ---- letting go ----------------------------------------------------------------------------------

    def leave(self, entry: Entry, key: TaskKey) -> None:
        """Let go of an entry after something failed: where its record says it belongs, if that can be read."""
        with contextlib.suppress(OSError, TaskTrackerError):
            record = self._records.read(key)
            if record is not None and self._is_for(entry, record) and record.status is TaskStatus.PENDING:
                self._entries.put_back(entry, self._entries.home(record, entry.name))
                return
        with contextlib.suppress(OSError):  # expiry settles it
            self._entries.let_go(entry)

    def put_back(self, entry: Entry, record: TaskRecord) -> Stored | None:
        """Give up an entry whose record was read or written under it.

        Returns the record if a cancel that came meanwhile has ended it.
        """
        if record.status is not TaskStatus.PENDING:
            self._entries.let_go(entry)
            return None
        home = self._entries.home(record, entry.name)
        self._entries.put_back(entry, home)
        # Asked for between the last look and the move: whoever asked was told "requested".
        if self._entries.cancel_requested_at(home) is None:
            return None
        again = self._entries.grab(home, entry.name, short=True)
        grabbed = None if again is None else self.judged(again, record.key)
        if grabbed is None:
            return None
        if grabbed.record.status is TaskStatus.PENDING:
            return self.cancel(grabbed)
        self._entries.let_go(grabbed.entry)
        return None

    def cancel(self, grabbed: Grabbed) -> Stored | None:
        """End a pending task as cancelled, as the holder of its entry; None if somebody was quicker."""
        record = transitions.cancelled(grabbed.record, self._clock.now())
        return self.finish(grabbed, record)

    def write(self, grabbed: Grabbed, record: TaskRecord, said: Attempt | None = None) -> Stored | None:
        """Write ``record`` on the behalf of somebody who holds nothing; None if it has to be tried again.

        ``said`` is what another store has counted, if the record comes from one.
        """
        with self.guarded(grabbed):
            entry, before = grabbed
            at = self._entries.cancel_requested_at(entry.path)
            if at is not None and before.record.status is TaskStatus.PENDING:
                self.cancel(grabbed)
                return None
            last = transitions.carried_on(claim_of(before.record), said)
            if last is not None and last.epoch >= entry.name.epoch:  # the entry counts as far as its record
                again = self._entries.grab(entry.path, entry.name, short=True, above=last.epoch)
                if again is None:
                    return None
                grabbed = Grabbed(again, before)
            return self.finish(grabbed, transitions.under_intent(record, at), last)

    def finish(self, grabbed: Grabbed, record: TaskRecord, last: Attempt | None = None) -> Stored | None:
        """Write ``record`` and give up the entry; None if somebody was quicker. ``last``: by default its own."""
        entry, before = grabbed.entry, grabbed.record
        last = claim_of(before) if last is None else last
        attempt = transitions.next_attempt(last, entry.name.token, above=entry.name.epoch - 1)
        record = record.changed(attempt=attempt, creation=entry.name.life)
        announced, name = announcement(before), announcement(record)
        try:
            if record.status.is_active and name != announced:
                self._announcements.make(record)
            stored = self._records.publish(entry, record)
        except BaseException:
            self.leave(entry, record.key)
            raise
        if stored is None:
            return None
        with contextlib.suppress(OSError, TaskTrackerError):
            if record.status.is_terminal or name != announced:
                self._control.remove_file(self._control.announcement(announced))
            if record.status.is_terminal:
                self._entries.remove(entry.path, entry.name.token)
            else:
                return self.put_back(entry, record) or stored
        return stored

    # ---- asking --------------------------------------------------------------------------------------

    def held(self, record: TaskRecord, path: str | None, *, by_a_call: bool = False) -> LeaseHeld:
        """Return what is raised for a task that somebody holds, or that a call of somebody's is about to change."""
        holder = record.attempt.holder if record.attempt is not None and not by_a_call else ""
        age = None if path is None else self._watch.age_seconds(path)
        heard = "" if age is None else f", last heard of {age:.0f} s ago"
        return LeaseHeld(
            f"task {record.task_id} is held by {holder or 'a call that does not end'}{heard}; wait until it ends, is "
            "released or its lease has expired",
            holder=holder,
            heartbeat_age_seconds=age,
        )

    def load(self, key: TaskKey) -> Stored | None:
        """Read a record as it is stored; None if there is none."""
        return self._records.load(key)

    def grab(self, path: str, name: EntryName) -> Entry | None:
        """Claim an entry, wherever it is; None if somebody else was quicker."""
        return self._entries.grab(path, name)


def attempt_of(lease: EntryLease) -> Attempt:
    """Return the attempt that a lease writes with each record; it is made once."""
    attempt = lease.progress.attempt
    if attempt is None:
        attempt = Attempt(lease.epoch, lease.token, lease.holder, lease.attempt_count)
        lease.progress.attempt = attempt
    return attempt


def _stamped(record: TaskRecord, lease: EntryLease) -> TaskRecord:
    attempt, life = attempt_of(lease), lease.entry.name.life
    if (record.attempt is attempt or record.attempt == attempt) and record.creation == life:
        return record  # what holders hand back carries it
    return record.changed(attempt=attempt, creation=life)


def _token(record: TaskRecord) -> str | None:
    return record.attempt.token if record.attempt is not None else None


def _loss(lease: Lease) -> LeaseLost:
    return LeaseLost(
        f"the lease of task {lease.key.task_id} (epoch {lease.epoch}, {lease.holder}) is somebody else's now; stop "
        "working on it"
    )
