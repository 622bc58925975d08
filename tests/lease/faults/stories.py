"""What happens before the power goes out: lives of tasks, recorded call by call.

Owns the stories and what callers were told in the course of them. Refuses to know what a power cut does.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from task_tracker import transitions
from task_tracker.store import Stored
from tests.lease.faults.aftermath import Watcher, key_of
from tests.lease.faults.disk import RecordingOps
from tests.lease.faults.scenes import HANDLER, TASK, Desk, record_of

PAUSED_TYPE: Final = "reindex" * 50
"""Too long for a name, so that the file that pauses it has to hold it."""


@dataclasses.dataclass(frozen=True)
class Told:
    """After so many calls it was said that a task is so on disk (None: deleted)."""

    after: int
    task_id: str
    status: str | None
    created: bool
    content: bytes | None


@dataclasses.dataclass(frozen=True)
class Paused:
    """A call that took from ``began`` to ``after`` said that the type is paused, or that it is not any more."""

    began: int
    after: int
    is_paused: bool


class Recorder:
    """A desk whose system calls are written down, and what was acknowledged in between."""

    def __init__(self, root: Path, durability: str) -> None:
        self.root = root
        self.ops = RecordingOps()
        self.durability = durability
        self.desk = Desk(root, ops=self.ops, durability=durability)
        self.told: list[Told] = []
        self.pauses: list[Paused] = []
        self.marked_after = len(self.ops.steps)

    def tell(self, task_id: str = TASK, *, created: bool = False) -> None:
        """Note that the caller has just been told how this task stands."""
        path = self.root / "local" / "acme" / "tasks" / "alice" / f"{task_id}.json"
        content = path.read_bytes() if path.exists() else None
        status = json.loads(content)["status"] if content is not None else None
        self.told.append(Told(len(self.ops.steps), task_id, status, created, content))

    def create(self, task_id: str = TASK, **fields: Any) -> None:
        self.desk.record = record_of(task_id, **fields)
        self.desk.store.create(self.desk.record)
        self.tell(task_id, created=True)

    def claim(self, task_id: str = TASK) -> None:
        self.desk.claim(task_id)
        self.tell(task_id)

    def commit(self, message: str) -> None:
        self.desk.record = self.desk.store.commit(self.desk.held, self.desk.changed(message=message)).record
        self.tell(self.desk.record.task_id)

    def pause(self, is_paused: bool) -> None:
        began = len(self.ops.steps)
        (self.desk.store.pause if is_paused else self.desk.store.unpause)(PAUSED_TYPE)
        self.pauses.append(Paused(began, len(self.ops.steps), is_paused))

    def release(self) -> None:
        record = transitions.released(self.desk.record, self.desk.clock.now())
        self.desk.record = self.desk.store.release(self.desk.held, record).record
        self.tell(record.task_id)

    def end(self) -> None:
        record = transitions.completed(self.desk.record, self.desk.clock.now(), b'{"pages":3}')
        self.desk.store.end(self.desk.held, record)
        self.tell(record.task_id)


def life(recorder: Recorder) -> None:
    """Created, started, written, given back, started again, completed, deleted."""
    recorder.create()
    recorder.claim()
    recorder.commit("half")
    recorder.release()
    recorder.claim()
    recorder.commit("more")
    recorder.end()
    recorder.desk.store.delete(key_of(TASK))
    recorder.tell()


def second_life(recorder: Recorder) -> None:
    """An id that is used again."""
    recorder.create()
    recorder.claim()
    recorder.end()
    recorder.desk.store.delete(key_of(TASK))
    recorder.tell()
    recorder.create()
    recorder.claim()
    recorder.commit("again")


def cancelling(recorder: Recorder) -> None:
    """Cancelled while it waits, and while it runs."""
    recorder.create("waiting", resource_id="a")
    recorder.desk.store.request_cancel(key_of("waiting"))
    recorder.tell("waiting")
    recorder.create()
    recorder.claim()
    recorder.desk.store.request_cancel(key_of(TASK))
    recorder.desk.store.renew(recorder.desk.held)
    recorder.desk.record = _record(recorder)
    cancelled = transitions.cancelled(recorder.desk.record, recorder.desk.clock.now())
    recorder.desk.store.end(recorder.desk.held, cancelled)
    recorder.tell()


def work(recorder: Recorder) -> None:
    """Three tasks for workers, one of them for later; two are done one after the other."""
    recorder.create("first", handler_version=1, resource_id="a")
    recorder.create("later", handler_version=1, resource_id="b", not_before=recorder.desk.clock.now() + 3600)
    recorder.create("second", handler_version=1, resource_id="c")
    for task_id in ("first", "second"):
        claimed = recorder.desk.store.claim(holder="worker", task_types=[HANDLER])
        assert claimed is not None
        recorder.desk.hold(claimed)
        recorder.tell(task_id)
        recorder.end()


def taken_over(recorder: Recorder) -> None:
    """Held, abandoned, taken over by somebody else, who ends it."""
    recorder.create()
    recorder.claim()
    recorder.commit("half")
    watcher = Watcher(recorder.root, ops=recorder.ops, durability=recorder.durability)
    ((_, stored),) = watcher.expired()
    recorder.tell()
    assert stored.record.message == "half"
    watcher.settle()
    recorder.tell()


def unheld(recorder: Recorder) -> None:
    """One of a kind at a time; written and completed by whoever comes by."""
    recorder.desk.record = record_of()
    recorder.desk.store.create_if_no_active(recorder.desk.record)
    recorder.tell(created=True)
    assert recorder.desk.store.create_if_no_active(record_of("other")) is None
    updated = recorder.desk.store.update(recorder.desk.changed(message="updated"), expected=None)
    recorder.tell()
    recorder.desk.record = updated.record
    ended = transitions.completed(recorder.desk.record, recorder.desk.clock.now(), b"1")
    recorder.desk.store.update(ended, expected=None)
    recorder.tell()
    recorder.desk.store.create_if_no_active(record_of("other"))
    recorder.tell("other", created=True)


def pausing(recorder: Recorder) -> None:
    """A type is paused, resumed, and paused again."""
    for is_paused in (True, False, True):
        recorder.pause(is_paused)


STORIES: Final[tuple[Callable[[Recorder], None], ...]] = (
    life,
    second_life,
    cancelling,
    work,
    taken_over,
    unheld,
    pausing,
)


def _record(recorder: Recorder) -> Any:
    stored = recorder.desk.store.get(key_of(TASK))
    assert isinstance(stored, Stored)
    return stored.record
