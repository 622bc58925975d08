"""Directories of attempts: an attempt's own until its task's record, completed by it, names it.

Owns ``effects/``: the directories, and ``effects/open/``, where a marker tells of each one that somebody has to look
at again. So the sweep looks at no records but theirs. A marker is made before its directory, and before the record that
names it is deleted; it is removed once a record names the directory, or the directory is gone. Refuses to remove a
directory that a record names, or whose attempt may still hold its lease.

A directory's name is a digest of the claim: it tells nobody the lease's token, or whose task it is.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import re
from collections.abc import Callable
from typing import Final

import orjson

from stores.files.layout import Layout
from stores.files.lease.control import Control
from stores.files.lease.names import EntryName, attempt_of, digest, life_of
from stores.files.lease.ownership import Ownership
from stores.files.lease.trees import TreeRemoval
from stores.files.local import LocalFiles
from task_tracker.errors import CorruptRecord, LeaseLost, StoreUnavailable
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import EffectsPlace, Lease

__all__ = ["DIRECTORY", "Effects", "Standing", "directory_name", "marked", "standing"]

DIRECTORY: Final = re.compile(r"(?P<task>[0-9a-f]{20})-(?P<epoch>[0-9]{1,18})-[0-9a-f]{20}")
"""The name of a directory: the digest of its task, the epoch, the digest of the claim."""
_MOST_REMOVED: Final = 10_000
"""Names that one pass removes; other things wait for it."""
_ALL: Final = 1 << 62


class Standing(enum.Enum):
    """What a record says of a directory."""

    OPEN = "its attempt may hold its lease, or that cannot be told yet"
    NAMED = "the record names it"
    LEFT = "its attempt can never complete the task any more"


def directory_name(name: EntryName) -> str:
    """Return the name of the directory of the attempt that claimed an entry under ``name``."""
    task = name.key[1:] if name.task is None else digest(name.task)
    claim = orjson.dumps([task, name.sort, name.life, name.epoch, name.token])
    return f"{task}-{name.epoch}-{hashlib.blake2b(claim, digest_size=10).hexdigest()}"


def marked(text: str) -> EntryName | None:
    """Return the claim whose marker is called ``text``; None if it is no marker."""
    name = EntryName.parse(text)
    return name if name is not None and name.settled and DIRECTORY.fullmatch(directory_name(name)) else None


def claim_of(record: TaskRecord) -> EntryName | None:
    """Return the claim that wrote ``record`` last; None if that cannot be told."""
    attempt = attempt_of(record)
    return None if attempt is None else EntryName.of(record, attempt.epoch, attempt.token)


def standing(
    record: TaskRecord | None, directory: str, epoch: int, name: EntryName | None = None
) -> Standing:
    """Return how the directory of an attempt stands with what is in its record's place.

    ``name`` is the attempt's claim, where it is known. Whatever a network client's cache may hold, what is called left
    here is so: only the attempt itself could have made the record what it is, or somebody who claimed the task later.
    """
    if record is None:
        return Standing.LEFT
    if name is not None and (life_of(record), EntryName.of(record, 0, "0").sort) != (name.life, name.sort):
        return Standing.LEFT
    if _last(record.effects_dir) == directory:
        return Standing.NAMED
    if record.status.is_terminal:
        return Standing.LEFT
    claim = claim_of(record)
    if claim is None or not record.status.is_active:
        return Standing.OPEN  # a state of a newer version is never acted on
    if directory_name(claim) == directory:
        return Standing.LEFT if record.status is TaskStatus.PENDING else Standing.OPEN
    return Standing.LEFT if claim.epoch >= epoch else Standing.OPEN


class Effects:
    """The directories below one control directory. ``read`` returns a record, None if there is none."""

    def __init__(
        self,
        files: LocalFiles,
        layout: Layout,
        control: Control,
        ownership: Ownership,
        read: Callable[[TaskKey], TaskRecord | None],
    ) -> None:
        self._files = files
        self._control = control
        self._ownership = ownership
        self._read = read
        self._above = f"{layout.control}/effects"

    # ---- one attempt ---------------------------------------------------------------------------------

    def open(self, lease: Lease) -> EffectsPlace:
        """Make the directory of the attempt under ``lease``, or find it made. Raises LeaseLost, OSError."""
        made: list[EntryName] = []
        try:
            with self._ownership.under(lease) as name:
                if self._make(name, lease.key):
                    made.append(name)
        except LeaseLost:
            # The sweep may have been here before the directory was, and has no marker to come again for.
            for name in made:
                with contextlib.suppress(OSError):
                    if self._control.remove_directory(self.path(directory_name(name))):
                        self._control.remove_file(self.marker(name))
            raise
        directory = directory_name(name)
        return EffectsPlace(self.path(directory), f"{self._shard(directory)}/{directory}"[1:])

    def _make(self, name: EntryName, key: TaskKey) -> bool:
        """Make marker and directory; True if the directory was not there."""
        shard, markers = self._shard(directory_name(name)), f"{self._above}/open"
        try:
            return self._make_in(shard, markers, name, key)
        except FileNotFoundError:
            for directory in (shard, markers):  # somebody removed them, which were there before: once more
                self._files.forget_directory(directory)
            return self._make_in(shard, markers, name, key)

    def _make_in(self, shard: str, markers: str, name: EntryName, key: TaskKey) -> bool:
        self._files.make_directory(markers)
        self._files.make_directory(shard)
        with contextlib.suppress(FileExistsError):
            self._control.write(self.marker(name), orjson.dumps(list(key)), sync=False)
        try:
            self._control.ops.mkdir(self.path(directory_name(name)))
        except FileExistsError:
            return False
        return True

    def ending(self, name: EntryName, record: TaskRecord) -> None:
        """Before ``record`` is published by the attempt ``name``: have the directory that it names survive a power cut.

        The name of the directory, that is. What is in it is for its handler to sync.
        """
        if record.effects_dir is None:
            return
        directory = directory_name(name)
        if _last(record.effects_dir) == directory:
            with contextlib.suppress(FileNotFoundError):  # somebody removed it; doctor says so
                self._files.anchor_new(self._shard(directory))

    def ended(self, record: TaskRecord) -> None:
        """After that: nobody needs to look at the directory any more."""
        name = self._named(record)
        if name is not None:
            with contextlib.suppress(OSError):  # the sweep does it
                self._control.remove_file(self.marker(name))

    def path_of(self, record: TaskRecord, where: str) -> str | None:
        """Return the directory that a completed record names; ``where`` is the record's own path.

        Where the record says it is is not looked at: what counts is that it means its own attempt's. So a root may be
        moved, and a name that leads elsewhere leads nowhere. Raises CorruptRecord for such a one.
        """
        if record.status is not TaskStatus.COMPLETED or record.effects_dir is None:
            return None
        name = self._named(record)
        if name is None:
            raise CorruptRecord(
                f"{where} names {record.effects_dir!r:.120} as the directory of its task's files, which the attempt "
                "that completed it never had here; the record was changed by hand, or brought here without its files",
                path=where,
            )
        return self.path(directory_name(name))

    # ---- deletion ------------------------------------------------------------------------------------

    def leaving(self, record: TaskRecord) -> None:
        """Before ``record`` is deleted: leave a marker, so that the sweep finds its directory if a crash comes."""
        name = self._named(record)
        if name is not None:
            with contextlib.suppress(OSError):  # a full disk must not keep anybody from deleting
                self._control.make_above(self.marker(name))
                try:
                    self._control.write(self.marker(name), orjson.dumps(list(record.key)), sync=False)
                except FileExistsError:
                    self._control.ops.utime(self.marker(name))  # or a sweep takes it away at this moment

    def left(self, record: TaskRecord) -> None:
        """After that: remove the directory that it named. What cannot be removed is the sweep's."""
        name = self._named(record)
        if name is not None:
            with contextlib.suppress(OSError):
                removal = TreeRemoval(self._control.ops, _MOST_REMOVED)
                if removal.remove(self.path(directory_name(name))):
                    self._control.remove_file(self.marker(name))

    # ---- the sweep -----------------------------------------------------------------------------------

    def settling(self) -> Callable[[str], bool]:
        """Return what settles a marker, for one pass over all of them."""
        removal = TreeRemoval(self._control.ops, _MOST_REMOVED)
        return lambda text: self._settle(text, removal)

    def _settle(self, text: str, removal: TreeRemoval) -> bool:
        """Look at what a marker tells of; True if nobody needs to any more. Raises OSError, StoreUnavailable."""
        name = marked(text)
        if name is None:
            return False
        key = self.key_of(name)
        path = self.path(directory_name(name))
        if key is None and self._control.exists(path):
            raise StoreUnavailable(f"whose directory {path} is is not known any more; run doctor with fix")
        return self.settle_one(name, key, removal) is not Standing.OPEN

    def settle_one(self, name: EntryName, key: TaskKey | None, removal: TreeRemoval | None) -> Standing:
        """Return how the directory of an attempt stands; unless that is open, do what is to be done.

        ``key`` is None for a task of which there is no record, ``removal`` for a look that changes nothing.
        """
        # Never comes back once it is gone, and nothing is written then that the record does not show yet.
        if self._control.exists(self._control.lease(name)):
            return Standing.OPEN
        directory = directory_name(name)
        found = standing(None if key is None else self._read(key), directory, name.epoch, name)
        if found is Standing.OPEN or removal is None:
            return found
        if found is Standing.LEFT and not removal.remove(self.path(directory)):
            return Standing.OPEN  # the next pass goes on
        self._control.remove_file(self.marker(name))
        return found

    def remove(self, directory: str) -> None:
        """Remove a directory that is left, however large it is. Raises OSError."""
        TreeRemoval(self._control.ops, _ALL).remove(self.path(directory))

    # ---- names ---------------------------------------------------------------------------------------

    def path(self, directory: str) -> str:
        """Return the full path of a directory of this name."""
        return self._files.where(self._shard(directory), directory)

    def marker(self, name: EntryName) -> str:
        """Return the full path of the marker of an attempt."""
        return f"{self._control.open_effects}/{name}"

    def key_of(self, name: EntryName) -> TaskKey | None:
        """Return whose task an attempt worked on; None if that cannot be told."""
        if name.task is not None:
            return name.task
        try:
            account_id, user_id, task_id = orjson.loads(self._control.read(self.marker(name)))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        key = TaskKey(str(account_id), str(user_id), str(task_id))
        return key if name.key == f"={digest(key)}" else None

    def _named(self, record: TaskRecord) -> EntryName | None:
        """Return the claim that wrote ``record`` last, if the record names that attempt's directory."""
        if record.effects_dir is None:
            return None
        name = claim_of(record)
        return name if name is not None and _last(record.effects_dir) == directory_name(name) else None

    def _shard(self, directory: str) -> str:
        return f"{self._above}/{directory[:2]}"


def _last(path: str | None) -> str | None:
    return None if path is None else path.rpartition("/")[2]
