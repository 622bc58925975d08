"""A small ingestion: text files are cut into chunks and put into an index, by workers that may die at any moment.

::

    python -m task_tracker worker --handlers examples.worker_tasks:registry --root /srv/tasks    # as often as you like
    python -m examples.worker_tasks --root /srv/tasks README.md docs/leases.md

The second line submits and waits. Kill a worker with ``kill -9`` meanwhile and watch another one go on from the last
checkpoint; freeze it with ``kill -STOP``, and ``kill -CONT`` it later: what it writes then is refused, by the tracker
because its lease is gone and by the index because its fence is old.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from task_tracker import HandlerRegistry, StorageConfig, TaskRecord
from task_tracker.worker import BlockingTaskContext, TaskContext

__all__ = [
    "ChunkIndex",
    "IngestPayload",
    "StaleFence",
    "document_of",
    "ingest",
    "mark_failed",
    "open_index",
    "recount",
    "registry",
]

INDEX = "WORKER_TASKS_INDEX"
"""The environment variable with the directory of the index."""
CHARACTERS_PER_CHUNK = 500


class IngestPayload(BaseModel):
    """What is to be put into the index."""

    path: str
    seconds_per_chunk: float = 0.0
    """As if each chunk went through a model."""


class StaleFence(Exception):
    """A later attempt at the same task has written here."""


class ChunkIndex:
    """Chunks by document, one file each. A store of the handlers' own, that compares fences by itself."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)

    def put(self, document: str, number: int, text: str, fence: tuple[int, int]) -> None:
        """Add or replace a chunk. Raises StaleFence if a later attempt has written to this document."""
        with self._entry(document, fence) as entry:
            entry["chunks"][str(number)] = text

    def finish(self, document: str, count: int, fence: tuple[int, int]) -> None:
        """Say that the document is whole, and drop what is left of a longer one. Raises StaleFence."""
        with self._entry(document, fence) as entry:
            entry["chunks"] = {
                number: text for number, text in entry["chunks"].items() if int(number) < count
            }
            entry["problem"] = None

    def mark(self, document: str, problem: str, fence: tuple[int, int]) -> None:
        """Say what is wrong with a document; its chunks stay. Raises StaleFence."""
        with self._entry(document, fence) as entry:
            entry["problem"] = problem

    def chunks(self, document: str) -> list[str]:
        """Return the chunks of a document, in order."""
        chunks = self._read(document)["chunks"]
        return [chunks[number] for number in sorted(chunks, key=int)]

    def problem(self, document: str) -> str | None:
        """Return what is wrong with a document, None if nothing is known."""
        problem: str | None = self._read(document)["problem"]
        return problem

    def documents(self) -> list[str]:
        """Return the names of all documents."""
        files = self.directory.glob("*.json")
        return sorted(json.loads(file.read_text(encoding="utf-8"))["document"] for file in files)

    @contextmanager
    def _entry(self, document: str, fence: tuple[int, int]) -> Iterator[dict[str, Any]]:
        """Give what is stored of a document, to be changed in the block, and store it. Raises StaleFence."""
        file = self._file(document)
        with file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # compare and write as one
            entry = self._read(document)
            if tuple(entry["fence"]) > fence:
                raise StaleFence(f"{document} was written under {entry['fence']}, this is {fence}")
            entry["fence"] = fence
            yield entry
            staged = file.with_suffix(".staged")
            staged.write_text(json.dumps(entry), encoding="utf-8")
            staged.replace(file)  # whole or not at all: this process may be killed between any two lines

    def _read(self, document: str) -> dict[str, Any]:
        file = self._file(document)
        if not file.exists():
            return {"document": document, "chunks": {}, "problem": None, "fence": ()}
        entry: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return entry

    def _file(self, document: str) -> Path:
        """Return where a document is: its name is a path, and may be too long for the name of a file."""
        return self.directory / f"{hashlib.sha256(document.encode()).hexdigest()}.json"


