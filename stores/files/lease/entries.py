"""What may happen to an entry: it is claimed, fenced, given back, removed.

Owns the order of the steps on which ownership stands (docs/decisions/07). After :meth:`Entries.grab` has
returned, nothing that an older holder does can land any more: its staging directory is gone, and with it the
only path to anything it could publish. Refuses to know records.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Final, NamedTuple

from stores.files.backing import SETTLED_NS
from stores.files.lease.control import CANCEL, KEY, STAGE, Control
from stores.files.lease.names import CLAIMING, SHORT_TOKEN, EntryName, attempt_of
from task_tracker.clock import Clock
from task_tracker.records import TaskRecord, TaskStatus

__all__ = ["Entries", "Entry"]

MOST_SPARES: Final = 16
"""Staging directories that are kept: as many as a worker with many slots may need at once."""
ROUNDS: Final = 20
"""Against a stale holder that goes on writing into the directory that is being emptied."""


class Entry(NamedTuple):
    """An entry that this process has claimed."""

    path: str
    name: EntryName

    @property
    def stage(self) -> str:
        """The holder's staging directory."""
        return f"{self.path}/{STAGE}{self.name.token}"


class Entries:
    """The steps on entries of one control directory."""

    def __init__(self, control: Control, clock: Clock) -> None:
        self._control = control
        self._ops = control.ops
        self._clock = clock
        self._spares: list[str] = []
        """Empty directories in ``spares/``. Somebody else may remove one, a forked child may take it."""

    # ---- claiming ------------------------------------------------------------------------------------

    def new_token(self, *, short: bool) -> str:
        """Return a token for a claim; ``short`` for one that lasts for one call only."""
        token = self._clock.new_token()
        return SHORT_TOKEN + token[1:] if short else token

    def grab(self, path: str, name: EntryName, *, short: bool = False, above: int = 0) -> Entry | None:
        """Claim an entry or take it over, wherever it is; None if somebody else was quicker.

        The name with ``~`` says that the claim is not complete: a client that works with old directory handles
        could otherwise make its stage in an entry that was taken from it already.
        """
        settled = name.claimed(self.new_token(short=short), above=above)
        entry = Entry(self._control.lease(settled), settled)
        first = entry.path + CLAIMING
        if not self._control.moved(path, first):
            return None
        try:
            return entry if self._fence(first, entry, is_new=name.epoch == 0) else None
        except OSError:
            with contextlib.suppress(OSError):
                self._undo(first, entry, path)
            raise

    def _undo(self, first: str, entry: Entry, path: str) -> None:
        """Have nobody wait for a claim that failed: fenced and without a stage, the entry is free.

        It goes back to where workers look for it, if it was there.
        """
        if not self.purge(first):
            return
        if path.startswith(f"{self._control.ready}/"):
            self._control.move_home(first, f"{path.rpartition('/')[0]}/{entry.name}")
        else:
            self._control.moved(first, entry.path)

    def _fence(self, first: str, entry: Entry, *, is_new: bool) -> bool:
        """Make sure that no older holder can write, and that we can; False if the entry was taken meanwhile.

        One that is new has no older holder: every claim raises the epoch in its first step, and no name comes back.
        """
        if not is_new and not self.purge(first):
            return False
        stage = f"{first}/{STAGE}{entry.name.token}"
        try:
            if not self._placed_spare(stage):
                self._ops.mkdir(stage)
        except FileNotFoundError:
            return False
        except FileExistsError:
            pass  # a repeated request may find its own directory there: nobody else uses the token
        # Proves that the directory was there before anybody could take the entry over.
        return self._control.moved(first, entry.path)

    def _placed_spare(self, stage: str) -> bool:
        """Put a staging directory of a task that has ended in the place of a new one; False if there is none.

        Raises FileNotFoundError if it is the entry that is missing.
        """
        try:
            placed = self._control.moved(self._spares.pop(), stage)
        except IndexError:
            return False
        if not placed:
            self._spares.clear()  # somebody has tidied up
        return placed

    def purge(self, path: str) -> bool:
        """Empty and remove every staging directory, never the wish to cancel; False if the entry is gone."""
        for _ in range(ROUNDS):
            try:
                children = self._ops.listdir(path)
            except FileNotFoundError:
                return False
            stages = sorted(child for child in children if child.startswith(STAGE))
            if not stages:
                return True
            for stage in stages:
                for name in self._control.names(f"{path}/{stage}"):
                    self._control.remove_file(f"{path}/{stage}/{name}")
                self._control.remove_directory(f"{path}/{stage}")
        raise OSError(errno.EBUSY, "its former holder goes on writing into it; try again", path)

    # ---- looking -------------------------------------------------------------------------------------

    def stages(self, path: str) -> list[str] | None:
        """Return the staging directories in an entry: none means that nobody holds it. None: it is gone."""
        try:
            return [child for child in self._ops.listdir(path) if child.startswith(STAGE)]
        except FileNotFoundError:
            return None

    def cancel_requested_at(self, path: str) -> float | None:
        """Return when a cancel was asked for in the entry at ``path``; None if it was not, or the entry is gone."""
        try:
            return self._ops.stat(f"{path}/{CANCEL}").st_mtime
        except FileNotFoundError:
            return None

    def request_cancel(self, path: str) -> bool:
        """Leave the wish to cancel in an entry; False if the entry is gone."""
        with contextlib.suppress(FileExistsError):
            try:
                self._control.write(f"{path}/{CANCEL}", b"", sync=False)
            except FileNotFoundError:
                return False
        return True

    def find(self, record: TaskRecord) -> tuple[str, EntryName] | None:
        """Return path and name of the entry of ``record``'s life, the highest epoch if there are two.

        Looks where it should be first. An entry that moves while all places are listed may be missed.
        """
        attempt = attempt_of(record)
        if attempt is not None:
            name = EntryName.of(record, attempt.epoch, attempt.token)
            for path in self.homes(record, name):
                if self._control.exists(path):
                    return path, name
        name = EntryName.of(record, 0, "0")
        for _ in range(2):
            found = list(self._search(record, name))
            if found:
                return max(found, key=lambda place: place[1].epoch)
        return None

    def others(self, record: TaskRecord, name: EntryName) -> list[tuple[str, EntryName]]:
        """Return all entries of the same life but ``name``."""
        return [place for place in self._search(record, name) if place[1] != name]

    def homes(self, record: TaskRecord, name: EntryName) -> list[str]:
        """Return where the entry of a record in this state may be, the likeliest place first."""
        if record.status is not TaskStatus.PENDING:
            return [self._control.lease(name)]
        if record.handler_version is None:
            return [self._control.idle_home(name)]
        ready = self._control.ready_home(record, name)
        return [ready] if record.not_before is None else [self._control.later_home(record, name), ready]

    def home(self, record: TaskRecord, name: EntryName) -> str:
        """Return where the entry of ``record`` belongs when nobody holds it."""
        homes = self.homes(record, name)
        due = record.not_before is not None and record.not_before <= self._clock.now()
        return homes[-1] if due else homes[0]

    def is_absent(self, record: TaskRecord) -> bool | None:
        """Tell whether ``record`` has no entry for certain; None if that cannot be told just now.

        A listing can miss an entry that moves while it is read. So the directories it could move between must
        have stood still, by their own time stamps, from before they were listed until afterwards. ``new/`` is
        listed before that: what leaves it meanwhile is found where it went.
        """
        name = EntryName.of(record, 0, "0")
        if any(True for _ in self._named(self._control.new, record, name)):
            return False
        places = self._places(record, name)
        before = [self._stamp(place) for place in places]
        now_ns = self._control.now_ns()
        if any(True for place in places for _ in self._named(place, record, name)):
            return False
        still = all(stamp is None or now_ns - stamp >= SETTLED_NS for stamp in before)
        return True if still and [self._stamp(place) for place in places] == before else None

    def _stamp(self, directory: str) -> int | None:
        try:
            return self._control.mtime_ns(directory)
        except FileNotFoundError:
            return None

    def _search(self, record: TaskRecord, name: EntryName) -> Iterator[tuple[str, EntryName]]:
        for place in (self._control.new, *self._places(record, name)):
            yield from self._named(place, record, name)

    def _places(self, record: TaskRecord, name: EntryName) -> list[str]:
        """Return the directories between which the entry of ``record`` moves, but for ``new/``."""
        shard = self._control.shard(name)
        places = [f"{self._control.idle}/{shard}"]
        if record.handler_version is not None:
            places.append(self._control.later_home(record, name).rpartition("/")[0])
            places.append(self._control.ready_home(record, name).rpartition("/")[0])
        return [*places, f"{self._control.leases}/{shard}"]

    def _named(self, place: str, record: TaskRecord, name: EntryName) -> Iterator[tuple[str, EntryName]]:
        """Iterate over the entries in a directory that are of the same life as ``name``."""
        for text in self._control.names(place):
            found = EntryName.parse(text)
            if found is None or not found.is_of(name):
                continue
            # What an adopter makes before it is elected is no entry yet, and never becomes one if it loses.
            waits = place != self._control.new or found.token == found.life
            if waits or self._control.is_elected(record.key, found):
                yield f"{place}/{text}", found

    # ---- letting go ----------------------------------------------------------------------------------

    def let_go(self, entry: Entry) -> None:
        """Remove the holder's staging directory and leave the entry where it is, held by nobody."""
        if not self._control.remove_directory(entry.stage):
            self.purge(entry.path)

    def put_back(self, entry: Entry, home: str) -> None:
        """Give up an entry and move it to where it waits for the next holder."""
        self.let_go(entry)
        if home != entry.path:
            self._control.move_home(entry.path, home)

    def retire(self, entry: Entry) -> None:
        """Remove an entry whose task was ended by its holder, who has left nothing in his staging directory.

        That one is kept for another claim: a directory is dear to make and to remove. Nothing can come out of it under
        a name of its former life, nor into it: its holder has done with it, nobody had taken the entry from him, or
        the rename would fail, and what he staged has names that never come back.
        """
        token: str | None = entry.name.token
        if len(self._spares) < MOST_SPARES:
            spare = f"{self._control.spares}/{token}"
            try:
                self._ops.rename(entry.stage, spare)
                self._spares.append(spare)
                token = None
            except OSError:
                pass  # it is removed then
        self.remove(entry.path, token)

    def remove(self, path: str, token: str | None = None) -> None:
        """Remove an entry and all that is in it. It may be gone already, or be taken over: not our business then."""
        if token is not None:
            self._control.remove_directory(f"{path}/{STAGE}{token}")
        for _ in range(ROUNDS):
            if self._control.remove_directory(path):
                return
            if not self.purge(path):
                return
            self._control.remove_file(f"{path}/{CANCEL}")
            self._control.remove_file(f"{path}/{KEY}")
        raise OSError(errno.EBUSY, "something is put into it again and again; look at it", path)
