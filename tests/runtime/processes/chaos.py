"""Workers on one directory, killed and frozen: ``python -m tests.runtime.processes.chaos <json>``.

Owns the processes, the submits and cancels, and their order, which a seed decides. In the end all workers are killed,
and a fresh one settles and finishes what is left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import random  # noqa: TID251  # seeded: who is hit
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from stores.files.lease.store import LeaseTaskStore
from task_tracker import TaskRecord, TaskTracker
from task_tracker.errors import InvalidTransition
from task_tracker.records import TaskStatus
from task_tracker.store import Query
from task_tracker.worker.worker import Worker
from tests.core.support import OWNER
from tests.lease.processes.conductor import fork, leftovers
from tests.runtime.processes.judging import Told, figures, violations
from tests.runtime.processes.ledger import registry
from tests.runtime.processes.tasks import DIRECTORY

__all__ = ["Plan", "conduct"]

PROJECT = Path(__file__).resolve().parent.parent.parent.parent
TYPES = {"once": 4, "often": 4, "thread": 1, "single": 2}
MOST_WAITING = 60
MOST_FROZEN = 2
RESOURCES = ("docs", "wiki")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to happen, at least: a bound of work, not of time."""

    directory: str
    seed: int
    workers: int
    tasks: int
    kills: int
    freezes: int
    cancels: int
    lease_seconds: float = 0.9
    patience_seconds: float = 300.0

    @property
    def root(self) -> str:
        return f"{self.directory}/root"


