"""What a backend must pass, and what tests of a tracker need; ships with the library.

A backend adopts the suite with a :class:`StoreHarness` and one fixture::

    class TestMyStore(TaskStoreContract):  # LeaseStoreContract for a store with leases
        @pytest.fixture
        def harness(self, tmp_path):
            return MyHarness(tmp_path)

The suite needs pytest and hypothesis; :class:`FakeClock`, :class:`FaultyStore` and the clients need neither.
Tests that take long carry the mark ``slow``: register it, or leave them out with ``-m "not slow"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from task_tracker.testing.clients import MovingClient, PlainClient, RemovingClient
    from task_tracker.testing.contract import LeaseStoreContract, TaskStoreContract
    from task_tracker.testing.fake_clock import FakeClock
    from task_tracker.testing.faulty import FaultyStore
    from task_tracker.testing.harness import StoreHarness, expired_now
    from task_tracker.testing.model import StoreStateMachine, state_machine_for
    from task_tracker.testing.samples import RecordMaker

__all__ = [
    "FakeClock",
    "FaultyStore",
    "LeaseStoreContract",
    "MovingClient",
    "PlainClient",
    "RecordMaker",
    "RemovingClient",
    "StoreHarness",
    "StoreStateMachine",
    "TaskStoreContract",
    "expired_now",
    "state_machine_for",
]

_HOMES: Final = {
    "FakeClock": "fake_clock",
    "FaultyStore": "faulty",
    "LeaseStoreContract": "contract",
    "MovingClient": "clients",
    "PlainClient": "clients",
    "RecordMaker": "samples",
    "RemovingClient": "clients",
    "StoreHarness": "harness",
    "StoreStateMachine": "model",
    "TaskStoreContract": "contract",
    "expired_now": "harness",
    "state_machine_for": "model",
}


def __getattr__(name: str) -> Any:
    """Import a tool when it is asked for: not everybody who needs a clock has pytest and hypothesis."""
    if name not in _HOMES:
        raise AttributeError(f"module 'task_tracker.testing' has no attribute {name!r}")
    from importlib import import_module

    try:
        module = import_module(f"task_tracker.testing.{_HOMES[name]}")
    except ImportError as error:
        raise ImportError(
            f"task_tracker.testing.{name} needs pytest and hypothesis; install 'durable-task-tracker[testing]'"
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    """Name also what has not been imported yet."""
    return sorted({*globals(), *__all__})
