"""The seam: what a store promises, in prose, for callers and for authors of backends alike.

``TaskTracker`` sits above, files and databases below, and neither knows the other. A backend is right when
it passes :mod:`task_tracker.testing`. Rules about states are not repeated here: stores call
:mod:`task_tracker.transitions`. Stores raise only the errors of :mod:`task_tracker.errors`, with the
driver's error as the cause; not found, corrupt and unavailable never look alike.

Callers never change a record that has ended, and a store may rely on it (not read it again, for instance).
Stores are synchronous and may be called from any thread, also from several at once.
"""

# long: the contract of every operation, in prose

from __future__ import annotations

import base64
import dataclasses
import heapq
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Protocol, runtime_checkable

import orjson

from task_tracker import codec, defaults, transitions
from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.errors import CapabilityMissing, CorruptRecord, SettingsError
from task_tracker.flags import Flag
from task_tracker.records import ACTIVE, TaskKey, TaskRecord, TaskStatus

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "Capabilities",
    "Cursor",
    "EffectsPlace",
    "Expired",
    "Finding",
    "HasEffects",
    "HasTransactions",
    "Joined",
    "Lease",
    "LeaseStore",
    "OnLoop",
    "Page",
    "Purged",
    "Query",
    "StoreOptions",
    "StoreTransaction",
    "Stored",
    "TaskStore",
    "Unchanged",
    "Version",
    "WorkerFact",
    "Workload",
    "check_fact",
    "lease_terms",
    "silent_worker",
]

Version = object
"""Opaque. Only the store that gave it can read it; callers hand it back as ``expected`` or ``known``."""


@dataclasses.dataclass(frozen=True, slots=True)
class Capabilities:
    """What an instance really promises, probed where it depends on the mount or the server."""

    durable: bool = False
    """Records survive the process."""
    shared: bool = False
    """Several processes may use the store at once and see each other's writes."""
    exclusive_create: bool = False
    """``create`` never overwrites, whoever races. Without it that holds for generated ids only; an id of the
    caller's own is looked up first."""
    compare_and_set: bool = False
    """``expected`` is honoured atomically across all who use the store, and ``create_if_no_active`` is exact."""
    leases: bool = False
    """The store is a :class:`LeaseStore`."""
    watch: bool = False
    """Changes by other processes are announced rather than found by polling."""


class Stored(NamedTuple):
    """A record as it is stored, with the version to name it by."""

    record: TaskRecord
    version: Version


class Unchanged(NamedTuple):
    """The stored record is still the known one. Keep ``version`` in place of the old one (it may be cheaper
    to ask about)."""

    version: Version


class Cursor(NamedTuple):
    """A place in a listing: that of the last record of a page. Listings go on after it."""

    created_at: float
    task_id: str
    user_id: str

    @classmethod
    def of(cls, record: TaskRecord) -> Cursor:
        """Return the place of ``record``."""
        return cls(record.created_at, record.task_id, record.user_id)

    def encode(self) -> str:
        """Return the opaque text that callers pass around."""
        return base64.urlsafe_b64encode(orjson.dumps(list(self))).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """Return the cursor in ``text``. Raises ValueError if no listing ever gave it out."""
        try:
            created_at, task_id, user_id = orjson.loads(
                base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            )
            if not (type(created_at) in (float, int) and type(task_id) is type(user_id) is str):
                raise TypeError(text)
            return cls(float(created_at), task_id, user_id)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{text!r:.80} is not a cursor; pass the next_cursor of an earlier page, unchanged"
            ) from error


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """What a listing asks for. Filters are exact and apply before the page is cut.

    ``user_id=None`` asks for the whole account; ``limit=None`` for everything.
    """

    account_id: str
    user_id: str | None = None
    task_type: str | None = None
    status: str | None = None
    resource_id: str | None = None
    limit: int | None = 50
    before: Cursor | None = None

    def before_place(self, user_id: str) -> tuple[float, str] | None:
        """Return where a listing of ``user_id`` goes on: strictly before this (created_at, task_id)."""
        if self.before is None:
            return None
        created_at, task_id, last_user = self.before
        # Users come in descending order within one place, so smaller ones still have theirs to give.
        return (created_at, task_id + "\0") if user_id < last_user else (created_at, task_id)

    def matches(self, task_type: str, status: str, resource_id: str | None) -> bool:
        """Tell whether a record with these three passes the filters (owner and cursor apart)."""
        return (
            (self.task_type is None or self.task_type == task_type)
            and (self.status is None or self.status == status)
            and (self.resource_id is None or self.resource_id == resource_id)
        )


