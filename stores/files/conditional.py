"""Writing where the place itself compares: each write names what it replaces, and nobody is kept out.

Owns how a refusal is understood: the record is gone, it was changed, or it is the same under another tag. Used by the
persistent store on object stores; on directories it takes a lock instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from stores.files.backing import AnySignature, Backing, Changed, Look, settled
from stores.files.index import OwnerIndex
from stores.files.kinds import NEVER_CREATED, Kind, Kinds, Taken
from stores.files.layout import SUFFIX
from stores.files.reading import DELETING, missing
from stores.files.versions import FileVersion, RecordReader
from task_tracker import transitions
from task_tracker.clock import Clock
from task_tracker.errors import CorruptRecord, StoreUnavailable, TaskExists, VersionConflict
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import Stored, Version

__all__ = ["ConditionalWrites", "version_of"]

_TRIES: Final = 50
"""Against a record that changes faster than it can be read and written."""

Load = Callable[[TaskKey], tuple[TaskRecord, FileVersion]]
"""Reads a record. Raises TaskNotFound, CorruptRecord."""
Create = Callable[[TaskRecord], Stored]


class ConditionalWrites:
    """Updates, deletions and creations of one kind on a place that is ``conditional``. Thread-safe."""

    def __init__(self, files: Backing, kinds: Kinds, load: Load, reader: RecordReader, clock: Clock) -> None:
        self._files = files
        self._kinds = kinds
        self._load = load
        self._read_record = reader
        self._clock = clock

    # ---- one record ----------------------------------------------------------------------------------

    def update(
        self, key: TaskKey, directory: str, name: str, data: bytes, *, expected: Version | None, final: bool
    ) -> FileVersion:
        """Replace a record: with a version that has a tag, in one request. Raises as ``TaskStore.update``."""
        known = expected if isinstance(expected, FileVersion) and expected.settled else None
        for _ in range(_TRIES):
            if known is None:
                known = self._compared(key, expected)
            try:
                tag = self._files.replace(directory, name, data, final=final, over=known.signature)
            except Changed:
                known = None
                continue
            return version_of(data, tag)
        raise _restless(key)

    def delete(self, key: TaskKey, directory: str, name: str, *, expected: Version | None) -> None:
        """Delete a record that has ended. Raises as ``TaskStore.delete``."""
        for _ in range(_TRIES):
            record, version = self._load(key)
            transitions.check_deletable(record)
            if expected is not None:
                _compare(key, expected, version)
            named = self._kinds.named_by(Kind.of(record), (key.task_id,))
            try:
                self._files.retire(directory, name, over=version.signature)
            except Changed:
                continue
            except FileNotFoundError as error:
                raise missing(key) from error
            self._kinds.forget(named)
            return
        raise _restless(key)

    def delete_expired(
        self, key: TaskKey, directory: str, name: str, record: TaskRecord, version: FileVersion
    ) -> bool:
        """Delete a record as it was read; False if it is another one by now. Raises FileNotFoundError."""
        named = self._kinds.named_by(Kind.of(record), (key.task_id,))
        try:
            self._files.retire(directory, name, over=version.signature)
        except Changed:
            return False
        self._kinds.forget(named)
        return True

    def _compared(self, key: TaskKey, expected: Version | None) -> FileVersion:
        """Return the version that is stored. Raises VersionConflict if another one is expected, TaskNotFound."""
        try:
            _, version = self._load(key)
        except CorruptRecord:
            if expected is None:
                raise
            raise _conflict(key) from None
        if expected is not None:
            _compare(key, expected, version)
        return version

    # ---- one of a kind -----------------------------------------------------------------------------------

    def create_one_of_a_kind(self, record: TaskRecord, index: OwnerIndex, create: Create) -> Stored | None:
        """Create a record while its kind is taken for it; None if one like it is active. Raises as ``create``."""
        taken = self._kinds.take(record)
        if taken is None:
            return None
        try:
            stored = create(record)
        except StoreUnavailable:
            raise  # it may still come, so others wait for it
        except TaskExists as error:
            self._judge(record, taken, index, error)
            return None
        except BaseException:
            self._kinds.settle(taken)
            raise
        self._kinds.settle(taken)
        return stored

    def _judge(self, record: TaskRecord, taken: Taken, index: OwnerIndex, error: TaskExists) -> None:
        """Find out why the id is taken: somebody may have given this creation up. Raises unless one is active."""
        try:
            there, _, _ = self._read_record(record.key)
        except (FileNotFoundError, CorruptRecord):
            there = None
        if there is None or (there.error_code, there.created_at) != (NEVER_CREATED, record.created_at):
            self._kinds.settle(taken)
            raise error
        if not index.has_active(record.task_type, record.resource_id):
            raise StoreUnavailable(
                f"task {record.task_id} took so long to be created that another process gave it up; nothing runs, "
                "create it again"
            ) from error

    # ---- an owner ------------------------------------------------------------------------------------

    def delete_owner(self, account_id: str, user_id: str, directory: str, index: OwnerIndex) -> int:
        """Delete all records of an owner. Raises as ``TaskStore.delete_owner``."""
        look = self._files.look(directory)
        if DELETING not in look.names and not any(name.endswith(SUFFIX) for name in look.names):
            return 0
        transitions.check_owner_deletable(account_id, user_id, index.active_ids())
        deleted = 0
        kinds: dict[Kind, set[str]] = {}
        for summary in index.summaries():
            kind = Kind(account_id, user_id, summary.task_type, summary.resource_id)
            kinds.setdefault(kind, set()).add(summary.task_id)
        named = [self._kinds.named_by(kind, task_ids) for kind, task_ids in kinds.items()]
        with self._marked(directory):
            # Whoever creates from now on sees the mark; whoever did not see it is listed, or was under way.
            for _ in range(_TRIES):
                # Looked at first and judged afterwards: what changes in between is not deleted.
                look = self._files.look(directory)
                transitions.check_owner_deletable(account_id, user_id, index.active_ids())
                count, changed = self._delete_all(directory, look, index)
                deleted += count
                if not changed:
                    for each in named:
                        self._kinds.forget(each)
                    return deleted
        raise StoreUnavailable(
            f"the tasks of {account_id}/{user_id} change while they are deleted; try again"
        )

    def _delete_all(self, directory: str, look: Look, index: OwnerIndex) -> tuple[int, bool]:
        """Return how many were deleted, and whether some had changed."""
        deleted, changed = 0, False
        for name in look.names:
            if not name.endswith(SUFFIX):
                continue
            try:
                self._files.retire(directory, name, over=(look.signatures or {}).get(name))
                deleted += 1
            except FileNotFoundError:
                pass
            except Changed:
                changed = True
            index.forget(name)
        return deleted, changed

    @contextlib.contextmanager
    def _marked(self, directory: str) -> Iterator[None]:
        """Mark a directory as being deleted, under a word of our own; what stops half-way leaves the mark."""
        word = self._clock.new_token().encode()
        tag = self._mark(directory, word)
        try:
            yield
        except StoreUnavailable:
            raise
        except BaseException:
            self._unmark(directory, tag)
            raise
        self._unmark(directory, tag)

    def _mark(self, directory: str, word: bytes) -> AnySignature | None:
        for _ in range(_TRIES):
            with contextlib.suppress(FileExistsError):
                return self._files.create(directory, DELETING, word)
            # A crash left it, or somebody deletes just now: from here on it is ours.
            with contextlib.suppress(FileNotFoundError, Changed):
                old = self._files.read(directory, DELETING).signature
                return self._files.replace(directory, DELETING, word, final=False, over=old)
        raise StoreUnavailable(f"too many delete the tasks of {directory} at once; try again")

    def _unmark(self, directory: str, tag: AnySignature | None) -> None:
        with contextlib.suppress(FileNotFoundError, Changed):
            self._files.retire(directory, DELETING, over=tag)


def version_of(data: bytes, signature: AnySignature | None) -> FileVersion:
    """Return the version of what was just written."""
    proved = settled(signature, 0)
    return FileVersion.of(data, signature if proved else None, proved)


def _compare(key: TaskKey, expected: Version, stored: FileVersion) -> None:
    if not isinstance(expected, FileVersion) or expected.digest != stored.digest:
        raise _conflict(key)


def _conflict(key: TaskKey) -> VersionConflict:
    return VersionConflict(f"task {key.task_id} was changed meanwhile; read it again")


def _restless(key: TaskKey) -> StoreUnavailable:
    return StoreUnavailable(f"task {key.task_id} changes faster than it can be written; try again")
