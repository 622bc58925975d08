"""PostgresTaskStore: records in a table of PostgreSQL, written under leases.

Owns the seam and how its parts are put together: the operations are in :mod:`stores.postgres.records`,
:mod:`stores.postgres.ownership`, :mod:`stores.postgres.queue` and :mod:`stores.postgres.upkeep`. What time it is says
the database, and nobody else.
"""

# long: one method for each operation of the seam, most of it docstrings

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import psycopg

from stores.postgres.connections import BoundedConnection, Connections, Opener, opener
from stores.postgres.database import Database
from stores.postgres.ending import Ending
from stores.postgres.examination import Examination
from stores.postgres.fresh import Fresh
from stores.postgres.joining import JoinedDatabase
from stores.postgres.listening import Listener
from stores.postgres.migrating import Migrations
from stores.postgres.names import Names
from stores.postgres.options import PostgresSettings
from stores.postgres.ownership import Ownership
from stores.postgres.queue import Queue
from stores.postgres.records import Records
from stores.postgres.rows import Rows, news_of
from stores.postgres.statements import Statements
from stores.postgres.transactions import PostgresTransaction, Transactions
from stores.postgres.trouble import unreached
from stores.postgres.upkeep import Upkeep
from task_tracker import defaults
from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import (
    Capabilities,
    Expired,
    Finding,
    Lease,
    LeaseStore,
    Page,
    Purged,
    Query,
    Stored,
    StoreOptions,
    Unchanged,
    Version,
    WorkerFact,
    Workload,
    lease_terms,
)

__all__ = ["PostgresSchema", "PostgresTaskStore", "check_options", "open_postgres", "open_schema"]

_T = TypeVar("_T")


