"""What a directory of records holds, without reading it each time.

Owns one :class:`OwnerIndex` per user directory: summaries in order, brought up to date by looking only at
what can have changed. A record that has ended is read once; an unchanged directory is not even listed; names
of generated ids sort by creation, so a page reads no further than it reaches. Refuses to be a truth of its
own: it is rebuilt from the records.
"""

# long: what an index believes, and what proves it, is read side by side

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import filterfalse
from typing import Final

from stores.files.backing import AnySignature, Backing, Look, settled
from stores.files.id_times import ID_SLACK_SECONDS, is_recent
from stores.files.layout import SUFFIX, Layout
from stores.files.shelf import RecordShelf
from stores.files.versions import FileVersion, RecordReader
from task_tracker.clock import is_generated_id, uuid7_text
from task_tracker.errors import CorruptRecord, StoreUnavailable
from task_tracker.listing import Listing, Summary
from task_tracker.records import TaskKey
from task_tracker.store import Query, Stored

__all__ = ["UNORDERED", "OwnerIndex"]

UNORDERED: Final = ".unordered"
"""In a directory where an id of generated form carries another time than its record: names do not sort there."""
FIRST_BATCH: Final = 64
LARGEST_BATCH: Final = 1024
_LAST_MILLISECOND: Final = 2**48 - 1
MAX_ROUNDS: Final = 20  # against a directory that changes faster than it is read
_UNKNOWN: Final = FileVersion(b"", None, settled=False)


