"""What the tests of the reconciler begin with."""

from __future__ import annotations

from task_tracker import TaskTracker
from task_tracker.reconciler import Reconciled, Reconciler

DAY = 86_400.0
NOTHING = Reconciled(0, 0, 0, 0, 0)


def reconciler_of(tracker: TaskTracker) -> Reconciler:
    assert tracker._reconciler is not None
    return tracker._reconciler
