"""Trackers of these tests end with their module: their threads must not be met by tests that count threads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from task_tracker.call_threads import CallThreads
from tests.postgres.fixtures import ground, grounds

__all__ = ["ground", "grounds", "no_threads_are_left"]

PATIENCE_SECONDS = 30.0


@pytest.fixture(autouse=True, scope="module")
def no_threads_are_left() -> Iterator[None]:
    known: weakref.WeakSet[CallThreads] = weakref.WeakSet()
    make = CallThreads.__init__

    def make_and_note(self: CallThreads, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        known.add(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CallThreads, "__init__", make_and_note)
        yield
    for threads in list(known):
        threads.end()
    for thread in threading.enumerate():
        if thread.name == "task_tracker call":
            thread.join(PATIENCE_SECONDS)
