"""Submitting: from a wish for work to a record that a worker claims.

Owns what is checked and encoded before a task is stored, and that nobody is woken before it is. Refuses to run
anything. The rule of it: what is submitted is either stored or refused, and the caller learns which.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson

from task_tracker.access import RecordAccess, check_owner
from task_tracker.clock import Clock
from task_tracker.codec import check_id, check_text, encode_value
from task_tracker.errors import (
    CapabilityMissing,
    InvalidTransition,
    StoreUnavailable,
    TaskExists,
    TaskNotFound,
)
from task_tracker.handlers import Handler, HandlerRegistry, InvalidPayload, plain_payload
from task_tracker.order_checks import (
    LARGEST_NUMBER,
    check_attempts,
    check_flag,
    check_priority,
    check_start_time,
    check_timeout,
    refuse_unregistered,
)
from task_tracker.orders import Again, Order, Submission
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.redaction import holds_mask
from task_tracker.sizes import Sizes, check_resource_id
from task_tracker.store import Joined
from task_tracker.wakeups import Waking

__all__ = [
    "CHECKPOINT",
    "INTERRUPTED",
    "RESUME_OF",
    "RETRY_OF",
    "SUBMITTED_BY",
    "Again",
    "Order",
    "Submission",
    "Submitter",
    "new_record",
]

CHECKPOINT: Final = "_checkpoint"
"""Where in ``meta`` a task's last checkpoint is."""
INTERRUPTED: Final = "_interrupted"
"""Where in ``meta`` it says how many attempts were interrupted by their worker, and do not count."""
RETRY_OF: Final = "retry_of"
RESUME_OF: Final = "resume_of"
"""Where in ``meta`` the new task names the old one."""
SUBMITTED_BY: Final = "submitted_by"
"""Where in ``meta`` a task names the one whose handler submitted it."""
_OWN_NAMES: Final = (CHECKPOINT, INTERRUPTED, RETRY_OF, RESUME_OF, SUBMITTED_BY)
"""Names in ``meta`` that are the library's own."""

_TRIES: Final = 10


