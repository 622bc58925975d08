"""PersistentTaskStore: one JSON file per task, shared by all who see the same files.

Owns what a record's file may go through. On a directory of this host updates are compare-and-set across
processes by a lock, on object stores by conditional requests (:mod:`stores.files.conditional`); on a server's own file
client they are last-write-wins, and the capabilities say so. Refuses to write below a root that a lease store has
marked.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from stores.files import examining
from stores.files.conditional import ConditionalWrites, version_of
from stores.files.id_times import out_of_order
from stores.files.index import UNORDERED, OwnerIndex
from stores.files.kinds import Kinds
from stores.files.layout import SUFFIX
from stores.files.places import open_place
from stores.files.reading import DELETING, FileStore, missing
from stores.files.versions import FileVersion
from task_tracker import defaults, transitions
from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.codec import encode_record
from task_tracker.errors import CapabilityMissing, InvalidTransition, SettingsError, TaskExists
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Capabilities, Finding, Stored, StoreOptions, Version

__all__ = ["PersistentTaskStore", "open_persistent"]


class PersistentTaskStore(FileStore):
    """Records as files: in a directory, an object store, on a file system of fsspec, behind a client.

    ``files`` is a path, a URL (``options`` go to what it means), an instance of fsspec, or a client with ``read``,
    ``write``, ``ls`` and ``mkdir``. ``durability`` is ``full``, ``edges`` or ``none``, for directories
    (:class:`stores.files.local.LocalFiles`).
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | object,
        *,
        prefix: str = defaults.PREFIX,
        durability: str = defaults.DURABILITY,
        lock_timeout_seconds: float = defaults.LOCK_TIMEOUT_SECONDS,
        options: Mapping[str, Any] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._claimed: Capabilities | None = None
        place = open_place(files, clock, durability, lock_timeout_seconds, prefix=prefix, options=options)
        super().__init__(place, prefix, clock)
        kinds = Kinds(place, self._layout, self._load, clock, lock_timeout_seconds)
        self._conditional = ConditionalWrites(place, kinds, self._load_or_miss, self._load, clock)

    @property
    def capabilities(self) -> Capabilities:
        """What the place can do, which may have to be tried out; or what a subclass has set."""
        return self._claimed or self._files.capabilities

    @capabilities.setter
    def capabilities(self, claimed: Capabilities) -> None:
        self._claimed = claimed

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
            if self._files.conditional:
                return self._conditional.create_one_of_a_kind(record, index, self.create)
            if index.has_active(record.task_type, record.resource_id):
                return None
            return self._create(directory, name, record, data)

    def update(self, record: TaskRecord, *, expected: Version | None) -> Stored:
        """Replace a file; see :meth:`TaskStore.update`."""
        if expected is not None and not self.capabilities.compare_and_set:
            raise CapabilityMissing(
                "this place has no compare-and-set; pass expected=None (last write wins), or use a directory"
            )
        key = record.key
        directory, name = self._placed(key)
        data = encode_record(record)
        try:
            with self._writing(directory):
                final = record.status.is_terminal
                if self._files.conditional:
                    version = self._conditional.update(
                        key, directory, name, data, expected=expected, final=final
                    )
                    return Stored(record, version)
                if expected is None:
                    self._load_or_miss(key)
                else:
                    # The digest alone decides: what was read as a record then is one now.
                    self._compare(key, expected, FileVersion.of(*self._files.read(directory, name)))
                self._files.replace(directory, name, data, final=final)
        except FileNotFoundError as error:
            raise missing(key) from error
        return Stored(record, FileVersion.of(data, None))

    def delete(self, key: TaskKey, *, expected: Version | None = None) -> None:
        """Remove a file of a task that has ended; see :meth:`TaskStore.delete`."""
        if expected is not None and not self.capabilities.compare_and_set:
            raise CapabilityMissing(
                "this place has no compare-and-set; pass expected=None, or use a directory"
            )
        directory, name = self._placed(key)
        try:
            with self._writing(directory):
                if self._files.conditional:
                    self._conditional.delete(key, directory, name, expected=expected)
                    self._indexes.forget(key.account_id, key.user_id, name)
                    return
                record, version = self._load_or_miss(key)
                transitions.check_deletable(record)
                if expected is not None:
                    self._compare(key, expected, version)
                self._remove(key, directory, name)
        except FileNotFoundError as error:
            raise missing(key) from error

    # ---- upkeep --------------------------------------------------------------------------------------

    def delete_owner(self, account_id: str, user_id: str) -> int:
        """Remove all files of a user; see :meth:`TaskStore.delete_owner`."""
        self._check_removable()
        if not self._users(account_id, user_id):
            return 0
        directory = self._layout.owner_directory(account_id, user_id)
        with contextlib.suppress(FileNotFoundError), self._writing(directory):
            index = self._indexes.of(account_id, user_id)
            if self._files.conditional:
                return self._conditional.delete_owner(account_id, user_id, directory, index)
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

    def _check_removable(self) -> None:
        if not self._files.can_remove:
            raise CapabilityMissing(
                "the file client has no rm(), so nothing can be deleted; give one that has it, or set retention to null"
            )

    def examine(self, *, fix: bool = False) -> Sequence[Finding]:
        """Look for damaged records, temporary files and records in old places; see :meth:`TaskStore.examine`."""
        if fix:
            self._marks.check_writable()
        return examining.examine(self._files, self._layout, self._load, self._adopt, fix=fix)

    def _adopt(self, record: TaskRecord, data: bytes) -> None:
        """Create a record with the bytes that it has elsewhere. Raises TaskExists."""
        directory, name = self._layout.place(record.key)
        with self._writing(directory, make=True):
            self._create(directory, name, record, data)

    def _delete_expired(self, key: TaskKey, cutoffs: Mapping[TaskStatus, float]) -> bool:
        directory, name = self._placed(key)
        with contextlib.suppress(FileNotFoundError), self._writing(directory):
            record, version, _ = self._load(key)
            if transitions.expired(record.status, record.updated_at, cutoffs):
                if not self._files.conditional:
                    self._remove(key, directory, name)
                elif not self._conditional.delete_expired(key, directory, name, record, version):
                    return False
                self._indexes.forget(key.account_id, key.user_id, name)
                return True
        return False  # another life of the same id, or somebody else's sweep

    def _check_purgeable(self) -> None:
        self._check_removable()
        self._marks.check_writable()

    # ---- the pieces ------------------------------------------------------------------------------------

    def _writing(self, directory: str, *, make: bool = False) -> AbstractContextManager[None]:
        """Be the only writer of a user's directory, where that is needed, on a root that this store may write to."""
        self._marks.check_writable()
        return (
            contextlib.nullcontext()
            if self._files.conditional
            else self._files.exclusively(directory, make=make)
        )

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
            signature = self._files.create(directory, name, data)
        except FileExistsError as error:
            raise TaskExists(
                f"task {record.task_id} exists already; choose another id or leave it out"
            ) from error
        self._marks.note_opened()
        return Stored(record, version_of(data, signature))

    def _mark_unordered(self, directory: str) -> None:
        """Say, before the record is there, that the times in this directory's names are not to be believed."""
        with contextlib.suppress(FileExistsError):
            self._files.create(directory, UNORDERED, b"{}")


def open_persistent(options: StoreOptions) -> PersistentTaskStore:
    """Return the store that configuration asks for: on ``root``, or else on the server's own client."""
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
        options=options.options,
        clock=options.clock,
    )
