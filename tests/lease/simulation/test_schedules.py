"""The library's own lease store under all schedules of a few processes, or under very many of them.

Every step is checked, and every state is also a crash of everybody, after which one fresh process must bring all
to a good end. The numbers of states are bounds, not times: each run explores the same.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.lease.simulation.exploring import Outcome, explore
from tests.lease.simulation.scenarios import SCENARIOS

STATES: Final = 350
LONG_STATES: Final = 25_000
MODE_STATES: Final = 250
LONG_MODE_STATES: Final = 5_000
LEAST_STATES: Final = {"quick": 40_000, "long": 1_000_000}

MODES: Final[dict[str, dict[str, Any]]] = {
    "names looked up once": {"cached": True},
    "torn listings": {"torn_lists": True},
    "slow writes": {"slow_writes": True},
    "a lost reply": {
        "lost_replies": frozenset({"link", "mkdir", "rename", "replace", "rmdir", "unlink"}),
    },
}
IN_EVERY_MODE: Final = (
    "create, recover",
    "create, cancel",
    "claim twice",
    "claim, thief",
    "hold, thief",
    "hold, thief, late thief",
    "hold, cancel, thief",
    "retry, claim",
    "hold, delete, thief",
    "delete, delete and create again",
    "only one: create twice",
    "update, claim",
)
each_scenario = pytest.mark.parametrize("name", SCENARIOS)
each_mode = pytest.mark.parametrize("mode", MODES)

explored: Final[dict[str, list[Outcome]]] = {"quick": [], "long": []}


def check(name: str, told: list[str], run: str, *, states: int, mode: str | None = None) -> None:
    outcome = explore(SCENARIOS[name].exploration(max_states=states, **({} if mode is None else MODES[mode])))
    explored[run].append(outcome)
    told.append(f"{outcome}{'' if mode is None else f' ({mode})'}")
    assert outcome.violation is None, str(outcome)


@each_scenario
def test_schedules(name: str, told: list[str]) -> None:
    check(name, told, "quick", states=STATES)


@each_mode
@pytest.mark.parametrize("name", IN_EVERY_MODE)
def test_schedules_of_network_clients(name: str, mode: str, told: list[str]) -> None:
    check(name, told, "quick", states=MODE_STATES, mode=mode)


@pytest.mark.slow
@each_scenario
def test_many_schedules(name: str, told: list[str]) -> None:
    check(name, told, "long", states=LONG_STATES)


@pytest.mark.slow
@each_mode
@each_scenario
def test_many_schedules_of_network_clients(name: str, mode: str, told: list[str]) -> None:
    check(name, told, "long", states=LONG_MODE_STATES, mode=mode)


@pytest.mark.parametrize(
    ("run", "tests"),
    [
        ("quick", len(SCENARIOS) + len(MODES) * len(IN_EVERY_MODE)),
        pytest.param("long", len(SCENARIOS) * (1 + len(MODES)), marks=pytest.mark.slow),
    ],
)
def test_enough_states_were_explored(run: str, tests: int, told: list[str]) -> None:
    outcomes = explored[run]
    states = sum(outcome.states for outcome in outcomes)
    exhausted = sum(outcome.exhausted for outcome in outcomes)
    told.append(f"{run}: {states} states of {len(outcomes)} explorations, {exhausted} of them to the end")
    # Whoever runs some of the tests has not asked for all the states.
    assert len(outcomes) < tests or states >= LEAST_STATES[run]
