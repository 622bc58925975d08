"""The example's handlers, called by a worker in this process: what they leave is the same, however often they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from examples.worker_tasks import INDEX, ChunkIndex, IngestPayload, StaleFence, registry
from stores import InMemoryTaskStore
from task_tracker import TaskRecord, TaskTracker
from task_tracker.worker import Worker
from tests.core.support import OWNER

Ingest = Callable[[Path], TaskRecord]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChunkIndex:
    monkeypatch.setenv(INDEX, str(tmp_path / "index"))
    return ChunkIndex(tmp_path / "index")


@pytest.fixture
def ingest(index: ChunkIndex) -> Ingest:
    def ingest(file: Path) -> TaskRecord:
        with TaskTracker(InMemoryTaskStore(), handlers=registry) as tracker:
            # Once: a second attempt would come after a pause.
            task = tracker.submit("ingest", IngestPayload(path=str(file)), max_attempts=1, **OWNER)
            Worker(tracker, registry).run_once()
            record = tracker.get(task.task_id, **OWNER)
            assert record is not None
            return record

    return ingest


def test_a_document_that_became_shorter_has_no_chunks_of_the_longer_one(
    tmp_path: Path, index: ChunkIndex, ingest: Ingest
) -> None:
    file = tmp_path / "a.txt"
    for text in ("x" * 1200, "y" * 300, ""):
        file.write_text(text)
        assert ingest(file).status == "completed"
        assert "".join(index.chunks(str(file))) == text


def test_documents_of_the_same_name_are_kept_apart(tmp_path: Path, index: ChunkIndex, ingest: Ingest) -> None:
    files = [tmp_path / "a" / "x.md", tmp_path / "b" / "x.md", tmp_path / "b" / "x.txt"]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text(str(file))
        ingest(file)
    assert index.documents() == sorted(map(str, files))
    assert [index.chunks(str(file)) for file in files] == [[str(file)] for file in files]


def test_a_failure_is_noted_beside_the_chunks_until_it_is_mended(
    tmp_path: Path, index: ChunkIndex, ingest: Ingest
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("whole")
    ingest(file)
    file.unlink()
    assert ingest(file).status == "failed"
    assert index.chunks(str(file)) == ["whole"]
    assert "FileNotFoundError" in (index.problem(str(file)) or "")
    file.write_text("anew")
    ingest(file)
    assert (index.chunks(str(file)), index.problem(str(file))) == (["anew"], None)


def test_an_old_fence_changes_nothing(tmp_path: Path) -> None:
    index = ChunkIndex(tmp_path)
    index.put("book", 0, "new", (1, 2))
    for late in (
        lambda: index.put("book", 0, "late", (1, 1)),
        lambda: index.finish("book", 0, (1, 1)),
        lambda: index.mark("book", "late", (1, 1)),
    ):
        with pytest.raises(StaleFence):
            late()
    assert (index.chunks("book"), index.problem("book")) == (["new"], None)
