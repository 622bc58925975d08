"""What the demo's workers do: pages of the documentation are cut into parts and put into an index.

Run by the demo as a process of its own, with the arguments of ``task_tracker worker``. It ends when its standard input
does, so that it never outlives the demo.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from task_tracker import HandlerRegistry
from task_tracker.cli import main
from task_tracker.worker import TaskContext

INDEX: Final = "DEMO_INDEX"
"""The environment variable with the file of the index."""
THINKING: Final = "waiting for a model"
THINKING_SECONDS: Final = 60.0
"""Nobody waits for it: whoever is so far is killed or frozen."""
BUSY_SECONDS: Final = 10.0


class Document(BaseModel):
    """What is to be put into the index, and how long each part takes."""

    path: str
    parts: int
    seconds_per_part: float
    thinks_at: int | None = None
    """The part at which the first attempt waits for a model that does not answer."""


class StaleFence(Exception):
    """A later attempt at the same document has written here."""


class Index:
    """Parts of documents in an SQLite file. It knows nothing of leases: it compares fences, and counts who is late."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        with self._transaction() as database:
            database.execute("CREATE TABLE IF NOT EXISTS fences (document PRIMARY KEY, created, epoch)")
            database.execute(
                "CREATE TABLE IF NOT EXISTS parts (document, number, text, PRIMARY KEY (document, number))"
            )
            database.execute("CREATE TABLE IF NOT EXISTS refused (document, number, process)")

    def put(self, document: str, number: int, text: str, fence: tuple[int, int]) -> None:
        """Add or replace a part. Raises StaleFence if a later attempt has written to this document."""
        with self._transaction() as database:
            last = database.execute(
                "SELECT created, epoch FROM fences WHERE document = ?", (document,)
            ).fetchone()
            is_stale = last is not None and last > fence
            if is_stale:
                database.execute("INSERT INTO refused VALUES (?, ?, ?)", (document, number, os.getpid()))
            else:
                database.execute("REPLACE INTO fences VALUES (?, ?, ?)", (document, *fence))
                database.execute("REPLACE INTO parts VALUES (?, ?, ?)", (document, number, text))
        if is_stale:
            raise StaleFence(f"{document} was written under {last}, this is {fence}")

    def parts(self, document: str) -> list[str]:
        """Return the parts of a document, in order."""
        with self._transaction() as database:
            rows = database.execute("SELECT text FROM parts WHERE document = ? ORDER BY number", (document,))
            return [text for (text,) in rows]

    def refused(self) -> list[tuple[str, int, int]]:
        """Return what came late: document, number of the part, process."""
        with self._transaction() as database:
            rows = database.execute("SELECT document, number, process FROM refused")
            return [(document, number, process) for document, number, process in rows]

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        with contextlib.closing(
            sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)
        ) as database:
            database.execute("BEGIN IMMEDIATE")  # comparing and writing are one step
            yield database
            database.execute("COMMIT")


def open_index() -> Index:
    return Index(os.environ[INDEX])


def cut(text: str, parts: int) -> list[str]:
    """Return ``text`` in so many parts of about the same size."""
    ends = [len(text) * number // parts for number in range(parts + 1)]
    return [text[begin:end] for begin, end in itertools.pairwise(ends)]


async def ingest(ctx: TaskContext, document: Document) -> dict[str, Any]:
    """Put a document into the index, part by part, from where an earlier attempt had come to."""
    index: Index = await ctx.resource("index")
    name = Path(document.path).stem
    text = await asyncio.to_thread(Path(document.path).read_text, encoding="utf-8")
    parts = cut(text, document.parts)
    begin = (ctx.last_checkpoint or {"parts": 0})["parts"]
    for number in range(begin, len(parts)):
        if number == document.thinks_at and ctx.attempt_count == 1:
            await ctx.progress(100 * number / len(parts), stage=THINKING)
            try:
                await asyncio.sleep(THINKING_SECONDS)
            finally:
                # Whoever is stopped saves what it has in hand. If it is late, that is refused.
                with contextlib.suppress(StaleFence):
                    await asyncio.to_thread(index.put, name, number, "(unfinished)", ctx.fence)
        await asyncio.sleep(document.seconds_per_part)
        await asyncio.to_thread(index.put, name, number, parts[number], ctx.fence)
        await ctx.progress(100 * (number + 1) / len(parts), stage=f"part {number + 1} of {len(parts)}")
        await ctx.checkpoint({"parts": number + 1})
    return {"parts": len(parts), "from_part": begin, "by_process": os.getpid()}


registry = HandlerRegistry()
registry.resource("index", "demo.ingestion:open_index")
# It may run again: parts are replaced by number, not added.
registry.register(
    "ingest", handler="demo.ingestion:ingest", payload=Document, idempotent=True, retry_seconds=0.05
)


def end_with_input() -> None:
    sys.stdin.buffer.read()  # nothing is ever written; it ends with the demo
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=end_with_input, daemon=True).start()
    sys.exit(main(["worker", *sys.argv[1:]]))
