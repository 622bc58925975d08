"""PersistentTaskStore: one JSON file per task, shared by all who see the same files.

Owns what a record's file may go through. On a directory of this host updates are compare-and-set across
processes; on a server's own file client they are last-write-wins, and the capabilities say so. Refuses to
write below a root that a lease store has marked.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Final

from stores.files.backing import Backing, Signature
from stores.files.client import ClientFiles
from stores.files.control import RootMarks
from stores.files.index import UNORDERED, FileVersion, out_of_order
from stores.files.indexes import Indexes
from stores.files.layout import SUFFIX, Layout
from stores.files.local import LocalFiles
from task_tracker import transitions
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
        prefix: str = "/local",
        durability: str = "edges",
        lock_timeout_seconds: float = 10.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._files = _backing(files, clock, durability, lock_timeout_seconds)
        self.capabilities = self._files.capabilities
        self._layout = Layout(prefix)
        self._marks = RootMarks(self._files, self._layout, clock)
        self._indexes = Indexes(self._files, self._layout, self._load)

    # ---- one record ----------------------------------------------------------------------------------

    def create(self, record: TaskRecord) -> Stored:
        """Publish a new file; see :meth:`TaskStore.create`."""
        directory, name = self._layout.place(record.key)
        data = encode_record(record)
        with self._writing(directory):
            return self._create(directory, name, record, data)

    def create_if_no_active(self, record: TaskRecord) -> Stored | None:
        """Publish a new file unless one like it is active; see :meth:`TaskStore.create_if_no_active`."""
        directory, name = self._layout.place(record.key)
        data = encode_record(record)
        index = self._indexes.of(record.account_id, record.user_id)
        # Asked without the lock first: most are refused, and history is read in while nobody waits for it.
        if index.has_active(record.task_type, record.resource_id):
            return None
        with self._writing(directory):
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
        with self._writing(directory):
            if expected is None:
                self._load_or_miss(key)
            else:
                # The digest alone decides: what was read as a record then is one now.
                self._compare(key, expected, self._digest(key, directory, name))
            signature = self._files.replace(directory, name, data, final=record.status.is_terminal)
        return _stored(record, data, signature)

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
        with self._writing(directory):
            record, version = self._load_or_miss(key)
            transitions.check_deletable(record)
            if expected is not None:
                self._compare(key, expected, version.digest)
            try:
                self._files.remove(directory, name)
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
        directory = self._layout.owner_directory(account_id, user_id)
        index = self._indexes.of(account_id, user_id)
        deleted = 0
        with self._writing(directory):
            transitions.check_owner_deletable(account_id, user_id, index.active_ids())
            names = [name for name in self._files.names(directory) if name.endswith(SUFFIX)]
            marked = self._files.exists(directory, DELETING)
            if not names and not marked:
                return 0
            if not marked:
                self._files.create(directory, DELETING, b"{}")
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    self._files.remove(directory, name)
                    deleted += 1
            self._files.remove(directory, DELETING)
        return deleted

    def purge(self, cutoffs: Mapping[TaskStatus, float], *, limit: int) -> Purged:
        """Remove expired files of all owners; see :meth:`TaskStore.purge`."""
        if cutoffs:
            self._check_removable()
        opened_at = self._marks.opened_at()
        cutoffs = {status: cutoff for status, cutoff in cutoffs.items() if opened_at <= cutoff}
        deleted: list[TaskKey] = []
        failed = 0
        for account_id, user_id in self._indexes.owners():
            index = self._indexes.of(account_id, user_id)
            self._files.sweep(self._layout.owner_directory(account_id, user_id), index.other_names())
            for summary in index.summaries() if cutoffs else ():
                if not transitions.expired(summary.status, summary.updated_at, cutoffs):
                    continue
                if len(deleted) >= limit:
                    return Purged(deleted, failed, more=True)
                key = TaskKey(account_id, user_id, summary.task_id)
                try:
                    if self._delete_expired(key, cutoffs):
                        deleted.append(key)
                except TaskTrackerError:
                    failed += 1
        return Purged(deleted, failed, more=False)

    def _check_removable(self) -> None:
        if not self._files.can_remove:
            raise CapabilityMissing(
                "the file client has no rm(), so nothing can be deleted; give one that has it, or set retention to null"
            )

    def _delete_expired(self, key: TaskKey, cutoffs: Mapping[TaskStatus, float]) -> bool:
        directory, name = self._placed(key)
        with self._writing(directory):
            try:
                record, _, _ = self._load(key)
                if not transitions.expired(record.status, record.updated_at, cutoffs):
                    return False  # another life of the same id
                self._files.remove(directory, name)
            except FileNotFoundError:
                return False  # somebody else's sweep
        return True

    # ---- the pieces ------------------------------------------------------------------------------------

    def _writing(self, directory: str) -> AbstractContextManager[None]:
        """Be the only writer of a user's directory, on a root that this store may write to."""
        self._marks.check_writable()
        return self._files.exclusively(directory)

    def _create(self, directory: str, name: str, record: TaskRecord, data: bytes) -> Stored:
        if self._files.exists(directory, DELETING):
            raise InvalidTransition(
                f"the tasks of {record.account_id}/{record.user_id} are being deleted, and no new one can be "
                "created; call delete_user_tasks again to bring that to its end"
            )
        if out_of_order(record.task_id, record.created_at):
            self._mark_unordered(directory)
        try:
            signature = self._files.create(directory, name, data)
        except FileExistsError as error:
            raise TaskExists(
                f"task {record.task_id} exists already; choose another id or leave it out"
            ) from error
        self._marks.note_opened()
        return _stored(record, data, signature)

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
        tries = 1 if self._files.atomic else _TORN_TRIES
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
                return record, FileVersion(_digest(data), signature, settled), len(data)

    def _load_or_miss(self, key: TaskKey) -> tuple[TaskRecord, FileVersion]:
        """Read a record; a miss is confirmed by looking at the directory. Raises TaskNotFound."""
        try:
            record, version, _ = self._load(key)
        except FileNotFoundError:
            self._confirm_missing(key)
            try:
                record, version, _ = self._load(key)
            except FileNotFoundError as error:
                raise StoreUnavailable(
                    f"task {key.task_id} is listed but cannot be opened yet (a network disk may be late); ask again"
                ) from error
        return record, version

    def _confirm_missing(self, key: TaskKey) -> None:
        """Raise TaskNotFound unless the directory lists the record after all."""
        _, name = self._layout.place(key)
        if not self._indexes.of(key.account_id, key.user_id).contains(name):
            raise _missing(key)

    def _digest(self, key: TaskKey, directory: str, name: str) -> bytes:
        try:
            return _digest(self._files.read(directory, name).data)
        except FileNotFoundError as error:
            raise _missing(key) from error

    @staticmethod
    def _compare(key: TaskKey, expected: Version, digest: bytes) -> None:
        if not isinstance(expected, FileVersion) or expected.digest != digest:
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


def _backing(files: object, clock: Clock, durability: str, lock_timeout_seconds: float) -> Backing:
    if not isinstance(files, (str, os.PathLike)):
        return ClientFiles(files, clock, lock_timeout_seconds=lock_timeout_seconds)
    root = os.fspath(files)
    if not isinstance(root, str) or not root.strip() or "\0" in root:
        raise SettingsError(f"root is {root!r}; give the path of a directory")
    scheme, separator, rest = root.partition("://")
    if separator and scheme != "file":
        raise SettingsError(f"root is {root!r}; this version keeps records in local directories, give a path")
    return LocalFiles(
        rest if separator else root, clock, durability=durability, lock_timeout_seconds=lock_timeout_seconds
    )


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _stored(record: TaskRecord, data: bytes, signature: Signature | None) -> Stored:
    # Never settled: the file is as young as can be.
    return Stored(record, FileVersion(_digest(data), signature, settled=False))


def _place(stored: Stored) -> Cursor:
    return Cursor.of(stored.record)


def _missing(key: TaskKey) -> TaskNotFound:
    return TaskNotFound(f"no task {key.task_id} of {key.account_id}/{key.user_id}; it may have been deleted")
