"""What a directory of records holds, without reading it each time.

Owns one :class:`OwnerIndex` per user directory: summaries in order, brought up to date by looking only at
what can have changed. A record that has ended is read once; an unchanged directory is not even listed; names
of generated ids sort by creation, so a page reads no further than it reaches. Refuses to be a truth of its
own: it is rebuilt from the records.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from itertools import filterfalse
from typing import Final, NamedTuple

from stores.files.backing import Backing, Signature, settled
from stores.files.layout import SUFFIX, Layout
from task_tracker.clock import is_generated_id, time_of_id, uuid7_text
from task_tracker.errors import CorruptRecord
from task_tracker.listing import Listing, Summary
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import Query, Stored

__all__ = ["UNORDERED", "FileVersion", "OwnerIndex", "RecordReader", "RecordShelf", "out_of_order"]

ID_SLACK_SECONDS: Final = 1.0
"""How far ``created_at`` may lie from the time in a generated id (clocks step, counters run ahead)."""
UNORDERED: Final = ".unordered"
"""In a directory where an id of generated form carries another time than its record: names do not sort there."""
FIRST_BATCH: Final = 64
LARGEST_BATCH: Final = 1024
MAX_ROUNDS: Final = 20
"""Against a directory that changes faster than it is read."""


def out_of_order(task_id: str, created_at: float) -> bool:
    """Tell whether an id of generated form carries another time than its record."""
    return is_generated_id(task_id) and abs(time_of_id(task_id) - created_at) > ID_SLACK_SECONDS


class FileVersion(NamedTuple):
    """A record's version: the digest decides; the signature saves reading when it is settled."""

    digest: bytes
    signature: Signature | None
    settled: bool


RecordReader = Callable[[TaskKey], tuple[TaskRecord, FileVersion, int]]
"""Reads a record: the record, its version and its size in bytes. Raises FileNotFoundError, CorruptRecord."""


