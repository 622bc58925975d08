"""The library's own steps with one rule of the protocol taken out of each.

Owns nothing but these replacements; what each breaks is said in :mod:`tests.lease.simulation.mutants`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from stores.files.backing import Signature
from stores.files.lease import ownership
from stores.files.lease.announcements import Announcements
from stores.files.lease.births import Births
from stores.files.lease.control import CANCEL, STAGE
from stores.files.lease.deletions import Deletions
from stores.files.lease.entries import Entries, Entry
from stores.files.lease.intents import Intents
from stores.files.lease.names import EntryName, announcement, announcement_of, life_of
from stores.files.lease.notices import PauseLook
from stores.files.lease.ownership import EntryLease, Grabbed, Ownership, Patience
from stores.files.lease.records import Records
from stores.files.lease.room import Room
from stores.files.lease.store import LeaseTaskStore
from stores.files.lease.sweeping import Recovery
from stores.files.local import LocalFiles
from stores.files.versions import FileVersion
from task_tracker import transitions
from task_tracker.codec import encode_record
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import Expired, Lease, Stored, Version

# ---- claims and take-overs --------------------------------------------------------------------------------


def no_purge(self: Entries, path: str) -> bool:
    return True


def purge_without_rmdir(self: Entries, path: str) -> bool:
    """Empties the old stages and leaves the directories themselves."""
    stages = self.stages(path)
    for stage in stages or ():
        for name in self._control.names(f"{path}/{stage}"):
            self._control.remove_file(f"{path}/{stage}/{name}")
    return stages is not None


def purge_into_spares(self: Entries, path: str) -> bool:
    """Keeps the old stages for other claims, as if their holders had done with them."""
    stages = self.stages(path)
    for stage in stages or ():
        for name in self._control.names(f"{path}/{stage}"):
            self._control.remove_file(f"{path}/{stage}/{name}")
        self._control.moved(f"{path}/{stage}", f"{self._control.spares}/{stage}")
    return stages is not None


def grab_in_one(
    self: Entries, path: str, name: EntryName, *, short: bool = False, above: int = 0
) -> Entry | None:
    """Gives the entry its settled name at once."""
    claiming = name.claimed(self.new_token(short=short), above=above)
    entry = Entry(self._control.lease(claiming), claiming)
    if not self._control.moved(path, entry.path) or not self.purge(entry.path):
        return None
    try:
        self._ops.mkdir(entry.stage)
    except FileNotFoundError:
        return None
    return entry


def read_before_the_purge(
    self: Recovery, expired: Expired, holder: str, *, count_attempt: bool
) -> tuple[EntryLease, Stored] | None:
    sighting: Any = expired.evidence
    stored = self._ownership.load(expired.record.key)
    return _go_on(self, sighting, stored, holder, count_attempt=count_attempt)


def no_reading_again(
    self: Recovery, expired: Expired, holder: str, *, count_attempt: bool
) -> tuple[EntryLease, Stored] | None:
    sighting: Any = expired.evidence
    stored = Stored(expired.record, FileVersion.of(encode_record(expired.record), None))
    return _go_on(self, sighting, stored, holder, count_attempt=count_attempt)


def _go_on(
    self: Recovery, sighting: Any, stored: Stored | None, holder: str, *, count_attempt: bool
) -> tuple[EntryLease, Stored] | None:
    if stored is None or not self._watch.unchanged(sighting):
        return None
    entry = self._ownership.grab(sighting.path, sighting.name)
    if entry is None or not self._ownership._is_for(entry, stored.record):
        return None
    return self._ownership.take_over(Grabbed(entry, stored), holder, count_attempt=count_attempt)


def same_epoch(self: EntryName, token: str, *, above: int = 0) -> EntryName:
    return self._replace(epoch=max(self.epoch, 1, above), token=token, settled=True)


def any_state(entry: Entry, record: TaskRecord) -> bool:
    return life_of(record) == entry.name.life


def any_life(entry: Entry, record: TaskRecord) -> bool:
    return not record.status.is_terminal


# ---- writing ----------------------------------------------------------------------------------------------


def look_then_write(
    self: Records, entry: Entry, record: TaskRecord, *, before: Version = None
) -> Stored | None:
    """Looks whether the lease is there, and then writes past it."""
    if not self._control.exists(entry.path):
        return None
    directory, name = self._layout.place(record.key)
    data = encode_record(record)
    staged = f"{self._control.new}/{entry.name.token}{next(self._serials)}.tmp"
    self._control.write(staged, data, sync=False)
    self._files.publish(staged, directory, name, final=False)
    return Stored(record, FileVersion.of(data, None))


def not_landed(self: Records, directory: str, name: str, data: bytes) -> bool:
    return False


def lost_at_once(self: Ownership, lease: EntryLease) -> None:
    lease.lost.set()
    raise ownership._loss(lease)


def entry_first(self: Ownership, lease: EntryLease, record: TaskRecord) -> Stored:
    """Removes the entry before the terminal record is written."""
    lease.progress.given_up = True
    self._control.remove_file(self._control.announcement(announcement(record)))
    stage, path = lease.entry.stage, lease.entry.path
    aside = f"{self._control.new}/{lease.token}"
    self._control.moved(stage, aside)
    self._entries.remove(path, lease.token)
    directory, name = self._records._layout.place(record.key)
    data = encode_record(
        record.changed(attempt=transitions.next_attempt(None, lease.token, above=lease.epoch - 1))
    )
    self._control.write(f"{aside}/x", data, sync=False)
    self._records._files.publish(f"{aside}/x", directory, name, final=True)
    self._control.remove_directory(aside)
    return Stored(record, FileVersion.of(data, None))


def key_first(self: Ownership, lease: EntryLease, record: TaskRecord) -> Stored:
    """Frees the kind before the task has ended."""
    self._control.remove_file(self._control.announcement(announcement(record)))
    stored = self._publish(lease, record)
    lease.progress.given_up = True
    self._entries.remove(lease.entry.path, lease.token)
    return stored


def removed_once(self: Entries, path: str, token: str | None = None) -> None:
    if token is not None:
        self._control.remove_directory(f"{path}/{STAGE}{token}")
    self._control.remove_directory(path)


def left_in_leases(self: Ownership, entry: Entry, record: TaskRecord) -> None:
    """Lets a waiting task's entry lie where only holders' entries are looked for."""
    self._entries.let_go(entry)


def put_back_as_new(self: Entries, entry: Entry, home: str) -> None:
    """Gives an entry back under a name that says that nobody has claimed it yet."""
    self._control.move_home(entry.path, f"{home.rpartition('/')[0]}/{entry.name._replace(epoch=0)}")
    self.purge(home)


# ---- wishes to cancel -------------------------------------------------------------------------------------


def purge_with_wish(self: Entries, path: str) -> bool:
    purged = _PURGE(self, path)
    self._control.remove_file(f"{path}/{CANCEL}")
    return purged


_PURGE: Final = Entries.purge


def wish_without_looking_again(
    self: Intents, record: TaskRecord, load: Callable[[], Stored]
) -> Stored | None:
    """Believes what was read before the wish was left."""
    shown = transitions.under_intent(record, self._clock.now())
    return Stored(shown, FileVersion.of(encode_record(record), None))


# ---- creating, announcing, deleting -----------------------------------------------------------------------


def smaller_name_wins(self: Announcements, record: TaskRecord) -> bool:
    own = announcement(record)
    directory = self._control.announcement(own).rpartition("/")[0]
    return not [name for name in self._control.names(directory) if name < own and self._lives(record, name)]


def lives_without_fence(self: Announcements, record: TaskRecord, name: str) -> bool:
    parts = announcement_of(name)
    assert parts is not None
    other = self._read(TaskKey(record.account_id, record.user_id, parts[1]))
    return other is not None and life_of(other) == parts[2] and other.status.is_active


def link_once_more(self: Births, staged: str, place: Any, record: TaskRecord) -> None:
    """Writes the record anew when somebody took it away."""
    try:
        self._ops.link(staged, place.path)
    except FileNotFoundError:
        self._control.write(staged, encode_record(record), sync=False)
        self._ops.link(staged, place.path)


def look_first(self: Births, text: str) -> bool:
    """Looks whether the record came to be, and fences afterwards."""
    name = EntryName.parse(text)
    path = f"{self._control.new}/{text}"
    if name is None:
        return self._control.remove_file(path)
    key = self.key_of(path, name)
    record = None if key is None else self._read(key)
    if record is not None and life_of(record) == name.life:
        return self._control.move_home(path, self._entries.home(record, name))
    self._control.remove_file(self._control.staged_record(name.token))
    self._entries.remove(path)
    return True


def unlink(self: Deletions, key: TaskKey, path: str, check: Callable[[], bool]) -> bool:
    if not check():
        return False
    self._control.ops.unlink(path)
    return True


def never_alone_in_doubt(self: Announcements, record: TaskRecord) -> bool:
    return True


# ---- looking ----------------------------------------------------------------------------------------------


def renewed_without_a_look(self: Ownership, lease: Lease) -> None:
    """Renews, and does not look for wishes."""
    self._control.ops.utime(self._held(lease).entry.path)


def shown_as_stored(self: LeaseTaskStore, key: TaskKey, stored: Stored) -> Stored:
    """Shows a record without the wish that lies in its entry."""
    return stored


def link_unless_fenced(self: Births, staged: str, place: Any, record: TaskRecord) -> None:
    """Says that a task was created although the creator was fenced."""
    with contextlib.suppress(FileNotFoundError):
        self._ops.link(staged, place.path)


def all_live(self: Announcements, record: TaskRecord, name: str) -> bool:
    """Takes every announcement for that of a live task."""
    return True


def never_changed(self: LocalFiles, directory: str) -> Signature:
    """Believes that directories stay as they were."""
    return Signature(1, 1, 1)


# ---- who gets a place ---------------------------------------------------------------------------------------


def all_give_back(self: Room, grabbed: Grabbed, limit: int, patience: Patience) -> bool:
    """Lets nobody go on who sees that there is one too many."""
    return self.counts()[grabbed.record.task_type] > limit


def only_earlier_ones_count(self: Room, grabbed: Grabbed, limit: int, patience: Patience) -> bool:
    """Does not wait for later ones that were there first, and may have seen nobody."""
    own = grabbed.entry.name
    others = [name for _, name in self._leases() if not name.is_of(own)]
    return sum((name.sort, name.token) < (own.sort, own.token) for name in others) >= limit


def counted_before(self: Room, grabbed: Grabbed, limit: int, patience: Patience) -> bool:
    """Believes what was counted before it had an entry among the leases."""
    return False


def paused_before(self: PauseLook, task_type: str) -> bool:
    """Believes what was seen of pauses before the task was grabbed."""
    return False
