"""What the file stores do alike: read records, list them, find those that have expired.

Owns every way of looking at a directory of records. Refuses to write: who may do that, and how, is what the
stores differ in.
"""

from __future__ import annotations

import builtins
import heapq
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from stores.files.backing import Backing, FileRead
from stores.files.control import RootMarks
from stores.files.indexes import Indexes
from stores.files.layout import Layout
from stores.files.versions import FileVersion
from task_tracker import transitions
from task_tracker.clock import Clock
from task_tracker.codec import decode_record
from task_tracker.errors import (
    CorruptRecord,
    InvalidTaskId,
    StoreUnavailable,
    TaskNotFound,
    TaskTrackerError,
    VersionConflict,
)
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Cursor, Page, Purged, Query, Stored, TaskStore, Unchanged, Version

__all__ = ["DELETING", "FileStore", "missing"]

DELETING: Final = ".deleting"
"""In a user's directory while all of it is being deleted; left there by a crash, for the next try."""

_TORN_TRIES: Final = 5


class FileStore(TaskStore):
    """A store of one JSON file per task, as far as reading goes."""

    def __init__(self, files: Backing, prefix: str, clock: Clock, *, locked: bool = True) -> None:
        self._files = files
        self._layout = Layout(prefix)
        files.keep_own_files_in(self._layout.control)
        self._marks = RootMarks(files, self._layout, clock, locked=locked)
        self._indexes = Indexes(files, self._layout, self._load)

    # ---- one record ----------------------------------------------------------------------------------

    def get(self, key: TaskKey, *, known: Version | None = None) -> Stored | Unchanged:
        """Read a file, or only look at it; see :meth:`TaskStore.get`."""
        directory, name = self._placed(key)
        read = None
        if isinstance(known, FileVersion) and known.settled:
            try:
                read = self._files.read_unless(directory, name, known.signature)
                if read is None:
                    return Unchanged(known)
            except FileNotFoundError:
                pass  # a miss is confirmed below
        record, version = self._load_or_miss(key, read)
        if isinstance(known, FileVersion) and known.digest == version.digest:
            return Unchanged(version)
        return Stored(record, version)

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

    def find_active(
        self, account_id: str, user_id: str, task_type: str, resource_id: str | None
    ) -> Stored | None:
        """Return the newest active record of this kind; see :meth:`TaskStore.find_active`."""
        found = [
            self._indexes.of(account_id, user).newest_active(task_type, resource_id)
            for user in self._users(account_id, user_id)
        ]
        return found[0] if found else None

    def count(self, account_id: str, user_id: str | None) -> dict[str, dict[str, int]]:
        """Return ``{task_type: {status: number}}``; see :meth:`TaskStore.count`."""
        counts: dict[str, dict[str, int]] = {}
        for user in self._users(account_id, user_id):
            self._indexes.of(account_id, user).count_into(counts)
        return counts

    def owners(self) -> Iterator[tuple[str, str]]:
        """Iterate over all who have a directory; see :meth:`TaskStore.owners`."""
        failed: list[TaskTrackerError] = []
        yield from self._indexes.owners(failed)
        if failed:
            raise failed[0]

    # ---- upkeep --------------------------------------------------------------------------------------

    def purge(self, cutoffs: Mapping[TaskStatus, float], *, limit: int) -> Purged:
        """Remove expired files of all owners; see :meth:`TaskStore.purge`."""
        if cutoffs:
            self._check_purgeable()
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

    @abstractmethod
    def _check_purgeable(self) -> None:
        """Raise CapabilityMissing if nothing can be deleted here."""

    @abstractmethod
    def _delete_expired(self, key: TaskKey, cutoffs: Mapping[TaskStatus, float]) -> bool:
        """Delete one record if it is expired; False if it is another one by now."""

    # ---- the pieces ------------------------------------------------------------------------------------

    def _placed(self, key: TaskKey) -> tuple[str, str]:
        """Return where a record is; an id that cannot be stored belongs to no task."""
        try:
            return self._layout.place(key)
        except InvalidTaskId as error:
            raise TaskNotFound(f"no task {key.task_id!r:.80}: {error}") from error

    def _load(self, key: TaskKey, read: FileRead | None = None) -> tuple[TaskRecord, FileVersion, int]:
        """Read and decode a record, unless it was ``read`` already. Raises FileNotFoundError, CorruptRecord."""
        directory, name = self._layout.place(key)
        # Whether others write in place is not known: a client that refuses to replace is found out by writing.
        tries = _TORN_TRIES if self._files.remote and not self._files.consistent else 1
        while True:
            data, signature, settled = read or self._files.read(directory, name)
            read = None
            tries -= 1
            try:
                record = decode_record(data, key, self._files.where(directory, name))
            except CorruptRecord:
                # Written in place, a record is torn for a moment; a damaged one stays so.
                if not tries:
                    raise
            else:
                return record, FileVersion.of(data, signature, settled), len(data)

    def _load_or_miss(self, key: TaskKey, read: FileRead | None = None) -> tuple[TaskRecord, FileVersion]:
        """Read a record; a miss is confirmed by looking at the directory. Raises TaskNotFound."""
        try:
            record, version, _ = self._load(key, read)
        except FileNotFoundError as miss:
            if self._files.consistent:
                raise missing(key) from miss
            if not self._indexes.of(key.account_id, key.user_id).contains(self._layout.place(key)[1]):
                raise missing(key) from miss
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


def _place(stored: Stored) -> Cursor:
    return Cursor.of(stored.record)


def missing(key: TaskKey) -> TaskNotFound:
    """Return what is raised for a record that is not there."""
    return TaskNotFound(f"no task {key.task_id} of {key.account_id}/{key.user_id}; it may have been deleted")