class Page(NamedTuple):
    """One page, newest first by (created_at, task_id).

    ``next_cursor`` is None on the last page. ``corrupt`` reports what was skipped: records that are there
    and cannot be read.
    """

    items: Sequence[Stored]
    next_cursor: Cursor | None
    corrupt: Sequence[CorruptRecord] = ()


class Finding(NamedTuple):
    """Something that a crash or a foreign hand left in a store.

    ``kind`` is one of ``entry_without_record``, ``record_without_entry``, ``half_made``, ``stale_key``,
    ``temporary_file``, ``corrupt_record``, ``silent_worker``, ``paused_type`` (the tracker's), or a backend's own
    word; ``where`` is a path or the like; ``message`` says what it means and what to do. ``fixed``: it is mended now.
    """

    kind: str
    where: str
    message: str
    fixed: bool = False


class Purged(NamedTuple):
    """What one batch of retention did. ``more`` says that another batch is worth asking for."""

    deleted: Sequence[TaskKey]
    failed: int
    more: bool


@dataclasses.dataclass(frozen=True, slots=True)
class StoreOptions:
    """What a backend's factory is given: ``factory(options) -> TaskStore``.

    A factory takes what it needs and raises SettingsError for what it needs and does not find. ``options``
    holds the settings that only this backend knows; the factory refuses names that it does not know.
    """

    root: str | None = None
    client: object | None = None
    """The embedding server's own file client, if it has one."""
    prefix: str = defaults.PREFIX
    durability: str = defaults.DURABILITY
    lock_timeout_seconds: float = defaults.LOCK_TIMEOUT_SECONDS
    lease_seconds: float | None = None
    """How long a lease lives after its last heartbeat. None: the backend's own default."""
    heartbeat_seconds: float | None = None
    """How often holders renew: at least three times per lease. None: a third of ``lease_seconds``."""
    clock: Clock = SYSTEM_CLOCK
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)
    dsn: str | None = dataclasses.field(default=None, repr=False)
    """The connection string of a database, which may hold a password."""
    migrate: bool = False
    """Bring the database's tables to what this version needs before they are used."""


