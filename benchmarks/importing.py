"""What ``import task_tracker`` costs, against ``import pydantic``, each in a fresh interpreter."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from benchmarks.measure import Row

ROUNDS = 15


def rows() -> list[Row]:
    """Measure whole processes in turn; the bare interpreter is taken off both."""
    bare, ours, pydantic = [], [], []
    _run("import task_tracker, pydantic")
    for _ in range(ROUNDS):
        bare.append(_run("pass"))
        ours.append(_run("import task_tracker"))
        pydantic.append(_run("import pydantic"))
    base = statistics.median(bare)
    mine, theirs = statistics.median(ours) - base, statistics.median(pydantic) - base
    return [
        Row(
            "import task_tracker / import pydantic",
            mine / theirs,
            "x",
            1.5,
            f"{mine:.0f} ms / {theirs:.0f} ms",
        )
    ]


def _environment() -> dict[str, str]:
    """Let both sides keep their byte code, as installed packages do."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _run(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=_environment())
    return (time.perf_counter() - started) * 1000
