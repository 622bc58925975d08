"""What was explored, told at the end of a test run."""

from __future__ import annotations

import pytest

_TOLD = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TOLD] = []


@pytest.fixture
def told(pytestconfig: pytest.Config) -> list[str]:
    """Lines for the summary."""
    return pytestconfig.stash[_TOLD]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(_TOLD, [])
    if lines:
        terminalreporter.section("schedules of the lease store")
        for line in lines:
            terminalreporter.write_line(line)