class TaskStore(ABC):
    """Where records live. Five operations, and what upkeep needs."""

    capabilities: Capabilities
    """What this instance promises. The contract suite holds it to that, in both directions."""

    blocking: ClassVar[bool] = True
    """False if calls never wait for anything outside the process (then no thread is spent on them)."""

    # ---- the five ----------------------------------------------------------------------------------

    @abstractmethod
    def create(self, record: TaskRecord) -> Stored:
        """Store a new record.

        Never overwrites: raises TaskExists if the key is taken, also by bytes that are no record; InvalidTaskId
        for ids that are blank, no text, or that the store cannot keep (asked for, those are TaskNotFound). Raises
        InvalidTransition while ``delete_owner`` is under way for this owner. When it returns, every other
        user of a ``shared`` store finds the record.
        """

    @abstractmethod
    def create_if_no_active(self, record: TaskRecord) -> Stored | None:
        """Store a new record unless the owner has an active one of the same task_type and resource_id.

        Returns None in that case. With ``compare_and_set`` exact across all who use the store; without it
        among the threads of this process. A record that could be read once and now cannot counts as it was
        last read; one that never could counts as not active, since nobody can ever end it. A check that
        failed raises (StoreUnavailable); nothing is created then. Raises as ``create``.
        """

    @abstractmethod
    def update(self, record: TaskRecord, *, expected: Version | None) -> Stored:
        """Replace a record, whole.

        With ``expected`` the stored version must be that one, else VersionConflict and nothing is written.
        ``expected=None`` is last-write-wins, and all that a store without ``compare_and_set`` takes
        (CapabilityMissing otherwise). A LeaseStore claims, compares, writes and gives back in this one call,
        without counting an attempt; it raises LeaseHeld while a live process holds the task. Raises
        TaskNotFound if the record is gone: an update never
        re-creates. A crash at any instant leaves the old record or the new one.
        """

    @abstractmethod
    def get(self, key: TaskKey, *, known: Version | None = None) -> Stored | Unchanged:
        """Read a record, fresh from where it lives.

        With ``known`` the answer may be :class:`Unchanged`, if the stored record is that very version.
        Raises TaskNotFound (only when the store has looked and found nothing), CorruptRecord,
        StoreUnavailable.
        """

    @abstractmethod
    def list(self, query: Query) -> Page:
        """Return one page of an owner's records, or of an account's (``user_id=None``).

        Newest first by (created_at, task_id), ties between users by user_id; filters before the cut; after
        the cursor if there is one. Records created meanwhile may be missing, none is given twice. A corrupt
        record is skipped and reported. Raises StoreUnavailable rather than return less than there is.
        """

    @abstractmethod
    def delete(self, key: TaskKey, *, expected: Version | None = None) -> None:
        """Delete a record that has ended.

        Raises TaskNotFound if there is none, InvalidTransition if it is active, VersionConflict if
        ``expected`` is given and another version is stored. Never deletes a record that took the place of
        the one it looked at, where ``compare_and_set`` is promised.
        """

    # ---- questions that a store can answer without handing out records ------------------------------------

    @abstractmethod
    def has_active(
        self, account_id: str, user_id: str | None, task_type: str, resource_id: str | None
    ) -> bool:
        """Tell whether the owner (or anybody in the account) has such a task active.

        Sees every ``create`` that has returned. Unreadable records count as in ``create_if_no_active``.
        Raises StoreUnavailable rather than answer False without having looked.
        """

    def find_active(
        self, account_id: str, user_id: str, task_type: str, resource_id: str | None
    ) -> Stored | None:
        """Return the newest active record of this kind, for whoever was told that there is one; None if not.

        Raises as ``list``. Stores that can ask for it directly override this.
        """
        found = [
            stored
            for status in ACTIVE
            for stored in self.list(
                Query(account_id, user_id, task_type, status, resource_id, limit=None)
            ).items
            if stored.record.resource_id == resource_id
        ]
        return max(found, key=lambda stored: Cursor.of(stored.record), default=None)

    @abstractmethod
    def count(self, account_id: str, user_id: str | None) -> dict[str, dict[str, int]]:
        """Return how many records there are, as ``{task_type: {status: number}}``."""

    def owners(self) -> Iterator[tuple[str, str]]:
        """Iterate over (account_id, user_id) of everybody who has records, each once, in any order.

        Some may come along that have none; who comes or goes meanwhile may be missing. Raises StoreUnavailable rather
        than leave somebody out, but not before it has given those whom it could find; CapabilityMissing if this store
        cannot tell.
        """
        raise CapabilityMissing(
            f"{type(self).__name__} does not list its owners; ask for each one that you know"
        )

    # ---- upkeep --------------------------------------------------------------------------------------

    @abstractmethod
    def delete_owner(self, account_id: str, user_id: str) -> int:
        """Delete all records of an owner; return how many.

        Raises InvalidTransition with the ``task_ids`` that are active, having deleted nothing. From its
        check to its end no task can be created for the owner (exact where ``compare_and_set`` is promised; a
        ``create`` that is under way when it begins is refused, or its record survives); after a crash half-way
        that stays so until it is called again and ends.
        """

    @abstractmethod
    def purge(self, cutoffs: Mapping[TaskStatus, float], *, limit: int) -> Purged:
        """Delete expired records of all owners (see ``transitions.expired``), at most ``limit`` of them.

        Reaches what this process never saw. A failed delete is counted and does not stop the rest; it comes
        up again in the next pass. A store whose records outlive the process deletes nothing whose cut-off is
        earlier than the moment at which this library first opened it. Also removes what crashes left.
        """

    def examine(self, *, fix: bool = False) -> Sequence[Finding]:
        """Look for what crashes and foreign hands left behind; mend it with ``fix``.

        Looks at everything, so it takes as long as there are records. Never touches what a live process may
        still need. Raises CapabilityMissing if this store cannot look at itself, StoreUnavailable.
        """
        raise CapabilityMissing(f"{type(self).__name__} cannot examine itself; look at its place by hand")

    def watch(self, on_change: Callable[[TaskKey | None], None]) -> AbstractContextManager[None]:
        """Have ``on_change`` called, in a thread of the store's, for changes by anybody while the block runs.

        Changes are creations and new states; heartbeats and progress are none. A hint: one may be missing, or come
        twice. None in place of a key: anything may have changed, since the store has only begun to hear, or did not
        for a while. ``on_change`` must neither block nor raise. Returns at once, also while the store does not
        answer. Raises CapabilityMissing without ``watch``.
        """
        raise CapabilityMissing(
            f"{type(self).__name__} does not announce changes; poll with get(known=...), as TaskTracker.wait does"
        )

    def close(self) -> None:  # noqa: B027  # most stores hold nothing
        """Let go of everything held outside the process. Calls after it may raise. Twice is safe."""