class RecordShelf:
    """Records that listings have shown lately, bounded by number and bytes. Thread-safe."""

    def __init__(self, max_records: int = 4096, max_bytes: int = 16 << 20) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._shelf: OrderedDict[TaskKey, tuple[Stored, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: TaskKey) -> Stored | None:
        """Return a record that is still there."""
        with self._lock:
            found = self._shelf.get(key)
            if found is None:
                return None
            self._shelf.move_to_end(key)
            return found[0]

    def put(self, key: TaskKey, stored: Stored, size: int) -> None:
        """Keep a record that took ``size`` bytes; the ones not asked for longest make room."""
        with self._lock:
            self._drop(key)
            self._shelf[key] = (stored, size)
            self._bytes += size
            while len(self._shelf) > self._max_records or self._bytes > self._max_bytes:
                self._drop(next(iter(self._shelf)))

    def drop(self, key: TaskKey) -> None:
        """Forget a record."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: TaskKey) -> None:
        _, size = self._shelf.pop(key, (None, 0))
        self._bytes -= size


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
        self._signature: Signature | None = None
        self._settled = False
        self._names: set[str] = set()
        self._others: list[str] = []
        self._unread: list[str] = []
        self._listing = Listing()
        self._versions: dict[str, FileVersion] = {}
        self._corrupt: dict[str, CorruptRecord] = {}

    def __len__(self) -> int:
        """Return the number of names held."""
        return len(self._names)

    # ---- questions -----------------------------------------------------------------------------------

    def contains(self, name: str) -> bool:
        """Tell whether the directory has a file of this name."""
        with self._lock:
            self._refresh()
            return name in self._names

    def page(self, query: Query) -> tuple[list[Stored], list[CorruptRecord]]:
        """Return one record more than ``query.limit``, newest first, and what had to be skipped."""
        wanted = None if query.limit is None else query.limit + 1
        with self._lock:
            self._refresh()
            records: list[Stored] = []
            for _ in range(MAX_ROUNDS):
                found = self._newest(query, wanted)
                full = wanted is not None and len(found) == wanted
                while self._read_down_to(found[-1].created_at if full else None, query):
                    found = self._newest(query, wanted)
                    full = wanted is not None and len(found) == wanted
                records = [stored for summary in found if (stored := self._record(summary)) is not None]
                # A record that changed after it was looked at may have left the filter: look again.
                if len(records) == len(found):
                    break
            return records, list(self._corrupt.values())

    def has_active(self, task_type: str, resource_id: str | None) -> bool:
        """Tell whether a record of this kind is active."""
        with self._lock:
            self._refresh()
            self._read_all()
            return self._listing.has_active(task_type, resource_id)

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
        names = self._backing.names(self._directory)
        # A set of all names would cost more than the listing itself; mostly there is nothing to forget.
        fresh = list(filterfalse(self._names.__contains__, names))
        if len(names) - len(fresh) < len(self._names):
            for name in self._names.difference(names):
                self._forget(name)
        suspects = list(self._versions)
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
        if unread:
            self._unread.extend(unread)
            self._unread.sort()
        for task_id in suspects:
            self._check(task_id)
        self._signature = signature
        self._settled = settled(signature, started)

    def _check(self, task_id: str) -> None:
        """Read a record again unless it is proved to be the known one."""
        name = self._name(task_id)
        known = self._versions.get(task_id)
        try:
            if (
                known is not None
                and known.settled
                and known.signature == self._backing.signature(self._directory, name)
            ):
                return
            self._read(task_id)
        except FileNotFoundError:
            self._forget(name)

    def _read(self, task_id: str) -> Stored | None:
        """Read a record and note its summary; None (and a report) if it is corrupt. Raises FileNotFoundError."""
        key = TaskKey(self._account_id, self._user_id, task_id)
        try:
            record, version, size = self._read_record(key)
        except CorruptRecord as error:
            # What was last read of it stays: an active record that is damaged is still somebody's.
            self._corrupt[task_id] = error
            self._versions[task_id] = FileVersion(b"", None, settled=False)
            self._shelf.drop(key)
            return None
        self._corrupt.pop(task_id, None)
        self._listing.put(Summary.of(record))
        if record.status.is_terminal and is_generated_id(task_id):
            # Final, and its name never comes again: nothing to look at any more.
            self._versions.pop(task_id, None)
        else:
            self._versions[task_id] = version
        stored = Stored(record, version)
        self._shelf.put(key, stored, size)
        return stored

    def _record(self, summary: Summary) -> Stored | None:
        """Return the record of a summary, from the shelf or read anew; None if it is not what it was."""
        key = TaskKey(self._account_id, self._user_id, summary.task_id)
        stored = self._shelf.get(key)
        version = self._versions.get(summary.task_id)
        if stored is not None and (version is None or version == stored.version):
            return stored
        name = self._name(summary.task_id)
        try:
            stored = self._read(summary.task_id)
        except FileNotFoundError:
            self._forget(name)
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

    def _read_down_to(self, floor: float | None, query: Query) -> bool:
        """Read unread records that may belong on the page; True if there were any.

        ``floor`` is the creation time of the page's last record, None while the page is not full.
        """
        if UNORDERED in self._others and self._unread:
            self._read_all()
            return True
        low = 0 if floor is None else self._position(floor - ID_SLACK_SECONDS)
        high = len(self._unread)
        if query.before is not None:
            high = self._position(query.before.created_at + ID_SLACK_SECONDS)
        if low >= high:
            return False
        batch = min(max(FIRST_BATCH, 2 * (query.limit or LARGEST_BATCH)), LARGEST_BATCH)
        self._read_slice(max(low, high - batch), high)
        return True

    def _position(self, created_at: float) -> int:
        """Return where in the unread ids those of ``created_at`` begin."""
        return bisect_left(self._unread, uuid7_text(max(0, int(created_at * 1000)), 0, 0))

    def _read_slice(self, low: int, high: int) -> None:
        # Upwards: the listing is cheapest to extend at its end.
        for task_id in self._unread[low:high]:
            name = self._name(task_id)
            try:
                self._read(task_id)
            except FileNotFoundError:
                self._names.discard(name)
        del self._unread[low:high]

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
        self._versions.pop(task_id, None)
        self._corrupt.pop(task_id, None)
        self._shelf.drop(TaskKey(self._account_id, self._user_id, task_id))
        position = bisect_left(self._unread, task_id)
        if self._unread[position : position + 1] == [task_id]:
            del self._unread[position]

    def _forget_all(self) -> None:
        for name in list(self._names):
            self._forget(name)
        self._others = []
        self._signature = None
        self._settled = False

    def _name(self, task_id: str) -> str:
        if is_generated_id(task_id):
            return task_id + SUFFIX
        return self._layout.place(TaskKey(self._account_id, self._user_id, task_id))[1]
