"""The second part of the story: the same directory with leases, a worker that is killed, one that is frozen.

Each check is real: it compares what a server answers, or what is on the disk, and raises DemoFailed.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from demo.processes import DemoFailed, ServerProcess, Stage
from demo.screen import Screen, Task

LEASE_SECONDS: Final = 1.5
HEARTBEAT_SECONDS: Final = LEASE_SECONDS / 3
ENOUGH_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.05
LONG_WORK_SECONDS: Final = 60.0
"""Nobody waits for it: whoever works on it is stopped before."""


class LeaseStory:
    """One run, on the directory that the first part has left."""

    def __init__(self, stage: Stage, screen: Screen, *, pace: float) -> None:
        self.stage = stage
        self.screen = screen
        self._work_seconds = 1.2 * pace
        self._deadline = time.monotonic() + ENOUGH_SECONDS
        self._created = 0
        self._checks = 0

    def tell(self) -> None:
        """Tell it from beginning to end. Raises DemoFailed."""
        before = Counter(path.name for path in self.stage.record_files())
        self.stage.stop_all()
        front, back = self._with_leases(sum(before.values()))
        self._killed(front, back)
        back = self._frozen(front)
        self._goes_on(front, back)
        self.screen.step(
            f"Done: {self._created} more tasks, 3 more server processes (one killed, one frozen), "
            f"{self._checks} more checks, none of them failed."
        )

    # ---- the parts -----------------------------------------------------------------------------------

    def _with_leases(self, tasks: int) -> tuple[ServerProcess, ServerProcess]:
        self.screen.step("10. The same directory, with leases")
        front, back = self._start("C"), self._start("D", works=True)
        self.screen.say(
            f"A and B have stopped. C (process {front.pid}, takes on tasks) and D (process {back.pid}, works) use the "
            f"lease backend: whoever starts a task holds it for {LEASE_SECONDS:g} seconds at a time and says every "
            f"{HEARTBEAT_SECONDS:g} seconds that it lives. One line of configuration is all that differs."
        )
        self._expect(
            len(_tasks(front)) == len(_tasks(back)) == tasks,
            f"both list the {tasks} tasks that the persistent backend has left",
        )
        return front, back

    def _killed(self, front: ServerProcess, back: ServerProcess) -> None:
        self.screen.step("11. D is killed in the middle of its work")
        task_id = self._create(front, LONG_WORK_SECONDS)
        self._until(front, task_id, lambda task: (task.get("progress") or 0) > 0)
        back.kill()
        killed_at = time.monotonic()
        self._expect(
            back.ended_by() == signal.SIGKILL and _task(front, task_id)["status"] == "running",
            f"process {back.pid} is gone, and its task is still running, as far as anybody knows",
        )
        task = self._until(front, task_id, lambda task: task["status"] != "running")
        self._expect(
            (task["status"], task["error_code"]) == ("failed", "holder_lost"),
            f"{time.monotonic() - killed_at:.1f} seconds later C has failed it: holder_lost",
        )
        self.screen.say(f"The task says: {task['error']}.")

    def _frozen(self, front: ServerProcess) -> ServerProcess:
        self.screen.step("12. E is frozen, replaced, and wakes up")
        back = self._start("E", works=True)
        task_id = self._create(front, LONG_WORK_SECONDS)
        self._until(front, task_id, lambda task: (task.get("progress") or 0) > 0)
        back.freeze()
        self.screen.say(
            f"E (process {back.pid}) had begun to work on it and got SIGSTOP. It is not dead: it stands still, in the "
            "middle of whatever it did, and will go on as if no time had passed."
        )
        task = self._until(front, task_id, lambda task: task["status"] != "running")
        self._expect(task["error_code"] == "holder_lost", "C has settled the task meanwhile: holder_lost")
        (path,) = [path for path in self.stage.record_files() if path.stem == task_id]
        settled = path.read_bytes()
        back.thaw()
        self._wait(lambda: back.has_logged("LeaseLost"), "E did not notice that it had lost its task")
        self._expect(
            path.read_bytes() == settled,
            "E went on, was refused with LeaseLost and stopped working on it; the record is the same, byte by byte",
        )
        return back

    def _goes_on(self, front: ServerProcess, back: ServerProcess) -> None:
        self.screen.step("13. Nothing is left running for ever")
        task_id = self._create(front, self._work_seconds)
        task = self._until(front, task_id, lambda task: task["status"] == "completed")
        self._expect(
            task["result"]["by_process"] == back.pid,
            f"E, process {back.pid}, completes the next task as ever",
        )
        statuses = Counter(task["status"] for task in _tasks(front))
        self._expect(
            set(statuses) == {"completed", "cancelled", "failed"} and statuses["failed"] == 2,
            f"{statuses['completed']} completed, {statuses['cancelled']} cancelled, 2 failed since their holder was "
            "lost, none running",
        )

    # ---- asking and checking ---------------------------------------------------------------------------

    def _start(self, name: str, *, works: bool = False) -> ServerProcess:
        server = self.stage.start(name, works=works, lease_seconds=LEASE_SECONDS)
        server.wait_until_ready()
        return server

    def _create(self, server: ServerProcess, seconds: float) -> str:
        self._created += 1
        path = f"/sessions/leased-{self._created}/commit"
        return str(_result(server, "POST", path, params={"seconds": seconds})["task_id"])

    def _until(self, server: ServerProcess, task_id: str, enough: Callable[[Task], bool]) -> Task:
        """Show the task until it is enough, and return it."""
        task: Task = {}

        def look() -> bool:
            nonlocal task
            task = _task(server, task_id)
            self.screen.show([task])
            return enough(task)

        self._wait(look, f"task {task_id} did not come so far")
        return task

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        while not condition():
            if time.monotonic() > self._deadline:
                raise DemoFailed(f"{otherwise} within {ENOUGH_SECONDS:.0f} seconds")
            time.sleep(LOOK_SECONDS)

    def _expect(self, holds: bool, fact: str) -> None:
        self._checks += 1
        if not holds:
            raise DemoFailed(f"this does not hold: {fact}")
        self.screen.fact(fact)


def _result(server: ServerProcess, method: str, path: str, **options: Any) -> Any:
    answer = server.ask(method, path, **options)
    if not answer.is_success:
        raise DemoFailed(f"{method} {path} gave {answer.status_code}: {answer.text[:300]}")
    return answer.json()["result"]


def _task(server: ServerProcess, task_id: str) -> Task:
    task: Task = _result(server, "GET", f"/tasks/{task_id}")
    return task


def _tasks(server: ServerProcess) -> list[Task]:
    tasks: list[Task] = _result(server, "GET", "/tasks")
    return tasks
