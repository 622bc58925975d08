"""A server that forks while one of its threads writes: the child keeps nobody out, and lets nobody in."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stores import PersistentTaskStore
from task_tracker import StoreUnavailable
from task_tracker.testing import RecordMaker
from tests.files.support import DIRECTORY, PATIENCE, ids

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def fork(work: Callable[[], object]) -> int:
    """Have a child do ``work`` and end; its exit status is 0 if that came to its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: other threads are the point
        child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE))
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def store_on(root: Path, seconds: float) -> PersistentTaskStore:
    return PersistentTaskStore(root, durability="none", lock_timeout_seconds=seconds)


@contextmanager
def held_by_a_thread(store: PersistentTaskStore) -> Iterator[None]:
    """Hold alice's lock on another thread, as a server's pool does when somebody forks."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with store._files.exclusively(DIRECTORY, make=True):
            held.set()
            done.wait(PATIENCE)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(PATIENCE)
    yield
    done.set()
    thread.join(PATIENCE)


def test_the_lock_goes_with_the_parent_though_its_child_lives(root: Path, make: RecordMaker) -> None:
    """A worker that does something else must not keep a user's tasks locked for as long as it lives."""
    told, tell = os.pipe()
    ask, asked = os.pipe()

    def idle(store: PersistentTaskStore) -> None:
        os.write(tell, b"%d\n" % os.getpid())
        os.read(ask, 1)
        store.create(make("by-child"))
        os.write(tell, b"created\n")

    def parent() -> None:
        store = store_on(root, PATIENCE)
        with held_by_a_thread(store):
            fork(lambda: idle(store))
            signal.pause()

    pid = fork(parent)
    child = int(os.read(told, 20))
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        store_on(root, 1).create(make("by-other"))
        os.write(asked, b"!")
        assert os.read(told, 20) == b"created\n"
    finally:
        for handle in (told, tell, ask, asked):
            os.close(handle)
        with contextlib.suppress(ProcessLookupError):  # it has come to its end
            os.kill(child, signal.SIGKILL)
    assert sorted(ids(store_on(root, 1))) == ["by-child", "by-other"]


def test_a_child_does_not_let_others_in_while_the_parent_writes(root: Path, make: RecordMaker) -> None:
    """What it closes of the parent's lock is its own copy."""
    store = store_on(root, 0.05)

    def child() -> None:
        with pytest.raises(StoreUnavailable, match="was held by"):
            store.create(make("by-child"))

    with held_by_a_thread(store):
        assert os.waitpid(fork(child), 0)[1] == 0
        with pytest.raises(StoreUnavailable, match="was held by"):
            store_on(root, 0.05).create(make("by-other"))
    store.create(make("by-parent"))
    assert os.waitpid(fork(lambda: store.create(make("by-child"))), 0)[1] == 0
    assert sorted(ids(store)) == ["by-child", "by-parent"]
