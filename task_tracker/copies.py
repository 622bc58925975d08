"""Copies: when two records are the same, and how the one at the target stands to the one at the source.

Owns the digest that a copy is proved by, and the mark: an active task is copied with the digest of what was copied.
While the target's record is that still, it may be replaced by what the source has by now; once anything else was
written there, it may not. Refuses to read or write a store; :mod:`task_tracker.copying` does.
"""

from __future__ import annotations

import dataclasses
import hashlib
from enum import StrEnum
from typing import Final

import orjson

from task_tracker import transitions
from task_tracker.codec import encode_record
from task_tracker.records import TaskRecord

__all__ = ["MARK", "Outcome", "Refused", "Tally", "epoch_of", "judged", "likeness", "marked"]

MARK: Final = "copied"
"""The key that an active task's copy has besides its own: the digest of what was copied."""
_DIGEST_BYTES: Final = 16
_MODULUS: Final = 1 << (8 * _DIGEST_BYTES)


class Outcome(StrEnum):
    """What became of one task."""

    SAME = "same"
    """The target has it as the source has it."""
    COPIED = "copied"
    RENEWED = "copied again"
    """An older copy, which nobody had touched, was replaced."""
    MISSING = "missing"
    """When comparing: the target does not have it."""
    OLDER = "older"
    """When comparing: the target has an older copy, which nobody has touched."""
    HELD = "held"
    """Somebody works on it."""
    RUNNING = "running"
    """It runs, and the source cannot tell whether anybody works on it."""
    STRANGE = "unknown state"
    HAS_FILES = "has files"
    """Files of its attempt lie in the source, and would not come along."""
    OTHER = "another task"
    """The target has another task under this id."""
    GONE_ON = "gone on"
    """The target's record is no untouched copy of the source's."""
    UNREADABLE = "unreadable"
    FAILED = "failed"
    LEFT_OUT = "left out"
    """A record where no store looks."""

    @property
    def is_good(self) -> bool:
        """Tell whether the target has the task now, as the source has it."""
        return self in (Outcome.SAME, Outcome.COPIED, Outcome.RENEWED)


@dataclasses.dataclass
class Tally:
    """An owner's records (or everybody's), counted on both sides, with a digest over all of them.

    The digests do not depend on the order. What cannot be read is not counted.
    """

    account_id: str = ""
    user_id: str = ""
    source: int = 0
    target: int = 0
    same: int = 0
    source_digest: int = 0
    target_digest: int = 0

    @property
    def is_equal(self) -> bool:
        """Tell whether all records are the same on both sides."""
        return self.source == self.target == self.same and self.source_digest == self.target_digest

    def add(self, other: Tally) -> None:
        """Add what was counted elsewhere."""
        self.source += other.source
        self.target += other.target
        self.same += other.same
        self.source_digest = (self.source_digest + other.source_digest) % _MODULUS
        self.target_digest = (self.target_digest + other.target_digest) % _MODULUS

    def see(self, mine: bytes, its: bytes | None) -> None:
        """Count one record: what it is like on both sides, None where it is not."""
        self.source += 1
        self.source_digest = (self.source_digest + int.from_bytes(mine)) % _MODULUS
        if its is not None:
            self.target += 1
            self.target_digest = (self.target_digest + int.from_bytes(its)) % _MODULUS


class Refused(Exception):  # not an error: one task of many
    """A task is not copied: the message says why, and what to do."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


def likeness(record: TaskRecord) -> bytes:
    """Return a digest of all that a copy has to have: not the claim's epoch and token, which stores give themselves."""
    document = orjson.loads(encode_record(record))
    for name in ("attempt", "creation", MARK):
        document.pop(name, None)
    attempt = record.attempt
    if attempt is not None and (attempt.holder or attempt.count):  # otherwise nobody has claimed it
        document["attempt"] = [attempt.holder, attempt.count]
    encoded = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).digest()


def judged(record: TaskRecord, there: TaskRecord | None) -> Outcome:
    """Return how what is ``there`` at the target stands to ``record``: MISSING, SAME or OLDER. Raises Refused."""
    if there is None:
        return Outcome.MISSING
    if _microseconds(there) != _microseconds(record):
        raise Refused(
            Outcome.OTHER,
            "the target has another task under this id, created at another time; delete one of them, then copy again",
        )
    mine, its = likeness(record), likeness(there)
    ended, mark = there.status.is_terminal, _mark(there)
    if mine == its and (ended or epoch_of(there) >= epoch_of(record)):
        return Outcome.SAME
    if not ended and mark == its.hex():
        return Outcome.OLDER
    if mark == mine.hex():
        raise Refused(
            Outcome.GONE_ON,
            "it has gone on at the target since it was copied; the record there is the newer one and stays",
        )
    raise Refused(
        Outcome.GONE_ON,
        "the record at the target differs and is no untouched copy: it has gone on there, or did not come from here; "
        "it stays. If the source is right, end and delete it at the target, then copy again",
    )


def marked(record: TaskRecord) -> TaskRecord:
    """Return ``record`` as it is written: one that may still change with the mark, one that has ended without."""
    extra = {} if record.extra_json is None else orjson.loads(record.extra_json)
    extra.pop(MARK, None)
    if not record.status.is_terminal:
        extra[MARK] = likeness(record).hex()
    return record.changed(extra_json=orjson.dumps(extra) if extra else None)


def epoch_of(record: TaskRecord) -> int:
    """Return the epoch of the last claim of ``record``; 0 if nobody has claimed it."""
    return transitions.first_attempt("", record.attempt).epoch


def _mark(record: TaskRecord) -> str | None:
    mark = None if record.extra_json is None else orjson.loads(record.extra_json).get(MARK)
    return mark if isinstance(mark, str) else None


def _microseconds(record: TaskRecord) -> int:
    return round(record.created_at * 1_000_000)
