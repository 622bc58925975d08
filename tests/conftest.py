"""What tests tell at the end of a run, gathered from all processes that ran them."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from tests.telling import TOLD, merge, section_lines

YOUNG_OBJECTS = 20_000


def pytest_collection_finish() -> None:
    # Some twelve thousand tests, which live as long as the session: looking through them for garbage again and again
    # takes an eighth of its time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


@pytest.fixture
def told() -> list[str]:
    """Sentences for the summary, one section for all of them."""
    return TOLD.setdefault("figures", [])


def pytest_sessionfinish(session: pytest.Session) -> None:
    # With several processes each has its own; the one that prints gets them all.
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["told"] = dict(TOLD)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    merge(getattr(node, "workeroutput", {}).get("told", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for title, lines in section_lines():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)
