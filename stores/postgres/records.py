"""Records: create, read, list, replace and delete them.

Owns the first half of the seam. Who holds a task is asked here and decided in :mod:`stores.postgres.ownership`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from stores.postgres.database import Session, Works
from stores.postgres.fresh import Fresh
from stores.postgres.holding import check_free, given, locked, write_free
from stores.postgres.rows import (
    Row,
    Rows,
    RowVersion,
    array,
    check_storable,
    is_storable,
    kind_of,
    missing,
    revision_of,
    said,
)
from task_tracker import transitions
from task_tracker.clock import Clock
from task_tracker.errors import (
    CorruptRecord,
    InvalidTransition,
    StoreUnavailable,
    TaskExists,
    VersionConflict,
)
from task_tracker.records import ACTIVE, Attempt, TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Cursor, Page, Query, Stored, Unchanged, Version

__all__ = ["Records"]

_TRIES: Final = 20
"""Of a creation that met another one of its kind, which ended before it could be looked at."""
_MOST_UNREADABLE: Final = 100
_FILTERS: Final = {
    "user": "user_id",
    "status": "status",
    "type": "task_type",
    "resource": "resource_id",
    "before": "before_time",
}
_OWNERS_AT_ONCE: Final = 1000
_ACTIVE_STATES: Final = array(sorted(status.value for status in ACTIVE))


class Records:
    """The operations on records. ``lease_seconds`` is how long one may run that nobody holds."""

    def __init__(self, database: Works, rows: Rows, fresh: Fresh, clock: Clock, lease_seconds: float) -> None:
        self._database = database
        self._rows = rows
        self._fresh = fresh
        self._clock = clock
        self._lease_seconds = lease_seconds

    # ---- creating ------------------------------------------------------------------------------------

    def create(self, record: TaskRecord, said_elsewhere: Attempt | None = None) -> Stored:
        """See :meth:`TaskStore.create`; ``said_elsewhere`` is what another store has counted."""
        born, params = self._born(record, alone=False, elsewhere=said_elsewhere)

        def work(session: Session) -> Stored:
            found = session.one("create", params)
            assert found is not None, "the statement always answers"
            is_open, revision, now = found
            if not is_open:
                raise _being_deleted(record)
            if revision is None:
                return self._own(session, born)
            return self._created(born, revision, now)

        return self._database.write(f"create task {record.task_id}", work)

    def create_if_no_active(self, record: TaskRecord) -> Stored | None:
        """See :meth:`TaskStore.create_if_no_active`."""
        born, params = self._born(record, alone=True)

        def work(session: Session) -> Stored | None:
            for _ in range(_TRIES):
                found = session.one("create_alone", params)
                assert found is not None, "the statement always answers"
                is_open, blocked, taken, revision, now = found
                if revision is not None:
                    return self._created(born, revision, now)
                if not is_open:
                    raise _being_deleted(record)
                if session.again and taken:
                    return self._own(session, born)
                if blocked:
                    return None
                if taken:
                    raise _exists(record.key)
                # One that was created at the same moment is committed by now, so the next look sees it.
            raise StoreUnavailable(
                f"tasks like {record.task_id} begin and end {_TRIES} times in a row; nothing was created, try again"
            )

        return self._database.write(f"create task {record.task_id}", work)

    def _born(
        self, record: TaskRecord, *, alone: bool, elsewhere: Attempt | None = None
    ) -> tuple[TaskRecord, dict[str, Any]]:
        check_storable(record.key)
        creation = self._clock.new_token()
        attempt = transitions.first_attempt(creation, elsewhere)
        born = record.changed(attempt=attempt, creation=creation)
        params = said(born)
        params["creation"] = creation
        params["epoch"] = attempt.epoch
        params["attempts"] = attempt.count
        params["alone"] = alone
        params["lease_seconds"] = self._lease_seconds
        return born, params

    def _created(self, born: TaskRecord, revision: int, now: float) -> Stored:
        if born.status is TaskStatus.PENDING:
            self._fresh.note(born, revision, now)
        return Stored(born, RowVersion(revision))

    def _own(self, session: Session, born: TaskRecord) -> Stored:
        """Return the record that an earlier try created. Raises TaskExists if it is somebody else's."""
        found = session.one("look", born.key._asdict()) if session.again else None
        if found is not None and Row(*found).creation == born.creation:
            return self._rows.stored(Row(*found))
        raise _exists(born.key)

    # ---- reading -------------------------------------------------------------------------------------

    def get(self, key: TaskKey, known: Version | None) -> Stored | Unchanged:
        """See :meth:`TaskStore.get`."""
        if not is_storable(*key):
            raise missing(key)
        params = {**key._asdict(), "known": revision_of(known)}
        found = self._database.read(f"read task {key.task_id}", lambda session: session.one("get", params))
        if found is None:
            raise missing(key)
        revision, data = found
        if data is None:
            return Unchanged(known)
        return Stored(self._rows.decode(data, key), RowVersion(revision))

    def page(self, query: Query) -> Page:
        """See :meth:`TaskStore.list`."""
        if not is_storable(query.account_id, query.user_id, query.task_type, query.status, query.resource_id):
            return Page([], None)
        return self._database.read("list tasks", lambda session: self._page(session, query))

    def _page(self, session: Session, query: Query) -> Page:
        items: list[Stored] = []
        corrupt: list[CorruptRecord] = []
        wanted = None if query.limit is None else query.limit + 1
        before, first = query.before, True
        while True:
            limit = None if wanted is None else wanted - len(items)
            asked = _asked(query, before, limit, most_unreadable=_MOST_UNREADABLE * first)
            found = session.all(_page_of(asked), asked)
            rows = [row for row in found if not row[0]]
            for _, user_id, task_id, _, revision, data in [*(row for row in found if row[0]), *rows]:
                key = TaskKey(query.account_id, user_id, task_id)
                try:
                    record = self._rows.decode(data, key)
                except CorruptRecord as error:
                    corrupt.append(error)
                else:
                    items.append(Stored(record, RowVersion(revision)))
            # Records that turned out to be none have made the page too short.
            if wanted is None or len(items) >= wanted or len(rows) < (limit or 0):
                break
            _, user_id, task_id, created_at, _, _ = rows[-1]
            before, first = Cursor(created_at, task_id, user_id), False
        more = query.limit is not None and len(items) > query.limit
        items = items[: query.limit]
        return Page(items, Cursor.of(items[-1].record) if more else None, corrupt)

    def has_active(
        self, account_id: str, user_id: str | None, task_type: str, resource_id: str | None
    ) -> bool:
        """See :meth:`TaskStore.has_active`."""
        if not is_storable(account_id, user_id, task_type, resource_id):
            return False
        params = {
            "account_id": account_id,
            "user_id": user_id,
            "kind": kind_of(task_type, resource_id),
        }
        found = self._database.read("look for a task", lambda session: session.one("has_active", params))
        return found == (True,)

    def find_active(
        self, account_id: str, user_id: str, task_type: str, resource_id: str | None
    ) -> Stored | None:
        """See :meth:`TaskStore.find_active`."""
        if not is_storable(account_id, user_id, task_type, resource_id):
            return None
        params = {
            "account_id": account_id,
            "user_id": user_id,
            "kind": kind_of(task_type, resource_id),
            "states": _ACTIVE_STATES,
        }
        rows = self._database.read("look for a task", lambda session: session.all("find_active", params))
        for task_id, revision, data in rows:
            try:
                record = self._rows.decode(data, TaskKey(account_id, user_id, task_id))
            except CorruptRecord:
                continue
            return Stored(record, RowVersion(revision))
        return None

    def count(self, account_id: str, user_id: str | None) -> dict[str, dict[str, int]]:
        """See :meth:`TaskStore.count`."""
        if not is_storable(account_id, user_id):
            return {}
        params = {"account_id": account_id, "user_id": user_id}
        counts: dict[str, dict[str, int]] = {}
        for task_type, status, number in self._database.read(
            "count tasks", lambda session: session.all("count", params)
        ):
            counts.setdefault(task_type, {})[status] = number
        return counts

    def owners(self) -> Iterator[tuple[str, str]]:
        """See :meth:`TaskStore.owners`."""
        last: tuple[str | None, str | None] = None, None
        while True:
            found = self._owners_after(*last)
            for account_id, user_id in found:
                last = account_id, user_id
                yield account_id, user_id
            if len(found) < _OWNERS_AT_ONCE:
                return

    def _owners_after(self, account_id: str | None, user_id: str | None) -> list[tuple[Any, ...]]:
        params = {"account_id": account_id, "user_id": user_id, "limit": _OWNERS_AT_ONCE}
        return self._database.read("list owners", lambda session: session.all("owners", params))

    # ---- changing ------------------------------------------------------------------------------------

    def update(
        self, record: TaskRecord, expected: Version | None, said_elsewhere: Attempt | None = None
    ) -> Stored:
        """See :meth:`TaskStore.update`; ``said_elsewhere`` is what another store has counted."""
        key, token = record.key, self._clock.new_token()
        if not is_storable(*key):
            raise missing(key)

        def work(session: Session) -> Stored:
            with session.transaction():
                row = locked(session, key)
                old = self._rows.record(row)
                if session.again and old.attempt is not None and old.attempt.token == token:
                    return self._rows.stored(row)
                if old.status.is_terminal:
                    _check_version(row, expected)
                    transitions.check_not_final(old)
                check_free(row, old)
                _check_version(row, expected)
                last = transitions.carried_on(old.attempt, said_elsewhere)
                attempt = transitions.next_attempt(last, token, above=row.epoch)
                new = record.changed(attempt=attempt, creation=row.creation)
                return write_free(session, new, attempt, self._lease_seconds, before=row.status)

        return self._database.write(f"update task {key.task_id}", work)

    def delete(self, key: TaskKey, expected: Version | None) -> None:
        """See :meth:`TaskStore.delete`."""
        if not is_storable(*key):
            raise missing(key)
        seen: list[str] = []

        def work(session: Session) -> None:
            with session.transaction():
                found = session.one("lock", key._asdict())
                if session.again and seen and (found is None or Row(*found).creation != seen[0]):
                    return  # it was there, and the earlier try has deleted it, or somebody else
                row = given(found, key)
                seen[:] = [row.creation]
                transitions.check_deletable(self._rows.record(row))
                _check_version(row, expected)
                session.run("delete", key._asdict())

        self._database.write(f"delete task {key.task_id}", work)


