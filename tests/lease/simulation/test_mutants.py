"""Each rule of the protocol is needed, and its loss is noticed."""

from __future__ import annotations

import pytest

from tests.lease.simulation.exploring import explore
from tests.lease.simulation.invariants import CHECKS
from tests.lease.simulation.mutants import MUTANTS
from tests.lease.simulation.scenarios import SCENARIOS

ENOUGH_STATES = 20_000
FEWEST_MUTANTS = 15


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= FEWEST_MUTANTS
    assert {mutant.check for mutant in MUTANTS.values()} <= set(CHECKS)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str, told: list[str]) -> None:
    mutant = MUTANTS[name]
    with mutant.applied():
        outcome = explore(SCENARIOS[mutant.scenario].exploration(max_states=ENOUGH_STATES, **mutant.how))
    assert outcome.violation is not None, f"nobody noticed: {outcome}"
    assert outcome.violation.check == mutant.check, str(outcome)
    told.append(f"without a rule: {name}: caught by {mutant.check!r} after {outcome.states} states")
