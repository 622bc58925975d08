"""Records without entries: an older directory, a restored backup, a control directory that lost something.

Owns the search for them. It reads every record that has not ended, so it runs when a root was just marked, when a
process sweeps for the first time, and rarely after that.
"""

from __future__ import annotations

import contextlib
from typing import Final

from stores.files.indexes import Indexes
from stores.files.lease.births import Births
from stores.files.lease.control import Control
from stores.files.lease.entries import Entries
from stores.files.lease.records import Records
from stores.files.lease.reports import Reports
from stores.files.lease.work import Work
from task_tracker.clock import Clock
from task_tracker.errors import StoreUnavailable, TaskTrackerError
from task_tracker.records import TaskKey, TaskStatus

__all__ = ["Adoption"]

AGAIN_SECONDS: Final = 6 * 3600.0
AFTER_FAILURE_SECONDS: Final = 300.0


class Adoption:
    """The search of one process through one root."""

    def __init__(
        self,
        control: Control,
        indexes: Indexes,
        records: Records,
        entries: Entries,
        births: Births,
        work: Work,
        reports: Reports,
        clock: Clock,
    ) -> None:
        self._control = control
        self._indexes = indexes
        self._records = records
        self._entries = entries
        self._births = births
        self._work = work
        self._reports = reports
        self._clock = clock
        self._marked = False
        self._again_at = clock.monotonic()
        self._due = clock.monotonic()

    def once(self) -> int:
        """Search if that was never done below this root; return how many records were adopted."""
        if self._marked or self._clock.monotonic() < self._again_at:
            return 0
        if self._control.exists(self._control.adopted):
            self._marked = True
            return 0
        adopted, failed = self._search()
        self._again_at = self._clock.monotonic() + (AFTER_FAILURE_SECONDS if failed else 0.0)
        if not failed:
            with contextlib.suppress(FileExistsError):
                self._control.write(self._control.adopted, b"", sync=False)
            self._marked = True
        return adopted

    def now_and_then(self) -> int:
        """Search if this process has not done so for hours."""
        if self._clock.monotonic() < self._due:
            return 0
        adopted, failed = self._search()
        self._due = self._clock.monotonic() + (AFTER_FAILURE_SECONDS if failed else AGAIN_SECONDS)
        return adopted

    def _search(self) -> tuple[int, int]:
        """Return how many records were adopted and how many could not be looked at."""
        adopted = 0
        failed: list[TaskTrackerError] = []
        for account_id, user_id in self._indexes.owners(failed):
            try:
                active = self._indexes.of(account_id, user_id).active_ids()
            except TaskTrackerError as error:
                failed.append(error)
                continue
            for task_id in active:
                try:
                    done = self._adopt(TaskKey(account_id, user_id, task_id))
                    if done is None:
                        failed.append(StoreUnavailable("its directories change all the time"))
                    adopted += bool(done)
                except (OSError, TaskTrackerError) as error:
                    failed.append(StoreUnavailable(f"task {task_id} of {account_id}/{user_id}: {error}"))
        for trouble in failed:
            self._reports.tell("a record that may have no entry", trouble)
        return adopted, len(failed)

    def _adopt(self, key: TaskKey) -> bool | None:
        record = self._records.read(key)
        if record is None or not record.status.is_active:
            return False
        place = self._entries.find(record)
        if place is None:
            return self._births.adopt(record)
        path, name = place
        if record.status is not TaskStatus.PENDING and path != self._control.lease(name):
            return self._work.replaced(path, name, record)
        return False
