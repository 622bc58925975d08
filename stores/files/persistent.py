"""PersistentTaskStore: one JSON file per task, shared by all who see the same files.

Owns what a record's file may go through. On a directory of this host updates are compare-and-set across
processes; on a server's own file client they are last-write-wins, and the capabilities say so. Refuses to
write below a root that a lease store has marked.
"""

from __future__ import annotations

import builtins
import contextlib
import heapq
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Final

from stores.files.control import RootMarks
from stores.files.id_times import out_of_order
from stores.files.index import UNORDERED, OwnerIndex
from stores.files.indexes import Indexes
from stores.files.layout import SUFFIX, Layout
from stores.files.places import open_place
from stores.files.versions import FileVersion
from task_tracker import defaults, transitions
from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.codec import decode_record, encode_record
from task_tracker.errors import (
    CapabilityMissing,
    CorruptRecord,
    InvalidTaskId,
    InvalidTransition,
    SettingsError,
    StoreUnavailable,
    TaskExists,
    TaskNotFound,
    TaskTrackerError,
    VersionConflict,
)
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import (
    Cursor,
    Page,
    Purged,
    Query,
    Stored,
    StoreOptions,
    TaskStore,
    Unchanged,
    Version,
)

__all__ = ["PersistentTaskStore", "open_persistent"]

DELETING: Final = ".deleting"
"""In a user's directory while all of it is being deleted; left there by a crash, for the next try."""

_TORN_TRIES: Final = 5