def _asked(query: Query, before: Cursor | None, limit: int | None, *, most_unreadable: int) -> dict[str, Any]:
    return {
        "account_id": query.account_id,
        "user_id": query.user_id,
        "status": None if query.status is None else str(query.status),
        "task_type": query.task_type,
        "resource_id": query.resource_id,
        "before_time": None if before is None else before.created_at,
        "before_task": None if before is None else before.task_id,
        "before_user": None if before is None else before.user_id,
        "limit": limit,
        "most_unreadable": most_unreadable,
    }


def _page_of(asked: dict[str, Any]) -> str:
    """Return the name of the statement that has the filters which are asked for, and no others."""
    filters = [name for name, column in _FILTERS.items() if asked[column] is not None]
    return "+".join(["page", *filters])


def _check_version(row: Row, expected: Version | None) -> None:
    if expected is not None and row.revision != revision_of(expected):
        raise VersionConflict(f"task {row.task_id} was changed meanwhile; read it again")


def _exists(key: TaskKey) -> TaskExists:
    return TaskExists(f"task {key.task_id} exists already; choose another id or leave it out")


def _being_deleted(record: TaskRecord) -> InvalidTransition:
    return InvalidTransition(
        f"the tasks of {record.account_id}/{record.user_id} are being deleted; when that has ended (call delete_owner "
        "again if it was interrupted), create the task again",
        task_ids=[record.task_id],
    )
