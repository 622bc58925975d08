"""The example does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.worker_tasks import INDEX, ChunkIndex
from tests.queues.arq_processes import ArqProcess
from tests.queues.redis_server import RedisServer
from tests.runtime.processes.program import PROJECT


def test_files_that_are_submitted_come_into_the_index(redis_server: RedisServer, tmp_path: Path) -> None:
    documents = [tmp_path / f"book-{number}.txt" for number in range(2)]
    for document in documents:
        document.write_text(f"lines of {document.name}\n" * 100)
    environment = {
        **os.environ,
        "TASKS_ROOT": str(tmp_path / "root"),
        "REDIS_URL": redis_server.url,
        INDEX: str(tmp_path / "index"),
    }
    with ArqProcess(environment, tmp_path / "said", "examples.arq_worker.WorkerSettings") as worker:
        ran = subprocess.run(
            [sys.executable, "-m", "examples.arq_worker", *map(str, documents)],
            cwd=PROJECT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        worker.terminate()
    assert ran.stdout.count("completed") == 2
    index = ChunkIndex(tmp_path / "index")
    assert ["".join(index.chunks(str(document))) for document in documents] == [
        document.read_text() for document in documents
    ]


def test_who_waits_in_vain_learns_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a worker, and without a Redis."""
    monkeypatch.setenv("TASKS_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    from examples.arq_worker import main

    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(TimeoutError):
        main(["--timeout", "0.05", str(tmp_path / "a.txt")])
