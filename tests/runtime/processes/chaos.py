"""Workers on one store, killed, frozen, stopped, with clocks that step and disks that are full.

::

    python -m tests.runtime.processes.chaos '{"tasks": 3000, "kills": 200, "freezes": 200}'

The argument is a JSON object: keys of the :class:`Plan`, and everything else is the store's configuration
(``{"backend": ..., "options": {...}}``; by itself the lease backend in a directory that is removed afterwards, for
"postgres" without a dsn a server of its own). It prints what happened as one JSON object and ends with 1 if any promise
was broken.

Owns the order of things, which a seed decides; how they meet what workers do, the machine decides. In the end all are
killed, and a fresh worker settles and finishes what is left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import random  # noqa: TID251  # seeded: when who is hit
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from task_tracker import TaskRecord, TaskTracker
from task_tracker.errors import StoreUnavailable
from task_tracker.store import Query
from task_tracker.worker.worker import Worker
from tests.core.support import OWNER
from tests.lease.processes.conductor import fork, leftovers
from tests.runtime.processes.clients import Client, end_of
from tests.runtime.processes.clocks import Clocks, HostClock
from tests.runtime.processes.crowd import HOUR, Crowd
from tests.runtime.processes.disk import Disk, can_mount, with_mounts
from tests.runtime.processes.journal import Journal, tell
from tests.runtime.processes.judging import Told, evidence, figures, violations
from tests.runtime.processes.ledger import hear
from tests.runtime.processes.plan import Plan, open_tracker
from tests.runtime.processes.servers import Servers, started
from tests.runtime.processes.tasks import DIRECTORY
from tests.runtime.processes.watched import listen_for_losses, watch_leases

__all__ = ["conduct"]

PROJECT = Path(__file__).resolve().parent.parent.parent.parent
LOOK_SECONDS = 0.01
AGAIN_SECONDS = 0.05
MAY_MOUNT = "CHAOS_MAY_MOUNT"
"""The environment variable that says so: this process has mounts of its own."""


def conduct(plan: Plan) -> dict[str, Any]:
    """Carry out a plan in processes of its own; return the violations and the figures."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(dataclasses.asdict(plan))],
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
    assert told, "the conductor failed; its error is above"
    return json.loads(told)  # type: ignore[no-any-return]


# ---- in processes of their own ---------------------------------------------------------------------------


