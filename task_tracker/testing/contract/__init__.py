"""The contract of :mod:`task_tracker.store` as tests: every sentence of it is at least one.

The tests speak of the seam only; a backend is a :class:`~task_tracker.testing.harness.StoreHarness`.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "cancelling",
    "choosing",
    "claiming",
    "coordination",
    "creating",
    "deleting",
    "ending",
    "handing_over",
    "heartbeats",
    "lease_processes",
    "leases",
    "listing",
    "moving",
    "outages",
    "owners",
    "paging",
    "processes",
    "promises",
    "reading",
    "sequences",
    "start_times",
    "takeovers",
    "unreadable",
    "updating",
    "upkeep",
    "values",
)
# Before they are imported: so that an assert that fails in somebody else's test run shows its values.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from task_tracker.testing.contract.cancelling import CancellingContract  # noqa: E402
from task_tracker.testing.contract.choosing import ChoosingContract  # noqa: E402
from task_tracker.testing.contract.claiming import ClaimingContract  # noqa: E402
from task_tracker.testing.contract.coordination import CoordinationContract  # noqa: E402
from task_tracker.testing.contract.creating import CreatingContract  # noqa: E402
from task_tracker.testing.contract.deleting import DeletingContract  # noqa: E402
from task_tracker.testing.contract.ending import EndingContract  # noqa: E402
from task_tracker.testing.contract.handing_over import HandingOverContract  # noqa: E402
from task_tracker.testing.contract.heartbeats import HeartbeatContract  # noqa: E402
from task_tracker.testing.contract.lease_processes import LeaseProcessContract  # noqa: E402
from task_tracker.testing.contract.listing import ListingContract  # noqa: E402
from task_tracker.testing.contract.moving import MovingContract, TakingInContract  # noqa: E402
from task_tracker.testing.contract.outages import OutageContract  # noqa: E402
from task_tracker.testing.contract.owners import OwnerContract  # noqa: E402
from task_tracker.testing.contract.paging import PagingContract  # noqa: E402
from task_tracker.testing.contract.processes import ProcessContract  # noqa: E402
from task_tracker.testing.contract.promises import PromisesContract  # noqa: E402
from task_tracker.testing.contract.reading import ReadingContract  # noqa: E402
from task_tracker.testing.contract.sequences import SequencesContract  # noqa: E402
from task_tracker.testing.contract.start_times import StartTimesContract  # noqa: E402
from task_tracker.testing.contract.takeovers import TakeOverContract  # noqa: E402
from task_tracker.testing.contract.unreadable import UnreadableContract  # noqa: E402
from task_tracker.testing.contract.updating import UpdatingContract  # noqa: E402
from task_tracker.testing.contract.upkeep import UpkeepContract  # noqa: E402
from task_tracker.testing.contract.values import ValuesContract  # noqa: E402

__all__ = ["LeaseStoreContract", "TaskStoreContract"]


class TaskStoreContract(
    CreatingContract,
    UpdatingContract,
    ReadingContract,
    ValuesContract,
    ListingContract,
    PagingContract,
    DeletingContract,
    OwnerContract,
    MovingContract,
    UpkeepContract,
    UnreadableContract,
    OutageContract,
    PromisesContract,
    ProcessContract,
    SequencesContract,
):
    """What every store must pass. Subclass it and give it a fixture called ``harness``."""


class LeaseStoreContract(
    TaskStoreContract,
    ClaimingContract,
    ChoosingContract,
    StartTimesContract,
    HeartbeatContract,
    TakeOverContract,
    HandingOverContract,
    EndingContract,
    CancellingContract,
    CoordinationContract,
    TakingInContract,
    LeaseProcessContract,
):
    """What every store with leases must pass; the harness offers ``lapse``, ``let_pass`` and ``step_clock``."""