def open_index() -> ChunkIndex:
    """Open the index that all handlers of a worker share."""
    return ChunkIndex(os.environ.get(INDEX) or Path(tempfile.gettempdir()) / "worker_tasks_index")


def document_of(payload: IngestPayload) -> str:
    """Return the name of a document: its whole path, since others may have files of the same name elsewhere."""
    return str(Path(payload.path).resolve())


async def ingest(ctx: TaskContext, payload: IngestPayload) -> dict[str, Any]:
    """Put a file into the index, chunk by chunk, from where an earlier attempt had come to."""
    index: ChunkIndex = await ctx.resource("index")
    text = await asyncio.to_thread(Path(payload.path).read_text, encoding="utf-8")
    chunks = [
        text[start : start + CHARACTERS_PER_CHUNK] for start in range(0, len(text), CHARACTERS_PER_CHUNK)
    ]
    begin = (ctx.last_checkpoint or {"chunks": 0})["chunks"]
    document = document_of(payload)
    for number in range(begin, len(chunks)):
        await asyncio.sleep(payload.seconds_per_chunk)
        await asyncio.to_thread(index.put, document, number, chunks[number], ctx.fence)
        await ctx.progress(100 * (number + 1) / len(chunks), f"chunk {number + 1} of {len(chunks)}")
        await ctx.checkpoint({"chunks": number + 1})  # raises if the task was cancelled or is somebody else's
    await asyncio.to_thread(index.finish, document, len(chunks), ctx.fence)
    return {"document": document, "chunks": len(chunks), "from_chunk": begin}


def recount(ctx: BlockingTaskContext, payload: None) -> dict[str, int]:
    """Count the chunks of each document. An ordinary function: it runs in a thread, and looks whether it is to stop."""
    index: ChunkIndex = ctx.resource("index")
    counts = {}
    for document in index.documents():
        ctx.check()
        counts[document] = len(index.chunks(document))
    return counts


async def mark_failed(ctx: TaskContext, record: TaskRecord) -> None:
    """Say in the index that a document may be incomplete, before its task ends as failed."""
    index: ChunkIndex = await ctx.resource("index")
    document = document_of(IngestPayload.model_validate(record.payload))
    await asyncio.to_thread(index.mark, document, record.error or "it failed", ctx.fence)


registry = HandlerRegistry()
registry.resource("index", "examples.worker_tasks:open_index")
# It may run twice: chunks are replaced by number, not added, and what is beyond the last one goes.
registry.register(
    "ingest",
    handler="examples.worker_tasks:ingest",
    payload=IngestPayload,
    on_failure="examples.worker_tasks:mark_failed",
    timeout_seconds=600,
    idempotent=True,
)
registry.register("recount", handler="examples.worker_tasks:recount", max_running=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Submit files and wait for them."""
    parser = argparse.ArgumentParser(description="Have workers put text files into the index.")
    parser.add_argument("--root", required=True, help="the directory that workers have too")
    parser.add_argument("--seconds-per-chunk", type=float, default=0.0)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds to wait for each")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args(arguments)
    owner: dict[str, Any] = {"account_id": "acme", "user_id": "alice"}
    paths = [str(Path(file).resolve()) for file in options.files]
    config = StorageConfig(task_tracker={"backend": "lease", "root": options.root})
    with config.build_task_tracker(handlers=registry) as tracker:
        submitted = [
            tracker.submit(
                "ingest",
                IngestPayload(path=path, seconds_per_chunk=options.seconds_per_chunk),
                resource_id=path,
                dedupe=True,  # who asks for the same file again meanwhile gets the same task
                **owner,
            )
            for path in paths
        ]
        ended = [tracker.wait(one.task_id, **owner, timeout=options.timeout) for one in submitted]
    for record in ended:
        print(record.status, record.resource_id, record.result or record.error)  # noqa: T201  # that is its answer
    return 0 if all(record.status == "completed" for record in ended) else 1


if __name__ == "__main__":
    raise SystemExit(main())
