"""Workers: no-op tasks from submit to end against huey's file storage, pick-up latency, four workers against one.

huey is installed into the scratch directory for this; where that cannot be done a row says so. What makes the two
comparable: one worker process each, with the number of attempts at once that is its default (four and one), on the
same file system, without fsync, each storing results as it does by itself. Live, each runs its own worker beside a
process that submits (:mod:`benchmarks.live`). In one process, all tasks are submitted before the first is worked off,
and what both do every few seconds besides is left out: huey's tasks are taken and executed in a bare loop, which is the
best that it can do, and the worker makes no passes in which it looks for what others left.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import live
from benchmarks.live import OWNER, Life
from benchmarks.measure import Row, directory, journalled
from stores.files.lease.store import LeaseTaskStore
from task_tracker import HandlerRegistry, TaskTracker
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.store import LeaseStore
from task_tracker.wakeups import InProcessWakeUp, NoWakeUp, WakeUp
from task_tracker.worker import Event, Worker
from task_tracker.worker.heartbeat import Heartbeats
from task_tracker.worker.hooks import Hooks

TASKS = 1000
MORE_TASKS = 5000
"""huey lists all that waits whenever it takes a task, so it is slower the more wait."""
ROUNDS = 4
PICK_UPS = 60
WORKERS = 4
RUNNING = 1000
PEER = "huey==3.5.4"

MOST_OF_HUEY = 1.0
MOST_MS_POLLING, MOST_MS_WOKEN = 50.0, 10.0
MOST_OF_ONE_WORKER = 1.0
MOST_CPU_PERCENT = 2.0


def rows(disk: Path, memory_disk: Path | None) -> list[Row]:
    """Measure all of it."""
    found = []
    with journalled(disk) as journal:
        for base, where in ((disk, "on disk"), (journal, "ext4 with a journal"), (memory_disk, "tmpfs")):
            if base is None:
                found.append(Row(f"no figures for {where}: there is none here", 0.0, ""))
                continue
            found.extend(_life(disk, base, where, None if base is memory_disk else MOST_OF_HUEY))
            found.append(_crowd(base, where, None if base is memory_disk else MOST_OF_ONE_WORKER))
    found.append(pick_up(disk, NoWakeUp(), "polling at its default", MOST_MS_POLLING))
    found.append(pick_up(disk, InProcessWakeUp(), "in-process wake-up", MOST_MS_WOKEN))
    found.append(_beats(disk))
    return found


async def noop(ctx: object, payload: Any) -> Any:
    return payload


def registry() -> HandlerRegistry:
    made = HandlerRegistry()
    made.register("noop", handler=f"{__name__}:noop")
    return made


def _tracker(store: LeaseStore, wake_up: WakeUp | None = None) -> TaskTracker:
    return TaskTracker(store, handlers=registry(), wake_up=wake_up)


# ---- throughput --------------------------------------------------------------------------------------------


def _life(disk: Path, base: Path, where: str, target: float | None) -> list[Row]:
    """The two take turns in being first; each round begins with an empty directory."""
    try:
        huey = _huey(disk)
    except (OSError, subprocess.SubprocessError, ImportError) as error:
        return [Row(f"no figures for {PEER}: it cannot be installed here ({error!r:.60})", 0.0, "")]
    packages = str(Path(huey.__file__).parent.parent)
    lived = [_live(base, packages, where, tasks, target) for tasks in (TASKS, MORE_TASKS)]
    alone = _in_turn(base, _ours, lambda root: _theirs(huey, root))
    return [
        *lived,
        _compared(
            f"{TASKS:,} no-op tasks in one process, huey in a bare loop, {where}",
            [(mine.all, its.all) for mine, its in alone],
        ),
        _compared(
            f"the same, of tasks that were created before, {where}",
            [(mine.worked, its.worked) for mine, its in alone],
        ),
    ]


def _live(base: Path, packages: str, where: str, tasks: int, target: float | None) -> Row:
    lives = _in_turn(
        base,
        lambda root: live.live("lease", str(root), tasks=tasks),
        lambda root: live.live("huey", str(root), packages, tasks=tasks),
    )
    return _compared(
        f"{tasks:,} no-op tasks live, submit to end, one worker / huey's file storage, {where}",
        [(mine.all, its.all) for mine, its in lives],
        target,
        tasks,
    )


def _in_turn(
    base: Path, ours: Callable[[Path], Life], theirs: Callable[[Path], Life]
) -> list[tuple[Life, Life]]:
    lives: tuple[list[Life], list[Life]] = [], []
    for number in range(ROUNDS):
        turns = [*zip(lives, (ours, theirs), strict=True)]
        for found, way in turns if number % 2 else reversed(turns):
            with directory(base) as root:
                found.append(way(root))
    return [*zip(*lives, strict=True)]


def _compared(
    what: str, pairs: list[tuple[float, float]], target: float | None = None, tasks: int = TASKS
) -> Row:
    mine, its = (statistics.median(times) / tasks * 1e6 for times in zip(*pairs, strict=True))
    return Row(
        what,
        statistics.median(one / other for one, other in pairs),
        "x",
        target,
        f"{mine:.0f} / {its:.0f} us per task; huey has no leases and loses what runs",
    )


def _ours(root: Path) -> Life:
    with _tracker(LeaseTaskStore(root, durability="none")) as tracker:
        started = time.perf_counter()
        for number in range(TASKS):
            tracker.submit("noop", number, **OWNER)
        submitted = time.perf_counter()
        assert Worker(tracker, rescue=False).run_once() == TASKS
        return Life(submitted - started, time.perf_counter() - submitted)


def _theirs(huey: Any, root: Path) -> Life:
    queue = huey.FileHuey("benchmark", path=str(root))

    @queue.task()  # type: ignore[untyped-decorator,unused-ignore]
    def work(number: int) -> int:
        return number

    started = time.perf_counter()
    for number in range(TASKS):
        work(number)
    submitted = time.perf_counter()
    done = 0
    while (task := queue.dequeue()) is not None:
        queue.execute(task)
        done += 1
    assert done == TASKS
    return Life(submitted - started, time.perf_counter() - submitted)


def _huey(scratch: Path) -> Any:
    place = scratch / "peers"
    if not (place / "huey").is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(place), "--no-deps", PEER]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    if str(place) not in sys.path:
        sys.path.append(str(place))
    return importlib.import_module("huey")


def _crowd(base: Path, where: str, target: float | None) -> Row:
    """Processes are there before the clock starts; the work is done when the last of them finds none."""
    ones: list[float] = []
    fours: list[float] = []
    for _ in range(ROUNDS):
        for number, times in ((1, ones), (WORKERS, fours)):
            with directory(base) as root:
                times.append(_worked_off(root, number))
    ratio = statistics.median(four / one for four, one in zip(fours, ones, strict=True))
    one, four = (TASKS / statistics.median(times) for times in (ones, fours))
    detail = f"{one:.0f} / s by one, {four:.0f} / s by four, {os.cpu_count()} cores"
    return Row(f"{TASKS:,} tasks by {WORKERS} worker processes / by one, {where}", ratio, "x", target, detail)


def _worked_off(root: Path, processes: int) -> float:
    store = LeaseTaskStore(root, durability="none")
    with _tracker(store) as tracker:
        for number in range(TASKS):
            tracker.submit("noop", number, **OWNER)
    go, gone = os.pipe()
    ready, told = os.pipe()
    children = []
    for _ in range(processes):
        pid = os.fork()
        if not pid:
            os.close(gone)
            os._exit(_child(root, go, told))
        children.append(pid)
    os.close(told)
    for _ in children:
        assert os.read(ready, 1)
    started = time.perf_counter()
    os.close(gone)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    took = time.perf_counter() - started
    assert not any(codes), codes
    os.close(go)
    os.close(ready)
    counts = store.count(OWNER["account_id"], OWNER["user_id"])
    assert counts == {"noop": {"completed": TASKS}}, counts
    return took


def _child(root: Path, go: int, told: int) -> int:
    try:
        with _tracker(LeaseTaskStore(root, durability="none")) as tracker:
            worker = Worker(tracker)
            os.write(told, b"!")
            os.read(go, 1)
            worker.run_once()
    except BaseException:  # noqa: BLE001  # shown, and told by the exit code
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


# ---- latency -----------------------------------------------------------------------------------------------


def pick_up(base: Path, wake_up: WakeUp, how: str, target: float) -> Row:
    """From the call of submit to the first line of the handler, by a worker that has been idle for a while."""
    with directory(base) as root, _tracker(LeaseTaskStore(root, durability="none"), wake_up) as tracker:
        return latency(tracker, tracker, how, target)


def latency(tracker: TaskTracker, submitter: TaskTracker, how: str, target: float, **options: Any) -> Row:
    """The same with a worker of ``tracker``, made with ``options``, and tasks that ``submitter`` submits."""
    took = sorted(asyncio.run(_latencies(tracker, submitter, options)))
    median, worst = statistics.median(took), took[round(len(took) * 0.95)]
    return Row(f"idle pick-up, {how}, p50", median, "ms", target, f"p95 {worst:.1f} ms")


async def _latencies(tracker: TaskTracker, submitter: TaskTracker, options: dict[str, Any]) -> list[float]:
    began = asyncio.Event()
    begun_at = 0.0
    pauses = itertools.cycle([0.31, 0.37, 0.43])  # no multiple of a pause between two looks

    def listen(event: Event) -> None:
        nonlocal begun_at
        if event.name == "attempt_started":  # told on the loop
            begun_at = time.perf_counter()
            began.set()

    found = []
    async with Worker(tracker, hooks=[listen], **options):
        for number in range(PICK_UPS):
            await asyncio.sleep(next(pauses))
            began.clear()
            before = time.perf_counter()
            await asyncio.to_thread(_submit(submitter, number))
            await began.wait()
            found.append((begun_at - before) * 1000)
    return found


def _submit(tracker: TaskTracker, number: int) -> Callable[[], Any]:
    return lambda: tracker.submit("noop", number, **OWNER)


# ---- heartbeats --------------------------------------------------------------------------------------------


def _beats(base: Path) -> Row:
    """The share of a core that the heartbeats of many running tasks take, at the default of one every ten seconds."""
    with directory(base) as root:
        store = LeaseTaskStore(root, durability="none")
        heartbeats = Heartbeats(store, SYSTEM_CLOCK, lambda lease: None, Hooks())
        heartbeats.begin = lambda: None  # type: ignore[method-assign]  # rounds are made here
        with _tracker(store) as tracker:
            for number in range(RUNNING):
                tracker.submit("noop", number, **OWNER)
                claimed = store.claim(holder="benchmark", task_types=[("noop", 1)])
                assert claimed is not None
                heartbeats.hold(*claimed, SYSTEM_CLOCK.monotonic())
            rounds = []
            for _ in range(5):
                before = time.process_time()
                heartbeats.run_once()
                rounds.append(time.process_time() - before)
    percent = statistics.median(rounds) / store.heartbeat_seconds * 100
    what = f"heartbeats of {RUNNING:,} running tasks, share of a core"
    return Row(what, percent, "%", MOST_CPU_PERCENT, f"{statistics.median(rounds) * 1000:.0f} ms per round")
