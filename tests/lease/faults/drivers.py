"""Programs of this package, run beside each other, each answering with one JSON object.

Owns the processes: whatever happens to a test, they and their children are gone when it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.files.support import PROJECT

PATIENCE_SECONDS: Final = 1800.0


def run(module: str, *commands: Sequence[object]) -> list[dict[str, Any]]:
    """Run ``python -m tests.lease.faults.<module>`` once for each list of arguments, all at once."""
    # Their children are killed, which measures nothing: they need not pay for coverage either.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-m", f"tests.lease.faults.{module}", *map(str, arguments)],
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        for arguments in commands
    ]
    try:
        answers = []
        for process in running:
            said, _ = process.communicate(timeout=PATIENCE_SECONDS)
            assert process.returncode == 0, f"{module} failed; its error is above"
            answers.append(json.loads(said))
        return answers
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def run_shares(
    module: str, places: Sequence[Path], *arguments: object, among: int | None = None
) -> list[dict[str, Any]]:
    """Run a program once for each place, each with its share of the work (of all, or one in ``among``)."""
    among = len(places) if among is None else among
    for place in places:
        place.mkdir()
    answers = run(
        module,
        *([place, "--share", f"{number}/{among}", *arguments] for number, place in enumerate(places)),
    )
    for answer in answers:
        if answer.get("skip"):
            pytest.skip(answer["skip"])
    return answers


def shown(failures: Sequence[str], most: int = 15) -> str:
    """Return the first of many failures, as a message."""
    return f"{len(failures)} went wrong:\n" + "\n".join(failures[:most])
