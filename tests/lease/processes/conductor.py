"""Starts workers on one directory, kills and freezes them: ``python -m tests.lease.processes.conductor <json>``.

Owns the processes and the order of what happens to them, which a seed decides; how it meets what they do, the
machine decides. In the end all are killed, and one fresh process settles what is left, as a reconciler does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import json
import os
import random  # noqa: TID251  # seeded: who is hit, and how long it stays frozen
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stores.files.lease.store import LeaseTaskStore
from task_tracker import transitions
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.records import TaskStatus
from task_tracker.store import LeaseStore, Query
from tests.lease.processes.observer import observe
from tests.lease.processes.trace import Trace
from tests.lease.processes.worker import ACCOUNT, Worker, sight

__all__ = ["Plan", "conduct"]

PROJECT = Path(__file__).resolve().parent.parent.parent.parent
MOST_FROZEN = 4
PACE_SECONDS = 0.02
"""The least time between two blows; a worker needs some to get anything done."""
TERMS_TO_SETTLE = 20


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to happen, at least: a bound of work, not of time."""

    root: str
    directory: str
    seed: int
    workers: int
    claims: int
    kills: int
    freezes: int
    lease_seconds: float
    durability: str = "none"
    patience_seconds: float = 240.0


def conduct(plan: Plan) -> dict[str, Any]:
    """Run the plan in processes of their own and return what the conductor and the last process tell."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.lease.processes.conductor", json.dumps(dataclasses.asdict(plan))],
        cwd=PROJECT,
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


def open_lease_store(plan: Plan) -> LeaseStore:
    return LeaseTaskStore(plan.root, durability=plan.durability, lease_seconds=plan.lease_seconds)


def fork(work: Callable[[], object]) -> int:
    """Run ``work`` in a child and return its pid; the child ends with 1 if it raises."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001  # shown, and told by the exit code
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


