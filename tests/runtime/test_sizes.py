"""How large payloads, checkpoints, results and resource ids may be, and what happens to those that are larger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from task_tracker import (
    HandlerRegistry,
    InvalidPayload,
    SettingsError,
    StorageConfig,
    TaskStatus,
    TaskTracker,
)
from task_tracker.defaults import MAX_RESOURCE_ID_CHARACTERS
from task_tracker.sizes import Sizes
from task_tracker.testing import FakeClock
from task_tracker.worker import BlockingTaskContext, Result, TaskContext
from task_tracker.worker.outcomes import Done, Failed
from tests.core.support import OWNER
from tests.runtime.attempting import Bench, attempted, run
from tests.runtime.places import KINDS, Place, count, place_for, stored

both = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
MIB = 2**20
LONG = "r" * MAX_RESOURCE_ID_CHARACTERS


def sized(size: int) -> str:
    """Text that takes so many bytes as JSON."""
    return "x" * (size - 2)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from place_for(request, tmp_path)


def plain() -> HandlerRegistry:
    """A handler that takes any JSON."""
    registry = HandlerRegistry()
    registry.register("ingest", handler="app.ingest:run", idempotent=True)
    return registry


# ---- payloads ------------------------------------------------------------------------------------------


def test_a_payload_has_a_bound(place: Place) -> None:
    with place.tracker(plain()) as tracker:
        fits = tracker.submit("ingest", sized(MIB), **OWNER)
        assert stored(place, fits).payload == sized(MIB)
        with pytest.raises(InvalidPayload) as refused:
            tracker.submit("ingest", sized(MIB + 1), **OWNER)
        assert str(refused.value) == (
            "the payload takes 1048577 bytes as JSON, and max_payload_bytes is 1048576; put what is large elsewhere "
            "and submit where it is, or raise the setting"
        )
        with pytest.raises(InvalidPayload, match="bytes as JSON"):
            tracker.submit("of others", sized(MIB + 1), version=1, unregistered=True, **OWNER)
        assert count(place) == 1
        assert place.way.woken == [fits.task_id]


def test_what_is_stored_already_is_worked_on_and_submitted_again(place: Place) -> None:
    """Whoever lowers a bound, or comes from a version that had none, loses nothing."""
    with place.tracker(plain(), max_payload_bytes=3 * MIB) as generous:
        old = generous.submit("ingest", sized(2 * MIB), resource_id="kb-7", **OWNER)
    lease, claimed = place.claimed(("ingest", 1))
    long_ago = claimed.changed(resource_id=2 * LONG, meta_json=b'{"_checkpoint":"' + b"c" * 2 * MIB + b'"}')
    place.store.commit(lease, long_ago)
    place.store.end(lease, long_ago.changed(status=TaskStatus.FAILED, completed_at=place.clock.now()))
    with place.tracker(plain()) as tracker:
        found = tracker.get(old.task_id, **OWNER)
        assert found is not None
        assert (found.payload, found.resource_id) == (sized(2 * MIB), 2 * LONG)
        for again in (tracker.resume, tracker.retry):
            submitted = again(old.task_id, OWNER["account_id"], OWNER["user_id"]).record
            assert (submitted.payload, submitted.resource_id) == (sized(2 * MIB), 2 * LONG)
        with pytest.raises(InvalidPayload, match="max_payload_bytes is 1048576"):
            tracker.retry(old.task_id, OWNER["account_id"], OWNER["user_id"], payload=sized(MIB + 1))


# ---- results -------------------------------------------------------------------------------------------


@both
def test_a_result_has_a_bound(clock: FakeClock, sync: bool) -> None:
    def returning(value: Any) -> Any:
        async def on_loop(ctx: TaskContext) -> Any:
            return value

        return (lambda ctx: value) if sync else on_loop

    outcome, record, _ = attempted(clock, returning(sized(MIB)), sync=sync)
    assert isinstance(outcome, Done)
    assert record.result == sized(MIB)
    outcome, record, _ = attempted(clock, returning(sized(MIB + 1)), sync=sync)
    assert isinstance(outcome, Failed)
    assert (record.status, record.error_code, record.result) == (TaskStatus.FAILED, "result_too_large", None)
    assert record.error == (
        "the result takes 1048577 bytes as JSON, and max_result_bytes is 1048576; put what is large into files "
        "(ctx.workdir) or elsewhere and return where it is, or raise the setting"
    )
    _, record, _ = attempted(clock, returning(Result("made", 2 * LONG)), sync=sync)
    assert (record.status, record.error_code) == (TaskStatus.FAILED, "result_too_large")
    assert "resource_id has 4096 characters, and may have 2048" in str(record.error)


def test_what_is_too_large_is_not_tried_again(clock: FakeClock) -> None:
    """It would be as large the next time."""

    async def body(ctx: TaskContext) -> str:
        return sized(MIB + 1)

    async def main() -> None:
        bench = Bench(clock)
        bench.handler(idempotent=True, max_attempts=5)
        ended = await bench.attempt(body)
        assert ended.record is not None
        assert ended.record.error_code == "result_too_large"
        await bench.close()

    run(clock, main())


# ---- checkpoints ---------------------------------------------------------------------------------------


@both
def test_a_checkpoint_has_a_bound(clock: FakeClock, sync: bool) -> None:
    """The handler learns it where it is, and the one before it stays."""

    async def on_loop(ctx: TaskContext) -> Any:
        await ctx.checkpoint(sized(MIB))
        with pytest.raises(
            ValueError, match="checkpoint takes 1048577 bytes as JSON, and max_checkpoint_bytes is"
        ):
            await ctx.checkpoint(sized(MIB + 1))
        return len(ctx.last_checkpoint)

    def in_thread(ctx: BlockingTaskContext) -> Any:
        ctx.checkpoint(sized(MIB))
        with pytest.raises(ValueError, match="keep what is large elsewhere and note where it is, or raise"):
            ctx.checkpoint(sized(MIB + 1))
        return len(ctx.last_checkpoint)

    _, record, _ = attempted(clock, in_thread if sync else on_loop, sync=sync)
    assert record.result == MIB - 2


# ---- resource ids --------------------------------------------------------------------------------------


def test_a_resource_id_has_a_bound(clock: FakeClock) -> None:
    with TaskTracker(clock=clock, handlers=plain()) as tracker:
        assert tracker.create("t", LONG, **OWNER).resource_id == LONG
        assert tracker.submit("ingest", resource_id=LONG, dedupe=True, **OWNER).created
        message = "resource_id has 2049 characters, and may have 2048; give a shorter name"
        with pytest.raises(ValueError, match=message):
            tracker.create("t", LONG + "r", **OWNER)
        with pytest.raises(ValueError, match=message):
            tracker.create_if_no_running("t", LONG + "r", **OWNER)
        with pytest.raises(ValueError, match=message):
            tracker.submit("ingest", resource_id=LONG + "r", **OWNER)
        task = tracker.create("t", **OWNER)
        with pytest.raises(ValueError, match=message):
            tracker.complete(task.task_id, resource_id=LONG + "r")
        assert tracker.has_running("t", LONG + "r", **OWNER) is False, "a question may be asked"
        assert tracker.count() == 3


# ---- settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "1", None])
@pytest.mark.parametrize("name", ["max_payload_bytes", "max_checkpoint_bytes", "max_result_bytes"])
def test_a_bound_is_a_number_of_bytes(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"{name} is .*; give a whole number of bytes of 1 or more"):
        Sizes(**{name: value})


def test_bounds_are_configured() -> None:
    names = {"max_payload_bytes": 3, "max_checkpoint_bytes": 4, "max_result_bytes": 5}
    with StorageConfig(task_tracker=names).build_task_tracker(handlers=plain()) as tracker:
        assert tracker.sizes == Sizes(**names)
        tracker.submit("ingest", 123, **OWNER)
        with pytest.raises(InvalidPayload, match="takes 4 bytes as JSON, and max_payload_bytes is 3"):
            tracker.submit("ingest", 1234, **OWNER)