# ---- ownership ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """The right to write a task's record, held by one holder. Two leases are never equal.

    ``lost`` is set when the store knows that the lease is gone, or its holder that it may be.
    """

    key: TaskKey
    created_at: float
    epoch: int
    token: str = dataclasses.field(repr=False)
    holder: str
    attempt_count: int = 0
    """Attempts counted so far, this one included if it counts."""
    lost: threading.Event = dataclasses.field(default_factory=Flag, repr=False)
    cancel_requested: threading.Event = dataclasses.field(default_factory=Flag, repr=False)

    @property
    def fence(self) -> tuple[int, int]:
        """What handlers compare: (created_at in microseconds, epoch). An id may be used again, this pair never is."""
        return round(self.created_at * 1_000_000), self.epoch


class Expired(NamedTuple):
    """A lease whose holder has stopped, as seen when it was looked at.

    ``evidence`` is the store's own: ``take_over`` uses it to lose if the holder has moved since.
    """

    record: TaskRecord
    holder: str | None
    heartbeat_age_seconds: float
    evidence: object


class Workload(NamedTuple):
    """What waits and what runs, over all accounts. Ages are seconds by the store's clock, 0 if there is none."""

    waiting: int
    running: int
    oldest_waiting_seconds: float
    oldest_running_seconds: float


class WorkerFact(NamedTuple):
    """What a worker says of itself, for others to read. It holds for ``life_seconds``, then it has to be said again.

    ``name`` is that of one instance. ``data`` is a JSON object: state, ready, slots, running, kinds, host, pid and
    the like. ``age_seconds`` is filled in by the store when the fact is read; what callers put there is ignored.
    """

    name: str
    data: Mapping[str, Any]
    life_seconds: float
    age_seconds: float = 0.0


FORGOTTEN_SECONDS: Final = 86_400.0
"""How long the fact of a worker that died is kept after its life has ended, for whoever looks for the reason."""

_MOST_LOOKED_AT: Final = 1000


