"""What a look at everything finds: leftovers of crashes and of foreign hands, and what mends them.

Owns the comparison of all records with all entries. Refuses to touch what is younger than a lease term: a live
process may be about to finish it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

import orjson

from stores.files.indexes import Indexes
from stores.files.layout import Layout
from stores.files.lease.births import Births
from stores.files.lease.control import BUCKET_TICKS, KEY, Control
from stores.files.lease.effects import Effects
from stores.files.lease.effects_examination import EffectsExamination
from stores.files.lease.entries import Entries
from stores.files.lease.names import EntryName, announcement, announcement_of, digest, life_of
from stores.files.lease.records import Records
from stores.files.lease.sweeping import Recovery
from stores.files.local import LocalFiles
from task_tracker.errors import CorruptRecord, StoreUnavailable, TaskTrackerError
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import Finding

__all__ = ["Examination"]

MARKER_SECONDS: Final = 86_400.0
"""Nobody adopts a record for that long; afterwards its marker has elected whom it was to elect."""
PROBE_SECONDS: Final = 3600.0


class Examination:
    """One look at one root."""

    def __init__(
        self,
        files: LocalFiles,
        layout: Layout,
        indexes: Indexes,
        control: Control,
        births: Births,
        entries: Entries,
        records: Records,
        recovery: Recovery,
        effects: Effects,
        *,
        lease_seconds: float,
        fix: bool,
    ) -> None:
        self._files = files
        self._layout = layout
        self._indexes = indexes
        self._control = control
        self._births = births
        self._entries = entries
        self._records = records
        self._recovery = recovery
        self._effects = effects
        self._lease_seconds = lease_seconds
        self._fix = fix
        self._active: dict[TaskKey, TaskRecord] = {}
        self._digests: dict[str, TaskKey] = {}
        self._whole = True

    def findings(self) -> Sequence[Finding]:
        """Look at everything once."""
        begun_ns = self._control.now_ns()
        found = [*self._missing_directories(), *self._half_made()]
        found += self._look_at_records()
        found += self._look_at_entries()
        found += self._look_at_announcements()
        found += self._look_at_leftovers()
        found += EffectsExamination(
            self._effects,
            self._control,
            self._records.read,
            self._recovery.old,
            begun_ns=begun_ns,
            digests=self._digests,
            whole=self._whole,
            lease_seconds=self._lease_seconds,
            fix=self._fix,
        ).findings()
        return found

    def _missing_directories(self) -> Iterator[Finding]:
        """Report what every root has and this one has not: nothing can be created or claimed there."""
        for path in self._control.directories():
            if self._control.exists(path):
                continue
            if self._fix:
                self._control.ops.mkdir(path)
            yield Finding(
                "missing_directory", path, "somebody removed it; opening the root makes it again", self._fix
            )

    def _half_made(self) -> Iterator[Finding]:
        for directory in (self._control.new, self._control.deletes):
            old = self._recovery.old(directory, self._lease_seconds)
            fixed = bool(old) and self._fix and self._recovery.recover(len(old) + 1) > 0
            for name in old:
                gone = fixed and not self._control.exists(f"{directory}/{name}")
                yield Finding(
                    "half_made",
                    f"{directory}/{name}",
                    "a process stopped in the middle of a creation or deletion; reconcile() finishes it",
                    gone,
                )

    # ---- records -------------------------------------------------------------------------------------

    def _look_at_records(self) -> Iterator[Finding]:
        failed: list[TaskTrackerError] = []
        for account_id, user_id in self._indexes.owners(failed):
            directory = self._layout.owner_directory(account_id, user_id)
            try:
                names = self._files.names(directory)
            except StoreUnavailable as trouble:
                failed.append(trouble)
                continue
            for name in sorted(names):
                task_id = self._layout.task_id_of(name)
                if task_id is not None:
                    yield from self._look_at_record(TaskKey(account_id, user_id, task_id))
            yield from self._look_at_temporaries(directory, names)
        self._whole = not failed
        for error in failed:
            yield Finding("unreadable", self._layout.prefix, str(error))

    def _look_at_record(self, key: TaskKey) -> Iterator[Finding]:
        self._digests[digest(key)] = key
        path = self._records.path(key)
        try:
            record = self._records.read(key)
        except CorruptRecord as error:
            yield Finding("corrupt_record", path, f"{error}; restore it from a backup, or remove it")
            return
        except StoreUnavailable as error:
            yield Finding("unreadable", path, str(error))
            return
        if record is None:
            return
        if record.status.is_terminal:
            yield from self._look_at_named(record, path)
            return
        self._active[key] = record
        if not record.status.is_active:
            return  # a state of a newer version is left alone
        try:
            if self._entries.find(record) is not None or not self._births.lacks_entry(record):
                return
            fixed = self._fix and self._births.adopt(record) is True
        except (OSError, TaskTrackerError) as error:
            yield Finding("unreadable", path, f"its entry cannot be looked for: {error}")
            return
        yield Finding(
            "record_without_entry",
            path,
            f"the task is {record.status.value}, and nothing says who may hold it; it is adopted by the first "
            "who claims it, or now with fix",
            fixed,
        )

    def _look_at_named(self, record: TaskRecord, path: str) -> Iterator[Finding]:
        """Report a record that names a directory that is not there, or that it must not name."""
        try:
            effects = self._effects.path_of(record, path)
        except CorruptRecord as error:
            yield Finding("lost_effects", path, str(error))
            return
        if effects is not None and not self._control.exists(effects):
            yield Finding(
                "lost_effects",
                effects,
                f"task {record.task_id} of {record.account_id}/{record.user_id} names it, and it is not there; restore "
                "it from a backup, or delete the task",
            )

    def _look_at_temporaries(self, directory: str, names: Sequence[str]) -> Iterator[Finding]:
        for name in names:
            path = self._files.where(directory, name)
            if self._files.is_abandoned(directory, name):
                fixed = False
                if self._fix:
                    with contextlib.suppress(OSError):
                        fixed = self._control.remove_file(path)
                yield Finding(
                    "temporary_file", path, "a writer stopped before it was done; the sweep removes it", fixed
                )

    # ---- the control directory -----------------------------------------------------------------------

    def _look_at_entries(self) -> Iterator[Finding]:
        for directory in self._entry_directories():
            for text in self._recovery.old(directory, self._lease_seconds):
                name = EntryName.parse(text)
                if name is not None:
                    yield from self._look_at_entry(f"{directory}/{text}", name)

    def _entry_directories(self) -> Iterator[str]:
        for above in (self._control.idle, self._control.leases):
            for shard in self._control.shard_names():
                yield f"{above}/{shard}"
        for above in (self._control.ready, self._control.later):
            yield from self._buckets(above, len(BUCKET_TICKS) + (above == self._control.ready))

    def _buckets(self, directory: str, depth: int) -> Iterator[str]:
        for name in self._control.names(directory):
            path = f"{directory}/{name}"
            if depth == 1:
                yield path
            else:
                yield from self._buckets(path, depth - 1)

    def _look_at_entry(self, path: str, name: EntryName) -> Iterator[Finding]:
        key = self._births.key_of(path, name)
        if key is None and name.key.startswith("="):
            key = self._digests.get(name.key[1:])
        if key is not None:
            try:
                record = self._records.read(key)
            except (CorruptRecord, StoreUnavailable):
                return  # reported with the records
            if name.task is None and self._births.key_of(path, name) is None:
                yield self._nameless(path, key)
                return
            if record is not None and not record.status.is_terminal and life_of(record) == name.life:
                return
        fixed = False
        if self._fix:
            # Grabbed first: from then on nobody else acts on it, and it is judged again.
            entry = self._entries.grab(path, name)
            if entry is not None and key is None:
                self._entries.remove(entry.path, entry.name.token)
            elif entry is not None and key is not None:
                self._recovery.judge(entry, key)
            fixed = not self._control.exists(path)
        yield Finding(
            "entry_without_record", path, "its task has ended or is gone; the entry is of no use", fixed
        )

    def _nameless(self, path: str, key: TaskKey) -> Finding:
        """Report an entry whose key file was lost, so that nobody knows any more which task it is of."""
        fixed = False
        if self._fix:
            self._control.remove_file(f"{path}/{KEY}")
            self._control.write(f"{path}/{KEY}", orjson.dumps(list(key)), sync=True)
            fixed = True
        return Finding(
            "half_made", path, f"its key file is empty or lost; it is the entry of task {key.task_id}", fixed
        )

    def _look_at_announcements(self) -> Iterator[Finding]:
        live = {announcement(record): record for record in self._active.values()}
        for shard in self._control.shard_names():
            directory = f"{self._control.keys}/{shard}"
            for name in self._recovery.old(directory, self._lease_seconds):
                parts = announcement_of(name)
                if name in live or parts is None or self._is_being_made(parts[2]):
                    continue
                if self._is_active_now(name, parts):
                    continue  # created or changed since the records were looked at
                fixed = self._fix and self._control.remove_file(f"{directory}/{name}")
                yield Finding(
                    "stale_key", f"{directory}/{name}", "the task that announced itself has ended", fixed
                )

    def _is_being_made(self, life: str) -> bool:
        return self._control.exists(self._control.staged_record(life))

    def _is_active_now(self, name: str, parts: tuple[str, str, str]) -> bool:
        """Tell whether the task that announced itself is active, whoever's it is; True if that cannot be told."""
        for account_id, user_id in self._indexes.owners([]):
            key = TaskKey(account_id, user_id, parts[1])
            try:
                record = self._records.read(key)
            except (CorruptRecord, StoreUnavailable):
                return True
            if record is not None and life_of(record) == parts[2] and not record.status.is_terminal:
                return announcement(record) == name
        return False

    def _look_at_leftovers(self) -> Iterator[Finding]:
        yield from self._look_at_temporaries(
            self._layout.control, self._control.names(self._control.directory)
        )
        for name in self._recovery.old(self._control.directory, PROBE_SECONDS):
            path = f"{self._control.directory}/{name}"
            if name.startswith("format-"):
                fixed = self._fix and self._control.remove_file(path)
                yield Finding(
                    "temporary_file", path, "left by a process that stopped while it started", fixed
                )
            elif name.startswith("probe-"):
                if self._fix:
                    self._control.remove_tree(path)
                yield Finding(
                    "temporary_file",
                    path,
                    "left by a process that stopped while it started",
                    not self._control.exists(path),
                )
        for name in self._recovery.old(self._control.adopt, MARKER_SECONDS):
            task = name.partition("-")[0]
            key = self._digests.get(task)
            if key is None or key not in self._active:
                fixed = self._fix and self._control.remove_file(f"{self._control.adopt}/{name}")
                yield Finding(
                    "half_made", f"{self._control.adopt}/{name}", "the adopted task has ended", fixed
                )
