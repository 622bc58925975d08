"""The wish to cancel: an empty file in a task's entry, which travels with it until a holder fulfils it.

Owns how it gets there and who sees it: everybody who looks after it was requested, through take-over and
release, although only the holder may write the record.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from stores.files.lease.births import Births
from stores.files.lease.control import Control
from stores.files.lease.entries import Entries, Entry
from stores.files.lease.names import EntryName, attempt_of, life_of
from stores.files.lease.ownership import Ownership
from stores.files.lease.records import Records
from stores.files.versions import FileVersion
from task_tracker import transitions
from task_tracker.clock import Clock
from task_tracker.errors import StoreUnavailable, TaskNotFound
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Stored

__all__ = ["Intents"]

_MOVES = 20
_LOOKS = 2
"""Without a trace of an entry: a listing can miss a name that is renamed while it is read."""


class _Place(Enum):
    """Where an entry was when it was looked for."""

    FOUND = "found"
    BARE = "held by nobody, by somebody else, or about to be removed"
    MOVED = "moved on"
    ABSENT = "nowhere"


class Intents:
    """The wishes to cancel in one control directory."""

    def __init__(
        self,
        records: Records,
        control: Control,
        entries: Entries,
        births: Births,
        ownership: Ownership,
        clock: Clock,
    ) -> None:
        self._records = records
        self._control = control
        self._entries = entries
        self._births = births
        self._ownership = ownership
        self._clock = clock

    def overlaid(self, stored: Stored, reload: Callable[[], Stored]) -> Stored:
        """Return a record as everybody is to see it: with the wish to cancel that lies in its entry.

        ``reload`` reads it again: a wish belongs to a record only if that has not changed while it was looked
        for, or what is shown never stood like that.
        """
        absent = 0
        for _ in range(_MOVES):
            record = stored.record
            if not record.status.is_active or record.status is TaskStatus.CANCELLING:
                return stored
            place, at = self._look(record)
            if place is _Place.FOUND and at is None:
                return stored
            again = reload()
            if _digest(again) == _digest(stored):
                if place is _Place.BARE and at is None:
                    return stored
                if at is not None:
                    return Stored(transitions.under_intent(record, at), stored.version)
                absent += place is _Place.ABSENT
                if absent == _LOOKS:
                    return stored  # it has no entry: adopted when somebody claims it
            stored = again
        raise StoreUnavailable(
            f"task {stored.record.task_id} changes hands faster than it can be looked at; ask again"
        )

    def _look(self, record: TaskRecord) -> tuple[_Place, float | None]:
        """Return whether the entry of ``record`` was found, and when a cancel was requested in it."""
        attempt = attempt_of(record)
        if attempt is not None:
            name = EntryName.of(record, attempt.epoch, attempt.token)
            for path in self._entries.homes(record, name):
                place, at = self._look_into(path, name)
                if place is not _Place.MOVED:
                    return place, at
        found = self._entries.find(record)
        if found is None:
            return _Place.ABSENT, None
        place, at = self._look_into(*found)
        # Not where the record says: somebody may have grabbed it, and put his stage into it, while its former holder
        # was removing it, the wish included. Only a record that is still the same tells that it was not.
        return (_Place.BARE if place is _Place.FOUND and at is None else place), at

    def _look_into(self, path: str, name: EntryName) -> tuple[_Place, float | None]:
        """Look for a wish in the entry at ``path``; FOUND only if it was there all the time.

        Names never come back, but one that a release is about to give may come between two looks; and whoever
        takes an entry apart that he holds removes his stage before the wish.
        """
        held = path == self._control.lease(name)
        if not held and not self._control.exists(path):
            return _Place.MOVED, None
        at = self._entries.cancel_requested_at(path)
        if at is not None or self._control.exists(Entry(path, name).stage if held else path):
            return _Place.FOUND, at
        return _Place.BARE if held and self._control.exists(path) else _Place.MOVED, None

    def request_cancel(self, key: TaskKey, load: Callable[[], Stored]) -> Stored:
        """Make the wish to cancel durable. ``load`` reads the record or raises TaskNotFound."""
        patience = self._ownership.patience()
        life: str | None = None
        while True:
            stored = load()
            record = stored.record
            if life not in (None, life_of(record)):
                raise TaskNotFound(f"task {record.task_id} was deleted meanwhile; another one has its id now")
            life = life_of(record)
            if record.status.is_terminal or not record.status.is_active:
                transitions.request_cancel(record, self._clock.now())  # raises unless it was cancelled
                return stored
            done = self._try_cancel(record, load)
            if done is not None:
                return done
            if not patience.wait():
                raise StoreUnavailable(
                    f"task {key.task_id} changes hands faster than it can be cancelled; try again"
                )

    def _try_cancel(self, record: TaskRecord, load: Callable[[], Stored]) -> Stored | None:
        """Cancel a waiting task, or leave the wish in the entry of a held one; None: look again."""
        waits, path = record.status is TaskStatus.PENDING, ""
        entry = self._ownership.grab_at_home(record, short=True)
        if entry is None:
            place = self._entries.find(record)
            if place is None:
                self._births.adopt(record)
                return None
            path, name = place
            is_lease = path == self._control.lease(name)
            if waits and (not is_lease or self._entries.stages(path) == []):
                entry = self._entries.grab(path, name, short=True)
                if entry is None:
                    return None
            elif not is_lease:
                return None  # released since it was read: nobody would come to fulfil a wish
        if entry is not None:
            grabbed = self._ownership.judged(entry, record.key)
            if grabbed is not None and grabbed.record.status is TaskStatus.PENDING:
                return self._ownership.cancel(grabbed)
            if grabbed is not None:
                self._entries.let_go(grabbed.entry)
            return None
        if not self._entries.request_cancel(path):
            return None
        return self._requested(record, load)

    def _requested(self, record: TaskRecord, load: Callable[[], Stored]) -> Stored | None:
        """Return the record under the wish that was left for it; None if it waits by now, for nobody to see it."""
        # What it was requested for may have ended before: then nobody will ever see the wish.
        now = self.overlaid(load(), load)
        if life_of(now.record) != life_of(record):
            raise TaskNotFound(f"task {record.task_id} was deleted meanwhile")
        if now.record.status.is_terminal:
            transitions.request_cancel(now.record, self._clock.now())
            return now
        # A release that had looked for wishes already may have moved it home: the next look cancels it.
        stored = load()
        waits = stored.record.status is TaskStatus.PENDING and record.status is not TaskStatus.PENDING
        return now if now.record.status is TaskStatus.CANCELLING and not waits else None


def _digest(stored: Stored) -> bytes:
    assert isinstance(stored.version, FileVersion)
    return stored.version.digest
