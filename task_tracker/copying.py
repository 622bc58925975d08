"""Copying: all tasks of one store into another one, as often as it takes, and the proof that they are there.

Owns what may be copied and in which order. Works through the seam alone, page by page. Refuses to change the source,
to copy a task that somebody works on, and to overwrite what has gone on at the target (:mod:`task_tracker.copies`);
what it refuses it names. Stopped at any moment it is simply run again.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.copies import Outcome, Refused, Tally, epoch_of, judged, likeness, marked
from task_tracker.errors import (
    CapabilityMissing,
    CorruptRecord,
    InvalidTransition,
    LeaseHeld,
    StoreUnavailable,
    TaskExists,
    TaskNotFound,
    VersionConflict,
)
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import HasEffects, LeaseStore, Query, Stored, TaskStore

__all__ = ["Copying", "Outcome", "Tally", "Told"]

PAGE: Final = 200
_OLD_LAYOUT: Final = "old_layout"
"""The kind of findings that are records where no store looks."""
_TRIES: Final = 5
"""Against somebody who changes the same task of the target again and again."""
_MOST_FAILURES: Final = 5
"""In a row: then it is the store that is out of reach, not a record."""
_MOST_EXPIRED: Final = 1_000_000


class Told(NamedTuple):
    """A task that is not at the target as it is at the source: which, why, and what to do."""

    outcome: Outcome
    where: str
    message: str


class Copying:
    """One run from ``source`` to ``target``, both of which stay the caller's to close.

    ``tell`` hears of every task that is refused and ``say`` of what is waited for; ``step`` is called for each record
    that is looked at. ``include_running`` says that nobody works on what the source shows as running: for sources
    without leases, whose servers are stopped. ``without_files`` copies the records of attempts that have left files
    there, and leaves out where these are.
    """

    def __init__(
        self,
        source: TaskStore,
        target: TaskStore,
        *,
        tell: Callable[[Told], None],
        say: Callable[[str], None] = lambda text: None,
        step: Callable[[], None] = lambda: None,
        include_running: bool = False,
        without_files: bool = False,
        page: int = PAGE,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._source = source
        self._target = target
        self._leases = source if isinstance(source, LeaseStore) else None
        self._tell_caller = tell
        self._say = say
        self._step = step
        self._include_running = include_running
        self._without_files = without_files
        self._page = page
        self._clock = clock
        self._free: dict[TaskKey, int] | None = None
        """Tasks that run although their holder has stopped, with the epoch at which that was seen."""
        self._failures = 0

    # ---- copying -------------------------------------------------------------------------------------

    def copy(self) -> Counter[Outcome]:
        """Copy what can be copied; return how many came to what. Raises StoreUnavailable, CapabilityMissing."""
        counts: Counter[Outcome] = Counter()
        free = self._watched()
        # At once: the longer one waits, the likelier a holder that was taken for dead goes on.
        for key in free:
            self._count(counts, key, partial(self._copy_fresh, key))
        for account_id, user_id in self._owners(counts):
            for record in self._records(account_id, user_id, counts):
                if record.status.is_terminal:
                    self._count(counts, record.key, partial(self._move, record))
                elif free.get(record.key) != epoch_of(record):
                    self._count(counts, record.key, partial(self._copy_fresh, record.key))
        return counts

    def _copy_fresh(self, key: TaskKey) -> Outcome | None:
        record = self._fresh(key)
        return None if record is None else self._move(record)

    def _move(self, record: TaskRecord) -> Outcome:
        """Bring one record to the target. Raises Refused."""
        record = self._checked(record)
        for _ in range(_TRIES):
            there = self._there(record.key)
            try:
                if there is None:
                    self._create(marked(record))
                    return Outcome.COPIED
                verdict = judged(record, there.record)
                if verdict is Outcome.SAME:
                    return verdict
                self._replace(marked(record), there)
            except (TaskExists, TaskNotFound, VersionConflict):
                continue  # somebody was quicker: look again
            except LeaseHeld as held:
                raise Refused(Outcome.GONE_ON, f"at the target {held}") from held
            except (InvalidTransition, ValueError) as error:
                raise Refused(Outcome.FAILED, f"the target does not take it: {error}") from error
            else:
                return Outcome.RENEWED
        raise Refused(Outcome.FAILED, "it changes at the target all the time; copy again once that has ended")

    def _create(self, record: TaskRecord) -> None:
        if isinstance(self._target, LeaseStore):
            self._target.take_in(record)
        else:
            self._target.create(record)

    def _replace(self, record: TaskRecord, there: Stored) -> None:
        if isinstance(self._target, LeaseStore):
            self._target.take_in(record, expected=there.version)
            return
        if not self._target.capabilities.compare_and_set:
            raise Refused(
                Outcome.OLDER,
                "the target has an older copy, and cannot replace it without the risk of overwriting what somebody "
                "writes there at this moment; end it and delete it there, then copy again",
            )
        self._target.update(record, expected=there.version)

    # ---- comparing -----------------------------------------------------------------------------------

    def compare(self) -> Iterator[Tally]:
        """Read both sides and give each owner's tally. Whatever is not the same is told. Raises as :meth:`copy`."""
        counts: Counter[Outcome] = Counter()
        self._watched()
        for account_id, user_id in self._owners(counts):
            tally = Tally(account_id, user_id)
            for record in self._records(account_id, user_id, counts):
                self._count(counts, record.key, partial(self._compare_one, record, tally))
            yield tally

    def _compare_one(self, listed: TaskRecord, tally: Tally) -> Outcome | None:
        record = listed if listed.status.is_terminal else self._fresh(listed.key)
        if record is None:
            return None
        if self._without_files:
            record = self._without(record)
        there: Stored | None = None
        try:
            there = self._there(record.key)
        finally:
            tally.see(likeness(record), None if there is None else likeness(there.record))
        verdict = judged(self._checked(record), None if there is None else there.record)
        if verdict is Outcome.MISSING:
            raise Refused(verdict, "the target does not have it; copy it")
        if verdict is Outcome.OLDER:
            raise Refused(verdict, "the target has an older copy; copy again")
        tally.same += 1
        return verdict

    def left_out(self) -> None:
        """Tell of records that lie where the source does not look, if it can find such. Raises StoreUnavailable."""
        if self._leases is not None:
            return  # such a store has always been this library's
        try:
            found = self._source.examine()
        except CapabilityMissing:
            return
        for finding in found:
            if finding.kind == _OLD_LAYOUT:
                self._tell_caller(Told(Outcome.LEFT_OUT, finding.where, finding.message))

    # ---- the source ----------------------------------------------------------------------------------

    def _watched(self) -> dict[TaskKey, int]:
        """Return the tasks whose holder has stopped, watched for as long as the source wants to. Asked once."""
        if self._free is None:
            self._free = {} if self._leases is None else self._watch(self._leases)
        return self._free

    def _watch(self, source: LeaseStore) -> dict[TaskKey, int]:
        found = source.expired(limit=_MOST_EXPIRED)
        running = source.workload().running
        if running and source.watch_seconds:
            self._say(
                f"running: {running}; watching for {source.watch_seconds:g} s which of their holders are alive"
            )
            never = threading.Condition()
            until = self._clock.monotonic() + source.watch_seconds
            while (left := until - self._clock.monotonic()) > 0:
                with never:
                    self._clock.wait(never, min(left, source.heartbeat_seconds))
                found = source.expired(limit=_MOST_EXPIRED)
        return {expired.record.key: epoch_of(expired.record) for expired in found}

    def _owners(self, counts: Counter[Outcome]) -> Iterator[tuple[str, str]]:
        try:
            yield from self._source.owners()
        except StoreUnavailable as error:
            self._tell(counts, Outcome.UNREADABLE, "the source", f"it cannot list all of its owners: {error}")

    def _records(self, account_id: str, user_id: str, counts: Counter[Outcome]) -> Iterator[TaskRecord]:
        """Iterate over an owner's records; tell of those that cannot be read."""
        corrupt: set[str | None] = set()
        query = Query(account_id, user_id, limit=self._page)
        while True:
            try:
                page = self._source.list(query)
            except StoreUnavailable as error:
                self._fail(counts, f"{account_id}/{user_id}", error)
                return
            for damaged in page.corrupt:
                if damaged.path not in corrupt:
                    corrupt.add(damaged.path)
                    where = damaged.path or f"{account_id}/{user_id}"
                    self._tell(counts, Outcome.UNREADABLE, where, str(damaged))
            for record, _ in page.items:
                self._step()
                yield record
            if page.next_cursor is None:
                return
            query = dataclasses.replace(query, before=page.next_cursor)

    def _fresh(self, key: TaskKey) -> TaskRecord | None:
        """Read a record that has not ended as it stands now, with a cancel that waits for it; None if it is gone."""
        try:
            return _read(self._source, key).record
        except TaskNotFound:
            return None

    def _checked(self, record: TaskRecord) -> TaskRecord:
        """Return what of ``record`` is to be at the target. Raises Refused."""
        status = record.status
        if not status.is_known and record.completed_at is None:
            raise Refused(
                Outcome.STRANGE,
                f"this version does not know the state {status.value!r}; copy with a newer one",
            )
        if status in (TaskStatus.RUNNING, TaskStatus.CANCELLING):
            self._check_free(record)
        return self._without(record)

    def _check_free(self, record: TaskRecord) -> None:
        """Raise Refused if somebody works on a task that runs, or may do so for all that the source can tell."""
        if self._leases is None:
            if not self._include_running:
                raise Refused(
                    Outcome.RUNNING,
                    f"it is {record.status.value}, and the source cannot tell whether a process works on it; stop the "
                    "servers that write there, then copy again and say so (--include-running)",
                )
        elif self._watched().get(record.key) != epoch_of(record):
            holder = record.attempt.holder if record.attempt is not None else ""
            raise Refused(
                Outcome.HELD,
                f"{holder or 'somebody'} works on it, or was heard of less than a lease ago; let it end, or stop that "
                "process and wait for the end of the lease, then copy again. Until then let nobody work on an older "
                "copy at the target",
            )

    def _without(self, record: TaskRecord) -> TaskRecord:
        """Return ``record`` without its files. Raises Refused if it has some and they are not to be left behind."""
        if record.effects_dir is None or not isinstance(self._source, HasEffects):
            return record
        try:
            path = self._source.effects_path(record)
        except CorruptRecord:
            return record  # it names what was never here: no files are left behind
        if path is None:
            return record
        if not self._without_files:
            raise Refused(
                Outcome.HAS_FILES,
                f"its files in {path} do not come along; bring them to where they are needed, then copy again and say "
                "so (--without-files)",
            )
        return record.changed(effects_dir=None)

    # ---- the target ----------------------------------------------------------------------------------

    def _there(self, key: TaskKey) -> Stored | None:
        try:
            return _read(self._target, key)
        except TaskNotFound:
            return None
        except CorruptRecord as error:
            raise Refused(Outcome.UNREADABLE, f"at the target {error}") from error

    # ---- telling -------------------------------------------------------------------------------------

    def _count(self, counts: Counter[Outcome], key: TaskKey, work: Callable[[], Outcome | None]) -> None:
        """Do ``work`` for one task and count what comes of it; nothing, if the task is gone."""
        where = f"{key.account_id}/{key.user_id}/{key.task_id}"
        try:
            outcome = work()
        except Refused as refused:
            self._tell(counts, refused.outcome, where, str(refused))
        except CorruptRecord as error:
            self._tell(counts, Outcome.UNREADABLE, where, str(error))
        except StoreUnavailable as error:
            self._fail(counts, where, error)
            return
        else:
            if outcome is not None:
                counts[outcome] += 1
        self._failures = 0

    def _fail(self, counts: Counter[Outcome], where: str, error: StoreUnavailable) -> None:
        """Tell of one that could not be reached. Raises StoreUnavailable if nothing can be."""
        self._failures += 1
        if self._failures >= _MOST_FAILURES:
            raise error
        self._tell(counts, Outcome.FAILED, where, str(error))

    def _tell(self, counts: Counter[Outcome], outcome: Outcome, where: str, message: str) -> None:
        counts[outcome] += 1
        self._tell_caller(Told(outcome, where, message))


def _read(store: TaskStore, key: TaskKey) -> Stored:
    stored = store.get(key)
    assert isinstance(stored, Stored), "only `known` allows a store to answer Unchanged"
    return stored
