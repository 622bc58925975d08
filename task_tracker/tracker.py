"""TaskTracker: what servers embed.

Owns the meaning of the calls: what is checked, cleaned and encoded before a record changes. Refuses to know
where records live (:mod:`task_tracker.store`), which step is legal (:mod:`task_tracker.transitions`) and how
the cache is kept true (:mod:`task_tracker.access`).
"""

# long: one method for each call of the public interface, most of it docstrings

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from task_tracker import endings, transitions
from task_tracker.access import RecordAccess, Step, check_owner
from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.codec import check_id, encode_value
from task_tracker.coordination import Coordination
from task_tracker.defaults import (
    MAX_CACHED,
    MAX_CHECKPOINT_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_RESULT_BYTES,
    START_WITHIN_SECONDS,
)
from task_tracker.endings import Ending
from task_tracker.errors import CapabilityMissing, InvalidTransition, LeaseHeld, TaskNotFound
from task_tracker.handlers import HandlerRegistry
from task_tracker.listing import TaskPage, in_order
from task_tracker.ownership import giving_back
from task_tracker.reconciler import Reconciled, Reconciler, check_start_within
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.redaction import clean_text, redact_text
from task_tracker.registry import open_store
from task_tracker.retention import SWEEP_SECONDS, Retention, RetentionSweep
from task_tracker.sizes import Sizes
from task_tracker.store import (
    Cursor,
    Finding,
    HasEffects,
    Lease,
    Query,
    StoreOptions,
    TaskStore,
    WorkerFact,
)
from task_tracker.submitting import RESUME_OF, RETRY_OF, Again, Order, Submission, Submitter, new_record
from task_tracker.waiting import Contending, Waiting
from task_tracker.wakeups import WakeUp, Waking, own_wake_up

__all__ = ["TaskTracker"]

_log = logging.getLogger("task_tracker")

_LAST_TRY_SECONDS: Final = 30.0
_GIVE_BACK_SECONDS: Final = 30.0


