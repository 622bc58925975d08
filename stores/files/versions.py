"""What names the state of a record's file: its digest, and what ``stat`` said when it was read.

Owns the comparison that compare-and-set stands on. Refuses to trust a time stamp with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple, Self

from stores.files.backing import AnySignature
from task_tracker.records import TaskKey, TaskRecord

__all__ = ["FileVersion", "RecordReader"]


class FileVersion(NamedTuple):
    """A record's version: the digest decides; the signature saves reading when it is settled."""

    digest: bytes
    signature: AnySignature | None
    settled: bool

    @classmethod
    def of(cls, data: bytes, signature: AnySignature | None, settled: bool = False) -> Self:
        """Return the version of the file that holds ``data``; just written, it has no signature worth knowing."""
        # As the class would, in half the time: one for each write.
        return tuple.__new__(cls, (hashlib.blake2b(data, digest_size=16).digest(), signature, settled))


RecordReader = Callable[[TaskKey], tuple[TaskRecord, FileVersion, int]]
"""Reads a record: the record, its version and its size in bytes. Raises FileNotFoundError, CorruptRecord."""