class Conductor:
    """Carries out a plan. Opens no store: those who use one have it to themselves."""

    def __init__(self, servers: Servers, disk: Disk | None) -> None:
        self._plan = plan = servers.plan
        self._servers = servers
        self._disk = disk
        self._directory = Path(plan.directory)
        self._dice = random.Random(plan.seed)
        # One more host, whose time is later than any other's: it finishes.
        self._clocks = Clocks(self._directory / "clocks", plan.workers + plan.clients + 1)
        self._journal = Journal()
        self._submitted = self._cancelled = 0

    def run(self) -> tuple[Told, Mapping[str, int]]:
        """Do it all, kill everybody, and have a fresh worker finish."""
        plan = self._plan
        deadline = time.monotonic() + plan.patience_seconds
        open_tracker(
            plan, HostClock(self._clocks, 0)
        ).close()  # makes what there is to make, while nobody is killed
        crowd = Crowd(plan, self._clocks, self._disk, self._servers, self._work, self._ask)
        next_blow = time.monotonic()
        while crowd.left() or self._submitted < plan.tasks or self._cancelled < plan.cancels:
            assert time.monotonic() < deadline, f"no progress: {crowd.counts}, {self._submitted} tasks"
            self._listen()
            crowd.tick()
            if time.monotonic() >= next_blow:
                crowd.strike()
                next_blow = time.monotonic() + self._dice.uniform(0.5, 1.5) * plan.pace_seconds
        crowd.calm()
        self._enough.touch()
        crowd.wait_for_clients(deadline, self._listen)
        crowd.kill_all()
        last = fork(lambda: self._finish(deadline))
        while os.waitpid(last, os.WNOHANG) == (0, 0):
            self._listen()
        self._journal.finish()
        assert self._end.exists(), "what was left could not be finished; the error is above"
        end = json.loads(self._end.read_text())
        told = Told(self._directory, plan.lease_seconds, self._journal.lines, end["records"], end["left"])
        return told, crowd.counts

    @property
    def _enough(self) -> Path:
        """Says to clients that they have asked enough."""
        return self._directory / "enough"

    @property
    def _end(self) -> Path:
        """What there was at last."""
        return self._directory / "end"

    def _listen(self) -> None:
        for line in self._journal.listen(LOOK_SECONDS):
            self._submitted += line["what"] == "submitted"
            self._cancelled += line["what"] == "cancel"

    # ---- what the processes do --------------------------------------------------------------------------

    def _ask(self, host: int) -> None:
        logging.disable(logging.ERROR)
        tracker = self._opened(HostClock(self._clocks, host))
        Client(self._plan, tracker, host, self._enough.exists).run()

    def _work(self, host: int) -> None:
        listen_for_losses()
        clock = HostClock(self._clocks, host)
        tracker = self._opened(clock)
        store = tracker.access.leases
        assert store is not None, "workers need a store with leases"
        watch_leases(store, clock)
        _worker(tracker).run()

    def _opened(self, clock: HostClock) -> TaskTracker:
        """Open the store, as often as it takes: a disk that is full cannot be tried out."""
        while True:
            try:
                return open_tracker(self._plan, clock)
            except StoreUnavailable as error:
                tell("unanswered", error=str(error)[:200])
            time.sleep(AGAIN_SECONDS)

    def _finish(self, deadline: float) -> None:
        logging.disable(logging.ERROR)
        self._clocks.step_to(self._clocks.hosts - 1, 24 * HOUR)
        tracker = open_tracker(self._plan, HostClock(self._clocks, self._clocks.hosts - 1))
        store = tracker.store
        worker = _worker(tracker)
        while active := [record for record in _all(tracker) if record.status.is_active]:
            assert time.monotonic() < deadline, f"this does not settle: {active[:5]}"
            self._servers.let_all_be_due()
            worker.run_once()
            time.sleep(self._plan.lease_seconds / 6)  # a store looks twice before it believes
        left: list[Any] = [list(finding) for finding in store.examine(fix=True) if not finding.fixed]
        # The last that was killed may fall silent only now, which is no trace of a fault.
        left += [list(finding) for finding in store.examine() if finding.kind != "silent_worker"]
        if self._plan.root is not None:
            left += leftovers(self._plan.root / "local" / ".task_tracker")
        records = {record.task_id: _seen(record) for record in _all(tracker)}
        staged = self._end.with_suffix(".staged")
        staged.write_text(json.dumps({"records": records, "left": left}))
        staged.replace(self._end)
        tracker.close()


def _worker(tracker: TaskTracker) -> Worker:
    return Worker(tracker, concurrency=4, poll_seconds=(0.005, 0.05), drain_seconds=5, hooks=[hear])


def _all(tracker: TaskTracker) -> list[TaskRecord]:
    page = tracker.store.list(Query(**OWNER, limit=None))
    assert not page.corrupt, page.corrupt
    return [stored.record for stored in page.items]


def _seen(record: TaskRecord) -> dict[str, Any]:
    end = end_of(record)
    return {
        "type": record.task_type,
        "status": record.status.value,
        "code": record.error_code,
        "epoch": end[2],
        "end": end,
        "result": record.result,
        "history": record.history or [],
    }


def main(document: Mapping[str, Any]) -> int:
    """Carry out the plan in ``document`` here; print what came of it."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as made:
        plan = Plan.of({"directory": made, **document})
        os.environ[DIRECTORY] = plan.directory
        began = time.monotonic()
        full = Disk(plan.root) if plan.full_stores and plan.root else contextlib.nullcontext()
        with full as disk, started(plan) as servers:
            told, counts = Conductor(servers, disk).run()
        wrong = violations(told)
        answer = {
            "violations": wrong,
            "evidence": evidence(told, wrong),
            "figures": {**figures(told), **counts, "seconds": round(time.monotonic() - began)},
        }
    print(json.dumps(answer))  # noqa: T201  # that is how it answers
    return 1 if wrong else 0


if __name__ == "__main__":
    given = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    if given.get("full_stores") and not os.environ.get(MAY_MOUNT):
        if not can_mount():
            sys.exit("full_stores needs the right to mount; leave it out")
        os.environ[MAY_MOUNT] = "yes"
        command = with_mounts([sys.executable, "-m", "tests.runtime.processes.chaos", *sys.argv[1:]])
        os.execvp(command[0], command)
    sys.exit(main(given))
