"""The order of tests, and what they tell at the end of a run, gathered from all processes that ran them."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.telling import TOLD, merge, section_lines

TESTS = Path(__file__).parent
FIRST = (
    "test_demo.py",
    "lease/simulation/test_schedules.py",
    "contract/test_objects.py",
    "runtime/processes/test_worker_processes.py",
    "postgres/test_contract.py",
    "contract/test_filesystems.py",
    "postgres/test_isolation.py",
    "contract/test_lease.py",
    "lease/faults/test_crash_points.py",
    "lease/processes/test_linearizability.py",
    "contract/test_persistent.py",
    "runtime/processes/test_worker_chaos.py",
    "test_redaction.py",
    "lease/faults/test_power_loss.py",
    "runtime/processes/test_workdir_processes.py",
    "objects/test_schedules.py",
    "lease/processes/test_chaos.py",
    "queues/test_arq_processes.py",
    "postgres/test_wake_ups.py",
    "test_docs.py",
    "queues/test_redis_wake_up.py",
    "lease/faults/test_window.py",
)
"""Files that take long, so that none is left for the end, when the other processes have nothing to do any more. Those
that compute and those that wait take turns."""
YOUNG_OBJECTS = 20_000

# No time limit that a busy machine could miss. The fast run has the same examples each time; the long one looks for new
# ones, and says how to have one again.
settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.register_profile("new", deadline=None, database=None, print_blob=True)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("same" if "not slow" in config.option.markexpr else "new")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {TESTS / name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    # Some twelve thousand tests, which live as long as the session: looking through them for garbage again and again
    # takes an eighth of its time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine that could be taken for one of ours."""
    for name in [name for name in os.environ if "TASK_TRACKER" in name.upper()]:
        monkeypatch.delenv(name)


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
