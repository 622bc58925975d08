"""Ownership: claims, heartbeats, writes under a lease, take-overs.

Owns the fence: each write of a holder is one statement that names token and epoch and finds no row once somebody else
has the lease. What needs the record first (a claim, a wish to cancel) locks the row, asks
:mod:`task_tracker.transitions`, and writes, in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from stores.postgres.database import Database, Session
from stores.postgres.fresh import Fresh, Known
from stores.postgres.holding import Evidence, check_free, intent_of, locked, write_free, write_kept
from stores.postgres.rows import (
    Row,
    Rows,
    RowVersion,
    array,
    is_storable,
    missing,
    news_of,
    said,
    said_since,
    text_of,
)
from task_tracker import transitions
from task_tracker.clock import Clock
from task_tracker.errors import CorruptRecord, LeaseLost, StoreUnavailable
from task_tracker.records import Attempt, TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Expired, Lease, Stored

__all__ = ["Ownership", "Prepared", "Write", "check_not_lost"]

Write = Literal["commit", "release", "end"]
"""The writes of a holder: the lease goes on, is given back, or ends with the task."""
_CHECKS: Final[Mapping[Write, Callable[[TaskRecord, TaskKey], None]]] = {
    "commit": transitions.check_commit,
    "release": transitions.check_release,
    "end": transitions.check_end,
}
_STATEMENTS: Final[Mapping[Write, str]] = {"commit": "commit", "release": "give_up", "end": "end"}


class Prepared(NamedTuple):
    """A write under a lease: the record as it is to be stored, what a statement says of it, and the write by itself."""

    record: TaskRecord
    params: Mapping[str, Any]
    write: Callable[[Session], Stored]


class Ownership:
    """The operations on leases."""

    def __init__(
        self, database: Database, rows: Rows, fresh: Fresh, clock: Clock, lease_seconds: float
    ) -> None:
        self._database = database
        self._rows = rows
        self._fresh = fresh
        self._clock = clock
        self._lease_seconds = lease_seconds

    # ---- getting a lease -----------------------------------------------------------------------------

    def claim(self, key: TaskKey, holder: str, *, count_attempt: bool) -> tuple[Lease, Stored]:
        """Claim a task by its key; see :meth:`LeaseStore.claim`."""
        token = self._clock.new_token()
        if not is_storable(*key):
            raise missing(key)

        known = self._fresh.take(key) if count_attempt else None

        def work(session: Session) -> tuple[Lease, Stored]:
            if known is not None and not session.again:
                claimed = self._claim_fresh(session, known, token, holder)
                if claimed is not None:
                    return claimed
            with session.transaction():
                row = locked(session, key)
                if session.again and row.token == token:
                    return self.mine(row)
                record = self._rows.record(row)
                transitions.check_claimable(record)
                check_free(row, record, claim=count_attempt)
                return self.take(session, row, record, token, holder, count_attempt=count_attempt)

        return self._database.write(f"claim task {key.task_id}", work)

    def _claim_fresh(
        self, session: Session, known: Known, token: str, holder: str
    ) -> tuple[Lease, Stored] | None:
        """Claim a task of this process's own in one statement; None if it is not as it was created."""
        last = known.record.attempt
        assert last is not None, "every creation has one"
        attempt = transitions.next_attempt(last, token, above=last.epoch, holder=holder, counted=True)
        record = transitions.claimed(known.record, known.now, attempt)
        key = known.record.key
        params = {
            "account_id": key.account_id,
            "user_id": key.user_id,
            "task_id": key.task_id,
            "record": text_of(record),
            "status": record.status.value,
            "news": news_of(key),
            **self._held(attempt),
            "revision": known.revision,
            "before": last.epoch,
        }
        found = session.one("hold_fresh", params)
        return None if found is None else (_lease(record, attempt), Stored(record, RowVersion(found[0])))

    def _held(self, attempt: Attempt) -> dict[str, Any]:
        """Return the parameters of the fragment ``held``."""
        return {
            "epoch": attempt.epoch,
            "token": attempt.token,
            "holder": attempt.holder,
            "attempts": attempt.count,
            "lease_seconds": self._lease_seconds,
        }

    def take_all(
        self, session: Session, rows: Sequence[tuple[Row, TaskRecord]], tokens: Sequence[str], holder: str
    ) -> list[tuple[Lease, Stored]]:
        """Claim locked rows, each under a token of its own, in one statement."""
        taken = []
        for (row, record), token in zip(rows, tokens, strict=False):
            attempt = transitions.next_attempt(
                record.attempt, token, above=row.epoch, holder=holder, counted=True
            )
            taken.append((transitions.claimed(record, row.now, attempt), attempt))
        keys = [record.key for record, _ in taken]
        params = {
            "account_ids": array(key.account_id for key in keys),
            "user_ids": array(key.user_id for key in keys),
            "task_ids": array(key.task_id for key in keys),
            "records": array(text_of(record) for record, _ in taken),
            "statuses": array(record.status.value for record, _ in taken),
            "epochs": array(attempt.epoch for _, attempt in taken),
            "tokens": array(attempt.token for _, attempt in taken),
            "attempts": array(attempt.count for _, attempt in taken),
            "news": array(news_of(key) for key in keys),
            "holder": holder,
            "lease_seconds": self._lease_seconds,
        }
        revisions: dict[str, int] = {row[0]: row[1] for row in session.all("hold_all", params)}
        assert len(revisions) == len(taken), "the rows are locked"
        return [
            (_lease(record, attempt), Stored(record, RowVersion(revisions[attempt.token])))
            for record, attempt in taken
        ]

    def take(
        self,
        session: Session,
        row: Row,
        record: TaskRecord,
        token: str,
        holder: str,
        *,
        count_attempt: bool,
        over: bool = False,
    ) -> tuple[Lease, Stored]:
        """Give a locked row to ``holder``: claim it, or take it ``over`` from who held it."""
        attempt = transitions.next_attempt(
            record.attempt, token, above=row.epoch, holder=holder, counted=count_attempt
        )
        params = self._held(attempt)
        if count_attempt:
            record = (
                record.changed(attempt=attempt) if over else transitions.claimed(record, row.now, attempt)
            )
            found = session.one("hold", {**said_since(record, row.status), **params})
        else:
            found = session.one("hold_as_it_is", {**row.key._asdict(), **params})
        assert found is not None, "the row is locked"
        return _lease(record, attempt), Stored(record, RowVersion(found[0]))

    def mine(self, row: Row) -> tuple[Lease, Stored]:
        """Return the lease that an earlier try of this call got."""
        stored = self._rows.stored(row)
        attempt = Attempt(row.epoch, row.token or "", row.holder or "", row.attempts)
        return _lease(stored.record, attempt), stored

    def take_over(self, expired: Expired, holder: str, *, count_attempt: bool) -> tuple[Lease, Stored] | None:
        """See :meth:`LeaseStore.take_over`."""
        key, evidence, token = expired.record.key, expired.evidence, self._clock.new_token()

        def work(session: Session) -> tuple[Lease, Stored] | None:
            with session.transaction():
                found = session.one("lock", key._asdict())
                if found is None:
                    return None
                row = Row(*found)
                if session.again and row.token == token:
                    return self.mine(row)
                if Evidence.of(row) != evidence:
                    return None
                record = self._rows.record(row)
                if record.status is TaskStatus.PENDING:
                    # Its holder only wrote on somebody's behalf: nothing is to be settled. The epoch is used up.
                    self._hand_back(session, row, record, token)
                    return None
                if not record.status.is_active:
                    return None
                return self.take(session, row, record, token, holder, count_attempt=count_attempt, over=True)

        return self._database.write(f"take over task {key.task_id}", work)

    def _hand_back(self, session: Session, row: Row, record: TaskRecord, token: str) -> None:
        attempt = transitions.next_attempt(record.attempt, token, above=row.epoch)
        write_free(session, record.changed(attempt=attempt), attempt, self._lease_seconds)

    # ---- using it ------------------------------------------------------------------------------------

    def renew(self, lease: Lease) -> None:
        """See :meth:`LeaseStore.renew`."""
        check_not_lost(lease)
        params = {
            **lease.key._asdict(),
            "token": lease.token,
            "epoch": lease.epoch,
            "lease_seconds": self._lease_seconds,
        }
        found = self._database.write(
            f"renew the lease of task {lease.key.task_id}", lambda session: session.one("renew", params)
        )
        if found is None:
            raise _lost(lease)
        if found[0]:
            lease.cancel_requested.set()

    def commit(self, lease: Lease, record: TaskRecord) -> Stored:
        """See :meth:`LeaseStore.commit`."""
        return self._write("commit", lease, record)

    def release(self, lease: Lease, record: TaskRecord) -> Stored:
        """See :meth:`LeaseStore.release`."""
        return self._write("release", lease, record)

    def end(self, lease: Lease, record: TaskRecord) -> Stored:
        """See :meth:`LeaseStore.end`."""
        return self._write("end", lease, record)

    def _write(self, how: Write, lease: Lease, record: TaskRecord) -> Stored:
        return self._database.write(f"{how} task {lease.key.task_id}", self.writing(how, lease, record))

    def writing(self, how: Write, lease: Lease, record: TaskRecord) -> Callable[[Session], Stored]:
        """Return the work of a write under a lease, for a session that may be in a transaction. Raises LeaseLost."""
        return self.prepared(how, lease, record).write

    def prepared(self, how: Write, lease: Lease, record: TaskRecord) -> Prepared:
        """Return a write under a lease, ready to be sent. Raises LeaseLost, and ValueError for what is not kept."""
        _CHECKS[how](record, lease.key)
        check_not_lost(lease)
        knows = record.status is TaskStatus.CANCELLING and record.cancel_requested_at is not None
        attempt = Attempt(lease.epoch, lease.token, lease.holder, lease.attempt_count)
        record = record.changed(attempt=attempt)
        params = {
            **said(record),
            "creation": record.creation,
            "token": lease.token,
            "epoch": lease.epoch,
            # Whether a wish to cancel changes nothing about what a commit writes.
            "knows": knows,
            "lease_seconds": self._lease_seconds,
        }

        def work(session: Session) -> Stored:
            found = session.one(_STATEMENTS[how], params)
            if found is not None:
                return Stored(record, RowVersion(found[0]))
            with session.transaction():
                return self._write_locked(session, how, lease, record, attempt)

        return Prepared(record, params, work)

    def look(self, session: Session, lease: Lease) -> bool:
        """Keep the lease as it is until the transaction ends; tell whether a cancel waits. Raises LeaseLost."""
        check_not_lost(lease)
        found = session.one("look_held", {**lease.key._asdict(), "token": lease.token, "epoch": lease.epoch})
        if found is None:
            raise _lost(lease)
        return bool(found[0])

    def _write_locked(
        self, session: Session, how: Write, lease: Lease, record: TaskRecord, attempt: Attempt
    ) -> Stored:
        """The same with the row locked: it is not as expected, so the reason is looked for."""
        row = None if (found := session.one("lock", lease.key._asdict())) is None else Row(*found)
        if session.again and how != "commit":
            landed = self._landed(lease, row)
            if landed is not None:
                return landed
        if row is None or (row.token, row.epoch) != (lease.token, lease.epoch):
            raise _lost(lease)
        if not row.valid:
            raise _lost(lease, "has expired")
        try:
            intent = intent_of(self._rows.record(row))
        except CorruptRecord:
            intent = row.now if row.status == TaskStatus.CANCELLING else None
        record = record.changed(creation=row.creation)
        if how == "commit":
            return write_kept(session, transitions.under_intent(record, intent), before=row.status)
        if how == "release":
            record = transitions.given_back(record, intent)
        return write_free(session, record, attempt, self._lease_seconds)

    def _landed(self, lease: Lease, row: Row | None) -> Stored | None:
        """Return what an earlier try of this last write left; None if it left nothing. Raises StoreUnavailable."""
        if row is not None and row.epoch == lease.epoch:
            # Only the last write under this lease takes the token away and leaves the epoch.
            return self._rows.stored(row) if row.token is None else None
        raise StoreUnavailable(
            f"the connection broke while task {lease.key.task_id} was given up, and somebody else has had it since; "
            "this write may have happened or not, do not repeat it"
        )

    # ---- what others do ------------------------------------------------------------------------------

    def request_cancel(self, key: TaskKey) -> Stored:
        """See :meth:`LeaseStore.request_cancel`."""
        token = self._clock.new_token()
        if not is_storable(*key):
            raise missing(key)

        def work(session: Session) -> Stored:
            with session.transaction():
                row = locked(session, key)
                stored = self._rows.stored(row)
                old, held = stored.record, row.token is not None
                record = transitions.request_cancel(old, row.now, held=held)
                if record is old:
                    return stored
                if held:
                    return write_kept(session, record, before=row.status)
                attempt = transitions.next_attempt(old.attempt, token, above=row.epoch)
                return write_free(session, record.changed(attempt=attempt), attempt, self._lease_seconds)

        return self._database.write(f"cancel task {key.task_id}", work)

    def expired(self, limit: int) -> Sequence[Expired]:
        """See :meth:`LeaseStore.expired`."""

        def work(session: Session) -> list[Expired]:
            found: list[Expired] = []
            while True:
                rows = [Row(*row) for row in session.all("expired", {"limit": limit})]
                found, set_aside = self._expired(session, rows)
                # What cannot be read has taken the places of others.
                if not set_aside or len(rows) < limit:
                    return found

        return self._database.write("look for expired leases", work)

    def _expired(self, session: Session, rows: Sequence[Row]) -> tuple[list[Expired], int]:
        found, set_aside = [], 0
        for row in rows:
            try:
                record = self._rows.record(row)
            except CorruptRecord:
                set_aside += self.set_aside(session, row)
                continue
            found.append(Expired(record, row.holder, row.heartbeat_age or 0.0, Evidence.of(row)))
        return found, set_aside

    def set_aside(self, session: Session, row: Row) -> int:
        """Keep a row that is no record out of others' way; ``examine`` names it. Return 1, or 0 if it has changed."""
        return session.run("set_aside", {**row.key._asdict(), "revision": row.revision})


def _lease(record: TaskRecord, attempt: Attempt) -> Lease:
    lease = Lease(record.key, record.created_at, attempt.epoch, attempt.token, attempt.holder, attempt.count)
    if intent_of(record) is not None:
        lease.cancel_requested.set()
    return lease


def check_not_lost(lease: Lease) -> None:
    """Raise LeaseLost if that is known already."""
    if lease.lost.is_set():
        raise _lost(lease)


def _lost(lease: Lease, how: str = "is somebody else's now") -> LeaseLost:
    lease.lost.set()
    return LeaseLost(
        f"the lease of task {lease.key.task_id} (epoch {lease.epoch}, {lease.holder}) {how}; stop working on it"
    )
