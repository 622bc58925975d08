"""The native AGFS client of the openviking wheel, in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.files.support import PROJECT

LIMIT_SECONDS = 540


@pytest.fixture(scope="module")
def native_python() -> str:
    done = subprocess.run(
        [sys.executable, "tools/native_agfs.py"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    said = done.stdout.strip()
    if done.returncode:
        pytest.skip(said)
    return said


@pytest.mark.slow
def test_the_contract_holds_on_the_native_client(native_python: str) -> None:
    done = subprocess.run(
        [
            *(native_python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"),
            "tests/filesystems/native_contract.py",
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
        env={name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE_"))},
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
