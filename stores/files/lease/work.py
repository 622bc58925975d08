"""What waits and what runs, over all owners: the next task for a worker, and the questions about both.

Owns the choice of the next task. Refuses to look at records that the names in the control directory already
rule out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Final

from stores.files.lease.births import Births
from stores.files.lease.control import Control
from stores.files.lease.entries import Entries, Entry
from stores.files.lease.names import EntryName, life_of
from stores.files.lease.notices import Notices, PauseLook
from stores.files.lease.ownership import EntryLease, Grabbed, Ownership
from stores.files.lease.queue import Queue
from stores.files.lease.records import Records
from stores.files.lease.reports import Reports
from stores.files.lease.room import LONGEST_WAIT_SECONDS, Room
from task_tracker.errors import CorruptRecord, TaskTrackerError
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Cursor, Stored, Workload

__all__ = ["Work"]

_MOST_AT_ONCE: Final = 8
"""That are grabbed before the first is begun: whoever asks about one of them meanwhile waits for it."""
_MOST_READ_IN_VAIN: Final = 1000
"""Records of kinds that were to be left out: where start times are waited for, names do not tell the kind."""


class Work:
    """The tasks of one control directory."""

    def __init__(
        self,
        control: Control,
        births: Births,
        entries: Entries,
        records: Records,
        ownership: Ownership,
        queue: Queue,
        notices: Notices,
        reports: Reports,
    ) -> None:
        self._control = control
        self._births = births
        self._entries = entries
        self._records = records
        self._ownership = ownership
        self._queue = queue
        self._notices = notices
        self._reports = reports
        self._room = Room(self._leases, self._record)

    # ---- the next task -------------------------------------------------------------------------------

    def claim(
        self,
        task_types: Sequence[tuple[str, int]],
        holder: str,
        max_running: Mapping[str, int],
        *,
        count_attempt: bool,
    ) -> tuple[EntryLease, Stored] | None:
        """Take the next task of these types; None if there is none that may be taken now."""
        if self._queue.is_time_to_look():
            self.promote()
        limits = _limits(task_types, max_running)
        counts = self._room.counts() if limits else {}
        pauses = self._notices.look([kind for kind, _ in task_types])
        shut = {kind for kind, limit in limits.items() if counts.get(kind, 0) >= limit} | pauses.known()
        while True:
            found = self._next(task_types, shut, limits, pauses)
            if found is None:
                return None
            if isinstance(found, str):
                shut.add(found)
                continue
            claimed = self._ownership.begin(found, holder, count_attempt=count_attempt)
            if claimed is not None:
                return claimed

    def claim_several(
        self, most: int, task_types: Sequence[tuple[str, int]], holder: str, max_running: Mapping[str, int]
    ) -> list[tuple[EntryLease, Stored]]:
        """Take up to ``most`` next tasks of these types, or one where a limit holds: room is made for one at a time.

        All are grabbed before the first is begun, so that what is asked of the queue and of paused types is asked once.
        """
        if most < 2 or _limits(task_types, max_running):
            one = self.claim(task_types, holder, max_running, count_attempt=True) if most > 0 else None
            return [] if one is None else [one]
        if self._queue.is_time_to_look():
            self.promote()
        kinds = [kind for kind, _ in task_types]
        paused = self._notices.look(kinds).known()
        while True:
            grabbed = self._grab_several(
                min(most, _MOST_AT_ONCE), [kind for kind in task_types if kind[0] not in paused]
            )
            if not grabbed:
                return []
            claimed = self._begin_several(grabbed, kinds, holder)
            if claimed:
                return claimed
            paused |= self._notices.list_paused(kinds)

    def _grab_several(self, most: int, kinds: Sequence[tuple[str, int]]) -> list[Grabbed]:
        """Grab up to ``most`` next tasks; fewer if something goes wrong, which is raised if there is none."""
        grabbed: list[Grabbed] = []
        took: list[str] = []
        try:
            for _, path, name in self._queue.next(kinds):
                entry = self._entries.grab(path, name)
                if entry is None:
                    continue
                took.append(path)
                one = self._waiting_one(entry, kinds)
                if one is not None:
                    grabbed.append(one)
                    if len(grabbed) == most:
                        break
        except Exception:
            if not grabbed:
                raise
        except BaseException:
            self._leave(grabbed)
            raise
        self._queue.took(took)
        return grabbed

    def _begin_several(
        self, grabbed: list[Grabbed], kinds: Sequence[str], holder: str
    ) -> list[tuple[EntryLease, Stored]]:
        """Begin what was grabbed, unless its type is paused; what was begun before an error counts."""
        claimed: list[tuple[EntryLease, Stored]] = []
        rest = grabbed[::-1]
        try:
            paused = self._notices.list_paused(kinds)  # with our own entries among the leases, as for one
            while rest:
                one = rest.pop()
                if one.record.task_type in paused:
                    self._ownership.settle(one)
                elif (begun := self._ownership.begin(one, holder, count_attempt=True)) is not None:
                    claimed.append(begun)
        except BaseException as error:  # the next claim meets it again
            self._leave(rest)
            if not claimed or not isinstance(error, Exception):
                raise
        return claimed

    def _leave(self, grabbed: Sequence[Grabbed]) -> None:
        for one in grabbed:
            self._ownership.leave(one.entry, one.record.key)

    def _next(
        self,
        task_types: Sequence[tuple[str, int]],
        shut: AbstractSet[str],
        limits: Mapping[str, int],
        pauses: PauseLook,
    ) -> Grabbed | str | None:
        """Grab the next task that may be taken; or return the type that none of may be taken, None if none waits."""
        kinds = [kind for kind in task_types if kind[0] not in shut]
        for _, path, name in self._queue.next(kinds):
            grabbed = self._grab(path, name, kinds)
            if grabbed is None:
                continue
            task_type = grabbed.record.task_type
            limit = limits.get(task_type)
            with self._ownership.guarded(grabbed):
                # Asked with our own entry among the leases: whoever pauses the type, or claims as well, comes before
                # that or after it.
                if not pauses.holds(task_type) and (
                    limit is None
                    or not self._room.is_taken(grabbed, limit, self._ownership.patience(LONGEST_WAIT_SECONDS))
                ):
                    return grabbed
                self._ownership.settle(grabbed)
            return task_type
        return None

    def _grab(self, path: str, name: EntryName, kinds: Sequence[tuple[str, int]]) -> Grabbed | None:
        """Grab a waiting task; None if somebody was quicker, or if it is not what it looked like."""
        entry = self._entries.grab(path, name)
        if entry is None:
            return None
        self._queue.took([path])
        return self._waiting_one(entry, kinds)

    def _waiting_one(self, entry: Entry, kinds: Sequence[tuple[str, int]]) -> Grabbed | None:
        """Read the record of an entry that was grabbed where it waited; None if it is not what it looked like."""
        grabbed = self.judged(entry)
        if grabbed is None:
            return None
        record = grabbed.record
        if (record.task_type, record.handler_version) not in kinds or record.status is not TaskStatus.PENDING:
            self._ownership.settle(grabbed)
            return None
        return grabbed

    def judged(self, entry: Entry) -> Grabbed | None:
        """Read the record of an entry that was grabbed by its name alone; None if it is for nothing."""
        key = self._births.key_of(entry.path, entry.name)
        if key is None:
            self._entries.let_go(entry)  # doctor knows how to find its record
            return None
        try:
            return self._ownership.judged(entry, key)
        except CorruptRecord:
            return None  # it stays, and doctor reports it

    def promote(self, limit: int = 1000) -> int:
        """Move tasks whose start time has come to where workers look; return how many."""
        moved = 0
        for _, path, name in self._queue.due():
            if moved >= limit:
                break
            try:
                moved += self._promote(path, name)
            except (OSError, TaskTrackerError) as error:
                self._reports.tell(path, error)  # one that cannot be read keeps nobody else waiting
        return moved

    def _promote(self, path: str, name: EntryName) -> bool:
        record = self._record(path, name)
        if record is not None and record.status is TaskStatus.PENDING:
            return self._control.move_home(path, self._control.ready_home(record, name))
        entry = self._entries.grab(path, name, short=True)
        if entry is not None and (grabbed := self.judged(entry)) is not None:
            self._ownership.settle(grabbed)
        return False

    # ---- questions -----------------------------------------------------------------------------------

    def claimable(self, task_types: Sequence[tuple[str, int]], limit: int) -> list[TaskKey]:
        """Return the next tasks of these types, as their entries' names say it."""
        if self._queue.is_time_to_look():
            self.promote()
        paused = self._notices.list_paused([task_type for task_type, _ in task_types])
        waiting = self._queue.next([kind for kind in task_types if kind[0] not in paused])
        keys = (self._births.key_of(path, name) for _, path, name in waiting)
        return [*islice((key for key in keys if key is not None), limit)]

    def unclaimed(
        self,
        task_types: Sequence[tuple[str, int]] | None,
        except_types: AbstractSet[tuple[str, int]],
        older_than_seconds: float,
        limit: int,
        *,
        handled: bool | None,
    ) -> Sequence[Stored]:
        """Return waiting tasks, oldest first."""
        now_ns = self._control.now_ns() if older_than_seconds > 0 else 0
        later = f"{self._control.later}/"
        in_vain = 0
        found: list[Stored] = []
        for path, name in sorted(
            (
                (path, name)
                for path, name in self._waiting(task_types, handled, except_types)
                if not now_ns or self._is_old(path, name, now_ns, older_than_seconds)
            ),
            key=lambda place: place[1].sort,
        ):
            if len(found) >= limit:
                break
            if in_vain >= _MOST_READ_IN_VAIN and path.startswith(later):
                continue
            try:
                stored = self._stored(path, name)
            except (OSError, TaskTrackerError) as error:
                self._reports.tell(path, error)
                continue
            if stored is None:
                continue
            if stored.record.status is not TaskStatus.PENDING:
                self.replaced(path, name, stored.record)
                continue
            kind = stored.record.task_type, stored.record.handler_version
            if kind in except_types:
                in_vain += 1
            elif task_types is None or kind in task_types:
                found.append(stored)
        return sorted(found, key=lambda stored: Cursor.of(stored.record))

    def replaced(self, path: str, name: EntryName, record: TaskRecord) -> bool:
        """Take an entry that waits although its task runs to the leases, where it expires.

        A power cut lost its last rename, while the record that was written after it survived.
        """
        with contextlib.suppress(OSError, TaskTrackerError):
            entry = self._entries.grab(path, name, short=True)
            grabbed = None if entry is None else self._ownership.judged(entry, record.key)
            if grabbed is not None:
                self._ownership.settle(grabbed)
            return entry is not None
        return False

    def _is_old(self, path: str, name: EntryName, now_ns: int, seconds: float) -> bool:
        """Tell whether an entry has not moved for so long, by the file server's clock."""
        created_ns = int(name.sort) * 1000
        if 0 <= now_ns - created_ns < seconds * 1e9:
            return False  # younger than that; it need not be looked at
        try:
            return now_ns - self._control.mtime_ns(path) >= seconds * 1e9
        except FileNotFoundError:
            return False

    def next_start_seconds(self) -> float | None:
        """Return when the next start time comes of a task of any kind; None if none is waited for."""
        return self._queue.next_start_seconds()

    def workload(self) -> Workload:
        """Return what waits and what runs."""
        now = self._control.now_ns() / 1e9
        waiting = [name.created_at for _, name in self._waiting(None)]
        running = []
        for path, name in self._leases():
            with contextlib.suppress(FileNotFoundError, CorruptRecord):
                record = self._record(path, name)
                if record is not None and record.status in (TaskStatus.RUNNING, TaskStatus.CANCELLING):
                    running.append(record.started_at or record.updated_at)
        return Workload(
            len(waiting),
            len(running),
            max(0.0, now - min(waiting, default=now)),
            max(0.0, now - min(running, default=now)),
        )

    def _waiting(
        self,
        task_types: Sequence[tuple[str, int]] | None,
        handled: bool | None = None,
        except_types: AbstractSet[tuple[str, int]] = frozenset(),
    ) -> Iterator[tuple[str, EntryName]]:
        if task_types is None and handled is not True:
            for shard in self._control.shard_names():
                directory = f"{self._control.idle}/{shard}"
                for text in self._control.names(directory):
                    name = EntryName.parse(text)
                    if name is not None:
                        yield f"{directory}/{text}", name
        if handled is False:
            return
        if task_types is None:
            kinds = self._queue.kinds()
        else:
            kinds = [self._control.kind_directory(*kind) for kind in dict.fromkeys(task_types)]
        left_out = {self._control.kind_directory(*kind) for kind in except_types}
        for kind in kinds:
            if kind not in left_out:
                for _, path, name in self._queue.all_ready(kind):
                    yield path, name
        for _, path, name in self._queue.all_later():
            yield path, name

    def _leases(self) -> Iterator[tuple[str, EntryName]]:
        for shard in self._control.shard_names():
            directory = f"{self._control.leases}/{shard}"
            for text in self._control.names(directory):
                name = EntryName.parse(text)
                if name is not None:
                    yield f"{directory}/{text}", name

    def _stored(self, path: str, name: EntryName) -> Stored | None:
        """Return the record of an entry; None if it has none, or one of another life."""
        key = self._births.key_of(path, name)
        try:
            stored = None if key is None else self._records.load(key)
        except CorruptRecord:
            return None
        return stored if stored is not None and life_of(stored.record) == name.life else None

    def _record(self, path: str, name: EntryName) -> TaskRecord | None:
        stored = self._stored(path, name)
        return None if stored is None else stored.record


def _limits(task_types: Sequence[tuple[str, int]], max_running: Mapping[str, int]) -> dict[str, int]:
    return {kind: max_running[kind] for kind, _ in task_types if kind in max_running} if max_running else {}