class PostgresTaskStore(LeaseStore):
    """Records in a table, for any number of processes on any number of hosts.

    ``dsn`` is a connection string of libpq. ``schema`` and ``table_prefix`` say which tables; they must be there, see
    :meth:`prepare`. ``pool_size`` is how many connections this process may have at once. A statement takes
    ``statement_seconds`` at most, and waits ``lock_timeout_seconds`` for others' transactions. ``open_connection``
    takes the place of ``dsn`` (for tests). No connection is opened before it is needed.

    With ``listen`` writes tell those who listen, and this store listens while somebody watches it, on a connection of
    its own: to ``listen_dsn``, which a pooler in between makes necessary, or else to ``dsn``.
    """

    capabilities = Capabilities(
        durable=True, shared=True, exclusive_create=True, compare_and_set=True, leases=True, watch=True
    )

    ends_together = True

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = Names.schema,
        table_prefix: str = Names.prefix,
        pool_size: int = PostgresSettings.pool_size,
        connect_seconds: float = PostgresSettings.connect_seconds,
        statement_seconds: float = PostgresSettings.statement_seconds,
        lock_timeout_seconds: float = defaults.LOCK_TIMEOUT_SECONDS,
        listen: bool = True,
        listen_dsn: str | None = None,
        lease_seconds: float = defaults.LEASE_SECONDS,
        heartbeat_seconds: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
        open_connection: Opener | None = None,
    ) -> None:
        settings = PostgresSettings(
            dsn=dsn,
            names=Names(schema, table_prefix),
            pool_size=pool_size,
            connect_seconds=connect_seconds,
            statement_seconds=statement_seconds,
            lock_seconds=lock_timeout_seconds,
            listen=listen,
            listen_dsn=listen_dsn,
            lease_seconds=lease_seconds,
            heartbeat_seconds=heartbeat_seconds,
        )
        if open_connection is None:
            open_connection = opener(
                dsn, connect_seconds=connect_seconds, statement_seconds=statement_seconds
            )
        self.lease_seconds, self.heartbeat_seconds = lease_terms(lease_seconds, heartbeat_seconds)
        self._build(settings, open_connection, clock)

    def _build(self, settings: PostgresSettings, open_connection: Opener, clock: Clock) -> None:
        names = settings.names
        self._migrations = Migrations(names)
        self._connections = Connections(
            open_connection, size=settings.pool_size, patience_seconds=settings.lock_seconds
        )
        self._database = database = Database(
            self._connections,
            Statements(names),
            lock_seconds=settings.lock_seconds,
            statement_seconds=settings.statement_seconds,
            prepare=self._migrations.check,
            tells=settings.listen,
        )
        if not settings.listen:
            self.capabilities = dataclasses.replace(self.capabilities, watch=False)
        self._listener = Listener(
            database,
            names,
            open_connection
            if settings.listen_dsn is None
            else _listening_opener(settings, settings.listen_dsn),
            direct=settings.listen_dsn is not None,
        )
        self._rows = rows = Rows(names.table("tasks"))
        self._clock = clock
        fresh = Fresh(clock)
        self._records = Records(database, rows, fresh, clock, self.lease_seconds)
        self._ownership = Ownership(database, rows, fresh, clock, self.lease_seconds)
        self._ending = Ending(database, self._ownership)
        self._queue = Queue(database, rows, self._ownership, names, clock)
        self._upkeep = Upkeep(database, self.lease_seconds)
        self._transactions = Transactions(
            Connections(open_connection, size=settings.pool_size, patience_seconds=settings.lock_seconds),
            database,
            self._ownership,
            lock_seconds=settings.lock_seconds,
            statement_seconds=settings.statement_seconds,
            idle_seconds=max(self.lease_seconds, settings.lock_seconds),
        )
        self._examination = Examination(database, rows, self._upkeep, names.table("workers"))

    def prepare(self, *, migrate: bool = False) -> None:
        """Make sure that the tables are what this version expects; with ``migrate`` make them so.

        Without it the first call does so. Raises SettingsError if they are not, StoreUnavailable.
        """
        if migrate:
            _on(self._connections, "migrate", self._migrations.apply)
        self._database.prepare()

    def close(self) -> None:
        """Close all connections; see :meth:`TaskStore.close`."""
        self._listener.stop()
        self._connections.close()
        self._transactions.connections.close()

    # ---- listening -----------------------------------------------------------------------------------

    @property
    def listen_failures(self) -> int:
        """How often this process could not listen, or not any more. What it does not hear is found by looking."""
        return self._listener.failures

    def watch(self, on_change: Callable[[TaskKey | None], None]) -> AbstractContextManager[None]:
        """Listen for changes while the block runs; see :meth:`TaskStore.watch`."""
        return self._listener.watching(on_change) if self.capabilities.watch else super().watch(on_change)

    def watch_queue(self, on_waiting: Callable[[], None]) -> AbstractContextManager[None]:
        """Listen for tasks that wait; see :meth:`LeaseStore.watch_queue`."""
        return (
            self._listener.watching_queue(on_waiting)
            if self.capabilities.watch
            else super().watch_queue(on_waiting)
        )

    def announce(self, keys: Sequence[TaskKey]) -> None:
        """Tell workers that these tasks wait; see :meth:`LeaseStore.announce`."""
        if not self.capabilities.watch:
            super().announce(keys)
        params = {"news": news_of(keys[0])} if keys else {}
        if params:  # whoever hears of one looks for all
            self._database.write("tell workers", lambda session: session.all("announce", params))

    # ---- records -------------------------------------------------------------------------------------

    def create(self, record: TaskRecord) -> Stored:
        """Add a row; see :meth:`TaskStore.create`."""
        return self._records.create(record)

    def create_if_no_active(self, record: TaskRecord) -> Stored | None:
        """Add a row unless one like it is active; see :meth:`TaskStore.create_if_no_active`."""
        return self._records.create_if_no_active(record)

    def update(self, record: TaskRecord, *, expected: Version | None) -> Stored:
        """Replace a record; see :meth:`TaskStore.update`."""
        return self._records.update(record, expected)

    def take_in(self, record: TaskRecord, *, expected: Version | None = None) -> Stored:
        """Store a record from elsewhere; see :meth:`LeaseStore.take_in`."""
        if expected is None:
            return self._records.create(record, record.attempt)
        return self._records.update(record, expected, record.attempt)

    def get(self, key: TaskKey, *, known: Version | None = None) -> Stored | Unchanged:
        """Read a record; see :meth:`TaskStore.get`."""
        return self._records.get(key, known)

    def list(self, query: Query) -> Page:
        """Return one page; see :meth:`TaskStore.list`."""
        return self._records.page(query)

    def delete(self, key: TaskKey, *, expected: Version | None = None) -> None:
        """Delete a record that has ended; see :meth:`TaskStore.delete`."""
        self._records.delete(key, expected)

    def has_active(
        self, account_id: str, user_id: str | None, task_type: str, resource_id: str | None
    ) -> bool:
        """Tell whether such a task is active; see :meth:`TaskStore.has_active`."""
        return self._records.has_active(account_id, user_id, task_type, resource_id)

    def find_active(
        self, account_id: str, user_id: str, task_type: str, resource_id: str | None
    ) -> Stored | None:
        """Return the newest active task of a kind; see :meth:`TaskStore.find_active`."""
        return self._records.find_active(account_id, user_id, task_type, resource_id)

    def count(self, account_id: str, user_id: str | None) -> dict[str, dict[str, int]]:
        """Return ``{task_type: {status: number}}``; see :meth:`TaskStore.count`."""
        return self._records.count(account_id, user_id)

    def owners(self) -> Iterator[tuple[str, str]]:
        """Iterate over all owners; see :meth:`TaskStore.owners`."""
        return self._records.owners()

    # ---- leases --------------------------------------------------------------------------------------

    def claim(
        self,
        key: TaskKey | None = None,
        *,
        holder: str,
        task_types: Sequence[tuple[str, int]] = (),
        max_running: Mapping[str, int] | None = None,
        count_attempt: bool = True,
    ) -> tuple[Lease, Stored] | None:
        """Take a pending task; see :meth:`LeaseStore.claim`."""
        if key is not None:
            return self._ownership.claim(key, holder, count_attempt=count_attempt)
        return next(iter(self._queue.claim(task_types, max_running, holder, most=1)), None)

    def claim_several(
        self,
        most: int,
        *,
        holder: str,
        task_types: Sequence[tuple[str, int]],
        max_running: Mapping[str, int] | None = None,
    ) -> Sequence[tuple[Lease, Stored]]:
        """Take the next tasks in one transaction; see :meth:`LeaseStore.claim_several`."""
        return self._queue.claim(task_types, max_running, holder, most=most)

    def claimable(self, *, task_types: Sequence[tuple[str, int]], limit: int) -> Sequence[TaskKey]:
        """Return what could be claimed next; see :meth:`LeaseStore.claimable`."""
        return self._queue.claimable(task_types, limit)

    def renew(self, lease: Lease) -> None:
        """Heartbeat; see :meth:`LeaseStore.renew`."""
        self._ownership.renew(lease)

    def commit(self, lease: Lease, record: TaskRecord) -> Stored:
        """Write under a lease; see :meth:`LeaseStore.commit`."""
        return self._ownership.commit(lease, record)

    def release(self, lease: Lease, record: TaskRecord) -> Stored:
        """Give a task back; see :meth:`LeaseStore.release`."""
        return self._ownership.release(lease, record)

    def end(self, lease: Lease, record: TaskRecord) -> Stored:
        """Commit a terminal record and give up the lease; see :meth:`LeaseStore.end`."""
        return self._ownership.end(lease, record)

    def end_several(self, ends: Sequence[tuple[Lease, TaskRecord]]) -> Sequence[Stored | Exception | None]:
        """Commit several terminal records in one statement; see :meth:`LeaseStore.end_several`."""
        return self._ending.end_several(ends)

    def request_cancel(self, key: TaskKey) -> Stored:
        """Make the wish to cancel durable; see :meth:`LeaseStore.request_cancel`."""
        return self._ownership.request_cancel(key)

    def expired(self, *, limit: int = 1000) -> Sequence[Expired]:
        """Return leases whose holder has stopped; see :meth:`LeaseStore.expired`."""
        return self._ownership.expired(limit)

    def take_over(
        self, expired: Expired, *, holder: str, count_attempt: bool = True
    ) -> tuple[Lease, Stored] | None:
        """Claim an expired lease; see :meth:`LeaseStore.take_over`."""
        return self._ownership.take_over(expired, holder, count_attempt=count_attempt)

    def unclaimed(
        self,
        *,
        task_types: Sequence[tuple[str, int]] | None = None,
        except_types: Sequence[tuple[str, int]] = (),
        handled: bool | None = None,
        older_than_seconds: float = 0.0,
        limit: int,
    ) -> Sequence[Stored]:
        """Return pending tasks that nobody holds; see :meth:`LeaseStore.unclaimed`."""
        return self._queue.unclaimed(task_types, except_types, older_than_seconds, limit, handled=handled)

    def next_due_seconds(self, *, task_types: Sequence[tuple[str, int]]) -> float | None:
        """Return when the next start time comes; see :meth:`LeaseStore.next_due_seconds`."""
        return self._queue.next_due_seconds(task_types)

    def workload(self) -> Workload:
        """Return what waits and what runs; see :meth:`LeaseStore.workload`."""
        return self._queue.workload()

    # ---- transactions --------------------------------------------------------------------------------

    def begin(self, lease: Lease, *, for_loop: bool) -> PostgresTransaction:
        """Begin a transaction of a handler's; see :meth:`HasTransactions.begin`."""
        self._database.prepare()
        return self._transactions.begin(lease, for_loop=for_loop)

    def joined(self, connection: object) -> Records:
        """Return what creates records in the caller's transaction; see :meth:`HasTransactions.joined`."""
        self._database.prepare()
        database = JoinedDatabase(connection, self._database.statements, quiet=self._database.quiet)
        # What is not committed yet is nothing that this process could claim: it is noted apart.
        return Records(database, self._rows, Fresh(self._clock), self._clock, self.lease_seconds)

    # ---- upkeep --------------------------------------------------------------------------------------

    def delete_owner(self, account_id: str, user_id: str) -> int:
        """Delete all of an owner's records; see :meth:`TaskStore.delete_owner`."""
        return self._upkeep.delete_owner(account_id, user_id)

    def purge(self, cutoffs: Mapping[TaskStatus, float], *, limit: int) -> Purged:
        """Delete expired records; see :meth:`TaskStore.purge`."""
        return self._upkeep.purge(cutoffs, limit)

    def recover(self, *, limit: int = 1000) -> int:
        """Give a term to what runs without one; see :meth:`LeaseStore.recover`."""
        return self._upkeep.recover(limit)

    def examine(self, *, fix: bool = False) -> Sequence[Finding]:
        """Look at every row; see :meth:`TaskStore.examine`."""
        return self._examination.examine(fix=fix)

    # ---- coordination of workers -----------------------------------------------------------------------

    def pause(self, task_type: str) -> None:
        """Have nobody claim tasks of this type; see :meth:`LeaseStore.pause`."""
        self._upkeep.pause(task_type)

    def unpause(self, task_type: str) -> None:
        """Let them be claimed again; see :meth:`LeaseStore.unpause`."""
        self._upkeep.unpause(task_type)

    def paused(self) -> Sequence[str]:
        """Return the paused types; see :meth:`LeaseStore.paused`."""
        return self._upkeep.paused()

    def publish(self, fact: WorkerFact) -> None:
        """Keep what a worker says of itself; see :meth:`LeaseStore.publish`."""
        self._upkeep.publish(fact)

    def withdraw(self, name: str) -> None:
        """Take it away; see :meth:`LeaseStore.withdraw`."""
        self._upkeep.withdraw(name)

    def facts(self) -> Sequence[WorkerFact]:
        """Return what workers that live say of themselves; see :meth:`LeaseStore.facts`."""
        return self._upkeep.facts()