class Submitter:
    """Stores what is to be done, then wakes who does it. Thread-safe."""

    def __init__(
        self, access: RecordAccess, clock: Clock, handlers: HandlerRegistry, waking: Waking, sizes: Sizes
    ) -> None:
        self._access = access
        self._clock = clock
        self._handlers = handlers
        self._waking = waking
        self._sizes = sizes

    def submit(self, order: Order, connection: object = None) -> Submission:
        """Store a pending task for a worker and wake one; see :meth:`task_tracker.TaskTracker.submit`."""
        self._check_leases()
        joined = None if connection is None else self._access.joined(connection)
        dedupe = check_flag(order.dedupe, "dedupe")
        handler, version = self._chosen(order.task_type, order.version, unregistered=order.unregistered)
        payload = _encoded(order.payload, handler)
        record = new_record(
            self._clock,
            order.task_type,
            order.resource_id,
            order.account_id,
            order.user_id,
            task_id=order.task_id,
            meta=_meta_of(order),
            private=order.private,
            payload_json=self._sizes.check_payload(payload),
            handler_version=version,
            not_before=check_start_time(order.not_before),
            priority=check_priority(order.priority),
            timeout_seconds=check_timeout(order.timeout_seconds, handler),
            max_attempts=check_attempts(order.max_attempts, handler),
        )
        return self._store(record, dedupe=dedupe, joined=joined)

    def wake(self, submission: Submission) -> bool:
        """Wake a worker for what waits; False if there is nothing to wake one for, or that failed."""
        record = submission.record
        wake = self._waking.stored if submission.created else self._waking.waits
        return _waits_for_worker(record) and wake(record)

    def given_back(self, record: TaskRecord) -> bool:
        """Wake a worker for a task that was given back; False as for :meth:`wake`."""
        return _waits_for_worker(record) and self._waking.stored(record)

    def again(self, key: TaskKey, how: Literal["retry_of", "resume_of"], wish: Again) -> Submission:
        """Submit the work of an ended task once more, as a new task that names it in ``meta``."""
        self._check_leases()
        old = self._ended(key)
        handler, version = self._chosen(
            old.task_type,
            old.handler_version if wish.version is None else wish.version,
            unregistered=wish.unregistered,
        )
        record = new_record(
            self._clock,
            old.task_type,
            None,
            old.account_id,
            old.user_id,
            # A deduped one has its key; without one the id is what there can be only one of.
            task_id=_id_of_resumed(old) if how == RESUME_OF and old.dedupe_key is None else None,
            meta=_meta_of_next(old, how),
            private=wish.private,
        ).changed(
            resource_id=old.resource_id,
            payload_json=self._payload_again(old, wish, handler),
            handler_version=version,
            not_before=check_start_time(wish.not_before),
            priority=old.priority,
            timeout_seconds=old.timeout_seconds,
            max_attempts=old.max_attempts,
        )
        try:
            return self._store(record, dedupe=old.dedupe_key is not None)
        except TaskExists:
            return self._resumed_before(record.key, old)

    # ---- within --------------------------------------------------------------------------------------

    def _check_leases(self) -> None:
        if self._access.leases is None:
            raise CapabilityMissing(
                f"{type(self._access.store).__name__} has no leases, so no worker could own what is submitted; use "
                "the lease backend, or create() a task and work on it here"
            )

    def _chosen(
        self, task_type: str, version: int | None, *, unregistered: bool
    ) -> tuple[Handler | None, int]:
        """Return the handler that is to work, None for one that only others know, and its version."""
        check_id(task_type, "task_type")
        check_flag(unregistered, "unregistered")
        if version is not None and (
            isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= LARGEST_NUMBER
        ):
            raise ValueError(f"version must be a whole number of 0 or more, not {version!r:.80}")
        handler = (
            self._handlers.latest(task_type) if version is None else self._handlers.get(task_type, version)
        )
        if handler is not None:
            return handler, handler.version
        if not unregistered:
            refuse_unregistered(self._handlers, task_type, version)
        if version is None:
            raise ValueError(
                f"no handler of {task_type!r} is registered here, so version must be given: the one that workers have"
            )
        return None, version

    def _ended(self, key: TaskKey) -> TaskRecord:
        """Return the task of which there is to be another one. Raises TaskNotFound, InvalidTransition."""
        stored = self._access.load(key)
        if stored is None:
            raise TaskNotFound(
                f"no task {key.task_id}: unknown, deleted or somebody else's; check the id and the owner"
            )
        record = stored.record
        if record.handler_version is None:
            raise InvalidTransition(
                f"task {key.task_id} was created, not submitted, and no handler knows it; submit() its work",
                task_ids=[key.task_id],
            )
        if not record.status.is_terminal:
            raise InvalidTransition(
                f"task {key.task_id} is {record.status.value}; cancel it or wait for its end, then call this again",
                task_ids=[key.task_id],
            )
        return record

    def _payload_again(self, old: TaskRecord, wish: Again, handler: Handler | None) -> bytes | None:
        if wish.payload is not None:
            return self._sizes.check_payload(_encoded(wish.payload, handler))
        if old.payload_json is not None and holds_mask(orjson.loads(old.payload_json)):
            raise InvalidPayload(
                f"credentials in the payload of task {old.task_id} were masked when it ended; pass payload anew, and "
                "credentials as private"
            )
        if handler is not None:
            handler.parse(old.payload_json)
        return old.payload_json

    def _store(self, record: TaskRecord, *, dedupe: bool, joined: Joined | None = None) -> Submission:
        if not dedupe:
            created = self._access.add(record, joined=joined)
            assert created is not None, "only what is not to be doubled is ever not created"
            return self._woken(Submission(created, True), joined)
        record = record.changed(dedupe_key=_dedupe_key(record))
        for _ in range(_TRIES):
            created = self._access.add(record, unless_active=True, joined=joined)
            if created is not None:
                return self._woken(Submission(created, True), joined)
            found = self._active_like(record, joined)
            if found is not None:
                return self._woken(Submission(found, False), joined)
            # It ended between the two answers, and with that its key is free.
        raise StoreUnavailable(
            f"a task of type {record.task_type!r} for this resource is in the way and cannot be read, or others end "
            f"and begin {_TRIES} times in a row; nothing was created, try again, and ask doctor() if that does not help"
        )

    def _active_like(self, record: TaskRecord, joined: Joined | None) -> TaskRecord | None:
        asked = record.account_id, record.user_id, record.task_type, record.resource_id
        if joined is not None:  # it may be one that is not committed yet: no cache is to know of it
            found = joined.find_active(*asked)
        else:
            mark = self._access.cache.mark()
            found = self._access.store.find_active(*asked)
            if found is not None:
                self._access.cache.put(found, mark)
        return None if found is None else found.record

    def _resumed_before(self, key: TaskKey, old: TaskRecord) -> Submission:
        """Return the task that resumed ``old`` already and has not ended. Raises InvalidTransition if it has."""
        stored = self._access.load(key)
        if stored is None:
            raise StoreUnavailable(
                f"the task that resumed {old.task_id} was deleted just now, nothing was created; call this again"
            )
        if stored.record.status.is_terminal:
            raise InvalidTransition(
                f"task {old.task_id} was resumed before, as {key.task_id}, and that is {stored.record.status.value}; "
                "resume that one, which has the later checkpoint, or retry",
                task_ids=[key.task_id],
            )
        return self._woken(Submission(stored.record, False))

    def _woken(self, submission: Submission, joined: Joined | None = None) -> Submission:
        """Wake a worker; for a duplicate too, whose own wake-up may have been lost.

        Not for what is not committed yet: its creator does, see :meth:`task_tracker.TaskTracker.wake`.
        """
        if joined is None:
            self.wake(submission)
        return submission


