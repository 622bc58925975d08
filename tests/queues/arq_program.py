"""What ``arq tests.queues.arq_program.WorkerSettings`` runs: durable tasks, and a function that is none of them."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from arq.worker import func

from stores import LeaseTaskStore
from task_tracker import TaskTracker
from task_tracker.cli.worker_command import JsonLines
from task_tracker.queues.arq import ArqTasks, ArqWakeUp
from tests.runtime.processes.tasks import DIRECTORY, registry

SETTINGS = "ARQ_OF_A_TEST"
"""The environment variable with the settings of a process, as JSON."""

settings: dict[str, Any] = json.loads(os.environ[SETTINGS])
handler = logging.StreamHandler(sys.stderr)
handler.setFormatter(JsonLines())
logging.basicConfig(level="DEBUG", handlers=[handler])
logging.getLogger("asyncio").setLevel("INFO")

store = LeaseTaskStore(settings["root"], durability="none", lease_seconds=settings["lease_seconds"])
tracker = TaskTracker(store, handlers=registry(), wake_up=ArqWakeUp(settings["url"]))
durable = ArqTasks(tracker, **settings["options"])


async def other(ctx: dict[Any, Any], word: str) -> None:
    """Say that it was here."""
    with (Path(os.environ[DIRECTORY]) / "others").open("a") as said:
        said.write(f"{word}\n")


class WorkerSettings:
    """As the guide shows it, but for the pause between two looks, so that tests need not wait."""

    functions = [durable.function, func(other, name="other")]  # noqa: RUF012  # ARQ reads it from the class
    redis_settings = durable.redis_settings
    on_startup = durable.on_startup
    on_shutdown = durable.on_shutdown
    poll_delay = 0.02
    job_timeout = 3600
    max_jobs = settings["max_jobs"]
