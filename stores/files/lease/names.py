"""Names in the control directory: they say which task, which life of it, and which claim.

Owns the text of a name and back. A name ends in ``@<epoch>-<token>`` and is used once, so that a rename of it
can be won once and no look at it can mean another claim.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final, NamedTuple

import orjson

from stores.files.layout import decode_component, encode_component
from task_tracker.records import Attempt, TaskKey, TaskRecord

__all__ = [
    "CLAIMING",
    "LEGACY",
    "EntryName",
    "announcement",
    "announcement_of",
    "attempt_of",
    "digest",
    "kind_digest",
    "life_of",
]

LEGACY: Final = "legacy"
"""The life of a record that was written without one."""
SHORT_TOKEN: Final = "u"
"""First letter of the token of a claim that lasts for one call only: whoever meets it waits a moment."""

CLAIMING: Final = "~"
"""At the end of the name of an entry whose claim is not complete."""

_LONGEST_KEY: Final = 150
"""Leaves room for sort, life, epoch and token below the 255 bytes that file systems allow for a name."""
_DIGEST: Final = "="
"""First letter of a key that is a digest; no encoded name begins with it."""
_NAME: Final = re.compile(
    r"(?P<sort>[0-9]{16})\.(?P<key>[^/]+)\.(?P<life>[0-9a-z]+)@(?P<epoch>[0-9]{1,18})-(?P<token>[0-9a-z]+)(?P<mark>~?)"
)
_ANNOUNCEMENT: Final = re.compile(r"(?P<kind>[0-9a-f]{16})\.(?P<task>[^/]+)\.(?P<life>[0-9a-z]+)")
_TOKEN: Final = re.compile(r"[0-9a-z]{1,40}")
_LAST_EPOCH: Final = 10**15
"""Claims of thirty thousand years, one each millisecond; more is somebody's joke."""
_MAX_MICROSECONDS: Final = 9_999_999_999_999_999


class EntryName(NamedTuple):
    """The name of an entry.

    ``key`` is ``<account>+<user>+<task>`` as path components, or ``=<digest>`` where that would be too long;
    the entry then holds the triple in a file. ``settled`` is False (a ``~`` at the end) while a claim is
    being made.
    """

    sort: str
    key: str
    life: str
    epoch: int
    token: str
    settled: bool = True

    def __str__(self) -> str:
        mark = "" if self.settled else CLAIMING
        return f"{self.sort}.{self.key}.{self.life}@{self.epoch}-{self.token}{mark}"

    @classmethod
    def parse(cls, text: str) -> EntryName | None:
        """Return the name in ``text``, None if it is none."""
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        sort, key, life, epoch, token, mark = match.groups()
        return cls(sort, key, life, int(epoch), token, not mark)

    @classmethod
    def of(cls, record: TaskRecord, epoch: int, token: str) -> EntryName:
        """Return the name of the entry of ``record`` at this epoch."""
        microseconds = min(max(round(record.created_at * 1_000_000), 0), _MAX_MICROSECONDS)
        return cls(
            f"{microseconds:016d}",
            _key_text(record.account_id, record.user_id, record.task_id),
            life_of(record),
            epoch,
            token,
        )

    def claimed(self, token: str, *, above: int = 0) -> EntryName:
        """Return the name that the next claim gives the entry once it is complete: an epoch higher than any before."""
        return EntryName(self.sort, self.key, self.life, max(self.epoch, above) + 1, token)

    def is_of(self, other: EntryName) -> bool:
        """Tell whether both are entries of one life of one task."""
        return self.key == other.key and self.life == other.life

    @property
    def task(self) -> TaskKey | None:
        """The triple, None if the name is too short for it."""
        parts = [_decoded(part) for part in self.key.split("+")]
        if len(parts) != 3 or None in parts:
            return None
        account_id, user_id, task_id = parts
        return TaskKey(str(account_id), str(user_id), str(task_id))

    @property
    def is_digest(self) -> bool:
        """Tell whether the triple is in a file within the entry, since it is too long for a name."""
        return self.key.startswith(_DIGEST)

    @property
    def shard(self) -> str:
        """Two hex digits that spread entries over directories."""
        return hashlib.blake2b(self.key.encode(), digest_size=1).hexdigest()

    @property
    def short(self) -> bool:
        """Tell whether the claim is meant to last for one call only."""
        return self.token.startswith(SHORT_TOKEN)

    @property
    def created_at(self) -> float:
        """When the task was created, Unix seconds."""
        return int(self.sort) / 1_000_000


def digest(key: TaskKey) -> str:
    """Return 20 hex digits that stand for a task."""
    return hashlib.blake2b(orjson.dumps(list(key)), digest_size=10).hexdigest()


def life_of(record: TaskRecord) -> str:
    """Return which life of its id a record is."""
    life = record.creation
    return life if life is not None and _is_token(life) else LEGACY


def attempt_of(record: TaskRecord) -> Attempt | None:
    """Return the attempt of a record; None for one that is no part of a name, whoever wrote it."""
    attempt = record.attempt
    if attempt is None or not _TOKEN.fullmatch(attempt.token) or not 0 <= attempt.epoch <= _LAST_EPOCH:
        return None
    return attempt


@lru_cache(maxsize=1024)
def kind_digest(account_id: str, user_id: str, task_type: str, resource_id: str | None) -> str:
    """Return 16 hex digits that stand for an owner's tasks of one type and resource."""
    kind = orjson.dumps([account_id, user_id, task_type, resource_id])
    return hashlib.blake2b(kind, digest_size=8).hexdigest()


def announcement(record: TaskRecord) -> str:
    """Return the name under which ``record`` is announced among the tasks of its kind."""
    kind = kind_digest(record.account_id, record.user_id, record.task_type, record.resource_id)
    return f"{kind}.{encode_component(record.task_id)}.{life_of(record)}"


def announcement_of(name: str) -> tuple[str, str, str] | None:
    """Return kind, task id and life in the name of an announcement, None if it is none."""
    match = _ANNOUNCEMENT.fullmatch(name)
    if match is None:
        return None
    task_id = decode_component(match["task"])
    return None if task_id is None else (match["kind"], task_id, match["life"])


@lru_cache(maxsize=1024)  # a name is made several times in each step of a task
def _is_token(text: str) -> bool:
    return _TOKEN.fullmatch(text) is not None


_decoded = lru_cache(maxsize=1024)(decode_component)


def _key_text(account_id: str, user_id: str, task_id: str) -> str:
    text = f"{_owner_text(account_id, user_id)}+{encode_component(task_id)}"
    return text if len(text) <= _LONGEST_KEY else f"{_DIGEST}{digest(TaskKey(account_id, user_id, task_id))}"


@lru_cache(maxsize=1024)
def _owner_text(account_id: str, user_id: str) -> str:
    return f"{encode_component(account_id)}+{encode_component(user_id)}"