class OwnerIndex:
    """The index of one user's directory. Thread-safe; every question brings it up to date first."""

    def __init__(
        self,
        backing: Backing,
        layout: Layout,
        account_id: str,
        user_id: str,
        reader: RecordReader,
        shelf: RecordShelf,
    ) -> None:
        self._backing = backing
        self._layout = layout
        self._account_id = account_id
        self._user_id = user_id
        self._directory = layout.owner_directory(account_id, user_id)
        self._read_record = reader
        self._shelf = shelf
        self._lock = threading.RLock()
        self._signature: AnySignature | None = None
        self._settled = False
        self._names: set[str] = set()
        self._others: list[str] = []
        self._unordered = False
        self._unread: list[str] = []
        self._listing = Listing()
        self._versions: dict[str, FileVersion] = {}
        """Of records to look at whenever the directory has changed: those that have not ended."""
        self._reusable: dict[str, FileVersion] = {}
        """Of ended ones whose id may come again: looked at when something was deleted."""
        self._recent: dict[str, FileVersion] = {}
        """The same of generated form, read within seconds of the time they carry: later ones would be out of order."""
        self._deletions: object = None
        self._corrupt: dict[str, CorruptRecord] = {}

    def __len__(self) -> int:
        """Return the number of names held."""
        return len(self._names)

    # ---- questions -----------------------------------------------------------------------------------

    def contains(self, name: str) -> bool:
        """Tell whether the directory has a file of this name. Reads no record: another one's trouble is not its."""
        with self._lock:
            if self._is_current():
                return name in self._names
        return name in self._backing.names(self._directory)

    def page(self, query: Query) -> tuple[list[Stored], list[CorruptRecord]]:
        """Return one record more than ``query.limit``, newest first, and what had to be skipped."""
        wanted = None if query.limit is None else query.limit + 1
        with self._lock:
            self._refresh()
            for _ in range(MAX_ROUNDS):
                found = self._newest(query, wanted)
                full = wanted is not None and len(found) == wanted
                most = LARGEST_BATCH if wanted is None else wanted
                batch = min(most if self._backing.remote else max(FIRST_BATCH, 2 * most), LARGEST_BATCH)
                while self._read_down_to(found[-1].created_at if full else None, query, batch):
                    # Hardly anything passes the filter; to look through all of it each time would add up.
                    batch *= 2
                    found = self._newest(query, wanted)
                    full = wanted is not None and len(found) == wanted
                records = [stored for summary in found if (stored := self._record(summary)) is not None]
                # A record that changed after it was looked at may have left the filter: look again.
                if len(records) == len(found):
                    return records, list(self._corrupt.values())
        raise self._too_busy()

    def has_active(self, task_type: str, resource_id: str | None) -> bool:
        """Tell whether a record of this kind is active."""
        with self._lock:
            self._refresh()
            self._read_all()
            return self._listing.has_active(task_type, resource_id)

    def newest_active(self, task_type: str, resource_id: str | None) -> Stored | None:
        """Return the newest record of this kind that is active and can be read; None if there is none."""
        with self._lock:
            self._refresh()
            self._read_all()
            for _ in range(MAX_ROUNDS):
                found = self._listing.newest_active(task_type, resource_id, self._corrupt)
                if found is None:
                    return None
                stored = self._record(found)
                if stored is not None:
                    return stored
        raise self._too_busy()

    def count_into(self, counts: dict[str, dict[str, int]]) -> None:
        """Add the numbers per type and state to ``counts``."""
        with self._lock:
            self._refresh()
            self._read_all()
            self._listing.count_into(counts)

    def other_names(self) -> list[str]:
        """Return the names in the directory that belong to no record."""
        with self._lock:
            self._refresh()
            return self._others

    def summaries(self) -> list[Summary]:
        """Return the summaries of all records that can be read."""
        while self._read_some():
            pass  # lets others in between batches
        with self._lock:
            self._refresh()
            self._read_all()
            return list(self._listing)

    def active_ids(self) -> list[str]:
        """Return the ids of records that have not ended, as far as they can be read."""
        with self._lock:
            self._refresh()
            self._read_all()
            return [task_id for task_id in self._listing.active_ids() if task_id not in self._corrupt]

    def forget(self, name: str) -> None:
        """Know nothing of a file any more: it was removed, and its name may come again."""
        with self._lock:
            self._forget(name)

    # ---- keeping up ----------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Find out what came, went or changed; read what is not known to be final, but no generated names."""
        started = self._backing.read_time_ns()
        try:
            # Taken before the names: a change in between shows next time.
            signature = self._backing.directory_signature(self._directory)
        except FileNotFoundError:
            self._forget_all()
            return
        if signature is not None and self._settled and signature == self._signature:
            return
        look = self._backing.look(self._directory)
        names = look.names
        # A set of all names would cost more than the listing itself; mostly there is nothing to forget.
        fresh = list(filterfalse(self._names.__contains__, names))
        if len(names) - len(fresh) < len(self._names):
            for name in self._names.difference(names):
                self._forget(name)
        suspects = list(self._versions)
        if (self._reusable or self._recent) and self._deletions_changed(look):
            suspects.extend(self._reusable)
            suspects.extend(self._recent)
        unread = []
        self._others = []
        for name in fresh:
            task_id = self._layout.task_id_of(name)
            if task_id is None:
                self._others.append(name)  # a lock, a temporary file, somebody else's
                continue
            self._names.add(name)
            if is_generated_id(task_id):
                unread.append(task_id)
            else:
                suspects.append(task_id)
        if not self._unordered and UNORDERED in self._others:
            # An id may have come again: what was final is looked at once more.
            self._unordered = True
            kept = self._versions.keys() | self._reusable.keys() | self._recent.keys()
            suspects.extend(summary.task_id for summary in self._listing if summary.task_id not in kept)
        if unread:
            self._unread.extend(unread)
            self._unread.sort()
        for task_id in suspects:
            # Each stays a suspect if a later one cannot be read.
            known = self._reusable.pop(task_id, None) or self._recent.pop(task_id, None) or _UNKNOWN
            self._versions.setdefault(task_id, known)
        told = look.signatures is not None
        with self._reading_ahead([each for each in suspects if told and self._differs(each, look)]):
            self._look_again([task_id for task_id in suspects if not self._check(task_id, look)])
        self._recent = {each: version for each, version in self._recent.items() if is_recent(each, started)}
        self._signature = signature
        self._settled = settled(signature, started)

    def _is_current(self) -> bool:
        """Tell whether the directory is proved to be as it was at the last refresh."""
        try:
            signature = self._backing.directory_signature(self._directory)
        except FileNotFoundError:
            return False
        return signature is not None and self._settled and signature == self._signature

    def _check(self, task_id: str, look: Look) -> bool:
        """Read a record again unless it is proved to be the known one; False if it is not to be found."""
        try:
            if self._differs(task_id, look):
                self._read(task_id)
                return True
        except FileNotFoundError:
            return False
        summary = self._listing.get(task_id)
        if summary is not None and summary.status.is_terminal:
            self._note_ended(task_id, self._versions.pop(task_id))
        return True

    def _differs(self, task_id: str, look: Look) -> bool:
        """Tell whether a file is not proved to be what was read. Raises FileNotFoundError."""
        known, name, told = self._versions[task_id], self._name(task_id), look.signatures
        return not known.settled or known.signature != (
            self._backing.signature(self._directory, name) if told is None else told.get(name)
        )

    def _note_ended(self, task_id: str, version: FileVersion) -> None:
        """Keep the version of an ended record for as long as its id may come again without being out of order."""
        if self._unordered or not is_generated_id(task_id):
            self._reusable[task_id] = version
        elif is_recent(task_id, self._backing.read_time_ns()):
            self._recent[task_id] = version

    def _deletions_changed(self, look: Look) -> bool:
        """Tell whether a record may have been deleted since this was last asked."""
        if look.signatures is not None:
            return True  # to compare what the listing told costs nothing
        before = self._deletions
        self._deletions, certain = self._backing.deletions(self._directory)
        return not certain or self._deletions != before

    def _look_again(self, task_ids: Sequence[str]) -> None:
        """Forget listed records that could not be found. Raises StoreUnavailable if they are listed all the same."""
        if not task_ids:
            return
        listed = set(self._backing.names(self._directory))
        late = []
        for task_id in task_ids:
            name = self._name(task_id)
            if name not in listed:
                self._forget(name)
                continue
            try:
                self._read(task_id)
            except FileNotFoundError:
                self._versions.setdefault(task_id, _UNKNOWN)
                late.append(task_id)
        if late:
            self._settled = False
            raise StoreUnavailable(
                f"{self._backing.where(self._directory, self._name(late[0]))} is listed but cannot be opened yet "
                "(a network disk may be late); ask again"
            )

    def _read(self, task_id: str) -> Stored | None:
        """Read a record and note its summary; None (and a report) if it is corrupt. Raises FileNotFoundError."""
        key = TaskKey(self._account_id, self._user_id, task_id)
        try:
            record, version, size = self._read_record(key)
        except CorruptRecord as error:
            # What was last read of it stays: an active record that is damaged is still somebody's.
            self._corrupt[task_id] = error
            self._forget_version(task_id)
            self._versions[task_id] = _UNKNOWN
            self._shelf.drop(key)
            return None
        self._corrupt.pop(task_id, None)
        self._listing.put(Summary.of(record))
        self._forget_version(task_id)
        if record.status.is_terminal:
            self._note_ended(task_id, version)
        else:
            self._versions[task_id] = version
        stored = Stored(record, version)
        self._shelf.put(key, stored, size)
        return stored

    def _record(self, summary: Summary) -> Stored | None:
        """Return the record of a summary, from the shelf or read anew; None if it is not what it was."""
        key = TaskKey(self._account_id, self._user_id, summary.task_id)
        stored = self._shelf.get(key)
        kept = (self._versions, self._reusable, self._recent)
        version = next((versions[summary.task_id] for versions in kept if summary.task_id in versions), None)
        if stored is not None and (version is None or version == stored.version):
            return stored
        try:
            stored = self._read(summary.task_id)
        except FileNotFoundError:
            self._look_again([summary.task_id])
            return None
        return stored if stored is not None and Summary.of(stored.record) == summary else None

    def _newest(self, query: Query, wanted: int | None) -> list[Summary]:
        found = []
        for summary in self._listing.newest(status=query.status, before=query.before_place(self._user_id)):
            if summary.task_id not in self._corrupt and query.matches(
                summary.task_type, summary.status, summary.resource_id
            ):
                found.append(summary)
                if len(found) == wanted:
                    break
        return found

    def _read_down_to(self, floor: float | None, query: Query, batch: int) -> bool:
        """Read ``batch`` unread records that may belong on the page; True if there were any.

        ``floor`` is the creation time of the page's last record, None while the page is not full.
        """
        if self._unordered and self._unread:
            self._read_all()
            return True
        low = 0 if floor is None else self._position(floor - ID_SLACK_SECONDS)
        high = len(self._unread)
        if query.before is not None:
            high = self._position(query.before.created_at + ID_SLACK_SECONDS)
        if low >= high:
            return False
        self._read_slice(max(low, high - batch), high)
        return True

    def _position(self, created_at: float) -> int:
        """Return where in the unread ids those of ``created_at`` begin."""
        # Cursors and foreign records may hold any time, also ones that no id can carry.
        milliseconds = int(min(max(0.0, created_at * 1000), _LAST_MILLISECOND))
        return bisect_left(self._unread, uuid7_text(milliseconds, 0, 0))

    def _read_slice(self, low: int, high: int) -> None:
        # Upwards: the listing is cheapest to extend at its end.
        gone, task_ids = [], self._unread[low:high]
        with self._reading_ahead(task_ids):
            for task_id in task_ids:
                try:
                    self._read(task_id)
                except FileNotFoundError:
                    gone.append(task_id)
        del self._unread[low:high]
        self._look_again(gone)

    def _reading_ahead(self, task_ids: Sequence[str]) -> AbstractContextManager[None]:
        return self._backing.reading_ahead(self._directory, [self._name(task_id) for task_id in task_ids])

    def _read_some(self) -> bool:
        """Read one batch; True if more is left."""
        with self._lock:
            self._refresh()
            self._read_slice(0, LARGEST_BATCH)
            return bool(self._unread)

    def _read_all(self) -> None:
        while self._unread:
            self._read_slice(0, LARGEST_BATCH)

    def _forget(self, name: str) -> None:
        task_id = self._layout.task_id_of(name)
        self._names.discard(name)
        if task_id is None:
            return
        self._listing.remove(task_id)
        self._forget_version(task_id)
        self._corrupt.pop(task_id, None)
        self._shelf.drop(TaskKey(self._account_id, self._user_id, task_id))
        position = bisect_left(self._unread, task_id)
        if self._unread[position : position + 1] == [task_id]:
            del self._unread[position]

    def _forget_version(self, task_id: str) -> None:
        for versions in (self._versions, self._reusable, self._recent):
            versions.pop(task_id, None)

    def _forget_all(self) -> None:
        for name in list(self._names):
            self._forget(name)
        self._others = []
        self._unordered = False
        self._signature = None
        self._settled = False

    def _too_busy(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._directory} changes faster than it can be listed; ask again")

    def _name(self, task_id: str) -> str:
        if is_generated_id(task_id):
            return task_id + SUFFIX
        return self._layout.place(TaskKey(self._account_id, self._user_id, task_id))[1]
