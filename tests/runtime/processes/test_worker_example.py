"""The example does what it says, also when its workers are killed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from examples.worker_tasks import INDEX, ChunkIndex, StaleFence, main
from task_tracker import StorageConfig
from task_tracker.store import Query
from tests.core.support import OWNER, PATIENCE
from tests.runtime.processes.program import Program, expire, wait_for


def start(tmp_path: Path, number: int) -> Program:
    return Program(
        [
            "--handlers=examples.worker_tasks:registry",
            f"--root={tmp_path / 'root'}",
            "--lease-seconds=6",
            "--heartbeat-seconds=0.2",
            "--durability=none",
            "--log-format=json",
        ],
        {**os.environ, INDEX: str(tmp_path / "index")},
        tmp_path / f"said-{number}",
    )


def test_a_document_is_whole_although_its_worker_was_killed(tmp_path: Path) -> None:
    """Another worker goes on from the last checkpoint; no chunk is missing or there twice."""
    document = tmp_path / "book.txt"
    document.write_text("".join(f"line {number} of a book\n" for number in range(1000)))
    answers: list[int] = []
    arguments = [f"--root={tmp_path / 'root'}", "--seconds-per-chunk=0.02", str(document)]
    submitting = threading.Thread(target=lambda: answers.append(main(arguments)))
    index = ChunkIndex(tmp_path / "index")
    with start(tmp_path, 1) as first:
        submitting.start()
        wait_for(lambda: len(index.chunks(str(document))) >= 5, "some chunks")
        first.kill()
    expire(tmp_path / "root")
    before = len(index.chunks(str(document)))
    with start(tmp_path, 2) as second:
        submitting.join(PATIENCE)
        assert second.terminate() == 0
    assert answers == [0]
    assert "".join(index.chunks(str(document))) == document.read_text()
    config = StorageConfig(task_tracker={"backend": "lease", "root": str(tmp_path / "root")})
    with config.build_task_tracker() as tracker:
        ((record, _),) = tracker.store.list(Query(**OWNER)).items
    assert record.attempt is not None
    assert record.attempt.count == 2
    assert 0 < record.result["from_chunk"] <= before < record.result["chunks"]


def test_the_index_refuses_a_fence_that_is_old(tmp_path: Path) -> None:
    index = ChunkIndex(tmp_path)
    index.put("book", 0, "new", (1, 2))
    try:
        index.put("book", 0, "late", (1, 1))
    except StaleFence:
        pass
    else:
        raise AssertionError("it took a late write")
    assert index.chunks("book") == ["new"]
