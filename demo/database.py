"""Tables of the demo's own in a PostgreSQL database: made when the story begins, dropped when it ends."""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import Any, Self

__all__ = ["DemoTables"]


class DemoTables:
    """In a schema of this process, which is there while the block runs."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._schema = f"task_tracker_demo_{os.getpid()}"

    @property
    def settings(self) -> dict[str, Any]:
        """What configuration says of them."""
        return {"backend": "postgres", "dsn": self._dsn, "migrate": True, "options": {"schema": self._schema}}

    def record(self, task_id: str) -> bytes:
        """Return a record as it is stored, byte by byte."""
        rows = self._run(
            f"SELECT record::text FROM {self._schema}.task_tracker_tasks WHERE task_id = %s", task_id
        )
        return str(rows[0][0]).encode()

    def _run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        import psycopg

        with contextlib.closing(psycopg.connect(self._dsn, autocommit=True)) as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description is not None else []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(f"DROP SCHEMA IF EXISTS {self._schema} CASCADE")
