"""What a handler knows and leaves: its history, its fence, its directory, and a cancel that it sees for itself."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from task_tracker import CapabilityMissing, StoreUnavailable
from task_tracker.records import Attempt, TaskStatus
from task_tracker.store import EffectsPlace, Lease
from task_tracker.testing import FakeClock, RecordMaker
from task_tracker.worker import BlockingTaskContext, Fail, TaskContext
from task_tracker.worker.history import MAX_ENTRIES, noted
from task_tracker.worker.outcomes import CancelledOutcome, Done
from tests.runtime.attempting import OWNER, PATIENCE, Bench, Gate, attempted, run

both = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# ---- history -----------------------------------------------------------------------------------------


def test_the_history_tells_what_happened_when(clock: FakeClock) -> None:
    """[D153] Each transition with its own time, over attempts and after the end."""
    start = clock.now()

    async def body(ctx: TaskContext) -> str:
        clock.advance(1)
        await ctx.progress(stage="parsing")
        clock.advance(1)
        if ctx.attempt_count == 1:
            raise OSError("again")
        return "done"

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(idempotent=True)
        claimed = bench.claim(body)
        assert bench.stored(claimed[0]).history is None  # nothing was written yet, and nothing is made up
        await bench.start(claimed)
        clock.advance(10)
        await bench.start(bench.claim_again(claimed[0].key))
        assert bench.stored(claimed[0]).history == [
            {"at": start, "status": "pending"},
            {"at": start, "status": "running", "attempt": 1},
            {"at": start + 1, "status": "running", "attempt": 1, "stage": "parsing"},
            {
                "at": start + 2,
                "status": "pending",
                "attempt": 1,
                "stage": "parsing",
                "error": "OSError: again",
                "not_before": start + 3,
            },
            {"at": start + 12, "status": "running", "attempt": 2},
            {"at": start + 14, "status": "completed", "attempt": 2},
        ]
        assert bench.tracker.get(claimed[0].key.task_id, **OWNER).history is not None  # type: ignore[union-attr]
        await bench.close()

    run(clock, main())


def test_a_history_is_bounded(clock: FakeClock) -> None:
    """[D153] The creation and the last entries stay."""

    async def body(ctx: TaskContext) -> None:
        for number in range(3 * MAX_ENTRIES):
            await ctx.progress(stage=f"stage {number}")

    _, record, _ = attempted(clock, body)
    history = record.history
    assert history is not None
    assert len(history) == MAX_ENTRIES
    assert history[0]["status"] == "pending"
    assert history[-2]["stage"] == f"stage {3 * MAX_ENTRIES - 1}"
    assert history[-1]["status"] == "completed"


def test_what_is_nothing_of_note_is_not_noted() -> None:
    """[D153]"""
    record = RecordMaker()().changed(status=TaskStatus.RUNNING, attempt=Attempt(1, "t", "h", 1))
    assert noted(record, record) is record
    other = record.changed(progress=5.0, message="m")
    assert noted(record, other) is other


# ---- the rest ----------------------------------------------------------------------------------------


@both
def test_what_a_handler_knows_of_its_task(clock: FakeClock, sync: bool) -> None:
    seen: dict[str, Any] = {}

    def look(ctx: Any) -> None:
        seen.update(
            {
                name: getattr(ctx, name)
                for name in (
                    "key",
                    "task_type",
                    "version",
                    "attempt_count",
                    "fence",
                    "last_checkpoint",
                    "cancelled",
                    "stopping",
                )
            }
        )
        seen["private"] = ctx.get_private()
        seen["record"] = ctx.record
        ctx.check()

    async def on_loop(ctx: TaskContext) -> None:
        look(ctx)

    _, record, _ = attempted(clock, look if sync else on_loop, sync=sync, private_json=b'{"key":"k"}')
    assert seen.pop("record").status == "running"
    assert seen == {
        "key": record.key,
        "task_type": "t",
        "version": 1,
        "attempt_count": 1,
        "fence": (round(record.created_at * 1_000_000), 1),
        "last_checkpoint": None,
        "cancelled": False,
        "stopping": False,
        "private": {"key": "k"},
    }
    assert record.private_json is None


def test_a_store_without_a_place_for_files_says_so(clock: FakeClock) -> None:
    async def body(ctx: TaskContext) -> None:
        with pytest.raises(CapabilityMissing, match="no place for files"):
            _ = ctx.workdir

    outcome, record, _ = attempted(clock, body)
    assert isinstance(outcome, Done)
    assert record.effects_dir is None


@pytest.mark.parametrize("fails", [False, True])
@both
def test_only_the_attempt_that_completes_the_task_names_its_directory(
    clock: FakeClock, tmp_path: Path, sync: bool, fails: bool
) -> None:
    """[D057] What an attempt left that did not is nobody's."""
    place = tmp_path / "effects" / "t" / "1-x"

    def work(ctx: Any) -> None:
        (Path(ctx.workdir) / "index").write_text("built", encoding="utf-8")
        assert ctx.workdir == str(place)
        if fails:
            raise Fail("broke")

    async def on_loop(ctx: TaskContext) -> None:
        work(ctx)

    async def main() -> None:
        bench = Bench(clock)
        give_places(bench, place)
        bench.handler(sync=sync)
        ended = await bench.attempt(work if sync else on_loop)
        assert ended.record is not None
        assert ended.record.effects_dir == (None if fails else "t/1-x")
        assert (place / "index").read_text(encoding="utf-8") == "built"
        unused = await bench.attempt((lambda _: None) if sync else nothing)
        assert unused.record is not None
        assert unused.record.effects_dir is None
        await bench.close()

    run(clock, main())


def give_places(bench: Bench, place: Path) -> None:
    """Have the store make a directory for attempts, as one on files does."""

    def effects(lease: Lease) -> EffectsPlace:
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable("it cannot be made") from error
        return EffectsPlace(str(place), f"t/{lease.epoch}-x")

    vars(bench.store).update(effects=effects, effects_path=lambda record: record.effects_dir)


def test_a_directory_that_cannot_be_made_is_the_stores_trouble(clock: FakeClock, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")

    async def body(ctx: TaskContext) -> None:
        with pytest.raises(StoreUnavailable, match="cannot be made"):
            _ = ctx.workdir

    async def main() -> None:
        bench = Bench(clock)
        give_places(bench, tmp_path / "file" / "x")
        bench.handler()
        ended = await bench.attempt(body)
        assert isinstance(ended.outcome, Done)
        assert ended.record is not None
        assert ended.record.effects_dir is None
        await bench.close()

    run(clock, main())


async def nothing(_: TaskContext) -> None:
    return None


def test_a_cancel_is_seen_by_a_thread_while_the_loop_is_blocked(clock: FakeClock) -> None:
    """[D039] The heartbeat's thread sets the flag; no turn of the loop is needed."""
    gate, looked = Gate(), threading.Event()
    seen: list[bool] = []

    def body(ctx: BlockingTaskContext) -> None:
        gate.pass_in_thread()
        seen.append(ctx.cancelled)
        try:
            ctx.check()
        finally:
            looked.set()

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(sync=True)
        claimed = bench.claim(body)
        attempt = await bench.begin(claimed)
        bench.inner.request_cancel(claimed[0].key)
        gate.opened.set()
        assert looked.wait(PATIENCE)  # without giving the loop a turn
        assert seen == [True]
        assert (await attempt).outcome == CancelledOutcome()
        await bench.close()

    run(clock, main())
