"""What a handler notes while it works: how far it is, and from where another one could go on.

Owns which progress is worth a write, and where the last checkpoint is in a record. Refuses to write either.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import orjson

from task_tracker import transitions
from task_tracker.codec import encode_value
from task_tracker.records import TaskRecord, compact
from task_tracker.redaction import clean_text, redact_value
from task_tracker.sizes import Sizes
from task_tracker.submitting import CHECKPOINT
from task_tracker.worker.excerpts import excerpt, shortened

__all__ = ["Progress", "checkpoint_of", "checkpointed", "encode_checkpoint"]

LONGEST_STAGE: Final = 200
"""Characters: the history holds dozens of stages, and is written with each of them."""
WORTH_POINTS: Final = 2.0
WORTH_SECONDS: Final = 1.0


@dataclasses.dataclass(slots=True)
class Progress:
    """What was noted and is not written yet. Every write of the record takes it along, so the last is never lost.

    A number alone is worth a write once it has moved by two points, or a second after the last one; what is new in
    words always is. Used under a lock of the caller's.
    """

    percent: float | None = None
    message: str | None = None
    stage: str | None = None
    written_percent: float | None = None
    written_at: float | None = None
    """By the monotonic clock; None before the first write."""
    quiet_until: float = 0.0
    """The store was away: nothing is worth asking it again before that, by the monotonic clock."""

    def note(
        self,
        percent: float | None,
        message: str | None,
        stage: str | None,
        record: TaskRecord,
        monotonic: float,
    ) -> bool:
        """Take note; tell whether that is worth a write. Raises ValueError, TypeError for what cannot be noted."""
        percent = _checked(percent)
        message = None if message is None else excerpt(_text(message, "message"))
        stage = None if stage is None else shortened(_text(stage, "stage"), LONGEST_STAGE)
        self.percent = self.percent if percent is None else percent
        self.message = self.message if message is None else message
        self.stage = self.stage if stage is None else stage
        if monotonic < self.quiet_until:
            return False
        if (message not in (None, record.message)) or (stage not in (None, record.stage)):
            return True
        if percent is None or percent == self.written_percent:
            return False
        if self.written_percent is None or self.written_at is None:
            return True
        return (
            abs(percent - self.written_percent) >= WORTH_POINTS
            or monotonic - self.written_at >= WORTH_SECONDS
        )

    @property
    def is_noted(self) -> bool:
        """Whether there is anything that a record may not show yet."""
        return self.percent is not None or self.message is not None or self.stage is not None

    def applied(self, record: TaskRecord, now: float) -> TaskRecord:
        """Return ``record`` with what is noted."""
        return transitions.progressed(
            record, now, stage=self.stage, progress=self.percent, message=self.message
        )

    def written(self, record: TaskRecord, monotonic: float) -> None:
        """Take note that ``record`` was written."""
        self.written_percent, self.written_at = record.progress, monotonic

    def not_written(self, monotonic: float) -> None:
        """Take note that the store was away: what is noted waits for a later write."""
        self.quiet_until = monotonic + WORTH_SECONDS


def encode_checkpoint(data: object, sizes: Sizes) -> bytes:
    """Return ``data`` as JSON that is still there when the task has ended.

    Raises ValueError for what is not JSON or too large, and for keys whose values are masked then: whoever resumed
    the task would read stars.
    """
    encoded = sizes.check_checkpoint(encode_value(data, "checkpoint"))
    value = orjson.loads(encoded)
    if redact_value(value) is not value:
        raise ValueError(
            "checkpoint has a key that names a credential (token, password, secret, ...), whose value is masked when "
            "the task ends; choose another name, and pass credentials as private"
        )
    return encoded


def checkpointed(record: TaskRecord, encoded: bytes, now: float) -> TaskRecord:
    """Return ``record`` with another last checkpoint."""
    meta = record.meta
    if not isinstance(meta, dict):
        meta = {}
    meta[CHECKPOINT] = orjson.Fragment(encoded)
    return record.changed(updated_at=max(now, record.updated_at), meta_json=compact(orjson.dumps(meta)))


def checkpoint_of(record: TaskRecord) -> Any:
    """Return the last checkpoint, decoded anew; None if there is none."""
    meta = record.meta
    return meta.get(CHECKPOINT) if isinstance(meta, dict) else None


def _checked(percent: float | None) -> float | None:
    if percent is None:
        return None
    if isinstance(percent, bool) or not isinstance(percent, (int, float)) or not 0 <= percent <= 100:
        raise ValueError(f"percent must be a number from 0 to 100, not {percent!r:.80}")
    return percent


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, not {type(value).__name__}")
    return clean_text(value)
