"""Records for tests: one second apart, with ids and times that are the same in every run.

Owns what an ordinary and an extraordinary record look like.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from task_tracker.codec import encode_value
from task_tracker.records import Attempt, TaskKey, TaskRecord, TaskStatus
from task_tracker.testing.fake_clock import FakeClock

__all__ = ["START", "RecordMaker"]

START: Final = 4_000_000_000.0
"""When the first record is made: in the year 2096, later than any store was first opened, so that retention
(which deletes nothing older than that) may act on all of them."""


class RecordMaker:
    """Makes pending tasks of acme/alice, unless told otherwise.

    Without ``own_fields`` even a full record leaves out those that a store with leases writes itself.
    """

    def __init__(self, *, own_fields: bool = True) -> None:
        self.clock = FakeClock(START)
        self._own_fields = own_fields

    def __call__(self, task_id: str | None = None, /, **fields: Any) -> TaskRecord:
        """Return a new record, a second younger than the one before. ``fields`` are those of TaskRecord."""
        self.clock.advance(1)
        now = fields.get("created_at", self.clock.now())
        ordinary: dict[str, Any] = {
            "task_id": self.clock.new_id(now) if task_id is None else task_id,
            "task_type": "reindex",
            "status": TaskStatus.PENDING,
            "created_at": now,
            "updated_at": now,
            "account_id": "acme",
            "user_id": "alice",
            "resource_id": "docs",
        }
        return TaskRecord(**(ordinary | fields))

    def many(self, number: int, **fields: Any) -> list[TaskRecord]:
        """Return ``number`` records, oldest first."""
        return [self(**fields) for _ in range(number)]

    def key(self, task_id: str = "unheard-of") -> TaskKey:
        """Return the key of a task of acme/alice that need not exist."""
        return TaskKey("acme", "alice", task_id)

    def changed(self, record: TaskRecord, **fields: Any) -> TaskRecord:
        """Return ``record`` as it is a second later, with ``fields`` changed."""
        self.clock.advance(1)
        return dataclasses.replace(record, **({"updated_at": self.clock.now()} | fields))

    def full(self, **fields: Any) -> TaskRecord:
        """Return a record in which every field is set, to values that are easy to get wrong.

        All but the store's own, see the class.
        """
        # 2**53 + 1 is no float; the text has two-, three- and four-byte characters and what JSON escapes.
        own: dict[str, Any] = {
            "attempt": Attempt(7, "0123456789abcdef", "host-1:42", 2),
            "creation": "c0ffee",
        }
        hard = {"": None, "n": 2**53 + 1, "f": 0.1, "t": 'ä漢🎈"\\/\n\u2028', "l": [[], {}, False, 0, ""]}
        return self(
            **{
                "result_json": encode_value(hard, "result"),
                "error": 'it broke: "quoted"\nsecond line \u0085',
                "stage": "embedding",
                "progress": 33.25,
                "message": "page 7 of 9",
                "meta_json": encode_value({"source": "crawler", "nested": hard}, "meta"),
                "payload_json": encode_value(["path", hard], "payload"),
                "private_json": encode_value({"api_key": "k"}, "private"),
                "handler_version": 3,
                "dedupe_key": "reindex/docs",
                "priority": -5,
                "not_before": START + 0.000001,
                "timeout_seconds": 1.5,
                "max_attempts": 4,
                "started_at": START + 0.25,
                "completed_at": START + 0.5,
                "cancel_requested_at": START + 0.123456,
                "error_code": "timeout",
                "hook_error": "hook said no",
                "effects_dir": "effects/7",
                "history_json": encode_value([{"at": START, "status": "pending"}], "history"),
                "revision": 12,
                "extra_json": encode_value({"schema_version": 99, "of_a_later_version": hard}, "extra"),
                **(own if self._own_fields else {}),
                **fields,
            }
        )
