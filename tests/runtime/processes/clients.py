"""Those who submit, cancel and look on: each writes down what it was answered.

Owns what a client takes for true: an answer. What was not answered may have happened or not.
"""

from __future__ import annotations

import contextlib
import random  # noqa: TID251  # seeded: what is asked for
import time
from collections.abc import Callable
from itertools import combinations
from typing import Any

from task_tracker import TaskRecord, TaskTracker
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.errors import InvalidTransition, StoreUnavailable
from task_tracker.records import ACTIVE, TaskKey
from task_tracker.store import Query, Unchanged
from tests.core.support import OWNER
from tests.runtime.processes.journal import tell
from tests.runtime.processes.plan import TYPES, Plan

__all__ = ["Client", "end_of"]

MOST_WAITING = 30
STORM = 15
RESOURCES = ("docs", "wiki")
PAUSE_SECONDS = 0.01
FAR_SECONDS = 1.0


class Client:
    """Asks until ``is_enough``. ``number`` tells clients apart."""

    def __init__(self, plan: Plan, tracker: TaskTracker, number: int, is_enough: Callable[[], bool]) -> None:
        self._plan = plan
        self._tracker = tracker
        self._dice = random.Random(f"{plan.seed} {number}")
        self._is_enough = is_enough
        self._waiting: dict[str, TaskRecord] = {}

    def run(self) -> None:
        """Ask, again and again. A store that is away is asked again later."""
        storms = self._plan.cancels / self._plan.tasks
        while not self._is_enough():
            for _ in range(self._dice.randint(1, 8)):
                if sum(not _is_far(record) for record in self._waiting.values()) < MOST_WAITING:
                    self._try(self._submit)
            if self._dice.random() < storms:
                self._cancel(STORM if self._dice.random() < 0.1 else 1)
            if self._dice.random() < 0.3:
                self._try(self._look_for_doubles, self._dice.choice(RESOURCES))
            for task_id in list(self._waiting):
                self._try(self._look, task_id)
            time.sleep(PAUSE_SECONDS)

    def _try(self, ask: Callable[..., None], *arguments: Any) -> None:
        try:
            ask(*arguments)
        except StoreUnavailable as error:
            tell("unanswered", error=str(error)[:200])

    def _submit(self) -> None:
        task_type = self._dice.choices([*TYPES], [*TYPES.values()])[0]
        pause = self._dice.choice([0, 0, 0.01, 0.05, 0.2])
        block = 2 * self._plan.lease_seconds if self._dice.random() < self._plan.blocking else 0
        payload = {"pause_seconds": pause, "block_seconds": block, "fails": self._dice.random() < 0.1}
        resource = self._dice.choice(RESOURCES) if task_type == "single" else None
        record, created = self._tracker.submit(
            task_type, payload, resource_id=resource, dedupe=resource is not None, **OWNER
        )
        if created:
            tell("submitted", task=record.task_id, type=task_type)
            self._waiting[record.task_id] = record
        else:
            tell("duplicate", task=record.task_id)

    def _cancel(self, many: int) -> None:
        for task_id in self._dice.sample(sorted(self._waiting), min(many, len(self._waiting))):
            with contextlib.suppress(InvalidTransition):  # it has ended
                self._try(self._cancel_one, task_id)

    def _cancel_one(self, task_id: str) -> None:
        record = self._tracker.cancel(task_id, **OWNER)
        if record is not None:
            epoch = record.attempt.epoch if record.attempt is not None else 0
            tell("cancel", task=task_id, status=record.status.value, epoch=epoch)

    def _look(self, task_id: str) -> None:
        record = self._tracker.get(task_id, **OWNER)
        if record is None:
            tell("gone", task=task_id)
        elif record.status.is_terminal:
            tell("seen_end", task=task_id, end=end_of(record))
        else:
            self._waiting[task_id] = record
            return
        del self._waiting[task_id]

    def _look_for_doubles(self, resource: str) -> None:
        """Two of a kind that are active at the same moment. Listings are not of one moment, so look again."""
        found: dict[TaskKey, None] = {}
        for status in ACTIVE:
            page = self._tracker.store.list(
                Query(**OWNER, task_type="single", resource_id=resource, status=status, limit=None)
            )
            found |= dict.fromkeys(stored.record.key for stored in page.items)
        for one, other in combinations(found, 2):
            # Who is active before and after was so in between: what has ended does not begin again.
            if self._is_active(one) and self._is_active(other) and self._is_active(one):
                tell("double", tasks=[one.task_id, other.task_id])

    def _is_active(self, key: TaskKey) -> bool:
        stored = self._tracker.store.get(key)
        assert not isinstance(stored, Unchanged), "nothing was said to be known"
        return stored.record.status.is_active


def end_of(record: TaskRecord) -> list[Any]:
    """What is never to change once it was seen."""
    return [record.status.value, record.error_code, record.attempt.epoch if record.attempt is not None else 0]


def _is_far(record: TaskRecord) -> bool:
    """Tell whether it is for later: hosts that are hours ahead put their retries there."""
    return record.not_before is not None and record.not_before > SYSTEM_CLOCK.now() + FAR_SECONDS
