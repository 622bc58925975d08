"""What a worker may be told, and that a mistake is said where it is built; hooks, which can do no harm."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from task_tracker import AsyncTaskTracker, SettingsError
from task_tracker.wakeups import InProcessWakeUp
from task_tracker.worker import hooks as hooks_module
from task_tracker.worker.hooks import Event, Hooks
from task_tracker.worker.rescuing import Rescued
from task_tracker.worker.worker import Worker
from tests.core.support import Gate
from tests.runtime.work import WORK
from tests.runtime.workers import LEASE, Crew, InThread, no_thread_is_left

pytestmark = pytest.mark.usefixtures("fresh_work")


async def asynchronous(*_: object) -> bool:
    return True


# ---- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"default_timeout_seconds": "5"}, "default_timeout_seconds is '5'"),
        ({"default_timeout_seconds": 10**400}, "default_timeout_seconds is 1000"),
        ({"concurrency": 10**30}, "concurrency is 1000"),
        ({"concurrency": 2**31}, "2147483647 at most"),
        ({"max_running": {"note": 2**31}}, "2147483647 at most"),
        ({"rescue": "false"}, "rescue is 'false'"),
        ({"drain_seconds": None}, "drain_seconds is None"),
        ({"poll_seconds": 5}, "poll_seconds is 5"),
        ({"poll_seconds": (1,)}, r"poll_seconds is \(1,\)"),
        ({"poll_seconds": ("1", "2")}, "two numbers"),
        ({"poll_seconds": (1, float("inf"))}, "poll_seconds"),
        ({"gates": {"note": 5}}, r"gates\['note'\] is 5"),
        ({"gates": {"note": asynchronous}}, "an ordinary function"),
        ({"gates": 5}, "gates is 5"),
        ({"max_running": 5}, "max_running is 5"),
        ({"wake_up": 5}, "wake_up is 5"),
        ({"wake_up": InProcessWakeUp}, "wake_up is <class"),
        ({"registry": "tasks:registry"}, "registry is of the type str; give a HandlerRegistry"),
        ({"hooks": 5}, "hooks is 5"),
        ({"hooks": [5]}, "hooks holds 5"),
        ({"hooks": [asynchronous]}, "ordinary functions"),
        ({"name": ""}, "name is ''"),
        ({"name": 5}, "name is 5"),
        ({"name": "\ud800"}, "plain text"),
        ({"name": "a\x00b"}, "plain text"),
        ({"name": "a\nINFO all is well"}, "one line"),
        ({"name": "x" * 100_000}, "200 at most"),
    ],
)
def test_what_cannot_be_meant_is_refused(crew: Crew, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said) as refused:
        Worker(crew.tracker(), **options)
    assert len(str(refused.value)) < 500


def test_only_the_blocking_tracker_has_workers(crew: Crew) -> None:
    wrong: Any = AsyncTaskTracker(crew.tracker())
    with pytest.raises(SettingsError, match=r"tracker is an AsyncTaskTracker; give .* its attribute tracker"):
        Worker(wrong)
    with pytest.raises(SettingsError, match="tracker is of the type str; give a TaskTracker"):
        Worker("tracker")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"name": 5}, "must be texts, not 5"),
        ({"detail": None}, "must be texts"),
        ({"ready": "no"}, "ready must be True or False, not 'no'"),
        ({"life_seconds": "60"}, "life_seconds must be a number above 0, not '60'"),
        ({"life_seconds": float("nan")}, "life_seconds"),
        ({"life_seconds": -1}, "life_seconds"),
    ],
)
def test_a_fact_that_could_not_be_told_is_refused(crew: Crew, report: dict[str, Any], said: str) -> None:
    """Whoever asks how the worker is gets an answer all the same."""
    worker = crew.worker()
    with pytest.raises(ValueError, match=said):
        worker.report(**{"name": "index", "ready": True, **report})
    assert worker.status().facts == {}


def test_a_drain_that_cannot_be_meant_is_refused(crew: Crew) -> None:
    async def scenario() -> None:
        async with crew.worker() as worker:
            with pytest.raises(SettingsError, match="drain_seconds is -1"):
                await worker.stop(-1)
            assert worker.status().state == "working"

    asyncio.run(scenario())


def test_pausing_a_type_that_is_not_there_is_refused(crew: Crew) -> None:
    with pytest.raises(SettingsError, match="'nope', for which there is no handler; known are block"):
        crew.worker().pause("nope")


# ---- hooks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["hangs", "exits"])
def test_a_hook_can_cost_no_lease(crew: Crew, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """[D021] Told of a heartbeat it leaves the process, or takes longer than a lease: the heartbeats go on."""
    gate = Gate()

    def hook(event: Event) -> None:
        if event.name == "heartbeat":
            if how == "exits":
                raise SystemExit("usage")
            gate.pass_through()

    task = crew.submit("hold")
    worker, other = Worker(crew.tracker(), hooks=[hook, crew.events.append]), crew.worker()
    try:
        with InThread(worker):
            WORK.wait_begun()
            crew.live(3 * LEASE)
            assert asyncio.run(other.rescue()) == Rescued()
            WORK.open()
            assert crew.wait_ended(task).status == "completed"
            gate.open()
        assert crew.told("heartbeat")
        assert crew.events[-1].name == "stopped", "all were told by the end"
        assert caplog.text.count("a hook failed for heartbeat") == (1 if how == "exits" else 0)
    finally:
        gate.open()


def test_events_that_nobody_takes_are_dropped_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However slow a hook is, what waits for it is bounded."""
    monkeypatch.setattr(hooks_module, "MOST_WAITING", 2)
    gate = Gate()
    told: list[object] = []

    def slow(event: Event) -> None:
        told.append(event.facts["number"])
        gate.pass_through()

    hooks = Hooks(slow)
    hooks.begin()
    hooks.begin()
    hooks.tell("heartbeat", number=0)
    gate.wait_entered()
    with caplog.at_level(logging.WARNING, "task_tracker"):
        for number in range(1, 6):
            hooks.tell("heartbeat", number=number)
    assert not hooks.finish(0.0)
    gate.open()
    hooks.tell("heartbeat", number=6)  # nobody's thread any more: at once
    assert caplog.text.count("hooks are not told of heartbeat") == 1
    assert hooks.finish(0.0)
    with no_thread_is_left():
        pass
    while len(told) < 4:
        pass
    assert sorted(map(str, told)) == ["0", "1", "2", "6"]