class LeaseStore(TaskStore):
    """A store that adds ownership. It is the only way in which a handler's task is written.

    Safety never depends on clocks, only liveness does. The clock that judges expiry is the store's own:
    the file server's or the database's, never one host's against another's. Between the end of a lease and
    its take-over, writes of the old holder may succeed or raise; after the take-over they always raise.
    Writes under one lease are serialised within the process.

    The store itself writes ``record.attempt`` (and ``creation``, if it keeps one): what callers put there is
    replaced. The ``holder`` of a claim is a name for messages, never an identity. ``create`` takes records in
    any state: one that is active and not pending has no holder, and expires like a lease that is not renewed.
    A record that has ended is final here: ``update`` raises VersionConflict for an ``expected`` that is not the
    stored version, InvalidTransition otherwise.
    """

    lease_seconds: float
    """How long a lease lives after its last heartbeat; ``math.inf`` if leases never expire."""
    heartbeat_seconds: float
    """How often holders are to renew."""
    watch_seconds: float = 0.0
    """How long :meth:`expired` has to have seen a lease stand still before it names it."""
    ends_together: bool = False
    """Whether :meth:`end_several` writes several for the price of one, so that it is better to end more at once."""

    @abstractmethod
    def claim(
        self,
        key: TaskKey | None = None,
        *,
        holder: str,
        task_types: Sequence[tuple[str, int]] = (),
        max_running: Mapping[str, int] | None = None,
        count_attempt: bool = True,
    ) -> tuple[Lease, Stored] | None:
        """Take a pending task: ``key``, or else the next one of the given (task_type, handler_version).

        Next is: start time reached, type not paused, highest priority, then oldest, and never more of a type at
        once than ``max_running`` allows over all holders; of claims that come at once the later ones give back, and
        where there is room somebody gets it. Epoch + 1, new token, state ``running``, ``record.attempt`` set by the
        store; the attempt is counted now, so that a crash counts. Without ``count_attempt`` the claim is only for a
        write on somebody's behalf, and the state stays. Exactly one claimer wins. Returns None when nothing is
        to be claimed; for a ``key`` that is not pending raises LeaseHeld (a live holder, or a lease that
        expired and was not taken over yet), InvalidTransition (ended) or TaskNotFound.
        """

    def claim_several(
        self,
        most: int,
        *,
        holder: str,
        task_types: Sequence[tuple[str, int]],
        max_running: Mapping[str, int] | None = None,
    ) -> Sequence[tuple[Lease, Stored]]:
        """Take up to ``most`` next tasks in one step, each as ``claim`` does: all of them, or none if it raises.

        Fewer than ``most`` do not say that there are no more; none does. A store that gains nothing by it claims one.
        """
        claimed = (
            self.claim(holder=holder, task_types=task_types, max_running=max_running) if most > 0 else None
        )
        return [] if claimed is None else [claimed]

    def claimable(self, *, task_types: Sequence[tuple[str, int]], limit: int) -> Sequence[TaskKey]:
        """Return which tasks a ``claim`` of these kinds could take now, ``limit`` at most, the one that is next first.

        Start time reached, type not paused, held by nobody, in the order of claims; ``max_running`` is not looked at.
        Takes none of them. A hint: it may be out of date when it is returned, and no record has to be read for it. For
        whom to wake: a worker asks after each task of a type with a limit, so it should cost no more than a claim does,
        however much waits.

        Unless a store does it better, it looks among the 1,000 oldest of ``unclaimed``, and compares start times with
        this host's clock: that reads them all, and finds nothing behind them.
        """
        now, paused = SYSTEM_CLOCK.now(), frozenset(self.paused())
        waiting = (stored.record for stored in self.unclaimed(task_types=task_types, limit=_MOST_LOOKED_AT))
        found = (
            record
            for record in waiting
            if record.task_type not in paused and (record.not_before is None or record.not_before <= now)
        )
        return [record.key for record in heapq.nsmallest(limit, found, key=transitions.claim_order)]

    @abstractmethod
    def renew(self, lease: Lease) -> None:
        """Heartbeat. Also sets ``lease.cancel_requested`` if a cancel is waiting.

        Raises LeaseLost (and sets ``lease.lost``) if the lease is somebody else's. StoreUnavailable is not
        a loss.
        """

    @abstractmethod
    def commit(self, lease: Lease, record: TaskRecord) -> Stored:
        """Check the lease and write, in one atomic step.

        A stale holder's commit has no effect, ever, even if the holder was suspended between any two of its
        instructions. Refused without a look once ``lease.lost`` is set. Raises LeaseLost.
        """

    @abstractmethod
    def release(self, lease: Lease, record: TaskRecord) -> Stored:
        """Commit ``record`` (pending again) and give the task to whoever claims it next. Raises LeaseLost.

        A cancel that was requested meanwhile is honoured: the record ends ``cancelled`` then.
        """

    @abstractmethod
    def end(self, lease: Lease, record: TaskRecord) -> Stored:
        """Commit a terminal ``record`` and give up the lease. Raises LeaseLost."""

    def end_several(self, ends: Sequence[tuple[Lease, TaskRecord]]) -> Sequence[Stored | Exception | None]:
        """Do what ``end`` does with each, in one step where that is to be had; return what it would return, or raise.

        In the same order; raises nothing itself. Each stands for itself: none fails because another does, and none
        waits for somebody who is in the way of another one only. None for one that was not written, and about which
        ``end`` has to be asked. Of leases on different tasks; there may be no ends at all.
        """
        found: list[Stored | Exception | None] = []
        for lease, record in ends:
            try:
                found.append(self.end(lease, record))
            except Exception as error:  # noqa: BLE001  # of this one
                found.append(error)
        return found

    @abstractmethod
    def request_cancel(self, key: TaskKey) -> Stored:
        """Make the wish to cancel durable and return the record as it now stands.

        A pending task is cancelled at once; a running one becomes ``cancelling`` and its holder is told at
        its next heartbeat. Every check that begins after this has returned sees the wish, through take-over
        and release: ``get`` shows ``cancelling`` from then on (and does not answer Unchanged), lists may show
        it later. Raises TaskNotFound, InvalidTransition (ended otherwise).
        """

    @abstractmethod
    def expired(self, *, limit: int = 1000) -> Sequence[Expired]:
        """Return leases whose holder has stopped, judged by the store's own clock, longest silent first.

        A store that cannot trust what it sees at one moment (a network disk) first watches a lease for two
        heartbeat periods: ask again at least that often.
        """

    @abstractmethod
    def take_over(
        self, expired: Expired, *, holder: str, count_attempt: bool = True
    ) -> tuple[Lease, Stored] | None:
        """Claim an expired lease: epoch + 1, new token. Whoever only settles the task counts no attempt.

        The state stays (running, cancelling); a cancel that was requested is in ``lease.cancel_requested``. Returns
        None, harmlessly, if the holder renewed, released or ended, or somebody else was quicker.
        """

    @abstractmethod
    def recover(self, *, limit: int = 1000) -> int:
        """Settle what crashed creators, claimers and enders left half-made; return how much of it.

        Part of every reconciler pass. Costs nothing that grows with the number of records. Also removes facts of
        workers whose life ended more than ``FORGOTTEN_SECONDS`` ago; these are not counted.
        """

    @abstractmethod
    def unclaimed(
        self,
        *,
        task_types: Sequence[tuple[str, int]] | None = None,
        except_types: Sequence[tuple[str, int]] = (),
        handled: bool | None = None,
        older_than_seconds: float = 0.0,
        limit: int,
    ) -> Sequence[Stored]:
        """Return pending tasks of all accounts that nobody holds, oldest first, judged by the store's clock.

        ``handled``: True for those that wait for a handler, False for those of plain trackers.

        ``except_types``: tasks of these kinds are left out, also where ``task_types`` names them; a task of a plain
        tracker is of no kind. They take no place of the ``limit``, and a store does not read their records where it can
        tell without. Where it cannot, it may look at no more than 1,000 of those whose start time has not come.

        For what was never started, what is to be woken up again, and versions that nobody here knows.
        """

    def next_due_seconds(self, *, task_types: Sequence[tuple[str, int]]) -> float | None:
        """Return after how many seconds the next start time comes of a task of these kinds that waits for it.

        By the store's clock; None if none is known. Start times that have come count no more, whatever has become of
        their tasks. A hint, for whoever is about to sleep for long: it may be too early (the task was cancelled, or is
        of another kind, where a store does not tell them apart), and it is as late as the store claims. Costs no more
        than a claim that finds nothing, however much waits.
        """
        return None

    @abstractmethod
    def workload(self) -> Workload:
        """Return what waits and what runs."""

    def take_in(self, record: TaskRecord, *, expected: Version | None = None) -> Stored:
        """Store a record that comes from another store, where its claims were counted.

        As ``create`` without ``expected``, as ``update`` with it; but epoch, holder and count go on from those of
        ``record.attempt`` if these are beyond what is stored here (``transitions.first_attempt``, ``carried_on``). So
        no fence is given out twice. Raises as those; CapabilityMissing if this store cannot do it.
        """
        raise CapabilityMissing(
            f"{type(self).__name__} cannot go on counting claims of other stores; copy to another kind of store"
        )

    # ---- coordination of workers -----------------------------------------------------------------------

    @abstractmethod
    def pause(self, task_type: str) -> None:
        """Pause a task type: no ``claim`` without a key takes a task of it, by anybody, until ``unpause``.

        Holds from the moment this returns (a claim that is under way has its task by then, even if its record does not
        say so yet, or does not get it), and survives the process where the store is durable. What runs goes on;
        its renewals, commits, ends and releases are as ever, and so are ``claim`` of a key, ``take_over`` and
        cancelling. Any type may be named, also one that no task has yet. Twice is safe. Raises InvalidTaskId
        for what cannot be a task type, StoreUnavailable; then it may hold or not.
        """

    @abstractmethod
    def unpause(self, task_type: str) -> None:
        """Let tasks of this type be claimed again. Safe if it is not paused. Raises as ``pause``."""

    @abstractmethod
    def paused(self) -> Sequence[str]:
        """Return the paused task types, sorted. Raises StoreUnavailable."""

    @abstractmethod
    def publish(self, fact: WorkerFact) -> None:
        """Store what a worker says of itself, in the place of what it said last.

        Whoever reads meanwhile finds the one or the other, whole. It need not survive a power cut. Raises
        InvalidTaskId for a name that is blank or no text, ValueError for data that is no JSON object, or a life that
        is not a positive, finite number of seconds (see :func:`check_fact`).
        """

    @abstractmethod
    def withdraw(self, name: str) -> None:
        """Take a worker's fact away: it has ended as it was meant to. Safe if there is none."""

    @abstractmethod
    def facts(self) -> Sequence[WorkerFact]:
        """Return the facts whose life has not ended, judged by the store's own clock, sorted by name.

        One that cannot be read (a foreign hand) is left out; ``examine`` names it. ``examine`` also names facts whose
        life has ended and that were not withdrawn, as ``silent_worker``: that worker died, or cannot reach the store;
        with ``fix`` they are removed. Raises StoreUnavailable rather than return less than there is.
        """

    # ---- telling workers ---------------------------------------------------------------------------------

    def watch_queue(self, on_waiting: Callable[[], None]) -> AbstractContextManager[None]:
        """Have ``on_waiting`` called, in a thread of the store's, when there may be something new to claim.

        That is when a task for a handler was created pending or given back, also for later (whoever sleeps is to learn
        when that is), and once when the store has begun to hear, or hears again. A hint, and told as :meth:`watch`
        tells. Raises CapabilityMissing without ``watch``.
        """
        raise CapabilityMissing(f"{type(self).__name__} tells nobody of waiting tasks; look with claim()")

    def announce(self, keys: Sequence[TaskKey]) -> None:
        """Tell those who watch the queue that these tasks wait, which the store has not just been told itself.

        Raises CapabilityMissing without ``watch``, StoreUnavailable.
        """
        raise CapabilityMissing(
            f"{type(self).__name__} tells nobody of waiting tasks; wake workers another way"
        )


