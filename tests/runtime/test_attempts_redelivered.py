"""A crash between the record that says how a task ended and the last trace of its claim: nobody does the work again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from task_tracker import TaskStatus
from tests.lease.support import age, clock_of, entries, leftovers, open_store
from tests.runtime.work import WORK, registry
from tests.runtime.workers import Crew

pytestmark = pytest.mark.usefixtures("fresh_work")


@pytest.mark.parametrize(("task_type", "status"), [("note", "completed"), ("boom", "failed")])
@pytest.mark.parametrize("idempotent", [False, True])
def test_a_task_that_ended_and_was_not_let_go_of_is_only_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task_type: str, status: str, idempotent: bool
) -> None:
    """[D016] (a): redelivery sees a terminal record. (b), an end that could not be written, is written again."""
    first, second = open_store(tmp_path), open_store(tmp_path)
    handlers = registry(idempotent=idempotent, max_attempts=1 if idempotent else None)

    def crash(*_: object, **__: object) -> Any:
        raise OSError("the process was killed")

    for owner, name in (
        (first._entries, "retire"),
        (first._entries, "remove"),
        (first._control, "remove_file"),
    ):
        monkeypatch.setattr(owner, name, crash)
    crew = Crew(clock_of(first), first)
    task = crew.tracker(handlers).submit(task_type, account_id="acme", user_id="alice", dedupe=True).record
    assert crew.worker(crew.tracker(handlers), rescue=False).run_once() == 1
    assert crew.seen(task).status == status
    assert [entry.partition("@")[0] for entry in entries(tmp_path)] == ["leases"], "as the crash left it"

    other = Crew(clock_of(second), second)
    worker = other.worker(other.tracker(handlers))
    age(tmp_path, 1000)
    for _ in range(3):
        assert worker.run_once() == 0
        clock_of(second).ahead += 1000
    ended = other.seen(task)
    assert (ended.status, ended.attempt) == (TaskStatus(status), crew.seen(task).attempt)
    assert len(WORK.runs) == 1
    assert len(WORK.failures) == (status == "failed")
    assert [found for found in leftovers(tmp_path) if "@" in found or "keys/" in found] == []
    again = other.tracker(handlers).submit(task_type, account_id="acme", user_id="alice", dedupe=True)
    assert again.created
