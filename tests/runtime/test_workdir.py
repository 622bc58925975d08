"""``ctx.workdir`` of real workers on a real lease store: whose files a task has in the end, and whose nobody keeps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stores import InMemoryTaskStore, LeaseTaskStore
from task_tracker import (
    AsyncTaskTracker,
    CapabilityMissing,
    CorruptRecord,
    HandlerRegistry,
    LeaseLost,
    TaskNotFound,
    TaskRecord,
    TaskStatus,
    TaskTracker,
)
from task_tracker.worker import Fail, Retry
from task_tracker.worker.rescuing import Rescued
from task_tracker.worker.worker import Worker
from tests.core.support import OWNER, PATIENCE
from tests.lease.directories import directories, markers
from tests.lease.support import ShiftedClock, age
from tests.runtime.handling import BEGUN, BODIES
from tests.runtime.workers import InThread, no_thread_is_left

LEASE = 600.0
"""Long enough for no heartbeat to come in between: tests make entries look older."""

both = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


class Site:
    """A root, and processes on it: each a store, a tracker and a worker of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._trackers: list[TaskTracker] = []
        self.store, self.tracker, _ = self.process()

    def process(self, *, rescue: bool = False) -> tuple[LeaseTaskStore, TaskTracker, Worker]:
        """Start one; ``rescue``: its worker settles and sweeps what others left, by itself."""
        clock = ShiftedClock()
        store = LeaseTaskStore(
            self.root, durability="none", shards=1, clock=clock, lease_seconds=LEASE, heartbeat_seconds=200.0
        )
        handlers = HandlerRegistry()
        for name, handler in (("loop", "on_loop"), ("thread", "in_thread")):
            handlers.register(
                name,
                handler=f"tests.runtime.handling:{handler}",
                idempotent=True,
                retry_seconds=0.001,
                cleanup_seconds=0.1,
            )
        tracker = TaskTracker(store, handlers=handlers, clock=clock)
        self._trackers.append(tracker)
        return store, tracker, Worker(tracker, poll_seconds=(0.001, 0.01), rescue=rescue)

    def submit(self, work: Callable[[Any], Any], *, sync: bool = True, **options: Any) -> TaskRecord:
        """Submit a task whose handler does this."""
        name = options.pop("name", f"work-{len(BODIES)}")
        BODIES[name] = work if sync else as_coroutine(work)
        return self.tracker.submit("thread" if sync else "loop", name, **{**OWNER, **options}).record

    def work(self) -> None:
        """Have a fresh worker do what there is to do."""
        _, _, worker = self.process()
        worker.run_once()

    def seen(self, task: TaskRecord) -> TaskRecord:
        record = self.tracker.get(task.task_id, task.account_id, task.user_id)
        assert record is not None
        return record

    def path(self, task: TaskRecord) -> str | None:
        return self.tracker.effects_path(task.task_id, task.account_id, task.user_id)

    def sweep(self) -> None:
        """Let a lease term pass, in which whoever lives renews, and make a pass."""
        age(self.root, 2 * LEASE)
        self.store.recover()

    def rescue(self) -> Rescued:
        """Let all leases run out, and have a fresh worker settle what they were for."""
        store, _, worker = self.process(rescue=True)
        age(self.root, 2 * LEASE)
        store.expired()  # it watches for a while before it believes anything
        assert isinstance(store._clock, ShiftedClock)
        store._clock.ahead += 2 * LEASE
        return asyncio.run(worker.rescue())

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()