class Conductor:
    """Carries out a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._dice = random.Random(plan.seed)
        self._claimed, self._tell = os.pipe()
        self._living: dict[int, str] = {}
        self._frozen: list[tuple[float, int]] = []
        self._started = 0
        self.counts = {"claims": 0, "kills": 0, "freezes": 0, "long_freezes": 0}

    def run(self) -> None:
        """Do it all, and kill everybody."""
        deadline = time.monotonic() + self._plan.patience_seconds
        for _ in range(self._plan.workers):
            self._start()
        next_blow = time.monotonic()
        while self._left():
            assert time.monotonic() < deadline, f"no progress: {self.counts}"
            wake = min([next_blow, *(at for at, _ in self._frozen)])
            if select.select([self._claimed], [], [], max(0.0, wake - time.monotonic()))[0]:
                self.counts["claims"] += len(os.read(self._claimed, 4096))
            self._thaw(time.monotonic())
            if time.monotonic() >= next_blow:
                self._strike()
                next_blow = time.monotonic() + self._dice.uniform(1, 3) * PACE_SECONDS
        for pid in [*self._living]:
            self._kill(pid)

    def _left(self) -> bool:
        plan, counts = self._plan, self.counts
        return (
            counts["claims"] < plan.claims or counts["kills"] < plan.kills or counts["freezes"] < plan.freezes
        )

    def _start(self) -> None:
        self._started += 1
        name = f"{self._plan.seed}-{self._started}"

        def work() -> None:
            os.close(self._claimed)
            trace = Trace(Path(self._plan.directory), name)
            Worker(
                name, open_lease_store(self._plan), trace, lambda: os.write(self._tell, b"!")
            ).work_for_ever()

        self._living[fork(work)] = name

    def _strike(self) -> None:
        plan = self._plan
        for pid in self._living:
            ended, status = os.waitpid(pid, os.WNOHANG)
            assert not ended, f"worker {self._living[pid]} ended by itself ({status}); its error is above"
        frozen = {pid for _, pid in self._frozen}
        if self._dice.random() < plan.kills / (plan.kills + plan.freezes):
            self._kill(self._dice.choice([*self._living]))
            self.counts["kills"] += 1
            self._start()
        elif len(frozen) < MOST_FROZEN:
            pid = self._dice.choice([pid for pid in self._living if pid not in frozen])
            os.kill(pid, signal.SIGSTOP)
            long = self._dice.random() < 0.7
            terms = self._dice.uniform(1.2, 2.5) if long else self._dice.uniform(0.05, 0.6)
            heapq.heappush(self._frozen, (time.monotonic() + terms * plan.lease_seconds, pid))
            self.counts["freezes"] += 1
            self.counts["long_freezes"] += long

    def _thaw(self, now: float) -> None:
        while self._frozen and self._frozen[0][0] <= now:
            os.kill(heapq.heappop(self._frozen)[1], signal.SIGCONT)

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        del self._living[pid]
        self._frozen = [(at, other) for at, other in self._frozen if other != pid]
        heapq.heapify(self._frozen)


def settle(plan: Plan) -> dict[str, Any]:
    """Do as a fresh reconciler does until nothing is held by the dead; then finish what is left to do."""
    store = open_lease_store(plan)
    worker = Worker("settler", store, Trace(Path(plan.directory), "settler"))
    started = time.monotonic()
    deadline = started + TERMS_TO_SETTLE * plan.lease_seconds + 5
    # What a call that was killed has left shows only when it was watched for a term: quiet for two is settled.
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < 2 * plan.lease_seconds + store.watch_seconds:
        assert time.monotonic() < deadline, f"this does not settle: {_running(store)}"
        settled = store.recover()
        for expired in store.expired():
            taken = worker.take_over(expired)
            if taken is not None:
                settled += 1
                worker.settle(*taken)
        running = _running(store)
        if settled or running:
            quiet_since = time.monotonic()
        time.sleep(store.heartbeat_seconds / 2)  # a store looks twice before it believes
    seconds = time.monotonic() - started
    unclaimed = {stored.record.key for stored in store.unclaimed(limit=10_000)}
    pending = {stored.record.key for stored in _all(store, TaskStatus.PENDING)}
    for key in sorted(pending):
        claimed = store.claim(key, holder="settler", count_attempt=False)
        assert claimed is not None, key
        lease, stored = claimed
        store.end(lease, transitions.completed(stored.record, SYSTEM_CLOCK.now(), b"null"))
    store.recover()
    findings = [list(finding) for finding in store.examine(fix=True)]
    return {
        "settled_after_seconds": seconds,
        "pending": sorted(pending),
        "unclaimed": sorted(unclaimed),
        "findings": findings,
        "left": [list(finding) for finding in store.examine()],
        "control": leftovers(Path(plan.root) / "local" / ".task_tracker"),
        "final": {"/".join(stored.record.key): sight(stored.record) for stored in _all(store)},
    }


def _running(store: LeaseStore) -> list[str]:
    return [
        repr(stored.record)
        for status in (TaskStatus.RUNNING, TaskStatus.CANCELLING)
        for stored in _all(store, status)
    ]


def _all(store: LeaseStore, status: TaskStatus | None = None) -> list[Any]:
    page = store.list(Query(ACCOUNT, status=status, limit=None))
    assert not page.corrupt, page.corrupt
    return [*page.items]


def leftovers(control: Path) -> list[str]:
    """Return what is below the control directory's queues but empty folders that stay."""
    places = ("new", "ready", "later", "idle", "leases", "keys", "deletes", "adopt")
    found = []
    for place in places:
        for path in sorted((control / place).rglob("*")):
            is_folder = path.is_dir() and "@" not in path.name
            if not is_folder:
                found.append(str(path.relative_to(control)))
    return found


def main(plan: Plan) -> None:
    directory = Path(plan.directory)
    open_lease_store(plan).close()  # marks the root, so that there is something to observe
    stop, stopped = os.pipe()

    def look() -> None:
        os.close(stopped)
        os.nice(5)
        observe(
            Path(plan.root) / "local", directory / "seen", lambda: bool(select.select([stop], [], [], 0)[0])
        )

    observer = fork(look)
    os.close(stop)
    conductor = Conductor(plan)
    try:
        conductor.run()
        end, report = os.pipe()
        last = fork(lambda: os.write(report, json.dumps(settle(plan)).encode()) and None)
        os.close(report)
        with os.fdopen(end) as told:
            settled = json.loads(told.read() or "null")
        assert os.waitpid(last, 0)[1] == 0, "the last process failed; its error is above"
    finally:
        os.close(stopped)
    assert os.waitpid(observer, 0)[1] == 0, "the observer failed; its error is above"
    print(json.dumps({"counts": conductor.counts, **settled}))  # noqa: T201  # that is how it answers


if __name__ == "__main__":
    main(Plan(**json.loads(sys.argv[1])))