class EffectsPlace(NamedTuple):
    """Where an attempt may put files: the directory, and what ``record.effects_dir`` is to say of it."""

    path: str
    name: str


@runtime_checkable
class HasEffects(Protocol):
    """What a :class:`LeaseStore` offers as well if attempts can have directories of their own there.

    A directory is its attempt's alone until a record that has ended names it; what no record names is removed by
    ``recover`` once its attempt cannot hold the lease any more. It goes when its record is deleted.
    """

    def effects(self, lease: Lease) -> EffectsPlace | None:
        """Make the directory of the attempt under ``lease`` and return where it is; None if there can be none.

        The same each time. Raises LeaseLost, StoreUnavailable.
        """

    def effects_path(self, record: TaskRecord) -> str | None:
        """Return the directory that a completed record names; None for one that names none, or has not completed.

        Raises CorruptRecord for a name that this attempt's directory never had: nobody is led elsewhere by a record.
        """


# ---- transactions ------------------------------------------------------------------------------------


class StoreTransaction(Protocol):
    """A transaction of the store's database that began under a lease: others' rows and the record's write in one.

    Whoever works on the task writes rows through ``connection``. Then ``revoke``, then ``write`` or ``look``, which
    both look at the lease and keep it as it is until the transaction ends, then ``commit``. ``roll_back`` at any time.
    Blocks, and is used by one thread at a time, but for ``roll_back``.
    """

    connection: Any
    """The driver's own connection, for whoever writes rows. Refuses to end the transaction."""

    def revoke(self) -> None:
        """Refuse the users of ``connection`` from now on; blocks nobody. Raises RuntimeError if a call is under way."""

    def look(self) -> bool:
        """Look at the lease; return whether a cancel is waiting. Raises LeaseLost, StoreUnavailable."""

    def write(self, how: Literal["commit", "release", "end"], record: TaskRecord) -> Stored:
        """Write under the lease as :class:`LeaseStore` does, to be seen once it is committed. Raises as that does.

        Raises RuntimeError if the users have broken the transaction: a statement failed, or it was ended.
        """

    def commit(self) -> None:
        """Make everything last. Raises StoreUnavailable if it is not known whether it does, see ``is_committed``.

        What the driver raises otherwise is passed on: everything is undone then.
        """

    def is_committed(self) -> bool:
        """Find out whether everything lasts, after ``commit`` did not say. Raises StoreUnavailable: ask again."""

    def roll_back(self) -> None:
        """Undo everything, whoever uses the connection. After ``commit``, or twice, nothing happens. Raises nothing."""


