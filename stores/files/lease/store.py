"""LeaseTaskStore: the persistent store's files, written under leases only.

Owns the operations of the seam, and turns what the kernel says into the errors of the library. Where records
are, how they are read and listed is the persistent store's (:mod:`stores.files.reading`); who may write one is
decided in :mod:`stores.files.lease.ownership`.
"""

# long: every operation of the seam, as short as the protocol lets it be

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from stores.files.backing import unavailable
from stores.files.id_times import out_of_order
from stores.files.index import UNORDERED
from stores.files.layout import SUFFIX
from stores.files.lease.adoption import Adoption
from stores.files.lease.announcements import Announcements, Crowded
from stores.files.lease.births import Births, Fenced, Place
from stores.files.lease.control import Control
from stores.files.lease.deletions import Busy, Deletions
from stores.files.lease.effects import Effects
from stores.files.lease.entries import Entries
from stores.files.lease.examination import Examination
from stores.files.lease.ground import Ground
from stores.files.lease.intents import Intents
from stores.files.lease.notices import Notices
from stores.files.lease.ownership import EntryLease, Ownership, Patience
from stores.files.lease.queue import Queue
from stores.files.lease.records import Records
from stores.files.lease.reports import Reports
from stores.files.lease.sweeping import Recovery
from stores.files.lease.watch import WATCHED_PERIODS, LeaseWatch
from stores.files.lease.work import Work
from stores.files.local import LocalFiles
from stores.files.ops import FileOps
from stores.files.places import directory_of
from stores.files.reading import DELETING, FileStore, missing
from stores.files.versions import FileVersion
from task_tracker import defaults, transitions
from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.errors import (
    CorruptRecord,
    InvalidTransition,
    SettingsError,
    StoreUnavailable,
    TaskExists,
    TaskNotFound,
    VersionConflict,
)
from task_tracker.records import Attempt, TaskKey, TaskRecord, TaskStatus
from task_tracker.store import (
    Capabilities,
    EffectsPlace,
    Expired,
    Finding,
    Lease,
    LeaseStore,
    Purged,
    Stored,
    StoreOptions,
    Unchanged,
    Version,
    WorkerFact,
    Workload,
    lease_terms,
)

__all__ = ["LeaseTaskStore", "check_options", "open_lease"]

SHARDS: Final = 256


class _Seen(FileVersion):
    """A version that remembers the active record it names: whether a cancel waits for it is asked each time."""

    active: TaskRecord | None = None