class PersistentTaskStore(TaskStore):
    """Records as files below a directory, or behind a client with ``read``, ``write``, ``ls`` and ``mkdir``.

    ``files`` is a path or such a client. ``durability`` is ``full``, ``edges`` or ``none``
    (:class:`stores.files.local.LocalFiles`; a client does what it does).
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | object,
        *,
        prefix: str = defaults.PREFIX,
        durability: str = defaults.DURABILITY,
        lock_timeout_seconds: float = defaults.LOCK_TIMEOUT_SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._files = open_place(files, clock, durability, lock_timeout_seconds)
        self.capabilities = self._files.capabilities
        self._layout = Layout(prefix)
        self._marks = RootMarks(self._files, self._layout, clock)
        self._indexes = Indexes(self._files, self._layout, self._load)

    # ---- one record ----------------------------------------------------------------------------------

    def create(self, record: TaskRecord) -> Stored:
        """Publish a new file; see :meth:`TaskStore.create`."""
        directory, name = self._layout.place(record.key)
        data = encode_record(record)
        with self._writing(directory, make=True):
            return self._create(directory, name, record, data)

    def create_if_no_active(self, record: TaskRecord) -> Stored | None:
        """Publish a new file unless one like it is active; see :meth:`TaskStore.create_if_no_active`."""
        directory, name = self._layout.place(record.key)
        data = encode_record(record)
        index = self._indexes.of(record.account_id, record.user_id)
        # Asked without the lock first: most are refused, and history is read in while nobody waits for it.
        if index.has_active(record.task_type, record.resource_id):
            return None
        with self._writing(directory, make=True):
            if index.has_active(record.task_type, record.resource_id):
                return None
            return self._create(directory, name, record, data)

    def update(self, record: TaskRecord, *, expected: Version | None) -> Stored:
        """Replace a file; see :meth:`TaskStore.update`."""
        if expected is not None and not self.capabilities.compare_and_set:
            raise CapabilityMissing(
                "a file client has no compare-and-set; pass expected=None (last write wins), or use a directory"
            )
        key = record.key
        directory, name = self._placed(key)
        data = encode_record(record)
        try:
            with self._writing(directory):
                if expected is None:
                    self._load_or_miss(key)
                else:
                    # The digest alone decides: what was read as a record then is one now.
                    self._compare(key, expected, FileVersion.of(*self._files.read(directory, name)))
                self._files.replace(directory, name, data, final=record.status.is_terminal)
        except FileNotFoundError as error:
            raise _missing(key) from error
        return Stored(record, FileVersion.of(data, None))

    def get(self, key: TaskKey, *, known: Version | None = None) -> Stored | Unchanged:
        """Read a file, or only look at it; see :meth:`TaskStore.get`."""
        directory, name = self._placed(key)
        if isinstance(known, FileVersion) and known.settled:
            try:
                if self._files.signature(directory, name) == known.signature:
                    return Unchanged(known)
            except FileNotFoundError:
                pass  # a miss is confirmed below
        record, version = self._load_or_miss(key)
        if isinstance(known, FileVersion) and known.digest == version.digest:
            return Unchanged(version)
        return Stored(record, version)

    def delete(self, key: TaskKey, *, expected: Version | None = None) -> None:
        """Remove a file of a task that has ended; see :meth:`TaskStore.delete`."""
        if expected is not None and not self.capabilities.compare_and_set:
            raise CapabilityMissing(
                "a file client has no compare-and-set; pass expected=None, or use a directory"
            )
        directory, name = self._placed(key)
        try:
            with self._writing(directory):
                record, version = self._load_or_miss(key)
                transitions.check_deletable(record)
                if expected is not None:
                    self._compare(key, expected, version)
                self._remove(key, directory, name)
        except FileNotFoundError as error:
            raise _missing(key) from error

    # ---- many records ----------------------------------------------------------------------------------

    def list(self, query: Query) -> Page:
        """Return one page; see :meth:`TaskStore.list`."""
        pages = []
        corrupt: list[CorruptRecord] = []
        for user_id in self._users(query.account_id, query.user_id):
            records, skipped = self._indexes.of(query.account_id, user_id).page(query)
            pages.append(records)
            corrupt.extend(skipped)
        found = pages[0] if len(pages) == 1 else heapq.merge(*pages, key=_place, reverse=True)
        items = [*islice(found, None if query.limit is None else query.limit + 1)]
        more = query.limit is not None and len(items) > query.limit
        items = items[: query.limit]
        return Page(items, _place(items[-1]) if more else None, corrupt)

    def has_active(
        self, account_id: str, user_id: str | None, task_type: str, resource_id: str | None
    ) -> bool:
        """Tell whether such a task is active; see :meth:`TaskStore.has_active`."""
        return any(
            self._indexes.of(account_id, user).has_active(task_type, resource_id)
            for user in self._users(account_id, user_id)
        )

    def count(self, account_id: str, user_id: str | None) -> dict[str, dict[str, int]]:
        """Return ``{task_type: {status: number}}``; see :meth:`TaskStore.count`."""
        counts: dict[str, dict[str, int]] = {}
        for user in self._users(account_id, user_id):
            self._indexes.of(account_id, user).count_into(counts)
        return counts

    # ---- upkeep --------------------------------------------------------------------------------------

    def delete_owner(self, account_id: str, user_id: str) -> int:
        """Remove all files of a user; see :meth:`TaskStore.delete_owner`."""
        self._check_removable()
        if not self._users(account_id, user_id):
            return 0
        directory = self._layout.owner_directory(account_id, user_id)
        with contextlib.suppress(FileNotFoundError), self._writing(directory):
            index = self._indexes.of(account_id, user_id)
            transitions.check_owner_deletable(account_id, user_id, index.active_ids())
            names = [name for name in self._files.names(directory) if name.endswith(SUFFIX)]
            if names or self._files.exists(directory, DELETING):
                return self._remove_all(index, directory, names)
        return 0

    def _remove_all(self, index: OwnerIndex, directory: str, names: Sequence[str]) -> int:
        deleted = 0
        with contextlib.suppress(FileExistsError):  # left by a crash
            self._files.create(directory, DELETING, b"{}")
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._files.retire(directory, name)
                deleted += 1
            index.forget(name)
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(directory, DELETING)
        return deleted

    def purge(self, cutoffs: Mapping[TaskStatus, float], *, limit: int) -> Purged:
        """Remove expired files of all owners; see :meth:`TaskStore.purge`."""
        if cutoffs:
            self._check_removable()
            self._marks.check_writable()
            opened_at = self._marks.opened_at()
            cutoffs = {status: cutoff for status, cutoff in cutoffs.items() if opened_at <= cutoff}
        deleted: list[TaskKey] = []
        failed: list[TaskTrackerError] = []
        self._marks.sweep()
        for account_id, user_id in self._indexes.owners(failed):
            try:
                more = self._purge_owner(account_id, user_id, cutoffs, limit, deleted, failed)
            except StoreUnavailable as error:
                if self._files.remote:
                    raise  # nobody answers; the next owner would be waited for as long
                failed.append(error)
            else:
                if more:
                    return Purged(deleted, len(failed), more=True)
        return Purged(deleted, len(failed), more=False)

    def _purge_owner(
        self,
        account_id: str,
        user_id: str,
        cutoffs: Mapping[TaskStatus, float],
        limit: int,
        deleted: builtins.list[TaskKey],
        failed: builtins.list[TaskTrackerError],
    ) -> bool:
        """Remove what is expired until ``limit`` records are ``deleted``; True if there was more."""
        index = self._indexes.of(account_id, user_id)
        self._files.sweep(self._layout.owner_directory(account_id, user_id), index.other_names())
        for summary in index.summaries() if cutoffs else ():
            if not transitions.expired(summary.status, summary.updated_at, cutoffs):
                continue
            if len(deleted) >= limit:
                return True
            key = TaskKey(account_id, user_id, summary.task_id)
            try:
                if self._delete_expired(key, cutoffs):
                    deleted.append(key)
            except TaskTrackerError as error:
                failed.append(error)
        return False

    def _check_removable(self) -> None:
        if not self._files.can_remove:
            raise CapabilityMissing(
                "the file client has no rm(), so nothing can be deleted; give one that has it, or set retention to null"
            )

    def _delete_expired(self, key: TaskKey, cutoffs: Mapping[TaskStatus, float]) -> bool:
        directory, name = self._placed(key)
        with contextlib.suppress(FileNotFoundError), self._writing(directory):
            record, _, _ = self._load(key)
            if transitions.expired(record.status, record.updated_at, cutoffs):
                self._remove(key, directory, name)
                return True
        return False  # another life of the same id, or somebody else's sweep

    # ---- the pieces ------------------------------------------------------------------------------------

    def _writing(self, directory: str, *, make: bool = False) -> AbstractContextManager[None]:
        """Be the only writer of a user's directory, on a root that this store may write to."""
        self._marks.check_writable()
        return self._files.exclusively(directory, make=make)

    def _remove(self, key: TaskKey, directory: str, name: str) -> None:
        self._files.retire(directory, name)
        self._indexes.forget(key.account_id, key.user_id, name)

    def _create(self, directory: str, name: str, record: TaskRecord, data: bytes) -> Stored:
        if self._files.exists(directory, DELETING):
            raise InvalidTransition(
                f"the tasks of {record.account_id}/{record.user_id} are being deleted, and no new one can be "
                "created; call delete_user_tasks again to bring that to its end"
            )
        if out_of_order(record.task_id, record.created_at) and not self._files.exists(directory, name):
            self._mark_unordered(directory)
        try:
            self._files.create(directory, name, data)
        except FileExistsError as error:
            raise TaskExists(
                f"task {record.task_id} exists already; choose another id or leave it out"
            ) from error
        self._marks.note_opened()
        return Stored(record, FileVersion.of(data, None))

    def _mark_unordered(self, directory: str) -> None:
        """Say, before the record is there, that the times in this directory's names are not to be believed."""
        with contextlib.suppress(FileExistsError):
            self._files.create(directory, UNORDERED, b"{}")

    def _placed(self, key: TaskKey) -> tuple[str, str]:
        """Return where a record is; an id that cannot be stored belongs to no task."""
        try:
            return self._layout.place(key)
        except InvalidTaskId as error:
            raise TaskNotFound(f"no task {key.task_id!r:.80}: {error}") from error

    def _load(self, key: TaskKey) -> tuple[TaskRecord, FileVersion, int]:
        """Read and decode a record. Raises FileNotFoundError, CorruptRecord."""
        directory, name = self._layout.place(key)
        # Whether others write in place is not known: a client that refuses to replace is found out by writing.
        tries = _TORN_TRIES if self._files.remote else 1
        while True:
            data, signature, settled = self._files.read(directory, name)
            tries -= 1
            try:
                record = decode_record(data, key, self._files.where(directory, name))
            except CorruptRecord:
                # Written in place, a record is torn for a moment; a damaged one stays so.
                if not tries:
                    raise
            else:
                return record, FileVersion.of(data, signature, settled), len(data)

    def _load_or_miss(self, key: TaskKey) -> tuple[TaskRecord, FileVersion]:
        """Read a record; a miss is confirmed by looking at the directory. Raises TaskNotFound."""
        try:
            record, version, _ = self._load(key)
        except FileNotFoundError as miss:
            if not self._indexes.of(key.account_id, key.user_id).contains(self._layout.place(key)[1]):
                raise _missing(key) from miss
            try:
                record, version, _ = self._load(key)
            except FileNotFoundError as error:
                raise StoreUnavailable(
                    f"task {key.task_id} is listed but cannot be opened yet (a network disk may be late); ask again"
                ) from error
        return record, version

    @staticmethod
    def _compare(key: TaskKey, expected: Version, stored: FileVersion) -> None:
        if not isinstance(expected, FileVersion) or expected.digest != stored.digest:
            raise VersionConflict(f"task {key.task_id} was changed meanwhile; read it again")

    def _users(self, account_id: str, user_id: str | None) -> Sequence[str]:
        """Return whom a question is about; ids that cannot be stored are nobody."""
        try:
            if user_id is None:
                return self._indexes.users(account_id)
            self._layout.owner_directory(account_id, user_id)
        except InvalidTaskId:
            return ()
        return (user_id,)


def open_persistent(options: StoreOptions) -> PersistentTaskStore:
    """Return the store that configuration asks for: on ``root``, or else on the server's own client."""
    if options.options:
        raise SettingsError(f"the persistent backend has no option {sorted(options.options)[0]!r}")
    files = options.client if options.root is None else options.root
    if files is None:
        raise SettingsError(
            "the persistent backend needs a place: set root to a directory, or pass the server's file client to "
            "build_task_tracker(client)"
        )
    return PersistentTaskStore(
        files,
        prefix=options.prefix,
        durability=options.durability,
        lock_timeout_seconds=options.lock_timeout_seconds,
        clock=options.clock,
    )


def _place(stored: Stored) -> Cursor:
    return Cursor.of(stored.record)


def _missing(key: TaskKey) -> TaskNotFound:
    return TaskNotFound(f"no task {key.task_id} of {key.account_id}/{key.user_id}; it may have been deleted")