def as_coroutine(work: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def does(ctx: Any) -> Any:
        return work(ctx)

    return does


def write(ctx: Any, text: str = "built") -> Path:
    """Put a file into the directory of the attempt."""
    place = Path(ctx.workdir)
    (place / "index").write_text(text)
    return place


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    BODIES.clear()
    BEGUN.clear()
    with no_thread_is_left():
        made = Site(tmp_path)
        yield made
        made.close()


@both
def test_the_winner_is_named_and_readable(site: Site, sync: bool) -> None:
    places = []

    def work(ctx: Any) -> dict[str, int]:
        places.append(write(ctx))
        assert ctx.workdir == str(places[0]), "the same each time"
        return {"files": 1}

    task = site.submit(work, sync=sync)
    assert site.path(task) is None, "there are none yet"
    site.work()
    ended = site.seen(task)
    assert ended.status is TaskStatus.COMPLETED
    assert site.path(task) == str(places[0]) == str(site.root / str(ended.effects_dir))
    assert (places[0] / "index").read_text() == "built"
    assert ended.to_dict()["effects_dir"] == ended.effects_dir
    site.sweep()
    assert directories(site.root) == places
    assert markers(site.root) == []


def test_who_asks_for_none_has_none(site: Site) -> None:
    task = site.submit(lambda ctx: 1)
    site.work()
    assert site.seen(task).effects_dir is None
    assert site.path(task) is None
    assert not (site.root / "local/.task_tracker/effects").exists()


@pytest.mark.parametrize("how", ["raises", "cancelled", "times out"])
def test_another_ending_names_nothing_and_is_swept(site: Site, how: str) -> None:
    """[D057]"""
    _, own, worker = site.process()

    def work(ctx: Any) -> None:
        write(ctx)
        if how == "raises":
            raise Fail("broke")
        if how == "cancelled":
            own.cancel(ctx.key.task_id, **OWNER)
        while True:
            ctx.check()

    task = site.submit(work, timeout_seconds=0.05 if how == "times out" else None)
    with InThread(worker):
        ended = own.wait(task.task_id, **OWNER, timeout=PATIENCE, poll_interval=0.001)
    assert ended.status is (TaskStatus.CANCELLED if how == "cancelled" else TaskStatus.FAILED)
    assert ended.effects_dir is None
    assert site.path(task) is None
    assert len(directories(site.root)) == 1
    site.sweep()
    assert directories(site.root) == []
    assert markers(site.root) == []


def test_each_try_has_its_own_and_the_last_one_wins(site: Site) -> None:
    places: list[Path] = []

    def work(ctx: Any) -> None:
        places.append(write(ctx, f"try {ctx.attempt_count}"))
        if ctx.attempt_count == 1:
            raise Retry(0.001)

    task = site.submit(work)
    _, own, worker = site.process()
    with InThread(worker):
        own.wait(task.task_id, **OWNER, timeout=PATIENCE, poll_interval=0.001)
    assert len(set(places)) == 2
    assert site.path(task) == str(places[1])
    assert (places[1] / "index").read_text() == "try 2"
    site.sweep()
    assert directories(site.root) == [places[1]]


def test_an_attempt_that_was_taken_over_is_never_named(site: Site) -> None:
    """It slept through its lease. The other attempt has ended when it wakes, and what it writes harms nobody."""
    entered, opened = threading.Event(), threading.Event()
    places: dict[int, Path] = {}

    def work(ctx: Any) -> str:
        place = places[ctx.attempt_count] = write(ctx, f"attempt {ctx.attempt_count}")
        if ctx.attempt_count == 1:
            entered.set()
            assert opened.wait(PATIENCE)
            (place / "index").write_text("late")
        return f"result {ctx.attempt_count}"

    task = site.submit(work)
    _, own, sleeper = site.process()
    with InThread(sleeper):
        assert entered.wait(PATIENCE)
        assert site.rescue() == Rescued(retried=1)
        _, tracker, other = site.process()
        with InThread(other):
            ended = tracker.wait(task.task_id, **OWNER, timeout=PATIENCE, poll_interval=0.001)
        assert site.path(task) == str(places[2])
        opened.set()
        own.wait(task.task_id, **OWNER, timeout=PATIENCE, poll_interval=0.001)
    assert site.seen(task) == ended
    assert ended.result == "result 2"
    assert (places[2] / "index").read_text() == "attempt 2"
    assert (places[1] / "index").read_text() == "late"
    site.sweep()
    assert directories(site.root) == [places[2]]
    assert markers(site.root) == []


@pytest.mark.parametrize("asks_before", [False, True])
def test_a_loser_that_goes_on_after_the_sweep_harms_nobody(site: Site, asks_before: bool) -> None:
    """Its directory is gone; asked for the first time by then, there is none. Made anew by hand, doctor finds it."""
    entered, opened, left = threading.Event(), threading.Event(), threading.Event()
    told: list[BaseException] = []

    def work(ctx: Any) -> None:
        if ctx.attempt_count > 1:
            write(ctx)
            return
        place = write(ctx) if asks_before else None
        entered.set()
        assert opened.wait(PATIENCE)
        try:
            write(ctx)
        except (OSError, LeaseLost) as error:
            told.append(error)
        if place is not None:
            place.mkdir()
            (place / "late").write_text("x")
        left.set()

    task = site.submit(work)
    _, _, sleeper = site.process()
    with InThread(sleeper):
        assert entered.wait(PATIENCE)
        assert site.rescue() == Rescued(retried=1)
        _, tracker, other = site.process()
        with InThread(other):
            tracker.wait(task.task_id, **OWNER, timeout=PATIENCE, poll_interval=0.001)
        site.sweep()
        winner = Path(str(site.path(task)))
        assert directories(site.root) == [winner]
        opened.set()
        assert left.wait(PATIENCE)
    assert [type(error) for error in told] == [FileNotFoundError if asks_before else LeaseLost]
    assert site.path(task) == str(winner)
    assert (winner / "index").read_text() == "built"
    now_ns = site.store._control.now_ns
    site.store._control.now_ns = lambda: now_ns() + int(2 * LEASE * 1e9)  # type: ignore[method-assign]
    age(site.root, 2 * LEASE)
    assert [finding.kind for finding in site.tracker.doctor(fix=True)] == ["unnamed_effects"] * asks_before
    assert directories(site.root) == [winner]
    assert markers(site.root) == []


def test_a_handler_that_is_left_behind_gets_none_after_the_end(site: Site) -> None:
    """Its attempt has timed out and the task has failed; it goes on in its thread."""
    opened, left = threading.Event(), threading.Event()
    told: list[BaseException] = []

    def work(ctx: Any) -> None:
        assert opened.wait(PATIENCE)
        try:
            write(ctx)
        except LeaseLost as error:
            told.append(error)
        left.set()

    task = site.submit(work, timeout_seconds=0.05)
    _, own, worker = site.process()
    with InThread(worker):
        ended = own.wait(task.task_id, **OWNER, timeout=PATIENCE, poll_interval=0.001)
        opened.set()
        assert left.wait(PATIENCE)
    assert ended.error_code == "timeout"
    assert len(told) == 1
    assert directories(site.root) == []
    assert markers(site.root) == []


def test_on_a_store_without_files_it_is_refused() -> None:
    """In memory, for one: nothing is made that nobody would sweep."""
    BODIES.clear()
    told: list[BaseException] = []

    def work(ctx: Any) -> None:
        try:
            write(ctx)
        except CapabilityMissing as error:
            told.append(error)

    BODIES["work"] = work
    handlers = HandlerRegistry()
    handlers.register("thread", handler="tests.runtime.handling:in_thread")
    with TaskTracker(InMemoryTaskStore(), handlers=handlers) as tracker:
        task = tracker.submit("thread", "work", **OWNER).record
        Worker(tracker).run_once()
        assert len(told) == 1
        with pytest.raises(CapabilityMissing, match="keeps no files of tasks"):
            tracker.effects_path(task.task_id, **OWNER)


# ---- afterwards ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["delete", "delete_user_tasks", "purge"])
def test_they_go_with_the_task(site: Site, how: str) -> None:
    task, other = site.submit(write_one), site.submit(write_one, user_id="bob")
    site.work()
    kept = [Path(str(site.path(other)))]
    if how == "delete":
        assert site.tracker.delete(task.task_id, **OWNER)
    elif how == "delete_user_tasks":
        assert site.tracker.delete_user_tasks(**OWNER) == 1
    else:
        purged = site.store.purge({TaskStatus.COMPLETED: 10.0**12}, limit=100)
        assert len(purged.deleted) == 2
        kept = []
    assert directories(site.root) == kept
    assert markers(site.root) == []


def write_one(ctx: Any) -> None:
    write(ctx)


def test_whose_path_is_told_to_whom(site: Site) -> None:
    task = site.submit(write_one)
    site.work()
    _, stranger, _ = site.process()
    with pytest.raises(TaskNotFound):
        stranger.effects_path(task.task_id)
    with pytest.raises(TaskNotFound):
        stranger.effects_path(task.task_id, "acme", "mallory")
    assert stranger.effects_path(task.task_id, **OWNER) == site.path(task)
    assert stranger.effects_path(task.task_id) == site.path(task), "it is cached now"


def test_a_record_leads_nobody_elsewhere(site: Site) -> None:
    task = site.submit(write_one)
    site.work()
    file = site.root / "local/acme/tasks/alice" / f"{task.task_id}.json"
    name = str(site.seen(task).effects_dir)
    file.write_bytes(file.read_bytes().replace(name.encode(), b"../../../etc"))
    _, stranger, _ = site.process()
    with pytest.raises(CorruptRecord, match="changed by hand, or brought here without its files"):
        stranger.effects_path(task.task_id, **OWNER)


def test_the_same_from_coroutines(site: Site) -> None:
    task = site.submit(write_one)
    site.work()

    async def main() -> None:
        tracker = AsyncTaskTracker(site.process()[1])
        assert await tracker.effects_path(task.task_id, **OWNER) == site.path(task)
        with pytest.raises(TaskNotFound):
            await tracker.effects_path("unknown", **OWNER)
        await tracker.delete(task.task_id, **OWNER)
        assert directories(site.root) == []
        await tracker.aclose()

    asyncio.run(main())
