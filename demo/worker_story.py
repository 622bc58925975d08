"""The third part of the story: a durable ingestion, whose workers are killed and frozen in the middle of it.

Each check is real: it compares what the store, the index or a worker's log say, and raises DemoFailed.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from demo.database import DemoTables
from demo.ingestion import INDEX, THINKING, Document, Index, cut, registry
from demo.processes import PROJECT, DemoFailed, Process, Stage
from demo.screen import Screen
from demo.server import ACCOUNT, USER
from task_tracker import StorageConfig, TaskRecord

LEASE_SECONDS: Final = 2.0
HEARTBEAT_SECONDS: Final = LEASE_SECONDS / 5
ENOUGH_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.05
PAGES: Final = 6
"""In each of the two rounds."""
PARTS: Final = 8
THINKS_AT: Final = 3
OWNER: Final[dict[str, Any]] = {"account_id": ACCOUNT, "user_id": USER}


class WorkerStory:
    """One run, in a directory beside that of the servers."""

    def __init__(self, stage: Stage, screen: Screen, *, pace: float, dsn: str | None = None) -> None:
        """``dsn``: the records are in PostgreSQL, in tables of the demo's own that are dropped in the end."""
        self.stage = stage
        self.screen = screen
        self._database = None if dsn is None else DemoTables(dsn)
        self._index_file = stage.directory / "index.sqlite"
        self._part_seconds = 0.12 * pace
        self._deadline = time.monotonic() + ENOUGH_SECONDS
        self._pages = sorted((PROJECT / "docs").glob("*.md"))[: 2 * PAGES]
        place: dict[str, Any] = {"backend": "lease", "root": str(stage.directory / "ingestion")}
        if self._database is not None:
            place = self._database.settings
        settings = {**place, "lease_seconds": LEASE_SECONDS, "heartbeat_seconds": HEARTBEAT_SECONDS}
        self._config = stage.directory / "ingestion.json"
        self._config.write_text(json.dumps({"storage": {"task_tracker": settings}}))
        self._tracker = StorageConfig(task_tracker=settings).build_task_tracker(handlers=registry)
        self._index = Index(self._index_file)
        self._workers: dict[str, Process] = {}
        self._submitted: list[TaskRecord] = []
        self._checks = 0

    def tell(self) -> None:
        """Tell it from beginning to end. Raises DemoFailed."""
        self.stage.stop_all()
        with self._database or contextlib.nullcontext(), self._tracker:
            self._submit_and_work()
            killed = self._kill()
            frozen = self._freeze()
            self._every_task_ended_once(killed, frozen)
            self.stage.stop_all()
        self.screen.step(
            f"Done: {len(self._submitted)} more tasks, {len(self._workers)} worker processes (one killed, one frozen), "
            f"{len(self._index.refused())} late write refused, {self._checks} more checks, none of them failed."
        )

    # ---- the parts -----------------------------------------------------------------------------------

    def _submit_and_work(self) -> None:
        self.screen.step("14. A durable ingestion: tasks are submitted, workers carry them out")
        self._submit(self._pages[:PAGES])
        self.screen.say(
            f"{PAGES} pages of this project's documentation are to be cut into {PARTS} parts each and put into an "
            "index, an SQLite file. Submitting stores what is to be done, type and payload; the function that does it "
            "is the workers'. They are processes of their own, `python -m task_tracker worker`, on the same "
            f"{self._place}."
        )
        for name in ("F", "G"):
            self._start(name)

    def _kill(self) -> TaskRecord:
        self.screen.step("15. A worker is killed in mid-task")
        task, worker = self._until_thinking()
        worker.kill()
        killed_at = time.monotonic()
        task = self._get(task)
        self._expect(
            worker.ended_by() == signal.SIGKILL and (task.status, _holder(task)) == ("running", worker.name),
            f"{worker.name} (process {worker.pid}) is gone in the middle of {task.resource_id}, and nobody has noticed",
        )
        self._start("H")
        self._wait(lambda: _holder(self._get(task)) != worker.name, "nobody took it over")
        taken_seconds = time.monotonic() - killed_at
        task = self._until_ended(task)
        self._expect(
            task.result["from_part"] == THINKS_AT and task.status == "completed",
            f"{taken_seconds:.1f} seconds later {_holder(task)} has it, and goes on from part {THINKS_AT + 1}: the "
            f"checkpoint of {worker.name}",
        )
        self._say_history(task)
        return task

    def _freeze(self) -> TaskRecord:
        self.screen.step("16. A worker is frozen in mid-task, and comes back too late")
        self._submit(self._pages[PAGES:])
        task, worker = self._until_thinking()
        worker.freeze()
        self.screen.say(
            f"{worker.name} (process {worker.pid}) got SIGSTOP while it worked on {task.resource_id}. It stands still, "
            "and does not know it."
        )
        task = self._until_ended(task)
        record = self._stored(task)
        parts = self._index.parts(_name(task))
        self._expect(
            (task.status, _holder(task) != worker.name) == ("completed", True),
            f"{_holder(task)} has taken it over meanwhile, and completed it",
        )
        worker.thaw()
        self.screen.say(
            f"{worker.name} got SIGCONT. It goes on where it stood, as if no time had passed, and wants to write what "
            "it has in hand."
        )
        self._wait(lambda: bool(self._index.refused()), "the index refused nothing")
        self._wait(
            lambda: worker.has_logged('"event":"lease_lost"') and worker.has_logged('"outcome":"lost"'),
            f"{worker.name} was not told that it had lost its task",
        )
        refused = self._index.refused()
        self._expect(
            refused == [(_name(task), THINKS_AT, worker.pid)] and self._index.parts(_name(task)) == parts,
            f"the index refused {len(refused)} write, of {worker.name}: its fence was older than that of the last one",
        )
        self._expect(
            self._stored(task) == record,
            f"the store refused its result, too: the lease was lost, and the record is the same, byte by byte. "
            f"{worker.name} was told, and looks for other work",
        )
        self._say_history(task)
        return task

    def _every_task_ended_once(self, *hit: TaskRecord) -> None:
        self.screen.step("17. Every task has ended exactly once")
        self._wait(
            lambda: not any(self._get(task).status.is_active for task in self._submitted),
            "some tasks did not end",
        )
        ended = [self._get(task) for task in self._submitted]
        rows = [("page", "status", "attempts", "by", "ends", "parts in the index")]
        for task in ended:
            document = Document.model_validate(task.payload)
            whole = self._index.parts(_name(task)) == cut(
                Path(document.path).read_text(encoding="utf-8"), document.parts
            )
            parts = f"{len(self._index.parts(_name(task)))} of {PARTS}{', as in the file' if whole else ', WRONG'}"
            rows.append(
                (
                    str(task.resource_id),
                    task.status,
                    str(_attempts(task)),
                    _holder(task),
                    str(_ends(task)),
                    parts,
                )
            )
            self._count(whole, f"the index has the whole of {task.resource_id}")
        self.screen.table(rows)
        self._expect(
            [_ends(task) for task in ended] == [1] * len(ended)
            and Counter(task.status for task in ended) == {"completed": len(ended)},
            f"{len(ended)} tasks, {len(ended)} ends, all of them completed; no part is missing, none is there twice",
        )
        attempts = {task.task_id: _attempts(task) for task in ended}
        self._expect(
            all(attempts[task.task_id] == 2 for task in hit)
            and sum(attempts.values()) == len(ended) + len(hit),
            f"one attempt each, and two for {' and '.join(str(task.resource_id) for task in hit)}, whose workers were "
            "killed and frozen",
        )

    # ---- doing -------------------------------------------------------------------------------------------

    def _submit(self, pages: Sequence[Path]) -> None:
        """Submit tasks for pages; the first attempt at the second one waits for a model that does not answer."""
        for number, page in enumerate(pages):
            document = Document(
                path=str(page),
                parts=PARTS,
                seconds_per_part=self._part_seconds,
                thinks_at=THINKS_AT if number == 1 else None,
            )
            self._submitted.append(
                self._tracker.submit("ingest", document, resource_id=page.stem, dedupe=True, **OWNER).record
            )

    def _start(self, name: str) -> None:
        arguments = ["--handlers=demo.ingestion:registry", f"--config={self._config}", f"--name={name}"]
        arguments += ["--concurrency=1", "--drain-seconds=1", "--log-format=json"]
        worker = self.stage.start_worker(name, arguments, {INDEX: str(self._index_file)})
        self._workers[name] = worker
        self.screen.say(f"Worker {name}: process {worker.pid}, one task at a time.")

    def _until_thinking(self) -> tuple[TaskRecord, Process]:
        """Show the work until somebody waits for a model; return the task and who holds it."""
        thinking: list[TaskRecord] = []

        def look() -> bool:
            thinking[:] = [task for task in self._running() if task.stage == THINKING]
            return bool(thinking)

        self._wait(look, "no worker came to wait for a model")
        (task,) = thinking
        return task, self._workers[_holder(task)]

    def _until_ended(self, task: TaskRecord) -> TaskRecord:
        self._wait(lambda: not self._get(task).status.is_active, "it did not end")
        return self._get(task)

    # ---- asking and checking ---------------------------------------------------------------------------

    def _get(self, task: TaskRecord) -> TaskRecord:
        record = self._tracker.get(task.task_id, **OWNER)
        if record is None:
            raise DemoFailed(f"task {task.task_id} is gone")
        return record

    def _running(self) -> list[TaskRecord]:
        return self._tracker.list_tasks(status="running", limit=None, **OWNER)

    @property
    def _place(self) -> str:
        return "directory" if self._database is None else "tables of PostgreSQL"

    def _stored(self, task: TaskRecord) -> bytes:
        """Return the record as it is stored, byte by byte."""
        if self._database is not None:
            return self._database.record(task.task_id)
        (path,) = self.stage.directory.glob(f"ingestion/local/{ACCOUNT}/tasks/{USER}/{task.task_id}.json")
        return path.read_bytes()

    def _say_history(self, task: TaskRecord) -> None:
        steps: list[str] = []
        last = None
        for entry in task.history or []:
            if entry["status"] != last:  # the others tell of stages
                last = entry["status"]
                about = f"attempt {entry['attempt']}" if last == "running" else entry.get("error_code")
                steps.append(f"{last} ({about})" if about else last)
        self.screen.say(f"Its history: {', '.join(steps)}.")

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Show the tasks until ``condition`` holds."""
        while not condition():
            self.screen.show([self._get(task).to_dict() for task in self._submitted])
            if time.monotonic() > self._deadline:
                raise DemoFailed(f"{otherwise} within {ENOUGH_SECONDS:.0f} seconds")
            time.sleep(LOOK_SECONDS)
        self.screen.show([self._get(task).to_dict() for task in self._submitted])

    def _count(self, holds: bool, fact: str) -> None:
        self._checks += 1
        if not holds:
            raise DemoFailed(f"this does not hold: {fact}")

    def _expect(self, holds: bool, fact: str) -> None:
        self._count(holds, fact)
        self.screen.fact(fact)


def _holder(task: TaskRecord) -> str:
    return task.attempt.holder if task.attempt is not None else "nobody"


def _attempts(task: TaskRecord) -> int:
    return task.attempt.count if task.attempt is not None else 0


def _name(task: TaskRecord) -> str:
    return Path(Document.model_validate(task.payload).path).stem


def _ends(task: TaskRecord) -> int:
    """How often its history says that it has ended."""
    return sum(entry["status"] in ("completed", "failed", "cancelled") for entry in task.history or [])
