"""The suite catches what is wrong."""

import inspect
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from stores.files.persistent import PersistentTaskStore
from stores.memory import InMemoryTaskStore
from task_tracker.errors import TaskTrackerError
from task_tracker.store import LeaseStore
from task_tracker.testing import (
    LeaseStoreContract,
    RecordMaker,
    StoreHarness,
    TaskStoreContract,
    state_machine_for,
)
from task_tracker.testing.answers import as_said, claimed_by
from task_tracker.testing.contract.leases import LeaseFixtures
from tests.contract import wrong_coordination, wrong_leases, wrong_listings, wrong_stores
from tests.contract.harnesses import CountingDirectoryHarness, MemoryHarness

FOUND_BY_SEQUENCES: list[type[InMemoryTaskStore]] = [
    wrong_stores.Overwrites,
    wrong_stores.IsBlockedByWaitingTasksOnly,
    wrong_stores.IsBlockedByOtherTenants,
    wrong_stores.Recreates,
    wrong_stores.Merges,
    wrong_stores.IsAlwaysUnchanged,
    wrong_stores.FindsByIdAlone,
    wrong_leases.LetsAnybodyUpdate,
    wrong_listings.FiltersAfterTheCut,
    wrong_listings.ListsOldestFirst,
    wrong_listings.DeletesActiveTasks,
    wrong_listings.DeletesAnyVersion,
    wrong_listings.DeletesWhatHasEndedBeforeItRefuses,
    wrong_listings.PurgesByAgeAlone,
    wrong_listings.CountsOtherUsers,
    wrong_listings.RemembersWhatWasActive,
]
"""What the state machine must find by itself."""

FOUND_LATE: list[type[InMemoryTaskStore]] = [
    wrong_stores.ClaimsToCompare,
    wrong_listings.LosesTiesAtTheCut,
    wrong_listings.PurgesWithoutLimit,
]
"""What it finds too, after many sequences."""

SCENARIOS = [
    *["D005", "D037", "D053", "D059", "D060", "D066", "D067", "D069", "D070", "D077", "D079", "D083"],
    *["D086", "D121", "D125", "D127", "D130", "D131", "D134", "D136", "D137", "D144", "D155"],
]
LEASE_SCENARIOS = [
    *["D003", "D007", "D008", "D010", "D014", "D022", "D023", "D026", "D036", "D061", "D064", "D095", "D100"],
    *["D154", "D160"],
]


def run_test(harness: StoreHarness, test: str, arguments: dict, tmp_path: Path) -> None:
    """Run one test of the contract by hand."""
    method = getattr(LeaseStoreContract(), test)
    wanted = inspect.signature(method).parameters
    with ExitStack() as stack:
        opened = stack.enter_context(closing(harness.open()))
        make = RecordMaker(own_fields=not opened.capabilities.leases)
        fixtures: dict[str, object] = {
            "harness": harness,
            "make": make,
            "opened": opened,
            "tmp_path": tmp_path,
        }
        for name in ("store", "exact", "other"):
            if name in wanted:
                fixtures[name] = as_said(stack.enter_context(closing(harness.open())))
        if isinstance(opened, LeaseStore):
            fixtures["leases"] = opened
            fixtures["rescuer"] = stack.enter_context(closing(harness.open()))
            if "claimed" in wanted:
                fixtures["claimed"] = claimed_by(opened, opened.create(make()).record.key)
        if "planted" in wanted:
            fixtures["planted"] = make.key("planted")
            harness.plant(make.key("planted"), b'{"half": ')
        method(**{name: value for name, value in fixtures.items() if name in wanted}, **arguments)


class TestTheSuiteCatches:
    @pytest.mark.parametrize(
        "wrong", wrong_coordination.WRONG, ids=lambda wrong: f"{wrong.store.__name__}-{wrong.test}"
    )
    def test_wrong_store(self, wrong: wrong_stores.Wrong, tmp_path):
        base = PersistentTaskStore if issubclass(wrong.store, PersistentTaskStore) else InMemoryTaskStore

        def run(kind):
            if base is InMemoryTaskStore:
                run_test(MemoryHarness(kind), wrong.test, wrong.arguments, tmp_path)
            else:
                with CountingDirectoryHarness(tmp_path / kind.__name__, kind).counting() as harness:
                    run_test(harness, wrong.test, wrong.arguments, tmp_path)

        with pytest.raises((Exception, pytest.fail.Exception, pytest.skip.Exception)) as caught:
            run(wrong.store)
        assert not isinstance(caught.value, pytest.skip.Exception)
        assert not isinstance(caught.value, (TypeError, AttributeError)), "wrong in another way than meant"

    @pytest.mark.parametrize(
        "kind", [*FOUND_BY_SEQUENCES, *(pytest.param(kind, marks=pytest.mark.slow) for kind in FOUND_LATE)]
    )
    def test_wrong_answer_to_a_sequence_of_calls(self, kind):
        machine = state_machine_for(lambda: MemoryHarness(kind))
        search = settings(
            derandomize=True,
            database=None,
            deadline=None,
            max_examples=2000,  # it ends with the first that fails
            stateful_step_count=30,
            phases=[Phase.generate],  # a failure is enough, nobody reads it
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        with pytest.raises((AssertionError, TaskTrackerError)):
            run_state_machine_as_test(machine, settings=search)

    def test_every_test_names_what_it_is_about(self):
        tests = [name for name in dir(LeaseStoreContract) if name.startswith("test_")]
        assert len(tests) > 200
        for name in tests:
            assert getattr(LeaseStoreContract, name).__doc__, f"{name} has no docstring"

    def test_no_test_hides_another_of_the_same_name(self):
        own = [vars(part) for part in LeaseStoreContract.__mro__]
        names = [name for part in own for name in part if name.startswith("test_")]
        fixtures = [
            "opened",
            "store",
            "other",
            "make",
            "exact",
            "planted",
            "crew",
            "shared_spec",
            "exact_spec",
        ]
        assert sorted(names) == sorted(set(names))
        for fixture in fixtures:
            assert sum(fixture in part for part in own) == 1

    @pytest.mark.parametrize(
        ("contract", "scenario"),
        [
            *((TaskStoreContract, scenario) for scenario in SCENARIOS),
            *((LeaseStoreContract, scenario) for scenario in LEASE_SCENARIOS),
        ],
        ids=lambda value: value if isinstance(value, str) else value.__name__,
    )
    def test_scenario_is_in_the_suite(self, contract, scenario):
        tests = [name for name in dir(contract) if name.startswith("test_")]
        assert any(f"[{scenario}]" in (getattr(contract, name).__doc__ or "") for name in tests)

    def test_stores_without_leases_skip_no_test_of_leases(self):
        assert not any(issubclass(part, LeaseFixtures) for part in TaskStoreContract.__mro__)
