"""Which task has a kind (owner, type and resource), where files can only be written under a condition.

Owns ``<control>/kinds/<digest>.json``, an object that names the task which took the kind last. It is taken before the
record is created, so two that ask at once take turns on it. Refuses to say that a task is active: its record does.

A taken kind whose record is not there yet belongs to a creator under way, who says ``settled`` when it is through.
Whoever has waited for that in vain fences it: a failed record at the key of the late one, so that it cannot come any
more.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Collection
from typing import Final, NamedTuple

import orjson

from stores.files.backing import AnySignature, Backing, Changed
from stores.files.layout import SUFFIX, Layout
from stores.files.versions import RecordReader
from task_tracker import transitions
from task_tracker.clock import Clock
from task_tracker.codec import encode_record
from task_tracker.errors import CorruptRecord, StoreUnavailable
from task_tracker.records import TaskKey, TaskRecord, TaskStatus

__all__ = ["NEVER_CREATED", "Kind", "Kinds", "Named", "Taken"]

NEVER_CREATED: Final = "never_created"
"""``error_code`` of a record that stands where a creator was given up."""
_KINDS: Final = "kinds"
_FIRST_PAUSE_SECONDS: Final = 0.02
_LONGEST_PAUSE_SECONDS: Final = 0.5
_TRIES: Final = 1000
"""Against a clock that stands still, and tasks that come and go faster than they are looked at."""


class Kind(NamedTuple):
    """What tasks have in common of which one may be active."""

    account_id: str
    user_id: str
    task_type: str
    resource_id: str | None

    @classmethod
    def of(cls, record: TaskRecord) -> Kind:
        """Return the kind of a record."""
        return cls(record.account_id, record.user_id, record.task_type, record.resource_id)


class Named(NamedTuple):
    """A kind's object, as it was when it named a certain task."""

    name: str
    tag: AnySignature | None


class Taken(NamedTuple):
    """A kind in the hands of whoever creates a record for it."""

    name: str
    tag: AnySignature | None
    word: _Word


class _Word(NamedTuple):
    """What the object says: which task, and whether its creator is through."""

    task_id: str
    created_at: float
    token: str
    settled: bool = False

    def encode(self) -> bytes:
        return orjson.dumps(self._asdict())

    @classmethod
    def decode(cls, data: bytes) -> _Word | None:
        """Return what ``data`` says, None if it is damaged."""
        try:
            word = cls(**orjson.loads(data))
            sound = isinstance(word.task_id, str) and word.task_id and isinstance(word.created_at, float)
            return word if sound and isinstance(word.settled, bool) else None
        except (ValueError, TypeError):
            return None


class Kinds:
    """The kinds of one place that is ``conditional``. Thread-safe."""

    def __init__(
        self, files: Backing, layout: Layout, reader: RecordReader, clock: Clock, patience_seconds: float
    ) -> None:
        self._files = files
        self._layout = layout
        self._read_record = reader
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._directory = f"{layout.control}/{_KINDS}"

    def take(self, record: TaskRecord) -> Taken | None:
        """Take the kind of ``record`` for it; None if the task that has it is active. Raises StoreUnavailable."""
        name = _name(Kind.of(record))
        word = _Word(record.task_id, record.created_at, self._clock.new_token())
        deadline = self._clock.monotonic() + self._patience_seconds
        pause = _FIRST_PAUSE_SECONDS
        for _ in range(_TRIES):
            late = self._clock.monotonic() >= deadline
            try:
                return Taken(name, self._files.create(self._directory, name, word.encode()), word)
            except FileExistsError:
                pass
            try:
                data, tag, _ = self._files.read(self._directory, name)
            except FileNotFoundError:
                continue  # its task was deleted just now
            last = _Word.decode(data)
            active = self._is_active(record, last)
            if active:
                return None
            # Of two with the same id only one can create it, whoever has the kind.
            if active is None and last is not None and last.task_id != record.task_id:
                if not late:
                    self._pause(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                    continue
                if not self._fence(record, last):
                    continue
            try:
                tag = self._files.replace(self._directory, name, word.encode(), final=False, over=tag)
            except Changed:
                continue
            return Taken(name, tag, word)
        raise StoreUnavailable(
            f"tasks like {record.task_id} come and go faster than one more can be created; try again"
        )

    def settle(self, taken: Taken) -> None:
        """Say that the record has come, or will not: if it is not there, nobody is to wait for it."""
        try:
            word = taken.word._replace(settled=True)
            self._files.replace(self._directory, taken.name, word.encode(), final=False, over=taken.tag)
        except (Changed, StoreUnavailable):
            pass  # ended and taken by the next one already; or said by its record alone

    def named_by(self, kind: Kind, task_ids: Collection[str]) -> Named | None:
        """Return what names one of these tasks. To be asked before they are deleted: their ids may come again."""
        name = _name(kind)
        with contextlib.suppress(FileNotFoundError):
            data, tag, _ = self._files.read(self._directory, name)
            last = _Word.decode(data)
            if last is not None and last.task_id in task_ids:
                return Named(name, tag)
        return None

    def forget(self, named: Named | None) -> None:
        """Remove what named a task that was deleted. Not worth failing for: it blocks nobody."""
        if named is not None:
            with contextlib.suppress(FileNotFoundError, Changed, StoreUnavailable):
                self._files.retire(self._directory, named.name, over=named.tag)

    def _is_active(self, record: TaskRecord, last: _Word | None) -> bool | None:
        """Tell whether the task that took the kind last is active; None if its record may still come."""
        if last is None:
            return False
        try:
            other, _, _ = self._read_record(TaskKey(record.account_id, record.user_id, last.task_id))
        except FileNotFoundError:
            return False if last.settled else None
        except CorruptRecord:
            return False  # as it was last read it was not active: that was asked before
        same = (other.task_type, other.resource_id) == (record.task_type, record.resource_id)
        return same and transitions.blocks_duplicates(other.status, other.completed_at)

    def _fence(self, record: TaskRecord, late: _Word) -> bool:
        """Put a failed record where the late one would be; False if that came after all."""
        now = self._clock.now()
        fence = TaskRecord(
            task_id=late.task_id,
            task_type=record.task_type,
            status=TaskStatus.FAILED,
            created_at=late.created_at,
            updated_at=now,
            completed_at=now,
            resource_id=record.resource_id,
            account_id=record.account_id,
            user_id=record.user_id,
            error=f"its creator was not heard of for {self._patience_seconds:g} seconds; create it again",
            error_code=NEVER_CREATED,
        )
        directory, name = self._layout.place(fence.key)
        try:
            self._files.create(directory, name, encode_record(fence))
        except FileExistsError:
            return False
        return True

    def _pause(self, seconds: float) -> None:
        condition = threading.Condition()
        with condition:
            self._clock.wait(condition, self._clock.jitter(seconds))


def _name(kind: Kind) -> str:
    return hashlib.blake2b(orjson.dumps(list(kind)), digest_size=16).hexdigest() + SUFFIX