def conduct(plan: Plan) -> dict[str, Any]:
    """Carry out a plan in processes of its own; return the violations and the figures."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(dataclasses.asdict(plan))],
        cwd=PROJECT,
        env={**os.environ, DIRECTORY: plan.directory},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            told, _ = process.communicate(timeout=plan.patience_seconds + 60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, "the conductor failed; its error is above"
    return json.loads(told)  # type: ignore[no-any-return]


# ---- in processes of their own ---------------------------------------------------------------------------


def _open(plan: Plan) -> TaskTracker:
    store = LeaseTaskStore(plan.root, durability="none", lease_seconds=plan.lease_seconds)
    return TaskTracker(store, handlers=registry())


def _worker(tracker: TaskTracker) -> Worker:
    return Worker(tracker, concurrency=4, poll_seconds=(0.005, 0.05), drain_seconds=5)


class Conductor:
    """Carries out a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._dice = random.Random(plan.seed)
        self._tracker = _open(plan)
        self._living: set[int] = set()
        self._frozen: dict[int, float] = {}
        self._types: dict[str, str] = {}
        self._first_ends: dict[str, list[Any]] = {}
        self._cancelled: dict[str, float] = {}
        self._doubles: list[str] = []
        self._singles: dict[str, str] = {}
        self._waiting: set[str] = set()
        self.counts = {"kills": 0, "freezes": 0, "cancels": 0, "duplicates": 0}

    def run(self) -> Told:
        """Do it all, kill everybody, and have a fresh worker finish."""
        deadline = time.monotonic() + self._plan.patience_seconds
        for _ in range(self._plan.workers):
            self._start()
        while self._left():
            assert time.monotonic() < deadline, f"no progress: {self.counts}, {len(self._types)} tasks"
            self._turn()
        for pid in list(self._living):
            self._kill(pid)
        self._finish(deadline)
        store = self._tracker.store
        found = [*store.examine(fix=True)]
        found = [finding for finding in found if not finding.fixed] + [*store.examine()]
        records = {record.task_id: _seen(record) for record in self._all()}
        left: list[Any] = [list(finding) for finding in found]
        left += leftovers(Path(self._plan.root) / "local" / ".task_tracker")
        return Told(self._types, self._first_ends, records, self._cancelled, self._doubles, left)

    def _left(self) -> bool:
        plan, counts = self._plan, self.counts
        return (
            len(self._types) < plan.tasks
            or counts["kills"] < plan.kills
            or counts["freezes"] < plan.freezes
            or counts["cancels"] < plan.cancels
        )

    def _turn(self) -> None:
        for _ in range(self._dice.randint(1, 10)):
            if len(self._waiting) < MOST_WAITING:
                self._submit()
        if self._dice.random() < self._plan.cancels / self._plan.tasks * 5:
            self._cancel()
        for pid, until in list(self._frozen.items()):
            if time.monotonic() >= until:
                os.kill(pid, signal.SIGCONT)
                del self._frozen[pid]
        chance = self._dice.random()
        if chance < 0.1:
            self._kill(self._dice.choice(sorted(self._living)))
            self.counts["kills"] += 1
            self._start()
        elif chance < 0.2 and len(self._frozen) < MOST_FROZEN:
            self._freeze()
        for pid in self._living:
            ended, status = os.waitpid(pid, os.WNOHANG)
            assert not ended, f"worker {pid} ended by itself ({status}); its error is above"
        self._look()
        time.sleep(0.01)

    def _submit(self) -> None:
        task_type = self._dice.choices([*TYPES], [*TYPES.values()])[0]
        payload = {"pause_seconds": self._dice.choice([0, 0, 0.01, 0.05]), "fails": self._dice.random() < 0.1}
        resource = self._dice.choice(RESOURCES) if task_type == "single" else None
        record, created = self._tracker.submit(
            task_type, payload, resource_id=resource, dedupe=resource is not None, **OWNER
        )
        if not created:
            self.counts["duplicates"] += 1
            return
        self._types[record.task_id] = task_type
        self._waiting.add(record.task_id)
        if resource is not None:
            before = self._singles.get(resource)
            if before is not None and not self._get(before).status.is_terminal:
                self._doubles.append(resource)
            self._singles[resource] = record.task_id

    def _cancel(self) -> None:
        if not self._waiting:
            return
        task_id = self._dice.choice(sorted(self._waiting))
        with contextlib.suppress(InvalidTransition):
            record = self._tracker.cancel(task_id, **OWNER)
            if record is not None and record.status is TaskStatus.CANCELLED:
                self._cancelled[task_id] = time.monotonic()
            self.counts["cancels"] += 1

    def _start(self) -> None:
        def work() -> None:
            logging.disable(logging.ERROR)  # failures that were ordered
            _worker(_open(self._plan)).run()

        self._living.add(fork(work))

    def _freeze(self) -> None:
        pid = self._dice.choice(sorted(self._living - set(self._frozen)))
        os.kill(pid, signal.SIGSTOP)
        terms = self._dice.uniform(1.2, 2.5) if self._dice.random() < 0.6 else self._dice.uniform(0.05, 0.6)
        self._frozen[pid] = time.monotonic() + terms * self._plan.lease_seconds
        self.counts["freezes"] += 1

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self._living.discard(pid)
        self._frozen.pop(pid, None)

    def _look(self) -> None:
        for task_id in list(self._waiting):
            record = self._get(task_id)
            if record.status.is_terminal:
                seen = _seen(record)
                self._first_ends[task_id] = [seen["status"], seen["code"], seen["epoch"]]
                self._waiting.discard(task_id)

    def _finish(self, deadline: float) -> None:
        tracker = _open(self._plan)
        worker = _worker(tracker)
        logging.disable(logging.ERROR)
        while any(record.status.is_active for record in self._all()):
            assert time.monotonic() < deadline, f"this does not settle: {[*self._waiting]}"
            worker.run_once()
            time.sleep(self._plan.lease_seconds / 6)  # a store looks twice before it believes
        tracker.close()

    def _get(self, task_id: str) -> TaskRecord:
        record = self._tracker.get(task_id, **OWNER)
        assert record is not None, f"{task_id} is gone"
        return record

    def _all(self) -> list[TaskRecord]:
        page = self._tracker.store.list(Query(**OWNER, limit=None))
        assert not page.corrupt, page.corrupt
        return [stored.record for stored in page.items]


def _seen(record: TaskRecord) -> dict[str, Any]:
    return {
        "status": record.status.value,
        "code": record.error_code,
        "epoch": record.attempt.epoch if record.attempt is not None else 0,
        "result": record.result,
    }


def main(plan: Plan) -> None:
    conductor = Conductor(plan)
    told = conductor.run()
    directory = Path(plan.directory)
    answer = {
        "violations": violations(directory, told),
        "figures": {**figures(directory, told), **conductor.counts},
    }
    print(json.dumps(answer))  # noqa: T201  # that is how it answers


if __name__ == "__main__":
    main(Plan(**json.loads(sys.argv[1])))
