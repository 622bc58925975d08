"""Records as the lease protocol sees them: read anew, and published from a holder's staging directory only.

Owns the one system call that checks the lease and writes: the path to the staged file leads through the name
of the holder's entry, which exists for as long as nobody has taken it over.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Final

from stores.files.layout import Layout
from stores.files.lease.control import Control
from stores.files.lease.entries import Entry
from stores.files.local import LocalFiles
from stores.files.versions import FileVersion
from task_tracker.codec import encode_record
from task_tracker.errors import StoreUnavailable
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import Stored, Version

__all__ = ["Records"]

_MOST_LITTERED: Final = 10_000
"""Claims of which that is noted. Where so much goes wrong, nothing is taken to be clean any more."""


class Records:
    """The records below one root."""

    def __init__(
        self,
        files: LocalFiles,
        layout: Layout,
        control: Control,
        load: Callable[[TaskKey], tuple[TaskRecord, FileVersion, int]],
    ) -> None:
        self._files = files
        self._layout = layout
        self._control = control
        self._load = load
        self._serials = itertools.count()
        self._littered: set[str] = set()

    def load(self, key: TaskKey) -> Stored | None:
        """Return a record as it is stored, None if there is none. Raises CorruptRecord, StoreUnavailable."""
        try:
            record, version, _ = self._load(key)
        except FileNotFoundError:
            directory, name = self._layout.place(key)
            # A network client may not see a new name at once; what is listed is there.
            if name not in self._files.names(directory):
                return None
            record, version, _ = self._load_listed(key)
        return Stored(record, version)

    def _load_listed(self, key: TaskKey) -> tuple[TaskRecord, FileVersion, int]:
        try:
            return self._load(key)
        except FileNotFoundError as error:
            raise StoreUnavailable(
                f"task {key.task_id} is listed but cannot be opened yet (a network disk may be late); ask again"
            ) from error

    def read(self, key: TaskKey) -> TaskRecord | None:
        """Return the record alone."""
        stored = self.load(key)
        return None if stored is None else stored.record

    def path(self, key: TaskKey) -> str:
        """Return the full path of a record."""
        return self._files.where(*self._layout.place(key))

    def publish(self, entry: Entry, record: TaskRecord, *, before: Version = None) -> Stored | None:
        """Put ``record`` in its place as the holder of ``entry``; None if the entry is somebody else's by now.

        ``before`` is what this holder published last: to find just that there proves nothing. Raises
        StoreUnavailable, OSError.
        """
        directory, name = self._layout.place(record.key)
        data = encode_record(record)
        staged = f"{entry.stage}/{next(self._serials)}"
        version = FileVersion.of(data, None)
        clean = False
        try:
            self._control.write(staged, data, sync=self._files.syncs)
        except FileNotFoundError:
            return None
        try:
            clean = self._files.publish(staged, directory, name, final=record.status.is_terminal)
        except FileNotFoundError:
            known = isinstance(before, FileVersion) and before.digest == version.digest
            if known or not self._landed(directory, name, data):
                self._discard(staged)
                return None
        except BaseException:
            self._discard(staged)
            raise
        finally:
            if not clean:
                self._littered.add(entry.name.token)
        return Stored(record, version)

    def is_clean(self, entry: Entry) -> bool:
        """Tell whether all that was published by way of this entry's stage went well, so that nothing is left in it."""
        return entry.name.token not in self._littered and len(self._littered) < _MOST_LITTERED

    def _landed(self, directory: str, name: str, data: bytes) -> bool:
        """Tell whether a write whose answer was "not there" was done all the same (a repeated request)."""
        try:
            return self._files.read(directory, name).data == data
        except FileNotFoundError:
            return False

    def _discard(self, staged: str) -> None:
        with contextlib.suppress(OSError):
            self._control.remove_file(staged)
