"""Ends that are written together: one statement and one commit for the tasks of several leases.

Owns what a group is: each row with its own token, epoch and creation, and none that waits for another. What did not
take effect there, for whatever reason, is left to be written by itself, so that it ends, or is refused, as if it had
been alone. Only where an answer was lost that is done here, because here it is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg

from stores.postgres.database import Database, Session
from stores.postgres.ownership import Ownership, Prepared
from stores.postgres.rows import RowVersion, array
from stores.postgres.trouble import is_full, is_of_a_row, unavailable
from task_tracker.errors import StoreUnavailable
from task_tracker.records import TaskRecord
from task_tracker.store import Lease, Stored

__all__ = ["Ending"]

_MOST: Final = 100
_MOST_CHARACTERS: Final = 4 << 20
"""In one statement, of records."""

_COLUMNS: Final = {
    "account_ids": "account_id",
    "user_ids": "user_id",
    "task_ids": "task_id",
    "records": "record",
    "creations": "creation",
    "tokens": "token",
    "epochs": "epoch",
    "task_types": "task_type",
    "statuses": "status",
    "resource_ids": "resource_id",
    "created_ats": "created_at",
    "handler_versions": "handler_version",
    "priorities": "priority",
    "not_befores": "not_before",
    "ended_ats": "ended_at",
    "news": "news",
}
"""Which parameter of the statement holds which one of the rows."""


class Ending:
    """Writes ends."""

    def __init__(self, database: Database, ownership: Ownership) -> None:
        self._database = database
        self._ownership = ownership

    def end_several(self, ends: Sequence[tuple[Lease, TaskRecord]]) -> list[Stored | Exception | None]:
        """See :meth:`LeaseStore.end_several`."""
        found: dict[int, Stored | Exception] = {}
        prepared: dict[int, Prepared] = {}
        for number, (lease, record) in enumerate(ends):
            try:
                prepared[number] = self._ownership.prepared("end", lease, record)
            except Exception as error:  # noqa: BLE001  # this one's alone
                found[number] = error
        for some in _parts(prepared):
            self._write(some, found)
        return [found.get(number) for number in range(len(ends))]

    def _write(self, prepared: dict[int, Prepared], found: dict[int, Stored | Exception]) -> None:
        """Write what is ``prepared``; put into ``found`` what came of each."""

        def work(session: Session) -> None:
            if not session.again:
                self._write_together(session, prepared, found)
                return
            for number, one in prepared.items():
                if number not in found:
                    self._write_alone(session, number, one, found)

        try:
            self._database.write(f"end {len(prepared)} tasks", work)
        except Exception as error:  # noqa: BLE001  # told to each
            found.update((number, _of_its_own(error)) for number in prepared if number not in found)

    def _write_together(
        self, session: Session, prepared: dict[int, Prepared], found: dict[int, Stored | Exception]
    ) -> None:
        """Write all whose rows are as they are to be, and that nobody has locked."""
        numbers = list(prepared)
        rows = [one.params for one in prepared.values()]
        params: dict[str, Any] = {
            name: array(row[column] for row in rows) for name, column in _COLUMNS.items()
        }
        params["kinds"] = array(row["kind"].hex() for row in rows)
        try:
            written = session.all("end_all", params)
        except psycopg.Error as error:
            if not (is_of_a_row(error) or is_full(error)):
                raise
            return  # which one it was shows when each is written by itself
        for number, revision, _ in written:
            which = numbers[number - 1]
            found[which] = Stored(prepared[which].record, RowVersion(revision))

    @staticmethod
    def _write_alone(
        session: Session, number: int, one: Prepared, found: dict[int, Stored | Exception]
    ) -> None:
        try:
            found[number] = one.write(session)
        except psycopg.Error as error:
            if not is_of_a_row(error):
                raise
            trouble = unavailable(error, f"end task {one.record.task_id}")
            trouble.__cause__ = error
            found[number] = trouble
        except Exception as error:  # noqa: BLE001  # this one's alone
            found[number] = error


def _parts(prepared: dict[int, Prepared]) -> Iterator[dict[int, Prepared]]:
    part: dict[int, Prepared] = {}
    size = 0
    for number, one in prepared.items():
        size += len(one.params["record"])
        if part and (len(part) == _MOST or size > _MOST_CHARACTERS):
            yield part
            part, size = {}, len(one.params["record"])
        part[number] = one
    if part:
        yield part


def _of_its_own(error: Exception) -> Exception:
    """Return an error that no other task is told with, since whoever raises it adds to it."""
    if not isinstance(error, StoreUnavailable):
        return error
    own = StoreUnavailable(*error.args)
    own.__cause__ = error.__cause__
    return own
