"""What a persistent store's root holds besides good records.

Owns the walk over all of it: damaged records, temporary files that nobody will finish, records in old places.
Refuses to touch what a live process may still need, and to mend a damaged record: nobody knows what it said.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from stores.files.backing import Backing
from stores.files.layout import CONTROL, TASKS, Layout, decode_component
from stores.files.old_layouts import Adopt, OldLayouts
from stores.files.versions import RecordReader
from task_tracker.errors import CorruptRecord, StoreUnavailable
from task_tracker.records import TaskKey
from task_tracker.store import Finding

__all__ = ["examine"]


def examine(
    files: Backing, layout: Layout, reader: RecordReader, adopt: Adopt, *, fix: bool
) -> list[Finding]:
    """Return what was found below the root; with ``fix`` what can be mended is. Raises StoreUnavailable."""
    return list(_Examination(files, layout, reader, adopt, fix).findings())


class _Examination:
    """One walk."""

    def __init__(self, files: Backing, layout: Layout, reader: RecordReader, adopt: Adopt, fix: bool) -> None:
        self._files = files
        self._layout = layout
        self._reader = reader
        self._old = OldLayouts(files, layout, adopt)
        self._fix = fix

    def findings(self) -> Iterator[Finding]:
        """Iterate over what is found."""
        # Found first: an imported record is not to be found again in its new place.
        old = list(self._old.find())
        yield from self._temporaries(self._layout.control)
        for account in sorted(self._files.directories(self._layout.prefix)):
            account_id = decode_component(account)
            if account_id is None or account == CONTROL:
                continue
            tasks = f"{self._layout.prefix}/{account}/{TASKS}"
            for user in sorted(self._files.directories(tasks)):
                user_id = decode_component(user)
                yield from self._temporaries(f"{tasks}/{user}")
                if user_id is not None:
                    yield from self._records(f"{tasks}/{user}", account_id, user_id)
        for each in old:
            finding = self._old.examine(each, fix=self._fix)
            if finding is not None:
                yield finding

    def _records(self, directory: str, account_id: str, user_id: str) -> Iterator[Finding]:
        for name in sorted(self._files.names(directory)):
            task_id = self._layout.task_id_of(name)
            if task_id is None:
                continue
            try:
                self._reader(TaskKey(account_id, user_id, task_id))
            except FileNotFoundError:
                continue
            except CorruptRecord as error:
                yield Finding("corrupt_record", self._files.where(directory, name), str(error))

    def _temporaries(self, directory: str) -> Iterator[Finding]:
        for name in sorted(self._files.names(directory)):
            if not self._files.is_abandoned(directory, name):
                continue
            removed = False
            if self._fix and self._files.can_remove:
                with contextlib.suppress(FileNotFoundError, StoreUnavailable):
                    self._files.remove(directory, name)
                    removed = True
            yield Finding(
                "temporary_file",
                self._files.where(directory, name),
                "left by a writer that is gone; " + ("removed" if removed else "with fix it is removed"),
                fixed=removed,
            )
