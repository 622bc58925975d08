"""Six processes on one directory, killed and frozen at random; what they wrote down must fit together.

[D001 D003 D007 D022]
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lease.processes.conductor import Plan, conduct
from tests.lease.processes.observer import read_seen
from tests.lease.processes.trace import Sight, read_traces
from tests.lease.processes.verdict import figures, violations


def run(path: Path, told_to: list[str], **plan: Any) -> dict[str, int]:
    """Run a chaos, check everything and return the figures."""
    directory = path / "traces"
    directory.mkdir()
    told = conduct(Plan(root=str(path / "root"), directory=str(directory), workers=6, **plan))
    calls, seen = read_traces(directory), read_seen(directory / "seen")
    final = {task: Sight(*sight) for task, sight in told["final"].items()}
    assert violations(calls, seen, final) == []
    assert told["pending"] == told["unclaimed"], "what is pending can be claimed"
    # Half-made markers in users' directories wait for the sweep, which cannot know that their writers are dead.
    assert [finding for finding in told["findings"] if finding[0] != "temporary_file"] == []
    assert told["left"] == [], "the doctor mends what it finds"
    assert told["control"] == [], "nothing is left over"
    found: dict[str, int] = told["counts"] | figures(calls) | {"observed": len(seen)}
    told_to.append(f"chaos: {json.dumps(found)}")
    return found


def test_chaos(fast_path: Path, told: list[str]) -> None:
    found = run(fast_path, told, seed=1, claims=500, kills=30, freezes=60, lease_seconds=0.3)
    assert found["take_overs"] > 10
    assert found["lease_lost"] > 2
    assert found["created"] > 100


@pytest.mark.slow
def test_long_chaos(fast_path: Path, told: list[str]) -> None:
    found = run(
        fast_path,
        told,
        seed=2,
        claims=10_000,
        kills=1000,
        freezes=3000,
        lease_seconds=0.2,
        patience_seconds=1200.0,
    )
    assert found["take_overs"] > 500
    assert found["lease_lost"] > 200


@pytest.mark.slow
def test_chaos_on_disk(tmp_path: Path, told: list[str]) -> None:
    found = run(
        tmp_path,
        told,
        seed=3,
        claims=1000,
        kills=100,
        freezes=200,
        lease_seconds=0.5,
        durability="edges",
        patience_seconds=600.0,
    )
    assert found["take_overs"] > 20