class Joined(Protocol):
    """Creations in a transaction of the caller's: what it has created is there once the caller has committed."""

    def create(self, record: TaskRecord) -> Stored:
        """As :meth:`TaskStore.create`."""

    def create_if_no_active(self, record: TaskRecord) -> Stored | None:
        """As :meth:`TaskStore.create_if_no_active`; waits for transactions of others that create one like it."""

    def find_active(
        self, account_id: str, user_id: str, task_type: str, resource_id: str | None
    ) -> Stored | None:
        """As :meth:`TaskStore.find_active`."""


class OnLoop(NamedTuple):
    """A connection of a driver's that is used on one event loop only, and that loop."""

    connection: object
    loop: asyncio.AbstractEventLoop
    is_over: threading.Event
    """Set, on that loop, once the caller goes on: the connection is the caller's again, whatever became of the call."""


@runtime_checkable
class HasTransactions(Protocol):
    """What a :class:`LeaseStore` offers as well if its records live in a database beside other tables."""

    def begin(self, lease: Lease, *, for_loop: bool) -> StoreTransaction:
        """Begin a transaction that is to end with a look at ``lease``; its connection is used on an event loop or not.

        Raises LeaseLost if that is known without a look, StoreUnavailable.
        """

    def joined(self, connection: object) -> Joined:
        """Return what creates records on the caller's ``connection``; an :class:`OnLoop` is called from other threads.

        Raises TypeError for what is no connection of the driver's, ValueError for one that is closed or has an
        encoding that does not hold every text.
        """