class LeaseTaskStore(FileStore, LeaseStore):
    """Records as files below a directory of this host or of a POSIX network mount, written under leases.

    ``durability`` as for the persistent store. ``lock_timeout_seconds`` is how long a call waits for another
    one that is under way on the same task. ``ops`` are the system calls (for tests); ``prepared`` says that the
    root was probed and marked before.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        prefix: str = defaults.PREFIX,
        durability: str = defaults.DURABILITY,
        lock_timeout_seconds: float = defaults.LOCK_TIMEOUT_SECONDS,
        lease_seconds: float = defaults.LEASE_SECONDS,
        heartbeat_seconds: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
        ops: FileOps | None = None,
        shards: int = SHARDS,
        prepared: bool = False,
    ) -> None:
        self.lease_seconds, self.heartbeat_seconds = lease_terms(lease_seconds, heartbeat_seconds)
        self.watch_seconds = self.heartbeat_seconds * WATCHED_PERIODS
        self._clock = clock
        self._ops = ops if ops is not None else FileOps()
        self._local = LocalFiles(
            directory_of(root),
            clock,
            durability=durability,
            lock_timeout_seconds=lock_timeout_seconds,
            ops=self._ops,
        )
        super().__init__(self._local, prefix, clock, locked=False)
        self.capabilities = Capabilities(
            durable=True, shared=True, exclusive_create=True, compare_and_set=True, leases=True
        )
        self._build(shards, lock_timeout_seconds)
        if not prepared:
            self.prepare()

    def _build(self, shards: int, patience_seconds: float) -> None:
        files, clock = self._local, self._clock
        self._control = Control(files.where(self._layout.control, "")[:-1], self._ops, shards)
        self._records = Records(files, self._layout, self._control, self._load)
        self._entries = Entries(self._control, clock)
        self._announcements = Announcements(self._control, self._records.read)
        self._births = Births(
            self._control, self._entries, self._announcements, self._records.read, sync=files.syncs
        )
        self._watch = LeaseWatch(
            self._control,
            clock,
            lease_seconds=self.lease_seconds,
            heartbeat_seconds=self.heartbeat_seconds,
        )
        self._ownership = Ownership(
            self._records,
            self._control,
            self._entries,
            self._births,
            self._announcements,
            self._watch,
            clock,
            patience_seconds=patience_seconds,
            check_root=files.check_root,
        )
        self._intents = Intents(
            self._records, self._control, self._entries, self._births, self._ownership, clock
        )
        self._deletions = Deletions(self._control, clock, self._mark_deletion)
        self._effects = Effects(files, self._layout, self._control, self._ownership, self._records.read)
        self._notices = Notices(self._control, clock, sync=files.syncs)
        queue, reports = Queue(self._control, clock), Reports()
        self._work = Work(
            self._control,
            self._births,
            self._entries,
            self._records,
            self._ownership,
            queue,
            self._notices,
            reports,
        )
        self._adoption = Adoption(
            self._control,
            self._indexes,
            self._records,
            self._entries,
            self._births,
            self._work,
            reports,
            clock,
        )
        self._recovery = Recovery(
            self._control,
            self._births,
            self._deletions,
            self._work,
            self._ownership,
            self._watch,
            self._adoption,
            self._effects,
            reports,
            lease_seconds=self.lease_seconds,
        )

    def prepare(self) -> None:
        """Probe the mount and mark the root. Raises CapabilityMissing, SettingsError, StoreUnavailable."""
        directory = self._layout.control
        with self._trouble("prepare", self._control.directory):
            self._local.make_directory(directory)
        ground = Ground(self._control, self._clock, lease_seconds=self.lease_seconds)
        ground.prepare(os.path.dirname(self._control.directory))

    # ---- creating ------------------------------------------------------------------------------------

    def create(self, record: TaskRecord) -> Stored:
        """Publish a new record; see :meth:`TaskStore.create`."""
        created = self._create(record, alone=False)
        assert created is not None
        return created

    def create_if_no_active(self, record: TaskRecord) -> Stored | None:
        """Publish a new record unless one like it is active; see :meth:`TaskStore.create_if_no_active`."""
        self._layout.place(record.key)
        index = self._indexes.of(record.account_id, record.user_id)
        # Most are refused here; records that cannot be read, or that announced nothing, count as in the index.
        if index.has_active(record.task_type, record.resource_id):
            return None
        return self._create(record, alone=True)

    def _create(self, record: TaskRecord, *, alone: bool, said: Attempt | None = None) -> Stored | None:
        directory, name = self._layout.place(record.key)
        place = Place(
            self._local.where(directory, name),
            lambda: self._prepare_owner(record, directory, name),
            lambda: self._local.anchor_new(directory),
        )
        patience: Patience | None = None
        removed = False
        while True:
            token = self._clock.new_token()
            stamped = record.changed(attempt=transitions.first_attempt(token, said), creation=token)
            with self._trouble("create", place.path):
                try:
                    data = self._births.create(stamped, place, alone=alone)
                except FileExistsError as error:
                    raise TaskExists(
                        f"task {record.task_id} exists already; choose another id or leave it out"
                    ) from error
                except FileNotFoundError:
                    # Somebody removed the owner's directory, which was there before: it is made anew, once.
                    if removed:
                        raise
                    removed = True
                    self._local.forget_directory(directory)
                    continue
                except (Fenced, Crowded) as error:
                    patience = patience or self._ownership.patience()
                    if patience.wait():
                        continue
                    raise StoreUnavailable(
                        f"others create tasks of the kind of {record.task_id} at the same moment, again and again; "
                        "nothing was created, try again"
                    ) from error
            if data is None:
                return None
            self._marks.note_opened()
            return Stored(stamped, self._seen(stamped, _Seen.of(data, None)))

    def _prepare_owner(self, record: TaskRecord, directory: str, name: str) -> None:
        self._local.make_directory(directory)
        if self._local.exists(directory, DELETING):
            raise InvalidTransition(
                f"the tasks of {record.account_id}/{record.user_id} are being deleted, and no new one can be "
                "created; call delete_user_tasks again to bring that to its end"
            )
        if out_of_order(record.task_id, record.created_at) and not self._local.exists(directory, name):
            with contextlib.suppress(FileExistsError):
                self._local.create(directory, UNORDERED, b"{}")

    # ---- one record ----------------------------------------------------------------------------------

    def get(self, key: TaskKey, *, known: Version | None = None) -> Stored | Unchanged:
        """Read a record, or only look at it; see :meth:`TaskStore.get`."""
        directory, name = self._placed(key)
        stored: Stored | None = None
        if isinstance(known, _Seen) and known.settled:
            with contextlib.suppress(FileNotFoundError):
                if self._local.signature(directory, name) == known.signature:
                    if known.active is None:
                        return Unchanged(known)
                    stored = Stored(known.active, known)
        with self._trouble("look at", self._local.where(directory, name)):
            if stored is None:
                stored = self._read(key)
            shown = self._overlaid(key, stored)
        same = isinstance(known, FileVersion) and known.digest == _digest(shown.version)
        return Unchanged(shown.version) if same and shown.record.status is stored.record.status else shown

    def update(self, record: TaskRecord, *, expected: Version | None) -> Stored:
        """Write on somebody's behalf; see :meth:`TaskStore.update`."""
        return self._update(record, expected)

    def take_in(self, record: TaskRecord, *, expected: Version | None = None) -> Stored:
        """Store a record from elsewhere; see :meth:`LeaseStore.take_in`."""
        if expected is not None:
            return self._update(record, expected, said=record.attempt)
        created = self._create(record, alone=False, said=record.attempt)
        assert created is not None
        return created

    def _update(self, record: TaskRecord, expected: Version | None, *, said: Attempt | None = None) -> Stored:
        key = record.key
        self._placed(key)
        with self._trouble("write", self._records.path(key)):
            patience = self._ownership.patience()
            while True:
                stored = self._read(key)
                self._check_expected(key, expected, stored)
                transitions.check_not_final(stored.record)
                grabbed = self._ownership.take(stored.record, short=True, running=True)
                if grabbed is not None:
                    if expected is not None and _digest(expected) != _digest(grabbed.stored.version):
                        self._ownership.settle(grabbed)
                        continue  # and be told so above
                    done = self._ownership.write(grabbed, record, said)
                    if done is not None:
                        return done
                self._ownership.wait(patience, stored.record)

    def delete(self, key: TaskKey, *, expected: Version | None = None) -> None:
        """Remove a record that has ended; see :meth:`TaskStore.delete`."""
        self._placed(key)

        def check(stored: Stored) -> bool:
            transitions.check_deletable(stored.record)
            self._check_expected(key, expected, stored)
            return True

        if not self._delete(key, check):
            raise missing(key)

    # ---- ownership -----------------------------------------------------------------------------------

    def claim(
        self,
        key: TaskKey | None = None,
        *,
        holder: str,
        task_types: Sequence[tuple[str, int]] = (),
        max_running: Mapping[str, int] | None = None,
        count_attempt: bool = True,
    ) -> tuple[Lease, Stored] | None:
        """Take a pending task; see :meth:`LeaseStore.claim`."""
        if key is None:
            with self._trouble("claim from", self._control.ready):
                return self._seen_claim(
                    self._work.claim(task_types, holder, max_running or {}, count_attempt=count_attempt)
                )
        self._placed(key)
        with self._trouble("claim", self._records.path(key)):
            return self._seen_claim(
                self._ownership.claim(key, lambda: self._read(key), holder, count_attempt=count_attempt)
            )

    def claim_several(
        self,
        most: int,
        *,
        holder: str,
        task_types: Sequence[tuple[str, int]],
        max_running: Mapping[str, int] | None = None,
    ) -> Sequence[tuple[Lease, Stored]]:
        """Take the next tasks; see :meth:`LeaseStore.claim_several`."""
        with self._trouble("claim from", self._control.ready):
            claimed = self._work.claim_several(most, task_types, holder, max_running or {})
        return [(lease, self._with_seen(stored)) for lease, stored in claimed]

    def claimable(self, *, task_types: Sequence[tuple[str, int]], limit: int) -> Sequence[TaskKey]:
        """Return what could be claimed next; see :meth:`LeaseStore.claimable`."""
        with self._trouble("list", self._control.ready):
            return self._work.claimable(task_types, limit)

    def renew(self, lease: Lease) -> None:
        """Heartbeat; see :meth:`LeaseStore.renew`."""
        try:
            self._ownership.renew(lease)
        except OSError as error:
            raise unavailable("renew the lease of", self._records.path(lease.key), error) from error

    def commit(self, lease: Lease, record: TaskRecord) -> Stored:
        """Write under a lease; see :meth:`LeaseStore.commit`."""
        with self._trouble("write", self._records.path(lease.key)):
            return self._with_seen(self._ownership.commit(lease, record))

    def release(self, lease: Lease, record: TaskRecord) -> Stored:
        """Give a task back; see :meth:`LeaseStore.release`."""
        with self._trouble("write", self._records.path(lease.key)):
            return self._with_seen(self._ownership.release(lease, record))

    def end(self, lease: Lease, record: TaskRecord) -> Stored:
        """Write a terminal record and give up the lease; see :meth:`LeaseStore.end`."""
        with self._trouble("write", self._records.path(lease.key)):
            if isinstance(lease, EntryLease):
                self._effects.ending(lease.entry.name, record)
            ended = self._ownership.end(lease, record)
            self._effects.ended(ended.record)
            return self._with_seen(ended)

    def effects(self, lease: Lease) -> EffectsPlace:
        """Make the directory of an attempt; see :meth:`HasEffects.effects`."""
        with self._trouble("make a directory for", self._records.path(lease.key)):
            return self._effects.open(lease)

    def effects_path(self, record: TaskRecord) -> str | None:
        """Return the directory that a record names; see :meth:`HasEffects.effects_path`."""
        return self._effects.path_of(record, self._records.path(record.key))

    def request_cancel(self, key: TaskKey) -> Stored:
        """Make the wish to cancel durable; see :meth:`LeaseStore.request_cancel`."""
        self._placed(key)
        with self._trouble("cancel", self._records.path(key)):
            return self._with_seen(self._intents.request_cancel(key, lambda: self._read(key)))

    def expired(self, *, limit: int = 1000) -> Sequence[Expired]:
        """Return leases whose holder has stopped; see :meth:`LeaseStore.expired`."""
        with self._trouble("look at", self._control.leases):
            return self._recovery.expired(limit)

    def take_over(
        self, expired: Expired, *, holder: str, count_attempt: bool = True
    ) -> tuple[Lease, Stored] | None:
        """Claim an expired lease; see :meth:`LeaseStore.take_over`."""
        with self._trouble("take over", self._records.path(expired.record.key)):
            return self._seen_claim(self._recovery.take_over(expired, holder, count_attempt=count_attempt))

    def recover(self, *, limit: int = 1000) -> int:
        """Settle what crashes left half-made; see :meth:`LeaseStore.recover`."""
        with self._trouble("look at", self._control.directory):
            done = self._recovery.recover(limit)
            self._notices.forget(limit)
            return done

    def unclaimed(
        self,
        *,
        task_types: Sequence[tuple[str, int]] | None = None,
        except_types: Sequence[tuple[str, int]] = (),
        handled: bool | None = None,
        older_than_seconds: float = 0.0,
        limit: int,
    ) -> Sequence[Stored]:
        """Return pending tasks that nobody holds; see :meth:`LeaseStore.unclaimed`."""
        with self._trouble("list", self._control.directory):
            return self._work.unclaimed(
                task_types, frozenset(except_types), older_than_seconds, limit, handled=handled
            )

    def next_due_seconds(self, *, task_types: Sequence[tuple[str, int]]) -> float | None:
        """Return when the next start time comes, of any kind; see :meth:`LeaseStore.next_due_seconds`."""
        with self._trouble("list", self._control.later):
            return self._work.next_start_seconds()

    def workload(self) -> Workload:
        """Return what waits and what runs; see :meth:`LeaseStore.workload`."""
        with self._trouble("list", self._control.directory):
            return self._work.workload()

    # ---- coordination of workers -----------------------------------------------------------------------

    def pause(self, task_type: str) -> None:
        """Have nobody claim tasks of this type; see :meth:`LeaseStore.pause`."""
        with self._trouble("pause a type in", self._control.paused):
            self._notices.pause(task_type)

    def unpause(self, task_type: str) -> None:
        """Let them be claimed again; see :meth:`LeaseStore.unpause`."""
        with self._trouble("resume a type in", self._control.paused):
            self._notices.unpause(task_type)

    def paused(self) -> Sequence[str]:
        """Return the paused types; see :meth:`LeaseStore.paused`."""
        with self._trouble("list", self._control.paused):
            return self._notices.paused()

    def publish(self, fact: WorkerFact) -> None:
        """Store what a worker says of itself; see :meth:`LeaseStore.publish`."""
        with self._trouble("write to", self._control.workers):
            self._notices.publish(fact)

    def withdraw(self, name: str) -> None:
        """Take it away; see :meth:`LeaseStore.withdraw`."""
        with self._trouble("remove from", self._control.workers):
            self._notices.withdraw(name)

    def facts(self) -> Sequence[WorkerFact]:
        """Return what workers that live say of themselves; see :meth:`LeaseStore.facts`."""
        with self._trouble("list", self._control.workers):
            return self._notices.facts()

    # ---- upkeep --------------------------------------------------------------------------------------

    def delete_owner(self, account_id: str, user_id: str) -> int:
        """Remove all files of a user; see :meth:`TaskStore.delete_owner`."""
        if not self._users(account_id, user_id):
            return 0
        directory = self._layout.owner_directory(account_id, user_id)
        if not any(name.endswith(SUFFIX) or name == DELETING for name in self._local.names(directory)):
            return 0
        with contextlib.suppress(FileExistsError):  # left by a crash
            self._local.create(directory, DELETING, b"{}")
        index = self._indexes.of(account_id, user_id)
        try:
            transitions.check_owner_deletable(account_id, user_id, index.active_ids())
        except InvalidTransition:
            self._local.remove(directory, DELETING)
            raise
        names = [name for name in self._local.names(directory) if name.endswith(SUFFIX)]
        deleted = sum(self._delete_for_owner(account_id, user_id, directory, name) for name in names)
        with contextlib.suppress(FileNotFoundError):
            self._local.remove(directory, DELETING)
        return deleted

    def _delete_for_owner(self, account_id: str, user_id: str, directory: str, name: str) -> bool:
        """Remove one file, unless an active task has come to be there since all of them were looked at."""
        task_id = self._layout.task_id_of(name)
        if task_id is None:  # no id that was ever given out makes such a name
            with contextlib.suppress(FileNotFoundError):
                self._local.retire(directory, name)
                return True
            return False
        key = TaskKey(account_id, user_id, task_id)

        with contextlib.suppress(TaskNotFound):
            return self._delete(key, lambda stored: not stored.record.status.is_active, corrupt=True)
        return False

    def purge(self, cutoffs: Mapping[TaskStatus, float], *, limit: int) -> Purged:
        """Remove expired records of all owners; see :meth:`TaskStore.purge`."""
        with self._trouble("look at", self._control.directory):
            self._adoption.now_and_then()
            self._recovery.sweep_effects(limit)
        return super().purge(cutoffs, limit=limit)

    def _check_purgeable(self) -> None:
        """Everything can be deleted here."""

    def _delete_expired(self, key: TaskKey, cutoffs: Mapping[TaskStatus, float]) -> bool:
        def check(stored: Stored) -> bool:
            return transitions.expired(stored.record.status, stored.record.updated_at, cutoffs)

        with contextlib.suppress(TaskNotFound):
            return self._delete(key, check)
        return False

    def examine(self, *, fix: bool = False) -> Sequence[Finding]:
        """Look for what crashes and foreign hands left; see :meth:`TaskStore.examine`."""
        examination = Examination(
            self._local,
            self._layout,
            self._indexes,
            self._control,
            self._births,
            self._entries,
            self._records,
            self._recovery,
            self._effects,
            lease_seconds=self.lease_seconds,
            fix=fix,
        )
        with self._trouble("examine", self._control.directory):
            return [*examination.findings(), *self._notices.findings(fix=fix)]

    # ---- the pieces ------------------------------------------------------------------------------------

    def _delete(self, key: TaskKey, check: Callable[[Stored], bool], *, corrupt: bool = False) -> bool:
        """Remove a record if ``check`` allows it; ``corrupt``: also one that cannot be read. False if not."""
        path = self._records.path(key)
        found: list[TaskRecord] = []

        def look() -> bool:
            try:
                stored = self._read(key)
            except CorruptRecord:
                if corrupt:
                    return True
                raise
            found[:] = [stored.record]
            if not check(stored):
                return False
            self._effects.leaving(stored.record)
            return True

        patience = self._ownership.patience()
        while True:
            with self._trouble("delete", path):
                try:
                    deleted = self._deletions.delete(key, path, look)
                except FileNotFoundError as error:
                    raise missing(key) from error
                except Busy as error:
                    if patience.wait():
                        continue
                    raise StoreUnavailable(
                        f"somebody else is deleting task {key.task_id}; ask again whether it is there"
                    ) from error
            if deleted:
                self._indexes.forget(key.account_id, key.user_id, self._layout.place(key)[1])
                for record in found:
                    with contextlib.suppress(OSError):  # whoever ended it may have stopped before doing so
                        self._announcements.take_back(record)
                    self._effects.left(record)
            return deleted

    def _mark_deletion(self, removed: str, key: TaskKey) -> None:
        self._local.mark_deletion(removed, self._layout.owner_directory(key.account_id, key.user_id))

    def _read(self, key: TaskKey) -> Stored:
        """Read a record. Raises TaskNotFound."""
        record, version = self._load_or_miss(key)
        return Stored(record, self._seen(record, version))

    def _overlaid(self, key: TaskKey, stored: Stored) -> Stored:
        return self._intents.overlaid(stored, lambda: self._read(key))

    @staticmethod
    def _seen(record: TaskRecord, version: FileVersion) -> _Seen:
        seen = version if isinstance(version, _Seen) else tuple.__new__(_Seen, version)
        if not record.status.is_terminal:
            seen.active = record
        return seen

    def _with_seen(self, stored: Stored) -> Stored:
        version = stored.version
        assert isinstance(version, FileVersion)
        return (
            stored
            if isinstance(version, _Seen)
            else Stored(stored.record, self._seen(stored.record, version))
        )

    def _seen_claim(self, claimed: tuple[EntryLease, Stored] | None) -> tuple[Lease, Stored] | None:
        return None if claimed is None else (claimed[0], self._with_seen(claimed[1]))

    @staticmethod
    def _check_expected(key: TaskKey, expected: Version | None, stored: Stored) -> None:
        if expected is not None and _digest(expected) != _digest(stored.version):
            raise VersionConflict(f"task {key.task_id} was changed meanwhile; read it again")

    def _trouble(self, verb: str, path: str) -> _Trouble:
        return _Trouble(self._local.check_root, verb, path)


