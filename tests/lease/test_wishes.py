"""The wish to cancel, seen by whoever reads while the entry that it lies in is taken apart."""

import contextlib
import os
import threading
from collections.abc import Callable

from task_tracker import transitions
from task_tracker.errors import InvalidTransition
from task_tracker.records import TaskStatus
from task_tracker.store import Stored
from tests.lease.support import open_store, ops_with

PATIENCE_SECONDS = 30.0


class Beside:
    """A call in a thread of its own, stopped where its own hook says."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.arrived, self.go = threading.Event(), threading.Event()
        self.answer: object = None
        self._thread = threading.Thread(target=self._run, args=(call,))

    def _run(self, call: Callable[[], object]) -> None:
        try:
            self.answer = call()
        except Exception as error:  # noqa: BLE001  # what came of it, for the test to look at
            self.answer = error
        finally:
            self.arrived.set()

    def stop_here(self) -> None:
        """Called by the hook."""
        self.arrived.set()
        assert self.go.wait(PATIENCE_SECONDS)

    def start(self) -> None:
        self._thread.start()
        assert self.arrived.wait(PATIENCE_SECONDS)

    def finish(self) -> object:
        self.go.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        return self.answer


def test_entry_taken_while_its_holder_removes_it_hides_no_wish(tmp_path, make):
    """The wish is removed with the entry, while somebody else has put a stage of his own into that.

    Whoever read the record before it ended must not take that for an entry without a wish.
    """

    # The holder ends the task, and stops after it has removed the wish.
    def unlink(path, **options):
        os.unlink(path, **options)
        if path.endswith("/cancel"):
            holder.stop_here()

    holder_store = open_store(tmp_path, ops_with(unlink=unlink))
    record = make()
    key = record.key
    holder_store.create(record)
    taken = holder_store.claim(key, holder="worker")
    assert taken is not None
    lease, stored = taken
    assert open_store(tmp_path).request_cancel(key).record.status is TaskStatus.CANCELLING

    # The reader has read the record and is about to look for the wish.
    def stat(path, **options):
        if path.endswith("/cancel") and not reader.arrived.is_set():
            reader.stop_here()
        return os.stat(path, **options)

    reader_store = open_store(tmp_path, ops_with(stat=stat))
    reader = Beside(lambda: reader_store.get(key))
    reader.start()

    holder = Beside(lambda: holder_store.end(lease, transitions.failed(stored.record, 9.0, "no")))

    # A third one has read that the task runs, and finds its entry free; it takes it, and stops with it in hand.
    seen: list[object] = []

    def listdir(path):
        if lease.token in path and not holder.arrived.is_set():
            holder.start()
        return os.listdir(path)

    def rename(source, target):
        os.rename(source, target)
        if source.endswith("~") and not seen:
            seen.append(reader.finish())

    third_store = open_store(tmp_path, ops_with(listdir=listdir, rename=rename))
    with contextlib.suppress(InvalidTransition):  # it has ended by then
        third_store.update(transitions.progressed(stored.record, 5.0, progress=7.0), expected=None)
    holder.finish()
    (shown,) = seen
    assert isinstance(shown, Stored), shown
    assert shown.record.status is TaskStatus.FAILED