class TaskTracker:
    """Registers background work so that it can be polled: an in-process cache over a store.

    Synchronous and thread-safe; from coroutines use :class:`task_tracker.AsyncTaskTracker`.

    Calls that take ``account_id`` and ``user_id`` ask the store when the cache does not know; without them
    only the cache is asked. Another owner's task looks exactly like no task. Calls that change a task return
    it as it now stands and raise when they did not take effect: TaskNotFound, InvalidTransition (the first
    end of a task wins), StoreUnavailable, CorruptRecord. With ``strict=False`` the first two are logged
    instead, and None or the unchanged record is returned.

    On a store with leases :meth:`start` claims, and a thread renews what is claimed. Calls that change a task
    then also raise LeaseHeld (a live process holds it) and LeaseLost (this tracker held it and somebody else
    may now), with ``strict=False`` too: who lost a task must learn it. A task that nobody holds is changed as
    on any other store.

    A ``store`` that is handed in belongs to the tracker from then on: :meth:`close` closes it. ``holder``: the
    name that others read when they meet a task that this tracker holds; by itself host and process.
    ``start_within_seconds``: how long a task may stay pending before the reconciler fails it; None for ever.
    ``handlers``: what :meth:`submit` knows of the code that works on tasks. ``wake_up``: how workers learn that
    something was submitted; None means the store's own way if it has one, and otherwise leaves it to them to look.
    ``max_payload_bytes``, ``max_checkpoint_bytes`` and ``max_result_bytes``: what submitted tasks and their handlers
    may store, as JSON.
    """

    def __init__(
        self,
        store: TaskStore | None = None,
        *,
        strict: bool = True,
        retention: Retention | None = Retention(),  # noqa: B008  # frozen
        sweep_seconds: float = SWEEP_SECONDS,
        max_cached: int = MAX_CACHED,
        holder: str | None = None,
        start_within_seconds: float | None = START_WITHIN_SECONDS,
        handlers: HandlerRegistry | None = None,
        wake_up: WakeUp | None = None,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        max_checkpoint_bytes: int = MAX_CHECKPOINT_BYTES,
        max_result_bytes: int = MAX_RESULT_BYTES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.sizes = Sizes(
            max_payload_bytes=max_payload_bytes,
            max_checkpoint_bytes=max_checkpoint_bytes,
            max_result_bytes=max_result_bytes,
        )
        """For the layers above: how large what a task carries may be."""
        start_within_seconds = check_start_within(start_within_seconds)
        self.access = RecordAccess(
            store if store is not None else open_store("memory", StoreOptions(clock=clock)),
            clock,
            max_cached=max_cached,
            holder=None if holder is None else check_id(holder, "holder"),
        )
        """For the layers above: how records are reached."""
        self.clock = clock
        self._strict = strict
        self._is_closed = False
        self._sweep = RetentionSweep(
            self.access.store,
            self.access.cache,
            retention if retention is not None else Retention(None, None, None),
            clock,
            sweep_seconds=sweep_seconds,
        )
        access = self.access
        self.handlers = handlers if handlers is not None else HandlerRegistry()
        """The handlers that this tracker knows."""
        self.handlers.freeze()
        self.waking = Waking(
            wake_up if wake_up is not None else own_wake_up(self.access.leases, clock), clock
        )
        """For the layers above: how workers are woken."""
        self._submitter = Submitter(access, clock, self.handlers, self.waking, self.sizes)
        self._coordination = Coordination(access.store, access.leases, self.waking)
        self._reconciler = (
            None
            if access.leases is None or access.ownership is None
            else Reconciler(
                access, access.leases, access.ownership, clock, start_within_seconds=start_within_seconds
            )
        )

    @property
    def store(self) -> TaskStore:
        """The store below."""
        return self.access.store

    @property
    def wake_up_failures(self) -> int:
        """How often workers could not be woken. Their tasks are stored, and are found by looking."""
        return self.waking.failures

    # ---- creating ------------------------------------------------------------------------------------

    def create(
        self,
        task_type: str,
        resource_id: str | None = None,
        *,
        account_id: str,
        user_id: str,
        task_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        payload: object = None,
        private: object = None,
        connection: object = None,
    ) -> TaskRecord:
        """Register a pending task and return it.

        ``task_id`` defaults to a UUIDv7. ``meta`` and ``payload`` are shown to whoever may see the task,
        ``private`` never is, and is wiped when the task ends; all three must be JSON. ``connection`` is as for
        :meth:`submit`. Raises ValueError for what cannot be stored (InvalidTaskId for an id), TaskExists for an id
        that is taken.
        """
        record = new_record(
            self.clock,
            task_type,
            resource_id,
            account_id,
            user_id,
            task_id=task_id,
            meta=meta,
            private=private,
            payload_json=None if payload is None else encode_value(payload, "payload"),
        )
        created = self.access.add(
            record, joined=None if connection is None else self.access.joined(connection)
        )
        assert created is not None
        return created

    def create_if_no_running(
        self, task_type: str, resource_id: str | None, *, account_id: str, user_id: str
    ) -> TaskRecord | None:
        """Register a pending task unless the owner has an active one of this type and resource; None then.

        Raises StoreUnavailable, creating nothing, if that cannot be found out.
        """
        record = new_record(self.clock, task_type, resource_id, account_id, user_id)
        return self.access.add(record, unless_active=True)

    # ---- submitting ----------------------------------------------------------------------------------

    def submit(
        self,
        task_type: str,
        payload: object = None,
        *,
        account_id: str,
        user_id: str,
        resource_id: str | None = None,
        version: int | None = None,
        dedupe: bool = False,
        not_before: float | None = None,
        priority: int | None = None,
        timeout_seconds: float | None = None,
        max_attempts: int | None = None,
        task_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        private: object = None,
        unregistered: bool = False,
        connection: object = None,
    ) -> Submission:
        """Store a pending task for a worker, then wake one; return the task and whether it is a new one.

        ``payload`` is what the registered handler takes: a value of its model, or what that is made of.
        ``version`` is the handler's, by itself the highest that is registered; ``unregistered=True`` takes one
        that only workers elsewhere have. ``dedupe=True`` creates nothing while the owner has an active task of
        this type and resource, however it was made, and returns that one. ``not_before`` is a Unix time; a
        higher ``priority`` goes first. ``timeout_seconds`` may only shorten the handler's. The rest is as for
        :meth:`create`.

        ``connection`` is one of the store's driver (for PostgreSQL a ``psycopg.Connection`` to the same database): the
        task is created in the transaction that the caller has on it, and is there if and when the caller commits.
        Nobody is woken: call :meth:`wake` after the commit.

        When it returns the task is stored. A wake-up that fails, or takes longer than five seconds, is counted
        (:attr:`wake_up_failures`) and not raised. Raises InvalidPayload, ValueError, TaskExists, StoreUnavailable,
        SettingsError for a handler that is not registered, CapabilityMissing on a store without leases, or with
        ``connection`` on one without transactions; TypeError, ValueError for a connection that will not do.
        """
        return self._submitter.submit(
            Order(
                task_type=task_type,
                payload=payload,
                account_id=account_id,
                user_id=user_id,
                resource_id=resource_id,
                version=version,
                dedupe=dedupe,
                not_before=not_before,
                priority=priority,
                timeout_seconds=timeout_seconds,
                max_attempts=max_attempts,
                task_id=task_id,
                meta=meta,
                private=private,
                unregistered=unregistered,
            ),
            connection,
        )

    def wake(self, submission: Submission) -> bool:
        """Wake a worker for what was submitted with a ``connection``, now that it is committed.

        False if that failed, which is counted (:attr:`wake_up_failures`), or there is nothing to wake anybody for.
        Without this call workers find the task when they look next.
        """
        return self._submitter.wake(submission)

    def retry(
        self,
        task_id: str,
        account_id: str | None = None,
        user_id: str | None = None,
        *,
        payload: object = None,
        private: object = None,
        version: int | None = None,
        not_before: float | None = None,
        unregistered: bool = False,
    ) -> Submission:
        """Submit the work of an ended task once more, from its beginning; ``meta.retry_of`` names that task.

        Type, version, resource, payload, priority and limits are the old task's; if that was submitted with
        ``dedupe``, so is this one. ``private`` was wiped when it ended: pass it anew. ``payload`` replaces the
        old one, and must if credentials were masked in that.

        Raises InvalidTransition if the task is active or was not submitted, TaskNotFound, and as :meth:`submit`;
        with ``strict=False`` too.
        """
        wish = Again(
            payload=payload,
            private=private,
            version=version,
            not_before=not_before,
            unregistered=unregistered,
        )
        return self._submitter.again(
            self.access.resolve_to_write(task_id, account_id, user_id), RETRY_OF, wish
        )

    def resume(
        self,
        task_id: str,
        account_id: str | None = None,
        user_id: str | None = None,
        *,
        payload: object = None,
        private: object = None,
        version: int | None = None,
        not_before: float | None = None,
        unregistered: bool = False,
    ) -> Submission:
        """Submit the work of an ended task once more, from its last checkpoint; ``meta.resume_of`` names that task.

        While a task that resumed it is active that one is returned, whether it was submitted with ``dedupe`` or not. In
        all else as :meth:`retry`; raises InvalidTransition too if one has resumed it and ended: resume that.
        """
        wish = Again(
            payload=payload,
            private=private,
            version=version,
            not_before=not_before,
            unregistered=unregistered,
        )
        return self._submitter.again(
            self.access.resolve_to_write(task_id, account_id, user_id), RESUME_OF, wish
        )

    # ---- working -------------------------------------------------------------------------------------

    def start(
        self,
        task_id: str,
        account_id: str | None = None,
        user_id: str | None = None,
        *,
        stage: str | None = None,
        wait_seconds: float = 0,
    ) -> TaskRecord | None:
        """Mark a pending task as running; one that this tracker has started stays so (and takes ``stage``).

        On a store with leases this claims it: nobody else can change it until it ends, is released, or its
        process stops. Raises LeaseHeld, which names the holder, if somebody else has it and goes on to have it
        for ``wait_seconds``.
        """
        contending = Contending(self.clock, wait_seconds)
        turn = threading.Condition()  # nobody notifies it: a holder elsewhere lets go unheard
        while True:
            try:
                return self._start(task_id, account_id, user_id, stage)
            except LeaseHeld as held:
                pause = contending.pause(held)
            with turn:
                self.clock.wait(turn, pause)

    def _start(
        self, task_id: str, account_id: str | None, user_id: str | None, stage: str | None
    ) -> TaskRecord | None:
        text, now = _stage(stage), self.clock.now()
        return self._change(
            "start",
            task_id,
            account_id,
            user_id,
            lambda record: transitions.started(record, now, stage=text),
            self.access.start,
        )

    def release(
        self, task_id: str, account_id: str | None = None, user_id: str | None = None
    ) -> TaskRecord | None:
        """Give a running task back as pending: any instance may :meth:`start` it then, and goes on with it.

        One that is to be cancelled ends as cancelled instead. A pending one stays as it is. Workers are woken for one
        that was submitted. Raises LeaseHeld if somebody else holds it, LeaseLost.
        """
        record = self._change("release", task_id, account_id, user_id, giving_back(self.clock.now()))
        if record is not None:
            self._submitter.given_back(record)
        return record

    def lease_of(
        self, task_id: str, account_id: str | None = None, user_id: str | None = None
    ) -> Lease | None:
        """Return the lease under which this tracker works on a task; None if there is none. Asks no store.

        ``lost`` is set once somebody else may have the task, ``cancel_requested`` when somebody wants it
        cancelled; both can be waited for. ``fence`` is a pair that grows with every claim, for what the work
        writes elsewhere. A lost lease is returned until the task is started here again.
        """
        key = self.access.resolve(task_id, account_id, user_id)
        ownership = self.access.ownership
        return None if key is None or ownership is None else ownership.holdings.lease(key)

    def update(
        self,
        task_id: str,
        account_id: str | None = None,
        user_id: str | None = None,
        *,
        stage: str | None = None,
        progress: float | None = None,
        message: str | None = None,
    ) -> TaskRecord | None:
        """Note stage, progress (0 to 100) and message of an active task; what is None stays as it is.

        Credentials in ``message`` are masked. Raises ValueError for progress that is no such number.
        """
        text, number, now = _stage(stage), _progress(progress), self.clock.now()
        note = None if message is None else redact_text(_text(message, "message"))
        return self._change(
            "update",
            task_id,
            account_id,
            user_id,
            lambda record: transitions.progressed(record, now, stage=text, progress=number, message=note),
        )

    def update_stage(
        self, task_id: str, stage: str, account_id: str | None = None, user_id: str | None = None
    ) -> TaskRecord | None:
        """Note the stage of an active task, also before it was started."""
        return self.update(task_id, account_id, user_id, stage=stage)

    def complete(
        self,
        task_id: str,
        result: object = None,
        account_id: str | None = None,
        user_id: str | None = None,
        *,
        resource_id: str | None = None,
    ) -> TaskRecord | None:
        """End an active task (also a pending one) as completed, with ``result`` as JSON.

        A ``result`` that is not JSON ends the task ``failed`` with ``error_code="unserializable_result"``:
        look at the record that is returned. Raises StoreUnavailable if the store cannot be reached; the
        outcome is then kept and tried again in the background.
        """
        ending = endings.completion(task_id, result, self.clock.now(), resource_id=resource_id)
        return self._end(ending, task_id, account_id, user_id)

    def fail(
        self,
        task_id: str,
        error: object,
        account_id: str | None = None,
        user_id: str | None = None,
        *,
        error_code: str | None = None,
    ) -> TaskRecord | None:
        """End an active task as failed. ``error`` (text or an exception) is redacted and cut to 500 characters.

        A missing one (None, "") is stored as "failed without a message". Raises StoreUnavailable as
        :meth:`complete` does.
        """
        ending = endings.failure(error, self.clock.now(), error_code=error_code)
        return self._end(ending, task_id, account_id, user_id)

    # ---- cancelling ----------------------------------------------------------------------------------

    def cancel(
        self, task_id: str, account_id: str | None = None, user_id: str | None = None
    ) -> TaskRecord | None:
        """Cancel a pending task; ask the code that works on a running one to stop (``cancelling``).

        Works on any instance, whoever holds the task; its holder is told by its next heartbeat.
        """
        now = self.clock.now()
        return self._change(
            "cancel",
            task_id,
            account_id,
            user_id,
            lambda record: transitions.request_cancel(record, now),
            self.access.cancel,
        )

    def is_cancellation_requested(
        self, task_id: str, account_id: str | None = None, user_id: str | None = None
    ) -> bool:
        """Tell whether the task is cancelling or cancelled. For the code that works on it, to ask often.

        Raises TaskNotFound for a task that is gone (False with ``strict=False``), LeaseLost for one that this
        tracker held and lost: either way, stop working on it.
        """
        key = self.access.resolve(task_id, account_id, user_id)
        if key is not None and self.access.ownership is not None:
            holding = self.access.ownership.holdings.check(key)
            if holding is not None and holding.lease.cancel_requested.is_set():
                return True
        stored = None if key is None else self.access.load(key)
        if stored is None:
            if self._strict:
                raise TaskNotFound(
                    f"no task {task_id} is known; pass account_id and user_id, or stop working on it"
                )
            return False
        return transitions.cancellation_requested(stored.record)

    def mark_cancelled(
        self, task_id: str, account_id: str | None = None, user_id: str | None = None
    ) -> TaskRecord | None:
        """End an active task as cancelled: the work has really stopped. Raises as :meth:`complete`."""
        return self._end(endings.cancellation(self.clock.now()), task_id, account_id, user_id)

    # ---- asking --------------------------------------------------------------------------------------

    def get(
        self, task_id: str, account_id: str | None = None, user_id: str | None = None
    ) -> TaskRecord | None:
        """Return the task as it stands now, None if there is none (for this owner).

        Raises AmbiguousTask, CorruptRecord, StoreUnavailable.
        """
        key = self.access.resolve(task_id, account_id, user_id)
        stored = None if key is None else self.access.load(key)
        return None if stored is None else stored.record

    def list_tasks(
        self,
        task_type: str | None = None,
        status: str | None = None,
        resource_id: str | None = None,
        limit: int | None = 50,
        account_id: str | None = None,
        user_id: str | None = None,
        *,
        before: str | None = None,
    ) -> TaskPage:
        """Return tasks, newest first by (created_at, task_id), at most ``limit`` (None: all) that pass the filters.

        With ``account_id`` the store is asked: for that user, or for the whole account without ``user_id``.
        Without it the list shows what this process has in its cache, of all owners. ``before`` takes the
        ``next_cursor`` of an earlier page. Raises ValueError for a status or a limit that cannot be meant.
        """
        if status is not None and not TaskStatus.parse(status).is_known:
            raise ValueError(f"unknown status {status!r}; known are {', '.join(TaskStatus)}")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ValueError(f"limit must be a whole number of 1 or more, or None for all; not {limit!r:.80}")
        cursor = None if before is None else Cursor.decode(before)
        if account_id is None:
            check_owner(user_id)
            unreadable = self.access.confirm_active()
            query = Query("", user_id, task_type, status, resource_id, limit, cursor)
            page = self.access.cache.newest(query, without=unreadable)
            page.corrupt = tuple(
                corrupt for key, corrupt in unreadable.items() if user_id in (None, key.user_id)
            )
        else:
            check_owner(account_id, user_id)
            page = self.access.load_page(
                Query(account_id, user_id, task_type, status, resource_id, limit, cursor)
            )
        for corrupt in page.corrupt:
            _log.warning("a listing skipped a record: %s", corrupt, extra={"event": "corrupt_record"})
        return page

    def has_running(
        self,
        task_type: str,
        resource_id: str | None,
        account_id: str | None = None,
        user_id: str | None = None,
    ) -> bool:
        """Tell whether there is an active task (pending, running, cancelling) of this type and resource.

        With ``account_id`` the store is asked, for that user or for anybody in the account; without it the
        cache, for all owners. Raises StoreUnavailable rather than say False without having looked.
        """
        check_owner(account_id, user_id)
        if account_id is not None:
            return self.access.store.has_active(account_id, user_id, task_type, resource_id)
        self.access.confirm_active()
        return any(
            (record.task_type, record.resource_id) == (task_type, resource_id)
            and user_id in (None, record.user_id)
            and transitions.blocks_duplicates(record.status, record.completed_at)
            for record in self.access.cache.records()
        )

    def wait(
        self,
        task_id: str,
        account_id: str | None = None,
        user_id: str | None = None,
        timeout: float | None = None,
        poll_interval: float | None = None,
    ) -> TaskRecord:
        """Return the task once it has ended. ``timeout`` and ``poll_interval`` are seconds.

        Ends of this process's own tasks are noticed at once, those of others when the store tells (``postgres``) or
        by polling (by itself every 0.02 s at first, 0.5 s later). Raises TaskNotFound at once for an unknown task,
        TimeoutError, and StoreUnavailable if the store has not answered for a minute.
        """
        key = self.access.resolve_to_write(task_id, account_id, user_id)
        waiting = Waiting(task_id, self.clock, timeout, poll_interval)
        changed = threading.Condition()
        written = False

        def wake() -> None:
            nonlocal written
            with changed:
                written = True
                changed.notify_all()

        with self.access.awaited(key, wake):
            while True:
                written = False
                ended = waiting.look(lambda: self.get(key.task_id, key.account_id, key.user_id))
                if ended is not None:
                    return ended
                pause = waiting.pause()
                with changed:
                    if not written:
                        self.clock.wait(changed, pause)

    def effects_path(
        self, task_id: str, account_id: str | None = None, user_id: str | None = None
    ) -> str | None:
        """Return the directory with the files that the task's handler made in ``ctx.workdir``; None if there are none.

        An absolute path on this host, of what ``effects_dir`` names. There are none unless the task has completed.
        Whether the directory is still there is not looked at: it goes when the task is deleted. Raises TaskNotFound,
        CapabilityMissing on a store that keeps no files of tasks, CorruptRecord for a record that names anything but
        the directory of the attempt that completed it, StoreUnavailable.
        """
        key = self.access.resolve_to_write(task_id, account_id, user_id)
        stored = self.access.load(key)
        if stored is None:
            raise TaskNotFound(
                f"no task {task_id}: unknown, deleted or somebody else's; check the id and the owner"
            )
        if not isinstance(self.store, HasEffects):
            raise CapabilityMissing(
                f"{type(self.store).__name__} keeps no files of tasks; use the lease backend, or have handlers put "
                "them elsewhere"
            )
        return self.store.effects_path(stored.record)

    def count(self) -> int:
        """Return the number of records in this process's cache."""
        return len(self.access.cache)

    def snapshot_counts_by_type(self) -> dict[str, dict[str, int]]:
        """Return ``{task_type: {status: number}}`` of this process's cache, as it was last known."""
        return self.access.cache.counts()

    def stats(self, account_id: str, user_id: str | None = None) -> dict[str, dict[str, int]]:
        """Return ``{task_type: {status: number}}`` of an owner, or of a whole account, from the store.

        Types by name, states as they follow each other, so that equal numbers are an equal answer, byte by byte.
        """
        check_owner(account_id or "", user_id)
        return in_order(self.access.store.count(account_id, user_id))

    # ---- deleting ------------------------------------------------------------------------------------

    def delete(self, task_id: str, account_id: str | None = None, user_id: str | None = None) -> bool:
        """Delete a task that has ended; False if there is none. Raises InvalidTransition if it is active."""
        key = self.access.resolve(task_id, account_id, user_id)
        return key is not None and self.access.delete(key)

    def delete_user_tasks(self, account_id: str, user_id: str) -> int:
        """Delete all tasks of a user; return how many.

        Raises InvalidTransition, whose ``task_ids`` names them, while tasks are active; nothing is deleted
        then. No task can be created for the user until it is done; interrupted, it is called again.
        """
        check_owner(account_id or "", user_id or "")
        return self.access.delete_owner(account_id, user_id)

    def purge(self) -> int:
        """Run one retention sweep now; return how many records it deleted. Raises StoreUnavailable."""
        return self._sweep.sweep()

    # ---- life ----------------------------------------------------------------------------------------

    def start_cleanup_loop(self) -> None:
        """Start the thread that deletes what retention lets go, every five minutes. Twice is safe.

        Raises RuntimeError once this tracker is closed.
        """
        self._check_open()
        self._sweep.start(self.clock.jitter(self._sweep.sweep_seconds))

    def stop_cleanup_loop(self) -> None:
        """Stop that thread. Safe when it does not run."""
        self._sweep.stop()

    def reconcile(self, *, wait: bool = False) -> Reconciled:
        """Settle now, once, what nobody works on any more; return how many tasks.

        A store on files watches a lease for two heartbeats before it believes that its holder has stopped: a
        process that was just started settles nothing in its first pass. ``wait=True`` waits for that long.

        Tasks whose holder has stopped fail with ``error_code="holder_lost"`` (or end as cancelled, if that was
        wanted), tasks that stayed pending for more than ``start_within_seconds`` with ``"never_started"``.
        Raises StoreUnavailable, CapabilityMissing on a store without leases.
        """
        return self._reconciling().reconcile(wait=wait)

    def start_reconciler(self) -> None:
        """Start the thread that does that at every heartbeat. Twice is safe.

        Raises as :meth:`reconcile`, and RuntimeError once this tracker is closed.
        """
        self._check_open()
        self._reconciling().start()

    def stop_reconciler(self) -> None:
        """Stop that thread. Safe when it does not run."""
        if self._reconciler is not None:
            self._reconciler.stop()

    # ---- workers -------------------------------------------------------------------------------------

    def pause_type(self, task_type: str) -> None:
        """Have no worker of this store claim tasks of this type any more, until :meth:`resume_type`.

        From the moment this returns, for workers in all processes, and for those that are started later. What runs
        goes on; tasks can be submitted, and wait. A type that nobody knows yet can be paused too. Twice is safe.
        Raises InvalidTaskId for what cannot be a type, CapabilityMissing on a store without leases, StoreUnavailable.
        """
        self._coordination.pause(task_type)

    def resume_type(self, task_type: str) -> None:
        """Let workers claim tasks of this type again. Safe if it is not paused. Raises as :meth:`pause_type`."""
        self._coordination.resume(task_type)

    def paused_types(self) -> Sequence[str]:
        """Return the types that are paused, sorted. Raises CapabilityMissing, StoreUnavailable."""
        return self._coordination.paused()

    def workers(self) -> Sequence[WorkerFact]:
        """Return what the workers of this store say of themselves, as far as they were heard of lately; by name.

        ``data`` holds state, readiness, slots, kinds, host, pid and more; ``age_seconds`` says how old it is. A worker
        that has stopped, or cannot reach the store, is not among them. Raises CapabilityMissing, StoreUnavailable.
        """
        return self._coordination.workers()

    # ---- the end -------------------------------------------------------------------------------------

    def doctor(self, *, fix: bool = False) -> Sequence[Finding]:
        """Return what crashes and foreign hands have left in the store; mend it with ``fix``.

        On a store with leases that includes workers that fell silent without having been stopped
        (``silent_worker``), and types that are paused (``paused_type``), which stay so. Looks at every record. Raises
        StoreUnavailable, CapabilityMissing if this store cannot look at itself.
        """
        return [*self.access.store.examine(fix=fix), *self._coordination.findings()]

    def close(self) -> None:
        """Stop all threads, store what still waits, give back what is held, close the store.

        Tasks that this tracker started and that have not ended become pending, for another instance; those that
        were to be cancelled end as cancelled. End them yourself before, if nobody is to go on with them. Closes
        the store also if it was handed in: it belongs to the tracker that it was given to. Twice is safe.

        From then on nothing can be started or claimed. Other calls still ask the store, as far as that can be asked, so
        that a thread that ends late can store how.
        """
        self._is_closed = True
        self.stop_cleanup_loop()
        self.stop_reconciler()
        if self.access.outcomes.stop():
            self.access.outcomes.flush(_LAST_TRY_SECONDS)
        lost = self.access.outcomes.task_ids()
        if lost:
            _log.error(
                "%d outcomes could not be stored and are lost with this process; their tasks stay as they are: %s",
                len(lost),
                ", ".join(lost[:10]) + (", ..." if len(lost) > 10 else ""),
                extra={"event": "outcomes_lost", "task_ids": lost},
            )
        if self.access.ownership is not None:
            self.access.ownership.close(_GIVE_BACK_SECONDS)
        self.waking.close()
        self.access.store.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this tracker is closed; build a new one")

    def _reconciling(self) -> Reconciler:
        if self._reconciler is None:
            raise CapabilityMissing(
                f"{type(self.store).__name__} has no leases, so nobody can tell whose holder has stopped; use the "
                "lease backend"
            )
        return self._reconciler

    def _change(
        self,
        call: str,
        task_id: str,
        account_id: str | None,
        user_id: str | None,
        step: Step,
        apply: Callable[[TaskKey, Step], TaskRecord] | None = None,
    ) -> TaskRecord | None:
        # Steps are made with the time of the call: when it happened, however long it takes to be stored.
        try:
            key = self.access.resolve_to_write(task_id, account_id, user_id)
            return (self.access.change if apply is None else apply)(key, step)
        except (TaskNotFound, InvalidTransition) as error:
            if self._strict:
                raise
            _log.warning(
                "%s had no effect: %s", call, error, extra={"event": "call_ignored", "task_id": task_id}
            )
            return self.get(task_id, account_id, user_id)

    def _end(
        self, ending: Ending, task_id: str, account_id: str | None, user_id: str | None
    ) -> TaskRecord | None:
        return self._change(ending.call, task_id, account_id, user_id, ending.step, self.access.finish)

    def _keep(self, ending: Ending, key: TaskKey) -> bool:
        """Keep an ending for which there was no time; False if it was not taken (:meth:`PendingOutcomes.keep`)."""
        return self.access.keep(key, ending.step)

    def __enter__(self) -> Self:
        """Return the tracker; leaving the block closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def _text(value: str, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, not {type(value).__name__}")
    return clean_text(value)


def _stage(stage: str | None) -> str | None:
    return None if stage is None else _text(stage, "stage")


def _progress(progress: float | None) -> float | None:
    if progress is None:
        return None
    if isinstance(progress, bool) or not isinstance(progress, (int, float)) or not 0 <= progress <= 100:
        raise ValueError(f"progress must be a number from 0 to 100, not {progress!r}")
    return progress