class PostgresSchema:
    """The tables themselves: what is there, and how it becomes what this version needs."""

    def __init__(self, settings: PostgresSettings, open_connection: Opener) -> None:
        self._migrations = Migrations(settings.names)
        self._connections = Connections(open_connection, size=1, patience_seconds=settings.lock_seconds)

    def pending(self) -> Sequence[str]:
        """Return the names of the steps that are still to come. Raises SettingsError, StoreUnavailable."""
        steps = _on(self._connections, "tell its migrations", self._migrations.pending)
        return [step.name for step in steps]

    def migrate(self) -> Sequence[str]:
        """Apply them and return the names of what was applied here. Raises SettingsError, StoreUnavailable."""
        return [step.name for step in _on(self._connections, "migrate", self._migrations.apply)]

    def script(self) -> str:
        """Return all steps as SQL, to be read or run by hand."""
        return self._migrations.script()

    def close(self) -> None:
        """Close the connection."""
        self._connections.close()


def _listening_opener(settings: PostgresSettings, dsn: str) -> Opener:
    return opener(
        dsn,
        connect_seconds=settings.connect_seconds,
        statement_seconds=settings.statement_seconds,
        setting="options.listen_dsn",
    )


def _on(connections: Connections, what: str, work: Callable[[BoundedConnection], _T]) -> _T:
    try:
        connection = connections.take()
    except psycopg.Error as error:
        raise unreached(error, what) from error
    try:
        return work(connection)
    finally:
        connections.give_back(connection)


