"""A worker of ARQ's that ingests files as durable tasks, beside a short function of its own.

Run as many as you like on hosts that share the directory, and submit from anywhere else that does::

    TASKS_ROOT=/srv/tasks REDIS_URL=redis://127.0.0.1:6379/0 arq examples.arq_worker.WorkerSettings
    TASKS_ROOT=/srv/tasks REDIS_URL=redis://127.0.0.1:6379/0 python -m examples.arq_worker notes.txt

Kill any of them, or Redis: the tasks are in the directory, and Redis only says that there are some.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from examples.worker_tasks import IngestPayload, registry
from task_tracker import StorageConfig, TaskTracker
from task_tracker.queues.arq import ArqTasks, ArqWakeUp

QUEUE = "examples"


def open_tracker() -> TaskTracker:
    """Open the directory that all processes share; who submits tells ARQ through Redis."""
    root = os.environ.get("TASKS_ROOT") or str(Path(tempfile.gettempdir()) / "arq_worker_tasks")
    wake_up = ArqWakeUp(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0"), queue_name=QUEUE)
    config = StorageConfig(
        task_tracker={
            "backend": "lease",
            "root": root,
            "lease_seconds": float(os.environ.get("TASKS_LEASE_SECONDS", "30")),
        }
    )
    return config.build_task_tracker(handlers=registry, wake_up=wake_up)


async def greet(ctx: dict[Any, Any], name: str) -> str:
    """Greet somebody: work that nobody minds losing needs no task."""
    return f"Hello {name}"


tracker = open_tracker()
durable = ArqTasks(tracker, concurrency=4)


class WorkerSettings:
    """What ``arq`` reads. Tasks take four of the ten slots at most, so that greetings never wait for a long one."""

    functions: ClassVar[list[Any]] = [durable.function, greet]
    queue_name = QUEUE
    max_jobs = 10
    redis_settings = durable.redis_settings
    on_startup = durable.on_startup
    on_shutdown = durable.on_shutdown


def main(arguments: Sequence[str] | None = None) -> int:
    """Submit files and wait for them."""
    parser = argparse.ArgumentParser(description="Have workers of ARQ's put text files into the index.")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds to wait for each")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args(arguments)
    owner: dict[str, Any] = {"account_id": "acme", "user_id": "alice"}
    with open_tracker() as submitter:
        submitted = [
            submitter.submit("ingest", IngestPayload(path=str(Path(file).resolve())), **owner)
            for file in options.files
        ]
        ended = [submitter.wait(one.task_id, **owner, timeout=options.timeout) for one in submitted]
    for record in ended:
        print(record.status, record.result or record.error)  # noqa: T201  # that is its answer
    return 0 if all(record.status == "completed" for record in ended) else 1


if __name__ == "__main__":
    raise SystemExit(main())
