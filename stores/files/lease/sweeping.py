"""What crashes left half-made, and leases whose holder has stopped.

Owns the passes over ``new/``, ``deletes/``, ``leases/`` and ``effects/open/``. Each item is settled by itself: one
that cannot be read or written keeps nothing else from being settled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from stores.files.lease.adoption import Adoption
from stores.files.lease.births import Births
from stores.files.lease.control import Control
from stores.files.lease.deletions import Deletions
from stores.files.lease.effects import Effects
from stores.files.lease.entries import Entry
from stores.files.lease.names import life_of
from stores.files.lease.ownership import EntryLease, Ownership
from stores.files.lease.reports import Reports
from stores.files.lease.watch import LeaseWatch, Sighting
from stores.files.lease.work import Work
from task_tracker.errors import StoreUnavailable, TaskTrackerError
from task_tracker.records import TaskKey, TaskStatus
from task_tracker.store import Expired, Stored

__all__ = ["Recovery"]


class Recovery:
    """The passes of a reconciler over one control directory."""

    def __init__(
        self,
        control: Control,
        births: Births,
        deletions: Deletions,
        work: Work,
        ownership: Ownership,
        watch: LeaseWatch,
        adoption: Adoption,
        effects: Effects,
        reports: Reports,
        *,
        lease_seconds: float,
    ) -> None:
        self._control = control
        self._births = births
        self._deletions = deletions
        self._work = work
        self._ownership = ownership
        self._watch = watch
        self._adoption = adoption
        self._effects = effects
        self._reports = reports
        self._lease_seconds = lease_seconds

    def recover(self, limit: int) -> int:
        """Finish or remove what creators, adopters and deleters left more than a lease term ago."""
        done = 0
        for directory, settle in (
            (self._control.new, self._births.recover),
            (self._control.deletes, self._deletions.recover),
            (self._control.spares, self._remove_spare),
        ):
            done += self._settle_old(directory, settle, limit - done)
            if done >= limit:
                return done
        done += self._work.promote(limit) + self._adoption.once()
        return done + self.sweep_effects(limit)  # last: removing files may take long

    def _remove_spare(self, name: str) -> bool:
        """Remove a staging directory that nobody has used for a while. It is nothing that a crash left half-made."""
        self._control.remove_tree(f"{self._control.spares}/{name}")  # a power cut may have left a file in it
        return False

    def sweep_effects(self, limit: int) -> int:
        """Remove what attempts left that can never complete their task; return of how many."""
        directory = self._control.open_effects
        try:
            return self._settle_old(directory, self._effects.settling(), limit)
        except OSError as error:
            self._reports.tell(directory, error)
            return 0

    def _settle_old(self, directory: str, settle: Callable[[str], bool], limit: int) -> int:
        """Settle what has lain in a directory for more than a lease term, ``limit`` items at most."""
        done = 0
        old = self.old(directory, self._lease_seconds)
        # Entries first: whether a staged record was linked is found out by way of its entry.
        for name in sorted(old, key=lambda name: "@" not in name):
            if done >= limit:
                break
            try:
                done += settle(name)
            except (OSError, TaskTrackerError) as error:
                self._reports.tell(f"{directory}/{name}", error)
        return done

    def old(self, directory: str, seconds: float) -> list[str]:
        """Return the names in a directory that have not been touched for so long, by the file server's clock."""
        names = self._control.names(directory)
        if not names:
            return []
        now_ns = self._control.now_ns()
        old = []
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                # Far in the future is as old: the server's clock was set back since.
                if abs(now_ns - self._control.ops.lstat(f"{directory}/{name}").st_mtime_ns) > seconds * 1e9:
                    old.append(name)
        return old

    def expired(self, limit: int) -> Sequence[Expired]:
        """Return leases whose holder has stopped; settle those that need nobody to decide about their task."""
        found: list[Expired] = []
        for sighting in self._watch.expired():
            if len(found) >= limit:
                break
            try:
                stored = self._running(sighting)
            except (OSError, TaskTrackerError) as error:
                self._reports.tell(sighting.path, error)
                continue
            if stored is not None:
                attempt = stored.record.attempt
                holder = attempt.holder if attempt is not None else None
                found.append(Expired(stored.record, holder, sighting.age_seconds, sighting))
        return found

    def _running(self, sighting: Sighting) -> Stored | None:
        """Return the record of an expired lease if it runs; settle the entry if not."""
        key = self._births.key_of(sighting.path, sighting.name)
        if key is None:
            raise StoreUnavailable("whose task it is of is not known any more; run doctor with fix")
        stored = self._ownership.load(key)
        if (
            stored is not None
            and life_of(stored.record) == sighting.name.life
            and not stored.record.status.is_terminal
            and stored.record.status is not TaskStatus.PENDING
        ):
            # A state of a newer version is never acted on, and stays where it is.
            return stored if stored.record.status.is_active else None
        if self._watch.unchanged(sighting):
            entry = self._ownership.grab(sighting.path, sighting.name)
            if entry is not None:
                self.judge(entry, key)
        return None

    def judge(self, entry: Entry, key: TaskKey) -> None:
        """Bring an entry that was grabbed to where its record says it belongs, or remove it."""
        grabbed = self._ownership.judged(entry, key)
        if grabbed is not None:
            self._ownership.settle(grabbed)

    def take_over(
        self, expired: Expired, holder: str, *, count_attempt: bool
    ) -> tuple[EntryLease, Stored] | None:
        """Claim an expired lease, unless its holder has moved since it was seen."""
        sighting = expired.evidence
        if not isinstance(sighting, Sighting) or not self._watch.unchanged(sighting):
            return None
        entry = self._ownership.grab(sighting.path, sighting.name)
        grabbed = None if entry is None else self._ownership.judged(entry, expired.record.key)
        if grabbed is None:
            return None
        return self._ownership.take_over(grabbed, holder, count_attempt=count_attempt)