def open_postgres(options: StoreOptions) -> PostgresTaskStore:
    """Return the store that configuration asks for, its tables looked at, or made. Raises as ``prepare``."""
    settings = PostgresSettings.of(options)
    store = PostgresTaskStore(
        settings.dsn,
        schema=settings.names.schema,
        table_prefix=settings.names.prefix,
        pool_size=settings.pool_size,
        connect_seconds=settings.connect_seconds,
        statement_seconds=settings.statement_seconds,
        lock_timeout_seconds=settings.lock_seconds,
        listen=settings.listen,
        listen_dsn=settings.listen_dsn,
        lease_seconds=settings.lease_seconds,
        heartbeat_seconds=settings.heartbeat_seconds,
        clock=options.clock,
    )
    try:
        store.prepare(migrate=options.migrate)
    except BaseException:
        store.close()
        raise
    return store


def check_options(options: StoreOptions) -> None:
    """Raise SettingsError for what cannot work, without asking any server."""
    settings = PostgresSettings.of(options)
    opener(
        settings.dsn,
        connect_seconds=settings.connect_seconds,
        statement_seconds=settings.statement_seconds,
    )
    if settings.listen_dsn is not None:
        _listening_opener(settings, settings.listen_dsn)


def open_schema(options: StoreOptions) -> PostgresSchema:
    """Return the tables that configuration means, whatever state they are in. Raises SettingsError."""
    settings = PostgresSettings.of(options)
    return PostgresSchema(
        settings,
        opener(
            settings.dsn,
            connect_seconds=settings.connect_seconds,
            statement_seconds=settings.statement_seconds,
        ),
    )
