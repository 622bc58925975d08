"""Documents in a table of the server's own, ingested by tasks in the same PostgreSQL database: one truth, not two.

::

    export TASK_TRACKER__BACKEND=postgres TASK_TRACKER__DSN=postgresql://tasks@db.example.org/tasks
    python -m examples.documents_in_one_transaction prepare
    python -m task_tracker worker --handlers examples.documents_in_one_transaction:registry    # as often as you like
    python -m examples.documents_in_one_transaction ingest README.md docs/leases.md

A row of ``documents`` says which task works on it, and under which epoch; everything that a task changes there is
committed with the write of its record. So there is no document that is ``ingesting`` while its task has failed, no
chunk without its checkpoint, and no task whose document was rolled back, wherever a process is killed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from pydantic import BaseModel

from task_tracker import HandlerRegistry, StorageConfig, TaskRecord, TaskTracker
from task_tracker.worker import Fail, TaskContext

__all__ = ["SCHEMA", "IngestPayload", "add_document", "ingest", "mark_failed", "registry"]

CHARACTERS_PER_CHUNK = 500

SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (
    name text PRIMARY KEY,
    body text NOT NULL,
    state text NOT NULL CHECK (state IN ('waiting', 'ingesting', 'ready', 'failed')),
    -- Who works on it, or did so last: no other task, and no earlier attempt, changes this row.
    task_id text NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,
    problem text
);
CREATE TABLE IF NOT EXISTS chunks (
    document text NOT NULL REFERENCES documents (name) ON DELETE CASCADE,
    number int NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (document, number)
);
"""


class IngestPayload(BaseModel):
    """Which document is to be cut into chunks."""

    document: str


def add_document(
    tracker: TaskTracker, connection: psycopg.Connection[Any], name: str, body: str, owner: dict[str, Any]
) -> TaskRecord:
    """Store a document together with the task that ingests it; a worker is woken once both are there.

    A document that is there already is replaced. Raises RuntimeError while another task works on it.
    """
    with connection.transaction():
        submission = tracker.submit(
            "ingest_document", IngestPayload(document=name), resource_id=name, connection=connection, **owner
        )
        stored = connection.execute(
            "INSERT INTO documents AS d (name, body, state, task_id) VALUES (%(name)s, %(body)s, 'waiting', %(task)s) "
            "ON CONFLICT (name) DO UPDATE "
            "SET body = excluded.body, state = 'waiting', task_id = excluded.task_id, epoch = 0, problem = NULL "
            "WHERE d.state IN ('ready', 'failed')",
            {"name": name, "body": body, "task": submission.task_id},
        )
        if stored.rowcount == 0:
            raise RuntimeError(
                f"{name} is being ingested; wait for its task"
            )  # and the new task is gone, too
    tracker.wake(submission)
    return submission.record


async def ingest(ctx: TaskContext, payload: IngestPayload) -> None:
    """Cut a document into chunks, from where an earlier attempt had come to."""
    begin = (ctx.last_checkpoint or {"chunks": 0})["chunks"]
    async with ctx.transaction() as tx:
        body = await _taken(ctx, tx.connection, payload.document, fresh=begin == 0)
    parts = [
        body[start : start + CHARACTERS_PER_CHUNK] for start in range(0, len(body), CHARACTERS_PER_CHUNK)
    ]
    for number in range(begin, len(parts)):
        chunk = await embed(parts[number])  # what takes long is done between transactions, not in one
        async with ctx.transaction() as tx:
            await tx.connection.execute(
                "INSERT INTO chunks (document, number, body) VALUES (%s, %s, %s)",
                [payload.document, number, chunk],
            )
            tx.checkpoint({"chunks": number + 1})
    async with ctx.transaction() as tx:
        await _changed(ctx, tx.connection, payload.document, "ready", None)
        tx.complete({"document": payload.document, "chunks": len(parts), "from_chunk": begin})


async def mark_failed(ctx: TaskContext, record: TaskRecord) -> None:
    """Say that a document failed, in the transaction in which its task does."""
    document = IngestPayload.model_validate(record.payload).document
    async with ctx.transaction() as tx:
        await _changed(ctx, tx.connection, document, "failed", record.error)


async def embed(text: str) -> str:
    """Stand for what a model does with a chunk."""
    return text


async def _taken(ctx: TaskContext, connection: Any, document: str, *, fresh: bool) -> str:
    """Write this attempt into a document's row, and return its text."""
    taken = await connection.execute(
        "UPDATE documents SET state = 'ingesting', epoch = %s "
        "WHERE name = %s AND task_id = %s AND epoch < %s AND state IN ('waiting', 'ingesting') RETURNING body",
        [ctx.fence[1], document, ctx.key.task_id, ctx.fence[1]],
    )
    row = await taken.fetchone()
    if row is None:
        raise Fail(f"the document {document} is gone, or is another task's by now", "document_changed")
    if fresh:  # what it was before it was replaced
        await connection.execute("DELETE FROM chunks WHERE document = %s", [document])
    return str(row[0])


async def _changed(ctx: TaskContext, connection: Any, document: str, state: str, problem: str | None) -> None:
    """Change the state of a document, if it is this task's; whoever settles the task later has a higher epoch."""
    await connection.execute(
        "UPDATE documents SET state = %s, problem = %s, epoch = %s WHERE name = %s AND task_id = %s AND epoch <= %s",
        [state, problem, ctx.fence[1], document, ctx.key.task_id, ctx.fence[1]],
    )


registry = HandlerRegistry()
# It may run twice: what an attempt has not committed is not there, and the next one goes on from the checkpoint.
registry.register(
    "ingest_document",
    handler="examples.documents_in_one_transaction:ingest",
    payload=IngestPayload,
    on_failure="examples.documents_in_one_transaction:mark_failed",
    idempotent=True,
    retry_seconds=0.1,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the tables, or add documents and wait for them."""
    parser = argparse.ArgumentParser(description="Ingest documents into tables of one's own.")
    parser.add_argument("--dsn", default=os.environ.get("TASK_TRACKER__DSN"), help="the database")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds to wait for each")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare")
    commands.add_parser("ingest").add_argument("files", nargs="+")
    options = parser.parse_args(arguments)
    owner: dict[str, Any] = {"account_id": "acme", "user_id": "alice"}
    config = StorageConfig(
        task_tracker={"backend": "postgres", "dsn": options.dsn, "migrate": options.command == "prepare"}
    )
    with (
        config.build_task_tracker(handlers=registry) as tracker,
        psycopg.connect(options.dsn, autocommit=True) as connection,
    ):
        if options.command == "prepare":
            connection.execute(SCHEMA)
            return 0
        tasks = [
            add_document(tracker, connection, file, Path(file).read_text(encoding="utf-8"), owner)
            for file in options.files
        ]
        ended = [tracker.wait(task.task_id, **owner, timeout=options.timeout) for task in tasks]
    for record in ended:
        print(record.status, record.resource_id, record.result or record.error)  # noqa: T201  # that is its answer
    return 0 if all(record.status == "completed" for record in ended) else 1


if __name__ == "__main__":
    raise SystemExit(main())
