"""The story: what is done, what is checked, and what is said about it.

Each check is real: it compares what both servers answer, or what is on the disk, and raises DemoFailed.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import httpx
import orjson

from demo.processes import DemoFailed, ServerProcess, Stage
from demo.screen import Screen, Task

ENOUGH_SECONDS: Final = 60.0
"""On a machine that has nothing else to do this part takes a third of that, or something is wrong."""
LOOK_SECONDS: Final = 0.1
FIRST_TASKS: Final = 5


class Story:
    """One run. ``pace`` stretches the work: 1 is for people, less is for tests."""

    def __init__(self, stage: Stage, screen: Screen, *, pace: float) -> None:
        self.stage = stage
        self.screen = screen
        self._work_seconds = 2.4 * pace
        self._deadline = time.monotonic() + ENOUGH_SECONDS
        self._task_ids: list[str] = []
        self._checks = 0

    def tell(self) -> None:
        """Tell it from beginning to end. Raises DemoFailed."""
        front, back = self._two_servers()
        self._tasks_on_one(front)
        self._progress_seen_from_the_other(front)
        self._cancel(front)
        before = self._kill(front, back)
        self._only_one_left(front, back)
        front = self._restart(back, before)
        self._until_the_end(front)
        self._both_answer_the_same(front, back)
        self.screen.step(
            f"Done: {len(self._task_ids)} tasks, 3 server processes (one killed), {self._checks} checks, "
            "none of them failed. A line marked ok may stand for many: what the two servers answer is compared "
            "answer by answer, in status, body and ETag."
        )

    # ---- the parts -----------------------------------------------------------------------------------

    def _two_servers(self) -> tuple[ServerProcess, ServerProcess]:
        self.screen.step("1. Two servers, one directory")
        self.screen.say(
            f"Both keep their tasks below {self.stage.name}/tasks, with the persistent backend of "
            "task_tracker. They know nothing of each other, and nothing else is shared."
        )
        front, back = self.stage.start("A"), self.stage.start("B", works=True)
        for server, does in ((front, "takes on tasks"), (back, "works on whatever is pending")):
            server.wait_until_ready()
            self.screen.say(f"Server {server.name}: process {server.pid}, port {server.port}; {does}.")
        return front, back

    def _tasks_on_one(self, front: ServerProcess) -> None:
        self.screen.step("2. Tasks are created on A")
        for _ in range(FIRST_TASKS):
            self._create(front)
        self.screen.say(
            f"POST /api/v1/sessions/.../commit on A, {FIRST_TASKS} times. Each was answered at once with 202 and a "
            f"task_id, such as {self._task_ids[0]}: when the answer is out, the record is on the disk."
        )
        self._expect(
            len(self.stage.record_files()) == FIRST_TASKS, f"{FIRST_TASKS} tasks are {FIRST_TASKS} JSON files"
        )

    def _progress_seen_from_the_other(self, front: ServerProcess) -> None:
        self.screen.step("3. B works on them, A shows how far it has got")
        self.screen.say(
            "B finds pending tasks in the directory. What you see are answers of A: GET /api/v1/tasks."
        )
        self._watch(front, lambda tasks: _number(tasks, "completed") >= 2)

    def _cancel(self, front: ServerProcess) -> None:
        self.screen.step("4. A task is cancelled on A while B works on it")
        cancelled = self._cancel_one_running(front)
        self._watch(front, lambda tasks: _by_id(tasks)[cancelled]["status"] == "cancelled")
        self.screen.say(
            "A answered `cancelling`; B asks between two steps whether to go on, stopped, and said so."
        )
        again = front.ask("POST", f"/tasks/{cancelled}/cancel")
        self._expect(
            again.status_code == 412, "cancelling it once more is refused: 412, it has ended already"
        )

    def _kill(self, front: ServerProcess, back: ServerProcess) -> dict[str, httpx.Response]:
        self.screen.step("5. A is killed")
        tasks = self._list(front)
        before = {
            task["task_id"]: front.ask("GET", f"/tasks/{task['task_id']}")
            for task in tasks
            if task["status"] in ("completed", "cancelled")
        }
        last = self._create(front)
        front.kill()
        self.screen.say(
            f"A took on one more task, {last['resource_id']}, and got SIGKILL right after its answer: no handler "
            "ran, nothing was flushed, B was not told."
        )
        self._expect(front.ended_by() == signal.SIGKILL, f"process {front.pid} is gone")
        self._expect(last["task_id"] in _by_id(self._list(back)), f"B has {last['resource_id']}, too")
        return before

    def _only_one_left(self, front: ServerProcess, back: ServerProcess) -> None:
        self.screen.step("6. B answers for everything and goes on working")
        found = [back.ask("GET", f"/tasks/{task_id}") for task_id in self._task_ids]
        self._expect(
            all(answer.status_code == 200 for answer in found),
            f"all {len(found)} tasks, created on {front.name}, are answered for by {back.name}",
        )
        ended = _ended(self._list(back))
        self._watch(back, lambda tasks: _ended(tasks) > ended or _ended(tasks) == len(tasks))

    def _restart(self, back: ServerProcess, before: dict[str, httpx.Response]) -> ServerProcess:
        self.screen.step("7. A is started again")
        front = self.stage.start("A")
        front.wait_until_ready()
        self.screen.say(
            f"A new process, {front.pid}, on port {front.port}. Its memory is empty; it has the directory."
        )
        self._compare(before, {task_id: front.ask("GET", f"/tasks/{task_id}") for task_id in before})
        self.screen.fact(
            f"what the killed A had said of {len(before)} tasks that had ended, the new A says byte by byte"
        )
        listed = [set(_by_id(self._list(server))) for server in (front, back)]
        self._expect(
            listed == [set(self._task_ids)] * 2,
            f"both list all {len(self._task_ids)} tasks, also the one of 5",
        )
        return front

    def _until_the_end(self, front: ServerProcess) -> None:
        self.screen.step("8. The rest is finished")
        self._watch(front, lambda tasks: _ended(tasks) == len(tasks))

    def _both_answer_the_same(self, front: ServerProcess, back: ServerProcess) -> None:
        self.screen.step("9. Both answer for all of it, and say the same")
        statuses = Counter(task["status"] for task in self._list(front))
        wanted = {"completed": len(self._task_ids) - 1, "cancelled": 1}
        self._expect(
            statuses == wanted, f"{wanted['completed']} completed, 1 cancelled, none lost, none running"
        )
        paths = ["/tasks", "/tasks/stats", *(f"/tasks/{task_id}" for task_id in self._task_ids)]
        self._compare(
            {path: front.ask("GET", path) for path in paths}, {path: back.ask("GET", path) for path in paths}
        )
        self.screen.fact(f"{len(paths)} requests to each of them, identical bodies and ETags")
        missing = "/tasks/no-such-task"
        stranger = {"X-User": "bob"}
        answers = [
            answer
            for server in (front, back)
            for answer in (
                server.ask("GET", missing),
                server.ask("GET", f"/tasks/{self._task_ids[0]}", headers=stranger),
            )
        ]
        self._expect(
            {answer.status_code for answer in answers} == {404}, "unknown tasks and other users' tasks: 404"
        )
        records = [orjson.loads(path.read_bytes()) for path in self.stage.record_files()]
        self._expect(
            sorted(record["task_id"] for record in records) == sorted(self._task_ids)
            and Counter(record["status"] for record in records) == wanted,
            f"the directory holds {len(records)} whole JSON files that say the same",
        )
        self.screen.say(
            "What this backend does not do: notice that a process died in the middle of its work. Had B been "
            "killed, its running tasks would have stayed `running`. That takes leases: see below."
        )

    # ---- asking and checking ---------------------------------------------------------------------------

    def _create(self, server: ServerProcess) -> Task:
        session = f"sess-{len(self._task_ids) + 1}"
        answer = server.ask("POST", f"/sessions/{session}/commit", params={"seconds": self._work_seconds})
        task_id = _result(answer, 202)["task_id"]
        self._task_ids.append(task_id)
        return {"task_id": task_id, "resource_id": session}

    def _list(self, server: ServerProcess) -> list[Task]:
        """Return the tasks, oldest first."""
        listed: list[Task] = _result(server.ask("GET", "/tasks"), 200)
        return listed[::-1]

    def _watch(self, server: ServerProcess, enough: Callable[[Sequence[Task]], bool]) -> None:
        """Show the server's tasks until it is enough."""
        while True:
            tasks = self._list(server)
            self.screen.show(tasks)
            failed = [task for task in tasks if task["status"] == "failed"]
            if failed:
                raise DemoFailed(f"a task failed: {failed[0]['error']}")
            if enough(tasks):
                return
            if time.monotonic() > self._deadline:
                raise DemoFailed(f"the demo took more than {ENOUGH_SECONDS:.0f} seconds")
            time.sleep(LOOK_SECONDS)

    def _cancel_one_running(self, server: ServerProcess) -> str:
        while True:
            self._watch(server, lambda tasks: bool(_half_done(tasks)) or _ended(tasks) == len(tasks))
            candidates = _half_done(self._list(server))
            if not candidates:  # a very slow terminal: all had been done before it came to this
                self._create(server)
                continue
            chosen = candidates[0]
            answer = server.ask("POST", f"/tasks/{chosen['task_id']}/cancel")
            if answer.status_code == 200:
                self.screen.say(f"POST /api/v1/tasks/{chosen['task_id']}/cancel ({chosen['resource_id']})")
                return str(chosen["task_id"])
            self._expect(answer.status_code == 412, "it ended before it could be cancelled; another one then")

    def _compare(self, one: dict[str, httpx.Response], other: dict[str, httpx.Response]) -> None:
        for name, answer in one.items():
            twin = other[name]
            for what, left, right in (
                ("status", answer.status_code, twin.status_code),
                ("body", answer.content, twin.content),
                ("ETag", answer.headers.get("etag"), twin.headers.get("etag")),
            ):
                self._checks += 1
                if left != right:
                    raise DemoFailed(f"{name} differs in its {what}:\n  {left!r}\n  {right!r}")

    def _expect(self, holds: bool, fact: str) -> None:
        self._checks += 1
        if not holds:
            raise DemoFailed(f"this does not hold: {fact}")
        self.screen.fact(fact)


def _result(answer: httpx.Response, status: int) -> Any:
    if answer.status_code != status:
        raise DemoFailed(
            f"{answer.request.method} {answer.request.url} gave {answer.status_code}: {answer.text[:300]}"
        )
    return answer.json()["result"]


def _by_id(tasks: Sequence[Task]) -> dict[str, Task]:
    return {task["task_id"]: task for task in tasks}


def _number(tasks: Sequence[Task], status: str) -> int:
    return sum(task["status"] == status for task in tasks)


def _half_done(tasks: Sequence[Task]) -> list[Task]:
    return [task for task in tasks if task["status"] == "running" and 25 <= (task.get("progress") or 0) < 90]


def _ended(tasks: Sequence[Task]) -> int:
    return sum(_number(tasks, status) for status in ("completed", "cancelled", "failed"))