def new_record(
    clock: Clock,
    task_type: str,
    resource_id: str | None,
    account_id: str,
    user_id: str,
    *,
    task_id: str | None = None,
    meta: Mapping[str, Any] | None = None,
    private: object = None,
    **checked: Any,
) -> TaskRecord:
    """Return the record of a new pending task, with fields that were ``checked`` before.

    Raises ValueError for what cannot be stored.
    """
    check_owner(account_id or "", user_id or "")
    now = clock.now()
    return TaskRecord.of(
        task_id=clock.new_id(now) if task_id is None else check_id(task_id, "task_id"),
        task_type=check_id(task_type, "task_type"),
        status=TaskStatus.PENDING,
        created_at=now,
        updated_at=now,
        account_id=check_id(account_id, "account_id"),
        user_id=check_id(user_id, "user_id"),
        resource_id=None
        if resource_id is None
        else check_resource_id(check_text(resource_id, "resource_id")),
        meta_json=_meta(meta),
        private_json=None if private is None else _private(private),
        **checked,
    )


def _meta(meta: Mapping[str, Any] | None) -> bytes | None:
    _check_mapping(meta)
    return encode_value(dict(meta), "meta") if meta else None


def _encoded(payload: object, handler: Handler | None) -> bytes | None:
    return plain_payload(payload) if handler is None else handler.encode(payload)


def _check_mapping(meta: object) -> None:
    if meta is not None and not isinstance(meta, Mapping):
        raise ValueError(f"meta must be a mapping with text as keys, not {meta!r:.80}")


def _private(private: object) -> bytes:
    with contextlib.suppress(ValueError):
        return encode_value(private, "private")
    # What exactly is wrong with it would quote its keys and values.
    raise ValueError(
        "private is not JSON that can be stored; it takes text without NUL, finite numbers, true, false, None, "
        "lists, and dicts with text as keys"
    )


def _dedupe_key(record: TaskRecord) -> str:
    """Return the name of what must not be done twice at once, within an owner's tasks."""
    return orjson.dumps([record.task_type, record.resource_id]).decode()


# ---- once more ---------------------------------------------------------------------------------------


def _meta_of_next(old: TaskRecord, how: str) -> dict[str, Any]:
    before = old.meta if isinstance(old.meta, dict) else {}
    # An entry that was masked stays behind: nobody is to take the mask for the password.
    meta = {
        name: value
        for name, value in before.items()
        if name not in _OWN_NAMES and not holds_mask({name: value})
    }
    if how == RESUME_OF and CHECKPOINT in before:
        if holds_mask(before[CHECKPOINT]):
            raise InvalidPayload(
                f"credentials in the checkpoint of task {old.task_id} were masked when it ended; use retry, which "
                "begins anew"
            )
        meta[CHECKPOINT] = before[CHECKPOINT]
    return {**meta, how: old.task_id}


def _id_of_resumed(old: TaskRecord) -> str:
    """Return the id of whatever resumes this task: two that do so at once mean the same one."""
    return f"resumed-{hashlib.blake2b(old.task_id.encode(), digest_size=16).hexdigest()}"


# ---- checks ------------------------------------------------------------------------------------------


def _meta_of(order: Order) -> Mapping[str, Any] | None:
    """Return what a new task's ``meta`` holds. Raises ValueError for names that are the library's own."""
    _check_mapping(order.meta)
    if order.meta is not None:
        for name in _OWN_NAMES:
            if name in order.meta:
                raise ValueError(
                    f"meta has the key {name!r}, which this library writes itself; choose another name"
                )
    if order.submitted_by is None:
        return order.meta
    return {**(order.meta or {}), SUBMITTED_BY: order.submitted_by}


def _waits_for_worker(record: TaskRecord) -> bool:
    return record.status is TaskStatus.PENDING and record.handler_version is not None
