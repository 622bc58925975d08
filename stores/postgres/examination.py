"""What foreign hands and interrupted deletions left in the tables, found by looking at every row.

Owns how a finding is worded and mended. Refuses to touch a record that cannot be read: that is for a person.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from stores.postgres.database import Database, Row
from stores.postgres.rows import Rows, said
from stores.postgres.upkeep import Upkeep
from task_tracker.errors import CorruptRecord, TaskTrackerError
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import Finding, silent_worker

__all__ = ["Examination"]

_PAGE: Final = 500
_COLUMNS: Final = (
    *("task_type", "status", "resource_id", "kind", "blocks", "created_at", "handler_version", "priority"),
    *("not_before", "ended_at"),
)
_FIRST: Final = TaskKey("", "", "")


class Examination:
    """``examine``."""

    def __init__(self, database: Database, rows: Rows, upkeep: Upkeep, table_of_workers: str) -> None:
        self._database = database
        self._rows = rows
        self._upkeep = upkeep
        self._workers = table_of_workers

    def examine(self, *, fix: bool) -> list[Finding]:
        """See :meth:`TaskStore.examine`."""
        return [*self._of_rows(fix), *self._of_deletions(), *self._of_workers(fix)]

    def _of_rows(self, fix: bool) -> Iterator[Finding]:
        after = _FIRST
        while True:
            asked = {**after._asdict(), "limit": _PAGE}
            rows = self._database.read(
                "look at every task",
                lambda session, asked=asked: session.all("every", asked),  # type: ignore[misc]
            )
            for row in rows:
                yield from self._of_row(row, fix)
            if len(rows) < _PAGE:
                return
            after = TaskKey(*rows[-1][:3])

    def _of_row(self, row: Row, fix: bool) -> Iterator[Finding]:
        key, data, revision, unreadable = TaskKey(*row[:3]), row[3], row[4], row[5]
        columns, without_term, held = row[6:-2], row[-2], row[-1]
        where = self._rows.where(key)
        try:
            record = self._rows.decode(data, key)
        except CorruptRecord as error:
            yield Finding("corrupt_record", where, f"{error}; restore it from a backup, or delete the row")
            return
        if unreadable or self._differ(record, columns):
            fixed = fix and not held and self._rewrite(record, revision)
            yield Finding(
                "stale_columns",
                where,
                "the row's columns do not say what its record says, so it is not found where it should be: somebody "
                "changed one of them by hand; doctor(fix=True) makes the columns follow the record once nobody holds "
                "it",
                fixed,
            )
        if without_term:
            fixed = fix and self._upkeep.recover(1) > 0
            yield Finding(
                "half_made",
                where,
                "it runs and nobody has to renew it: a foreign hand set its state; the reconciler gives it a term, "
                "after which it counts as lost",
                fixed,
            )

    def _differ(self, record: TaskRecord, columns: tuple[Any, ...]) -> bool:
        try:
            expected = said(record)
        except (TaskTrackerError, ValueError):
            return False  # this store would not have taken it; it is read as it is
        return [expected[name] for name in _COLUMNS] != [*columns]

    def _rewrite(self, record: TaskRecord, revision: int) -> bool:
        params = {**said(record), "seen": revision}
        return self._database.write("mend a row", lambda session: session.run("adopt", params)) > 0

    def _of_deletions(self) -> Iterator[Finding]:
        for account_id, user_id, age in self._database.read(
            "look for deletions", lambda session: session.all("fences")
        ):
            yield Finding(
                "half_made",
                f"{account_id}/{user_id}",
                f"the deletion of this user's tasks began {age:.0f} s ago and has not ended, so none can be created; "
                "if nobody is at it, call delete_owner again",
            )

    def _of_workers(self, fix: bool) -> Iterator[Finding]:
        for fact in self._upkeep.facts(living=False):
            if fix:
                self._upkeep.withdraw(fact.name)
            yield silent_worker(fact, f"{self._workers} ({fact.name!r})", fixed=fix)
