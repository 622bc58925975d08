"""Our store and the OpenViking tracker's own one on the same native AGFS client, in one process, in turn.

The client comes in an environment of its own (``tools/native_agfs.py``); where that cannot be made there is one
row that says so. Run by that environment's interpreter this measures and prints JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, directory, paired
from stores import PersistentTaskStore
from task_tracker import TaskRecord, TaskStatus
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.store import Query

PROJECT = Path(__file__).resolve().parent.parent
OWNER: dict[str, Any] = {"account_id": "acme", "user_id": "alice"}
TYPE = "session_commit"
LISTED, PAGE = 1000, 50
LIMIT_SECONDS = 300


def rows(disk: Path) -> list[Row]:
    """Measure in the other environment."""
    made = subprocess.run(
        [sys.executable, "tools/native_agfs.py"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    said = made.stdout.strip()
    if made.returncode:
        return [Row(f"no figures for AGFS: {said}", 0.0, "")]
    with directory(disk) as root:
        done = subprocess.run(
            [said, "-m", "benchmarks.agfs", str(root)],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]


def measure(root: Path) -> list[Row]:
    """Measure here, where the client is."""
    client = _client(root)
    with asyncio.Runner() as runner:
        return [_life(client, runner), _page(client, runner), _get(client, runner)]


def _client(root: Path) -> Any:
    from openviking.pyagfs import get_binding_client  # type: ignore[import-not-found,unused-ignore]

    client = get_binding_client()[0](None, config={"service_name": "t", "agfs": {}})
    client.mount("localfs", "/local", {"local_dir": str(root)})
    return client


def _theirs(client: Any) -> Any:
    from openviking.service import task_store  # type: ignore[import-not-found,unused-ignore]

    return task_store.PersistentTaskStore(client)


def _their_record(**fields: Any) -> Any:
    from openviking.service import task_domain  # type: ignore[import-not-found,unused-ignore]

    return task_domain.TaskRecord(SYSTEM_CLOCK.new_id(SYSTEM_CLOCK.now()), TYPE, **OWNER, **fields)


def _our_record(**fields: Any) -> TaskRecord:
    now = SYSTEM_CLOCK.now()
    return TaskRecord(SYSTEM_CLOCK.new_id(now), TYPE, TaskStatus.PENDING, now, now, **OWNER, **fields)


async def _their_life(store: Any, number: int) -> None:
    record = await store.create(_their_record(resource_id=f"sess-{number}"))
    await store.start_task(record.task_id, stage=None, **OWNER)
    await store.record_outcome(
        record.task_id, result={"chunks": 12}, error=None, resource_id=None, cancelled=False, **OWNER
    )


def _our_life(store: PersistentTaskStore, number: int) -> None:
    record = _our_record(resource_id=f"sess-{number}")
    store.create(record)
    for status in (TaskStatus.RUNNING, TaskStatus.COMPLETED):
        record = record.changed(status=status, updated_at=SYSTEM_CLOCK.now())
        store.update(record, expected=None)


def _life(client: Any, runner: asyncio.Runner) -> Row:
    ours, theirs, numbers = PersistentTaskStore(client), _theirs(client), itertools.count()
    mine, its, ratio = paired(
        lambda: _our_life(ours, next(numbers)),
        lambda: runner.run(_their_life(theirs, next(numbers))),
        rounds=10,
        times=20,
    )
    return Row(
        "create, start, complete / the OpenViking store's",
        ratio,
        "x",
        detail=f"{mine:.0f} / {its:.0f} us; it writes in place",
    )


def _page(client: Any, runner: asyncio.Runner) -> Row:
    """Both know the directory already; one more task was created since, as between two looks of a person."""
    ours, theirs = PersistentTaskStore(client), _theirs(client)
    for number in range(LISTED):
        ours.create(_our_record(resource_id=f"old-{number}").changed(status=TaskStatus.COMPLETED))
        runner.run(_their_life(theirs, number))
    query = Query(**OWNER, limit=PAGE)

    def look() -> None:
        assert len(ours.list(query).items) == PAGE

    def their_look() -> None:
        assert len(runner.run(theirs.list(OWNER["account_id"], user_id=OWNER["user_id"], limit=PAGE))) == PAGE

    look()
    their_look()
    mine, its, ratio = paired(look, their_look, rounds=5, times=3)
    what = f"list {PAGE} of {LISTED:,} and more, known / the OpenViking store's"
    return Row(what, ratio, "x", detail=f"{mine:.0f} / {its:.0f} us")


def _get(client: Any, runner: asyncio.Runner) -> Row:
    """By an instance that has not seen the task: after a restart, or on another server."""
    record, other = _our_record(), _their_record()
    PersistentTaskStore(client).create(record)
    runner.run(_theirs(client).create(other))

    def look() -> None:
        PersistentTaskStore(client).get(record.key)

    def their_look() -> None:
        assert runner.run(_theirs(client).get_task(other.task_id, **OWNER)) is not None

    mine, its, ratio = paired(look, their_look, rounds=10, times=20)
    return Row(
        "get after a restart / the OpenViking store's", ratio, "x", detail=f"{mine:.0f} / {its:.0f} us"
    )


if __name__ == "__main__":
    print(json.dumps([asdict(row) for row in measure(Path(sys.argv[1]))]))
