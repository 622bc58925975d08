"""The example's documents and tasks, on a real server: they agree, wherever an attempt ends."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from examples import documents_in_one_transaction as example
from task_tracker import LeaseLost, StorageConfig, TaskRecord, TaskTracker
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.records import TaskStatus
from task_tracker.store import Stored
from task_tracker.worker import Worker
from tests.core.support import OWNER
from tests.postgres.cutting import Scissors, cut_opener
from tests.postgres.grounds import Ground
from tests.runtime.workers import InThread, no_thread_is_left

TEXT = "".join(str(number % 10) * example.CHARACTERS_PER_CHUNK for number in range(4))


class Library:
    """A server with documents, and workers beside it."""

    def __init__(self, ground: Ground) -> None:
        self.ground = dataclasses.replace(
            ground, dsn=make_conninfo(ground.dsn, options=f'-c search_path="{ground.names.schema}"')
        )
        self.scissors = Scissors()
        self.store = self.ground.store(open_connection=cut_opener(self.ground, self.scissors))
        self.other = self.ground.store()
        self.tracker = TaskTracker(self.store, handlers=example.registry, retention=None)
        self.connection = psycopg.connect(self.ground.dsn, autocommit=True)
        self.connection.execute(example.SCHEMA)

    def add(self, name: str = "a.txt", body: str = TEXT) -> TaskRecord:
        return example.add_document(self.tracker, self.connection, name, body, OWNER)

    def work(self) -> None:
        """Run all attempts that are due, in this thread."""
        Worker(self.tracker, example.registry).run_once()

    def take_over(self) -> Any:
        """Have another worker take the only task over, as if this one had been silent for long."""
        self.ground.lapse(1000)
        (expired,) = self.other.expired()
        taken = self.other.take_over(expired, holder="another worker")
        assert taken is not None
        return taken

    def task(self, task: TaskRecord) -> TaskRecord:
        answer = self.other.get(task.key)
        assert isinstance(answer, Stored)
        return answer.record

    def document(self, name: str = "a.txt") -> tuple[Any, ...]:
        """State, task, epoch, problem."""
        ((*row,),) = self.connection.execute(
            "SELECT state, task_id, epoch, problem FROM documents WHERE name = %s", [name]
        ).fetchall()
        return tuple(row)

    def chunks(self, name: str = "a.txt") -> str:
        return "".join(
            text
            for (text,) in self.connection.execute(
                "SELECT body FROM chunks WHERE document = %s ORDER BY number", [name]
            )
        )

    def close(self) -> None:
        self.connection.execute("DROP TABLE chunks, documents")
        self.connection.close()
        self.tracker.close()
        self.other.close()


@pytest.fixture
def library(ground: Ground) -> Iterator[Library]:
    with no_thread_is_left(), closing(Library(ground)) as made:
        yield made


def during(monkeypatch: pytest.MonkeyPatch, number: int, action: Any) -> None:
    """Do something while the chunk of this number is embedded, for the first time."""
    seen: list[str] = []

    async def embed(text: str) -> str:
        seen.append(text)
        if len(seen) == number + 1:
            await asyncio.to_thread(action)
        return text

    monkeypatch.setattr(example, "embed", embed)


def test_a_document_is_ready_when_its_task_has_completed(library: Library) -> None:
    task = library.add()
    assert library.document() == ("waiting", task.task_id, 0, None)
    library.work()
    record = library.task(task)
    assert record.attempt is not None
    assert record.result == {"document": "a.txt", "chunks": 4, "from_chunk": 0}
    assert library.document() == ("ready", task.task_id, record.attempt.epoch, None)
    assert library.chunks() == TEXT


def test_a_document_that_is_refused_leaves_no_task(library: Library) -> None:
    """Rolled back together: while one task works on it there is no second one."""
    task = library.add()
    with pytest.raises(RuntimeError, match="being ingested"):
        library.add(body="other")
    assert [record.task_id for record in library.tracker.list_tasks(account_id="acme")] == [task.task_id]
    library.work()
    shorter = library.add(body="short")
    library.work()
    assert library.task(shorter).status is TaskStatus.COMPLETED
    assert library.chunks() == "short"


def test_an_attempt_that_was_taken_over_writes_nothing_more(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D007] [D008] [D023] [D026] The next one goes on from the last chunk that was committed with its checkpoint."""
    task = library.add()
    taken: list[Any] = []
    during(monkeypatch, 2, lambda: taken.append(library.take_over()))
    library.work()
    assert library.chunks() == TEXT[: 2 * example.CHARACTERS_PER_CHUNK]
    lease, stored = taken[0]
    assert stored.record.meta["_checkpoint"] == {"chunks": 2}
    assert library.document()[:3] == ("ingesting", task.task_id, lease.epoch - 1)
    library.other.release(lease, stored.record.changed(status=TaskStatus.PENDING))
    library.work()
    record = library.task(task)
    assert record.result == {"document": "a.txt", "chunks": 4, "from_chunk": 2}
    assert library.document() == ("ready", task.task_id, lease.epoch + 1, None)
    assert library.chunks() == TEXT