def check_fact(fact: WorkerFact) -> bytes:
    """Return the ``data`` of a fact as JSON. Raises ValueError for what no store is to keep."""
    codec.check_id(fact.name, "a worker's name")
    if not isinstance(fact.data, Mapping):
        raise ValueError(f"a worker's fact holds {fact.data!r:.80}; give an object")
    if not _is_number(fact.life_seconds) or not 0 < fact.life_seconds < math.inf:
        raise ValueError(f"life_seconds is {fact.life_seconds!r}; give a finite number of seconds above 0")
    return codec.encode_value(dict(fact.data), "a worker's fact")


def silent_worker(fact: WorkerFact, where: str, *, fixed: bool) -> Finding:
    """Return what ``examine`` says of a fact whose life has ended and that was not withdrawn."""
    return Finding(
        "silent_worker",
        where,
        f"worker {fact.name} was last heard of {fact.age_seconds:.0f} s ago and did not end as it should: it was "
        "killed, or cannot reach the store; look at its process, and start another one. Other workers settle its tasks",
        fixed,
    )


SHORTEST_LEASE_SECONDS: Final = 0.01
"""A few ticks of a file system's time stamps; nothing can be renewed more often."""


def lease_terms(lease_seconds: float, heartbeat_seconds: float | None) -> tuple[float, float]:
    """Return both terms, the second one by default a part of the first. Raises SettingsError if they do not fit."""
    if not _is_number(lease_seconds) or not lease_seconds >= SHORTEST_LEASE_SECONDS:
        raise SettingsError(
            f"lease_seconds is {lease_seconds!r}; give a number of seconds, at least {SHORTEST_LEASE_SECONDS}"
        )
    if heartbeat_seconds is None:
        return lease_seconds, lease_seconds / defaults.HEARTBEATS_PER_LEASE
    if not _is_number(heartbeat_seconds) or not heartbeat_seconds > 0:
        raise SettingsError(f"heartbeat_seconds is {heartbeat_seconds!r}; give a positive number of seconds")
    if heartbeat_seconds * defaults.HEARTBEATS_PER_LEASE > lease_seconds * (
        1 + 1e-9
    ):  # a third may be rounded up
        raise SettingsError(
            f"heartbeat_seconds is {heartbeat_seconds:g} and lease_seconds {lease_seconds:g}; a lease needs at "
            f"least {defaults.HEARTBEATS_PER_LEASE} heartbeats, so that one that comes late does not lose it"
        )
    return lease_seconds, heartbeat_seconds


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
