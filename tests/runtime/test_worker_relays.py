"""Announcements of what is given back hold up nothing else: no claims, no loop, no stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from stores import LeaseTaskStore
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.records import TaskKey
from task_tracker.wakeups import InProcessWakeUp, Waking
from task_tracker.worker import relays
from task_tracker.worker.relays import Relays
from tests.core.support import PATIENCE
from tests.runtime.work import WORK, registry, until
from tests.runtime.workers import Crew, no_thread_is_left


class Hanging(InProcessWakeUp):
    """Hangs until it is opened, from the moment that somebody asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = threading.Event()
        self.opened = threading.Event()

    def wake(self, keys: Sequence[TaskKey]) -> None:
        if self.hangs.is_set():
            assert self.opened.wait(PATIENCE)
        super().wake(keys)


def test_a_wake_up_that_hangs_keeps_nobody_from_claiming_and_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More are given back than there are threads of any kind."""
    WORK.begin()
    way = Hanging()
    crew = Crew(store=LeaseTaskStore(tmp_path))
    tracker = crew.tracker(registry(idempotent=True), wake_up=way)
    for _ in range(6):
        tracker.submit("hold", account_id="acme", user_id="alice")

    async def scenario() -> None:
        worker = crew.worker(tracker, concurrency=6, drain_seconds=0.0)
        await worker.start()
        await until(lambda: len(WORK.runs) == 6)
        way.hangs.set()
        stopping = asyncio.ensure_future(worker.stop())
        await until(stopping.done)
        assert not way.opened.is_set(), "it was not waited for"
        assert [task.get_name() for task in asyncio.all_tasks() if "relay" in task.get_name()] == []

    try:
        asyncio.run(scenario())
    finally:
        way.opened.set()
        WORK.open()
        tracker.close()


@pytest.mark.parametrize("blocking", [False, True])
def test_there_are_never_more_than_can_be_borne(blocking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """More are left out, and none is begun once it has ended."""
    monkeypatch.setattr(relays, "_MOST", 3)
    way = Hanging()
    made: list[int] = []

    async def scenario() -> None:
        relaying = Relays(Waking(way, SYSTEM_CLOCK), blocking=blocking)

        def announce(number: int) -> None:
            made.append(number)
            assert way.opened.wait(PATIENCE)

        for number in range(5):
            relaying.start(lambda number=number: announce(number))  # type: ignore[misc]
        await until(lambda: made == [0])
        way.opened.set()
        await until(lambda: made == [0, 1, 2])
        await relaying.finish(PATIENCE)
        relaying.start(lambda: announce(9))
        assert relaying.end() == []

    with no_thread_is_left():
        asyncio.run(scenario())
    assert made == [0, 1, 2]
