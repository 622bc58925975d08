"""Workers in every trouble at once: each task ends once, nothing late counts, and what was acknowledged is there.

Killed, frozen, told to stop; with clocks that step by hours, disks that are full, cancels in storms, several clients
that submit the same thing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.processes.chaos import conduct
from tests.runtime.processes.disk import can_mount
from tests.runtime.processes.plan import Plan


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    """In memory where there is such a disk: this makes thousands of files."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as path:
        yield path


@pytest.fixture
def own_server() -> None:
    """Skip where none can be started: one that is there is not the tests' to stop."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: the extra `postgres` has it")
    from tests.postgres.server import has_programs

    if not has_programs():
        pytest.skip("PostgreSQL's initdb is not installed: there is no server that may be stopped")


def conducted(told: list[str], plan: Plan) -> dict[str, Any]:
    """Carry out ``plan``; it is to break no promise. Return the figures."""
    answer = conduct(plan)
    assert not answer["violations"], answer
    figures: dict[str, Any] = answer["figures"]
    told.extend(
        f"chaos of workers, {name}: {number}" for name, number in sorted(figures.items()) if name != "seconds"
    )
    return figures


def test_a_short_chaos_leaves_no_trace(directory: str, told: list[str]) -> None:
    """[D003] [D022] [D026] [D060] [D073] Every task ends exactly once, and no clock that steps costs a lease."""
    plan = Plan(
        directory=directory, seed=1, workers=3, tasks=80, kills=4, freezes=4, clock_steps=6, cancels=8
    )
    figures = conducted(told, plan)
    assert figures["completed"] > 20
    assert figures["clock_steps"] == 6


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_a_long_chaos_leaves_no_trace(directory: str, seed: int, told: list[str]) -> None:
    """The same with thousands of tasks."""
    plan = Plan(
        directory=directory,
        seed=seed,
        tasks=2500,
        kills=80,
        freezes=80,
        stops=20,
        clock_steps=80,
        full_disks=40,
        cancels=200,
        client_kills=10,
        blocking=0.01,
    )
    figures = conducted(told, plan)
    assert figures["completed"] > 1000
    assert figures["failed:holder_lost"] > 10
    assert figures["cancelled"] > 50


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a disk of its own")
def test_a_disk_without_room_loses_nothing(directory: str, told: list[str]) -> None:
    """[D073] ENOSPC for everybody at once, new names as well, while workers are killed."""
    plan = Plan(directory=directory, seed=4, tasks=600, kills=20, freezes=10, full_stores=30, cancels=50)
    figures = conducted(told, plan)
    assert figures["full_stores"] == 30
    assert figures["calls that the store did not answer"] > 30
    assert figures["completed"] > 200


# ---- on PostgreSQL ------------------------------------------------------------------------------------------


def test_a_short_chaos_on_postgresql_leaves_no_trace(
    directory: str, told: list[str], own_server: None
) -> None:
    """[D016] [D023] [D110] [D112] Sessions ended, the server restarted at once, Redis away; each task ends once."""
    plan = Plan(
        directory=directory,
        seed=5,
        workers=3,
        tasks=60,
        kills=3,
        freezes=3,
        stops=1,
        clock_steps=3,
        full_disks=0,
        terminations=5,
        server_restarts=1,
        cancels=8,
        redis_stops=1 if shutil.which("redis-server") else 0,
        store={"backend": "postgres"},
    )
    figures = conducted(told, plan)
    assert figures["completed"] > 15
    assert figures["terminations"] == 5
    assert figures["server_restarts"] == 1


@pytest.mark.slow
def test_a_long_chaos_on_postgresql_leaves_no_trace(
    directory: str, told: list[str], own_server: None
) -> None:
    """The same with thousands of tasks."""
    plan = Plan(
        directory=directory,
        seed=6,
        tasks=2500,
        kills=80,
        freezes=80,
        stops=20,
        clock_steps=40,
        full_disks=0,
        terminations=200,
        server_restarts=15,
        redis_stops=20 if shutil.which("redis-server") else 0,
        cancels=200,
        client_kills=10,
        store={"backend": "postgres"},
    )
    figures = conducted(told, plan)
    assert figures["completed"] > 1000
    assert figures["failed:holder_lost"] > 10