class _Trouble:
    """Turns what the kernel refuses into StoreUnavailable."""

    __slots__ = ("_check_root", "_path", "_verb")

    def __init__(self, check_root: Callable[[], None], verb: str, path: str) -> None:
        self._check_root = check_root
        self._verb = verb
        self._path = path

    def __enter__(self) -> None:
        """Do nothing yet."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            self._check_root()
            # Several steps were taken: which of them had effect is for the next look to find out.
            raise StoreUnavailable(
                f"cannot {self._verb} {error.filename or self._path}: {error.strerror or error}; try again once that "
                "is mended"
            ) from error


def check_options(options: StoreOptions) -> None:
    """Raise SettingsError for what cannot work, without a look at any directory."""
    if options.options:
        raise SettingsError(f"the lease backend has no option {sorted(options.options)[0]!r}")
    if options.root is None:
        raise SettingsError(
            "the lease backend needs a directory: set root. It cannot work through a server's file client, which "
            "promises no atomic rename"
        )
    directory_of(options.root)


def open_lease(options: StoreOptions) -> LeaseTaskStore:
    """Return the store that configuration asks for. Raises SettingsError, CapabilityMissing."""
    check_options(options)
    assert options.root is not None, "it has just been looked at"
    lease_seconds = options.lease_seconds
    return LeaseTaskStore(
        options.root,
        prefix=options.prefix,
        durability=options.durability,
        lock_timeout_seconds=options.lock_timeout_seconds,
        lease_seconds=defaults.LEASE_SECONDS if lease_seconds is None else lease_seconds,
        heartbeat_seconds=options.heartbeat_seconds,
        clock=options.clock,
    )


def _digest(version: Version) -> bytes | None:
    return version.digest if isinstance(version, FileVersion) else None
