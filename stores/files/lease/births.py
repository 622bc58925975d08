"""How a task comes into being: record, entry and announcement, in an order that a crash cannot spoil.

Owns ``new/`` and ``adopt/``. The link of the staged file to the record's path is the creation; removing the
staged file is the fence against a creator that has not come so far. Also adopts records that have no entry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, NamedTuple

import orjson

from stores.files.backing import SETTLED_NS
from stores.files.lease.announcements import Announcements
from stores.files.lease.control import KEY, MOST_ELECTIONS, Control, is_not_empty
from stores.files.lease.entries import Entries
from stores.files.lease.names import LEGACY, EntryName, announcement, attempt_of, life_of
from task_tracker import transitions
from task_tracker.codec import decode_record, encode_record
from task_tracker.errors import CorruptRecord, TaskTrackerError
from task_tracker.records import TaskKey, TaskRecord

__all__ = ["Births", "Fenced"]

RECORD_SUFFIX: Final = ".rec"
_STILL_TRIES: Final = 10
ELECTION_SECONDS: Final = 60.0
"""A winner that has made no entry of its victory by then has stopped; what is certain is that it has none."""


class Fenced(Exception):  # not an error: the creator starts again
    """Somebody took the staged file away: this creation cannot happen any more. Nothing is left of it."""


class Place(NamedTuple):
    """Where a record is published."""

    path: str
    prepare: Callable[[], None]
    """Makes the directory."""
    anchor: Callable[[], None]
    """Makes the new name survive a power cut, where that is promised."""


class Births:
    """Creation, its recovery, and adoption."""

    def __init__(
        self,
        control: Control,
        entries: Entries,
        announcements: Announcements,
        read: Callable[[TaskKey], TaskRecord | None],
        *,
        sync: bool,
    ) -> None:
        self._control = control
        self._ops = control.ops
        self._entries = entries
        self._announcements = announcements
        self._read = read
        self._sync = sync

    # ---- creation ------------------------------------------------------------------------------------

    def create(self, record: TaskRecord, place: Place, *, alone: bool) -> bytes | None:
        """Create ``record`` (with attempt and creation); return its bytes.

        None if ``alone`` and another of its kind is active. Raises Fenced, FileExistsError, OSError.
        """
        data = encode_record(record)
        life = life_of(record)
        assert record.attempt is not None
        name = EntryName.of(record, record.attempt.epoch, record.attempt.token)
        staged, entry = self._control.staged_record(life), f"{self._control.new}/{name}"
        place.prepare()
        try:
            self._control.write(staged, data, sync=self._sync)
            self._make_entry(entry, name, record)
            if transitions.blocks_duplicates(record.status, record.completed_at):
                self._announcements.make(record, is_staged=True)
            if alone and not self._announcements.alone(record):
                self._undo(record, staged, entry)
                return None
            self._link(staged, place, record)
        except (Fenced, FileExistsError):
            with contextlib.suppress(OSError):
                self._undo(record, staged, entry)
            raise
        except BaseException:
            # Only what is known not to be there is undone; the rest is for recovery, which fences first.
            with contextlib.suppress(OSError, TaskTrackerError):
                self._control.remove_file(staged)
                if not self._is_created(record):
                    self._undo(record, staged, entry)
            raise
        try:
            place.anchor()
        except OSError:
            # Whoever is told that it failed does not know it: it must not stay, pending for ever.
            with contextlib.suppress(OSError, TaskTrackerError):
                self._withdraw(record, name, entry, place)
            with contextlib.suppress(OSError):
                self._control.remove_file(staged)
            raise
        try:
            self._settle(record, name, entry)
            self._control.remove_file(staged)
        except OSError:
            return data  # it exists: what is left of this, recovery finishes
        return data

    def _link(self, staged: str, place: Place, record: TaskRecord) -> None:
        try:
            self._ops.link(staged, place.path)
        except OSError as error:
            if self._is_created(record):
                return  # it was done; only the answer got lost
            if isinstance(error, FileNotFoundError) and not self._control.exists(staged):
                raise Fenced from error
            raise

    def _is_created(self, record: TaskRecord) -> bool:
        try:
            found = self._read(record.key)
        except CorruptRecord:
            return False
        return found is not None and found.creation == record.creation

    def _make_entry(self, path: str, name: EntryName, record: TaskRecord) -> None:
        self._control.make_directory(path)
        if name.is_digest:
            with contextlib.suppress(FileExistsError):
                self._control.write(f"{path}/{KEY}", orjson.dumps(list(record.key)), sync=self._sync)

    def _settle(self, record: TaskRecord, name: EntryName, entry: str) -> None:
        """Move the entry of a record that is there to where it belongs; a helper may have done so."""
        if not record.status.is_terminal:
            self._control.move_home(entry, self._entries.home(record, name))
        else:
            self._entries.remove(entry)

    def _undo(self, record: TaskRecord, staged: str, entry: str) -> None:
        self._announcements.take_back(record)
        self._control.remove_file(staged)
        self._entries.remove(entry)

    def _withdraw(self, record: TaskRecord, name: EntryName, entry: str, place: Place) -> None:
        """Take back a record that was created a moment ago, unless somebody has claimed it since."""
        held = self._entries.grab(entry, name)
        if held is not None:
            if self._is_created(record):
                self._control.remove_file(place.path)
            self._announcements.take_back(record)
            self._entries.remove(held.path, held.name.token)

    # ---- recovery ------------------------------------------------------------------------------------

    def recover(self, text: str) -> bool:
        """Finish or remove what ``text``, a name in ``new/``, is the rest of; True if something was done.

        Fences first and looks afterwards: the other way round loses tasks.
        """
        name = EntryName.parse(text)
        path = f"{self._control.new}/{text}"
        if name is None:
            if text.endswith(RECORD_SUFFIX):
                self._retract(path)
            return text.endswith(RECORD_SUFFIX) and self._control.remove_file(path)
        staged = self._control.staged_record(name.token)
        if name.life != LEGACY and name.life == name.token:
            self._retract(staged)
        self._control.remove_file(staged)
        key = self.key_of(path, name)
        record = None if key is None else self._read(key)
        if record is not None and not record.status.is_terminal and self._belongs(record, name):
            try:
                return self._control.move_home(path, self._entries.home(record, name))
            except OSError as error:
                if not is_not_empty(error):
                    raise
                # A power cut left both names of a rename: the one that is where it belongs stays.
        self._entries.remove(path)
        return True

    def _belongs(self, record: TaskRecord, name: EntryName) -> bool:
        """Tell whether the entry ``name`` is the one by which ``record`` was created or adopted."""
        if life_of(record) != name.life:
            return False
        if name.token == name.life:
            return record.creation == name.token
        return self._control.is_elected(record.key, name)

    def _retract(self, staged: str) -> None:
        """Take back the announcement of a creation that did not happen."""
        try:
            data = self._control.read(staged)
            ids = orjson.loads(data)
            key = TaskKey(ids["account_id"], ids["user_id"], ids["task_id"])
            record = decode_record(data, key, staged)
        except (FileNotFoundError, ValueError, KeyError, TypeError, CorruptRecord):
            return  # half written, or a mark of an adopter: it announced nothing yet
        self._control.remove_file(staged)
        found = self._read(key)
        if found is None or life_of(found) != life_of(record) or found.status.is_terminal:
            self._control.remove_file(self._control.announcement(announcement(record)))

    def key_of(self, path: str, name: EntryName) -> TaskKey | None:
        """Return the triple that an entry belongs to; None if that cannot be told."""
        key = name.task
        if key is not None:
            return key
        try:
            account_id, user_id, task_id = orjson.loads(self._control.read(f"{path}/{KEY}"))
        except (FileNotFoundError, ValueError):
            return None
        return TaskKey(str(account_id), str(user_id), str(task_id))

    # ---- adoption ------------------------------------------------------------------------------------

    def adopt(self, record: TaskRecord) -> bool | None:
        """Give an active record without an entry one; False if it has one, None if that cannot be told just now.

        The marker is linked once for each state in which a record may be found without an entry, and elects
        the adopter.
        """
        absent = self.lacks_entry(record)
        if not absent:
            return absent
        token = self._entries.new_token(short=False)
        attempt = attempt_of(record)
        epoch = attempt.epoch if attempt is not None else 0
        name = EntryName.of(record, epoch, token)
        staged, entry = self._control.staged_record(token), f"{self._control.new}/{name}"
        self._control.write(staged, token.encode(), sync=self._sync)
        try:
            self._make_entry(entry, name, record)
            # Suspended since it was read, the record may have gone on under an entry of its own.
            if self._read(record.key) != record:
                self._entries.remove(entry)
                return False
            if not self._elected(staged, record, name):
                self._entries.remove(entry)
                return False
            self._announcements.make(record)
            self._settle(record, name, entry)
            return True
        finally:
            with contextlib.suppress(OSError):
                self._control.remove_file(staged)

    def lacks_entry(self, record: TaskRecord) -> bool | None:
        """Tell whether a record may be adopted; None if that cannot be told just now."""
        attempt = attempt_of(record)
        if life_of(record) == LEGACY and (attempt is None or attempt.epoch == 0):
            return True  # whoever gave it an entry was elected by the marker
        for _ in range(_STILL_TRIES):
            absent = self._entries.is_absent(record)
            if absent is not None:
                return absent
            self._ops.pause(SETTLED_NS / 1e9)
        return None

    def _elected(self, staged: str, record: TaskRecord, name: EntryName) -> bool:
        """Tell whether we are the one who adopts. An election is over when its winner's entry is gone for certain."""
        for election in range(MOST_ELECTIONS):
            marker = self._control.marker(record.key, name, election)
            try:
                self._ops.link(staged, marker)
            except FileExistsError:
                if self._control.read(marker) == name.token.encode():
                    return True  # a repeated request
                if not self._is_over(marker, record):
                    return False
            except FileNotFoundError:  # fenced
                return False
            else:
                return True
        return False

    def _is_over(self, marker: str, record: TaskRecord) -> bool:
        """Tell whether nothing is left of an adopter that won an election a while ago."""
        age_ns = self._control.now_ns() - self._control.file_mtime_ns(marker)
        return age_ns > ELECTION_SECONDS * 1e9 and self._entries.is_absent(record) is True