def test_a_document_has_failed_when_its_task_has(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    async def embed(text: str) -> str:
        raise ValueError("no model")

    monkeypatch.setattr(example, "embed", embed)
    task = library.add()
    with InThread(Worker(library.tracker, example.registry)):
        wait_ended(library, task)
    record = library.task(task)
    assert record.attempt is not None
    assert (record.status, record.hook_error) == (TaskStatus.FAILED, None)
    assert library.document() == ("failed", task.task_id, record.attempt.epoch, "ValueError: no model")
    assert record.attempt.count == 3


def test_a_hook_that_cannot_write_costs_its_rows_and_the_task_ends(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = library.add()
    during(
        monkeypatch, 1, lambda: library.connection.execute("ALTER TABLE documents RENAME COLUMN problem TO p")
    )
    library.connection.execute("ALTER TABLE chunks ADD CHECK (number < 2)")
    with InThread(Worker(library.tracker, example.registry)):
        wait_ended(library, task)
    record = library.task(task)
    assert record.status is TaskStatus.FAILED
    assert record.hook_error is not None
    assert '"problem"' in record.hook_error
    library.connection.execute("ALTER TABLE documents RENAME COLUMN p TO problem")
    assert library.document()[0] == "ingesting"  # a person has to look: hook_error says so


def test_the_hook_of_a_worker_that_died_marks_the_document(library: Library) -> None:
    """[D003] [D008] After its last attempt. Whoever settles the task has the higher epoch, and so may write."""
    task = library.add()
    for _ in range(3):
        claimed = library.other.claim(task.key, holder="killed")
        assert claimed is not None
        library.ground.lapse(1000)
        library.work()
        library.ground.run("UPDATE {tasks} SET deferred = false, not_before = NULL")
    record = library.task(task)
    assert (record.status, record.error_code) == (TaskStatus.FAILED, "crash_loop")
    state, task_id, epoch, problem = library.document()
    assert (state, task_id) == ("failed", task.task_id)
    assert epoch > 3
    assert problem is not None


def test_a_session_that_is_terminated_costs_one_attempt(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D006] The chunk under way is neither there nor counted; the next attempt writes it."""
    task = library.add()

    def terminate() -> None:
        library.ground.run(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE application_name = %s AND pid <> ALL(%s) AND pid <> pg_backend_pid()",
            library.ground.names.schema,
            [library.connection.info.backend_pid],
        )

    really = psycopg.AsyncConnection.execute
    done: list[str] = []

    async def execute(self: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        cursor = await really(self, query, *args, **kwargs)
        if "INSERT INTO chunks" in query and not done:
            done.append(query)
            await asyncio.to_thread(terminate)
        return cursor

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", execute)
    with InThread(Worker(library.tracker, example.registry)):
        wait_ended(library, task)
    record = library.task(task)
    assert record.attempt is not None
    assert (record.status, record.attempt.count) == (TaskStatus.COMPLETED, 2)
    assert library.chunks() == TEXT
    assert library.document()[0] == "ready"


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_without_an_answer_is_looked_up(
    library: Library, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    """If it happened the attempt goes on; if it did not, the next one does, from the same place."""
    from task_tracker.worker.transactions import TaskTransaction

    really = TaskTransaction.checkpoint
    cut: list[Any] = []

    def checkpoint(self: TaskTransaction, data: Any) -> None:
        really(self, data)
        if not cut:
            cut.append(data)
            library.scissors.cut_at(3, after=happened)

    monkeypatch.setattr(TaskTransaction, "checkpoint", checkpoint)
    task = library.add()
    worker = Worker(library.tracker, example.registry)
    worker.run_once()
    assert library.scissors.cuts == 1
    library.ground.run("UPDATE {tasks} SET deferred = false, not_before = NULL")
    library.work()
    record = library.task(task)
    assert record.attempt is not None
    assert (record.status, record.attempt.count) == (TaskStatus.COMPLETED, 1 if happened else 2)
    assert library.chunks() == TEXT


def test_it_runs_as_it_says(ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a database of its own, with the default names of the tables."""
    database = f"{ground.names.schema}_example"
    ground.run(f"CREATE DATABASE {database}")
    dsn = make_conninfo(ground.dsn, dbname=database)
    file = tmp_path / "a.txt"
    file.write_text(TEXT)
    try:
        assert example.main(["--dsn", dsn, "prepare"]) == 0
        config = StorageConfig(task_tracker={"backend": "postgres", "dsn": dsn})
        tracker = config.build_task_tracker(handlers=example.registry)
        with closing(tracker), InThread(Worker(tracker, example.registry)):
            assert example.main(["--dsn", dsn, "ingest", str(file)]) == 0
    finally:
        ground.run(f"DROP DATABASE {database} WITH (FORCE)")
    assert capsys.readouterr().out == (
        f"completed {file} {{'document': '{file}', 'chunks': 4, 'from_chunk': 0}}\n"
    )


def test_a_stale_attempt_is_told(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """[D023] LeaseLost comes at the end of the block, and the rows of the other attempt are untouched."""
    library.add()
    caught: list[BaseException] = []
    really = example.ingest

    async def watched(ctx: Any, payload: Any) -> None:
        try:
            await really(ctx, payload)
        except BaseException as error:
            caught.append(error)
            raise

    row = example.registry.get("ingest_document", 1)
    assert row is not None
    monkeypatch.setitem(row._loaded, row.handler, watched)
    during(monkeypatch, 0, library.take_over)
    library.work()
    assert isinstance(caught[0], LeaseLost)
    assert library.chunks() == ""


def wait_ended(library: Library, task: TaskRecord) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + 30
    while library.task(task).status.is_active:
        assert SYSTEM_CLOCK.monotonic() < deadline, "it does not end"
